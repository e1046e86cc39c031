"""`bertkit prepare` in many processes, killed, on many machines: the same bytes, in memory that does not grow."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from conftest import Capsys, make_text, refused, write_text
from preparing import hashes, prepare, write_vocabulary

from bertkit.cli import run
from bertkit.data.corpus import encoded_documents


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_text(tmp_path / "corpus.txt", make_text(31))


def test_two_runs_write_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    """Also in processes of their own, with other hash seeds."""
    for number in (1, 2):
        arguments = [
            "prepare", f"corpus.path={corpus}", f"output_dir={tmp_path / str(number)}", "tokenizer.vocab_size=131",
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONHASHSEED": str(number)}
        subprocess.run([sys.executable, "-m", "bertkit", *arguments], check=True, env=environment, capture_output=True)
    assert prepare(corpus, tmp_path / "3") == 0
    assert hashes(tmp_path / "1") == hashes(tmp_path / "2") == hashes(tmp_path / "3")
    assert len(hashes(tmp_path / "1")) == 11


PEAK = """
import sys
from bertkit.cli import run
assert run(sys.argv[1:]) == 0
print("peak", open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """The same 20,000 lines 2, 20 and 200 times: from 20 MB on nothing grows; below it a file of encoded documents (8 MiB of text) is not full.

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
            "prepare", f"corpus.path={corpus}", f"output_dir={tmp_path / str(times)}", f"tokenizer.path={vocab}",
            "num_workers=1",
        ]  # fmt: skip
        done = subprocess.run([sys.executable, "-c", PEAK, *arguments], capture_output=True, text=True, check=True)
        peaks[times] = int(done.stdout.split("peak ")[1]) / 1024
        corpus.unlink()
    manifest = json.loads((tmp_path / "200" / "manifest.json").read_text())
    assert manifest["splits"]["train"]["tokens"] > 60_000_000
    assert peaks[200] - peaks[20] < 25, peaks  # megabytes; holding the documents costs 400
    assert peaks[200] - peaks[2] < 150, peaks  # 107 measured: a full file and its batches


def arguments(corpus: Path, output: Path, *more: str) -> list[str]:
    words = [f"corpus.path={corpus}", f"output_dir={output}", "tokenizer.vocab_size=131", "held_out_prob=0.2"]
    return ["prepare", *words, "shard_tokens=10007", *more]


def command(corpus: Path, output: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "bertkit", *arguments(corpus, output, *more)]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of 211 documents and about 140,000 bytes each, with an empty document and repeats among them."""
    folder = tmp_path_factory.mktemp("workers") / "text"
    folder.mkdir()
    for number in (1, 2):
        write_text(folder / f"{number}.txt", [*make_text(199, number), ["\u200b"], *make_text(12)])
    return folder


@pytest.fixture
def own_text(text: Path, tmp_path: Path) -> Path:
    return shutil.copytree(text, tmp_path / "text")


@pytest.fixture(scope="module")
def vocab(text: Path) -> str:
    return f"tokenizer.path={write_vocabulary(text.parent / 'vocab.txt')}"


@pytest.fixture(scope="module")
def plain(text: Path) -> dict[str, str]:
    """The files that one worker makes without a cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoded_documents, "WordCache", lambda tokenizer, num_entries: tokenizer)
        assert run(arguments(text, text.parent / "plain", "num_workers=1")) == 0
    return hashes(text.parent / "plain")


@pytest.fixture(scope="module")
def with_vocabulary(text: Path, vocab: str) -> dict[str, str]:
    assert run(arguments(text, text.parent / "with_vocabulary", vocab)) == 0
    return hashes(text.parent / "with_vocabulary")


@pytest.mark.parametrize(
    "more",
    [["num_workers=2", "part_bytes=30000"], ["num_workers=3", "part_bytes=7000"], ["num_workers=1", "part_bytes=3000"]],
)
def test_how_it_is_made_does_not_change_the_dataset(
    text: Path, plain: dict[str, str], tmp_path: Path, more: list[str]
) -> None:
    assert run(arguments(text, tmp_path / "other", *more)) == 0
    assert hashes(tmp_path / "other") == plain
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_without_semaphores_one_process_does_the_work(text: Path, plain: dict[str, str], tmp_path: Path) -> None:
    script = 'mount -t tmpfs -o ro tmpfs /dev/shm || exit 99; exec "$@"'
    words = command(text, tmp_path / "other", "num_workers=2", "part_bytes=30000")
    done = subprocess.run(["unshare", "-m", "bash", "-c", script, "", *words], capture_output=True, text=True)
    if done.returncode in (1, 99):
        pytest.skip("no mounting here")
    assert done.returncode == 0, done.stderr
    assert "warning: no worker processes here (Read-only file system)" in done.stderr
    assert hashes(tmp_path / "other") == plain


def test_workers_name_the_first_bad_line(own_text: Path, vocab: str, tmp_path: Path, capsys: Capsys) -> None:
    good = (own_text / "2.txt").read_bytes()
    for bad in (b"\nbad \xff\n", b"\nworse \0\n"):
        good += bad + b"\nfine\n" * 5_000
        (own_text / "2.txt").write_bytes(good)
    number = good[: good.index(b"bad")].count(b"\n") + 1
    assert run(arguments(own_text, tmp_path / "data", vocab, "num_workers=2", "part_bytes=9000")) == 2
    assert capsys.readouterr().err == (
        f"error: {own_text / '2.txt'}:{number}: not UTF-8 (byte 0xff at column 5); convert the file or set corpus.encoding\n"
    )
    assert not list(tmp_path.glob("data*"))


def children(process: int) -> list[int]:
    results = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == process:
                results.append(int(path.parent.name))
    return results


def kill_midway(command: list[str], encoded: Path) -> None:
    """Start a command in a process of its own, kill it after some portions, and see its workers end."""
    before = len(list(encoded.glob("*.done")))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while len(list(encoded.glob("*.done"))) < before + 3:
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
@pytest.mark.parametrize("num_workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_killed_command_goes_on(text: Path, plain: dict[str, str], tmp_path: Path, num_workers: int) -> None:
    more = [f"num_workers={num_workers}", "part_bytes=2000"]
    encoded = tmp_path / "data.partial" / ".unfinished" / "pieces"
    kill_midway(command(text, tmp_path / "data", *more), encoded)
    assert not (tmp_path / "data").exists()
    assert 3 <= len(list(encoded.glob("*.done"))) < 100
    kill_midway(command(text, tmp_path / "data", *more), encoded)
    assert run(arguments(text, tmp_path / "data", *more)) == 0
    assert hashes(tmp_path / "data") == plain
    assert not list(tmp_path.glob("data.*"))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="workers are looked for in /proc")
def test_what_a_killed_command_has_encoded_is_taken_unless_the_text_changed(
    own_text: Path, plain: dict[str, str], tmp_path: Path
) -> None:
    encoded = tmp_path / "taken.partial" / ".unfinished" / "pieces"
    kill_midway(command(own_text, tmp_path / "taken", "num_workers=1", "part_bytes=2000"), encoded)
    (encoded / "00000-000.npz").write_bytes((encoded / "00001-000.npz").read_bytes())  # to be told from a new one
    shutil.copytree(tmp_path / "taken.partial", tmp_path / "changed.partial")
    assert run(arguments(own_text, tmp_path / "taken", "part_bytes=2000")) == 0
    assert hashes(tmp_path / "taken")["train/tokens-00000.bin"] != plain["train/tokens-00000.bin"]
    with (own_text / "2.txt").open("a") as file:
        file.write("One more.\n")
    for name, part_bytes in (("changed", 2000), ("fresh", 10**6)):
        assert run(arguments(own_text, tmp_path / name, f"part_bytes={part_bytes}")) == 0
    assert hashes(tmp_path / "changed") == hashes(tmp_path / "fresh")


def test_a_killed_worker_ends_the_command(text: Path, plain: dict[str, str], tmp_path: Path) -> None:
    more = ["num_workers=2", "part_bytes=2000"]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command(text, tmp_path / "data", *more), **streams, text=True)
    encoded = tmp_path / "data.partial" / ".unfinished" / "pieces"
    while len(list(encoded.glob("*.done"))) < 3:
        assert process.poll() is None
        time.sleep(0.002)
    workers = [pid for pid in children(process.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    _, output = process.communicate(timeout=60)
    assert process.returncode == 6
    assert output.startswith("error: a worker process was killed")
    assert output.count("\n") == 1
    assert run(arguments(text, tmp_path / "data", "num_workers=1", "part_bytes=2000")) == 0
    assert hashes(tmp_path / "data") == plain


@pytest.fixture(scope="module")
def shards(text: Path, vocab: str) -> list[Path]:
    folders = [text.parent / f"shard{number}" for number in (1, 2, 3)]
    for number, folder in enumerate(folders, 1):
        assert run(arguments(text, folder, vocab, f"shard={number}/3", "part_bytes=9000")) == 0
    return folders


def merge(shards: Sequence[Path], output: Path) -> int:
    return run(["prepare", f"merge=[{','.join(map(str, shards))}]", f"output_dir={output}"])


def test_shards_of_an_array_of_jobs_merge_to_the_dataset_of_one(
    text: Path, vocab: str, shards: list[Path], with_vocabulary: dict[str, str], tmp_path: Path, capsys: Capsys
) -> None:
    unordered = [shards[2], shards[0], shards[1]]
    assert merge(unordered, tmp_path / "merged") == 0
    assert hashes(tmp_path / "merged") == with_vocabulary
    capsys.readouterr()
    assert merge(unordered, tmp_path / "merged") == 0
    assert capsys.readouterr().out == f"done already: {tmp_path / 'merged'} holds this dataset\n"
    assert run(arguments(text, shards[1], vocab, "shard=2/3", "part_bytes=9000")) == 0
    assert capsys.readouterr().out == f"done already: {shards[1]} holds this shard\n"


def test_shards_that_do_not_belong_together(
    text: Path, vocab: str, shards: list[Path], tmp_path: Path, capsys: Capsys
) -> None:
    for name, more in (("of_two", ["shard=2/2"]), ("other", ["shard=2/3", "held_out_prob=0.3"])):
        assert run(arguments(text, tmp_path / name, vocab, *more, "part_bytes=9000")) == 0
    one, two, three = shards
    again, damaged = shutil.copytree(two, tmp_path / "again"), shutil.copytree(two, tmp_path / "damaged")
    file = next((damaged / "pieces").glob("*.npz"))
    file.write_bytes(bytes(reversed(file.read_bytes())))
    for value, message in [
        ([one, two], "merge: shard 3/3 missing or listed twice; expected each of the 3 shards"),
        ([one, two, three, again], "merge: shard 2/3 missing or listed twice"),
        ([one, tmp_path / "of_two"], "of_two is a shard of another dataset (shard: '1/3' in"),
        ([one, tmp_path / "other"], "other is a shard of another dataset (held_out_prob: 0.2 in"),
        ([one, damaged], f"{file} changed since it was made; prepare this shard again"),
        ([one, text], "manifest.json: no such file"),
    ]:
        capsys.readouterr()
        refused(merge(value, tmp_path / "merged"), message, capsys)
        assert not list(tmp_path.glob("merged*"))


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[tuple[str, list[int]]]:
    """A Dask cluster of two workers, each in a process: the scheduler's address, and the workers' process ids."""
    address_file = tmp_path / "scheduler.json"
    where = {"cwd": tmp_path, "stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    cluster = [sys.executable, "-m", "dask"]
    scheduler = subprocess.Popen(
        [
            *cluster,
            "scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--no-dashboard",
            "--scheduler-file",
            address_file,
        ],
        **where,
    )
    worker = [
        "worker",
        "--scheduler-file",
        address_file,
        "--nthreads",
        "1",
        "--no-dashboard",
        "--local-directory",
        tmp_path,
    ]
    workers = []
    try:
        while not address_file.exists():
            time.sleep(0.1)
            assert scheduler.poll() is None
        workers = [subprocess.Popen([*cluster, *worker, "--no-nanny"], **where) for _ in range(2)]
        yield json.loads(address_file.read_text())["address"], [each.pid for each in workers]
    finally:
        for each in (*workers, scheduler):
            each.kill()
            each.wait()


@pytest.mark.slow
def test_dask_prepares_what_one_command_does(
    own_text: Path, vocab: str, tmp_path: Path, dask: tuple[str, list[int]]
) -> None:
    """Through the recipe, with one of the workers killed; then with a file that is no text."""
    address, workers = dask
    assert run(arguments(own_text, tmp_path / "at_once", vocab)) == 0
    recipe = [sys.executable, "recipes/prepare_on_dask/prepare.py", address, "3"]
    settings = [
        each for each in arguments(own_text, tmp_path, vocab, "part_bytes=9000")[1:] if "output_dir" not in each
    ]
    running = subprocess.Popen([*recipe, tmp_path / "data", *settings], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert next(running.stdout) == "1 of 3 shards\n"
    os.kill(workers[0], signal.SIGKILL)
    assert "3 of 3 shards\n" in running.stdout.read()
    assert running.wait(timeout=60) == 0
    assert hashes(tmp_path / "data") == hashes(tmp_path / "at_once")

    (own_text / "2.txt").write_bytes(b"good\nbad \xff\n")
    failed = subprocess.run([*recipe, tmp_path / "bad", *settings], capture_output=True, text=True, timeout=60)
    assert failed.returncode == 2
    assert failed.stderr.startswith(f"error: {own_text / '2.txt'}:2: not UTF-8 (byte 0xff at column 5)")
