"""Parse numbered lines into rows, which map column names to values.

TSV is read as in GLUE: a quote is an ordinary character, and no word stands for a missing value. CSV follows RFC 4180: quoted
cells may contain commas and line breaks. SQuAD's JSON, nested or flat, becomes a flat record for each question:

    {"data": [{"paragraphs": [{"context": ..., "qas": [{"id": ..., "question": ..., "answers": [...]}]}]}]}
    {"data": [{"id": ..., "question": ..., "context": ..., "answers": ...}]}

`plausible_answers` of SQuAD 2.0 do not answer the question and are ignored.
"""

import csv
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError, check_distinct, named, nearest
from bertkit.base.json_stream import json_values
from bertkit.base.text_files import LINE_MB, TOO_LONG, is_blank, parse_json, without_surrogates
from bertkit.tasks.reading.conll import read_conll, read_words
from bertkit.tasks.task_config import Column, TaskConfig

Lines = Iterator[tuple[int, str]]
Rows = Iterator[tuple[int, Any]]
CellRows = Iterator[tuple[int, list[str]]]
MAX_FAILED_SEARCHES = 100  # for the line of a question's id; each search goes through the whole file


@dataclass
class ShortRows:
    """Rows with too few cells: how they are treated, and their number. They are an error unless one of the first two is set."""

    are_filled: bool = False  # missing cells become empty texts; a blank line is a row
    are_skipped: bool = False
    keep_lengths: bool = False  # a blank JSON line is filled with lists as long as the first record's
    num_rows: int = 0  # rows with too few cells so far
    first: str = ""  # the place of the first one, such as dev.tsv:12

    def add(self, place: str) -> None:
        """Count a row with too few cells."""
        self.num_rows += 1
        self.first = self.first or place


@dataclass(frozen=True)
class Table:
    """An iterator over rows with named columns, or over sentences."""

    name: str  # the file or dataset, for messages
    format: str
    names: tuple[str, ...]  # the columns in order; empty for sentences
    rows: Rows  # yields the number of a line or record, and its row or `Sentence`
    short_rows: ShortRows
    is_typed: bool = False  # whether values have types, as in JSON; otherwise all are text
    has_header: bool = True  # whether the first line, or each record, names the columns
    counts: str = ""  # what the numbers count, if not lines; such as " record "
    unit: str = ""  # describes a row of a file without columns

    def place(self, number: int) -> str:
        """Return the place of a row for messages, such as `dev.tsv:12`."""
        return f"{self.name}:{self.counts}{number}"

    def find(self, column: Column, setting: str, needed: bool = True) -> str | None:
        """Return a setting's column; raises InputError if it is needed and missing, or two columns have its name."""
        if column is None and not needed:
            return None
        if isinstance(column, int):
            if not -len(self.names) <= column < len(self.names):
                missing = f"no column {column} (it has {len(self.names)}){self._other_separator()}"
                raise InputError(f"{self.place(1)}: {missing}; set task.columns.{setting}=")
            return self.names[column]
        for name in names_of(column):
            check_distinct((other for other in self.names if other == name), self.place(1))
            if name in self.names:
                return name
        if not needed and not isinstance(column, str):
            return None
        expected = " or ".join(f"'{name}'" for name in names_of(column)) or f"for task.columns.{setting}"
        hints = [self._other_separator(), *(nearest(name, self.names) for name in names_of(column))]
        raise InputError(
            f"{self.place(1)}: no column {expected} (it has: {named(self.names)})"
            f"{next(filter(None, hints), '')}; set task.columns.{setting}="
        )

    def _other_separator(self) -> str:
        """Return a hint if the only column's name contains another separator."""
        if self.is_typed or len(self.names) != 1:
            return ""
        mark = next((mark for mark in ";\t,|" if mark in self.names[0]), None)
        ways = {"\t": "set task.format=tsv", ",": "set task.format=csv"}
        way = ways.get(mark or "", f"set \"task.separator='{mark}'\"")
        return f"; it looks separated by {mark!r}: {way}" if mark else ""


def names_of(column: Column) -> tuple[str, ...]:
    """Return the names that a column may have; none if the setting is a number."""
    return (column,) if isinstance(column, str) else column if isinstance(column, tuple) else ()


def first_name(column: Column) -> str:
    """Return the first name that a column may have, or its number."""
    return str(column[0] if isinstance(column, tuple) else column)


def all_names(task: TaskConfig) -> set[str]:
    """Return all names that the columns of a task may have."""
    return {name for column in vars(task.columns).values() for name in names_of(column)}


def open_table(task: TaskConfig, path: Path, format: str, lines: Lines, short_rows: ShortRows) -> Table:
    """Parse numbered lines as rows; raises InputError if a line does not fit the format."""
    name = str(path)
    match format:
        case "text":
            texts = ((n, {"text": "" if is_blank(line) else line}) for n, line in lines)
            return Table(name, format, ("text",), texts, short_rows, unit="a text per line")
        case "words":
            return Table(name, format, (), read_words(lines), short_rows, unit="a sentence of words per line")
        case "conll" | "conllu":
            unit = f"{'documents' if task.documents else 'sentences'} of words"
            return Table(name, format, (), read_conll(task, path, format, lines), short_rows, unit=unit)
        case "label_text":
            cells = ((n, line.partition(" ")) for n, line in lines)
            labelled = ((n, {"label": label, "text": text}) for n, (label, _, text) in cells)
            return Table(name, format, ("label", "text"), labelled, short_rows)
        case "tsv" | "csv":
            first, usual = next(lines), "\t" if format == "tsv" else ","
            mark = _separator(task, usual, first[1])
            lines = itertools.chain([first], lines)
            rows = _csv_rows(name, lines, mark) if format == "csv" else ((n, line.split(mark)) for n, line in lines)
            format += "" if mark == usual else f" separated by {mark!r}"
            return _delimited(task, name, format, rows, short_rows)
        case "json":
            return records(name, format, _json(name, lines), short_rows)
    return records(name, format, _json_lines(name, lines, short_rows), short_rows)


def _separator(task: TaskConfig, usual: str, first_line: str) -> str:
    """Return the separator of a table; unless it is set, another one is detected if it separates a known column's name."""
    if task.separator != "auto":
        return task.separator
    cells = {mark: {cell.strip('"') for cell in first_line.split(mark)} for mark in ";\t|" if mark in first_line}
    is_usual = usual == "\t" or usual in first_line
    return next((mark for mark, names in cells.items() if not is_usual and names & all_names(task)), usual)


def _csv_rows(name: str, lines: Lines, separator: str) -> CellRows:
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

    reader = csv.reader(of_record(), strict=True, delimiter=separator)
    try:
        for cells in reader:
            yield number, cells or [""]
            number, length = reader.line_num + 1, 0
    except csv.Error as error:
        advice = 'quote cells as in "a ""b""", or set task.format='
        raise InputError(f"{name}:{number}: not CSV ({error}); {advice}") from None


def _delimited(task: TaskConfig, name: str, format: str, rows: CellRows, short_rows: ShortRows) -> Table:
    first_line, first = next(rows)
    has_header = task.header
    if has_header is None:  # a header if it has a column's name, or if the columns have no other names or numbers
        has_numbers = any(isinstance(column, int) for column in vars(task.columns).values())
        has_header = not all_names(task).isdisjoint(first) or not (task.column_names or has_numbers)
    columns = tuple(first) if has_header else task.column_names or tuple(f"column {n}" for n in range(len(first)))
    if not has_header:
        rows = itertools.chain([(first_line, first)], rows)
    cells = _named_cells(name, columns, len(first), rows, short_rows)
    return Table(name, format, columns, cells, short_rows, has_header=has_header)


def _named_cells(
    name: str, columns: tuple[str, ...], width: int, rows: CellRows, short_rows: ShortRows
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield rows by column; a row with too few cells is filled up to `width`, the first line's cells, or skipped, or refused."""
    blank: int | None = None  # the first of consecutive blank lines; they are ignored only at the end of the file
    for line, cells in rows:
        is_blank_row = len(cells) == 1 and is_blank(cells[0])
        if short_rows.are_filled:
            if is_blank_row:
                cells = [""]
            elif len(cells) < width:
                short_rows.add(f"{name}:{line}")
            cells = cells + [""] * (width - len(cells))
        elif is_blank_row and len(columns) > 1 and not short_rows.are_skipped:
            blank = blank or line
            continue
        if blank is not None:
            line, cells = blank, [""]
        if len(cells) < len(columns) and short_rows.are_skipped:
            short_rows.add(f"{name}:{line}")
            continue
        if len(cells) != len(columns):
            much = "many" if len(cells) > len(columns) else "few"
            raise InputError(
                f"{name}:{line}: too {much} cells ({len(cells)}, expected {len(columns)}: "
                f"{named(columns)}); correct the line, or set task.format="
            )
        yield line, dict(zip(columns, cells, strict=True))


def records(name: str, format: str, rows: Iterable[tuple[int, Any]], short_rows: ShortRows, counts: str = "") -> Table:
    """Open mappings, at least one, as rows; the keys of the first are the columns; raises InputError for any other record."""

    def mappings() -> Iterator[tuple[int, Mapping[str, Any]]]:
        for number, row in rows:
            if not isinstance(row, dict):
                raise InputError(f"{name}:{counts}{number}: {type(row).__name__}; expected an object with named fields")
            yield number, _clean(row)

    own = mappings()
    first = next(own, None)
    if first is None:
        raise InputError(f"{name}: no records; add examples, or give another file")
    return Table(name, format, tuple(first[1]), itertools.chain([first], own), short_rows, is_typed=True, counts=counts)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value


def _json_lines(name: str, lines: Lines, short_rows: ShortRows) -> Rows:
    """Yield a record for each line. With `are_filled`, a blank line is a record with the first record's keys and empty values."""
    empty: dict[str, Any] | None = None
    waiting: list[int] = []  # blank lines before the first record

    def emptied(value: Any) -> Any:
        if isinstance(value, list):
            return [""] * len(value) if short_rows.keep_lengths else []
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
        elif short_rows.are_filled and empty is None:
            waiting.append(number)
        elif short_rows.are_filled:
            yield number, empty


def _json(name: str, blocks: Lines) -> Rows:
    """Return the records of `{"data": [...]}`, of an array, or of JSON lines, whichever the text contains."""
    values = json_values(name, blocks)
    start = list(itertools.islice(values, 2))
    if len(start) == 1 and isinstance(start[0][1], dict) and start[0][2]:
        line, whole, text = start[0]
        data = whole.get("data")
        return _flat_records(name, line, text, data if isinstance(data, list) else [whole])
    return ((line, value) for line, value, _ in itertools.chain(start, values))


def _flat_records(name: str, line: int, text: str, data: list[Any]) -> Rows:
    """Yield the records of `data`, or their nested questions, each with the line that has its id; `text` begins at `line`."""
    position, misses = -1, 0
    for number, record in enumerate(data):
        for question in _questions(name, f"data[{number}]", record):
            is_sought = isinstance(question, dict) and misses < MAX_FAILED_SEARCHES
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
