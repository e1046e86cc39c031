"""Checkpoints: durable saves by any number of processes, strict loads, deletion of old checkpoints.

    checkpoints/step-00001000/
        model.safetensors       the weights; with config.json and the tokenizer, the folder is also a model directory
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
import math
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from torch import Tensor

from bertkit.base import files, tensor_files
from bertkit.base.errors import NumericsError, StorageError, say
from bertkit.base.text_files import read_json
from bertkit.base.typed_settings import checked
from bertkit.train.processes import ALONE, Ranks

MANIFEST = "manifest.json"
WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
NAMES = r"step-[0-9]+"  # the names of checkpoint directories
_known_damaged: set[Path] = set()  # found by `newest_valid` in this process
SPACE_FACTOR = 1.05  # the space needed on disk, relative to the tensors: file headers, and blocks of the file system


@dataclass(frozen=True)
class _State:
    step: int


class FileFacts(TypedDict):
    """What the manifest says of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint."""

    step: int  # optimizer steps done
    model: dict[str, Tensor]  # the weights, named as in the model directory
    optimizer: dict[str, Tensor]  # the moments, by parameter name
    state: dict[str, object]  # plain values for state.json
    files: Mapping[str, str]  # text files that make the directory a model directory

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
        return Share(self.step, {WEIGHTS: self.model, file: moments}, {STATE: state, **self.files})


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
                if not is_finite(tensor):
                    raise NumericsError(f"step {self.step}: {name} is not finite; nothing was saved")
        for file, group in self.tensors.items():
            tensor_files.write_tensors(directory / file, group)
        for file, text in self.texts.items():
            (directory / file).write_text(text, encoding="utf-8")
        for file in (*self.tensors, *self.texts):
            files.flush(directory / file)
        return {file: _size_and_hash(directory / file) for file in (*self.tensors, *self.texts)}


def checkpoints_dir(run_dir: Path) -> Path:
    """Return the directory of a run's checkpoints."""
    return run_dir / "checkpoints"


def step_dir(run_dir: Path, step: int) -> Path:
    """Return the directory of the checkpoint of a step."""
    return checkpoints_dir(run_dir) / f"step-{step:08d}"


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
        (partial / MANIFEST).write_text(_manifest(facts), encoding="utf-8")
        files.publish_dir(partial, final)
        _known_damaged.discard(final)

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
        num_valid += path not in _known_damaged and (path / MANIFEST).is_file()


def step_of(checkpoint_dir: Path) -> int:
    """Return the step in the name of a checkpoint."""
    return int(checkpoint_dir.name[5:])


def all_checkpoints(run_dir: Path) -> list[Path]:
    """List the checkpoints of a run, newest first."""
    paths = [path for path in checkpoints_dir(run_dir).glob("step-*") if re.fullmatch(NAMES, path.name)]
    return sorted(paths, key=step_of, reverse=True)


def _size_and_hash(path: Path) -> FileFacts:
    """Return the size and SHA-256 of a file, for a manifest."""
    return {"bytes": path.stat().st_size, "sha256": files.sha256_file(path)}


def _manifest(facts: Mapping[str, FileFacts]) -> str:
    return files.to_json({"files": {file: facts[file] for file in sorted(facts)}})


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
                here[file] = _size_and_hash(checkpoint_dir / file)
            if here.get(file) != facts:
                return f"{file}: size or SHA-256 differs from the manifest"
        if (checkpoint_dir / MANIFEST).read_bytes() != _manifest(here).encode():
            return f"{MANIFEST}: not as it was written"
        step = read_state(checkpoint_dir)["step"]
        if checkpoint_dir.name.startswith("step-") and step != step_of(checkpoint_dir):
            return f"{STATE}: it is from step {step}"
    except Exception as error:
        return f"{file}: unreadable ({error})"
    return None


class Newest(NamedTuple):
    """The newest valid checkpoint of a run."""

    path: Path | None  # None if there is none
    faults: list[str]  # a line about each newer, damaged one


def delete_later(run_dir: Path, step: int) -> None:
    """Delete the checkpoints after a step, from which a run goes on in another way."""
    for path in all_checkpoints(run_dir):
        if step_of(path) > step:
            files.remove_dir(path)
            say(f"{path}: deleted; the run goes on from step {step}, the last one before the decay began")


def newest_valid(run_dir: Path, most_steps: int | None = None) -> Newest:
    """Find the newest valid checkpoint, perhaps of those after at most `most_steps` steps."""
    faults: list[str] = []
    for path in all_checkpoints(run_dir):
        if most_steps is not None and step_of(path) > most_steps:
            continue
        fault = fault_of(path)
        if fault is None:
            return Newest(path, faults)
        _known_damaged.add(path)
        faults.append(f"{path} is damaged and not used: {fault}")
    return Newest(None, faults)


def moment_files(checkpoint_dir: Path) -> list[Path]:
    """List the files with the moments of the optimizer, one for each process that wrote the checkpoint."""
    return sorted(checkpoint_dir.glob("optimizer*.safetensors"))


def read_moments(checkpoint_dir: Path) -> dict[str, Tensor]:
    """Read the moments of the optimizer, written by any number of processes."""
    return {
        name: tensor
        for path in moment_files(checkpoint_dir)
        for name, tensor in tensor_files.read_tensors(path).items()
    }


def read_state(checkpoint_dir: Path) -> dict[str, Any]:
    """Read state.json of a checkpoint."""
    content: dict[str, Any] = read_json(checkpoint_dir / STATE)
    checked(_State, content, checkpoint_dir / STATE)
    return content


def is_finite(tensor: Tensor) -> bool:
    """Return whether a tensor has no NaN and no infinity."""
    # the minimum and maximum are enough, and 25 times faster than a test of every number
    return tensor.numel() == 0 or all(math.isfinite(extreme) for extreme in tensor.aminmax())
