"""Processes that are killed, stopped, loop or raise: all of a run end, and one line says why. All of them are real.

The ten repetitions of every fault, with their times: pytest -m slow -s tests/launch/test_faults.py
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from launched import ENDLESS, HANG_SECONDS, await_end, await_steps, start, workers_of

from bertkit.launch import watch
from bertkit.train.checkpoint import all_checkpoints, fault_of

pytestmark = pytest.mark.usefixtures("no_launcher")
# put into every process from outside, by a sitecustomize.py on PYTHONPATH: on SIGWINCH it fails, on SIGVTALRM it hangs
FAULTS = """\
import signal


def fail(*_):
    raise RuntimeError("made to fail")


def hang_here(*_):
    while True:
        pass


signal.signal(signal.SIGWINCH, fail)
signal.signal(signal.SIGVTALRM, hang_here)
"""


def inflict(fault: str, process: subprocess.Popen[str]) -> str:
    """Do something to rank 1 of a run; give the line that the run ends with."""
    pids = workers_of(process)
    os.kill(pids[1], getattr(signal, fault))
    said, errors = process.communicate(timeout=60)
    await_end(list(pids.values()))
    assert process.returncode == 6, (said, errors)
    assert errors.count("\n") == 1
    assert errors.startswith(f"error: rank 1 on host {socket.gethostname()} (process {pids[1]}) ")
    return str(errors)


def test_a_process_that_dies_is_named(prepared_dir: Path, tmp_path: Path) -> None:
    process = start(prepared_dir, tmp_path / "run", "launch.num_processes=2", *ENDLESS)
    await_steps([process], tmp_path / "run", 2)
    line = inflict("SIGKILL", process)
    assert "was killed by SIGKILL; last step" in line


@pytest.mark.slow
def test_a_process_that_hangs_is_named(prepared_dir: Path, tmp_path: Path) -> None:
    output, two = tmp_path / "run", ["launch.num_processes=2", "launch.hang_timeout_seconds=5", *ENDLESS]
    process = start(prepared_dir, output, *two)
    await_steps([process], output, 2)
    line = inflict("SIGSTOP", process)
    assert f"is stopped (SIGSTOP?): no sign of life for 5 s; stacks: {output}/stacks-rank-*.txt; last step" in line
    stacks = [(output / f"stacks-rank-{rank}.txt").read_text() for rank in (0, 1)]
    place, waits = watch.where(stacks[0])
    assert waits, place
    assert stacks[1] == ""


def test_a_killed_launcher_takes_its_processes_along(prepared_dir: Path, tmp_path: Path) -> None:
    process = start(prepared_dir, tmp_path / "run", "launch.num_processes=2", *ENDLESS)
    until = time.monotonic() + 60
    while len(pids := list(workers_of(process).values())) < 2:
        assert time.monotonic() < until
    os.kill(pids[0], signal.SIGSTOP)  # one that cannot notice anything, and has not begun to watch
    process.kill()
    process.communicate(timeout=30)  # a process that is left holds the pipes open
    await_end(pids)


# ---- the repetitions


def repeated(
    data: Path, folder: Path, harm: Callable[[subprocess.Popen[str]], None], *more: object
) -> list[tuple[int, float, str]]:
    """Start ten runs, harm each after a few steps: exit code, seconds until everything was gone, and the line."""
    (folder / "sitecustomize.py").write_text(FAULTS)
    results = []
    for trial in range(10):
        output = folder / f"run-{trial}"
        process = start(
            data, output, "launch.num_processes=2", f"launch.hang_timeout_seconds={HANG_SECONDS}", *ENDLESS, *more,
            PYTHONPATH=os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
        )  # fmt: skip
        await_steps([process], output, 2 + trial % 3)
        pids = list(workers_of(process).values())
        before = set(os.listdir("/dev/shm"))
        began = time.monotonic()
        harm(process)
        _, errors = process.communicate(timeout=90)
        await_end(pids)
        assert set(os.listdir("/dev/shm")) <= before
        results.append((process.returncode, time.monotonic() - began, errors))
    return results


def send(number: int, rank: int | None = None) -> Callable[[subprocess.Popen[str]], None]:
    """Send a signal to a rank, or to the launcher."""

    def harm(process: subprocess.Popen[str]) -> None:
        os.kill(process.pid if rank is None else workers_of(process)[rank], number)

    return harm


FAULT_CASES = {
    "killed": (send(signal.SIGKILL, 1), 6, 5.0, "was killed by SIGKILL; last step"),
    "raising": (send(signal.SIGWINCH, 1), 6, 5.0, "failed: RuntimeError: made to fail; last step"),
    "stopped": (send(signal.SIGSTOP, 1), 6, HANG_SECONDS + 5.0, "is stopped (SIGSTOP?)"),
    "looping": (send(signal.SIGVTALRM, 1), 6, HANG_SECONDS + 5.0, "does not go on, at"),
    "launcher killed": (send(signal.SIGKILL), -signal.SIGKILL, 5.0, ""),
    "SIGTERM": (send(signal.SIGTERM), 75, 10.0, ""),
    "SIGINT": (send(signal.SIGINT), 75, 10.0, ""),
    "SIGUSR1": (send(signal.SIGUSR1), 75, 10.0, ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULT_CASES)
def test_ten_times(name: str, prepared_dir: Path, tmp_path: Path) -> None:
    harm, code, seconds, line = FAULT_CASES[name]
    results = repeated(prepared_dir, tmp_path, harm)
    times = sorted(took for _, took, _ in results)
    print(f"\n{name}: exit codes {[each[0] for each in results]}; gone after {times[0]:.1f} to {times[-1]:.1f} s")
    for returncode, took, errors in results:
        assert returncode == code, errors
        assert took < seconds, errors
        assert line in errors
        assert errors.count("\n") == (1 if line else 0)
        if line:
            assert errors.startswith("error: rank 1 on host ")
    if code == 75:
        for trial in range(10):
            (newest,) = all_checkpoints(tmp_path / f"run-{trial}")
            assert fault_of(newest) is None


@pytest.mark.slow
def test_ten_times_two_commands_in_one_directory(prepared_dir: Path, tmp_path: Path) -> None:
    for trial in range(10):
        output = tmp_path / f"run-{trial}"
        both = [start(prepared_dir, output, "launch.num_processes=2", *ENDLESS) for _ in range(2)]
        until = time.monotonic() + 120
        while all(process.poll() is None for process in both):
            assert time.monotonic() < until
            time.sleep(0.05)
        (loser,) = [process for process in both if process.poll() is not None]
        (winner,) = [process for process in both if process is not loser]
        _, errors = loser.communicate()
        assert (loser.returncode, errors.count("\n")) == (3, 1), errors
        await_steps([winner], output, 1)
        winner.send_signal(signal.SIGTERM)
        winner.communicate(timeout=60)
        assert winner.returncode == 75
