"""Which process this is, by the variables of torchrun and Slurm."""

import os
import socket
import subprocess
from pathlib import Path

import pytest
from conftest import Capsys, refused

from bertkit.cli import run
from bertkit.launch import launcher, world
from bertkit.train.log import read_metrics

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
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "5"}, (0, 5)),  # set by hand, or by a container that passes on these two
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "5", "SLURM_JOB_ID": "7"}, (0, 1)),  # a batch script
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "5", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967291"},
            (0, 1),
        ),  # a batch script, later Slurm
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "5", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967290"},
            (0, 1),
        ),  # an interactive step
        ({"RANK": "1", "WORLD_SIZE": "3", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"}, (1, 3)),
    ],
)
def test_rank_is_read_from_environment(
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
    ("variables", "message"),
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
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launcher, "is_launcher", False)  # as in a new process
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert run(["pretrain", "data_dir=x", "output_dir=y", "stepz=1"]) == 2
    assert capsys.readouterr().err.partition(";")[0] == message


ASKED = [  # a variable of Accelerate, settings, the words of the refusal; None: the settings say the same
    ("MIXED_PRECISION=bf16", [], "ACCELERATE_MIXED_PRECISION=bf16, but precision=fp32"),
    ("MIXED_PRECISION=bf16", ["precision=bf16"], None),
    ("MIXED_PRECISION=fp16", ["precision=bf16"], "ACCELERATE_MIXED_PRECISION=fp16, but precision=bf16"),
    ("GRADIENT_ACCUMULATION_STEPS=4", [], "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4, but "),
    ("GRADIENT_ACCUMULATION_STEPS=4", ["batch.sequences=32", "batch.micro_sequences=8"], None),
    ("USE_CPU=True", ["device=cuda"], "ACCELERATE_USE_CPU=True, but device=cuda"),
    ("USE_CPU=True", ["device=auto"], None),
    ("USE_FSDP=true", [], "ACCELERATE_USE_FSDP=true, but this command has no setting for it"),
    ("DYNAMO_BACKEND=INDUCTOR", [], "ACCELERATE_DYNAMO_BACKEND=INDUCTOR, but "),
    ("DYNAMO_MODE=default", [], None),
]


@pytest.mark.parametrize(("variable", "settings", "words"), ASKED)
def test_accelerates_variables_agree_with_the_settings(
    variable: str, settings: list[str], words: str | None, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    name, value = variable.split("=")
    monkeypatch.setenv(f"ACCELERATE_{name}", value)
    code = run(["pretrain", "data_dir=nowhere", "output_dir=nothing", *settings])
    refused(code, words or "nowhere", capsys, alone=True)


USED = [  # commands that use a model, a variable of Accelerate, and the words of the refusal; None: it is followed
    (
        ["predict", "text=a"],
        "MIXED_PRECISION=bf16",
        "ACCELERATE_MIXED_PRECISION=bf16, but precision=fp32; set both alike",
    ),
    (["predict", "text=a", "precision=bf16"], "MIXED_PRECISION=bf16", None),
    (["predict", "text=a"], "GRADIENT_ACCUMULATION_STEPS=1", None),
    (["predict", "text=a"], "USE_FSDP=true", "ACCELERATE_USE_FSDP=true, but this command has no setting for it"),
    (
        ["embed", "input=FILE", "output=FILE.npy"],
        "MIXED_PRECISION=fp16",
        "ACCELERATE_MIXED_PRECISION=fp16, but precision=fp32",
    ),
    (
        ["evaluate", "task.files.dev=FILE"],
        "MIXED_PRECISION=bf16",
        "ACCELERATE_MIXED_PRECISION=bf16, but precision=fp32",
    ),
    (
        ["search", "question=a", "index=FILE"],
        "MIXED_PRECISION=bf16",
        "ACCELERATE_MIXED_PRECISION=bf16, but precision=fp32",
    ),
    (["serve"], "USE_CPU=true", None),
    (["serve"], "MIXED_PRECISION=bf16", "ACCELERATE_MIXED_PRECISION=bf16, but precision=fp32"),
    (
        ["view", "text=a", "output=FILE.html"],
        "MIXED_PRECISION=bf16",
        "ACCELERATE_MIXED_PRECISION=bf16, but this command has no setting for it",
    ),
    (["view", "text=a", "output=FILE.html"], "MIXED_PRECISION=no", None),
    (
        ["index", "corpus.path=FILE", "output=FILE.db"],
        "MIXED_PRECISION=bf16",
        "ACCELERATE_MIXED_PRECISION=bf16, but this command has no setting for it",
    ),
    (["index", "corpus.path=FILE", "output=FILE.db"], "USE_CPU=true", None),
]


@pytest.mark.parametrize(("command", "variable", "words"), USED)
def test_accelerates_variables_agree_with_the_settings_of_commands_that_use_a_model(
    command: list[str],
    variable: str,
    words: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capsys,
) -> None:
    (file := tmp_path / "file.txt").write_text("label\ttext\n1\ta\n")
    (empty := tmp_path / "empty").mkdir()  # no model: what is followed ends here
    monkeypatch.setenv(*f"ACCELERATE_{variable}".split("="))
    code = run([word.replace("FILE", str(file)) for word in [*command, f"model_dir={empty}"]])
    refused(code, words or str(empty), capsys)


def test_accelerate_launch_trains_with_matching_precision(prepared_dir: Path, tmp_path: Path, python: Path) -> None:
    """A real launcher: bf16 in the settings too, or nothing is trained."""
    code = f"import sys; sys.executable = {str(python)!r}; from accelerate.commands.launch import main; main()"
    launch = [python, "-c", code, "--cpu", "--num_processes=1", "--mixed_precision=bf16", "-m"]
    common = ["bertkit", "pretrain", f"data_dir={prepared_dir}", "steps=2", "schedule.warmup_steps=0", "model.hidden_size=16",
              "model.intermediate_size=16"]  # fmt: skip
    done = [
        subprocess.run([*launch, *common, f"output_dir={tmp_path / name}", *more], capture_output=True, text=True)
        for name, more in (("fp32", []), ("bf16", ["precision=bf16"]))
    ]
    assert "error: ACCELERATE_MIXED_PRECISION=bf16, but precision=fp32" in done[0].stderr
    assert not (tmp_path / "fp32").exists()
    assert done[1].returncode == 0, done[1].stderr
    alone = [str(python), "-m", *common, f"output_dir={tmp_path / 'alone'}", "precision=bf16", "device=cpu"]
    subprocess.run(alone, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    for first, same in zip(
        *(read_metrics(tmp_path / name / "metrics.jsonl") for name in ("bf16", "alone")), strict=True
    ):
        assert first["loss"] == pytest.approx(same["loss"], abs=1e-6)
