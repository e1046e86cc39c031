"""Signs of life: a process at work for longer than the timeout is left alone, one that stands still is not."""

from __future__ import annotations

import contextlib
import faulthandler
import gzip
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from bertkit import files, signs
from bertkit.commands import schema_of
from bertkit.config import build
from bertkit.data import prepared
from bertkit.data.tokenizer import Tokenizer
from bertkit.launch import watch
from bertkit.lines import read_lines
from bertkit.settings.compose import compose
from bertkit.tasks import shapes
from bertkit.tasks.files import readers
from bertkit.tasks.files.source import Source
from bertkit.tasks.tagging import TaggingExample
from bertkit.train.checkpoint import Part

TIMEOUT, WORK = 2.0, 5.0  # seconds; a busy machine may keep a process waiting for one

# what a process that no launcher started does: it watches itself, and works
WATCHED = """
import os, sys
from pathlib import Path
from bertkit import signs
from bertkit.launch import watch

def end(line):
    print(line, flush=True)
    os._exit(6)

sys.path.insert(0, sys.argv[1])
"""
IMPORTS = """
watch.watch(0, {timeout}, end)
for number in range({count}):
    __import__(f"slow_{{number}}")
print("imported", flush=True)
import stuck
"""
READS = """
from bertkit.tasks.files import readers
from bertkit.config import build
from bertkit.settings.compose import compose
from bertkit.commands import schema_of
task = build(schema_of("finetune"), compose("finetune", ["task=sequence", "model_dir=x", "output_dir=y"])).task
watch.watch(0, {timeout}, end)
print(readers.read_file(task, Path(sys.argv[1]) / "{name}").describe(), flush=True)
readers.read_file(task, Path(sys.argv[1]) / "nobody-writes.tsv")
"""


def watched(folder: Path, code: str) -> tuple[int, str, float]:
    """Run code in a process that watches itself: exit code, what it said, and the seconds from its last word to its end."""
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED + code, str(folder)], stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[1],
    ) as process:  # fmt: skip
        assert process.stdout is not None
        said, began = process.stdout.readline(), time.monotonic()
        said += process.stdout.read()
        return process.wait(timeout=60), said, time.monotonic() - began


def test_slow_imports_are_work_and_an_import_that_hangs_is_not(tmp_path: Path) -> None:
    """Where no launcher watches."""
    for number in range(8):
        (tmp_path / f"slow_{number}.py").write_text(f"import time\ntime.sleep({WORK / 8})\n")
    (tmp_path / "stuck.py").write_text("import threading\nthreading.Event().wait()\n")
    code, said, seconds = watched(tmp_path, IMPORTS.format(timeout=TIMEOUT, count=8))
    assert said.startswith("imported\nrank 0 on host "), said
    assert f"no sign of life for {TIMEOUT:g} s" in said
    assert code == 6
    assert seconds > TIMEOUT * 0.9


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("train.tsv", ["text\tlabel\n", *(f"a text {n}\tgood\n" for n in range(30))]),
        pytest.param(
            "train.jsonl",
            [f'{{"text": "a text {n}", "label": "good"}}\n' for n in range(30)],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_file_that_comes_slowly_is_work_and_one_that_never_comes_is_not(
    name: str, lines: list[str], tmp_path: Path
) -> None:
    for pipe in (name, "nobody-writes.tsv"):
        os.mkfifo(tmp_path / pipe)

    def deliver() -> None:
        with contextlib.suppress(BrokenPipeError), (tmp_path / name).open("w") as file:
            for line in lines:
                file.write(line)
                file.flush()
                time.sleep(WORK / len(lines))

    writer = threading.Thread(target=deliver)
    writer.start()
    code, said, seconds = watched(tmp_path, READS.format(timeout=TIMEOUT, name=name))
    writer.join()
    first, line = said.splitlines()
    assert "30 rows" in first
    assert "does not go on, at lines.py:" in line
    assert code == 6
    assert seconds > TIMEOUT * 0.9


def test_a_place_to_wait_is_told_from_a_place_to_work() -> None:
    """By the stacks of real threads; the main thread comes last in a dump."""

    def stacks(work: Callable[[threading.Event], None]) -> str:
        event, begun = threading.Event(), threading.Event()

        def body() -> None:
            begun.set()
            work(event)

        thread = threading.Thread(target=body)
        thread.start()
        begun.wait()
        time.sleep(0.05)
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file)
            event.set()
            thread.join()
            file.seek(0)
            return file.read().split("\n\n")[0]  # the thread that began last comes first

    def work(event: threading.Event) -> None:
        while not event.is_set():
            sum(range(1000))

    place, waits = watch.where(stacks(work))
    assert place.endswith(" in work")
    assert "test_signs.py" in place
    assert not waits
    frame = '  File "{}", line {} in {}\n'
    collective = frame.format("/x/site-packages/torch/distributed/distributed_c10d.py", 3, "all_reduce")
    loop = frame.format(f"{watch.PACKAGE}train/loop.py", 7, "optimizer_step")
    other = "Thread 0x2 (most recent call first):\n" + loop
    expected = ("train/loop.py:7 in optimizer_step (all_reduce)", True)
    assert watch.where(other + "\nCurrent thread 0x1 (most recent call first):\n" + collective + loop) == expected
    expected = ("train/loop.py:7 in optimizer_step", False)
    assert watch.where("Thread 0x1 (most recent call first):\n" + collective + "\n" + other) == expected
    assert watch.where("") == ("an unknown place", False)


@pytest.fixture
def num_signs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Counts the signs of life since it was last asked, as a launcher reads them from a pipe; none is left out."""
    read, write = os.pipe()
    monkeypatch.setattr(signs, "TICK_SECONDS", 0.0)
    monkeypatch.setattr(signs, "_listener", watch._Pipe(write))
    os.set_blocking(read, False)

    def count() -> int:
        with contextlib.suppress(BlockingIOError):
            return os.read(read, 1 << 16).count(b"\n")
        return 0

    yield count
    os.close(write)
    os.close(read)


def test_what_takes_long_gives_signs(
    num_signs: Callable[[], int], tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least one for each part of it."""
    monkeypatch.setenv("BERTKIT_UNPACKED", "2000")  # one letter packs a thousandfold
    large = tmp_path / "large"
    large.write_bytes(bytes(5 << 20))
    assert files.sha256_file(large) == hashlib.sha256(bytes(5 << 20)).hexdigest()
    assert num_signs() >= 5
    with gzip.open(tmp_path / "large.gz", "wb") as packed:
        packed.write(b"a" * (7 << 20))
    assert [len(line) for _, line in read_lines(tmp_path / "large.gz")] == [7 << 20]
    assert num_signs() >= 7
    for path in (large, tmp_path):
        files.flush(path)
    assert num_signs() >= 2

    sentences = [TaggingExample(str(n), ("kan", "lon" * n), ("O", "O")) for n in range(11)]
    task = build(schema_of("finetune"), compose("finetune", ["task=tagging", "model_dir=x", "output_dir=y"])).task
    assert len(list(shapes.make_features(task, sentences, tokenizer, ("O",)))) == 11
    assert num_signs() >= 11
    (tmp_path / "train.conll").write_text("kan O\n\n" * 13)
    source = readers.read_file(task, tmp_path / "train.conll")
    assert num_signs() >= 13 * 3
    Source(shapes.shape_of(task), "", sentences).hold_out(0.5)
    assert num_signs() >= 11
    assert len(source.examples) == 13

    writer = prepared.SplitWriter(tmp_path / "split", np.dtype("<u2"), 1 << 20)
    writer.write([[1] * 17])
    split = prepared.Split(tmp_path / "split", np.dtype("<u2"), writer.close()["shard_tokens"])
    prepared.check_ids(split, 2, chunk=2)
    assert num_signs() >= 9

    tensors = {f"{file}.safetensors": {f"{n}": torch.zeros(2) for n in range(3)} for file in "ab"}
    Part(1, tensors, {"state.json": "{}"}).write(tmp_path)
    assert num_signs() >= 2 * 3 + 2 + 3 * 2  # looked at, written, flushed and hashed


def test_a_large_file_is_flushed_part_by_part(
    num_signs: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "FLUSH_BYTES", 1 << 16)
    large = tmp_path / "large"
    content = os.urandom((5 << 16) + 7)
    large.write_bytes(content)
    files.flush(large)
    assert num_signs() >= 6
    assert large.read_bytes() == content


def test_a_sign_that_nobody_needs_costs_nothing() -> None:
    """Reading a row takes 4 us; a quarter of it would be seen."""
    for _ in range(3):
        began = time.process_time()  # of this process alone, however busy the machine
        for _ in signs.beating(range(100_000)):
            pass
        seconds = time.process_time() - began
        if seconds < 0.1:
            return
    pytest.fail(f"{seconds * 10:.2f} us a sign")
