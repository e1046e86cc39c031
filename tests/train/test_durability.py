"""Checkpoints through kills, power cuts, full disks and damaged files: real processes, real file systems.

A short part of each runs by default. The whole, with figures:

    pytest -m slow -s tests/train/test_durability.py
"""

import errno
import fcntl
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import mounted
from saver import contents

from bertkit.base.errors import StorageError
from bertkit.train import checkpoint, checkpoint_files
from bertkit.train.checkpoint_files import all_checkpoints, newest_valid

SAVER = Path(__file__).with_name("saver.py")
SMALL = 9_000  # numbers of a state: 36 kB
LARGE = 78_000_000  # 312 MB


class Savers:
    """One saver after another, as `saver.py` starts them."""

    def __init__(self, run_dir: Path, num_numbers: int, keep_last: int) -> None:
        command = [sys.executable, str(SAVER), str(run_dir), str(num_numbers), str(keep_last)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.acknowledged = 0

    def start(self) -> int:
        """Start the next saver; give the step that it resumed from."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        word, step, self.pid = self.read()
        assert word == "resumed"
        return step

    def read(self) -> tuple[str, int, int]:
        assert self.process.stdout is not None
        word, first, second = self.process.stdout.readline().split()
        if word == "saved":
            self.acknowledged = int(first)
        return word, int(first), int(second)

    def kill(self) -> None:
        """Kill the saver, unless it ended, and read all that it said."""
        os.kill(self.pid, signal.SIGKILL)
        while self.read()[0] != "ended":
            pass

    def __enter__(self) -> "Savers":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def kill_saves(run_dir: Path, num_trials: int, num_numbers: int, keep_last: int) -> Counter[str]:
    """Kill a saver at a random moment within about two saves, again and again; count what was found."""
    rng, results, seconds = random.Random(0), Counter[str](), 0.0
    with Savers(run_dir, num_numbers, keep_last) as savers:
        for trial in range(num_trials):
            resumed = savers.start()
            results["lost"] += resumed < savers.acknowledged
            results["resumed by itself"] += 1
            if trial % 4 == 0:  # else many a kill would come before the first save is done
                started_at = time.monotonic()
                assert savers.read()[0] == "saved"  # a saver that ended by itself would be waited for
                seconds = time.monotonic() - started_at
            time.sleep(rng.uniform(0, 2 * seconds))
            savers.kill()
            kinds = {path.name.rpartition(".")[2] for path in checkpoint_files.checkpoints_dir(run_dir).iterdir()}
            results["hit a save"] += "partial" in kinds
            results["hit a deletion"] += "trash" in kinds
            if trial % 20 == 19:
                print(f"{trial + 1} kills, {savers.acknowledged} saves acknowledged: {dict(results)}", flush=True)
        results["lost"] += savers.start() < savers.acknowledged
        savers.kill()
    return results


@pytest.mark.parametrize(
    ("num_kills", "num_numbers", "least"), [(12, SMALL, 0), pytest.param(200, LARGE, 50, marks=pytest.mark.slow)]
)
def test_saves_killed_at_any_moment(num_kills: int, num_numbers: int, least: int, tmp_path: Path) -> None:
    actual = kill_saves(tmp_path, num_kills, num_numbers, keep_last=2)
    print(f"\n{num_kills} kills, saves of {4 * num_numbers / 1e6:.0f} MB: {dict(actual)}")
    assert actual["lost"] == 0
    assert actual["resumed by itself"] == num_kills
    assert actual["hit a save"] + actual["hit a deletion"] > least


EXT4_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32) of linux/ext4.h
WITHOUT_FLUSHING = struct.pack("I", 2)  # EXT4_GOING_FLAGS_NOLOGFLUSH


def cut_power(tmp_path: Path, num_trials: int, num_numbers: int, keep_last: int) -> Counter[str]:
    """Shut a file system down under a saver without flushing anything, mount it again, and look; count what was found."""
    if shutil.which("mkfs.ext4") is None or os.geteuid() != 0:
        pytest.skip("needs root and mkfs.ext4")
    image, rng, results = tmp_path / "disk", random.Random(0), Counter[str]()
    with image.open("wb") as file:
        file.truncate(64 * 4 * num_numbers + (64 << 20))
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    with Savers(tmp_path / "mounted" / "run", num_numbers, keep_last) as savers:
        for trial in range(num_trials + 1):
            with mounted(tmp_path / "mounted", "-o", "loop", str(image)) as disk:
                (disk / "run").mkdir(exist_ok=True)
                newest, faults = newest_valid(disk / "run")
                results["visible but damaged"] += len(faults)
                results["lost"] += (0 if newest is None else checkpoint_files.step_of(newest)) < savers.acknowledged
                if trial == num_trials:
                    break
                savers.start()
                savers.read()
                # some cuts come soon after the first save, some after a second of saving
                until = time.monotonic() + rng.choice([0.05, 1.0]) * rng.random()
                while time.monotonic() < until:
                    savers.read()
                descriptor = os.open(disk, os.O_RDONLY)
                fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, WITHOUT_FLUSHING)
                os.close(descriptor)
                while savers.read()[0] != "ended":  # what it said before the cut counts; then its writes fail
                    pass
                results["cuts"] += 1
    return results


@pytest.mark.parametrize(
    ("num_cuts", "num_numbers", "keep_last"),
    [(2, SMALL, 1), *(pytest.param(20, 500_000, keep_last, marks=pytest.mark.slow) for keep_last in (1, 2))],
)
def test_no_checkpoint_is_lost_in_power_cuts(num_cuts: int, num_numbers: int, keep_last: int, tmp_path: Path) -> None:
    actual = cut_power(tmp_path, num_cuts, num_numbers, keep_last)
    print(f"\n{num_cuts} power cuts, keep_last={keep_last}: {dict(actual)}")
    assert +actual == {"cuts": num_cuts}


def cut_short(rng: random.Random, path: Path, _: Path) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def flip(rng: random.Random, path: Path, _: Path) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def zero(rng: random.Random, path: Path, _: Path) -> None:
    data = bytearray(path.read_bytes())
    first = rng.randrange(len(data))
    data[first : first + 4096] = bytes(len(data[first : first + 4096]))
    path.write_bytes(data)


def swap(_: random.Random, path: Path, older: Path) -> None:
    shutil.copy(older / path.name, path)


def append(rng: random.Random, path: Path, _: Path) -> None:
    with path.open("ab") as file:
        file.write(rng.randbytes(1 + rng.randrange(9)))


def edit_manifest(rng: random.Random, path: Path, _: Path) -> None:
    manifest = json.loads((path.parent / "manifest.json").read_text())
    files, name = manifest["files"], rng.choice(sorted(manifest["files"]))
    edit = rng.randrange(6)
    if edit == 0:
        del files[name]
    elif edit == 1:
        files[name]["bytes"] += 1
    elif edit == 2:
        files[name]["sha256"] = files[name]["sha256"][::-1]
    elif edit == 3:
        files[name]["note"] = "mine"
    elif edit == 4:
        manifest["files"] = dict(reversed(files.items()))
    else:
        manifest["version"] = 2
    (path.parent / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def add_file(rng: random.Random, path: Path, _: Path) -> None:
    (path.parent / f"extra{rng.randrange(9)}.safetensors").write_bytes(path.read_bytes())


CORRUPTIONS: dict[str, Callable[[random.Random, Path, Path], object]] = {
    "deleted": lambda rng, path, older: path.unlink(),
    "cut short": cut_short,
    "a bit flipped": flip,
    "4 KB of zeros": zero,
    "taken from another step": swap,
    "longer": append,
    "manifest edited": edit_manifest,
    "a file too many": add_file,
    "replaced by a folder": lambda rng, path, older: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("num_trials", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_damaged_checkpoint_is_named_and_previous_one_taken(tmp_path: Path, num_trials: int) -> None:
    """Each is found, the message names a file, and the checkpoint before it is taken instead."""
    numbers, rng, results, unchanged = torch.randn(SMALL), random.Random(0), Counter[str](), 0
    (tmp_path / "whole").mkdir()
    for step in (10, 20):
        part, other = (contents(step, numbers).share(rank, 2) for rank in (0, 1))  # as two processes write it
        both = checkpoint.Share(step, part.tensors | other.tensors, part.texts)
        checkpoint.save(tmp_path / "whole", both, keep_last=2)
    names = sorted(path.name for path in all_checkpoints(tmp_path / "whole")[0].iterdir())
    assert len(names) == 7
    while sum(results.values()) < num_trials:
        shutil.copytree(tmp_path / "whole", tmp_path / "run")
        newest, older = all_checkpoints(tmp_path / "run")
        kind, name = rng.choice(sorted(CORRUPTIONS)), rng.choice(names)
        before = {path.name: path.read_bytes() for path in newest.iterdir()}
        CORRUPTIONS[kind](rng, newest / name, older)
        after = {path.name: path.read_bytes() if path.is_file() else None for path in newest.iterdir()}
        chosen, faults = newest_valid(tmp_path / "run")
        if before == after:  # a file that is the same in both steps, zeros over zeros
            unchanged += 1
            assert chosen == newest
        else:
            results[kind] += 1
            assert chosen == older, (kind, name)
            assert len(faults) == 1
            wrong = {file for file in {*before, *after} if before.get(file) != after.get(file)}
            # a manifest that was edited contradicts some other file
            named = {*before, *after} if "manifest.json" in wrong else wrong
            assert any(file in faults[0].rpartition("not used")[2] for file in named), (kind, name, faults)
        shutil.rmtree(tmp_path / "run")
    print(f"\n{num_trials} corruptions found: {dict(results)}; {unchanged} tries changed nothing")
    assert min(results.values()) > num_trials / 25
    assert set(results) == set(CORRUPTIONS)


def expect_failed_save(run_dir: Path, number: int) -> str:
    """A save that the disk refuses leaves the one before as it was, and nothing of itself; give the message."""
    (good,) = all_checkpoints(run_dir)
    with pytest.raises(StorageError) as error:
        checkpoint.save(run_dir, contents(20, torch.randn(number)).share(0, 1), keep_last=1, last_good=10)
    assert [path.name for path in good.parent.iterdir()] == [good.name]
    assert newest_valid(run_dir) == (good, [])
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("step 20 is not saved: ")
    assert "; last good step 10" in str(error.value)
    return str(error.value)


def save_first(run_dir: Path, number: int) -> None:
    checkpoint.save(run_dir, contents(10, torch.randn(number)).share(0, 1), keep_last=1)


def test_a_disk_without_room_is_refused_before_writing(tmp_path: Path) -> None:
    """Room for one and a half: seen at once, and nothing is touched."""
    with mounted(tmp_path / "mounted", "-t", "tmpfs", "-o", "size=8m", "tmpfs") as disk:
        save_first(disk, 1_000_000)
        message = expect_failed_save(disk, 1_000_000)
    assert re.search(r"no space left on \S+/checkpoints: need 5\.2 MB, have 4\.\d MB; free some space; last", message)


@pytest.mark.parametrize("num_free", range(7))
def test_a_disk_that_fills_up_while_writing(tmp_path: Path, num_free: int) -> None:
    """Real ENOSPC after the check: room for the bytes, but not for one more file after `num_free`."""
    with mounted(tmp_path / "mounted", "-t", "tmpfs", "-o", "size=99m,nr_inodes=32", "tmpfs") as disk:
        save_first(disk, SMALL)
        count = 0
        while os.statvfs(disk).f_ffree > num_free:
            (disk / f"filler{count}").write_text("")
            count += 1
        assert f"no space left on {disk / 'checkpoints'}" in expect_failed_save(disk, SMALL)


@pytest.mark.parametrize("share", [0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_a_file_that_may_not_grow(tmp_path: Path, share: float) -> None:
    """Real EFBIG, in the middle of a file, wherever that is."""
    save_first(tmp_path, 90_000)
    largest = max(path.stat().st_size for path in all_checkpoints(tmp_path)[0].iterdir())
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(share * largest), hard))
    try:
        message = expect_failed_save(tmp_path, 90_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert os.strerror(errno.EFBIG) in message


def test_a_disk_that_may_not_be_written(tmp_path: Path) -> None:
    with mounted(tmp_path / "mounted", "-t", "tmpfs", "-o", "size=9m", "tmpfs") as disk:
        save_first(disk, SMALL)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert os.strerror(errno.EROFS) in expect_failed_save(disk, SMALL)
