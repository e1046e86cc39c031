"""Every command of the README and the recipes is run; training is shortened."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FEWER_STEPS = ["steps=12", "schedule.warmup_steps=2", "evaluation.every_steps=12", "checkpoint.every_steps=12"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_the_tour(tmp_path: Path) -> None:
    commands = [shlex.split(line) for block in blocks("bash") for line in block.splitlines()]
    tour = [command for command in commands if command[0] == "bertkit"]
    assert [command[1] for command in tour] == ["prepare", "pretrain", "evaluate", "export", "verify"]
    for _, stage, *arguments in tour:
        more = FEWER_STEPS if stage == "pretrain" else []
        command = [sys.executable, "-m", "bertkit", stage, *arguments, *more]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    (snippet,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", snippet], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("torch.Size([2, ")
    for name in ("runs/tiny", "runs/tiny-mlm", "runs/tiny-parity.json"):
        assert (tmp_path / name).exists()


def test_the_two_commands_exist_and_nothing_else_is_promised() -> None:
    commands = [line for block in blocks("bash") for line in block.splitlines()]
    assert [line for line in commands if not line.startswith("bertkit")] == [
        "recipes/quickstart/run.sh",
        "tests/run.sh",
    ]
    assert all(os.access(ROOT / name, os.X_OK) for name in ("recipes/quickstart/run.sh", "tests/run.sh", ".ci/run"))


@pytest.mark.parametrize("recipe", sorted(path.name for path in (ROOT / "recipes").iterdir()))
def test_recipes(recipe: str, tmp_path: Path) -> None:
    assert (ROOT / "recipes" / recipe / "README.md").is_file()
    if not any((ROOT / ".venv").glob(".bertkit-installed*")):
        pytest.skip("recipes install into .venv, which is not there; run tests/run.sh")
    environment = {**os.environ, "RUN_DIR": str(tmp_path / "run")}
    script = ROOT / "recipes" / recipe / "run.sh"
    for _ in range(2):  # again: done already
        done = subprocess.run([script, *FEWER_STEPS], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert done.stdout.count("done already") == 3
    assert (tmp_path / "run" / "tiny-mlm" / "parity.json").is_file()
