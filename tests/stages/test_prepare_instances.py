"""`bertkit prepare segments=google`: the fixed instances of the original, and where they go."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Capsys, make_text, real_data, refused, write_text
from preparing import prepare, snapshot, write_vocabulary

from bertkit.cli import run
from bertkit.data.corpus.prepared import open_prepared


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_text(tmp_path / "corpus.txt", make_text(31))


def google_rows(corpus: Path, tmp_path: Path, row: dict, name: str) -> list[str]:
    """The command that makes a set of the original's."""
    options = {
        "corpus.path": corpus, "tokenizer.path": real_data("vocab", "bert-base-uncased", "vocab.txt"),
        "output_dir": tmp_path / name, "dump": tmp_path / f"{name}.jsonl", "seed": row["seed"],
        "segments.max_seq_length": row["max_seq_length"], "segments.dupe_factor": row["dupe_factor"],
        "segments.max_predictions_per_seq": row["max_predictions_per_seq"],
        "masking.whole_word": str(row["whole_word"]).lower(),
    }  # fmt: skip
    return ["prepare", "segments=google", *(f"{key}={value}" for key, value in options.items())]


def test_the_command_makes_the_originals_instances(tmp_path: Path, capsys: Capsys) -> None:
    """Four of the 28 sets, of all lengths and both kinds of masks; the rest are made in tests/data/test_google.py."""
    sets = json.loads(real_data("google_instances", "index.json").read_text())
    chosen = [sets[number] for number in (1, 6, 11, 13)]
    assert {row["max_seq_length"] for row in chosen} == {64, 128, 512}
    for number, row in enumerate(chosen):
        arguments = google_rows(real_data(*row["input"].split("/")), tmp_path, row, str(number))
        assert run(arguments) == 0
        printed = capsys.readouterr().out
        counted = f"{row['instances']:,} fixed instances of at most {row['max_seq_length']} tokens, from all documents"
        assert counted in printed
        dump = tmp_path / f"{number}.jsonl"
        assert hashlib.sha256(dump.read_bytes()).hexdigest() == row["sha256"]
    dump.unlink()
    before = snapshot(tmp_path / str(number))
    assert run(arguments) == 0  # done already, and the dump is there again
    assert "done already" in capsys.readouterr().out
    assert hashlib.sha256(dump.read_bytes()).hexdigest() == row["sha256"]
    assert snapshot(tmp_path / str(number)) == before


def google(corpus: Path, output: Path, *more: str) -> int:
    return prepare(corpus, output, "segments=google", "segments.max_seq_length=40", "segments.dupe_factor=2", *more)


def test_a_text_cut_into_files_at_any_line_gives_the_same_instances(corpus: Path, tmp_path: Path) -> None:
    vocab = f"tokenizer.path={write_vocabulary(tmp_path / 'vocab.txt')}"
    lines = corpus.read_text().splitlines(keepends=True)
    (tmp_path / "parts").mkdir()
    for number, first in enumerate(range(0, len(lines), 41)):
        (tmp_path / "parts" / f"{number:02d}.txt").write_text("".join(lines[first : first + 41]))
    assert number > 3
    dumps = [tmp_path / "whole.jsonl", tmp_path / "parts" / "cut.jsonl"]  # the second in the folder that is read
    for text, dump in zip((corpus, tmp_path / "parts"), dumps, strict=True):
        for _ in range(2):
            assert google(text, tmp_path / dump.stem, vocab, f"dump={dump}", "overwrite=true") == 0
    assert dumps[0].read_bytes() == dumps[1].read_bytes()


def test_fixed_instances_on_disk(corpus: Path, tmp_path: Path, capsys: Capsys) -> None:
    assert google(corpus, tmp_path / "data") == 0
    dataset = open_prepared(tmp_path / "data")
    assert dataset.tokenizer.rules == "google"
    assert dataset.splits["held_out"].num_documents == 0
    assert dataset.splits["train"].num_documents == 31
    made = dataset.manifest["instances"]
    assert (made["seed"], made["segments"]["dupe_factor"], made["masking"]["whole_word"]) == (12345, 2, False)
    assert "max_ngram" not in made["masking"]  # so that a dataset is what it was before there were n-grams
    assert len([name for name in dataset.manifest["files"] if name.startswith("instances/")]) == 7
    assert not [finding for finding in dataset.manifest["findings"] if finding["name"] == "nothing held out"]
    capsys.readouterr()
    assert google(corpus, tmp_path / "data", "held_out_prob=0") == 0
    assert google(corpus, tmp_path / "data", "seed=5", "masking.whole_word=true", "tokenizer.rules=hugging_face") == 2
    printed = capsys.readouterr()
    assert printed.out.startswith("done already")
    for change in ("seed: 12345 there, 5", "whole_word: False there, True", "'google' there, 'hugging_face'"):
        assert f"{change} here" in printed.err
    refused(google(corpus, tmp_path / "other", f"dump={tmp_path}"), f"dump={tmp_path} ", capsys)


@pytest.mark.parametrize(("dump", "message"), [
    ("data/train.jsonl", "output_dir="),
    ("data", "output_dir="),
    ("there/../data/deep/er.jsonl", "output_dir="),
    ("corpus.txt", "is there already; choose another file, or set overwrite=true to replace it"),
    ("corpus.txt/dump.jsonl", "corpus.txt is a file; expected a folder to write to"),
    ("there", "is a folder; give a file in it"),
    ("", "dump= is empty; expected a file to write"),
])  # fmt: skip
def test_impossible_dump_paths_are_refused(
    corpus: Path, tmp_path: Path, dump: str, message: str, capsys: Capsys
) -> None:
    """Said before the text is read, and nothing is touched."""
    (tmp_path / "there").mkdir()
    before = snapshot(tmp_path)
    refused(google(corpus, tmp_path / "data", f"dump={tmp_path / dump if dump else ''}"), message, capsys, alone=True)
    assert snapshot(tmp_path) == before
    assert not list(tmp_path.glob("data*"))


def test_a_dump_is_replaced_when_it_may_be_and_goes_into_a_pipe(corpus: Path, tmp_path: Path) -> None:
    assert google(corpus, tmp_path / "data", f"dump={tmp_path / 'new' / 'dump.jsonl'}") == 0
    expected = (tmp_path / "new" / "dump.jsonl").read_bytes()
    dump = f"dump={tmp_path / 'new' / 'dump.jsonl'}"
    (tmp_path / "new" / "dump.jsonl").write_bytes(expected[:1000])
    (tmp_path / "link").symlink_to(tmp_path / "new" / "dump.jsonl")
    assert google(corpus, tmp_path / "data", dump) == 2
    assert google(corpus, tmp_path / "data", f"dump={tmp_path / 'link'}", "overwrite=true") == 2
    assert (tmp_path / "new" / "dump.jsonl").read_bytes() == expected[:1000]
    assert google(corpus, tmp_path / "data", dump, "overwrite=true") == 0
    assert (tmp_path / "new" / "dump.jsonl").read_bytes() == expected
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "read").open("wb") as read:
        reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=read)
        assert google(corpus, tmp_path / "data", f"dump={tmp_path / 'pipe'}") == 0
        assert reader.wait(timeout=60) == 0
    assert (tmp_path / "read").read_bytes() == expected
    assert (tmp_path / "pipe").is_fifo()
    arguments = [f"corpus.path={corpus}", f"output_dir={tmp_path / 'data'}", "tokenizer.vocab_size=131"]
    more = ["segments=google", "segments.max_seq_length=40", "segments.dupe_factor=2", "dump=/dev/stdout"]
    command = [sys.executable, "-m", "bertkit", "prepare", *arguments, *more]
    with (tmp_path / "out.txt").open("wb") as out:
        subprocess.run(command, stdout=out, check=True)
    lines = (tmp_path / "out.txt").read_bytes().splitlines(keepends=True)
    assert b"".join(lines[1:-1]) == expected  # between "done already" and what was written where
    assert Path("/dev/stdout").is_symlink()


def test_instances_without_a_single_prediction(tmp_path: Path, capsys: Capsys) -> None:
    """Words longer than an instance may predict are skipped, as in the original; where there are no others, it says so."""
    text = write_text(tmp_path / "text.txt", [["abcabc abcabc", "abcabcabc"]] * 3)
    vocab = f"tokenizer.path={write_vocabulary(tmp_path / 'vocab.txt')}"
    code = google(text, tmp_path / "data", vocab, "masking.whole_word=true", "segments.max_predictions_per_seq=2")
    refused(code, "masking=whole_word: none of the 8 instances has a token to predict", capsys)
    assert not list(tmp_path.glob("data*"))
