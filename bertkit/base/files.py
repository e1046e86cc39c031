"""Durable files: a final name never holds half-written content, and files of other programs are not changed.

A directory `out` is written as `out.partial`, flushed to disk, and renamed. Before a directory is deleted, it is renamed. So
`out` is always either the complete old or the complete new directory; only between the two renames that replace a directory
it does not exist.

A directory `out.partial` that bertkit did not make is refused. Deleting or overwriting a link never changes its target.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

from bertkit.base.errors import InputError, LockedError, StorageError, in_json, refusing
from bertkit.base.text_files import TOO_LARGE, WHOLE_MB

PARTIAL = ".partial"
TRASH = ".trash"
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS)
UNFINISHED = ".unfinished"
BLOCK_BYTES = 1 << 20
LOCK = ".bertkit.lock"
# the files of a model: a configuration, beside weights
CONFIGS, WEIGHTS = ("config.json", "bert_config.json"), ("*.safetensors*", "pytorch_model*.bin*", "*.index")


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file, with 64 hexadecimal digits."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def to_json(value: object) -> str:
    """Convert to JSON in the format of all our files: indented, keys in their order, a newline at the end."""
    return in_json(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def write_durably(path: Path, content: str | bytes) -> None:
    """Replace the content of a file atomically and durably."""
    with writing(path, is_binary=True) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def check_size(path: Path) -> None:
    """Check that a file is small enough to be read as a whole; raises InputError if it is too large."""
    if path.stat().st_size > WHOLE_MB * 1_000_000:
        raise InputError(f"{path}: {TOO_LARGE}")


def check_regular(path: Path, setting: str) -> None:
    """Raise InputError for a folder, a pipe or a device: a pipe to which nobody writes would be read for ever."""
    if path.exists() and not path.is_file():
        raise InputError(f"{setting}={path} is a folder, or not a regular file; write its text to a file")


@contextlib.contextmanager
def writing(path: Path, *, is_binary: bool = False) -> Iterator[Any]:
    """Open a file for writing, as UTF-8 text unless `is_binary`; at the end of the block it gets its final name.

    Until then it has a partial name, `file.name`; an old partial file is replaced. After an error the partial file is kept;
    after a disk error it is deleted to free space. If one of the names is a link, the link is replaced, not its target.
    """
    partial, is_kept = partial_path(path), False
    partial.unlink(missing_ok=True)
    file: Any = partial.open("xb") if is_binary else partial.open("x", encoding="utf-8", newline="\n")
    try:
        with naming(path), file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
            except BaseException as error:
                is_kept = not is_disk_error(error) and file.tell() > 0
                raise
            if not (partial.exists() and os.path.samestat(os.fstat(file.fileno()), partial.lstat())):
                is_kept = True
                raise InputError(f"{path}: another command is writing the same file; choose another output")
        partial.replace(path)
    except BaseException:
        if not is_kept:
            partial.unlink(missing_ok=True)
        raise
    flush(path.parent)


def partial_path(path: Path) -> Path:
    """Return the partial name of a file or directory."""
    return path.with_name(_short(path.name) + PARTIAL)


def _short(name: str) -> str:
    """Return a name to which a few letters can be added; file systems allow 255 bytes."""
    return name if len(os.fsencode(name)) < 240 else hashlib.sha256(os.fsencode(name)).hexdigest()


def is_disk_error(error: BaseException) -> TypeGuard[OSError]:
    """Return whether the error means that a disk is full, read-only or failing."""
    return isinstance(error, OSError) and error.errno in DISK_ERRORS


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add this name to a disk error without one, since an error in writing to an open file has none."""
    try:
        yield
    except OSError as error:
        if is_disk_error(error):
            error.filename = error.filename or str(path)
        raise


def flush(path: Path) -> None:
    """Flush the content of a file, or the entries of a directory, to disk."""
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
        with contextlib.suppress(OSError):  # `final` is already complete; `remove_leftovers` tries again
            remove(trash)


def remove_dir(path: Path) -> None:
    """Delete a directory; it is renamed first, so that it never appears half deleted."""
    trash = _rename_away(path)
    flush(path.parent)
    remove(trash)


def remove(path: Path) -> None:
    """Delete a file, a directory with its contents, or a link, but never the target of a link."""
    shutil.rmtree(path) if _is_dir(path) else path.unlink()


def _trash_of(path: Path) -> Path:
    """Return the name to which a file or directory is moved before it is deleted."""
    return path.with_name(f".{_short(path.name)}{TRASH}")


def _rename_away(path: Path) -> Path:
    return path.rename(_trash_of(path))  # fails if that name exists


def remove_leftovers(directory: Path, names: str) -> None:
    """Delete partial and half-deleted entries that a crash left; `names` is a regular expression for the final names."""
    if not _is_dir(directory):
        return
    leftover = re.compile(rf"(?:{names}){re.escape(PARTIAL)}|\.(?:{names}){re.escape(TRASH)}")
    for path in directory.iterdir():
        if leftover.fullmatch(path.name):
            remove(path)


@contextlib.contextmanager
def folder_for(directory: Path) -> Iterator[None]:
    """Make a directory and its parents; after an error, remove those that are new and empty.

    Raises InputError where nobody may make one, as in /proc, whatever its permissions say.
    """
    made = [path for path in (directory, *directory.parents) if not os.path.lexists(path)]
    wrong = (
        f"{directory}: no folder can be made in {made[-1].absolute().parent if made else directory}; choose another one"
    )
    with refusing((FileNotFoundError, PermissionError), lambda _: wrong):
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
    """Yield a partial directory to fill; at the end it is renamed to `final`. An error deletes it, as in `partial_dir`."""
    if final.is_dir() and (final.is_mount() or final.samefile(".")):
        raise InputError(f"{final}: the current directory, or a disk's, cannot be replaced; name a new folder in it")
    if os.path.lexists(final) and os.path.lexists(_trash_of(final)):
        raise InputError(
            f"{_trash_of(final)} is in the way of {final.name}, which would be replaced; rename or delete it"
        )
    with partial_dir(final, made_from) as partial:
        yield partial
        shutil.rmtree(partial / UNFINISHED, ignore_errors=True)
        publish_dir(partial, final)  # renamed together with the lock, so that no other process can start to build
        (final / LOCK).unlink()


@contextlib.contextmanager
def partial_dir(final: Path, made_from: str | None) -> Iterator[Path]:
    """Yield the locked partial directory of `final`. An error deletes it.

    The key `made_from` identifies everything on which the result depends. With a key, the folder `UNFINISHED` in the partial
    directory is for intermediate results. After a kill, or an error other than an `InputError` or a disk error, it is kept, and
    the next build with the same key can continue. Raises LockedError if another process is building the same directory.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(naming(final))
        stack.enter_context(folder_for(final.parent))
        partial = _make_partial_dir(final)
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
        except BaseException as error:
            if made_from is None or is_disk_error(error) or isinstance(error, InputError):
                shutil.rmtree(partial, ignore_errors=True)
            raise


def _make_partial_dir(final: Path) -> Path:
    """Make the partial directory, or reuse one of bertkit; raises InputError if something else has this name."""
    partial = partial_path(final)
    where = f"{final.parent} is not writable, where {final.name} is first written as {partial.name}"
    with refusing(PermissionError, lambda _: f"{where}; name a new folder in {final}, or one in another folder"):
        if not os.path.lexists(partial):
            partial.mkdir(exist_ok=True)
    names = {path.name for path in partial.iterdir()} if _is_dir(partial) else {""}
    if names and not names & {LOCK, UNFINISHED}:
        raise InputError(
            f"{partial} is there already, and bertkit did not make it; remove it, or choose another output"
        )
    return partial


def _is_dir(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock a directory until the process ends, even if it is killed; raises LockedError, which names its holder."""
    from filelock import FileLock, Timeout

    path = directory / LOCK
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise InputError(f"{path} was not made by bertkit; remove it, or choose another output")
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        holder = path.read_text(encoding="utf-8", errors="replace").strip() or "another process"
        advice = "wait for it, stop it, or choose another output"
        raise LockedError(f"{directory} is in use by {holder}; {advice}") from None
    except PermissionError:
        raise InputError(f"{directory} is not writable; choose another folder") from None
    try:
        started_at = time.strftime("%Y-%m-%d %H:%M:%S")
        path.write_text(f"process {os.getpid()} on {socket.gethostname()}, started at {started_at}", encoding="utf-8")
        yield
    finally:
        lock.release()


def check_output_dir(output_dir: Path) -> None:
    """Raise InputError if the path of an output directory is a file, or it cannot be made."""
    if output_dir.exists() and not output_dir.is_dir():
        raise InputError(f"output_dir={output_dir} is a file; choose a directory")
    check_place(output_dir, f"output_dir={output_dir}")
    if output_dir.resolve() == Path(output_dir.resolve().anchor):
        raise InputError(f"output_dir={output_dir}: the root of all folders; name a new folder in it")


def check_place(path: Path, named: str) -> None:
    """Raise InputError if the folder of a path is a file, or in a model, or nothing new may be made in it.

    The message begins with `named`. Raises StorageError for a read-only file system.
    """
    if path.is_symlink() and not path.exists() and _is_circle(path):
        raise InputError(f"{named}: a link to itself; remove it, or choose another name")
    folder = next((parent for parent in path.absolute().parents if os.path.lexists(parent)), path)
    if not folder.is_dir():
        raise InputError(f"{named}: {folder} is a file; expected a folder to write to")
    if (model := next(filter(_is_model, path.resolve().parents), None)) is not None:
        raise InputError(f"{named}: {model} is a model, whose files stay as they are; choose another folder")
    if not os.access(folder, os.W_OK) and os.statvfs(folder).f_flag & os.ST_RDONLY and not is_special(path):
        raise StorageError(f"{named}: {os.strerror(errno.EROFS)}")
    if not path.exists() and not os.access(folder, os.W_OK):
        raise InputError(f"{named}: {folder} is not writable; choose another folder")


def _is_circle(link: Path) -> bool:
    try:
        link.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def is_special(path: Path) -> bool:
    """Whether a path is there and neither a file nor a folder: a pipe, a device."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _is_model(folder: Path) -> bool:
    """Whether a folder holds a model."""
    has_config = any((folder / name).is_file() for name in CONFIGS)
    return has_config and any(True for pattern in WEIGHTS for _ in folder.glob(pattern))


def require_space(directory: Path, num_bytes: int) -> None:
    """Raise StorageError unless the disk of `directory` has `num_bytes` free; some file systems report no sizes."""
    usage = shutil.disk_usage(directory)
    if usage.total and usage.free < num_bytes:
        raise StorageError(no_space(directory, num_bytes))


def no_space(directory: Path, num_bytes: int) -> str:
    """Return the message for a disk with less than `num_bytes` free."""
    free = shutil.disk_usage(directory).free
    return f"no space left on {directory}: need {num_bytes / 1e6:.1f} MB, have {free / 1e6:.1f} MB; free some space"
