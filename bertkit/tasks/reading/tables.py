"""Parse numbered lines into rows, which map column names to values.

CSV follows RFC 4180: quoted cells may contain commas and line breaks. In TSV a quote is an ordinary character, as in GLUE, and no
word stands for a missing value; but in other files than those of a benchmark, a cell such as "a ""b"" c" is unquoted, as pandas
writes it, and a file follows RFC 4180 if its header is in quotes, or if those cells that need quotes have them, and no others.
"""

import csv
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bertkit.base.errors import InputError, by_similarity, check_distinct, named, nearest, refusing, user_name
from bertkit.base.json_stream import with_inner_texts
from bertkit.base.text_files import LINE_MB, TOO_LONG, is_blank
from bertkit.tasks.reading.cells import CellRows, Cells, Lines, ShortRows, wrong_number
from bertkit.tasks.reading.conll import Sentence, read_conll, read_words
from bertkit.tasks.reading.json_records import cells_of, json_lines, json_records
from bertkit.tasks.task_config import Column, TaskConfig, first_name, must_exist, names_of

_QUOTED = re.compile(r'"(?:[^"]|"")*"')
# only cells with a quote, a tab, a line break or a carriage return are in quotes, and for Excel those with a comma
_WHERE_NEEDED = [
    re.compile(rf'(?:(?:"[^"\r{mark}]*+(?:[\r{mark}]|"")(?:[^"]|"")*+"|[^"{mark}]*+)[\t\n])++')
    for mark in (r"\t\n", r",\t\n")
]
_NUMBER = re.compile(r"\s*[+-]?\d+(\.\d+)?\s*")
_TOLD = re.compile(r"\ufeff?\"?sep=([,;|\t])\"?")  # Excel's own first line, the separator
COUNTED_LINES = 5  # the first ones, which show the separator
LARGEST_RECORD = LINE_MB * 1_000_000  # characters
MANY_WORDS = 4  # in a text; the name of a column has fewer
ROWS_AHEAD = 1000  # rows that show whether the first one is a header
SEPARATORS = {"tsv": "\t", "csv": ","}
_OTHER_SEPARATORS = {  # the settings for them
    ";": "set \"task.separator=';'\"",
    "\t": "set {}=tsv",
    ",": "set {}=csv",
    "|": "set \"task.separator='|'\"",
}


class TableRow(NamedTuple):
    """A row of a table, or a sentence of a file without columns."""

    number: int  # of its line or record
    cells: Cells
    sentence: Sentence | None = None


Rows = Iterator[TableRow]


@dataclass(frozen=True)
class InputTable:
    """An iterator over rows with named columns, or over sentences."""

    name: str  # the file or dataset, for messages
    format: str
    names: tuple[str, ...]  # the columns in order; empty for sentences
    rows: Rows
    short_rows: ShortRows
    is_typed: bool = False  # whether values have types, as in JSON; otherwise all are text
    has_header: bool = True  # whether the first line, or each record, names the columns
    counts: str = ""  # what the numbers count, if not lines; such as " record "
    unit: str = ""  # describes a row of a file without columns
    note: str = ""  # what was made of a file without a header

    def place(self, number: int) -> str:
        """Return the place of a row for messages, such as `dev.tsv:12`."""
        return f"{self.name}:{self.counts}{number}"

    def sentences(self) -> Iterator[Sentence]:
        """Return the sentences of a file without columns."""
        return (row.sentence for row in self.rows if row.sentence is not None)

    def present(self, column: Column) -> str | None:
        """Return the name of a column; None if it is missing. Raises InputError if two columns have its name."""
        if isinstance(column, int):
            return self.names[column] if -len(self.names) <= column < len(self.names) else None
        name = next((name for name in names_of(column) if name in self.names), None)
        if name is not None:
            check_distinct(itertools.repeat(name, self.names.count(name)), self.place(1))
        return name

    def missing(self, column: Column, setting: str) -> str:
        """Return the message about a setting's column that is missing."""
        names = names_of(column)
        expected = str(column) if isinstance(column, int) else " or ".join(f"'{name}'" for name in names)
        is_told = self.is_typed or not self.has_header or must_exist(column)
        number = "" if is_told else " to its name, or without a header to its number from 0"
        with_words = (one for one in self.names if not {*names}.isdisjoint(re.split(r"[\W_]+", one.lower())))
        in_words = next((f"; did you mean {one!r}?" for one in with_words), "")
        hints = [self._other_separator(), in_words, *(nearest(name, self.names) for name in names)]
        key = user_name(f"task.columns.{setting}")
        return (
            f"{self.place(1)}: no column {expected or f'for {key}'} (it has: "
            f"{named(by_similarity(names, self.names)) or 'none'}){next(filter(None, hints), '')}; set {key}={number}"
        )

    def find(self, column: Column, setting: str) -> str:
        """Return a setting's column; raises InputError if it is missing, or two columns have its name."""
        if (name := self.present(column)) is None:
            raise InputError(self.missing(column, setting))
        return name

    def find_optional(self, column: Column, setting: str) -> str | None:
        """Return a setting's column; None if the setting is null, or the table has none of the names in its list."""
        return self.find(column, setting) if must_exist(column) else self.present(column)

    def _other_separator(self) -> str:
        """Return a hint if the only column's name contains another separator."""
        if self.is_typed or len(self.names) != 1:
            return ""
        marks = (mark for mark in _OTHER_SEPARATORS if mark in self.names[0])
        ways = ((mark, _OTHER_SEPARATORS[mark].format(user_name("task.format"))) for mark in marks)
        return next((f"; it looks separated by {mark!r}: {way}" for mark, way in ways), "")


def all_names(task: TaskConfig) -> set[str]:
    """Return all names that the columns of a task may have."""
    return set(itertools.chain.from_iterable(map(names_of, vars(task.columns).values())))


def open_table(task: TaskConfig, path: Path, format: str, lines: Lines, short_rows: ShortRows) -> InputTable:
    """Parse numbered lines as rows; raises InputError if a line does not fit the format."""
    name = str(path)
    if format not in ("json", "jsonl"):  # where they are white space
        lines = _with_line_feeds(name, lines)
    match format:
        case "text":
            texts = (TableRow(n, {"text": "" if is_blank(line) else line}) for n, line in lines)
            return InputTable(name, format, ("text",), texts, short_rows, unit="a text per line")
        case "words":
            return _sentences(name, format, read_words(lines), short_rows, "a sentence of words per line")
        case "conll" | "conllu":
            unit = "documents of words" if task.documents else "sentences of words"
            return _sentences(name, format, read_conll(task, path, format, lines), short_rows, unit)
        case "label_text":
            cells = ((n, line.partition(" ")) for n, line in lines)
            labelled = (TableRow(n, {"label": label, "text": text}) for n, (label, _, text) in cells)
            return InputTable(name, format, ("label", "text"), labelled, short_rows)
        case "tsv" | "csv":
            csv.field_size_limit(LARGEST_RECORD)  # a cell may hold a whole document
            first, usual = next(lines), SEPARATORS[format]
            told = _TOLD.fullmatch(first[1].removesuffix("\r"))
            first = next(lines, first) if told else first
            following = list(itertools.islice(lines, (COUNTED_LINES if format == "csv" else ROWS_AHEAD) - 1))
            beginning = [line.removesuffix("\r") for _, line in (first, *following)]
            mark = told[1] if told and task.separator == "auto" else _separator(task, usual, beginning)
            lines = itertools.chain([first], following, lines)
            if format == "csv" or (task.hub.path is None and _has_quotes(beginning, mark)):
                rows = _csv_rows(name, lines, mark, 1 if told else 0)
            else:
                of_line = _unquoted if task.hub.path is None else str.split
                rows = ((n, of_line(line.removesuffix("\r"), mark)) for n, line in lines)
            format += "" if mark == usual else f" separated by {mark!r}"
            return cell_table(task, name, format, rows, short_rows)
        case "json":
            return records(name, format, json_records(name, lines), short_rows)
    return records(name, format, short_rows.with_blank(json_lines(name, lines)), short_rows)


def _with_line_feeds(name: str, lines: Lines) -> Lines:
    """Return the lines; raises InputError for one with carriage returns inside that is alone, as in files of old Macs."""
    head = list(itertools.islice(lines, 2))
    if len(head) == 1 and "\r" in head[0][1].rstrip("\r"):
        raise InputError(f"{name}:1: its lines end in carriage returns alone; convert them, as with tr '\\r' '\\n'")
    return itertools.chain(head, lines)


def _sentences(
    name: str, format: str, sentences: Iterator[tuple[int, Sentence]], short_rows: ShortRows, unit: str
) -> InputTable:
    rows = (TableRow(number, {}, sentence) for number, sentence in sentences)
    return InputTable(name, format, (), rows, short_rows, unit=unit)


def _separator(task: TaskConfig, usual: str, beginning: Sequence[str]) -> str:
    """Return the separator of a table whose first lines are given, unless it is set.

    It is the one that separates a column's known name; or else the usual one, if it is in the first record, except where it gives
    the first records different numbers of cells, and another separator the same number; or else the most frequent one.
    """
    if task.separator != "auto":
        return task.separator
    if usual == SEPARATORS["tsv"]:
        return usual
    records = {mark: _first_records(beginning, mark) for mark in (usual, *";\t|")}
    marks = sorted((mark for mark in ";\t|" if len(records[mark][0]) > 1), key=lambda mark: -len(records[mark][0]))
    marks = [usual, *marks] if len(records[usual][0]) > 1 else marks
    names = all_names(task) if task.header is not False else set[str]()
    known = (mark for mark in marks if not names.isdisjoint(records[mark][0]))
    even = (mark for mark in marks if len({*map(len, records[mark])}) == 1)
    return next(itertools.chain(known, even, marks), usual)


def _has_quotes(beginning: Sequence[str], separator: str) -> bool:
    """Whether a quote around a cell of these lines is no part of it: around each of the header, or where it is needed alone."""
    text = "".join(f"{line}\n" for line in beginning)
    is_needed = '"' in text and separator == "\t" and any(form.fullmatch(text) for form in _WHERE_NEEDED)
    return is_needed or all(map(_QUOTED.fullmatch, beginning[0].split(separator)))


def _first_records(beginning: Sequence[str], separator: str) -> list[list[str]]:
    """Return the complete CSV records in the first lines, at least one; it is empty where the lines are not CSV with this separator."""
    reader, records = csv.reader(beginning, strict=True, delimiter=separator), list[list[str]]()
    try:
        records.extend(filter(None, reader))
    except csv.Error:
        is_cut = reader.line_num == len(beginning)  # in a cell with line breaks
        records += [] if is_cut else [[]]
    return records or [[]]


def _unquoted(line: str, separator: str) -> list[str]:
    """Return the cells of a line; those in quotes that contain doubled quotes are as pandas and other tools write them."""
    cells = line.split(separator)
    if '""' not in line:
        return cells
    return [cell[1:-1].replace('""', '"') if '""' in cell[1:-1] and _QUOTED.fullmatch(cell) else cell for cell in cells]


def _csv_rows(name: str, lines: Lines, separator: str, num_before: int) -> CellRows:
    number, length = 1 + num_before, 0

    def of_record() -> Iterator[str]:
        nonlocal length
        for _, line in lines:
            length += len(line)
            if length > LARGEST_RECORD:
                raise InputError(f"{name}:{number}: a record {TOO_LONG}, or close its quote")
            yield f"{line}\n"

    reader = csv.reader(of_record(), strict=True, delimiter=separator)
    advice = f'quote cells as in "a ""b""", or set {user_name("task.format")}='
    with refusing(csv.Error, lambda error: f"{name}:{number}: not CSV ({error}); {advice}"):
        for cells in reader:
            yield number, cells or [""]
            number, length = reader.line_num + 1 + num_before, 0


def cell_table(
    task: TaskConfig, name: str, format: str, rows: CellRows, short_rows: ShortRows, counts: str = ""
) -> InputTable:
    """Open rows of cells, at least one, as a table; the first one is a header, unless settings or the cells say otherwise."""
    first_line, first = next(rows)
    columns, note, is_known = tuple(first), "", not all_names(task).isdisjoint(first) or _names_settings(task, first)
    has_places = bool(task.column_names) or any(isinstance(column, int) for column in vars(task.columns).values())
    has_header = (is_known or not has_places) if task.header is None else task.header
    if not (is_known or has_places or task.header):
        ahead = [(first_line, first), *itertools.islice(rows, ROWS_AHEAD)]
        rows = itertools.chain(ahead[1:], rows)
        if places := _places(task, [cells for _, cells in ahead if len(cells) == len(first)]):
            has_header, roles = False, [f"column {n} is taken as {role}" for n, role in places.items()]
            note = f"{name} has no header; {', '.join(roles)}; if its first line is one, set task.header=true"
            columns = tuple(
                first_name(vars(task.columns)[places[n]]) if n in places else f"column {n}" for n in range(len(first))
            )
    if not has_header:
        rows = itertools.chain([(first_line, first)], rows)
        columns = columns if note else task.column_names or tuple(f"column {n}" for n in range(len(first)))
    cells = _named_cells(name, columns, short_rows.fitted(name, rows, len(columns), len(first)))
    return InputTable(name, format, columns, cells, short_rows, has_header=has_header, counts=counts, note=note)


def _names_settings(task: TaskConfig, cells: Sequence[str]) -> bool:
    """Whether the columns that the settings number have, in this row, the names of the settings, such as text and label."""
    numbered = {key: column for key, column in vars(task.columns).items() if isinstance(column, int)}
    named = [cells[n].strip().lower() == key for key, n in numbered.items() if -len(cells) <= n < len(cells)]
    return bool(named) and all(named)


def _places(task: TaskConfig, rows: list[list[str]]) -> dict[int, str]:
    """Return the columns of texts and labels in rows without a header, by number; nothing unless it is certain which they are.

    Then the first row is no header, whose names are in no row below: it has a text of several words, which is not repeated, and
    a label that other rows have too, or a number, in a column of numbers.
    """
    if task.kind != "sequence" or task.needs_pair or any(map(must_exist, (task.columns.text, task.columns.label))):
        return {}
    columns = list(enumerate(zip(*rows, strict=True)))
    texts = [n for n, own in columns if len(own[0].split()) >= MANY_WORDS and own[0] not in own[1:]]
    labels = [n for n, own in columns if own[0].strip() and own[0] in own[1:] and 1 < len({*own}) <= len(own) / 2]
    numbers = [n for n, own in columns if all(map(_NUMBER.fullmatch, own)) and not all(map(str.isdigit, own))]
    labels = labels or numbers
    return {texts[0]: "text", labels[0]: "label"} if len(texts) == len(labels) == 1 and len(rows) > 1 else {}


def _named_cells(name: str, columns: tuple[str, ...], rows: CellRows) -> Rows:
    """Yield rows by column; raises InputError for a wrong number of cells."""
    for line, cells in rows:
        if len(cells) != len(columns):
            wrong = wrong_number(cells, len(columns), f": {named(columns)}")
            raise InputError(f"{name}:{line}: {wrong}; correct the line, or set {user_name('task.format')}=")
        yield TableRow(line, dict(zip(columns, cells, strict=True)))


def records(
    name: str, format: str, rows: Iterable[tuple[int, object]], short_rows: ShortRows, counts: str = ""
) -> InputTable:
    """Open mappings, at least one, as rows; the keys of the first are the columns; raises InputError for any other record."""

    def mappings() -> Rows:
        number = 0
        with refusing(ValueError, lambda error: f"{name}:{counts}{number}: {error}"):
            for number, record in rows:
                yield TableRow(number, with_inner_texts(cells_of(record)))

    own = mappings()
    first = next(own, None)
    if first is None:
        raise InputError(f"{name}: no records; add examples, or give another file")
    columns = tuple(first.cells)
    return InputTable(name, format, columns, itertools.chain([first], own), short_rows, is_typed=True, counts=counts)
