"""The images: no Docker is needed to see that they are pinned, run without rights, and copy and run what is there."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from bertkit.base.typed_settings import build
from bertkit.settings.compose import compose
from bertkit.settings.names import schema_of

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ["Dockerfile", "Dockerfile.cuda"]


def read(name: str) -> str:
    return (ROOT / "docker" / name).read_text(encoding="utf-8")


def instructions(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def faults(steps: list[tuple[str, str]]) -> list[str]:
    found = []
    names = [name for name, _ in steps]
    for name, rest in steps:
        if name == "FROM" and not re.search(r":\d+\.\d+\.\d+-[\w.-]+$", rest):
            found.append(f"FROM {rest}: not a full version")
        if name == "COPY":
            sources = [part for part in rest.split() if not part.startswith("--")][:-1]
            found += [f"COPY {source}: not there" for source in sources if not (ROOT / source).exists()]
        for path in re.findall(r"/bertkit/(\S+\.(?:sh|txt))", rest):
            if not (ROOT / path).is_file():
                found.append(f"{name}: {path} is not there")
        if name == "RUN" and "pip install" in rest and "constraints.txt" not in rest:
            found.append(f"RUN {rest}: not pinned")
    if "USER" not in names or dict(steps)["USER"] in ("root", "0"):
        found.append("no user")
    elif any("install.sh" in rest for name, rest in steps[: names.index("USER")]):
        found.append("installed as root")
    if not any(name == "RUN" and "docker/install.sh" in rest for name, rest in steps):
        found.append("not the tested installation")
    return found


@pytest.mark.parametrize("name", IMAGES)
def test_the_images(name: str) -> None:
    assert sorted(path.name for path in (ROOT / "docker").glob("Dockerfile*")) == IMAGES
    assert faults(instructions(read(name))) == []


@pytest.mark.parametrize(("old", "new", "fault"), [
    ("python:3.11.14-slim-bookworm", "python:3.11-slim", "FROM python:3.11-slim: not a full version"),
    ("USER bertkit", "USER root", "no user"),
    ("USER bertkit\n", "", "no user"),
    ("bertkit:bertkit . /bertkit", "bertkit:bertkit src /bertkit", "COPY src: not there"),
    ("docker/install.sh", "docker/instal.sh", "RUN: docker/instal.sh is not there"),
])  # fmt: skip
def test_a_faulty_image_is_found(old: str, new: str, fault: str) -> None:
    assert old in read("Dockerfile")
    assert fault in faults(instructions(read("Dockerfile").replace(old, new)))


def test_the_cuda_image_takes_the_torch_of_the_tests() -> None:
    """The line that is looked up in the constraints is there, once."""
    text = read("constraints.txt")
    assert len(re.findall(r"^torch==[\d.]+$", text, re.MULTILINE)) == 1
    assert "grep '^torch==' /bertkit/docker/constraints.txt" in read("Dockerfile.cuda")


def test_the_two_hosts_of_the_compose_file_belong_together() -> None:
    composed: dict[str, Any] = yaml.safe_load(read("compose.yaml"))
    commands = {name: service["command"].split() for name, service in composed["services"].items()}
    assert set(commands) == {"prepare", "host0", "host1"}
    build(schema_of("prepare"), compose(commands["prepare"][0], commands["prepare"][1:]))
    built = [build(schema_of("pretrain"), compose("pretrain", commands[name][1:])) for name in ("host0", "host1")]
    assert [each.launch.host_rank for each in built] == [0, 1]
    assert commands["host0"][:-1] == commands["host1"][:-1]
    assert f"output_dir={built[0].data_dir}" in commands["prepare"]


def test_the_scripts_are_bash() -> None:
    scripts = [*ROOT.glob("recipes/*/*.sh"), ROOT / "docker" / "install.sh"]
    assert len(scripts) == 17
    for script in scripts:
        done = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
