"""Tokenizers in other formats: the message names the format, and what it says to run makes a tokenizer that bertkit reads."""

import json
import re
from pathlib import Path

import pytest
from conftest import make_text
from family_tokenizers import TEXTS, save_tokenizer
from tokenizers import ByteLevelBPETokenizer

from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import load_tokenizer


def message(path: Path) -> str:
    with pytest.raises(InputError) as error:
        load_tokenizer(path)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_sentence_piece_is_named(tmp_path: Path) -> None:
    model = tmp_path / "sp.model"
    model.write_bytes(b"\x0a\x0e\x0a\x05<unk>\x15\x00\x00\x00\x00\x18\x02")
    copied = f"{model}: a SentencePiece model; copy it to DIR/spm.model, run python -c "
    for path in (model, tmp_path):
        assert message(path).startswith(f'{copied}"from transformers import DebertaV2Tokenizer;')


def test_two_files_of_a_byte_level_bpe_are_named_and_converted(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    library = ByteLevelBPETokenizer()
    text = [" ".join(sentence for document in make_text(31) for sentence in document)]
    library.train_from_iterator(text, vocab_size=300, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    library.save_model(str(tmp_path))
    for path in (tmp_path, tmp_path / "vocab.json", tmp_path / "merges.txt"):
        assert message(path).startswith(f"{tmp_path}: a byte-level BPE in vocab.json and merges.txt; run python -c ")
    (code,) = re.findall('python -c "(.*)"', message(tmp_path))
    exec(code.replace("'DIR'", repr(str(tmp_path / "new"))), {"transformers": transformers})
    tokenizer = load_tokenizer(tmp_path / "new")
    assert tokenizer(text[0])["input_ids"][1:-1] == library.encode(text[0]).ids
    (tmp_path / "vocab.json").rename(tmp_path / "vocab.other.json")
    assert message(tmp_path) == f"{tmp_path}: no vocab.txt or tokenizer.json in this directory"


def test_two_files_beside_a_model_are_converted_by_the_class_of_the_model(tmp_path: Path) -> None:
    """A RoBERTa tokenizer would add tokens to the vocabulary of a DeBERTa."""
    transformers = pytest.importorskip("transformers")
    save_tokenizer("deberta", tmp_path / "model")
    library = json.loads((tmp_path / "model" / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(library["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(map(" ".join, library["merges"])))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deberta"}))
    (code,) = re.findall('python -c "(.*)"', message(tmp_path))
    exec(code.replace("'DIR'", repr(str(tmp_path / "new"))), {"transformers": transformers})
    assert load_tokenizer(tmp_path / "new")(list(TEXTS)) == load_tokenizer(tmp_path / "model")(list(TEXTS))


@pytest.mark.parametrize("name", ["google-bert/bert-base-uncased", "gpt2", "no/such/vocab.txt"])
def test_a_name_that_is_no_file(name: str) -> None:
    expected = (
        "expected vocab.txt, tokenizer.json, a directory with one, or a hub id such as google-bert/bert-base-uncased"
    )
    assert message(Path(name)) == f"{name}: no such file; {expected}"
