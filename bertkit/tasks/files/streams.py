"""Examples without labels, from a file or a pipe, a chunk at a time.

| format | an example is | read |
|---|---|---|
| text | a line, for a sequence or masked LM | as a stream |
| words | a line of words between blanks, to be tagged | as a stream |
| tsv, csv, jsonl, label_text | a row | as a stream |
| json (SQuAD's too), conll, conllu, parquet | what `readers.py` says | whole |

Whatever is read as a stream has an example for every line or row: an empty one is of empty texts, or of no words, and the
cells that a row of a table lacks are empty. gzip is unpacked.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import gzip
import io
import itertools
import json
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from bertkit.errors import InputError
from bertkit.tasks.config import Column, TaskConfig
from bertkit.tasks.files import readers
from bertkit.tasks.files.labels import Ids
from bertkit.tasks.files.tables import ENDINGS, Gaps, Table, read_table, stream_table
from bertkit.tasks.rows import WORDS, read_rows
from bertkit.tasks.task import Example, SequenceExample, TaggingExample

EXAMPLES_AT_ONCE = 1024  # read, predicted and written together
PEEKED = 65536  # bytes that tell the format where no ending does
STREAMED = ("tsv", "csv", "jsonl", "label_text")
_GZIP = b"\x1f\x8b"  # RFC 1952; no text begins so
_BLANKS = re.compile("[ \t]+")  # what parts words, as in CoNLL files
_TAG = re.compile(r"O|[BIES]-\S+")
_JSON = re.compile(r'(\{|\[\s*\{)\s*"([^"\\]|\\.)*"\s*:')  # an object with a key, or an array of such
_QUOTED_CELLS = re.compile(r'"[^"]*"(,"[^"]*")+')


@dataclass(frozen=True)
class Inputs:
    """Examples on their way.

    Attributes:
        description: what the input was taken for, in a line; empty where it is.
        chunks: the examples in their order, up to EXAMPLES_AT_ONCE of them at a time.
        gaps: the rows that lacked cells, among those that have been read.
    """

    description: str
    chunks: Iterator[list[Any]]
    gaps: Gaps


def open_inputs(task: TaskConfig, stream: BinaryIO, name: Path, given: str | None, labels: tuple[str, ...]) -> Inputs:
    """Tell how a stream is written, find the columns that are needed, and read its examples in their order.

    Args:
        task: how they are written.
        stream: buffered, at its beginning.
        name: of the file, for its ending and for messages; `-` for standard input.
        given: the format; None to tell it by the ending, else by the beginning.
        labels: of the model: columns of words whose last one holds them are CoNLL.

    Raises:
        InputError: something in it is wrong, with the line; of what comes later when it is read.
    """
    is_packed = _beginning(stream)[:2] == _GZIP
    gaps = Gaps()
    with _unpacking(name):
        if is_packed:
            stream = cast(BinaryIO, io.BufferedReader(gzip.GzipFile(fileobj=stream), PEEKED))
        beginning = _beginning(stream).decode("utf-8", "replace").removeprefix("\ufeff")
    if not beginning:
        return Inputs("", iter(()), gaps)
    kind, is_guess = (given, False) if given is not None else _format_of(task, name, beginning, labels)
    kind = "json" if kind == "squad" else kind
    _check_format(task, kind, name)
    plain = {"tagging": "words", "sequence": "" if _is_of_pairs(task) else "text"}.get(task.kind)
    hint = f"; for plain text set format={plain}" if is_guess and plain else ""
    try:
        if kind == "text":
            what, chunks = (
                "a text a line",
                _chunks(SequenceExample(str(n - 1), line, None, None) for n, line in _lines(stream, name)),
            )
        elif kind == "words":
            what, chunks = (
                "a sentence of words a line",
                _chunks(
                    TaggingExample(str(n - 1), tuple(word for word in _BLANKS.split(line) if word), None)
                    for n, line in _lines(stream, name)
                ),
            )
        elif kind in STREAMED:
            what, chunks = _table(task, stream_table(task, name, kind, _lines(stream, name), gaps), kind)
        elif is_packed or str(name) == "-":
            what, chunks = _copied(task, stream, name, kind)
        else:
            what, chunks = _whole(task, name, kind)
    except InputError as error:
        raise InputError(f"{error}{hint}") from None
    return Inputs(f"{name} read as {kind}: {what}", chunks, gaps)


def _beginning(stream: BinaryIO) -> bytes:
    return bytes(stream.peek(PEEKED)[:PEEKED])  # type: ignore[attr-defined]


@contextlib.contextmanager
def _unpacking(name: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{name}: damaged gzip file ({error}); restore it") from None


def _format_of(task: TaskConfig, name: Path, beginning: str, labels: tuple[str, ...]) -> tuple[str, bool]:
    """Tell the format: by the ending, else by how the input begins; the second value says that it is a guess."""
    suffix = (name.with_suffix("") if name.suffix == ".gz" else name).suffix.lower()
    ending = ENDINGS.get(suffix)
    if task.kind == "tagging" and (ending == "tsv" or (ending is None and suffix not in ("", ".txt"))):
        return ("conll" if ending or task.format == "auto" else task.format), False  # such as eng.testb
    if ending is not None:
        return ending, False
    lines = beginning.split("\n")
    whole = [line.rstrip("\r") for line in lines[:-1] or lines]  # the last one may be cut
    kind = _json_kind(beginning) or _conll_kind(task, whole, labels)
    if kind is None and task.kind == "tagging":
        kind = "words"
    if kind is None and task.kind != "sequence":
        kind = task.format if task.format != "auto" else "tsv" if "\t" in whole[0] else "csv"
    return kind or _table_kind(task, whole, labels) or "text", True


def _json_kind(beginning: str) -> str | None:
    """Tell JSON lines and JSON, an object or an array of them, from a text with a bracket, such as that of [MASK]."""
    text = beginning.lstrip()
    first, _, more = text.partition("\n")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        if not _JSON.match(text):
            return None
        return "jsonl" if text[0] == "{" and not more and '"data"' not in first else "json"  # one long line, cut
    if isinstance(value, dict):
        return "json" if isinstance(value.get("data"), list) else "jsonl"
    return "json" if isinstance(value, list) and value and isinstance(value[0], dict) else None


def _conll_kind(task: TaskConfig, lines: list[str], labels: tuple[str, ...]) -> str | None:
    """Tell what surely is columns: as many in every line, tags in one, blank lines, and a sentence of several lines."""
    rows = [_BLANKS.split(line.strip(" \t")) for line in lines if not line.startswith("#")]
    words = [row for row in rows if row != [""]]
    if lines[0].startswith("-DOCSTART-"):
        return "conll"
    if words and all(len(line.split("\t")) == 10 and line[0].isdigit() for line in lines if line[:1] not in ("", "#")):
        return "conllu"
    has_sentences = [""] in rows and any(one != [""] != next_ for one, next_ in itertools.pairwise(rows))
    if not has_sentences or len({len(row) for row in words}) > 1 or len(words[0]) < 2:
        return None
    column = task.columns.tags if isinstance(task.columns.tags, int) else -1
    tags = {row[column] for row in words} if -len(words[0]) <= column < len(words[0]) else {""}
    if task.kind == "tagging":
        return "conll" if all(tag in labels or _TAG.fullmatch(tag) for tag in tags) else None
    return "conll" if tags != {"O"} and all(map(_TAG.fullmatch, tags)) else None


def _table_kind(task: TaskConfig, lines: list[str], labels: tuple[str, ...]) -> str | None:
    """The format of a table with a text a row, where the first line has the columns, or all lines as many tabs."""
    filled = [line for line in lines if line] or [""]
    named = {name for column in vars(task.columns).values() for name in _names(column)}
    texts = set(_names(task.columns.text))
    tabs, commas = filled[0].split("\t"), _csv_cells(filled[0])
    for kind, cells in (("tsv", tabs), ("csv", commas), ("csv", filled[0].split(";"))):
        if set(cells) & (named if len(cells) > 1 else texts):
            return kind
    if task.format == "csv" and len(commas) == len(task.column_names or ()):
        return "csv"
    if len({line.count("\t") for line in filled}) == 1 and len(tabs) > 1:
        return "tsv"
    firsts = [line.partition(" ")[0] for line in filled]
    if task.format == "label_text" and firsts[0] in labels and all(":" in first for first in firsts):
        return "label_text"
    return "csv" if _QUOTED_CELLS.fullmatch(filled[0]) else None


def _names(column: Column) -> tuple[str, ...]:
    return (column,) if isinstance(column, str) else column if isinstance(column, tuple) else ()


def _csv_cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error:
        return []


def _is_of_pairs(task: TaskConfig) -> bool:
    return task.needs_pair or isinstance(task.columns.text_pair, (str, int))


def _check_format(task: TaskConfig, kind: str, name: Path) -> None:
    kinds = {
        "sequence": ("text", *STREAMED, "json", "parquet"),
        "tagging": ("words", "conll", "conllu", "jsonl", "json", "parquet"),
        "spans": ("jsonl", "json", "csv", "tsv", "parquet"),
        "choice": ("csv", "tsv", "jsonl", "json", "parquet"),
    }[task.kind]
    if kind == "text" and _is_of_pairs(task):
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
    with _unpacking(name):
        for number, data in enumerate(stream, 1):
            try:
                line = data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{name}:{number}: not UTF-8 (byte 0x{data[error.start]:02x} at column {error.start + 1}); convert the "
                    "file to UTF-8"
                ) from None
            if "\0" in line:
                raise InputError(f"{name}:{number}: not text (a zero byte); convert the file to UTF-8")
            if number == 1:
                line = line.removeprefix("\ufeff")
            yield number, line.removesuffix("\n").removesuffix("\r")


def _chunks(examples: Iterator[Example]) -> Iterator[list[Any]]:
    while chunk := list(itertools.islice(examples, EXAMPLES_AT_ONCE)):
        yield chunk


def _table(task: TaskConfig, table: Table, kind: str) -> tuple[str, Iterator[list[Any]]]:
    """Find the columns of a table, and say which; its examples."""
    columns = task.columns
    endings = columns.endings if isinstance(columns.endings, tuple) else (columns.endings,)
    wanted: dict[str, list[tuple[str, Column, bool]]] = {
        "sequence": [("text", columns.text, True), ("text_pair", columns.text_pair, task.needs_pair)],
        "tagging": [("words", columns.words or WORDS, True)],
        "spans": [("question", columns.question, True), ("context", columns.context, True)],
        "choice": [
            ("context", columns.context, True),
            ("ending_start", columns.ending_start, False),
            *(("endings", ending, True) for ending in endings),
        ],
    }
    try:
        found = {
            (setting, name): None
            for setting, column, needed in [*wanted[task.kind], ("id", columns.id, False)]
            if (name := table.find(column, setting, needed)) is not None
        }
    except InputError as error:
        apart = (
            "; cells are apart by commas in CSV, tabs in TSV"
            if kind in ("csv", "tsv") and len(table.names) == 1
            else ""
        )
        raise InputError(f"{error}{apart if ';' in table.names[0] else ''}") from None
    return ", ".join(f"{setting} '{name}'" for setting, name in found), _rows(task, table, kind)


def _rows(task: TaskConfig, table: Table, kind: str) -> Iterator[list[Any]]:
    """Examples of a table's rows. Ids are the rows' own, else numbers; those of questions, which name answers, come once."""
    field = table.find(task.columns.id, "id", False)
    once = Ids(field)
    unnamed = dataclasses.replace(task, columns=dataclasses.replace(task.columns, id=None))
    first = 0
    while rows := list(itertools.islice(table.rows, EXAMPLES_AT_ONCE)):
        part = dataclasses.replace(table, rows=iter(rows))
        examples: list[Any] = read_rows(unnamed, part, kind, False, None).examples
        chunk = []
        for number, (example, (line, row)) in enumerate(zip(examples, rows, strict=True), first):
            own = None if field is None or row.get(field) == "" else row.get(field)
            if task.kind == "spans":
                once.take(own, table.place(line))
                own = f"line {line}" if own is None and field is not None else own  # numbers may be ids of others
            chunk.append(dataclasses.replace(example, id=str(number if own is None else own)))
        first += len(rows)
        yield chunk


def _whole(task: TaskConfig, path: Path, kind: str) -> tuple[str, Iterator[list[Any]]]:
    """Read what cannot be cut into lines."""
    changed: dict[str, Any] = {"format": kind}
    written = dataclasses.replace(task, **changed)
    if kind in ("conll", "conllu"):
        examples = readers.read_file(written, path, False).examples
        return f"{'documents' if task.documents else 'sentences'} of words", _chunks(iter(examples))
    return _table(task, read_table(written, path, kind, False), kind)


def _copied(task: TaskConfig, stream: BinaryIO, name: Path, kind: str) -> tuple[str, Iterator[list[Any]]]:
    """The same of a pipe or a packed file, by way of a file."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "input"
        with copy.open("wb") as file, _unpacking(name):
            shutil.copyfileobj(stream, file)
        try:
            what, chunks = _whole(task, copy, kind)
            return what, iter(list(chunks))
        except InputError as error:
            raise InputError(str(error).replace(str(copy), str(name))) from None
