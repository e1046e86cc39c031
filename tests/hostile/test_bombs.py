"""What is too large is refused before it is made; what has no end is not read to it; time grows with the text alone."""

import dataclasses
import gzip
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Capsys
from task_files import read

from bertkit.base import text_files
from bertkit.base.errors import InputError
from bertkit.base.text_files import read_lines
from bertkit.cli import run
from bertkit.data.corpus.manifest import damaged_files, read_manifest
from bertkit.data.corpus.prepared import check_offsets
from bertkit.data.corpus.tokenizer import Tokenizer, train_tokenizer
from bertkit.data.corpus.word_cache import WordCache
from bertkit.data.data_config import CorpusConfig, TokenizerConfig
from bertkit.data.texts.documents import open_corpus
from bertkit.data.texts.sources import split_sentences
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import BertConfig
from bertkit.model.heads import BertWithHeads
from bertkit.run.memory_plan import TOO_MANY, num_weights


def refused(capsys: Capsys, words: str, *arguments: str) -> None:
    began = time.monotonic()
    assert run(list(arguments)) == 2, capsys.readouterr()
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(errors) == 1, errors
    assert words in errors[0]
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(("setting", "words"), [
    ("model.hidden_size=1000000000", "GB of memory"),
    ("model.max_position_embeddings=2147483647", "GB of memory"),
    ("model.hidden_size=2147483646", "a model of 2.31e+18 weights"),
    ("model.intermediate_size=1000000000", "GB of memory"),
    ("model.type_vocab_size=1000000000", "GB of memory"),
    ("batch.sequences=1000000000", "batch.sequences=1000000000 of 128 tokens would need at least 4,096.0 GB"),
])  # fmt: skip
def test_sizes_of_pretraining(setting: str, words: str, prepared_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    arguments = [f"data_dir={prepared_dir}", "model=tiny", "steps=1", "schedule.warmup_steps=0"]
    refused(capsys, words, "pretrain", *arguments, f"output_dir={tmp_path / 'run'}", setting)
    assert not (tmp_path / "run").exists()


def test_huge_vocabulary_is_refused(prepared_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    vocabulary = ["corpus=python_docs", "tokenizer.vocab_size=1000000000000", f"output_dir={tmp_path}/p"]
    refused(capsys, "expected 100 to 10,000,000", "prepare", *vocabulary)
    assert not (tmp_path / "p").exists()


def test_the_estimate_counts_every_weight() -> None:
    shape = {"num_attention_heads": 2, "hidden_act": "gelu", "initializer_range": 0.02, "layer_norm_eps": 1e-12}
    for hidden, layers, inner, positions, types, vocab in ((12, 5, 23, 11, 2, 131), (20, 1, 5, 7, 3, 103)):
        sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": inner, "vocab_size": vocab}
        more = {"max_position_embeddings": positions, "type_vocab_size": types, "hidden_dropout_prob": 0.0}
        config = BertConfig(**shape, **sizes, **more, attention_probs_dropout_prob=0.0)  # type: ignore[arg-type]
        variants = [{"score": name} for name in ("scaled_dot", "dot", "general", "additive", "location")]
        variants += [{"positions": name} for name in ("none", "sinusoidal", "rotary", "alibi", "relative")]
        for variant in [*variants, {"pattern": "linformer"}]:
            varied = dataclasses.replace(config, attention=AttentionConfig(**variant))  # type: ignore[arg-type]
            model = BertWithHeads(varied, (), with_pooler=False)
            assert num_weights(varied) == sum(parameter.numel() for parameter in model.parameters()), variant
    attention = AttentionConfig(pattern="linformer", compressed_size=10**9)
    assert num_weights(dataclasses.replace(config, attention=attention)) > 7 * 10**9
    many = dataclasses.replace(config, hidden_size=2**31 - 2, num_hidden_layers=10_000)
    assert num_weights(many) == TOO_MANY


def test_lines_records_and_archives_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.gz"
    log.write_bytes(gzip.compress(b"connection closed\n" * 2_000_000))
    assert sum(1 for _ in read_lines(log)) == 2_000_000  # it expands 400 times, to less than 64 MB
    monkeypatch.setattr(text_files, "LINE_MB", 1)
    path = tmp_path / "long.txt"
    path.write_bytes(b"short\n" + b"a" * 2_000_000)
    with pytest.raises(InputError, match=r"long.txt:2: .*64 MB"):
        list(read_lines(path))
    with (tmp_path / "sparse.txt").open("wb") as file:
        file.truncate(100_000_000_000)
    with pytest.raises(InputError, match="a zero byte"):
        list(read_lines(tmp_path / "sparse.txt"))
    letters = np.random.default_rng(0).integers(97, 123, 2_000_000, np.uint8).tobytes()
    (tmp_path / "long.gz").write_bytes(gzip.compress(letters))
    with pytest.raises(InputError, match=r"long.gz:1: a line longer"):
        list(read_lines(tmp_path / "long.gz"))


def test_decompression_bombs_are_refused(
    tiny_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    """Refused before the first line is predicted, also behind a text."""
    monkeypatch.setattr(text_files, "LINE_MB", 4)
    text = "".join(f"kan lon {number**3}\n" for number in range(90_000)).encode()
    letters = np.random.default_rng(0).integers(97, 123, 500, np.uint8).tobytes()
    numbered = b"".join(b"%d %s\n" % (number, letters) for number in range(9000))
    for name, packed in (("text", gzip.compress(text)), ("numbered", gzip.compress(numbered))):
        (tmp_path / f"{name}.txt.gz").write_bytes(packed)
    assert len(numbered) > 100 * len(gzip.compress(numbered))
    assert sum(1 for _ in read_lines(tmp_path / "text.txt.gz")) == 90_000
    assert sum(1 for _ in read_lines(tmp_path / "numbered.txt.gz")) == 9000
    bomb = gzip.compress(b"kan lon\n" * 1_000_000)
    for name, packed in (("bomb", bomb), ("behind", gzip.compress(text) + bomb)):
        (tmp_path / f"{name}.txt.gz").write_bytes(packed)
        with pytest.raises(InputError, match=rf"{name}\.txt\.gz: 4 MB unpacked from less than 0\.02 MB"):
            list(read_lines(tmp_path / f"{name}.txt.gz"))
    arguments = [
        f"model_dir={tiny_runs / 'fine'}",
        f"input={tmp_path / 'bomb.txt.gz'}",
        f"output={tmp_path / 'out.jsonl'}",
    ]
    refused(capsys, "text expands less than 200 times", "predict", *arguments)


def test_a_long_array_on_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("text_files.LINE_MB", "text_files.WHOLE_MB", "json_stream.WHOLE_MB"):
        monkeypatch.setattr(f"bertkit.base.{name}", 1)
    records = [{"text": f"kan lon {n}", "label": "ab"[n % 2]} for n in range(60_000)]
    (tmp_path / "train.json").write_text(json.dumps(records))
    assert len(read(tmp_path, "sequence", "train").examples) == 60_000
    corpus = CorpusConfig("files", str(tmp_path / "train.json"), "auto", "text", "auto", "utf-8", None, "train")
    assert sum(len(document) for document in open_corpus(corpus)) == 60_000


def test_offsets_that_do_not_grow_are_refused(prepared_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "train" / "sentences.bin"
    check_offsets(np.array([0, 2, 7]), 7, path, chunk=1)
    for wrong in ([0, 7, 2, 7], [1, 7], [0, 3], [0, 3, 3, 7], []):
        with pytest.raises(InputError, match="from 0 to 7"):
            check_offsets(np.array(wrong), 7, path, chunk=1)
    check_offsets(np.array([0, 3, 3, 7]), 7, path, is_strict=False)
    assert damaged_files(prepared_dir, read_manifest(prepared_dir)) == []


FAMILIES: dict[str, str] = {
    "letters": "a", "initials": "A. ", "abbreviations": "Mr. ", "quoted initials": "'A. ", "prose": "The cat sat. It slept. ", "cjk": "中",
    "cut names": "[MAS", "names": "[MASK]", "accents": "e\u0301", "marks": "!", "spaces": " ", "stops": ". ",
}  # fmt: skip


def exponent(work: Callable[[str], object], unit: str, small: int, large: int) -> float:
    """Fit the p of time = c size^p, by the best of up to three rounds, since others use the machine too."""
    texts = {size: unit * (size // len(unit.encode()) + 1) for size in (small, large)}
    best, result = dict.fromkeys(texts, math.inf), math.inf
    for _ in range(3):
        for size in (small, small, small, large):
            began = time.process_time()
            work(texts[size])
            best[size] = min(best[size], time.process_time() - began)
        result = math.log(best[large] / best[small]) / math.log(large / small)
        if result <= 1.1:
            break
    return result


def steps_of(tokenizer: Tokenizer) -> dict[str, Callable[[str], object]]:
    return {
        "splitting": split_sentences,
        "tokenizing": lambda text: tokenizer.encode_flat([text]),
        "tokenizing what is remembered": lambda text: WordCache(tokenizer, 1000).encode_flat([text]),
        "offsets": lambda text: tokenizer.encode_with_offsets([text]),
    }


def test_splitting_and_learning_are_linear() -> None:
    for name in ("initials", "quoted initials"):
        assert exponent(split_sentences, FAMILIES[name], 30_000, 240_000) < 1.4, name  # 2 before
    began = time.process_time()
    for word in ("a", "e\u0301", "b" * 150):
        text = ["a cat", word * 400_000 if len(word) < 3 else f"{word} " * 1000]
        for kind in ("wordpiece", "unigram"):
            config = TokenizerConfig(None, 300, 2, None, "auto", kind)  # type: ignore[arg-type]
            train_tokenizer(config, lambda text=text: iter(text), True, "hugging_face")  # type: ignore[misc]
    assert time.process_time() - began < 10  # a minute for the first one alone, before


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_step_is_linear_up_to_16_megabytes(family: str, tokenizer: Tokenizer) -> None:
    actual = {name: exponent(work, FAMILIES[family], 250_000, 16_000_000) for name, work in steps_of(tokenizer).items()}
    print(family, {name: round(value, 2) for name, value in actual.items()})
    assert max(actual.values()) <= 1.1, actual
