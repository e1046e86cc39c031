"""Checkpoints: durable saves by any number of processes, strict loads, rotation.

    checkpoints/step-00001000/
        model.safetensors       the weights; with config.json and the tokenizer, a model directory by itself
        optimizer.safetensors   the optimizer's moments; N processes write optimizer-00001-of-0000N.safetensors, ...
        state.json              the step, and the run's automatic choices
        manifest.json           size and SHA-256 of every file, and nothing else; written last

A checkpoint is written in four steps, and a process may be killed, or the power cut, between any two of them:

1. The first process deletes leftovers of a crash, checks the free space, and makes `step-00001000.partial`.
2. Every process writes its part there, flushes it to the disk and hashes it.
3. The first process writes the manifest, flushes it and the directory, renames the directory, and flushes its parent.
4. Only then are older checkpoints deleted, each renamed away first.

A directory with the final name is therefore complete. If a process fails in step 2, the save fails on all of them, and
older checkpoints stay. A checkpoint loads into any number of processes. No generator state is needed, since order, masks
and dropout are functions of the step.
"""

from __future__ import annotations

import contextlib
import errno
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from bertkit.base import files
from bertkit.base.errors import NumericsError, StorageError, say
from bertkit.base.text_files import read_json
from bertkit.base.typed_settings import checked
from bertkit.train.processes import ALONE, Ranks

MANIFEST = "manifest.json"
WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
NAMES = r"step-\d+"  # of the checkpoints in their folder
_known_damaged: set[Path] = set()  # by `newest_valid` in this process, which resumed from an older one
SPACE_FACTOR = 1.05  # of the bytes to write, for the headers of files and the blocks of the file system


@dataclass(frozen=True)
class _State:
    step: int


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint."""

    step: int  # optimizer steps done
    model: dict[str, Tensor]  # the weights, by the names of the model directory's format
    optimizer: dict[str, Tensor]  # the moments, by parameter
    state: dict[str, Any]  # plain values
    files: Mapping[str, str]  # text files that make the directory a model directory

    def part(self, rank: int, size: int) -> Part:
        """Give the part that one process writes: a share of the moments; the first one also the weights and the texts."""
        total, before, moments = sum(tensor.nbytes for tensor in self.optimizer.values()), 0, {}
        for name in sorted(self.optimizer):
            tensor = self.optimizer[name]
            # the middle of a tensor lies in the byte range of its process
            if (2 * before + tensor.nbytes) * size // (2 * total) == rank:
                moments[name] = tensor
            before += tensor.nbytes
        file = OPTIMIZER if size == 1 else f"optimizer-{rank + 1:05d}-of-{size:05d}.safetensors"
        if rank > 0:
            return Part(self.step, {file: moments}, {})
        state = files.to_json({"step": self.step, **self.state})
        return Part(self.step, {WEIGHTS: self.model, file: moments}, {STATE: state, **self.files})


@dataclass(frozen=True)
class Part:
    """The files of a checkpoint that one process writes."""

    step: int  # optimizer steps done
    tensors: dict[str, dict[str, Tensor]]  # safetensors files, by name
    texts: dict[str, str]  # other files, by name

    @property
    def num_bytes(self) -> int:
        """The size of all files, without headers."""
        tensors = sum(tensor.nbytes for group in self.tensors.values() for tensor in group.values())
        return tensors + sum(len(text.encode()) for text in self.texts.values())

    def copy(self) -> Part:
        """Copy the tensors to the CPU, so that training can go on while they are written."""
        copies = {
            file: {name: tensor.detach().to("cpu", copy=True) for name, tensor in group.items()}
            for file, group in self.tensors.items()
        }
        return Part(self.step, copies, self.texts)

    def write(self, directory: Path) -> dict[str, dict[str, Any]]:
        """Write the files and flush them to the disk; give the size and the SHA-256 of each.

        Raises:
            NumericsError: a tensor is not finite.
        """
        for group in self.tensors.values():
            for name, tensor in group.items():
                if not is_finite(tensor):
                    raise NumericsError(f"step {self.step}: {name} is not finite; nothing was saved")
        for file, group in self.tensors.items():
            files.write_tensors(directory / file, group)
        for file, text in self.texts.items():
            (directory / file).write_text(text, encoding="utf-8")
        for file in (*self.tensors, *self.texts):
            files.flush(directory / file)
        return {file: facts_of(directory / file) for file in (*self.tensors, *self.texts)}


def checkpoints_dir(run_dir: Path) -> Path:
    """Where a run keeps its checkpoints."""
    return run_dir / "checkpoints"


def step_dir(run_dir: Path, step: int) -> Path:
    """Where a run keeps the checkpoint of a step."""
    return checkpoints_dir(run_dir) / f"step-{step:08d}"


def save(
    run_dir: Path,
    part: Part,
    ranks: Ranks = ALONE,
    *,
    keep_last: int,
    best: int | None = None,
    last_good: int | None = None,
) -> Path:
    """Write a checkpoint; once it is safe on the disk, delete older ones (`rotate`). Every process calls this.

    `keep_last` and `best` are as for `rotate`; `last_good`, for an error message, is the step of the newest valid checkpoint.

    Raises:
        StorageError: the disk is full or failed; nothing was deleted.
        NumericsError: a tensor is not finite; nothing was deleted.
    """
    directory, final = checkpoints_dir(run_dir), step_dir(run_dir, part.step)
    partial = final.with_name(final.name + files.PARTIAL)
    need = int(SPACE_FACTOR * sum(ranks.on_every(lambda: part.num_bytes))) + (1 << 20)
    kept = "no checkpoint yet" if last_good is None else f"last good step {last_good}"

    def prepare() -> None:
        directory.mkdir(exist_ok=True)
        with contextlib.suppress(OSError):  # a leftover does no harm, or the next lines raise
            files.remove_leftovers(directory, NAMES)
        files.require_space(directory, need)
        partial.mkdir()

    def commit() -> None:
        (partial / MANIFEST).write_text(_manifest(facts), encoding="utf-8")
        files.publish_dir(partial, final)
        _known_damaged.discard(final)

    try:
        ranks.on_first(prepare)
        facts = {
            file: fact for written in ranks.on_every(lambda: part.write(partial)) for file, fact in written.items()
        }
        ranks.on_first(commit)
    except Exception as error:
        if ranks.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, StorageError):  # raised by the check before writing
            reason = str(error)
        elif isinstance(error, OSError) and error.errno == errno.ENOSPC:
            reason = files.no_space(directory, need)
        elif isinstance(error, OSError) and error.errno in files.DISK_ERRORS:
            reason = f"{error.filename or directory}: {error.strerror} (need {need / 1e6:.1f} MB)"
        else:
            raise
        raise StorageError(f"step {part.step} is not saved: {reason}; {kept}") from None
    ranks.on_first(lambda: rotate(run_dir, part.step, keep_last, best))
    return final


def rotate(run_dir: Path, step: int, keep_last: int, best: int | None) -> None:
    """Keep the newest `keep_last` valid checkpoints up to `step`, and the one of step `best`; delete older ones.

    One that cannot be deleted is named in a warning, and tried again at the next save. Valid means: with a manifest, and not
    known as damaged, since hashing all of them would cost more than the save. Later steps are neither counted nor deleted.
    """
    num_valid = 0
    for path in all_checkpoints(run_dir):
        if step_of(path) > step:
            continue
        if num_valid >= keep_last and step_of(path) != best:
            try:
                files.remove_dir(path)
            except OSError as error:
                say(f"warning: {path} could not be deleted ({error.strerror}); the next save tries again")
                return
        num_valid += path not in _known_damaged and (path / MANIFEST).is_file()


def step_of(checkpoint_dir: Path) -> int:
    """Give the step in the name of a checkpoint."""
    return int(checkpoint_dir.name[5:])


def all_checkpoints(run_dir: Path) -> list[Path]:
    """List the checkpoints of a run, newest first."""
    paths = [path for path in checkpoints_dir(run_dir).glob("step-*") if path.name[5:].isdigit()]
    return sorted(paths, key=step_of, reverse=True)


def facts_of(path: Path) -> dict[str, Any]:
    """Give the size and the hash of a file, for a manifest."""
    return {"bytes": path.stat().st_size, "sha256": files.sha256_file(path)}


def _manifest(facts: Mapping[str, dict[str, Any]]) -> str:
    return files.to_json({"files": {file: facts[file] for file in sorted(facts)}})


def fault_of(checkpoint_dir: Path) -> str | None:
    """Describe the damage of a checkpoint on disk; None when every byte is as it was written.

    The manifest follows from the other files, so its own damage is detected too.
    """
    file = MANIFEST
    try:
        listed = read_json(checkpoint_dir / MANIFEST)["files"]
        present = {path.name for path in checkpoint_dir.iterdir()} - {MANIFEST}
        if present != set(listed):
            return f"{', '.join(sorted(present ^ set(listed)))}: missing or unexpected"
        here = {}
        for file, facts in listed.items():
            if (checkpoint_dir / file).stat().st_size == facts["bytes"]:  # else there is no need to read it
                here[file] = facts_of(checkpoint_dir / file)
            if here.get(file) != facts:
                return f"{file}: size or SHA-256 differs from the manifest"
        if (checkpoint_dir / MANIFEST).read_bytes() != _manifest(here).encode():
            return f"{MANIFEST}: not as it was written"
        step = read_state(checkpoint_dir)["step"]
        if checkpoint_dir.name.startswith("step-") and step != step_of(checkpoint_dir):
            return f"{STATE}: of step {step}"
    except Exception as error:
        return f"{file}: unreadable ({error})"
    return None


def newest_valid(run_dir: Path) -> tuple[Path | None, list[str]]:
    """Find the newest valid checkpoint; give it with a line about each newer one, which is damaged."""
    faults: list[str] = []
    for path in all_checkpoints(run_dir):
        fault = fault_of(path)
        if fault is None:
            return path, faults
        _known_damaged.add(path)
        faults.append(f"{path} is damaged and left aside: {fault}")
    return None, faults


def moment_files(checkpoint_dir: Path) -> list[Path]:
    """Find the files with the optimizer's moments, one for each process that wrote the checkpoint."""
    return sorted(checkpoint_dir.glob("optimizer*.safetensors"))


def read_moments(checkpoint_dir: Path) -> dict[str, Tensor]:
    """Read the optimizer's moments, written by any number of processes."""
    return {name: tensor for path in moment_files(checkpoint_dir) for name, tensor in files.read_tensors(path).items()}


def read_state(checkpoint_dir: Path) -> dict[str, Any]:
    """Read the plain values of a checkpoint, with its step."""
    content: dict[str, Any] = read_json(checkpoint_dir / STATE)
    checked(_State, content, checkpoint_dir / STATE)
    return content


def is_finite(tensor: Tensor) -> bool:
    """Tell whether a tensor has neither a NaN nor an infinity, by its extremes, 25 times faster than by all numbers."""
    return tensor.numel() == 0 or all(math.isfinite(extreme) for extreme in tensor.aminmax())
