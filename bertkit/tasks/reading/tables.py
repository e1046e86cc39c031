"""Parse numbered lines into rows, mappings of column name to value, and record the place of each row.

TSV is read as GLUE writes it: a quote is an ordinary character, and no word marks a missing value. CSV follows RFC 4180:
quoted cells may hold commas and line breaks. SQuAD's JSON, nested or flat, becomes a flat record for each question:

    {"data": [{"paragraphs": [{"context": ..., "qas": [{"id": ..., "question": ..., "answers": [...]}]}]}]}
    {"data": [{"id": ..., "question": ..., "context": ..., "answers": ...}]}

`plausible_answers` of SQuAD 2.0 answer another question and are left out.
"""

import csv
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.base import text_files
from bertkit.base.errors import InputError
from bertkit.base.text_files import LINE_MB, TOO_DEEP, TOO_LONG, is_blank, parse_json, without_surrogates
from bertkit.base.typed_settings import nearest
from bertkit.tasks.reading.conll import read_conll, read_words
from bertkit.tasks.task_config import Column, TaskConfig

Lines = Iterator[tuple[int, str]]
Rows = Iterator[tuple[int, Any]]
MOST_MISSES = 100  # searches for an id without a match, each through the whole file
_BETWEEN = re.compile(r"[\s,]*")


@dataclass
class Gaps:
    """What happens to rows with too few cells: they are refused, unless one of these is set."""

    are_filled: bool = False  # missing cells are empty texts; a blank line is a row
    are_left_out: bool = False
    keep_lengths: bool = False  # a blank JSON line has lists as long as the first record's, instead of empty ones
    num_rows: int = 0  # rows with too few cells, so far
    first: str = ""  # the place of the first one

    def add(self, place: str) -> None:
        """Count a row."""
        self.num_rows += 1
        self.first = self.first or place


@dataclass(frozen=True)
class Table:
    """Rows of named values, or sentences of words."""

    name: str  # of the file or dataset, for messages
    format: str
    names: tuple[str, ...]  # of the columns, in order; none for sentences
    rows: Rows  # the number of the line or record, and its values by column or its sentence; read once
    gaps: Gaps
    is_typed: bool = False  # values have types, as in JSON; else all are text
    has_header: bool = True  # the first line, or each record, names the columns
    counts: str = ""  # what row numbers count, where not lines
    unit: str = ""  # what a row is, where there are no columns

    def place(self, number: int) -> str:
        """Name a row for messages, such as `dev.tsv:12`."""
        return f"{self.name}:{self.counts}{number}"

    def find(self, column: Column, setting: str, needed: bool = True) -> str | None:
        """Find the name of a column.

        Raises:
            InputError: the column is needed and missing, or two columns have its name.
        """
        if column is None and not needed:
            return None
        if isinstance(column, int):
            if not -len(self.names) <= column < len(self.names):
                missing = f"no column {column} (it has {len(self.names)}){self._other_separator()}"
                raise InputError(f"{self.place(1)}: {missing}; set task.columns.{setting}=")
            return self.names[column]
        for name in names_of(column):
            if self.names.count(name) > 1:
                raise InputError(f"{self.place(1)}: two columns '{name}'; rename one of them")
            if name in self.names:
                return name
        if not needed and not isinstance(column, str):
            return None
        expected = " or ".join(f"'{name}'" for name in names_of(column)) or f"for task.columns.{setting}"
        hints = [self._other_separator(), *(nearest(name, self.names) for name in names_of(column))]
        raise InputError(
            f"{self.place(1)}: no column {expected} (it has: {', '.join(repr(name[:30]) for name in self.names)})"
            f"{next(filter(None, hints), '')}; set task.columns.{setting}="
        )

    def _other_separator(self) -> str:
        """The hint for a single column whose name contains another separator."""
        if self.is_typed or len(self.names) != 1:
            return ""
        ways = {";": "write the file with commas", "\t": "set task.format=tsv", ",": "set task.format=csv"}
        hints = (f"; it looks separated by {mark!r}: {way}" for mark, way in ways.items() if mark in self.names[0])
        return next(hints, "")


def names_of(column: Column) -> tuple[str, ...]:
    """The names that a column may have; none where it has a number."""
    return (column,) if isinstance(column, str) else column if isinstance(column, tuple) else ()


def all_names(task: TaskConfig) -> set[str]:
    """The names that any of a task's columns may have."""
    return {name for column in vars(task.columns).values() for name in names_of(column)}


def open_table(task: TaskConfig, path: Path, format: str, lines: Lines, gaps: Gaps) -> Table:
    """Open numbered lines as rows of a format; raises InputError if a line does not fit the format."""
    name = str(path)
    match format:
        case "text":
            texts = ((n, {"text": "" if is_blank(line) else line}) for n, line in lines)
            return Table(name, format, ("text",), texts, gaps, unit="a text per line")
        case "words":
            return Table(name, format, (), read_words(lines), gaps, unit="a sentence of words per line")
        case "conll" | "conllu":
            unit = f"{'documents' if task.documents else 'sentences'} of words"
            return Table(name, format, (), read_conll(task, path, format, lines), gaps, unit=unit)
        case "label_text":
            cells = ((n, line.partition(" ")) for n, line in lines)
            rows = ((n, {"label": label, "text": text}) for n, (label, _, text) in cells)
            return Table(name, format, ("label", "text"), rows, gaps)
        case "tsv":
            return _delimited(task, name, format, ((n, line.split("\t")) for n, line in lines), gaps)
        case "csv":
            return _delimited(task, name, format, _csv_rows(name, lines), gaps)
        case "json":
            return records(name, format, _json(name, text_files.join_lines(path, lines)), gaps)
    return records(name, format, _json_lines(name, lines, gaps), gaps)


def _csv_rows(name: str, lines: Lines) -> Iterator[tuple[int, list[str]]]:
    limit = LINE_MB * 1_000_000
    csv.field_size_limit(limit)  # a cell may hold a whole document
    number, length = 1, 0

    def of_record() -> Iterator[str]:
        nonlocal length
        for _, line in lines:
            length += len(line)
            if length > limit:
                raise InputError(f"{name}:{number}: a record {TOO_LONG}, or close its quote")
            yield f"{line}\n"

    reader = csv.reader(of_record(), strict=True)
    try:
        for cells in reader:
            yield number, cells or [""]
            number, length = reader.line_num + 1, 0
    except csv.Error as error:
        way_out = 'quote cells as in "a ""b""", or set task.format='
        raise InputError(f"{name}:{number}: not CSV ({error}); {way_out}") from None


def _delimited(task: TaskConfig, name: str, format: str, rows: Iterator[tuple[int, list[str]]], gaps: Gaps) -> Table:
    first_line, first = next(rows)
    has_header = task.header
    if has_header is None:  # the line has a column's name, or only names could tell the columns
        has_numbers = any(isinstance(column, int) for column in vars(task.columns).values())
        has_header = not all_names(task).isdisjoint(first) or not (task.column_names or has_numbers)
    columns = tuple(first) if has_header else task.column_names or tuple(f"column {n}" for n in range(len(first)))
    if not has_header:
        rows = itertools.chain([(first_line, first)], rows)
    named = _named_cells(name, columns, len(first), rows, gaps)
    return Table(name, format, columns, named, gaps, has_header=has_header)


def _named_cells(
    name: str, columns: tuple[str, ...], width: int, rows: Iterator[tuple[int, list[str]]], gaps: Gaps
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows by column; short ones are filled up to the `width` of the first line, or left out, or refused."""
    blank: int | None = None  # the first of the last blank lines; at the end they are no rows
    for line, cells in rows:
        is_blank_row = len(cells) == 1 and is_blank(cells[0])
        if gaps.are_filled:
            if is_blank_row:
                cells = [""]
            elif len(cells) < width:
                gaps.add(f"{name}:{line}")
            cells = cells + [""] * (width - len(cells))
        elif is_blank_row and len(columns) > 1 and not gaps.are_left_out:
            blank = blank or line
            continue
        if blank is not None:
            line, cells = blank, [""]
        if len(cells) < len(columns) and gaps.are_left_out:
            gaps.add(f"{name}:{line}")
            continue
        if len(cells) != len(columns):
            much = "many" if len(cells) > len(columns) else "few"
            raise InputError(
                f"{name}:{line}: too {much} cells ({len(cells)}, expected {len(columns)}: "
                f"{', '.join(column[:30] for column in columns)}); correct the line, or set task.format="
            )
        yield line, dict(zip(columns, cells, strict=True))


def records(name: str, format: str, rows: Iterable[tuple[int, Any]], gaps: Gaps, counts: str = "") -> Table:
    """Open mappings as rows; the first one names the columns.

    Raises:
        InputError: there is no record, or one is not a mapping.
    """

    def mappings() -> Iterator[tuple[int, Mapping[str, Any]]]:
        for number, row in rows:
            if not isinstance(row, dict):
                raise InputError(f"{name}:{counts}{number}: {type(row).__name__}, expected an object with named fields")
            yield number, _clean(row)

    own = mappings()
    first = next(own, None)
    if first is None:
        raise InputError(f"{name}: no records; restore it")
    return Table(name, format, tuple(first[1]), itertools.chain([first], own), gaps, is_typed=True, counts=counts)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value


def _json_lines(name: str, lines: Lines, gaps: Gaps) -> Rows:
    """A record per line. Where gaps are filled, a blank line is a record like the first, with empty texts and lists."""
    empty: dict[str, Any] | None = None
    waiting: list[int] = []  # blank lines before the first record

    def emptied(value: Any) -> Any:
        if isinstance(value, list):
            return [""] * len(value) if gaps.keep_lengths else []
        return "" if isinstance(value, str) else None

    for number, line in lines:
        if not is_blank(line):
            try:
                record = parse_json(line)
            except ValueError as error:
                raise InputError(f"{name}:{number}: not JSON ({error}); expected one object per line") from None
            if empty is None:
                empty = {key: emptied(value) for key, value in record.items()} if isinstance(record, dict) else {}
                yield from ((place, empty) for place in waiting)
            yield number, record
        elif gaps.are_filled and empty is None:
            waiting.append(number)
        elif gaps.are_filled:
            yield number, empty


def _json(name: str, text: str) -> Rows:
    """The records of `{"data": [...]}`, of an array, or of lines; the ending of a file need not tell which."""
    if text.lstrip().startswith("["):
        return _array(name, text)
    try:
        whole = parse_json(text)
    except ValueError:
        whole = None
    if not isinstance(whole, dict):
        return _json_lines(name, enumerate(text.split("\n"), 1), Gaps())
    data = whole.get("data")
    return _flat_records(name, text, data if isinstance(data, list) else [whole])


def _array(name: str, text: str) -> Rows:
    """The elements of an array, each with the line where it begins."""
    decoder = json.JSONDecoder()
    position = _BETWEEN.match(text, text.index("[") + 1).end()  # type: ignore[union-attr]
    line, counted = 1, 0
    while text[position : position + 1] != "]":
        line, counted = line + text.count("\n", counted, position), position
        try:
            value, end = decoder.raw_decode(text, position)
            if text_files.is_deep(value):
                raise ValueError(TOO_DEEP)
        except (ValueError, RecursionError) as error:
            reason = TOO_DEEP if isinstance(error, RecursionError) else error
            raise InputError(f"{name}:{line}: not JSON ({reason}); restore the file") from None
        yield line, value
        position = _BETWEEN.match(text, end).end()  # type: ignore[union-attr]


def _flat_records(name: str, text: str, data: list[Any]) -> Rows:
    """The records of `data`, nested ones by question, with the line of their id in `text`."""
    line, position, misses = 1, -1, 0
    for number, record in enumerate(data):
        for question in _questions(name, f"data[{number}]", record):
            is_sought = isinstance(question, dict) and misses < MOST_MISSES
            place = text.find(json.dumps(str(question.get("id"))), position + 1) if is_sought else -1
            misses += place < 0
            if place >= 0:
                line, position = line + text.count("\n", max(position, 0), place), place
            yield line, question


def _questions(name: str, where: str, record: Any) -> Iterator[Any]:
    if not isinstance(record, dict) or "paragraphs" not in record:
        yield record
        return
    for n, paragraph in enumerate(_list(name, where, record, "paragraphs")):
        inside = f"{where}.paragraphs[{n}]"
        if not isinstance(paragraph, dict) or "context" not in paragraph:
            raise InputError(f"{name}: {inside}: no field 'context'; expected SQuAD's layout, with context and qas")
        for m, question in enumerate(_list(name, inside, paragraph, "qas")):
            if not isinstance(question, dict):
                raise InputError(f"{name}: {inside}.qas[{m}]: expected an object with id, question and answers")
            yield {**question, "context": paragraph["context"]}


def _list(name: str, where: str, record: Any, field: str) -> list[Any]:
    if not isinstance(record.get(field), list):
        raise InputError(f"{name}: {where}: no list '{field}'; expected SQuAD's layout, data, paragraphs and qas")
    return list(record[field])
