"""Which process this is, by the variables of torchrun and Slurm."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from bertkit.cli import run
from bertkit.launch import launcher, world

pytestmark = pytest.mark.usefixtures("no_launcher")
SRUN = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}
OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "3"}, (1, 3)),
        ({"RANK": "1"}, (0, 1)),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "5", "SLURM_STEP_ID": "0"}, (2, 5)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "5", "SLURM_STEPID": "3"}, (0, 5)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "5"}, (0, 1)),  # a batch script
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "5", "SLURM_STEP_ID": "4294967291"},
            (0, 1),
        ),  # a batch script, later Slurm
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "5", "SLURM_STEP_ID": "4294967290"}, (0, 1)),  # an interactive step
        ({"RANK": "1", "WORLD_SIZE": "3", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"}, (1, 3)),
    ],
)
def test_which_process_this_is(
    variables: dict[str, str], expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    here = world.world_from_environment()
    assert (here.rank, here.size) == expected


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[003-007,012],login", "gpu003"),
        ("gpu[12]", "gpu12"),
        ("a-[1,3]-x", "a-1-x"),
        ("rack[1-2]n[01-16],b", "rack1n01"),
    ],
)
def test_the_first_host_of_slurms_short_form(nodelist: str, first: str) -> None:
    assert world.first_host(nodelist) == first


@pytest.mark.parametrize(
    ("tasks", "counts"), [("1", [1]), ("4(x2)", [4, 4]), ("2(x3),1", [2, 2, 2, 1]), ("3,10(x2)", [3, 10, 10])]
)
def test_the_tasks_of_each_host_of_slurms_short_form(tasks: str, counts: list[int]) -> None:
    assert [world.tasks_of_host(tasks, host) for host in range(len(counts))] == counts


@pytest.mark.parametrize(("more", "device"), [({}, "1"), ({"SLURM_GPUS_PER_TASK": "1"}, "0")])
def test_srun_s_variables_become_those_of_torchrun(more: dict[str, str], device: str, python: Path) -> None:
    slurm = {**SRUN, **more, "SLURM_LOCALID": "1", "SLURM_JOB_ID": "12345", "SLURM_STEP_NODELIST": "gpu[03-04]"}
    code = (
        "import os; from bertkit.launch import world; from bertkit.launch.launch_config import LaunchConfig\n"
        f"print(world.enter(LaunchConfig(1, 1, 0, None, 300)), *[os.environ[name] for name in {OF_TORCHRUN}])"
    )
    done = subprocess.run([python, "-c", code], env={**os.environ, **slurm}, capture_output=True, text=True)
    assert done.stdout.split(" ", 2)[2].split() == ["1", "2", device, "gpu03", "22345"], done.stderr
    assert done.stdout.startswith("World(rank=1, size=2) ")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (
            {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0"},
            f"error (on {socket.gethostname()}): unknown key 'stepz'",
        ),
        ({**SRUN, "SLURM_LOCALID": "0"}, f"error (on {socket.gethostname()}): unknown key 'stepz'"),
        ({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, "error: unknown key 'stepz'"),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, ""),
    ],
)
def test_one_process_of_each_host_says_what_is_wrong(
    variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launcher, "is_launcher", False)  # as in a new process
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert run(["pretrain", "data_dir=x", "output_dir=y", "stepz=1"]) == 2
    assert capsys.readouterr().err.partition(";")[0] == said
