"""Write rows of predictions, chunk by chunk, in the format that the file's ending names.

| ending | format |
|---|---|
| .csv | RFC 4180; each key of a mapping has its own column, such as `probabilities.good`; a list is written as JSON |
| .tsv | the same with tabs and without quotes; a tab or line break in a text becomes a blank |
| .parquet | typed columns, nested as in JSON |
| other | JSON lines |
"""

import contextlib
import csv
import functools
import itertools
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from bertkit.base.errors import in_json

Write = Callable[[Sequence[Mapping[str, object]]], None]  # a chunk of rows
ROWS_AT_ONCE = 8192
_NO_CELL = re.compile(r"[\t\r\n]+")


@contextlib.contextmanager
def row_writer(file: TextIO | BinaryIO, ending: str, separator: str) -> Iterator[Write]:
    """Return a function that writes chunks of rows to a file; the file is binary for parquet, otherwise text.

    `ending` selects the format; `separator` is put between several labels in a cell.
    """
    match ending.lower():
        case ".csv" | ".tsv":
            yield _delimited(cast(TextIO, file), ending.lower() == ".tsv", separator)
        case ".parquet":
            with _parquet(cast(BinaryIO, file)) as write:
                yield write
        case _:
            yield functools.partial(write_lines, cast(TextIO, file))


def write_lines(file: TextIO, rows: Iterable[Mapping[str, object]]) -> None:
    """Write each row as a JSON object on one line, and flush."""
    file.writelines(in_json(json.dumps(row, ensure_ascii=False)) + "\n" for row in rows)
    file.flush()


def _delimited(file: TextIO, is_tsv: bool, separator: str) -> Write:
    columns: list[str] = []
    writer = csv.writer(file, lineterminator="\n")

    def put(rows: Iterable[Iterable[str]]) -> None:
        if is_tsv:
            file.writelines("\t".join(_NO_CELL.sub(" ", cell) for cell in cells) + "\n" for cells in rows)
        else:
            writer.writerows(rows)

    def write(rows: Sequence[Mapping[str, object]]) -> None:
        flat = [_flat(row) for row in rows]
        if flat and not columns:
            columns.extend(flat[0])
            put([columns])
        put([_cell(row.get(column), separator) for column in columns] for row in flat)
        file.flush()

    return write


def _flat(row: Mapping[str, object]) -> dict[str, object]:
    """Replace a mapping in a row by its items, as in `probabilities.good`."""
    flat: dict[str, object] = {}
    for name, value in row.items():
        flat |= {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, Mapping) else {name: value}
    return flat


def _cell(value: object, separator: str) -> str:
    """Format a cell: text unchanged, several labels joined by the separator, any other value as JSON."""
    match value:
        case None:
            return ""
        case str():
            return value
        case tuple() if all(isinstance(item, str) and separator not in item for item in value):
            return separator.join(value)
    return json.dumps(value, ensure_ascii=False)


@contextlib.contextmanager
def _parquet(file: BinaryIO) -> Iterator[Write]:
    """Write JSON lines to a temporary file and convert it at the end, because the last row may change a column's type.

    After an error the output file contains the JSON lines.
    """
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema([])
    folder = Path(file.name).parent if isinstance(file.name, str) else None
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n", dir=folder) as lines:

        def write(rows: Sequence[Mapping[str, object]]) -> None:
            nonlocal schema
            plain = [json.loads(json.dumps(row)) for row in rows]  # tuples become lists
            schema = pa.unify_schemas([schema, pa.Table.from_pylist(plain).schema], promote_options="permissive")
            write_lines(lines, plain)

        try:
            yield write
        except BaseException:
            lines.seek(0)
            file.writelines(line.encode() for line in lines)
            raise
        lines.seek(0)
        with parquet.ParquetWriter(file, schema) as table:
            for chunk in iter(lambda: list(itertools.islice(lines, ROWS_AT_ONCE)), []):
                table.write_table(pa.Table.from_pylist([json.loads(line) for line in chunk], schema=schema))


_BETWEEN_CELLS = re.compile("[ \t-\r\x1c-\x1e\x85\u2028\u2029]+")


def word_cell(word: str) -> str:
    """Replace white space in a word by `_`: it would begin a new cell or line."""
    return _BETWEEN_CELLS.sub("_", word) or "_"


def conll_lines(separator: str, *cells: Sequence[str]) -> str:
    """Format the words and tags of a sentence as CoNLL lines, with a blank line at the end."""
    return "".join(separator.join(map(word_cell, line)) + "\n" for line in zip(*cells, strict=True)) + "\n"
