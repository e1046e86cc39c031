"""Durable files: nothing half-written appears under its final name, and no other program's files are touched.

A directory is written under a partial name, flushed to disk, and renamed; it is deleted by renaming it first. So a final name
always holds a whole old or a whole new state, except between the two renames that replace a directory, when it holds nothing.

A directory `out.partial` that bertkit did not make is refused. Links are never followed for deleting or overwriting.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.base.errors import InputError, LockedError, StorageError, in_json

if TYPE_CHECKING:
    from torch import Tensor

PARTIAL = ".partial"
TRASH = ".trash"
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS)
UNFINISHED = ".unfinished"
BLOCK_BYTES = 1 << 20
LOCK = ".bertkit.lock"


def sha256_file(path: Path) -> str:
    """Hash a file's bytes, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        for block in iter(lambda: file.read(BLOCK_BYTES), b""):
            digest.update(block)
    return digest.hexdigest()


def to_json(value: Any) -> str:
    """Write JSON as every file has it: indented, keys in order, a newline at the end."""
    return in_json(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        InputError: the file is damaged.
    """
    import safetensors
    from safetensors.torch import load_file

    path.open("rb").close()  # the library reports an unreadable file as missing
    try:
        return dict(load_file(path))
    except safetensors.SafetensorError as error:
        raise InputError(f"{path}: damaged ({error}); restore it from a copy") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file; its bytes depend on the tensors only.

    Raises:
        OSError: the disk failed; the library puts the error number only into its message.
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
    path.chmod(0o666 & ~umask)  # the library makes files that only their owner can read


def write_durably(path: Path, content: str | bytes) -> None:
    """Replace a file's content in one step that survives a power cut."""
    with writing(path, is_binary=True) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextlib.contextmanager
def writing(path: Path, *, is_binary: bool = False) -> Iterator[Any]:
    """Open a file to write in parts, UTF-8 text unless `is_binary`; at the end it gets its final name.

    Meanwhile it has its partial name (`file.name`), and replaces a file there. After an error the part written so far is kept,
    but after a disk error it is deleted to free space. A link of either name is replaced, not its target.
    """
    partial, is_kept = partial_of(path), False
    partial.unlink(missing_ok=True)
    file: Any = partial.open("xb") if is_binary else partial.open("x", encoding="utf-8", newline="\n")
    try:
        with file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
            except BaseException as error:
                is_kept = not is_of_disk(error) and file.tell() > 0
                raise
            if not os.path.samestat(os.fstat(file.fileno()), partial.lstat()):
                is_kept = True
                raise InputError(f"{path}: another command writes the same file; choose another output")
        partial.replace(path)
    except BaseException as error:
        if isinstance(error, OSError) and is_of_disk(error):
            error.filename = error.filename or str(path)
        if not is_kept:
            partial.unlink()
        raise
    flush(path.parent)


def partial_of(path: Path) -> Path:
    """Give the name of an unfinished file or directory."""
    return path.with_name(path.name + PARTIAL)


def is_of_disk(error: BaseException) -> bool:
    """Whether the error means that a disk is full, read-only or failing."""
    return isinstance(error, OSError) and error.errno in DISK_ERRORS


def flush(path: Path) -> None:
    """Flush a file's bytes, or a directory's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish_dir(partial: Path, final: Path) -> None:
    """Flush every file in `partial` to disk, then rename it to `final`, replacing the old one."""
    for path in sorted(partial.rglob("*")):
        flush(path)
    flush(partial)
    trash = _rename_away(final) if os.path.lexists(final) else None
    partial.rename(final)
    flush(final.parent)
    if trash is not None:
        with contextlib.suppress(OSError):  # published all the same; `remove_leftovers` tries again
            remove(trash)


def remove_dir(path: Path) -> None:
    """Delete a directory without leaving it half deleted: rename it, then delete."""
    trash = _rename_away(path)
    flush(path.parent)
    remove(trash)


def remove(path: Path) -> None:
    """Delete a file, a directory and its contents, or a link, but never a link's target."""
    shutil.rmtree(path) if _is_dir(path) else path.unlink()


def _rename_away(path: Path) -> Path:
    return path.rename(path.with_name(f".{path.name}{TRASH}"))  # fails if that name exists


def remove_leftovers(directory: Path, names: str) -> None:
    """Delete partial and trashed entries after a crash; `names` is a regular expression for bertkit's own entries."""
    if not _is_dir(directory):
        return
    leftover = re.compile(rf"(?:{names}){re.escape(PARTIAL)}|\.(?:{names}){re.escape(TRASH)}")
    for path in directory.iterdir():
        if leftover.fullmatch(path.name):
            remove(path)


@contextlib.contextmanager
def folder_for(directory: Path) -> Iterator[None]:
    """Make a directory and its parents; after an error, remove the new ones that are empty."""
    made = [path for path in (directory, *directory.parents) if not os.path.lexists(path)]
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for path in made:
                path.rmdir()
        raise


@contextlib.contextmanager
def building_dir(final: Path, made_from: str | None = None) -> Iterator[Path]:
    """Give a partial directory to fill; it is published as `final` at the end, and deleted on any error.

    Args:
        final: the directory to make.
        made_from: a key of everything that the result depends on. With a key, the folder `UNFINISHED` in the partial directory
            is for intermediate results: it survives a kill, or an error of neither input nor disk, and is given to
            the next build with the same key. It is not published.

    Raises:
        LockedError: another live process is building the same directory.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(folder_for(final.parent))
        partial = _partial_dir(final)
        stack.enter_context(locked(partial))
        unfinished = partial / UNFINISHED
        key = unfinished / "made_from"
        try:
            continued = _is_dir(unfinished) and key.is_file() and key.read_bytes() == (made_from or "").encode()
            for leftover in partial.iterdir():
                if leftover.name != LOCK and not (continued and leftover == unfinished):
                    remove(leftover)
            if made_from is not None and not continued:
                unfinished.mkdir()
                write_durably(key, made_from)
            yield partial
            shutil.rmtree(unfinished, ignore_errors=True)
            publish_dir(partial, final)  # together with the lock, so no other process can start to build
            (final / LOCK).unlink()
        except BaseException as error:
            if made_from is None or is_of_disk(error) or isinstance(error, InputError):
                shutil.rmtree(partial, ignore_errors=True)
            raise


def _partial_dir(final: Path) -> Path:
    """Make the partial directory, or reuse one that bertkit left.

    Raises:
        InputError: something else has its name.
    """
    partial = partial_of(final)
    if not os.path.lexists(partial):
        partial.mkdir(exist_ok=True)
    there = {path.name for path in partial.iterdir()} if _is_dir(partial) else {""}
    if there and not there & {LOCK, UNFINISHED}:
        raise InputError(
            f"{partial} is there already, and bertkit did not make it; remove it, or choose another output_dir"
        )
    return partial


def _is_dir(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold `directory` for this process; the lock ends with the process, however it ends.

    Raises:
        LockedError: a live process holds it; the message gives its host, its id and its start time.
        InputError: something else has the lock's name.
    """
    from filelock import FileLock, Timeout

    path = directory / LOCK
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise InputError(f"{path} is not bertkit's; remove it, or choose another output_dir")
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        holder = path.read_text(encoding="utf-8", errors="replace").strip() or "another process"
        way_out = "wait for it, stop it, or choose another output_dir"
        raise LockedError(f"{directory} is in use by {holder}; {way_out}") from None
    try:
        started_at = time.strftime("%Y-%m-%d %H:%M:%S")
        path.write_text(f"process {os.getpid()} on {socket.gethostname()}, started at {started_at}", encoding="utf-8")
        yield
    finally:
        lock.release()


def refuse_file(output_dir: Path) -> None:
    """Raise InputError if the path of an output directory is a file."""
    if output_dir.exists() and not output_dir.is_dir():
        raise InputError(f"output_dir={output_dir} is a file; choose a directory")


def require_space(directory: Path, num_bytes: int) -> None:
    """Check the free space before writing.

    Raises:
        StorageError: the disk of `directory` has less than `num_bytes` free.
    """
    if shutil.disk_usage(directory).free < num_bytes:
        raise StorageError(no_space(directory, num_bytes))


def no_space(directory: Path, num_bytes: int) -> str:
    """Give the message for a disk with less than `num_bytes` free."""
    free = shutil.disk_usage(directory).free
    return f"no space left on {directory}: need {num_bytes / 1e6:.1f} MB, have {free / 1e6:.1f} MB; free some space"
