"""A tokenizer.json that panics the library, fills the memory or takes the day is refused in one line, and never kills bertkit."""

import base64
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from bertkit.base.errors import InputError, LibraryError
from bertkit.data.corpus.tokenizer import load_tokenizer
from bertkit.data.library_calls import library_call, running_seconds

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "ab"]
VOCAB = {token: number for number, token in enumerate(TOKENS)}
WORDS = {
    "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": VOCAB,
}  # fmt: skip
BYTE_PAIRS = {"type": "BPE", "unk_token": "[UNK]", "vocab": VOCAB, "merges": [["a", "b"]]}
GPT_4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"


def file_of(folder: Path, **parts: Any) -> Path:
    content = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None, "model": WORDS,
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(content | parts))
    return folder


def replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def precompiled(table: bytes) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


CLS = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
LOST = [{"SpecialToken": {"id": "[X]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
PIECES = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a" * 10_000_000, -1.0]]}
NOT_ONE = "not a tokenizer of the library `tokenizers` "


@pytest.mark.parametrize(("parts", "words"), [
    # panics
    ({"normalizer": precompiled(b"abcd")}, NOT_ONE + r"\(Precompiled: "),
    ({"post_processor": {"type": "TemplateProcessing", "single": LOST, "pair": LOST, "special_tokens": {}}}, NOT_ONE),
    ({"model": {**BYTE_PAIRS, "continuing_subword_prefix": "##", "vocab": {**VOCAB, "##b": 8}}}, NOT_ONE),
    *(({"pre_tokenizer": split(slow)}, NOT_ONE + r"\(Onig: .*retry-limit") for slow in (r"(a+)+$", r"(x|xx)+y", r"(.*,){20}P")),
    *(({"post_processor": {"type": "TemplateProcessing", "single": [CLS], "pair": [CLS], "special_tokens": {
        "[CLS]": {"id": "[CLS]", "ids": [number], "tokens": ["[CLS]"]}}}}, rf"gives \[CLS\] the id {number}, the vocabulary 2\)")
      for number in (3, 999_999, 2**31)),
    # sizes
    ({"normalizer": {"type": "Sequence", "normalizers": [replace("a", "a" * 1000)] * 3}}, "1,000,000,000 characters; expected at most"),
    ({"decoder": {"type": "Sequence", "decoders": [replace("a", "a" * 1000)] * 3}}, "decoder: it makes a character up to"),
    ({"normalizer": precompiled(bytes(4) + b"x\0" + b"y" * 2000)}, "normalizer: it makes a character up to 2,000"),
    ({"model": PIECES}, "a token of 10,000,000 characters; expected at most 1,000"),
    ({"added_tokens": [{"id": 8, "content": "a" * 1001}]}, "a token of 1,001 characters"),
    ({"model": {**BYTE_PAIRS, "vocab": {**VOCAB, "a" * 10**6: 8}}}, "a token of 1,000,000 characters"),
    ({"model": {**WORDS, "max_input_chars_per_word": 2**40}}, "max_input_chars_per_word=1099511627776: expected at most 10,000"),
    ({"pre_tokenizer": split("((a{100}){100}){100}")}, "a pattern that repeats 1,000,000 times"),
])  # fmt: skip
@pytest.mark.usefixtures("one_thread")
def test_what_stops_the_library_is_refused(
    parts: dict[str, Any], words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=words) as caught:
        load_tokenizer(file_of(tmp_path, **parts))
    assert str(caught.value).startswith(str(tmp_path / "tokenizer.json"))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""  # none of the stack that the library prints


@pytest.mark.parametrize("parts", [
    {},
    {"pre_tokenizer": split(GPT_4)},
    {"normalizer": replace("a", "a" * 10)},
    # neither is done: a model's texts are cut and padded as its settings say
    {"padding": {"strategy": {"Fixed": 2**34}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
                 "pad_token": "[PAD]"}},
    {"truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 50}},
])  # fmt: skip
def test_what_is_fine_is_read(parts: dict[str, Any], tmp_path: Path) -> None:
    assert len(load_tokenizer(file_of(tmp_path, **parts))("a b a b a b")["input_ids"]) == 8


def test_dropout_of_bpe_is_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = load_tokenizer(file_of(tmp_path, model={**BYTE_PAIRS, "dropout": 0.9}))
    assert "model.dropout=0.9 is off" in capsys.readouterr().err
    assert {tuple(tokenizer("ab ab ab")["input_ids"]) for _ in range(20)} == {(2, 7, 7, 7, 3)}
    assert {tuple(ids) for _ in range(20) for ids in tokenizer.encode_document(["ab ab"])} == {(7, 7)}
    assert json.loads(tokenizer.files(9)["tokenizer.json"])["model"]["dropout"] is None


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a command: the thread by which pytest's workers talk prints nothing."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)


@pytest.mark.usefixtures("one_thread")
def test_a_panic_during_a_text_is_one_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tokenizer = load_tokenizer(file_of(tmp_path, pre_tokenizer=split("(q(a+)+)+$")))  # no text of one character is slow
    for fail in (lambda: tokenizer("q" + "a" * 40 + "b"), lambda: tokenizer.encode_document(["q" + "a" * 40 + "b"])):
        with pytest.raises(LibraryError, match="the library `tokenizers` failed on a text"):
            fail()
    assert capfd.readouterr().err == ""
    assert tokenizer("a b")["input_ids"][1:-1]
    assert running_seconds() == 0


def test_other_output_and_errors_pass_a_call(capfd: pytest.CaptureFixture[str]) -> None:
    @library_call()
    def interrupted() -> None:
        print("said", file=sys.stderr)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert capfd.readouterr().err == "said\n"
    with library_call(), library_call():
        assert running_seconds() >= 0
    threads = [threading.Thread(target=library_call()(lambda: sys.stderr.write("too\n"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert capfd.readouterr().err == "too\ntoo\n"
