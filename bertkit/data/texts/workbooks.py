"""Read the cells of a sheet of an Excel workbook (.xlsx), with openpyxl."""

import contextlib
import importlib.util
import io
import itertools
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from bertkit.base.errors import InputError, in_one_line
from bertkit.base.text_files import TOO_LARGE, WHOLE_MB, without_surrogates

_SAVE = "save the sheet as CSV"


class Sheet(NamedTuple):
    """The first sheet of a workbook."""

    name: str
    num_sheets: int  # in the workbook
    rows: Iterator[tuple[int, list[str]]]  # the cells of each row, as wide as the first row, with the number of the row


def read_sheet(path: Path, data: bytes) -> Sheet:
    """Open the first sheet of a workbook with the content `data`; blank rows before and after the others are left out.

    A formula gives its saved value, and an error such as #N/A an empty cell. Raises InputError if openpyxl is missing, or the file is damaged, also when a row is read.
    """
    if importlib.util.find_spec("openpyxl") is None:
        raise InputError(f"{path}: Excel files need openpyxl, which is not installed: pip install openpyxl, or {_SAVE}")
    import openpyxl

    with _reading(path):
        if sum(part.file_size for part in zipfile.ZipFile(io.BytesIO(data)).infolist()) > WHOLE_MB * 1_000_000:
            raise InputError(f"{path}: unpacked {TOO_LARGE}; {_SAVE}")
        book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
        sheet = book.worksheets[0]
        sheet.reset_dimensions()  # programs other than Excel write wrong ones
        return Sheet(sheet.title, len(book.worksheets), _rows(path, sheet.iter_rows()))


class _Cell(Protocol):
    """A cell of openpyxl."""

    value: object
    data_type: str  # "e" for an error


def _rows(path: Path, rows: Iterable[tuple[_Cell, ...]]) -> Iterator[tuple[int, list[str]]]:
    width, blank = 0, list[int]()
    with _reading(path):
        for number, row in enumerate(rows, 1):
            cells = ["" if cell.value is None or cell.data_type == "e" else _unescaped(str(cell.value)) for cell in row]
            last = max((n for n, cell in enumerate(cells, 1) if cell.strip()), default=0)
            if not last:
                blank += [number] if width else []
                continue
            width = width or last
            yield from zip(blank, itertools.repeat([""] * width))
            yield number, cells[: max(last, width)] + [""] * (width - len(cells))
            blank = []


def _unescaped(cell: str) -> str:
    """Replace characters that XML lacks, and Excel writes as in _x000D_."""
    from openpyxl.utils.escape import unescape

    return without_surrogates(unescape(cell))


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn any error of openpyxl, for a file that it cannot read, into an `InputError`."""
    try:
        yield
    except (InputError, GeneratorExit):
        raise
    except Exception as error:
        reason = in_one_line(error)
        raise InputError(f"{path}: not readable as an Excel file ({reason:.200}); {_SAVE}") from None
