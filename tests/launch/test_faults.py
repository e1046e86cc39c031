"""Processes that are killed, stopped, loop or raise: all of a run end, one line says why, and the run resumes. All are real.

The five repetitions of every fault, with their times: pytest -m slow -s tests/launch/test_faults.py
"""

import os
import signal
import socket
import time
from pathlib import Path

import pytest
from launched import ENDLESS, HANG_SECONDS, SMALL, await_end, await_steps, listening, start, workers_of

from bertkit.cli import run
from bertkit.train.checkpoint_files import all_checkpoints, fault_of

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
HUNG = HANG_SECONDS + 5.0
# the signal, whether it goes to the launcher, the exit code, the most seconds to the end, and what is said of the process
CASES = {
    "killed": (signal.SIGKILL, False, 6, 5.0, "was killed by SIGKILL; all processes were ended, and the same command"),
    "raising": (signal.SIGWINCH, False, 6, 5.0, "failed: RuntimeError: made to fail; all processes were ended"),
    "stopped": (signal.SIGSTOP, False, 6, HUNG, "did not respond; rank "),
    "looping": (signal.SIGVTALRM, False, 6, HUNG, "did not respond; rank "),
    "launcher killed": (signal.SIGKILL, True, -signal.SIGKILL, 5.0, ""),
    "SIGTERM": (signal.SIGTERM, True, 75, 10.0, ""),
    "SIGINT": (signal.SIGINT, True, 75, 10.0, ""),
    "SIGUSR1": (signal.SIGUSR1, True, 75, 10.0, ""),
}


def suffer(name: str, trial: int, data: Path, folder: Path) -> float:
    """Start a run of two processes, harm it after a few steps, resume it; return the seconds until all processes had ended."""
    number, to_launcher, code, most_seconds, words = CASES[name]
    (folder / "sitecustomize.py").write_text(FAULTS)
    output, victim, temporary = folder / f"run-{trial}", trial % 2, folder / f"tmp-{trial}"
    temporary.mkdir()
    process = start(
        data, output, "launch.num_processes=2", f"launch.hang_timeout_seconds={HANG_SECONDS}", *ENDLESS,
        "checkpoint.every_steps=2", TMPDIR=str(temporary),
        PYTHONPATH=os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
    )  # fmt: skip
    await_steps([process], output, 3)
    pids = workers_of(process)
    assert listening([process.pid, *pids.values()]) == {"0100007F"}  # 127.0.0.1 alone
    began = time.monotonic()
    os.kill(process.pid if to_launcher else pids[victim], number)
    _, errors = process.communicate(timeout=90)  # a process that is left holds the pipes open
    await_end(list(pids.values()))
    seconds = time.monotonic() - began
    assert process.returncode == code, errors
    assert seconds < most_seconds, errors
    assert code == -signal.SIGKILL or not list(temporary.iterdir())
    assert errors.count("\n") == (1 if words else 0), errors
    if words:
        assert errors.startswith(
            f"error: rank {victim} on host {socket.gethostname()} (process {pids[victim]}) {words}"
        )
    newest = all_checkpoints(output)[0]
    assert fault_of(newest) is None
    step = int(newest.name.removeprefix("step-"))
    if words:
        assert errors.endswith(f"all processes were ended, and the same command resumes from checkpoint {step}\n")
    shorter = [f"steps={step + 2}", *ENDLESS[1:]]
    assert run(["pretrain", f"data_dir={data}", f"output_dir={output}", *SMALL, *shorter]) == 0  # by one process
    return seconds


@pytest.mark.parametrize("name", ["killed", pytest.param("launcher killed", marks=pytest.mark.slow)])
def test_a_fault_ends_all_processes(name: str, prepared_dir: Path, tmp_path: Path) -> None:
    suffer(name, 1, prepared_dir, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_processes_end_after_every_fault_five_times(name: str, prepared_dir: Path, tmp_path: Path) -> None:
    times = sorted(suffer(name, trial, prepared_dir, tmp_path) for trial in range(5))
    print(f"\n{name}: exit code {CASES[name][2]}; gone after {times[0]:.1f} to {times[-1]:.1f} s; all resumed")


@pytest.mark.slow
def test_second_command_in_run_directory_is_refused_five_times(prepared_dir: Path, tmp_path: Path) -> None:
    for trial in range(5):
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


@pytest.mark.slow
def test_a_second_signal_ends_all_at_once(prepared_dir: Path, tmp_path: Path) -> None:
    process = start(prepared_dir, tmp_path / "run", "launch.num_processes=2", *ENDLESS)
    await_steps([process], tmp_path / "run", 1)
    pids = workers_of(process)
    os.kill(pids[1], signal.SIGSTOP)  # which keeps the other from saving
    process.send_signal(signal.SIGTERM)
    time.sleep(1.5)
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    _, errors = process.communicate(timeout=60)
    await_end(list(pids.values()))
    assert (process.returncode, errors) == (128 + signal.SIGTERM, "")
    assert time.monotonic() - began < 5
