"""Checkpoints: durable saves by any number of processes, strict loads, deletion of old checkpoints.

    checkpoints/step-00001000/
        model.safetensors       the weights; with config.json and the tokenizer, the folder is also a model directory
        objective.safetensors   what an objective trains beside the model, if anything
        optimizer.safetensors   the moments of the optimizer; N processes write optimizer-00001-of-0000N.safetensors, ...
        state.json              the step, and the automatic choices of the run
        manifest.json           size and SHA-256 of every other file; written last

A checkpoint is written in four steps; a kill or a power cut at any moment does no harm:

1. Process 0 deletes partial directories left by a crash, checks the free space, and makes `step-00001000.partial`.
2. Every process writes its share there, flushes it to disk and hashes it.
3. Process 0 writes the manifest, flushes it and the directory, renames the directory, and flushes its parent.
4. Only then does process 0 delete older checkpoints; it renames each one first.

A directory with the final name is therefore complete. If a process fails in step 2, the save fails on all of them, and
older checkpoints stay. A checkpoint can be loaded by any number of processes. It has no random generator state, since
example order, masks and dropout are functions of the step.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from bertkit.base import files, tensor_files
from bertkit.base.errors import NumericsError, StorageError, say
from bertkit.train.checkpoint_files import (
    MANIFEST,
    NAMES,
    STATE,
    FileFacts,
    all_checkpoints,
    checkpoints_dir,
    known_damaged,
    manifest_of,
    moment_files,
    size_and_hash,
    step_dir,
    step_of,
)
from bertkit.train.processes import ALONE, Ranks

WEIGHTS = "model.safetensors"
BESIDE = "objective.safetensors"
OPTIMIZER = "optimizer.safetensors"
SPACE_FACTOR = 1.05  # the space needed on disk, relative to the tensors: file headers, and blocks of the file system


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint."""

    step: int  # optimizer steps done
    model: dict[str, Tensor]  # the weights, named as in the model directory
    optimizer: dict[str, Tensor]  # the moments, by parameter name
    state: dict[str, object]  # plain values for state.json
    files: Mapping[str, str]  # text files that make the directory a model directory
    beside: dict[str, Tensor] = field(default_factory=dict)  # what is trained beside the model

    def share(self, rank: int, size: int) -> Share:
        """Return what one process writes: a share of the moments; process 0 also writes weights and text files."""
        total, before, moments = sum(tensor.nbytes for tensor in self.optimizer.values()), 0, {}
        for name in sorted(self.optimizer):
            tensor = self.optimizer[name]
            # each process has a range of the bytes, and takes the tensors whose middle byte lies in it
            if (2 * before + tensor.nbytes) * size // (2 * total) == rank:
                moments[name] = tensor
            before += tensor.nbytes
        file = OPTIMIZER if size == 1 else f"optimizer-{rank + 1:05d}-of-{size:05d}.safetensors"
        if rank > 0:
            return Share(self.step, {file: moments}, {})
        state = files.to_json({"step": self.step, **self.state})
        beside = {BESIDE: self.beside} if self.beside else {}
        return Share(self.step, {WEIGHTS: self.model, **beside, file: moments}, {STATE: state, **self.files})


@dataclass(frozen=True)
class Share:
    """The files of a checkpoint that one process writes."""

    step: int  # optimizer steps done
    tensors: dict[str, dict[str, Tensor]]  # safetensors files, by name
    texts: dict[str, str]  # other files, by name

    @property
    def num_bytes(self) -> int:
        """The size of all files, without safetensors headers."""
        tensors = sum(tensor.nbytes for group in self.tensors.values() for tensor in group.values())
        return tensors + sum(len(text.encode()) for text in self.texts.values())

    def copy(self) -> Share:
        """Copy the tensors to the CPU, so that training can continue while they are written."""
        copies = {
            file: {name: tensor.detach().to("cpu", copy=True) for name, tensor in group.items()}
            for file, group in self.tensors.items()
        }
        return Share(self.step, copies, self.texts)

    def write(self, directory: Path) -> dict[str, FileFacts]:
        """Write the files and flush them to disk; return the size and SHA-256 of each file.

        Raises:
            NumericsError: a tensor is not finite.
        """
        for group in self.tensors.values():
            for name, tensor in group.items():
                if not tensor_files.is_finite(tensor):
                    raise NumericsError(f"step {self.step}: {name} is not finite; nothing was saved")
        for file, group in self.tensors.items():
            tensor_files.write_tensors(directory / file, group)
        for file, text in self.texts.items():
            (directory / file).write_text(text, encoding="utf-8")
        for file in (*self.tensors, *self.texts):
            files.flush(directory / file)
        return {file: size_and_hash(directory / file) for file in (*self.tensors, *self.texts)}


def save(
    run_dir: Path,
    share: Share,
    ranks: Ranks = ALONE,
    *,
    keep_last: int,
    kept: Collection[int] = (),
    last_good: int | None = None,
) -> Path:
    """Write a checkpoint; when it is safely on disk, delete older ones with `delete_old_checkpoints`. Every process calls this.

    `last_good` is the step of the newest valid checkpoint, for an error message. Raises StorageError if the disk failed,
    NumericsError if a tensor is not finite; then nothing was deleted.
    """
    directory, final = checkpoints_dir(run_dir), step_dir(run_dir, share.step)
    partial = final.with_name(final.name + files.PARTIAL)
    need = int(SPACE_FACTOR * sum(ranks.on_every(lambda: share.num_bytes))) + (1 << 20)
    last_save = "no checkpoint yet" if last_good is None else f"last good step {last_good}"

    def prepare() -> None:
        directory.mkdir(exist_ok=True)
        with contextlib.suppress(OSError):  # an old partial directory does no harm
            files.remove_leftovers(directory, NAMES)
        files.require_space(directory, need)
        partial.mkdir()

    def commit() -> None:
        (partial / MANIFEST).write_text(manifest_of(facts), encoding="utf-8")
        files.publish_dir(partial, final)
        known_damaged.discard(final)

    try:
        ranks.on_first(prepare)
        facts = {
            file: fact for written in ranks.on_every(lambda: share.write(partial)) for file, fact in written.items()
        }
        ranks.on_first(commit)
    except Exception as error:
        if ranks.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, StorageError):  # from `require_space`
            reason = str(error)
        elif isinstance(error, OSError) and error.errno == errno.ENOSPC:
            reason = files.no_space(directory, need)
        elif isinstance(error, OSError) and error.errno in files.DISK_ERRORS:
            reason = f"{error.filename or directory}: {error.strerror} (need {need / 1e6:.1f} MB)"
        else:
            raise
        raise StorageError(f"step {share.step} is not saved: {reason}; {last_save}") from None
    ranks.on_first(lambda: delete_old_checkpoints(run_dir, share.step, keep_last, kept))
    return final


def delete_old_checkpoints(run_dir: Path, step: int, keep_last: int, kept: Collection[int]) -> None:
    """Delete checkpoints up to `step`, except the newest `keep_last` valid ones and those of the steps in `kept`.

    A checkpoint counts as valid here if it has a manifest and is not known to be damaged, since hashing all of them would take
    longer than the save. If one cannot be deleted, a warning names it, and the next save tries again.
    """
    num_valid = 0
    for path in all_checkpoints(run_dir):
        if step_of(path) > step:
            continue
        if num_valid >= keep_last and step_of(path) not in kept:
            try:
                files.remove_dir(path)
            except OSError as error:
                say(f"warning: {path} could not be deleted ({error.strerror}); the next save tries again")
                return
        num_valid += path not in known_damaged and (path / MANIFEST).is_file()


def delete_later(run_dir: Path, step: int) -> None:
    """Delete the checkpoints after a step, from which a run goes on in another way."""
    for path in all_checkpoints(run_dir):
        if step_of(path) > step:
            files.remove_dir(path)
            say(f"{path}: deleted; the run goes on from step {step}, the last one before the decay began")


def read_moments(checkpoint_dir: Path) -> dict[str, Tensor]:
    """Read the moments of the optimizer, written by any number of processes."""
    return {
        name: tensor
        for path in moment_files(checkpoint_dir)
        for name, tensor in tensor_files.read_tensors(path).items()
    }
