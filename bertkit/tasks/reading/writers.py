"""Output formats: how predictions and vectors are written, chunk by chunk; the ending of the file's name chooses one.

A format is a class in the slot `prediction_format` or `vector_format`, registered under its ending: made of an open file, it is a
context whose end completes the file, and `put` writes a chunk. `passage_format`, for search, is in `apps/retrieval/judging.py`.
"""

import csv
import itertools
import json
import math
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, NamedTuple, Self, TextIO

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import InputError, in_json, named
from bertkit.base.plugins import option

if TYPE_CHECKING:
    import pyarrow

Vectors = NDArray[np.float32]  # (n, D)
ROWS_AT_ONCE = 8192


class OutputFormat:
    """A format, and the file that is written in it."""

    is_binary: ClassVar = False  # whether the file takes bytes, not text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Complete the file, also after an error."""


def rounded(value: Any) -> Any:
    """Round the numbers inside a value to nine significant digits, which tell all float32 numbers apart."""
    match value:
        case float():
            return float(f"{value:.9g}")
        case dict():
            return {key: rounded(item) for key, item in value.items()}
        case list():
            return [*map(rounded, value)]
        case tuple():
            return (*map(rounded, value),)
    return value


def write_lines(file: TextIO, rows: Iterable[Mapping[str, object]]) -> None:
    """Write each row as a JSON object on one line, and flush."""
    file.writelines(in_json(_json(row)) + "\n" for row in rows)
    file.flush()


def _json(value: object) -> str:
    """Return a value as JSON; dates and decimals, which a parquet file may have, become texts, and NaN and infinity null."""
    return json.dumps(_finite(value), ensure_ascii=False, default=_text)


def _finite(value: object) -> object:
    """Replace the numbers that JSON lacks, NaN and infinity, by None, as pandas does."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [*map(_finite, value)]
    return value


def _text(value: object) -> str:
    """Return the text of a value that JSON does not have; raise InputError for bytes, which are no text."""
    if isinstance(value, bytes):
        raise InputError(
            f"the input has bytes, {value!r:.40}: texts, numbers and dates can be written; leave their column out"
        )
    return str(value)


@option("prediction_format", ".json")
@option("prediction_format", ".ndjson")
@option("prediction_format", ".jsonl")
@option("prediction_format", "")
class PredictionFormat(OutputFormat):
    """Predictions as JSON lines; a subclass writes another format. `separator` is put between several labels in a cell."""

    def __init__(self, file: TextIO, separator: str) -> None:
        self.file, self.separator = file, separator

    def put(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Write a chunk of rows."""
        write_lines(self.file, rows)


@option("prediction_format", ".csv")
class Csv(PredictionFormat):
    """RFC 4180; each key of a mapping has its own column, such as `probabilities.good`; a list is written as JSON.

    The columns are those of the first chunk.
    """

    columns: Sequence[str] = ()
    delimiter: ClassVar = ","

    def put(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Write a chunk of rows, before the first one the names of the columns; raises InputError for a column that they lack."""
        cells = [flat(row) for row in rows]
        names = _columns(cells)
        if cells and not self.columns:
            self.columns = names
            self._write([self.columns])
        if unknown := [name for name in names if name not in self.columns]:
            raise InputError(
                f"output: a later row has {named(unknown)}, for which the file has no column; write .jsonl or .parquet"
            )
        self._write([_cell(row.get(column), self.separator) for column in self.columns] for row in cells)
        self.file.flush()

    def _write(self, rows: Iterable[Iterable[str]]) -> None:
        csv.writer(_Lines(self.file), delimiter=self.delimiter, lineterminator="\r\n").writerows(rows)


class _Lines(NamedTuple):
    """Ends the rows of a `csv.writer` with a line feed; its own "\\r\\n" makes it quote a carriage return, too."""

    file: TextIO

    def write(self, row: str) -> None:
        """Write a row."""
        self.file.write(row.removesuffix("\r\n") + "\n")


@option("prediction_format", ".tsv")
class Tsv(Csv):
    """The same with tabs: a text with a tab, a line break or a quote is in quotes."""

    delimiter: ClassVar = "\t"


def _columns(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the names in any of these rows, in their order."""
    return list(dict.fromkeys(itertools.chain.from_iterable(rows)))


def flat(row: Mapping[str, object]) -> dict[str, object]:
    """Replace a mapping in a row by its items, as in `probabilities.good`."""
    cells: dict[str, object] = {}
    for name, value in row.items():
        cells |= {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, Mapping) else {name: value}
    return cells


def _cell(value: object, separator: str) -> str:
    """Format a cell: texts and dates unchanged, several labels joined by the separator, any other value as JSON."""
    match value:
        case None:
            return ""
        case float() if math.isnan(value):  # a gap of a parquet file
            return ""
        case tuple() if all(isinstance(item, str) and separator not in item for item in value):
            return separator.join(value)
        case int() | float() | list() | tuple() | dict():
            return _json(value)
    return _text(value)


@option("prediction_format", ".parquet")
class Parquet(PredictionFormat):
    """Typed columns, nested as in JSON; a column whose values have several types is one of texts.

    Rows are written as JSON lines to a temporary file, which is converted at the end, because the last row may change a column's
    type. After an error the output file contains the JSON lines.
    """

    is_binary = True

    def __init__(self, file: BinaryIO, separator: str) -> None:
        folder = Path(file.name).parent if isinstance(file.name, str) else None
        self.binary = file
        self.types: dict[str, pyarrow.DataType] = {}
        self.lines = tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n", dir=folder)  # noqa: SIM115  # __exit__ closes it

    def put(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Write a chunk of rows."""
        names = _columns(rows)
        plain = [json.loads(_json({name: row.get(name) for name in names})) for row in rows]  # tuples become lists
        for name in names:
            self.types[name] = _common_type([row[name] for row in plain], self.types.get(name))
        write_lines(self.lines, plain)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Write the table, or, after an error, the JSON lines."""
        import pyarrow as pa
        from pyarrow import parquet

        with self.lines:
            self.lines.seek(0)
            if kind is not None:
                self.binary.writelines(line.encode() for line in self.lines)
                return
            schema = pa.schema(list(self.types.items()))
            texts = [name for name, kind in self.types.items() if pa.types.is_string(kind)]
            with parquet.ParquetWriter(self.binary, schema) as table:
                for chunk in iter(lambda: list(itertools.islice(self.lines, ROWS_AT_ONCE)), []):
                    rows = [json.loads(line) for line in chunk]
                    for row, name in itertools.product(rows, texts):
                        if not isinstance(row.get(name), str | None):
                            row[name] = _json(row[name])
                    table.write_table(pa.Table.from_pylist(rows, schema=schema))


def _common_type(values: Sequence[object], before: "pyarrow.DataType | None") -> "pyarrow.DataType":
    """Return the type of a column from its values and its type so far: that of texts if these differ."""
    import pyarrow as pa

    try:
        kinds = [pa.array(values).type, *([] if before is None else [before])]
        return pa.unify_schemas([pa.schema([("", kind)]) for kind in kinds], promote_options="permissive").types[0]
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):  # several types, or a number of more than 64 bits
        return pa.string()


class VectorFormat(OutputFormat):
    """Texts and vectors as JSON lines; a subclass writes another format. A binary one needs a seekable file."""

    def __init__(self, file: TextIO, dimension: int) -> None:
        self.file = file
        self.vector = ", ".join(["%.9g"] * dimension)  # nine digits are enough for every float32

    def put(self, texts: Sequence[str], vectors: Vectors) -> None:
        """Write the vectors of some texts."""
        for text, vector in zip(texts, vectors.tolist(), strict=True):
            own = in_json(json.dumps(text, ensure_ascii=False))
            self.file.write(f'{{"text": {own}, "embedding": [{self.vector % tuple(vector)}]}}\n')
        self.file.flush()


@option("vector_format", ".npy")
class Npy(VectorFormat):
    """A file in numpy's format 1.0; at the end, the header is overwritten with the number of rows."""

    is_binary = True

    def __init__(self, file: BinaryIO, dimension: int) -> None:
        self.binary, self.dimension, self.num_rows = file, dimension, 0
        self._write_header()

    def put(self, texts: Sequence[str], vectors: Vectors) -> None:
        """Write the vectors of some texts."""
        self.binary.write(vectors.astype("<f4").tobytes())
        self.num_rows += len(vectors)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Write the header again."""
        self._write_header()

    def _write_header(self) -> None:
        self.binary.seek(0)
        header = {"descr": "<f4", "fortran_order": False, "shape": (self.num_rows, self.dimension)}
        np.lib.format.write_array_header_1_0(self.binary, header)


@option("vector_format", ".parquet")
class VectorParquet(VectorFormat):
    """A parquet file with the columns `text` and `embedding`; every chunk becomes a row group."""

    is_binary = True

    def __init__(self, file: BinaryIO, dimension: int) -> None:
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter

        self.dimension = dimension
        self.schema = pa.schema([("text", pa.string()), ("embedding", pa.list_(pa.float32(), dimension))])
        self.writer = ParquetWriter(file, self.schema)

    def put(self, texts: Sequence[str], vectors: Vectors) -> None:
        """Write the vectors of some texts."""
        import pyarrow as pa

        rows = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self.dimension)
        self.writer.write_table(pa.table([pa.array(texts, pa.string()), rows], schema=self.schema))

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Write the end."""
        self.writer.close()


option("vector_format", ".jsonl")(VectorFormat)  # the last one in messages

_BETWEEN_CELLS = re.compile("[ \t-\r\x1c-\x1e\x85\u2028\u2029]+")


def word_cell(word: str) -> str:
    """Replace white space in a word by `_`: it would begin a new cell or line."""
    return _BETWEEN_CELLS.sub("_", word) or "_"


def conll_lines(separator: str, *cells: Sequence[str]) -> str:
    """Format the words and tags of a sentence as CoNLL lines, with a blank line at the end."""
    return "".join(separator.join(map(word_cell, line)) + "\n" for line in zip(*cells, strict=True)) + "\n"
