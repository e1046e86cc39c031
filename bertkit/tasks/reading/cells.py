"""Rows as cells, and what becomes of rows with too few: an error, skipped, or filled up."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from bertkit.base.errors import counted
from bertkit.base.text_files import is_blank

Cells = Mapping[str, object]  # the values of a row by column
Lines = Iterator[tuple[int, str]]
CellRows = Iterator[tuple[int, list[str]]]
Numbered = TypeVar("Numbered")
BLANK: Final = object()  # stands for a blank line among the records of JSON lines


def id_text(value: object) -> str:
    """Return an id as text: 7 also for 7.0, as pandas writes whole numbers beside gaps."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def wrong_number(cells: Sequence[str], expected: int, names: str = "") -> str:
    """Return the message about a row with too few or too many cells; `names` lists the columns."""
    return f"too {'many' if len(cells) > expected else 'few'} cells ({len(cells)}, expected {expected}{names})"


def up_to_filled(rows: Iterable[Numbered], is_filled: Callable[[Numbered], bool]) -> list[Numbered]:
    """Read the first row that is filled, and the blank ones before it; nothing if all are blank."""
    head = []
    for row in rows:
        head.append(row)
        if is_filled(row):
            return head
    return []


class CountedRows:
    """Rows with some fault: how many there are so far, and where the first one is."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.first = ""  # its place, such as dev.tsv:12

    def add(self, place: str) -> None:
        """Count a row."""
        self.num_rows += 1
        self.first = self.first or place

    def warning(self, line: str) -> list[str]:
        """Return a line about these rows; none if there are none."""
        return [line] if self.num_rows else []


class ShortRows(CountedRows):
    """Rows with too few cells are an error; the other classes count and skip them, or fill them up."""

    @property
    def warnings(self) -> list[str]:
        """Warnings about the rows of an input."""
        few = f"{counted(self.num_rows, 'row')} had too few cells, the first at {self.first}"
        return self.warning(f"{few}; the missing cells are treated as empty")

    def fitted(self, name: str, rows: CellRows, num_columns: int, width: int) -> CellRows:
        """Yield the rows of a table with as many cells as it has columns, and those that are an error; drop blank lines at its end.

        `width` is the number of cells of the first line, and `name` that of the file.
        """
        first_blank: list[tuple[int, list[str]]] = []
        for line, cells in rows:
            if num_columns > 1 and is_blank_row(cells):
                first_blank = first_blank or [(line, [""])]
            else:
                yield from first_blank
                yield line, cells

    def with_blank(self, records: Iterator[tuple[int, object]]) -> Iterator[tuple[int, object]]:
        """Yield the records of JSON lines, and what a blank line stands for: nothing."""
        return ((line, record) for line, record in records if record is not BLANK)


class SkippedRows(ShortRows):
    """Rows with too few cells are skipped and counted."""

    def fitted(self, name: str, rows: CellRows, num_columns: int, width: int) -> CellRows:
        """Yield the rows with enough cells."""
        for line, cells in rows:
            if len(cells) >= num_columns:
                yield line, cells
            else:
                self.add(f"{name}:{line}")


class FilledRows(ShortRows):
    """Missing cells become empty texts, and a blank line is a row: an input of `predict` has a prediction for each line."""

    def __init__(self, keep_lengths: bool = False) -> None:
        super().__init__()
        self.keep_lengths = keep_lengths  # whether lists of a blank JSON line are as long as those of the first record

    def fitted(self, name: str, rows: CellRows, num_columns: int, width: int) -> CellRows:
        """Yield all rows, with at least as many cells as the first line."""
        for line, cells in rows:
            if is_blank_row(cells):
                cells = [""]
            elif len(cells) < width:
                self.add(f"{name}:{line}")
            yield line, cells + [""] * (width - len(cells))

    def with_blank(self, records: Iterator[tuple[int, object]]) -> Iterator[tuple[int, object]]:
        """Yield a record for each line; that of a blank line has the first record's keys and empty values."""
        head = up_to_filled(records, lambda row: row[1] is not BLANK)
        if not head:
            return
        empty = self._emptied(head[-1][1])
        for line, record in itertools.chain(head, records):
            yield line, empty if record is BLANK else record

    def _emptied(self, record: object) -> dict[object, object]:
        match record:
            case dict():
                return {key: self._empty(value) for key, value in record.items()}
        return {}

    def _empty(self, value: object) -> object:
        match value:
            case list():
                return [""] * (len(value) if self.keep_lengths else 0)
            case str():
                return ""
        return None


def is_blank_row(cells: Sequence[str]) -> bool:
    """Whether a row is a blank line."""
    return len(cells) == 1 and is_blank(cells[0])
