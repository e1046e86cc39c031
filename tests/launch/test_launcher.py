"""Who starts processes, with which settings, and how a run of several stops."""

import dataclasses
import json
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import Capsys, refused
from launched import ENDLESS, SMALL, await_steps, start

from bertkit.base.typed_settings import build
from bertkit.cli import run
from bertkit.launch import launcher
from bertkit.launch.launch_config import LaunchConfig
from bertkit.settings.reading.compose import compose
from bertkit.settings.reading.names import schema_of
from bertkit.train.checkpoint_files import all_checkpoints, fault_of

pytestmark = pytest.mark.usefixtures("no_launcher")
SRUN = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}


def settings(**changes: object) -> LaunchConfig:
    return dataclasses.replace(LaunchConfig(1, 1, 0, None, 300), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("variables", "config", "starts"),
    [
        ({}, settings(), False),
        ({}, settings(num_processes=2), True),
        ({}, settings(num_hosts=2, address="a:1"), True),
        ({"RANK": "0", "WORLD_SIZE": "2"}, settings(num_processes=2), False),
        (SRUN, settings(), False),
        (SRUN, settings(num_processes=2), False),
        (SRUN, settings(num_processes=4, num_hosts=2, address="a:1"), True),  # srun starts a launcher on each host
    ],
)
def test_workers_are_started_once(
    variables: dict[str, str], config: LaunchConfig, starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launcher.starts_workers(config) is starts


@pytest.mark.parametrize(
    ("variables", "arguments", "line"),
    [
        ({}, ["launch.num_hosts=2"], "missing value: set launch.address=HOST:PORT of host 0"),
        ({}, ["launch.address=a:1"], "launch.address=a:1: has no effect with one host; set launch.num_hosts="),
        ({}, ["launch.host_rank=1"], "launch.host_rank=1: expected 0 to 0, with launch.num_hosts=1"),
        ({}, ["launch.num_hosts=2", "launch.address=a"], "launch.address=a: expected HOST:PORT of host 0"),
        (
            {},
            ["launch.num_hosts=2", "launch.address=192.0.2.1:7"],
            "launch.address=192.0.2.1:7: Cannot assign requested",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "3"},
            ["launch.num_processes=2"],
            "launch.num_processes=2 on launch.num_hosts=1 are 2 processes, but torchrun or srun started 3",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "3"},
            [],
            "LOCAL_RANK, MASTER_ADDR, MASTER_PORT not set",
        ),
        ({"RANK": "x", "WORLD_SIZE": "3"}, [], "rank x of 3"),
        ({"RANK": "3", "WORLD_SIZE": "3"}, [], "rank 3 of 3"),
    ],
)
def test_impossible_launch_settings_are_refused(
    variables: dict[str, str],
    arguments: list[str],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capsys,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code = run(["pretrain", "data_dir=x", f"output_dir={tmp_path / 'run'}", *arguments])
    refused(code, line, capsys, alone=True)
    assert not (tmp_path / "run").exists()


def test_the_settings_survive_the_way_to_a_worker() -> None:
    options = {
        "pretrain": ["data_dir=x", "output_dir=y", "optimizer=lamb", "data.skip_steps=[3]", "segments=google"],
        "finetune": ["task=squad2", "model_dir=x", "output_dir=y"],
        "evaluate": ["task=conll2003", "model_dir=x"],
    }
    for command, arguments in options.items():
        built = build(schema_of(command), compose(command, arguments))
        assert build(schema_of(command), json.loads(json.dumps(dataclasses.asdict(built)))) == built


def test_a_run_of_two_processes_stops_and_is_left_alone(
    prepared_dir: Path, tmp_path: Path, capsys: Capsys, python: Path
) -> None:
    """A second command in its directory ends with 3; SIGUSR1 saves and ends with 75."""
    output = tmp_path / "run"
    process = start(prepared_dir, output, "launch.num_processes=2", *ENDLESS, python=python)
    await_steps([process], output, 2)
    assert run(["pretrain", f"data_dir={prepared_dir}", f"output_dir={output}", *SMALL, *ENDLESS]) == 3
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "is in use by process" in errors
    process.send_signal(signal.SIGUSR1)  # Slurm's own, and what a script passes on, are one request
    process.send_signal(signal.SIGUSR1)
    printed, errors = process.communicate(timeout=120)  # a process that is left holds the pipes open
    assert (process.returncode, errors) == (75, "")
    newest = all_checkpoints(output)[0]
    assert printed.count(f"stopped at step {int(newest.name[5:])} of 100000, which is saved") == 1
    assert fault_of(newest) is None


def check_reader_leaves(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=120) == 141
    assert process.stderr.read() == ""
    process.stderr.close()


def test_a_reader_that_leaves_ends_a_run(prepared_dir: Path, tmp_path: Path, python: Path) -> None:
    check_reader_leaves(start(prepared_dir, tmp_path / "run", *ENDLESS, python=python))


@pytest.mark.slow
def test_a_reader_that_leaves_ends_a_run_of_two_processes_alike(prepared_dir: Path, tmp_path: Path) -> None:
    check_reader_leaves(start(prepared_dir, tmp_path / "run", "launch.num_processes=2", *ENDLESS))
