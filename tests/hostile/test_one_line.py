"""One line, and a fitting exit code, whatever happens to the streams and the variables of a command."""

import subprocess
import sys
from pathlib import Path

import pytest
from cases import Case, check, each
from conftest import TINY_PRETRAIN, Capsys

from bertkit.cli import run
from bertkit.launch.world import tasks_of_host, variables_of_slurm

TRAIN = ["pretrain", "data_dir={shared}/data", "output_dir=o", *TINY_PRETRAIN]
TASK = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", "SLURM_NODELIST": "a"}
RANK = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}
WORKER = "--worker is only for processes that launch"

QUICK = [
    Case("a worker without a job", ["--worker"], WORKER),
    Case("a worker with a job that is not there", ["--worker", "pretrain"], WORKER),
    Case("Slurm: a rank", TRAIN, "rank x of 2", environment={**TASK, "SLURM_PROCID": "x"}),
    Case("Slurm: a job", TRAIN, "SLURM_JOB_ID=x: expected a number", environment={**TASK, "SLURM_JOB_ID": "x"}),
    Case("torchrun: a rank", TRAIN, "rank \u00b2 of 2", environment={**RANK, "RANK": "\u00b2"}),
]
REST = [
    Case("a worker with a job of nothing", ["--worker", "/dev/stdin"], WORKER, stdin=b"{}"),
    Case("a worker with a list", ["--worker", "/dev/stdin"], WORKER, stdin=b"[1]"),
    Case("a worker of nobody", ["--worker", "/dev/stdin"], WORKER, stdin=
        b'{"command":"pretrain","settings":{},"debug":false,"arguments":[],"launcher":1}'),
    Case("Slurm: a world", TRAIN, "rank 0 of -2", environment={**TASK, "SLURM_NTASKS": "-2"}),
    Case("Slurm: a local rank", TRAIN, "SLURM_LOCALID", environment={**TASK, "SLURM_LOCALID": "\x1b"}),
    Case("Slurm: a host", TRAIN, "SLURM_NODEID", environment={**TASK, "SLURM_NODEID": "y", "SLURM_TASKS_PER_NODE": "2"}),
    Case("Slurm: tasks", TRAIN, "SLURM_TASKS_PER_NODE=2\\(x says", environment={
        **TASK, "SLURM_NODEID": "9", "SLURM_TASKS_PER_NODE": "2(x"}),
    Case("torchrun: a local rank", TRAIN, "LOCAL_RANK=x: expected a number", environment={**RANK, "LOCAL_RANK": "x"}),
    Case("torchrun: a port", TRAIN, "MASTER_PORT=-1: expected a number", environment={**RANK, "MASTER_PORT": "-1"}),
    Case("torchrun: a world", TRAIN, "rank 0 of 99999999999999", environment={**RANK, "WORLD_SIZE": "9" * 14}),
]  # fmt: skip


@each(QUICK, REST)
def test_variables(case: Case, python: Path, tmp_path: Path, tiny_runs: Path) -> None:
    check(case, python, tmp_path, tiny_runs)


def test_tasks_of_slurm() -> None:
    assert [tasks_of_host("2(x3),1", host) for host in range(4)] == [2, 2, 2, 1]
    assert tasks_of_host("2(x999999999)", 5) == 2  # at once
    assert variables_of_slurm({**TASK, "SLURM_STEP_ID": "3"})["MASTER_PORT"] == "20010"


def test_no_command(capsys: Capsys) -> None:
    assert run([]) == 0
    assert run([""]) == 2
    assert "first steps:" in capsys.readouterr().out


def test_five_findings_and_how_many_more(capsys: Capsys) -> None:
    assert run(["pretrain", *(f"key_{n}=1" for n in range(13))]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 6
    assert all(line.startswith(f"error: unknown key 'key_{n}'") for n, line in enumerate(lines[:5]))
    assert lines[5] == "error: and 8 more"
    assert run(["pretrain", *(f"key_{n}=1" for n in range(5))]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 5


def shell(words: str, folder: Path) -> tuple[int, list[str]]:
    """Run `bertkit WORDS` in a shell, with its redirections; give the exit code and the lines of errors."""
    command = ["bash", "-c", f"{sys.executable} -m bertkit {words}"]
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)  # fmt: skip
    return done.returncode, done.stderr.splitlines()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_streams_that_take_nothing(tmp_path: Path) -> None:
    full = ["error: standard output: No space left on device"]
    assert shell("--help > /dev/full", tmp_path) == (4, full)
    assert shell("--help >&-", tmp_path)[0] == 4
    assert shell("--help >&- | cat", tmp_path)[0] == 0
    closed = shell("prepare --cfg job corpus=python_docs output_dir=o tokenizer.vocab_size=131 >&-", tmp_path)
    assert closed == (4, ["error: standard output is closed; redirect it to a file, a pipe or /dev/null"])
    assert shell("pretrain 2>&-", tmp_path) == (2, [])
    assert shell("pretrain 2> /dev/full", tmp_path) == (2, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_streams_of_predictions(tmp_path: Path, tiny_runs: Path) -> None:
    model = f"predict model_dir={tiny_runs / 'fine'} output=-"
    assert shell(f"{model} input=- <&-", tmp_path) == (
        2, ["error: input=-: standard input is closed; give a file, or pipe text into the command"]
    )  # fmt: skip
    code, lines = shell(f"{model} input={tiny_runs / 'task' / 'dev.tsv'} > /dev/full", tmp_path)
    assert (code, lines[-1]) == (4, "error: No space left on device")
    assert list(tmp_path.iterdir()) == []
