"""The jobs for SkyPilot and Kubeflow in recipes/multi_host: the commands that they start, and their published schemas."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import output_of

from bertkit.base.typed_settings import build
from bertkit.settings.pretrain import PretrainSettings
from bertkit.settings.reading.compose import compose

FOLDER = Path(__file__).resolve().parents[2] / "recipes" / "multi_host"
SCHEMAS = ("skypilot==0.14.1", "kubeflow-trainer-api==2.3.0")
CHECK = """
import sys, yaml, sky
from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob
from kubeflow_trainer_api.models.trainer_v1alpha1_training_runtime import TrainerV1alpha1TrainingRuntime

def check(task, runtime, job):
    sky.Task.from_yaml_config(task)
    assert TrainerV1alpha1TrainingRuntime.from_dict(runtime).to_dict() == runtime  # unknown names are left out
    assert TrainerV1alpha1TrainJob.from_dict(job).to_dict() == job

def read():
    return [yaml.safe_load(open("skypilot.yaml")), *yaml.safe_load_all(open("trainjob.yaml"))]

check(*read())
faults = 0
for place, name in ((0, "num_node"), (1, "mlPolicie"), (2, "runtimeReference")):
    wrong = read()
    (wrong[place].get("spec") or wrong[place])[name] = 2
    try:
        check(*wrong)
    except (ValueError, AssertionError):
        faults += 1
assert faults == 3
"""


def read(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def test_skypilot_starts_the_recipe_on_every_host(tmp_path: Path) -> None:
    (task,) = read("skypilot.yaml")
    shutil.copytree(FOLDER, tmp_path / "recipes/multi_host")
    (tmp_path / "docker").mkdir()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / "docker/install.sh").touch()
    (tmp_path / ".venv/bin/bertkit").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / ".venv/bin/bertkit").chmod(0o755)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/manifest.json").touch()
    environment = {
        **os.environ, **task["envs"], "RUN_DIR": str(tmp_path), "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "SKYPILOT_NUM_NODES": str(task["num_nodes"]), "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_GPUS_PER_NODE": "8",
    }  # fmt: skip
    output = output_of(["bash", "-c", f"{task['setup']}\n{task['run']}"], cwd=tmp_path, env=environment)
    (command,) = [line for line in output.splitlines() if line.startswith("pretrain")]
    launch = "launch.num_processes=8 launch.num_hosts=2 launch.host_rank=1 launch.address=10.0.0.1:29500 precision=bf16"
    assert command.endswith(launch)


def test_a_trainjob_starts_bertkit_with_settings_that_it_has() -> None:
    _, job = read("trainjob.yaml")
    trainer = job["spec"]["trainer"]
    values = {
        "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]), "PET_NNODES": str(trainer["numNodes"]), "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "bertkit-node-0-0.bertkit", "PET_MASTER_PORT": "29400",
    }  # fmt: skip
    arguments = [re.sub(r"\$\((\w+)\)", lambda actual: values[actual[1]], argument) for argument in trainer["args"]]
    assert trainer["command"] == ["bertkit", "pretrain"]
    launch = build(PretrainSettings, compose("pretrain", arguments)).launch
    assert (launch.num_processes, launch.num_hosts, launch.host_rank) == (8, 2, 1)
    assert launch.address == "bertkit-node-0-0.bertkit:29400"


def test_both_start_again_after_the_exit_codes_that_a_resume_cures() -> None:
    """The other codes of reproducibility's table end the job."""
    (task,), (runtime, _) = read("skypilot.yaml"), read("trainjob.yaml")
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    rules = node["template"]["spec"]["podFailurePolicy"]["rules"]
    assert task["resources"]["job_recovery"]["recover_on_exit_codes"] == [6, 75]
    assert [rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule] == [[6, 75], [2, 5]]


def test_the_files_say_what_they_were_checked_against() -> None:
    for name, schema in zip(("skypilot.yaml", "trainjob.yaml"), SCHEMAS, strict=True):
        heading = (FOLDER / name).read_text(encoding="utf-8").partition("\n#")[2].replace("\n# ", " ")
        assert "Not run; checked against" in heading
        assert schema.partition("==")[2] in heading


@pytest.mark.network
def test_the_files_fit_the_published_schemas(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "environment"], check=True)
    python = tmp_path / "environment/bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", "pyyaml", *SCHEMAS], check=True)
    output_of([python, "-c", CHECK], cwd=FOLDER)
