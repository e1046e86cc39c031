"""A model whose vocabulary is a SentencePiece model, or a byte-level BPE in two files, has the tokenizer of its class in `transformers`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sentencepiece
import transformers
from family_tokenizers import TEXTS, save_tokenizer

import bertkit
from bertkit.base.errors import InputError
from bertkit.interop.model_dir import has_tokenizer, hashes_of
from bertkit.interop.parity.tokenizers import tokenizer_fault

PAIRS = {"roberta": "vocab.json", "deberta": "vocab.json"}
BERTS = {
    "pad_id": 0,
    "bos_id": 1,
    "eos_id": 2,
    "unk_id": 3,
    "pad_piece": "[PAD]",
    "bos_piece": "[CLS]",
    "eos_piece": "[SEP]",
    "unk_piece": "[UNK]",
}
ALBERTS = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}
PIECES = {
    "deberta-v2": ("spm.model", BERTS),
    "xlm-roberta": ("sentencepiece.bpe.model", {}),
    "albert": ("spiece.model", ALBERTS),
}


def two_files(kind: str, folder: Path) -> None:
    """Save the vocabulary and the merges of a class, as `transformers` 4 did beside no tokenizer.json."""
    save_tokenizer(kind, folder)
    own = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(own["vocab"]), encoding="utf-8")
    (folder / "merges.txt").write_text(
        "#version: 0.2\n" + "\n".join(map(" ".join, own["merges"])) + "\n", encoding="utf-8"
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


def sentence_pieces(kind: str, folder: Path) -> None:
    """Learn a Unigram model with SentencePiece, with the special tokens of a type."""
    folder.mkdir()
    name, special = PIECES[kind]
    text, prefix = folder.with_suffix(".txt"), folder / "learned"
    text.write_text("\n".join(TEXTS), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(prefix), vocab_size=100, minloglevel=2, **special
    )
    prefix.with_suffix(".model").rename(folder / name)


def folder_of(kind: str, tmp_path: Path) -> Path:
    folder = tmp_path / kind
    if kind in PAIRS:
        two_files(kind, folder)
    else:
        sentence_pieces(kind, folder)
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    return folder


@pytest.mark.parametrize("kind", [*PAIRS, *PIECES])
def test_ids_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    folder = folder_of(kind, tmp_path)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), bertkit.load_tokenizer(folder)
    assert len(theirs) == ours.vocab_size >= 100
    texts = [*TEXTS, "An unseen Zürich 漢字 <mask> [MASK]  two  blanks"]
    assert ours(texts)["input_ids"] == theirs(texts)["input_ids"]
    assert ours(texts, texts[::-1])["input_ids"] == theirs(texts, texts[::-1])["input_ids"]
    assert has_tokenizer(folder)
    assert tokenizer_fault(folder) is None
    saved = tmp_path / "saved"
    ours.save(saved)
    assert bertkit.load_tokenizer(saved)(texts) == ours(texts)


def test_the_packages_for_sentence_piece_are_named(tmp_path: Path) -> None:
    folder = folder_of("deberta-v2", tmp_path)
    code = f"import sys; sys.modules['sentencepiece'] = None; import bertkit; bertkit.load_tokenizer({str(folder)!r})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    expected = f"InputError: {folder / 'spm.model'}: transformers reads a SentencePiece model with two more packages: pip install sentencepiece protobuf"
    assert ended.stderr.splitlines()[-1].endswith(expected)


@pytest.mark.parametrize(
    ("kind", "name"), [("bert", "spm.model"), ("deberta-v2", "other.model"), ("modernbert", "spm.model")]
)
def test_a_vocabulary_that_no_class_reads_is_refused(kind: str, name: str, tmp_path: Path) -> None:
    """A class begins with an empty vocabulary where its file is missing."""
    folder = folder_of("deberta-v2", tmp_path)
    (folder / "spm.model").rename(folder / name)
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(
        InputError, match=f"^{folder / name}: a SentencePiece model; copy it to DIR/spm.model, run python -c "
    ):
        bertkit.load_tokenizer(folder)


def test_a_model_with_one_is_verified(tmp_path: Path) -> None:
    folder = folder_of("roberta", tmp_path)
    sizes = {"hidden_size": 34, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 59}
    config = transformers.RobertaConfig(
        vocab_size=bertkit.load_tokenizer(folder).vocab_size, max_position_embeddings=39, type_vocab_size=1, **sizes
    )
    transformers.RobertaForMaskedLM(config).save_pretrained(folder)
    assert bertkit.verify(model_dir=folder).scores["within_tolerance"]
    assert {"vocab.json", "merges.txt"} < {*hashes_of(folder)}


def test_a_dataset_of_another_vocabulary_is_another(tmp_path: Path) -> None:
    folder, made = folder_of("roberta", tmp_path), {"corpus": [TEXTS[0]], "output_dir": tmp_path / "data"}
    bertkit.prepare(**made, tokenizer={"path": folder})
    bertkit.prepare(**made, tokenizer={"path": folder})
    merges = (folder / "merges.txt").read_text(encoding="utf-8")
    (folder / "merges.txt").write_text(merges[: merges.rindex("\n", 0, -1) + 1], encoding="utf-8")
    with pytest.raises(InputError, match="vocabulary_sha256"):
        bertkit.prepare(**made, tokenizer={"path": folder})
