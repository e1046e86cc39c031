"""`bertkit prepare`, end to end: it says what it made, is idempotent, and careful with what is there."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Capsys, make_text, real_data, refused, write_text
from preparing import prepare, snapshot, write_vocabulary

import bertkit
from bertkit import load_tokenizer
from bertkit.base.errors import InputError
from bertkit.cli import run
from bertkit.data.batches.description import readable
from bertkit.data.corpus.prepared import open_prepared


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_text(tmp_path / "corpus.txt", make_text(31))


def test_prepare_prints_counts_and_examples(corpus: Path, tmp_path: Path, capsys: Capsys) -> None:
    assert prepare(corpus, tmp_path / "data", "held_out_prob=0.2") == 0
    printed = capsys.readouterr().out
    dataset = open_prepared(tmp_path / "data")
    counts = dataset.manifest["splits"]["train"]
    held_out = dataset.manifest["splits"]["held_out"]
    assert counts["documents"] + held_out["documents"] == 31
    counted = f"{counts['documents']:,} documents, {counts['sentences']:,} sentences, {counts['tokens']:,} tokens"
    assert f"{counted} to train on" in printed
    assert printed.count("[CLS]") == 3
    assert "warning: little text: " in printed
    assert dataset.manifest["findings"][0]["name"] == "little text"
    assert f"prepared dataset in {tmp_path / 'data'}" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "data"]


def test_a_script_without_spaces_has_no_broken_words(tmp_path: Path, capsys: Capsys) -> None:
    text = real_data("text", "udhr", "tha.txt")
    assert run(["prepare", f"corpus.path={text}", "tokenizer.vocab_size=8000", f"output_dir={tmp_path / 'data'}"]) == 0
    printed = capsys.readouterr().out
    assert (
        "\naccents and marks are kept: stripping them, as in BERT, would damage 1,777 of 8,950 characters (◌่ "
        in printed
    )
    assert "\nfewer than tokenizer.vocab_size=8000: no other pair of pieces occurs at least 2 times" in printed
    assert "broken words" not in printed


def test_repeated_prepare_is_done_already(corpus: Path, tmp_path: Path, capsys: Capsys) -> None:
    assert prepare(corpus, tmp_path / "data") == 0
    before = snapshot(tmp_path / "data")
    capsys.readouterr()
    assert prepare(corpus, tmp_path / "data") == 0
    assert capsys.readouterr().out == f"done already: {tmp_path / 'data'} holds this dataset\n"
    assert prepare(corpus, tmp_path / "data", "strict=true") == 0  # how it was made does not depend on it
    assert snapshot(tmp_path / "data") == before


@pytest.mark.parametrize(("change", "named"), [
    (["tokenizer.vocab_size=137"], "tokenizer.vocab_size: 131 there, 137 here"),
    (["held_out_prob=0.5"], "held_out_prob: 0.01 there, 0.5 here"),
    (["shard_tokens=100"], "shard_tokens: 134217728 there, 100 here"),
    (["corpus.sentences=split"], "corpus.sentences: 'auto' there, 'split' here"),
    (["held_out_prob=0.5", "shard_tokens=100"], "held_out_prob: 0.01 there, 0.5 here; shard_tokens: 134217728 there, 100 here"),
])  # fmt: skip
def test_another_dataset_is_left_alone(
    corpus: Path, tmp_path: Path, change: list[str], named: str, capsys: Capsys
) -> None:
    assert prepare(corpus, tmp_path / "data") == 0
    before = snapshot(tmp_path)
    capsys.readouterr()
    place = f"error: output_dir={tmp_path / 'data'} holds another dataset ({named})"
    refused(prepare(corpus, tmp_path / "data", *change), place, capsys, alone=True)
    assert snapshot(tmp_path) == before


def test_the_same_text_elsewhere_is_the_same_dataset(corpus: Path, tmp_path: Path, capsys: Capsys) -> None:
    assert prepare(corpus, tmp_path / "data") == 0
    before = snapshot(tmp_path / "data")
    moved = corpus.rename(tmp_path / "moved.txt")
    moved.touch()
    assert prepare(moved, tmp_path / "data") == 0
    assert "done already" in capsys.readouterr().out
    assert snapshot(tmp_path / "data") == before


def test_output_inside_corpus_is_not_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    write_text(tmp_path / "text" / "text.txt", make_text(31))
    for _ in range(2):
        assert prepare(tmp_path / "text", tmp_path / "text" / "out") == 0


def test_changed_text_is_another_dataset(corpus: Path, tmp_path: Path, capsys: Capsys) -> None:
    assert prepare(corpus, tmp_path / "data") == 0
    corpus.write_text(corpus.read_text() + "\nOne more.\n")
    before = snapshot(tmp_path)
    refused(prepare(corpus, tmp_path / "data"), "holds another dataset (", capsys)
    assert snapshot(tmp_path) == before


def test_a_changed_vocabulary_is_another_dataset(corpus: Path, tmp_path: Path, capsys: Capsys) -> None:
    vocab = write_vocabulary(tmp_path / "vocab.txt")
    with_vocab = f"tokenizer.path={vocab}"
    assert prepare(corpus, tmp_path / "data", with_vocab) == 0
    assert prepare(corpus, tmp_path / "data", with_vocab) == 0
    first = open_prepared(tmp_path / "data").fingerprint
    vocab.write_text(vocab.read_text() + "kan\n")
    refused(prepare(corpus, tmp_path / "data", with_vocab), "holds another dataset (", capsys)
    assert prepare(corpus, tmp_path / "other", with_vocab) == 0
    assert open_prepared(tmp_path / "other").fingerprint != first


@pytest.mark.parametrize("name", ["notes.txt", "manifest.json"])
def test_a_foreign_directory_is_left_alone(corpus: Path, tmp_path: Path, name: str, capsys: Capsys) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_text("{}")
    before = snapshot(tmp_path)
    refused(prepare(corpus, tmp_path / "data"), f"error: output_dir={tmp_path / 'data'} ", capsys, alone=True)
    assert snapshot(tmp_path) == before


def test_a_file_is_left_alone_and_an_empty_directory_is_filled(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert prepare(corpus, tmp_path / "file") == 2
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    assert prepare(corpus, tmp_path / "empty") == 0
    assert prepare(corpus, tmp_path / "deep" / "er") == 0


@pytest.mark.parametrize("given_vocabulary", [True, False])
def test_an_error_in_the_middle_leaves_nothing(tmp_path: Path, given_vocabulary: bool, capsys: Capsys) -> None:
    """With a given vocabulary the first documents are on the disk when the bad line comes."""
    text = "\n\n".join("\n".join(document) for document in make_text(211)).encode()
    (tmp_path / "bad.txt").write_bytes(text + b"\n\nfine\nbad \xff byte\n")
    number = text.count(b"\n") + 4
    more = [f"tokenizer.path={write_vocabulary(tmp_path / 'vocab.txt')}"] if given_vocabulary else []
    before = snapshot(tmp_path)
    place = f"error: {tmp_path / 'bad.txt'}:{number}: not UTF-8 (byte 0xff at column 5)"
    refused(prepare(tmp_path / "bad.txt", tmp_path / "data", *more), place, capsys, alone=True)
    assert snapshot(tmp_path) == before
    assert not list(tmp_path.glob("data*"))


def test_strict_refuses_what_the_linter_finds(corpus: Path, tmp_path: Path, capsys: Capsys) -> None:
    refused(prepare(corpus, tmp_path / "data", "strict=true"), "error: little text: 3,270 tokens", capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt"]


def test_corpus_without_words_is_refused(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "a.txt").write_text("\u200e\n\n\u200f\n")
    refused(prepare(tmp_path / "a.txt", tmp_path / "data"), "no words in the corpus to learn a vocabulary from", capsys)
    with_vocab = f"tokenizer.path={write_vocabulary(tmp_path / 'vocab.txt')}"
    refused(prepare(tmp_path / "a.txt", tmp_path / "data", with_vocab), "no text in it; check corpus.path", capsys)
    assert not list(tmp_path.glob("data*"))


def test_half_a_surrogate_pair_is_read_and_counted(tmp_path: Path, capsys: Capsys) -> None:
    half, whole = '{"text": "kan \\ud83d lor. \\ud83d ran."}\n', '{"text": "kan \\ud83d\\ude00 lor."}\n'
    (tmp_path / "a.jsonl").write_text(half * 2 + whole)
    assert prepare(tmp_path / "a.jsonl", tmp_path / "data") == 0
    assert open_prepared(tmp_path / "data").manifest["statistics"]["unknown_rate"] < 0.1  # the emoji alone
    assert capsys.readouterr().out.count("warning: lost characters: 2 documents with U+FFFD, which ") == 1
    (tmp_path / "whole.jsonl").write_text(whole)
    assert prepare(tmp_path / "whole.jsonl", tmp_path / "whole") == 0
    assert "lost characters" not in capsys.readouterr().out


def test_a_damaged_dataset_is_named_and_left_alone(corpus: Path, tmp_path: Path, capsys: Capsys) -> None:
    assert prepare(corpus, tmp_path / "data") == 0
    (tmp_path / "data" / "train" / "sentences.bin").write_bytes(b"")
    refused(prepare(corpus, tmp_path / "data"), "sentences.bin: 0 bytes, expected 2640", capsys)


def test_shards_do_not_change_the_text(corpus: Path, tmp_path: Path) -> None:
    streams = []
    for size in (10**6, 211):
        assert prepare(corpus, tmp_path / str(size), f"shard_tokens={size}") == 0
        shards = sorted((tmp_path / str(size) / "train").glob("tokens-*.bin"))
        streams.append(np.concatenate([np.fromfile(shard, "<u2") for shard in shards]).tolist())
    assert len(shards) > 10
    assert streams[0] == streams[1]


@pytest.mark.parametrize(("more", "rules"), [
    ([], "hugging_face"),
    (["tokenizer.rules=google"], "google"),
    (["segments=google"], "google"),
    (["segments=google", "tokenizer.rules=hugging_face"], "hugging_face"),
])  # fmt: skip
def test_the_rules_of_a_dataset_are_kept_with_it(corpus: Path, tmp_path: Path, more: list[str], rules: str) -> None:
    assert prepare(corpus, tmp_path / "data", *more) == 0
    assert load_tokenizer(tmp_path / "data").rules == rules
    assert (tmp_path / "data" / "tokenizer" / "rules.json").exists() == (rules == "google")


def test_texts_from_python_are_a_corpus_and_never_printed(tmp_path: Path, capsys: Capsys) -> None:
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    texts = [f"The secret of {n}. It has {n * n} words.\nAnd more." for n in range(30)]
    (tmp_path / "corpus.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    settings = {"tokenizer": {"path": write_vocabulary(tmp_path / "vocab.txt")}, "held_out_prob": 0.2}
    bertkit.prepare(corpus={"path": tmp_path / "corpus.jsonl"}, output_dir=tmp_path / "expected", **settings)
    expected = open_prepared(tmp_path / "expected")
    capsys.readouterr()
    for number, corpus in enumerate((iter(texts), pandas.Series(texts), datasets.Dataset.from_dict({"text": texts}))):
        out = tmp_path / f"out{number}"
        assert bertkit.prepare(corpus=corpus, output_dir=out, **settings).directory == out
        assert open_prepared(out).manifest["splits"] == expected.manifest["splits"]
    assert bertkit.prepare(corpus=texts, output_dir=tmp_path / "out0", **settings).directory == tmp_path / "out0"
    printed = capsys.readouterr()
    assert "reading texts from Python" in printed.out
    assert "done already" in printed.out
    assert "secret" not in printed.out + printed.err + (tmp_path / "out0" / "manifest.json").read_text()
    for wrong, message in (
        ([*texts, None], "corpus: row 31: NoneType; expected a text"),
        ([b"secret"], "corpus: row 1: bytes; expected a text"),
        ([{"text": ["secret"]}], "corpus: row 1: 'text' is list; expected text"),
        ([{"body": "secret"}], "corpus: row 1: no field 'text' \\(it has: 'body'\\); set corpus.field="),
        ([""], "corpus: no text in it"),
        ([], "corpus: no texts; pass at least one"),
        ([str(tmp_path)], "corpus: the first text is the name of a file"),
    ):
        with pytest.raises(InputError, match=f"^{message}"):
            bertkit.prepare(corpus=wrong, output_dir=tmp_path / "other", **settings)


def test_an_example_that_begins_inside_a_word_says_so(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_vocabulary(tmp_path / "vocab.txt"))
    facts, pieces = tokenizer.facts, tokenizer.vocab
    inside = next(n for n, piece in enumerate(pieces) if piece.startswith("##"))
    word = next(n for n, piece in enumerate(pieces) if piece.isalpha())
    ids = np.array([facts.cls, inside, word, inside, facts.sep, inside, word, facts.sep])
    rest = pieces[inside].removeprefix("##")
    whole = f"[CLS] …{rest} {pieces[word]}{rest} [SEP] …{rest} {pieces[word]} [SEP]"
    assert readable(tokenizer, ids) == whole
    assert readable(tokenizer, ids[1:4]) == f"…{rest} {pieces[word]}{rest}"
