"""The files that a user names to be written: `output=` of many commands, and `dump=`.

One rule: what is there is not replaced without `overwrite=true`, nor are files of a run, nor anything through a link.
Standard output, pipes and devices are written to as they are. A file stands under its name when it is whole.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError
from bertkit.base.files import folder_for, is_of_disk, partial_of, writing
from bertkit.data.batches.instances import json_rows, open_instances
from bertkit.data.corpus.prepared import PreparedDataset
from bertkit.run.directory import FILES_OF_A_RUN, run_of


def check_output(name: str | Path, overwrite: bool, setting: str = "output") -> None:
    """Refuse a name that cannot be written, or that holds what would be lost; an empty file holds nothing.

    Raises:
        InputError: with what to do.
    """
    path = Path(name)
    if path.is_dir():
        raise InputError(f"{setting}={name} is a folder; give a file in it")
    folder = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    if not folder.is_dir():
        raise InputError(f"{setting}={name}: {folder} is a file; expected a folder to write to")
    if is_stream(path):
        return
    if path.exists() and path.is_symlink():
        raise InputError(f"{setting}={name} is a link to {os.readlink(path)}, which is there; give the file itself")
    way_out = "is there already; choose another file, or set overwrite=true to replace it"
    if path.exists() and path.stat().st_size and not overwrite:
        raise InputError(f"{setting}={name} {way_out}")
    partial = partial_of(path.resolve())  # a link to nothing yet stays one
    if os.path.lexists(partial) and (partial.is_symlink() or not partial.is_file() or not overwrite):
        raise InputError(f"{setting}={name} is written as {partial}, which {way_out}")


def is_stream(path: Path) -> bool:
    """Whether a name stands for something that is open or no file: standard output, a pipe, a device."""
    return _open_number(path) is not None or (path.exists() and not path.is_file())


def _open_number(path: Path) -> int | None:
    """Give the number of the open file that a name stands for: /dev/stdout, /dev/fd/3, or what standard output goes to."""
    if not path.exists():
        return None
    if str(path.parent) in ("/dev/fd", "/proc/self/fd"):
        return int(path.name)
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(number)):
                return number
    return None


@contextlib.contextmanager
def opened_output(name: str | Path, *, is_binary: bool = False) -> Iterator[Any]:
    """Give what `check_output` let pass to be written, text in UTF-8 unless `is_binary`.

    A file is one of `files.writing`; the `name` of a stream is no text.
    """
    path = Path(name)
    if not is_stream(path):
        path = path.resolve()
        with folder_for(path.parent), writing(path, is_binary=is_binary) as file:
            yield file
        return
    number = _open_number(path)
    sys.stdout.flush()
    descriptor = os.dup(number) if number is not None else os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    kind: dict[str, Any] = {"mode": "wb"} if is_binary else {"mode": "w", "encoding": "utf-8", "newline": "\n"}
    try:
        with open(descriptor, **kind) as file:
            yield file
    except OSError as error:
        error.filename = error.filename or (str(path) if is_of_disk(error) else None)
        raise


def write_output(name: str | Path, text: str) -> None:
    """Write what `check_output` let pass, at once."""
    with opened_output(name) as file:
        file.write(text)


def beginning_of(file: Any) -> str | None:
    """Where the beginning of an output stays after an error; None of a stream, which has had it."""
    return file.name if isinstance(file.name, str) else None


def check_free(output: str, given: str | None, overwrite: bool, beside: Sequence[Path] = ()) -> None:
    """Refuse to overwrite the input, what a run wrote of itself, or what is there already.

    Args:
        output: what `output=` names.
        given: what `input=` names.
        overwrite: whether what is there is replaced.
        beside: other files that are written with the output.

    Raises:
        InputError: naming the first such file.
    """
    path = Path(output)
    in_run = run_of(path.parent) == path.parent.resolve()
    for target in (path, *beside):
        setting = "output" if target == path else f"output={path}: beside it"
        if _is_input(target, given):
            raise InputError(f"output={path}: {target} would be written, which is the input; choose another file")
        if in_run and target.name in FILES_OF_A_RUN:
            raise InputError(f"output={path}: {target} is written too, and belongs to the run; choose another folder")
        check_output(target, overwrite, setting)


def _is_input(target: Path, given: str | None) -> bool:
    return given not in ("-", None) and not is_stream(target) and target.resolve() == Path(str(given)).resolve()


def check_dump(dump: str, output_dir: Path, overwrite: bool) -> None:
    """Refuse a place for the lines that cannot be written, or that holds something else.

    Raises:
        InputError: nothing was read or written yet.
    """
    path = Path(dump)
    if not dump:
        raise InputError("dump= is empty; expected a file to write")
    if output_dir.resolve() in (path.resolve(), *path.resolve().parents):
        raise InputError(
            f"dump={dump} lies in output_dir={output_dir}, which holds the dataset alone; write it elsewhere"
        )
    if path.resolve() in output_dir.resolve().parents:
        raise InputError(f"dump={dump} is a folder above output_dir={output_dir}; expected a file to write")
    check_output(path, overwrite, "dump")


def write_dump(dataset: PreparedDataset, path: Path) -> int:
    """Write the instances of a dataset as JSON lines; give their number."""
    instances = open_instances(dataset)
    with opened_output(path) as file:
        file.writelines(json_rows(instances, dataset.tokenizer.vocab))
    return len(instances)
