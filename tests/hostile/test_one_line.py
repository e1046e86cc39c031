"""One line, and a fitting exit code, whatever happens to the streams and the variables of a command."""

import os
import re
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
def test_bad_environment_variables_give_one_line(case: Case, python: Path, tmp_path: Path, tiny_runs: Path) -> None:
    check(case, python, tmp_path, tiny_runs)


def test_slurm_task_counts_are_parsed() -> None:
    assert [tasks_of_host("2(x3),1", host) for host in range(4)] == [2, 2, 2, 1]
    assert tasks_of_host("2(x999999999)", 5) == 2  # at once
    assert variables_of_slurm({**TASK, "SLURM_STEP_ID": "3"})["MASTER_PORT"] == "20010"


def test_no_command_prints_first_steps(capsys: Capsys) -> None:
    assert run([]) == 0
    assert run([""]) == 2
    assert "first steps:" in capsys.readouterr().out


def test_five_errors_are_listed_and_the_rest_counted(capsys: Capsys) -> None:
    assert run(["pretrain", *(f"key_{n}=1" for n in range(13))]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5
    assert all(line.startswith(f"error: unknown key 'key_{n}'") for n, line in enumerate(lines[:4]))
    assert lines[4] == "error: and 9 more"
    assert run(["pretrain", *(f"key_{n}=1" for n in range(5))]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 5


def shell(words: str, folder: Path, python: str | Path = sys.executable) -> tuple[int, list[str]]:
    """Run `bertkit WORDS` in a shell, with its redirections; give the exit code and the lines of errors."""
    command = ["bash", "-c", f"{python} -m bertkit {words}"]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # as users have them
    done = subprocess.run(
        command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stderr.splitlines()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_closed_and_full_streams_give_one_line(tmp_path: Path) -> None:
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
    assert (code, lines[-1]) == (4, "error: standard output: No space left on device")
    assert list(tmp_path.iterdir()) == []


RUN, NINES = "pretrain data_dir=d output_dir=o", "9" * 5000
REFUSED = {  # words of a command, in a shell; what its one line says first: the place and the value
    "predict model_dir=m text=$'caf\\xff'": r"text=caf\\xff: not UTF-8",
    "view model_dir=m output=x.html text=$'caf\\xff'": r"text=caf\\xff: not UTF-8",
    "compare a $'run\\xff'": r"run\\xff: not UTF-8",
    f"{RUN} -m seed=1,2 model_dir=$'\\xff'": r"model_dir='\\xff': not UTF-8",
    "pretrain output_dir=o --config pipe": "--config pipe: expected a regular file",
    "pretrain output_dir=o --config zero": "--config zero: expected a regular file",
    "pretrain output_dir=o --config large": "--config large: expected a regular file",
    f"{RUN} --config-dir own": r"\S+/own/model/x.yaml: not YAML \(expected a regular file",
    f"{RUN} experiment=e --config-dir logs": r"\S+/logs/experiment/e.yaml: hydra/job_logging: ",
    f"{RUN} --config-dir": "--config-dir: expected one argument",
    f"{RUN} --cfg=": "--cfg: invalid choice",
    f"{RUN} steps={NINES}": "steps='9{10}",
    f"{RUN} --config nines": r"--config nines: [^()]*\(4300 digits\)[^()]*; pass",
    f"{'k' * 90_000}=1 {RUN}": "unknown command|unknown key",
    f"{RUN} {'k' * 90_000}=1": "unknown key 'k{100}.* --help",
    f"{RUN} -m 'seed=range(1,10000000)'": r"'seed=range\(1,10000000\)': more than 1,000",
    f"{RUN} -m 'seed=range(0,1000)' 'steps=range(1,1001)' 'log.every_steps=range(1,1001)'": "-m: 1,000,000,000 runs",
    f"{RUN} -m 'optimizer.beta1=range(0,1,1e-9)'": "'optimizer.beta1=range",
    f"{RUN} -m 'seed=range(1,9,0)'": "'seed=range",
    f"{RUN} -m 'seed=range(9,1)'": "-m: 0 runs",
    "finetune task=sequence data_dir=task model_dir=m output_dir=o task.metrics=[]": r"task\.metrics=\[\]: ",
    "finetune task=sequence data_dir=task model_dir=m output_dir=o launch.num_hosts=2 launch.address=a:\u00b2": "launch.address=a:\u00b2: ",
    "predict model_dir=m input=lr=1e-4.tsv": "model_dir=m: no config.json",  # the input is found
    "predict model_dir=m 'input=reviews (1).tsv'": "model_dir=m: no config.json",
    "predict model_dir=m 'input=a,[it].tsv' \"output=it's.jsonl\"": "model_dir=m: no config.json",
    "prepare 'corpus.path=~a.txt' output_dir=o": r"corpus\.path=~a\.txt: no such file",
    "pretrain data_dir=aus\u00e4 output_dir=o": "data_dir=aus\u00e4: no such directory",
    "prepare 'corpus.path=[a=b.txt,c.txt]' output_dir=o": r"corpus\.path=a=b\.txt: ",
    "compare lr=1e-4 runs/lr=1e-3 output=o.html": r"runs=\['lr=1e-4', 'runs/lr=1e-3'\]: ",
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_command_line_words_give_one_line(words: str, tmp_path: Path, python: Path) -> None:
    for folder in ("m", "task", "lr=1e-4", "runs/lr=1e-3", "own/model", "logs/experiment"):
        (tmp_path / folder).mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "own" / "model" / "x.yaml")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "large").write_text("#" * 1_000_001)
    (tmp_path / "nines").write_text(f"steps: {NINES}")
    logs = "# @package _global_\ndefaults:\n  - override /hydra/job_logging: none\n"
    (tmp_path / "logs" / "experiment" / "e.yaml").write_text(logs)
    for name in ("lr=1e-4.tsv", "reviews (1).tsv", "a,[it].tsv", "task/train.tsv", "task/dev.tsv"):
        (tmp_path / name).write_text("text\tlabel\na\tx\nb\ty\n")
    before = sorted(tmp_path.rglob("*"))
    code, lines = shell(words, tmp_path, python)
    error = lines[-1] if words.startswith("compare") else "\n".join(lines)
    assert code == 2, lines
    assert re.match(f"error: ({REFUSED[words]})", error), error[:500]
    assert "\n" not in error
    assert len(error) <= 400
    assert "sys.set_int" not in error
    assert sorted(tmp_path.rglob("*")) == before


def test_deleted_current_directory_gives_one_line(tmp_path: Path) -> None:
    assert shell("", tmp_path)[0] == 0
    gone = f"--version; mkdir x; cd x; rmdir ../x; {sys.executable} -m bertkit {RUN}"
    assert shell(gone, tmp_path) == (2, ["error: the current directory: No such file or directory"])


INTERRUPTS = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        in_run = os.getsid(0) == os.getpid()
        if name == os.environ["AT"] and in_run == (os.environ["IN"] == "run"):
            os.kill(os.getppid() if in_run else os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(("at", "process"), [
    ("bertkit.cli", "sweep"), ("hydra", "sweep"), ("bertkit.base.errors", "run"), ("tokenizers", "run"),
])  # fmt: skip
def test_ctrl_c_in_a_sweep(at: str, process: str, tmp_path: Path) -> None:
    """While a library is imported, in the sweep or, forwarded by it, in its run, perhaps before that can handle a signal."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS)
    variables = os.environ | {"PYTHONPATH": str(tmp_path), "AT": at, "IN": process}
    words = ["prepare", "-m", "held_out_prob=0.1,0.2", "corpus=python_docs", "tokenizer.vocab_size=300", "output_dir=o"]
    command = [sys.executable, "-m", "bertkit", *words]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (130, 1), done.stderr
    assert done.stderr.startswith("error: interrupted")
    assert not list(tmp_path.glob("o/*/manifest.json"))
