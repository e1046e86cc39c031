"""Minimal pairs: scores equal those of a loop over `transformers`, equal texts tie, and paradigms are counted one by one."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import Capsys, headed_model, refused, small_model
from task_files import read
from tokenizer_files import saved_model

import bertkit
from bertkit import export_model
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.model.attention_config import AttentionConfig

# many words of several pieces, punctuation, an empty text, and texts of different lengths
PAIRS = [
    ("kan lon ten mir.", "kan lon mir ten."),
    ("lonkanten mirrur, kan", "lonkanten"),
    ("Kan lontenrur's kan", "kan x lonlonlon"),
    ("rur", "rurrur"),
    ("kan lon ten", "kan LON ten"),
    ("", "kan"),
]
CAUSAL = AttentionConfig(pattern="causal")


def write(folder: Path, name: str, rows: Sequence[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / name


def records(pairs: Sequence[tuple[str, str]], paradigm: str) -> list[dict[str, Any]]:
    """Rows with the fields of BLiMP."""
    fields = {"field": "syntax", "linguistics_term": "agreement", "UID": paradigm}
    return [
        {"sentence_good": good, "sentence_bad": bad, **fields, "pairID": str(n)} for n, (good, bad) in enumerate(pairs)
    ]


@torch.no_grad()
def by_words(model: Any, tokenizer: Any, text: str) -> float:
    """The pseudo-log-likelihood of Kauf and Ivanova 2023 (PLL-word-l2r), a copy at a time."""
    encoding = tokenizer(text, return_tensors="pt")
    ids, words, total = encoding["input_ids"], encoding.word_ids(0), 0.0
    for place in range(1, ids.shape[1] - 1):
        hidden = ids.clone()
        hidden[0, [p for p, word in enumerate(words) if word == words[place] and p >= place]] = tokenizer.mask_token_id
        logits = model(**{**encoding, "input_ids": hidden}).logits[0, place]
        total += torch.log_softmax(logits.double(), -1)[ids[0, place]].item()
    return total


@torch.no_grad()
def left_to_right(model: Any, tokenizer: Any, text: str) -> float:
    """The sum of the log-probabilities of all tokens of a text, without [SEP]."""
    ids = tokenizer(text, return_tensors="pt")["input_ids"][:, :-1]
    logits = model(input_ids=ids).logits[0]
    return float(torch.log_softmax(logits.double(), -1)[range(ids.shape[1] - 1), ids[0, 1:]].sum())


def random_model(folder: Path, tokenizer: Tokenizer) -> Path:
    """`BertForMaskedLM` with random weights, as `transformers` saves it."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=44, num_hidden_layers=3, num_attention_heads=4, intermediate_size=53,
        max_position_embeddings=37, initializer_range=0.1,
    )  # fmt: skip
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    for name, content in tokenizer.files(37).items():
        (folder / name).write_text(content)
    return folder


def byte_level_model(folder: Path, _: Tokenizer) -> Path:
    return saved_model(folder, "byte_level")


def causal_model(folder: Path, tokenizer: Tokenizer) -> Path:
    model = headed_model(tokenizer, "next_token", scale=3, with_pooler=False, attention=CAUSAL)
    return export_model(model, tokenizer, folder)


@pytest.fixture
def pretrained(tiny_runs: Path, tmp_path: Path) -> Callable[[Path, Tokenizer], Path]:
    """A model that bertkit has pretrained and exported."""

    def exported(folder: Path, _: Tokenizer) -> Path:
        arguments = [f"model_dir={tiny_runs / 'pre'}", "head=masked_lm", f"output_dir={folder}"]
        assert run(["export", *arguments]) == 0
        return folder

    return exported


@pytest.mark.parametrize("kind", ["random", "byte_level", "pretrained", "causal"])
def test_scores_equal_those_of_a_loop_over_transformers(
    kind: str, tmp_path: Path, tokenizer: Tokenizer, request: pytest.FixtureRequest
) -> None:
    make = {"random": random_model, "byte_level": byte_level_model, "causal": causal_model}.get(
        kind
    ) or request.getfixturevalue("pretrained")
    directory = make(tmp_path / "model", tokenizer)
    auto = transformers.AutoModelForCausalLM if kind == "causal" else transformers.AutoModelForMaskedLM
    theirs, words = auto.from_pretrained(directory).eval(), transformers.AutoTokenizer.from_pretrained(directory)
    assert max(len(words.tokenize(word)) for word in PAIRS[1][0].split()) > 2
    score = left_to_right if kind == "causal" else by_words
    rows = [{"good": good, "bad": bad} for good, bad in PAIRS]
    settings = {"task": "minimal_pairs", "model_dir": str(directory), "device": "cpu", "task.max_seq_length": 30}
    predicted = bertkit.predict(input=rows, **settings)
    expected = [[score(theirs, words, text) for text in pair] for pair in PAIRS]
    assert len({round(value, 3) for pair in expected for value in pair}) > len(PAIRS)
    for row, own in zip(predicted, expected, strict=True):
        assert row["scores"] == pytest.approx(own, abs=1e-6, rel=1e-6)
        assert row["right"] == (1.0 if own[0] > own[1] else 0.5 if row["scores"][0] == row["scores"][1] else 0.0)
    assert (predicted[4]["right"] == 0.5) == (kind != "byte_level")  # to an uncased model both texts are the same
    measured = bertkit.evaluate(data=rows, **settings)
    assert measured.scores["accuracy"] == sum(row["right"] for row in predicted) / len(rows)


def test_a_model_that_knows_nothing_has_half(tmp_path: Path, tokenizer: Tokenizer) -> None:
    model = small_model(tokenizer.vocab_size, heads=("masked_lm",), with_pooler=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    directory = export_model(model, tokenizer, tmp_path / "model")
    rows = [{"good": good, "bad": bad} for good, bad in [("kan lon", "lon kan"), ("ten mir", "mir rur")]]
    measured = bertkit.evaluate(
        data=rows, model_dir=str(directory), device="cpu", **{"task": "minimal_pairs", "task.max_seq_length": 30}
    )
    assert measured.scores["accuracy"] == 0.5


def test_paradigms_of_a_folder_are_counted_one_by_one(tmp_path: Path, tokenizer: Tokenizer, capsys: Capsys) -> None:
    directory = random_model(tmp_path / "model", tokenizer)
    write(tmp_path / "data", "one.jsonl", records(PAIRS[:3], "one"))
    write(tmp_path / "data", "two.jsonl", [{**row, "field": "morphology"} for row in records(PAIRS[3:5], "two")])
    arguments = ["task=minimal_pairs", f"model_dir={directory}", "device=cpu", "task.max_seq_length=30"]

    def evaluated(*more: str) -> dict[str, Any]:
        assert run(["evaluate", *arguments, *more]) == 0
        output = capsys.readouterr()
        measured: dict[str, Any] = json.loads(output.out)
        return measured | {"said": output.err}

    whole = evaluated(f"data_dir={tmp_path / 'data'}")
    assert f"{tmp_path / 'data'} (2 files): 5 pairs; one 3 (60.0%), two 2 (40.0%)" in whole["said"]
    parts = whole["by_paradigm"]
    assert list(parts) == ["one", "two"]
    assert [part["num_pairs"] for part in parts.values()] == [3, 2]
    assert parts["two"]["accuracy"] in (0.25, 0.75)  # one pair is a tie
    assert whole["accuracy"] == pytest.approx((parts["one"]["accuracy"] + parts["two"]["accuracy"]) / 2)
    low, high = whole["intervals"]["accuracy"]
    assert low < whole["accuracy"] < high
    assert whole["num_examples"] == 5
    one = evaluated(f"task.files.dev={tmp_path / 'data' / 'one.jsonl'}")
    assert one["accuracy"] == parts["one"]["accuracy"] == one["by_paradigm"]["one"]["accuracy"]
    assert "truncated" not in one["said"]
    cut = evaluated(f"task.files.dev={tmp_path / 'data' / 'one.jsonl'}", "task.max_seq_length=8")
    assert "warning: 2 of 3 examples were truncated by task.max_seq_length=8; raise it\n" in cut["said"]


def test_paradigms_may_be_numbers(tmp_path: Path) -> None:
    """0 is a paradigm of its own; without one, a pair has that of its file."""
    numbers = [0, 0.0, 1, "1", None, ""]
    write(tmp_path, "dev.jsonl", [{**records(PAIRS[:1], "")[0], "UID": number} for number in numbers])
    paradigms = [example.paradigm for example in read(tmp_path, "minimal_pairs", "dev").examples]
    assert paradigms == ["0", "0", "1", "1", "dev.jsonl", "dev.jsonl"]


REFUSED = [
    (["finetune", "output_dir=run"], "task=minimal_pairs: there is nothing to train; measure a pretrained model: bertkit evaluate"),
    (["view", "text=kan", "text_pair=lon", "output=page.html"], "no head for task=minimal_pairs, only masked_lm"),
    (["evaluate", "task.metrics=[f1]", "task.best_metric=f1"], "f1 cannot measure the more probable of two texts"),
    (["evaluate", "task.max_seq_length=128"], "task.max_seq_length=128 exceeds the model's max_position_embeddings=37"),
    (["evaluate", "task=choice"], "no head for task=choice, only masked_lm"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_what_cannot_be_done(
    words: list[str],
    message: str,
    tmp_path: Path,
    tokenizer: Tokenizer,
    capsys: Capsys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = random_model(tmp_path / "model", tokenizer)
    write(tmp_path / "data", "one.jsonl", records(PAIRS[:3], "one"))
    command, *more = words
    data = [] if command == "view" else ["data_dir=data"]
    arguments = ["task=minimal_pairs", "task.max_seq_length=30", f"model_dir={directory}", *data, "device=cpu", *more]
    refused(run([command, *arguments]), message, capsys)


def test_a_model_with_the_head_of_another_task_is_refused(tmp_path: Path, tokenizer: Tokenizer, capsys: Capsys) -> None:
    directory = export_model(headed_model(tokenizer, "sequence"), tokenizer, tmp_path / "model")
    write(tmp_path / "data", "one.jsonl", records(PAIRS[:3], "one"))
    words = ["evaluate", "task=minimal_pairs", f"model_dir={directory}", f"data_dir={tmp_path / 'data'}"]
    refused(run(words), "task=minimal_pairs is of kind minimal_pairs, but", capsys)
