"""Numbered lines -> rows: column name -> value, each with its place.

TSV is read as GLUE writes it: a quote is a character like any other, and no word stands for a missing value. CSV is
read as RFC 4180 has it: quoted cells may hold commas and line breaks. SQuAD's JSON, nested or flat, becomes one flat record
per question:

    {"data": [{"paragraphs": [{"context": ..., "qas": [{"id": ..., "question": ..., "answers": [...]}]}]}]}
    {"data": [{"id": ..., "question": ..., "context": ..., "answers": ...}]}

`plausible_answers` of SQuAD 2.0 are answers to another question, and are left out.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError
from bertkit.base.text_files import (
    LINE_MB,
    TOO_DEEP,
    TOO_LONG,
    is_blank,
    is_deep,
    joined,
    parse_json,
    without_surrogates,
)
from bertkit.base.typed_settings import nearest
from bertkit.tasks.reading.conll import read_conll, read_words
from bertkit.tasks.task_config import Column, TaskConfig

Lines = Iterator[tuple[int, str]]
Rows = Iterator[tuple[int, Any]]
MOST_MISSES = 100  # ids sought in vain, each through the whole file
_BETWEEN = re.compile(r"[\s,]*")


@dataclass
class Gaps:
    """Rows that lack cells."""

    are_filled: bool = False  # they are rows as others are, with empty texts; so is every blank line
    are_left_out: bool = False  # else they are left out; or they are refused
    keep_lengths: bool = False  # a list of a blank line of JSON is as long as that of the first record, and not empty
    num_rows: int = 0  # how many there were, among the rows that have been read
    first: str = ""  # the place of the first of them

    def add(self, place: str) -> None:
        """Count one more."""
        self.num_rows += 1
        self.first = self.first or place


@dataclass(frozen=True)
class Table:
    """Rows of named values, or sentences of words."""

    name: str  # of the file or dataset, for messages
    format: str  # that it is written in
    names: tuple[str, ...]  # of the columns, in their order; none of sentences
    rows: Rows  # the number of a row's line, or of the record, and its values by column, or the sentence; none is kept
    gaps: Gaps  # the rows that lack cells
    is_typed: bool = False  # whether values are typed, as in JSON, or all text, as in CSV
    has_header: bool = True  # whether the first line, or each record, names the columns
    counts: str = ""  # what the numbers of rows count, where it is not lines
    unit: str = ""  # what a row is, where no columns say it

    def place(self, number: int) -> str:
        """Name a row for messages, such as `dev.tsv:12`."""
        return f"{self.name}:{self.counts}{number}"

    def find(self, given: Column, setting: str, needed: bool = True) -> str | None:
        """Find the name of the column that a setting asks for.

        Raises:
            InputError: it is not there though it is needed, or two columns have its name.
        """
        if given is None and not needed:
            return None
        if isinstance(given, int):
            if not self.names or not -len(self.names) <= given < len(self.names):
                raise InputError(
                    f"{self.place(1)}: no column {given} (it has {len(self.names)}){self._other_separator()}; "
                    f"set task.columns.{setting}="
                )
            return self.names[given]
        wanted = (given,) if isinstance(given, str) else given or ()
        for name in wanted:
            if self.names.count(name) > 1:
                raise InputError(f"{self.place(1)}: two columns '{name}'; rename one of them")
            if name in self.names:
                return name
        if not needed and not isinstance(given, str):
            return None
        which = " or ".join(f"'{name}'" for name in wanted) or f"for task.columns.{setting}"
        hint = self._other_separator() or next((hint for name in wanted if (hint := nearest(name, self.names))), "")
        raise InputError(
            f"{self.place(1)}: no column {which} (it has: {', '.join(repr(name[:30]) for name in self.names)}){hint}; "
            f"set task.columns.{setting}="
        )

    def _other_separator(self) -> str:
        """What to say of a single column whose name holds what may part several."""
        found = next(
            (mark for mark in ";\t," if not self.is_typed and len(self.names) == 1 and mark in self.names[0]), None
        )
        if found is None:
            return ""
        way = {"\t": "set task.format=tsv", ",": "set task.format=csv"}.get(found, "write the file with commas")
        return f"; its cells look parted by {found!r}: {way}"


def open_table(task: TaskConfig, name: Path, format: str, lines: Lines, gaps: Gaps) -> Table:
    """Open the numbered lines of a file as rows of a format.

    Raises:
        InputError: they are not what the format says, with the line; some of it while the rows are read.
    """
    match format:
        case "text":
            texts = ((n, {"text": "" if is_blank(line) else line}) for n, line in lines)
            return Table(str(name), format, ("text",), texts, gaps, unit="a text a line")
        case "words":
            return Table(str(name), format, (), read_words(lines), gaps, unit="a sentence of words a line")
        case "conll" | "conllu":
            unit = f"{'documents' if task.documents else 'sentences'} of words"
            return Table(str(name), format, (), read_conll(task, name, format, lines), gaps, unit=unit)
        case "label_text":
            parted = ((n, line.partition(" ")) for n, line in lines)
            rows = ((n, {"label": label, "text": text}) for n, (label, _, text) in parted)
            return Table(str(name), format, ("label", "text"), rows, gaps)
        case "tsv":
            return _delimited(task, name, format, ((n, line.split("\t")) for n, line in lines), gaps)
        case "csv":
            return _delimited(task, name, format, _csv_rows(name, lines), gaps)
        case "json":
            return records(name, format, _json(name, joined(name, lines)), gaps)
    return records(name, format, _json_lines(name, lines, gaps), gaps)


def _csv_rows(name: Path, lines: Lines) -> Iterator[tuple[int, list[str]]]:
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
        raise InputError(
            f'{name}:{number}: not CSV ({error}); quote cells as in "a ""b""", or set task.format='
        ) from None


def _delimited(task: TaskConfig, name: Path, format: str, rows: Iterator[tuple[int, list[str]]], gaps: Gaps) -> Table:
    first_line, first = next(rows)
    has_header = task.header if task.header is not None else _is_header(task, first)
    columns = tuple(first) if has_header else task.column_names or tuple(f"column {n}" for n in range(len(first)))
    if not has_header:
        rows = itertools.chain([(first_line, first)], rows)
    named = _named_cells(name, columns, len(first), rows, gaps)
    return Table(str(name), format, columns, named, gaps, has_header=has_header)


def _is_header(task: TaskConfig, cells: list[str]) -> bool:
    """Whether a table's first line names its columns: it has a name that is asked for, or names are all there is to go by."""
    given = list(vars(task.columns).values())
    names = {name for column in given for name in names_of(column)}
    return not names.isdisjoint(cells) or not (task.column_names or any(isinstance(column, int) for column in given))


def names_of(column: Column) -> tuple[str, ...]:
    """The names that a column may have; none where it has a number."""
    return (column,) if isinstance(column, str) else column if isinstance(column, tuple) else ()


def _is_blank_row(cells: list[str]) -> bool:
    return len(cells) == 1 and is_blank(cells[0])


def _named_cells(
    name: Path, columns: tuple[str, ...], width: int, rows: Iterator[tuple[int, list[str]]], gaps: Gaps
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows by column; short ones are filled up to the `width` of the first, or counted and left out, or refused."""
    blank: int | None = None  # blank lines at the end are no rows
    for line, cells in rows:
        if gaps.are_filled and (len(cells) < width or _is_blank_row(cells)):
            if _is_blank_row(cells):
                cells = [""]
            else:
                gaps.add(f"{name}:{line}")
            cells = cells + [""] * (width - len(cells))
        if len(columns) > 1 and _is_blank_row(cells) and not gaps.are_left_out:
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


def records(name: Path | str, format: str, rows: Iterable[tuple[int, Any]], gaps: Gaps, counts: str = "") -> Table:
    """Open mappings as rows, with the columns of the first.

    Raises:
        InputError: there is none, or one is no mapping.
    """

    def checked() -> Iterator[tuple[int, Mapping[str, Any]]]:
        for number, row in rows:
            if not isinstance(row, dict):
                found = type(row).__name__
                raise InputError(f"{name}:{counts}{number}: {found}, expected an object with named fields")
            yield number, _clean(row)

    mappings = checked()
    first = next(mappings, None)
    if first is None:
        raise InputError(f"{name}: no records; restore it")
    chained = itertools.chain([first], mappings)
    return Table(str(name), format, tuple(first[1]), chained, gaps, is_typed=True, counts=counts)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value


def _json_lines(name: Path, lines: Lines, gaps: Gaps) -> Rows:
    """A record a line. Where gaps are filled, a blank line is a record like the first, with empty texts and lists."""
    blank: dict[str, Any] | None = None
    before: list[int] = []  # blank lines before the first record

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
            if blank is None:
                blank = {key: emptied(value) for key, value in record.items()} if isinstance(record, dict) else {}
                yield from ((place, blank) for place in before)
            yield number, record
        elif gaps.are_filled and blank is None:
            before.append(number)
        elif gaps.are_filled:
            yield number, blank


def _json(name: Path, text: str) -> Rows:
    """The records of `{"data": [...]}`, of an array, or of lines; a file's ending need not say which."""
    if text.lstrip().startswith("["):
        return _array(name, text)
    try:
        whole = parse_json(text)
    except ValueError:
        whole = None
    if not isinstance(whole, dict):
        return _json_lines(name, enumerate(text.split("\n"), 1), Gaps())
    data = whole.get("data")
    return flatten(name, text, data if isinstance(data, list) else [whole])


def _array(name: Path, text: str) -> Rows:
    """The elements of an array, each with the line where it begins."""
    decoder = json.JSONDecoder()
    position = _BETWEEN.match(text, text.index("[") + 1).end()  # type: ignore[union-attr]
    line, counted = 1, 0
    while text[position : position + 1] != "]":
        line, counted = line + text.count("\n", counted, position), position
        try:
            value, end = decoder.raw_decode(text, position)
            if is_deep(value):
                raise ValueError(TOO_DEEP)
        except (ValueError, RecursionError) as error:
            reason = TOO_DEEP if isinstance(error, RecursionError) else error
            raise InputError(f"{name}:{line}: not JSON ({reason}); restore the file") from None
        yield line, value
        position = _BETWEEN.match(text, end).end()  # type: ignore[union-attr]


def flatten(path: Path, text: str, data: list[Any]) -> Iterator[tuple[int, Any]]:
    """Give every record of `data`, the nested ones by question, with the line where its id stands in `text`.

    Raises:
        InputError: a level of the nesting is missing.
    """
    line, position, misses = 1, -1, 0
    for number, record in enumerate(data):
        for question in _questions(path, f"data[{number}]", record):
            is_sought = isinstance(question, dict) and misses < MOST_MISSES
            found = text.find(json.dumps(str(question.get("id"))), position + 1) if is_sought else -1
            misses += found < 0
            if found >= 0:
                line, position = line + text.count("\n", max(position, 0), found), found
            yield line, question


def _questions(path: Path, where: str, record: Any) -> Iterator[Any]:
    if not isinstance(record, dict) or "paragraphs" not in record:
        yield record
        return
    for n, paragraph in enumerate(_list(path, where, record, "paragraphs")):
        inside = f"{where}.paragraphs[{n}]"
        if not isinstance(paragraph, dict) or "context" not in paragraph:
            raise InputError(f"{path}: {inside}: no field 'context'; expected SQuAD's layout, with context and qas")
        for m, question in enumerate(_list(path, inside, paragraph, "qas")):
            if not isinstance(question, dict):
                raise InputError(f"{path}: {inside}.qas[{m}]: expected an object with id, question and answers")
            yield {**question, "context": paragraph["context"]}


def _list(path: Path, where: str, record: Any, field: str) -> list[Any]:
    if not isinstance(record.get(field), list):
        raise InputError(f"{path}: {where}: no list '{field}'; expected SQuAD's layout, data, paragraphs and qas")
    return list(record[field])
