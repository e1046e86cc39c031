"""The checkpoints of a run on disk: where they are, the newest valid one, and damage. Their tensors are read in checkpoint.py."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from bertkit.base import files
from bertkit.base.text_files import read_json
from bertkit.base.typed_settings import checked

MANIFEST = "manifest.json"
STATE = "state.json"
NAMES = r"step-[0-9]+"  # the names of checkpoint directories
known_damaged: set[Path] = set()  # found by `newest_valid` in this process


@dataclass(frozen=True)
class _State:
    step: int


class FileFacts(TypedDict):
    """What the manifest says of a file."""

    bytes: int
    sha256: str


def checkpoints_dir(run_dir: Path) -> Path:
    """Return the directory of a run's checkpoints."""
    return run_dir / "checkpoints"


def step_dir(run_dir: Path, step: int) -> Path:
    """Return the directory of the checkpoint of a step."""
    return checkpoints_dir(run_dir) / f"step-{step:08d}"


def step_of(checkpoint_dir: Path) -> int:
    """Return the step in the name of a checkpoint."""
    return int(checkpoint_dir.name[5:])


def all_checkpoints(run_dir: Path) -> list[Path]:
    """List the checkpoints of a run, newest first."""
    paths = [path for path in checkpoints_dir(run_dir).glob("step-*") if re.fullmatch(NAMES, path.name)]
    return sorted(paths, key=step_of, reverse=True)


def moment_files(checkpoint_dir: Path) -> list[Path]:
    """List the files with the moments of the optimizer, one for each process that wrote the checkpoint."""
    return sorted(checkpoint_dir.glob("optimizer*.safetensors"))


class Newest(NamedTuple):
    """The newest valid checkpoint of a run."""

    path: Path | None  # None if there is none
    faults: list[str]  # a line about each newer, damaged one


def newest_valid(run_dir: Path, most_steps: int | None = None) -> Newest:
    """Find the newest valid checkpoint, perhaps of those after at most `most_steps` steps."""
    faults: list[str] = []
    for path in all_checkpoints(run_dir):
        if most_steps is not None and step_of(path) > most_steps:
            continue
        fault = fault_of(path)
        if fault is None:
            return Newest(path, faults)
        known_damaged.add(path)
        faults.append(f"{path} is damaged and not used: {fault}")
    return Newest(None, faults)


def fault_of(checkpoint_dir: Path) -> str | None:
    """Describe the damage of a checkpoint on disk; None if every byte is as it was written.

    The manifest can be computed from the other files, so damage of the manifest itself is detected too.
    """
    file = MANIFEST
    try:
        listed = read_json(checkpoint_dir / MANIFEST)["files"]
        present = {path.name for path in checkpoint_dir.iterdir()} - {MANIFEST}
        if present != set(listed):
            return f"{', '.join(sorted(present ^ set(listed)))}: missing or unexpected"
        here = {}
        for file, facts in listed.items():
            if (checkpoint_dir / file).stat().st_size == facts["bytes"]:  # otherwise there is no need to hash the file
                here[file] = size_and_hash(checkpoint_dir / file)
            if here.get(file) != facts:
                return f"{file}: size or SHA-256 differs from the manifest"
        if (checkpoint_dir / MANIFEST).read_bytes() != manifest_of(here).encode():
            return f"{MANIFEST}: not as it was written"
        step = read_state(checkpoint_dir)["step"]
        if checkpoint_dir.name.startswith("step-") and step != step_of(checkpoint_dir):
            return f"{STATE}: it is from step {step}"
    except Exception as error:
        return f"{file}: unreadable ({error})"
    return None


def size_and_hash(path: Path) -> FileFacts:
    """Return the size and SHA-256 of a file, for a manifest."""
    return {"bytes": path.stat().st_size, "sha256": files.sha256_file(path)}


def manifest_of(facts: Mapping[str, FileFacts]) -> str:
    """Return the text of a manifest."""
    return files.to_json({"files": {file: facts[file] for file in sorted(facts)}})


def read_state(checkpoint_dir: Path) -> dict[str, Any]:
    """Read state.json of a checkpoint."""
    content: dict[str, Any] = read_json(checkpoint_dir / STATE)
    checked(_State, content, checkpoint_dir / STATE)
    return content
