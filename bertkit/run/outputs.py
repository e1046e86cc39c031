"""Output files named by the user: `output=` of many commands, and `dump=`.

An existing file is replaced only with `overwrite=true`; a run's own files and the targets of links are never replaced. `predict`
accepts an existing file if it has the same predictions. Standard output, pipes and devices are written to directly. A file
gets its final name only when it is complete.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from bertkit.base.errors import InputError
from bertkit.base.files import check_place, folder_for, naming, partial_path, writing
from bertkit.run.directory import FILES_OF_A_RUN, run_of

THERE = "is there already; choose another file, or set overwrite=true to replace it"


def check_output(name: str | Path, overwrite: bool, setting: str = "output") -> None:
    """Raise InputError if a file cannot be written, or exists without `overwrite`; an empty file may be replaced."""
    path = Path(name)
    if path.is_dir():
        raise InputError(f"{setting}={name} is a folder; give a file in it")
    check_place(path, f"{setting}={name}")
    if is_stream(path):
        return
    if path.exists() and path.is_symlink():
        raise InputError(f"{setting}={name} is a link to an existing file, {os.readlink(path)}; give the file itself")
    if has_content(path) and not overwrite:
        raise InputError(f"{setting}={name} {THERE}")
    partial = partial_path(path.resolve())  # resolve a link to a missing file, so that the link stays
    if os.path.lexists(partial) and (partial.is_symlink() or not partial.is_file() or not overwrite):
        raise InputError(f"{setting}={name} is first written as {partial}, which {THERE}")


def has_content(path: Path) -> bool:
    """Return whether a path is a regular file that is not empty, and not standard output."""
    return path.exists() and not is_stream(path) and path.stat().st_size > 0


def is_stream(path: Path) -> bool:
    """Return whether a path is an existing stream: standard output, a pipe or a device."""
    return _open_number(path) is not None or (path.exists() and not path.is_file())


def _open_number(path: Path) -> int | None:
    """Return the file descriptor of /dev/stdout, /dev/fd/3, or the file that standard output goes to; None otherwise."""
    if not path.exists():
        return None
    if str(path.parent) in ("/dev/fd", "/proc/self/fd"):
        return int(path.name)
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(number)):
                return number
    return None


class _Same(io.RawIOBase):
    """A file that compares what is written to it with the content of an existing file."""

    name = None

    def __init__(self, old: BinaryIO) -> None:
        self._old = old

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        if self._old.read(len(content) or 1) != content:  # after the last number of bytes, nothing more may be there
            raise InputError(f"output={self._old.name} {THERE}")
        return len(content)


@contextlib.contextmanager
def opened_output(name: str | Path, *, is_binary: bool = False, may_replace: bool = True) -> Iterator[Any]:
    """Open an output that `check_output` accepted, as UTF-8 text unless `is_binary`.

    A regular file is written by `files.writing`. With `may_replace=False`, what is written to a file with content is only
    compared with it. The `name` attribute of the open file is a string only where a partial file is written. Raises InputError
    if such a file has other content.
    """
    path = Path(name)
    if not may_replace and has_content(path):
        with path.open("rb") as old:
            same = _Same(old)
            with io.BufferedWriter(same) as buffer:
                file = buffer if is_binary else io.TextIOWrapper(buffer, "utf-8", newline="\n")
                yield file
                file.flush()
                same.write(b"")
        return
    if not is_stream(path):
        path = path.resolve()
        with folder_for(path.parent), writing(path, is_binary=is_binary) as file:
            yield file
        return
    number = _open_number(path)
    sys.stdout.flush()
    descriptor = os.dup(number) if number is not None else os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    kind: dict[str, Any] = {"mode": "wb"} if is_binary else {"mode": "w", "encoding": "utf-8", "newline": "\n"}
    with naming(path), open(descriptor, **kind) as file:
        yield file


def write_output(name: str | Path, text: str) -> None:
    """Write a text to an output that `check_output` accepted."""
    with opened_output(name) as file:
        file.write(text)


def partial_output(file: Any) -> str | None:
    """Return the name of the partial file that remains after an error; None for a stream."""
    return file.name if isinstance(file.name, str) else None


def check_outputs(output: str, source: str | None, overwrite: bool, beside: Sequence[Path] = ()) -> None:
    """Raise InputError if an output overwrites the input `source`, a run's own file, or, without `overwrite`, another file.

    `beside` lists further files that are written together with the output. Standard output, "-", overwrites nothing.
    """
    if output == "-":
        return
    path = Path(output)
    in_run = run_of(path.parent) == path.parent.resolve()
    for target in (path, *beside):
        is_source = (
            source not in (None, "-") and not is_stream(target) and target.resolve() == Path(str(source)).resolve()
        )
        if is_source:
            raise InputError(f"output={path}: {target} is the input and would be overwritten; choose another file")
        if in_run and target.name in FILES_OF_A_RUN:
            raise InputError(f"output={path}: {target} belongs to a run; choose another folder")
        check_output(target, overwrite, "output" if target == path else f"output={path}: beside it")
