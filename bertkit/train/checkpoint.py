"""Checkpoints: durable saves, strict loads, rotation.

    checkpoints/step-00001000/
        model.safetensors       the weights; with config.json and the tokenizer, a model directory by itself
        optimizer.safetensors   the optimizer's moments
        state.json              the step, and what the run chose for itself
        manifest.json           size and SHA-256 of every file; written last

A checkpoint is written under a partial name, flushed to the disk, and renamed, so a directory with the final name is
whole. Order, masks and dropout are functions of the step: no generator state is needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertkit.errors import InputError
from bertkit.files import publish_dir, read_json, remove_dir, remove_leftovers, require_space, sha256_file, to_json

MANIFEST = "manifest.json"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a checkpoint holds.

    Attributes:
        step: optimizer steps done.
        model: the weights, by the names of the model directory's format.
        optimizer: the moments, by parameter.
        state: plain values: what the run chose for itself.
        files: small text files that make the directory loadable by itself.
    """

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]
    files: Mapping[str, str]


def checkpoints_dir(run_dir: Path) -> Path:
    """Where a run keeps its checkpoints."""
    return run_dir / "checkpoints"


def save(run_dir: Path, checkpoint: Checkpoint, keep_last: int) -> Path:
    """Write a checkpoint and, once it is safe on the disk, delete all but the newest `keep_last`.

    Damaged checkpoints of later steps, left aside on resume, are neither counted nor deleted.

    Raises:
        StorageError: the disk has no room for it; nothing was written or deleted.
    """
    directory = checkpoints_dir(run_dir)
    directory.mkdir(exist_ok=True)
    tensors = [*checkpoint.model.values(), *checkpoint.optimizer.values()]
    require_space(directory, int(1.05 * sum(tensor.nbytes for tensor in tensors)) + (4 << 20))
    final = directory / f"step-{checkpoint.step:08d}"
    remove_leftovers(directory)
    partial = directory / f"{final.name}.partial"
    partial.mkdir()
    write_tensors(partial / "model.safetensors", checkpoint.model)
    write_tensors(partial / OPTIMIZER, checkpoint.optimizer)
    (partial / STATE).write_text(to_json({"step": checkpoint.step, **checkpoint.state}), encoding="utf-8")
    for name, content in checkpoint.files.items():
        (partial / name).write_text(content, encoding="utf-8")
    hashes = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256_file(path)} for path in sorted(partial.iterdir())
    }
    (partial / MANIFEST).write_text(to_json({"files": hashes}), encoding="utf-8")
    publish_dir(partial, final)
    saved = all_checkpoints(run_dir)
    for old in saved[saved.index(final) + keep_last :]:
        remove_dir(old)
    return final


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file that depends on nothing but the tensors."""
    ordered = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    save_file(ordered, path, metadata={"format": "pt"})
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)  # the library makes files that nobody else can read


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        InputError: the file is damaged.
    """
    path.open("rb").close()  # the library calls a file that may not be read a missing one
    try:
        return dict(load_file(path))
    except safetensors.SafetensorError as error:
        raise InputError(f"{path}: damaged ({error}); restore it from a copy") from None


def all_checkpoints(run_dir: Path) -> list[Path]:
    """List the checkpoints of a run, newest first."""
    found = [path for path in checkpoints_dir(run_dir).glob("step-*") if path.name[5:].isdigit()]
    return sorted(found, key=lambda path: int(path.name[5:]), reverse=True)


def fault_of(checkpoint_dir: Path) -> str | None:
    """Say what is wrong with a checkpoint on disk; None when every byte is as it was written."""
    try:
        listed = read_json(checkpoint_dir / MANIFEST)["files"]
        present = {path.name for path in checkpoint_dir.iterdir()} - {MANIFEST}
        if present != set(listed):
            return f"files {', '.join(sorted(present ^ set(listed)))} missing or unexpected"
        for name, facts in listed.items():
            path = checkpoint_dir / name
            if path.stat().st_size != facts["bytes"] or sha256_file(path) != facts["sha256"]:
                return f"{name}: SHA-256 differs from the manifest"
    except Exception as error:
        return f"manifest unreadable ({error})"
    return None


def newest_valid(run_dir: Path) -> tuple[Path | None, list[str]]:
    """Find the newest checkpoint that is whole; give it with a line on each newer one that is not."""
    faults: list[str] = []
    for path in all_checkpoints(run_dir):
        fault = fault_of(path)
        if fault is None:
            return path, faults
        faults.append(f"{path} is damaged and left aside: {fault}")
    return None, faults


def load_training_state(checkpoint_dir: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the optimizer's moments and the plain state of a checkpoint."""
    return read_tensors(checkpoint_dir / OPTIMIZER), read_json(checkpoint_dir / STATE)


def all_finite(tensors: Mapping[str, Tensor]) -> bool:
    """Whether no tensor holds a NaN or an infinity."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
