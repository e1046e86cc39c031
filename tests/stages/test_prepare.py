"""`bertkit prepare`, end to end: idempotent, careful with what is there, flat in memory, the same every time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import make_text, real_data, write_text

from bertkit import load_tokenizer
from bertkit.cli import run
from bertkit.data.prepared import open_prepared
from bertkit.data.tokenizer import SPECIAL_TOKENS


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_text(tmp_path / "corpus.txt", make_text(31))


def prepare(corpus: Path, output: Path, *more: str) -> int:
    return run(["prepare", f"corpus.path={corpus}", f"output_dir={output}", "tokenizer.vocab_size=131", *more])


def snapshot(folder: Path) -> dict[str, tuple[str, int]]:
    """The hash and the time of every file."""
    return {
        path.relative_to(folder).as_posix(): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def hashes(folder: Path) -> dict[str, str]:
    return {name: sha for name, (sha, _) in snapshot(folder).items()}


def test_it_says_what_it_made(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(corpus, tmp_path / "data", "held_out_prob=0.2") == 0
    said = capsys.readouterr().out
    dataset = open_prepared(tmp_path / "data")
    counts = dataset.manifest["splits"]["train"]
    held_out = dataset.manifest["splits"]["held_out"]
    assert counts["documents"] + held_out["documents"] == 31
    assert (
        f"{counts['documents']:,} documents, {counts['sentences']:,} sentences, {counts['tokens']:,} tokens to train on"
        in said
    )
    assert said.count("[CLS]") == 3
    assert "warning: little text: " in said
    assert dataset.manifest["findings"][0]["name"] == "little text"
    assert f"prepared dataset in {tmp_path / 'data'}" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "data"]


def test_again_it_is_done_already(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(corpus, tmp_path / "data") == 0
    before = snapshot(tmp_path / "data")
    capsys.readouterr()
    assert prepare(corpus, tmp_path / "data") == 0
    assert capsys.readouterr().out == f"done already: {tmp_path / 'data'} holds this dataset\n"
    assert prepare(corpus, tmp_path / "data", "strict=true") == 0  # how it was made does not depend on it
    assert snapshot(tmp_path / "data") == before


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (["tokenizer.vocab_size=137"], "tokenizer.vocab_size: 131 there, 137 here"),
        (["held_out_prob=0.5"], "held_out_prob: 0.01 there, 0.5 here"),
        (["shard_tokens=100"], "shard_tokens: 134217728 there, 100 here"),
        (["corpus.sentences=split"], "corpus.sentences: 'auto' there, 'split' here"),
        (
            ["held_out_prob=0.5", "shard_tokens=100"],
            "held_out_prob: 0.01 there, 0.5 here; shard_tokens: 134217728 there, 100 here",
        ),
    ],
)
def test_another_dataset_is_left_alone(
    corpus: Path, tmp_path: Path, change: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(corpus, tmp_path / "data") == 0
    before = snapshot(tmp_path)
    capsys.readouterr()
    assert prepare(corpus, tmp_path / "data", *change) == 2
    assert capsys.readouterr().err == (
        f"error: output_dir={tmp_path / 'data'} holds another dataset ({named}); choose another one or remove it\n"
    )
    assert snapshot(tmp_path) == before


def test_the_same_text_elsewhere_is_the_same_dataset(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(corpus, tmp_path / "data") == 0
    before = snapshot(tmp_path / "data")
    moved = corpus.rename(tmp_path / "moved.txt")
    moved.touch()
    assert prepare(moved, tmp_path / "data") == 0
    assert "done already" in capsys.readouterr().out
    assert snapshot(tmp_path / "data") == before


def test_the_result_is_not_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    write_text(tmp_path / "text" / "text.txt", make_text(31))
    for _ in range(2):
        assert prepare(tmp_path / "text", tmp_path / "text" / "out") == 0


def test_changed_text_is_another_dataset(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(corpus, tmp_path / "data") == 0
    corpus.write_text(corpus.read_text() + "\nOne more.\n")
    before = snapshot(tmp_path)
    assert prepare(corpus, tmp_path / "data") == 2
    assert "holds another dataset (" in capsys.readouterr().err
    assert snapshot(tmp_path) == before


def test_a_changed_vocabulary_is_another_dataset(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vocab = write_vocabulary(tmp_path / "vocab.txt")
    given = f"tokenizer.path={vocab}"
    assert prepare(corpus, tmp_path / "data", given) == 0
    assert prepare(corpus, tmp_path / "data", given) == 0
    first = open_prepared(tmp_path / "data").fingerprint
    vocab.write_text(vocab.read_text() + "kan\n")
    assert prepare(corpus, tmp_path / "data", given) == 2
    assert "holds another dataset (" in capsys.readouterr().err
    assert prepare(corpus, tmp_path / "other", given) == 0
    assert open_prepared(tmp_path / "other").fingerprint != first


@pytest.mark.parametrize("name", ["notes.txt", "manifest.json"])
def test_a_foreign_directory_is_left_alone(
    corpus: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_text("{}")
    before = snapshot(tmp_path)
    assert prepare(corpus, tmp_path / "data") == 2
    assert capsys.readouterr().err == (
        f"error: output_dir={tmp_path / 'data'} exists and is not a prepared dataset; choose another one\n"
    )
    assert snapshot(tmp_path) == before


def test_a_file_is_left_alone_and_an_empty_directory_is_filled(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert prepare(corpus, tmp_path / "file") == 2
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    assert prepare(corpus, tmp_path / "empty") == 0
    assert prepare(corpus, tmp_path / "deep" / "er") == 0


@pytest.mark.parametrize("given_vocabulary", [True, False])
def test_an_error_in_the_middle_leaves_nothing(
    tmp_path: Path, given_vocabulary: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a given vocabulary the first documents are on the disk when the bad line comes."""
    text = "\n\n".join("\n".join(document) for document in make_text(211)).encode()
    (tmp_path / "bad.txt").write_bytes(text + b"\n\nfine\nbad \xff byte\n")
    number = text.count(b"\n") + 4
    more = [f"tokenizer.path={write_vocabulary(tmp_path / 'vocab.txt')}"] if given_vocabulary else []
    before = snapshot(tmp_path)
    assert prepare(tmp_path / "bad.txt", tmp_path / "data", *more) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path / 'bad.txt'}:{number}: not UTF-8 (byte 0xff at column 5); convert the file or set corpus.encoding\n"
    )
    assert snapshot(tmp_path) == before
    assert not list(tmp_path.glob("data*"))


def test_strict_refuses_what_the_linter_finds(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(corpus, tmp_path / "data", "strict=true") == 2
    assert "error: little text: 3,270 tokens are enough to try a command" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt"]


def test_text_without_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("\u200b\n\n\u200d\n")
    assert prepare(tmp_path / "a.txt", tmp_path / "data") == 2
    assert "no words in the corpus to learn a vocabulary from" in capsys.readouterr().err
    assert (
        prepare(tmp_path / "a.txt", tmp_path / "data", f"tokenizer.path={write_vocabulary(tmp_path / 'vocab.txt')}")
        == 2
    )
    assert "no text in it; check corpus.path" in capsys.readouterr().err
    assert not list(tmp_path.glob("data*"))


def test_half_a_surrogate_pair_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "kan \\ud83d lor. Mir ran."}\n' * 2)
    assert prepare(tmp_path / "a.jsonl", tmp_path / "data") == 0
    assert open_prepared(tmp_path / "data").manifest["statistics"]["unknown_rate"] == 0


def test_a_damaged_dataset_is_named_and_left_alone(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(corpus, tmp_path / "data") == 0
    (tmp_path / "data" / "train" / "sentences.bin").write_bytes(b"")
    assert prepare(corpus, tmp_path / "data") == 2
    assert f"sentences.bin: 0 bytes, expected 2640 bytes; remove {tmp_path / 'data'} and run" in capsys.readouterr().err


def test_two_runs_write_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    """Also in processes of their own, with other hash seeds."""
    for number in (1, 2):
        arguments = [
            "prepare",
            f"corpus.path={corpus}",
            f"output_dir={tmp_path / str(number)}",
            "tokenizer.vocab_size=131",
        ]
        environment = {**os.environ, "PYTHONHASHSEED": str(number)}
        subprocess.run([sys.executable, "-m", "bertkit", *arguments], check=True, env=environment, capture_output=True)
    assert prepare(corpus, tmp_path / "3") == 0
    assert hashes(tmp_path / "1") == hashes(tmp_path / "2") == hashes(tmp_path / "3")
    assert len(hashes(tmp_path / "1")) == 11


def test_shards_do_not_change_the_text(corpus: Path, tmp_path: Path) -> None:
    streams = []
    for size in (10**6, 211):
        assert prepare(corpus, tmp_path / str(size), f"shard_tokens={size}") == 0
        shards = sorted((tmp_path / str(size) / "train").glob("tokens-*.bin"))
        streams.append(np.concatenate([np.fromfile(shard, "<u2") for shard in shards]).tolist())
    assert len(shards) > 10
    assert streams[0] == streams[1]


def write_vocabulary(path: Path) -> Path:
    letters = "abcdefghijklmnopqrstuvwxyz.0123456789"
    path.write_text("\n".join([*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)]) + "\n")
    return path


PEAK = """
import sys
from bertkit.cli import run
assert run(sys.argv[1:]) == 0
print("peak", open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """The same 20,000 lines 2, 20 and 200 times: from 20 MB on nothing grows; below it a piece (8 MiB of text) is not full.

    The peak is of the process alone (`ru_maxrss` starts from its parent's).
    """
    vocab = write_vocabulary(tmp_path / "vocab.txt")
    peaks = {}
    for times in (2, 20, 200):
        corpus = tmp_path / f"{times}.txt"
        with corpus.open("w") as file:
            for document in range(500 * times):
                words = f"of document {document % 500} has words of its own {document % 500 * 7919}\n"
                file.writelines(f"line {n} {words}" for n in range(40))
                file.write("\n")
        assert corpus.stat().st_size > 900_000 * times
        arguments = [
            "prepare",
            f"corpus.path={corpus}",
            f"output_dir={tmp_path / str(times)}",
            f"tokenizer.path={vocab}",
            "num_workers=1",
        ]
        done = subprocess.run([sys.executable, "-c", PEAK, *arguments], capture_output=True, text=True, check=True)
        peaks[times] = int(done.stdout.split("peak ")[1]) / 1024
        corpus.unlink()
    manifest = json.loads((tmp_path / "200" / "manifest.json").read_text())
    assert manifest["splits"]["train"]["tokens"] > 60_000_000
    assert peaks[200] - peaks[20] < 25, peaks  # megabytes; holding the documents costs 400
    assert peaks[200] - peaks[2] < 150, peaks  # 107 measured: a full piece and its batches


# ---- workers, kills and shards


def command(corpus: Path, output: Path, *more: str) -> list[str]:
    given = [f"corpus.path={corpus}", f"output_dir={output}", "tokenizer.vocab_size=131", "held_out_prob=0.2", *more]
    return [sys.executable, "-m", "bertkit", "prepare", *given]


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Two files of 211 documents and about 140,000 bytes each, with an empty document and repeats among them."""
    (tmp_path / "text").mkdir()
    for number in (1, 2):
        write_text(tmp_path / "text" / f"{number}.txt", [*make_text(199, number), ["\u200b"], *make_text(12)])
    return tmp_path / "text"


@pytest.mark.parametrize(
    "more",
    [
        ["num_workers=2", "part_bytes=30000"],
        ["num_workers=3", "part_bytes=7000", "num_cached_words=50"],
        ["num_workers=1", "part_bytes=1000"],
        ["num_cached_words=0"],
    ],
)
def test_how_it_is_made_does_not_change_the_dataset(many: Path, tmp_path: Path, more: list[str]) -> None:
    for name, settings in (("plain", ["num_workers=1", "num_cached_words=0"]), ("other", more)):
        subprocess.run(command(many, tmp_path / name, "shard_tokens=10007", *settings), check=True, capture_output=True)
    assert hashes(tmp_path / "plain") == hashes(tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "plain", "text"]


def test_workers_name_the_first_bad_line(many: Path, tmp_path: Path) -> None:
    good = (many / "2.txt").read_bytes()
    for bad in (b"\nbad \xff\n", b"\nworse \0\n"):
        good += bad + b"\nfine\n" * 5_000
        (many / "2.txt").write_bytes(good)
    number = good[: good.index(b"bad")].count(b"\n") + 1
    vocab = f"tokenizer.path={write_vocabulary(tmp_path / 'vocab.txt')}"
    more = [vocab, "num_workers=2", "part_bytes=9000"]
    done = subprocess.run(command(many, tmp_path / "data", *more), capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {many / '2.txt'}:{number}: not UTF-8 (byte 0xff at column 5); convert the file or set corpus.encoding\n"
    )
    assert not list(tmp_path.glob("data*"))


def children(process: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == process:
                found.append(int(path.parent.name))
    return found


def kill_midway(arguments: list[str], pieces: Path) -> None:
    """Start a command in a process of its own, kill it after some parts, and see its workers end."""
    before = len(list(pieces.glob("*.done")))
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    while len(list(pieces.glob("*.done"))) < before + 3:
        assert process.poll() is None, "ended before it could be killed"
        time.sleep(0.002)
    workers = children(process.pid)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline, "workers outlive their parent"
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="workers are looked for in /proc")
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_killed_command_goes_on(many: Path, tmp_path: Path, num_workers: int) -> None:
    """Twice killed, then run to the end: the same bytes as at once. A piece that is there is taken, not made again."""
    subprocess.run(command(many, tmp_path / "at_once"), check=True, capture_output=True)
    arguments = command(many, tmp_path / "data", f"num_workers={num_workers}", "part_bytes=2000")
    unfinished = tmp_path / "data.partial" / ".unfinished"
    kill_midway(arguments, unfinished / "pieces")
    assert not (tmp_path / "data").exists()
    assert 3 <= len(list((unfinished / "pieces").glob("*.done"))) < 100
    kill_midway(arguments, unfinished / "pieces")
    shutil.copytree(tmp_path / "data.partial", tmp_path / "other.partial")
    subprocess.run(arguments, check=True, capture_output=True)
    assert hashes(tmp_path / "data") == hashes(tmp_path / "at_once")
    assert not list(tmp_path.glob("data.*"))

    pieces = tmp_path / "other.partial" / ".unfinished" / "pieces"
    (pieces / "00000-000.npz").write_bytes((pieces / "00001-000.npz").read_bytes())  # to be told from a new one
    shutil.copytree(tmp_path / "other.partial", tmp_path / "changed.partial")
    subprocess.run(command(many, tmp_path / "other", "part_bytes=2000"), check=True, capture_output=True)
    assert (
        hashes(tmp_path / "other")["train/tokens-00000.bin"] != hashes(tmp_path / "at_once")["train/tokens-00000.bin"]
    )
    with (many / "2.txt").open("a") as file:
        file.write("One more.\n")
    for name in ("changed", "fresh"):
        subprocess.run(command(many, tmp_path / name, "part_bytes=2000"), check=True, capture_output=True)
    assert hashes(tmp_path / "changed") == hashes(tmp_path / "fresh")


def test_a_killed_worker_ends_the_command(many: Path, tmp_path: Path) -> None:
    arguments = command(many, tmp_path / "data", "num_workers=2", "part_bytes=2000")
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    pieces = tmp_path / "data.partial" / ".unfinished" / "pieces"
    while len(list(pieces.glob("*.done"))) < 3:
        assert process.poll() is None
        time.sleep(0.002)
    workers = [pid for pid in children(process.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 6
    assert said.startswith("error: a worker process was killed, perhaps for want of memory; run the same command again")
    assert said.count("\n") == 1
    subprocess.run(arguments, check=True, capture_output=True)


def shard(many: Path, tmp_path: Path, which: str, *more: str) -> list[str]:
    vocab = f"tokenizer.path={write_vocabulary(tmp_path / 'vocab.txt')}"
    return command(many, tmp_path / f"shard{which[0]}", vocab, f"shard={which}", "part_bytes=9000", *more)


def test_shards_of_an_array_of_jobs_merge_to_the_dataset_of_one(
    many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vocab = f"tokenizer.path={write_vocabulary(tmp_path / 'vocab.txt')}"
    more = [vocab, "part_bytes=9000", "shard_tokens=10007"]
    at_once = command(many, tmp_path / "at_once", *more)
    jobs = [at_once, *(shard(many, tmp_path, f"{n}/3", "shard_tokens=10007") for n in (1, 2, 3))]
    running = [subprocess.Popen(job, stdout=subprocess.DEVNULL) for job in jobs]
    assert [job.wait(timeout=120) for job in running] == [0] * 4
    merge = [f"merge=[{tmp_path / 'shard3'},{tmp_path / 'shard1'},{tmp_path / 'shard2'}]"]
    assert run(["prepare", *merge, f"output_dir={tmp_path / 'merged'}"]) == 0
    assert hashes(tmp_path / "merged") == hashes(tmp_path / "at_once")
    capsys.readouterr()
    assert run(["prepare", *merge, f"output_dir={tmp_path / 'merged'}"]) == 0
    assert capsys.readouterr().out == f"done already: {tmp_path / 'merged'} holds this dataset\n"
    assert run(jobs[2][3:]) == 0
    assert capsys.readouterr().out == f"done already: {tmp_path / 'shard2'} holds this shard\n"


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[tuple[str, list[int]]]:
    """A Dask cluster of two workers, each in a process: the scheduler's address, and the workers' process ids."""
    told = tmp_path / "scheduler.json"
    where = {"cwd": tmp_path, "stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    cluster = [sys.executable, "-m", "dask"]
    scheduler = subprocess.Popen(
        [*cluster, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", told],
        **where,
    )
    worker = ["worker", "--scheduler-file", told, "--nthreads", "1", "--no-dashboard", "--local-directory", tmp_path]
    workers = []
    try:
        while not told.exists():
            time.sleep(0.1)
            assert scheduler.poll() is None
        workers = [subprocess.Popen([*cluster, *worker, "--no-nanny"], **where) for _ in range(2)]
        yield json.loads(told.read_text())["address"], [each.pid for each in workers]
    finally:
        for each in (*workers, scheduler):
            each.kill()
            each.wait()


def test_dask_prepares_what_one_command_does(many: Path, tmp_path: Path, dask: tuple[str, list[int]]) -> None:
    """Through the recipe, with one of the workers killed; then with a file that is no text."""
    address, workers = dask
    vocab = f"tokenizer.path={write_vocabulary(tmp_path / 'vocab.txt')}"
    subprocess.run(command(many, tmp_path / "at_once", vocab), check=True, capture_output=True)
    recipe = [sys.executable, "recipes/prepare_on_dask/prepare.py", address, "5"]
    given = [f"corpus.path={many}", vocab, "tokenizer.vocab_size=131", "held_out_prob=0.2", "part_bytes=9000"]
    running = subprocess.Popen([*recipe, tmp_path / "data", *given], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert next(running.stdout) == "1 of 5 shards\n"
    os.kill(workers[0], signal.SIGKILL)
    assert "5 of 5 shards\n" in running.stdout.read()
    assert running.wait(timeout=60) == 0
    assert hashes(tmp_path / "data") == hashes(tmp_path / "at_once")

    (many / "2.txt").write_bytes(b"good\nbad \xff\n")
    failed = subprocess.run([*recipe, tmp_path / "bad", *given], capture_output=True, text=True, timeout=60)
    assert failed.returncode == 2
    assert failed.stderr.startswith(f"error: {many / '2.txt'}:2: not UTF-8 (byte 0xff at column 5)")


def test_shards_that_do_not_belong_together(many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for which in ("1/2", "2/2", "3/3"):
        assert run(shard(many, tmp_path, which)[3:]) == 0
    shutil.copytree(tmp_path / "shard2", tmp_path / "again")
    assert run([*shard(many, tmp_path, "2/2")[3:], "held_out_prob=0.3", f"output_dir={tmp_path / 'other'}"]) == 0
    shutil.copytree(tmp_path / "shard2", tmp_path / "damaged")
    piece = next((tmp_path / "damaged" / "pieces").glob("*.npz"))
    piece.write_bytes(bytes(reversed(piece.read_bytes())))
    (tmp_path / "more").mkdir()
    for names, message in [
        (["shard1"], "merge: shard 2/2 missing or given twice; expected each of 2 once"),
        (["shard1", "shard2", "again"], "merge: shard 2/2 missing or given twice"),
        (["shard1", "shard3"], "shard3 is a shard of another dataset (shard: '1/2' in"),
        (["shard1", "other"], "other is a shard of another dataset (held_out_prob: 0.2 in"),
        (["shard1", "damaged"], f"{piece} changed since it was made; prepare this shard again"),
        (["shard1", "text"], "manifest.json: no such file"),
    ]:
        given = ",".join(str(tmp_path / name) for name in names)
        capsys.readouterr()
        assert run(["prepare", f"merge=[{given}]", f"output_dir={tmp_path / 'merged'}"]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1
        assert not list(tmp_path.glob("merged*"))


# ---- fixed instances


def google_rows(corpus: Path, tmp_path: Path, row: dict, name: str) -> list[str]:
    """The command that makes a set of the original's."""
    given = {
        "corpus.path": corpus,
        "tokenizer.path": real_data("vocab", "bert-base-uncased", "vocab.txt"),
        "output_dir": tmp_path / name,
        "dump": tmp_path / f"{name}.jsonl",
        "seed": row["seed"],
        "segments.max_seq_length": row["max_seq_length"],
        "segments.dupe_factor": row["dupe_factor"],
        "segments.max_predictions_per_seq": row["max_predictions_per_seq"],
        "masking.whole_word": str(row["whole_word"]).lower(),
    }
    return ["prepare", "segments=google", *(f"{key}={value}" for key, value in given.items())]


def test_the_command_makes_the_originals_instances(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four of the 28 sets, of all lengths and both kinds of masks; the rest are made in tests/data/test_google.py."""
    sets = json.loads(real_data("google_instances", "index.json").read_text())
    chosen = [sets[number] for number in (1, 6, 11, 25)]
    assert {row["max_seq_length"] for row in chosen} == {64, 128, 512}
    for number, row in enumerate(chosen):
        arguments = google_rows(real_data(*row["input"].split("/")), tmp_path, row, str(number))
        assert run(arguments) == 0
        said = capsys.readouterr().out
        assert (
            f"{row['instances']:,} fixed instances of at most {row['max_seq_length']} tokens, of all documents" in said
        )
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
            assert google(text, tmp_path / dump.stem, vocab, f"dump={dump}") == 0
    assert dumps[0].read_bytes() == dumps[1].read_bytes()


def test_fixed_instances_on_disk(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert google(corpus, tmp_path / "data") == 0
    dataset = open_prepared(tmp_path / "data")
    assert dataset.tokenizer.rules == "google"
    assert dataset.splits["held_out"].num_documents == 0
    assert dataset.splits["train"].num_documents == 31
    made = dataset.manifest["instances"]
    assert (made["seed"], made["segments"]["dupe_factor"], made["masking"]["whole_word"]) == (12345, 2, False)
    assert len([name for name in dataset.manifest["files"] if name.startswith("instances/")]) == 7
    assert not [finding for finding in dataset.manifest["findings"] if finding["name"] == "nothing held out"]
    capsys.readouterr()
    assert google(corpus, tmp_path / "data", "held_out_prob=0") == 0
    assert google(corpus, tmp_path / "data", "seed=5", "masking.whole_word=true", "tokenizer.rules=hugging_face") == 2
    said = capsys.readouterr()
    assert said.out.startswith("done already")
    for change in (
        "seed: 12345 there, 5 here",
        "whole_word: False there, True here",
        "'google' there, 'hugging_face' here",
    ):
        assert change in said.err
    assert google(corpus, tmp_path / "other", f"dump={tmp_path}") == 2
    assert f"dump={tmp_path} is a directory; expected a file to write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("dump", "message"),
    [
        ("data/train.jsonl", "lies in output_dir="),
        ("data", "lies in output_dir="),
        ("there/../data/deep/er.jsonl", "lies in output_dir="),
        ("corpus.txt", "exists and holds something else than instances; choose another file"),
        ("corpus.txt/dump.jsonl", "corpus.txt is a file; expected a folder to write to"),
        ("there", "is a directory; expected a file to write"),
        ("", "dump= is empty; expected a file to write"),
    ],
)
def test_places_where_no_dump_goes(
    corpus: Path, tmp_path: Path, dump: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said before the text is read, and nothing is touched."""
    (tmp_path / "there").mkdir()
    before = snapshot(tmp_path)
    assert google(corpus, tmp_path / "data", f"dump={tmp_path / dump if dump else ''}") == 2
    said = capsys.readouterr()
    assert message in said.err
    assert (said.err.count("\n"), said.out) == (1, "")
    assert snapshot(tmp_path) == before
    assert not list(tmp_path.glob("data*"))


def test_a_dump_above_the_dataset(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert google(corpus, tmp_path / "a" / "data", f"dump={tmp_path / 'a'}") == 2
    assert "is a folder above output_dir=" in capsys.readouterr().err


def test_a_dump_is_written_anew_through_a_link_and_into_a_pipe(corpus: Path, tmp_path: Path) -> None:
    assert google(corpus, tmp_path / "data", f"dump={tmp_path / 'new' / 'dump.jsonl'}") == 0
    expected = (tmp_path / "new" / "dump.jsonl").read_bytes()
    (tmp_path / "link").symlink_to(tmp_path / "new" / "dump.jsonl")
    (tmp_path / "new" / "dump.jsonl").write_bytes(expected[:1000])
    assert google(corpus, tmp_path / "data", f"dump={tmp_path / 'link'}") == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "new" / "dump.jsonl").read_bytes() == expected
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "read").open("wb") as read:
        reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=read)
        assert google(corpus, tmp_path / "data", f"dump={tmp_path / 'pipe'}") == 0
        assert reader.wait(timeout=60) == 0
    assert (tmp_path / "read").read_bytes() == expected
    assert (tmp_path / "pipe").is_fifo()
    given = [f"corpus.path={corpus}", f"output_dir={tmp_path / 'data'}", "tokenizer.vocab_size=131"]
    more = ["segments=google", "segments.max_seq_length=40", "segments.dupe_factor=2", "dump=/dev/stdout"]
    command = [sys.executable, "-m", "bertkit", "prepare", *given, *more]
    with (tmp_path / "out.txt").open("wb") as out:
        subprocess.run(command, stdout=out, check=True)
    lines = (tmp_path / "out.txt").read_bytes().splitlines(keepends=True)
    assert b"".join(lines[1:-1]) == expected  # between "done already" and what was written where
    assert Path("/dev/stdout").is_symlink()


def test_instances_without_a_single_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Words longer than an instance may predict are skipped, as in the original; where there are no others, it says so."""
    text = write_text(tmp_path / "text.txt", [["abcabc abcabc", "abcabcabc"]] * 3)
    vocab = f"tokenizer.path={write_vocabulary(tmp_path / 'vocab.txt')}"
    assert google(text, tmp_path / "data", vocab, "masking.whole_word=true", "segments.max_predictions_per_seq=2") == 2
    said = capsys.readouterr().err
    assert "masking.whole_word=true: none of the 8 instances has a token to predict" in said
    assert said.count("\n") == 1
    assert not list(tmp_path.glob("data*"))


@pytest.mark.parametrize(
    ("more", "rules"),
    [
        ([], "hugging_face"),
        (["tokenizer.rules=google"], "google"),
        (["segments=google"], "google"),
        (["segments=google", "tokenizer.rules=hugging_face"], "hugging_face"),
    ],
)
def test_the_rules_of_a_dataset_are_kept_with_it(corpus: Path, tmp_path: Path, more: list[str], rules: str) -> None:
    assert prepare(corpus, tmp_path / "data", *more) == 0
    assert load_tokenizer(tmp_path / "data").rules == rules
    assert (tmp_path / "data" / "tokenizer" / "rules.json").exists() == (rules == "google")
