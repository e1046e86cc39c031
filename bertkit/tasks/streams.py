"""Examples without labels, from a file or a pipe, a chunk at a time.

| format | an example is | read |
|---|---|---|
| text | a line, for a sequence or masked LM | as a stream |
| words | a line of words between blanks, to be tagged | as a stream |
| tsv, csv, jsonl, label_text | a row | as a stream |
| json (SQuAD's too), conll, conllu, parquet | what `readers.py` says | whole |

An empty line of text or words is an example like any other.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from bertkit.errors import InputError
from bertkit.tasks import readers
from bertkit.tasks.config import TaskConfig
from bertkit.tasks.labels import Ids
from bertkit.tasks.tables import ENDINGS, Table, stream_table
from bertkit.tasks.task import Example, SequenceExample, TaggingExample

EXAMPLES_AT_ONCE = 1024  # read, predicted and written together
STREAMED = ("tsv", "csv", "jsonl", "label_text")
_PEEKED = 65536  # bytes that tell the format where no ending does
_BLANKS = re.compile("[ \t]+")  # what parts words, as in CoNLL files


def read_chunks(
    task: TaskConfig, stream: BinaryIO, name: Path, given: str | None, labels: tuple[str, ...]
) -> Iterator[list[Any]]:
    """Read the examples of a stream in its order.

    Args:
        task: how they are written.
        stream: buffered, at its beginning.
        name: of the file, for its ending and for messages; `-` for standard input.
        given: the format; None to tell it by the ending, else by the beginning.
        labels: of the model: a table of words whose last column holds them is CoNLL.

    Raises:
        InputError: something in it is wrong, with the line; what came before has been given.
    """
    beginning = stream.peek(_PEEKED)[:_PEEKED]  # type: ignore[attr-defined]
    if not beginning:
        return iter(())
    kind = given or _format_of(task, name, beginning.decode("utf-8", "replace").removeprefix("\ufeff"), labels)
    kind = "json" if kind == "squad" else kind
    _check_format(task, kind, name)
    if kind == "text":
        return _chunks(SequenceExample(str(n - 1), line, None, None) for n, line in _lines(stream, name))
    if kind == "words":
        return _chunks(
            TaggingExample(str(n - 1), tuple(word for word in _BLANKS.split(line) if word), None)
            for n, line in _lines(stream, name)
        )
    if kind in STREAMED:
        return _rows(task, stream_table(task, name, kind, _lines(stream, name)), kind)
    return _chunks(iter(_read_whole(task, stream, name, kind)))


def _format_of(task: TaskConfig, name: Path, beginning: str, labels: tuple[str, ...]) -> str:
    """Tell the format: by the ending, by what the task's files are, or by how the input begins."""
    ending = ENDINGS.get(name.suffix.lower())
    if ending is not None and not (task.kind == "tagging" and ending == "tsv"):
        return ending
    lines = beginning.split("\n")
    whole = lines[:-1] or lines  # the last one may be cut
    first = whole[0].rstrip("\r")
    if task.kind == "tagging":
        cells = [line.split() for line in whole if line.strip() and not line.startswith("#")]
        tagged = bool(cells) and all(len(row) > 1 and row[-1] in labels for row in cells[:20])
        if ending == "tsv" or first.startswith("-DOCSTART-") or tagged:
            return "conll"
        if name.suffix not in ("", ".txt"):  # such as eng.testb
            return "conll" if task.format == "auto" else task.format
    if beginning.lstrip()[:1] in ("{", "["):
        is_lines = first.lstrip().startswith("{") and first.rstrip().endswith("}") and '"data"' not in first[:4096]
        return "jsonl" if is_lines else "json"
    if task.kind == "tagging":
        return "words"
    if task.format != "auto":
        return task.format
    if task.kind != "sequence":
        return "tsv" if "\t" in first else "csv"
    columns = [(column,) if isinstance(column, (str, int)) else column for column in vars(task.columns).values()]
    named = {name for column in columns for name in column or ()}
    return next((kind for kind, mark in (("tsv", "\t"), ("csv", ",")) if named & set(first.split(mark))), "text")


def _check_format(task: TaskConfig, kind: str, name: Path) -> None:
    kinds = {
        "sequence": ("text", *STREAMED, "json", "parquet"),
        "tagging": ("words", "conll", "conllu", "jsonl", "json", "parquet"),
        "spans": ("jsonl", "json", "csv", "tsv", "parquet"),
        "choice": ("csv", "tsv", "jsonl", "json", "parquet"),
    }[task.kind]
    if kind == "text" and task.needs_pair:
        raise InputError(
            f"{name}: task={task.name} is of pairs, and a text a line has no second one; give a file of named columns, or set "
            "format="
        )
    if kind not in kinds:
        raise InputError(
            f"{name}: format {kind} is not for a model of {task.kind}; set format= to one of {', '.join(kinds)}"
        )


def _lines(stream: BinaryIO, name: Path) -> Iterator[tuple[int, str]]:
    """Number the lines from 1, without their ends and a byte order mark; a line ends at a line feed and nowhere else."""
    for number, data in enumerate(stream, 1):
        try:
            line = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{name}:{number}: not UTF-8 (byte 0x{data[error.start]:02x} at column {error.start + 1}); convert the file "
                "to UTF-8"
            ) from None
        if "\0" in line:
            raise InputError(f"{name}:{number}: not text (a zero byte); convert the file to UTF-8")
        if number == 1:
            line = line.removeprefix("\ufeff")
        yield number, line.removesuffix("\n").removesuffix("\r")


def _chunks(examples: Iterator[Example]) -> Iterator[list[Any]]:
    while chunk := list(itertools.islice(examples, EXAMPLES_AT_ONCE)):
        yield chunk


def _rows(task: TaskConfig, table: Table, kind: str) -> Iterator[list[Any]]:
    """Examples of a table's rows. Ids are the rows' own, else numbers; those of questions, which name answers, come once."""
    field = table.find(task.columns.id, "id", False)
    once = Ids(field)
    unnamed = dataclasses.replace(task, columns=dataclasses.replace(task.columns, id=None))
    first = 0
    while rows := list(itertools.islice(table.rows, EXAMPLES_AT_ONCE)):
        part = dataclasses.replace(table, rows=iter(rows))
        examples: list[Any] = readers.read_rows(unnamed, part, kind, False, None).examples
        chunk = []
        for number, (example, (line, row)) in enumerate(zip(examples, rows, strict=True), first):
            own = None if field is None else row.get(field)
            if task.kind == "spans":
                once.take(own, table.place(line))
            chunk.append(dataclasses.replace(example, id=str(number if own is None else own)))
        first += len(rows)
        yield chunk


def _read_whole(task: TaskConfig, stream: BinaryIO, name: Path, kind: str) -> list[Any]:
    """Read what cannot be cut into lines; standard input by way of a file."""
    changed: dict[str, Any] = {"format": kind}
    written = dataclasses.replace(task, **changed)
    if str(name) != "-":
        return readers.read_file(written, name, False).examples
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "input"
        with copy.open("wb") as file:
            shutil.copyfileobj(stream, file)
        try:
            return readers.read_file(written, copy, False).examples
        except InputError as error:
            raise InputError(str(error).replace(str(copy), "-")) from None
