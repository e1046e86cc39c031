"""Durable files: nothing half-written is ever visible under its final name.

A directory is written under a partial name, every file in it flushed to the disk, and then renamed; a directory
is deleted by renaming it away first. What stands under a final name is whole, the old state or the new one; only
between the two renames that replace a directory does nothing stand there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import mmap
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit import signs
from bertkit.config import parse_json
from bertkit.errors import InputError, LockedError, StorageError
from bertkit.lines import read_whole

if TYPE_CHECKING:
    from torch import Tensor

PARTIAL = ".partial"
TRASH = ".trash"
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS)  # a disk is full, read-only or failing
UNFINISHED = ".unfinished"
BLOCK_BYTES = 1 << 20  # read at once
FLUSH_BYTES = 1 << 26  # flushed to the disk at once


def sha256_file(path: Path) -> str:
    """Hash a file's bytes, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        for block in signs.beating(iter(lambda: file.read(BLOCK_BYTES), b"")):
            digest.update(block)
    return digest.hexdigest()


def to_json(value: Any) -> str:
    """Write JSON the one way used for every file: indented, keys in their order, a newline at the end."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


@dataclass(frozen=True)
class FileFacts:
    """What a manifest says of a file."""

    bytes: int
    sha256: str


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: the file is missing, or is not JSON.
    """
    try:
        return parse_json(read_whole(path))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); restore or recreate the file") from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        InputError: the file is damaged.
    """
    import safetensors
    from safetensors.torch import load_file

    path.open("rb").close()  # the library calls a file that may not be read a missing one
    try:
        return dict(load_file(path))
    except safetensors.SafetensorError as error:
        raise InputError(f"{path}: damaged ({error}); restore it from a copy") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file whose bytes depend on nothing but the tensors.

    Raises:
        OSError: of the disk; the library raises its own error, with the number in its text.
    """
    import safetensors
    from safetensors.torch import save_file

    ordered = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    try:
        save_file(ordered, path, metadata={"format": "pt"})
    except safetensors.SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)  # the library makes files that nobody else can read


def write_durably(path: Path, content: str | bytes) -> None:
    """Replace a file's content in one step that survives a power cut."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    partial = path.with_name(path.name + PARTIAL)
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    flush(path.parent)


@contextlib.contextmanager
def writing(path: Path, *, is_binary: bool = False) -> Iterator[Any]:
    """Give a file to write bit by bit, text in UTF-8 unless `is_binary`; it stands under its name at the end; after an error, what there is, as `.partial`."""
    partial = path.with_name(path.name + PARTIAL)
    with partial.open("wb") if is_binary else partial.open("w", encoding="utf-8", newline="\n") as file:
        try:
            yield file
        except BaseException:
            if file.tell() == 0:
                partial.unlink()
            raise
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    flush(path.parent)


def flush(path: Path) -> None:
    """Flush a file's bytes, or a directory's own entries (its file names), to the disk.

    A large file goes part by part, with a sign of life for each: a slow disk takes minutes for all of it.
    """
    signs.beat()
    if path.is_file() and path.stat().st_size > FLUSH_BYTES:
        _flush_parts(path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_parts(path: Path) -> None:
    with path.open("rb+") as file, contextlib.ExitStack() as stack:
        try:
            pages = stack.enter_context(mmap.mmap(file.fileno(), 0))
        except OSError:  # a file system without shared mappings
            return
        for start in range(0, len(pages), FLUSH_BYTES):
            pages.flush(start, min(FLUSH_BYTES, len(pages) - start))
            signs.beat()


def publish_dir(partial: Path, final: Path) -> None:
    """Flush every file below `partial` to the disk, then rename it to `final`, replacing what stood there."""
    for path in sorted(partial.rglob("*")):
        flush(path)
    flush(partial)
    trash = _rename_away(final) if final.exists() else None
    partial.rename(final)
    flush(final.parent)
    if trash is not None:
        shutil.rmtree(trash, ignore_errors=True)  # what was published stands; `remove_leftovers` tries again


def remove_dir(path: Path) -> None:
    """Delete a directory so that it is never seen half-deleted: rename it away, then delete."""
    trash = _rename_away(path)
    flush(path.parent)
    shutil.rmtree(trash)


def _rename_away(path: Path) -> Path:
    trash = path.with_name(f".{path.name}{TRASH}")
    shutil.rmtree(trash, ignore_errors=True)
    path.rename(trash)
    return trash


def remove_leftovers(directory: Path) -> None:
    """Delete what a crash left behind in `directory`: partial and trashed entries."""
    for path in [*directory.glob(f"*{PARTIAL}"), *directory.glob(f".*{TRASH}")]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextlib.contextmanager
def building_dir(final: Path, made_from: str | None = None) -> Iterator[Path]:
    """Give a partial directory to fill; published as `final` at the end, deleted on any error.

    Args:
        final: the directory to make.
        made_from: names everything that the result depends on; then work that can be continued goes to the folder
            `UNFINISHED` in the partial directory. It is there again for the same `made_from` after the build was
            killed, or failed by no fault of its input, and is no part of the result.

    Raises:
        LockedError: another live process is building the same directory.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = final.with_name(final.name + PARTIAL)
    partial.mkdir(exist_ok=True)
    with locked(partial):
        unfinished = partial / UNFINISHED
        key = unfinished / "made_from"
        try:
            continued = made_from is not None and key.is_file() and key.read_text() == made_from
            for leftover in partial.iterdir():
                if leftover.name != ".lock" and not (continued and leftover == unfinished):
                    shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
            if made_from is not None and not continued:
                unfinished.mkdir()
                write_durably(key, made_from)
            yield partial
            shutil.rmtree(unfinished, ignore_errors=True)
            publish_dir(partial, final)  # the lock goes along, so that nobody else builds meanwhile
            (final / ".lock").unlink()
        except BaseException as error:
            if made_from is None or isinstance(error, InputError):
                shutil.rmtree(partial, ignore_errors=True)
            raise


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold `directory` for this process; the lock ends with the process, however it ends.

    Raises:
        LockedError: a live process holds it; the message names the host, the process and since when.
    """
    with (directory / ".lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise LockedError(
                f"{directory} is in use by {holder}; wait for it, stop it, or choose another output_dir"
            ) from None
        file.truncate(0)
        started_at = time.strftime("%Y-%m-%d %H:%M:%S")
        file.write(f"process {os.getpid()} on {socket.gethostname()}, started at {started_at}")
        file.flush()
        yield


def require_space(directory: Path, num_bytes: int) -> None:
    """Refuse before writing what cannot fit.

    Raises:
        StorageError: fewer than `num_bytes` bytes are free on the disk of `directory`.
    """
    if shutil.disk_usage(directory).free < num_bytes:
        raise StorageError(no_space(directory, num_bytes))


def no_space(directory: Path, num_bytes: int) -> str:
    """Say how much room `num_bytes` bytes lack on the disk of `directory`."""
    free = shutil.disk_usage(directory).free
    return f"no space left on {directory}: need {num_bytes / 1e6:.1f} MB, have {free / 1e6:.1f} MB; free some space"
