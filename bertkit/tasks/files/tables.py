"""Files, or a dataset of the hub, to rows: column name -> value, each with its place for messages.

TSV is read as GLUE writes it: a quote is a character like any other, and no word stands for a missing value. CSV is
read as RFC 4180 has it: quoted cells may hold commas and line breaks. A line ends at a line feed and nowhere else.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit import signs
from bertkit.config import nearest
from bertkit.errors import InputError
from bertkit.files import BLOCK_BYTES, blocks_of
from bertkit.tasks.config import Column, TaskConfig
from bertkit.tasks.files.squad import flatten

ENDINGS = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".conllu": "conllu",
    ".conll": "conll",
}
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # half of a pair, as JSON can hold it; no text that can be encoded


@dataclass(frozen=True)
class Table:
    """Rows of named values.

    Attributes:
        name: of the file or dataset, for messages.
        names: of the columns, in their order.
        rows: the number of a row's line, or of the record, and its values.
        place: the number as a place for messages, such as `dev.tsv:12`.
        is_typed: whether values are typed, as in JSON, or all text, as in CSV.
        num_skipped: rows that were left out for having too few cells; known when all are read.
        has_header: whether the first line, or each record, names the columns.
    """

    name: str
    names: tuple[str, ...]
    rows: Iterator[tuple[int, Mapping[str, Any]]]
    place: Callable[[int], str]
    is_typed: bool
    num_skipped: list[int]
    has_header: bool = True

    def find(self, given: Column, setting: str, needed: bool) -> str | None:
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


@dataclass
class Gaps:
    """Rows that lack cells, which are empty then; of a stream, known as far as it is read."""

    num_rows: int = 0
    first: str = ""


def format_of(task: TaskConfig, path: Path) -> str:
    """Say how a file is written: as the task says, or by its ending; of unknown ones, columns for tags, else an error.

    Raises:
        InputError: the ending says nothing.
    """
    if task.format != "auto":
        # what the official files are; a user's own copy may be another's, and says so by its ending
        is_other = task.kind == "tagging" and suffix_of(path) in (".jsonl", ".json", ".parquet")
        return ENDINGS[suffix_of(path)] if is_other else task.format
    kind = ENDINGS.get(suffix_of(path))
    if task.kind == "tagging" and kind in (None, "tsv"):
        return "conll"
    if kind is None:
        raise InputError(
            f"{path}: unknown format (ending '{path.suffix}'); "
            "set task.format=tsv, csv, jsonl, json, parquet, label_text, conll or conllu"
        )
    return kind


def suffix_of(path: Path) -> str:
    """Give the ending that says how a file is written, in lower case: of `train.csv.gz`, `.csv`."""
    return (Path(path.stem) if path.suffix.lower() == ".gz" else path).suffix.lower()


def read_text(path: Path) -> str:
    """Read a file as UTF-8, without a byte order mark; unpacked where its name ends in `.gz`.

    Raises:
        InputError: it is missing, empty, damaged, or not UTF-8, with the line and the byte.
    """
    try:
        data = b"".join(blocks_of(path))
        if path.suffix.lower() == ".gz":
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
                data = b"".join(signs.beating(iter(lambda: packed.read(BLOCK_BYTES), b"")))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: damaged gzip file ({error}); restore it") from None
    if not data.strip():
        raise InputError(f"{path}:1: the file is empty; restore it")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise InputError(
            f"{path}:{line}: not UTF-8 (byte 0x{data[error.start]:02x} at column {column}); convert the file to UTF-8"
        ) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InputError(f"{path}:{line}: not text (a zero byte); convert the file to UTF-8")
    return text.removeprefix("\ufeff")


def lines_of(text: str) -> list[str]:
    """Cut text at its line feeds only: U+2028 and its like stand inside of sentences."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def read_table(task: TaskConfig, path: Path, kind: str, may_skip: bool) -> Table:
    """Open a file of rows; `may_skip` allows `task.skip_short_rows`, where not every row needs an answer.

    Raises:
        InputError: it is not what its format says, with the line; some of these while the rows are read.
    """
    if kind == "parquet":
        return _parquet_table(path)
    text = read_text(path)
    if kind == "tsv":
        return _delimited(task, path, ((n, line.split("\t")) for n, line in _numbered(text)), may_skip)
    if kind == "csv":
        return _delimited(task, path, _csv_rows(path, io.StringIO(text, newline="")), may_skip)
    if kind == "label_text":
        return _label_text(path, _numbered(text))
    if kind not in ("jsonl", "json"):
        raise InputError(f"{path}: format {kind} is for tags, not for kind={task.kind}; set task.format=")
    return _records(path, text, kind)


def stream_table(task: TaskConfig, path: Path, kind: str, lines: Iterator[tuple[int, str]], gaps: Gaps) -> Table:
    """Open numbered lines, without their ends, as rows of "tsv", "csv", "jsonl" or "label_text"; none is kept.

    Every line is a row, an empty one too: its texts are empty. So are the cells that a row lacks, counted in `gaps`.

    Raises:
        InputError: they are not what the format says; some of it while the rows are read.
    """
    if kind == "tsv":
        return _delimited(task, path, _filled(path, ((n, line.split("\t")) for n, line in lines), gaps), False)
    if kind == "csv":
        cells = _csv_rows(path, (f"{line}\n" for _, line in lines))
        return _delimited(task, path, _filled(path, cells, gaps), False)
    if kind == "label_text":
        return _label_text(path, lines)
    return _typed_table(str(path), _every_line(path, lines, task.kind == "choice"), lambda n: f"{path}:{n}")


def _filled(path: Path, rows: Iterator[tuple[int, list[str]]], gaps: Gaps) -> Iterator[tuple[int, list[str]]]:
    """Rows as long as the first one, which has the header or as many cells as there are column names."""
    width: int | None = None
    for line, cells in rows:
        width = width or len(cells)
        if len(cells) < width and cells != [""]:
            gaps.num_rows += 1
            gaps.first = gaps.first or f"{path}:{line}"
        yield line, cells + [""] * (width - len(cells))


def _every_line(path: Path, lines: Iterator[tuple[int, str]], has_endings: bool) -> Iterator[tuple[int, Any]]:
    """JSON lines; a blank one is a record like the first, with empty texts and lists, or a list of as many empty endings."""
    blank: dict[str, Any] | None = None
    before: list[int] = []  # blank lines before the first record

    def emptied(value: Any) -> Any:
        if isinstance(value, list):
            return [""] * len(value) if has_endings else []
        return "" if isinstance(value, str) else None

    for number, line in lines:
        if line.strip():
            ((_, record),) = _json_lines(path, iter([(number, line)]))
            if blank is None:
                blank = {key: emptied(value) for key, value in record.items()} if isinstance(record, dict) else {}
                yield from ((place, blank) for place in before)
            yield number, record
        elif blank is None:
            before.append(number)
        else:
            yield number, blank


def _label_text(path: Path, lines: Iterator[tuple[int, str]]) -> Table:
    rows = ((n, {"label": line.partition(" ")[0], "text": line.partition(" ")[2]}) for n, line in lines)
    return Table(str(path), ("label", "text"), rows, lambda n: f"{path}:{n}", False, [])


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    return enumerate(lines_of(text), 1)


def _csv_rows(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(sys.maxsize)  # a cell may hold a whole document
    reader = csv.reader(lines, strict=True)
    line = 1
    try:
        for cells in reader:
            yield line, cells or [""]
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f'{path}:{line}: not CSV ({error}); quote cells as in "a ""b""", or set task.format='
        ) from None


def _delimited(task: TaskConfig, path: Path, rows: Iterator[tuple[int, list[str]]], may_skip: bool) -> Table:
    first_line, first = next(rows)
    has_header = task.header if task.header is not None else _is_header(task, first)
    columns = tuple(first) if has_header else task.column_names or tuple(f"column {n}" for n in range(len(first)))
    if not has_header:
        rows = itertools.chain([(first_line, first)], rows)
    num_skipped = [0]
    mappings = _as_mappings(path, columns, rows, num_skipped if may_skip and task.skip_short_rows else None)
    return Table(str(path), columns, mappings, lambda n: f"{path}:{n}", False, num_skipped, has_header)


def _is_header(task: TaskConfig, cells: list[str]) -> bool:
    """Whether a table's first line names its columns: it has a name that is asked for, or names are all there is to go by."""
    given = list(vars(task.columns).values())
    names: set[str] = set()
    for column in given:
        names |= {column} if isinstance(column, str) else set(column) if isinstance(column, tuple) else set()
    return not names.isdisjoint(cells) or not (task.column_names or any(isinstance(column, int) for column in given))


def _as_mappings(
    path: Path, columns: tuple[str, ...], rows: Iterator[tuple[int, list[str]]], num_skipped: list[int] | None
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows by column; short ones are counted in `num_skipped` and left out, or refused where that is None."""
    blank: int | None = None  # blank lines at the end are no rows
    for line, cells in rows:
        if cells == [""] and len(columns) > 1 and num_skipped is None:
            blank = blank or line
            continue
        if blank is not None:
            line, cells = blank, [""]
        if len(cells) < len(columns) and num_skipped is not None:
            num_skipped[0] += 1
            continue
        if len(cells) != len(columns):
            much = "many" if len(cells) > len(columns) else "few"
            raise InputError(
                f"{path}:{line}: too {much} cells ({len(cells)}, expected {len(columns)}: "
                f"{', '.join(name[:30] for name in columns)}); correct the line, or set task.format="
            )
        yield line, dict(zip(columns, cells, strict=True))


def _records(path: Path, text: str, kind: str) -> Table:
    """Rows of JSON lines, of an array, or of `{"data": [...]}`; a file's ending need not say which."""
    whole = _whole_object(text) if kind == "json" else None
    if whole is not None:
        data = whole.get("data")
        rows = flatten(path, text, data if isinstance(data, list) else [whole])
    elif kind == "json" and text.lstrip().startswith("["):
        rows = _array(path, text)
    else:
        rows = _json_lines(path, _numbered(text))
    return _typed_table(str(path), rows, lambda n: f"{path}:{n}")


def _typed_table(name: str, rows: Iterable[tuple[int, Any]], place: Callable[[int], str]) -> Table:
    checked = _objects(rows, place)
    first = next(checked, None)
    if first is None:
        raise InputError(f"{name}: no records; restore it")
    return Table(name, tuple(first[1]), itertools.chain([first], checked), place, True, [])


def _objects(rows: Iterable[tuple[int, Any]], place: Callable[[int], str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, row in rows:
        if not isinstance(row, dict):
            raise InputError(f"{place(number)}: {type(row).__name__}, expected an object with named fields")
        yield number, _clean(row)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value


def _whole_object(text: str) -> dict[str, Any] | None:
    """One JSON object that is the whole file; None if it is several, or none."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _json_lines(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, Any]]:
    for number, line in lines:
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path}:{number}: not JSON ({error}); expected one object per line") from None


def _array(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """The elements of an array, each with the line where it begins."""
    decoder = json.JSONDecoder()
    space = re.compile(r"[\s,]*")
    position = space.match(text, text.index("[") + 1).end()  # type: ignore[union-attr]
    line, counted = 1, 0
    while text[position : position + 1] != "]":
        line, counted = line + text.count("\n", counted, position), position
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{line}: not JSON ({error}); restore the file") from None
        yield line, value
        position = space.match(text, end).end()  # type: ignore[union-attr]


def _parquet_table(path: Path) -> Table:
    import datasets

    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        rows = datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True)
        named = _named_labels(rows, rows.features)
        return _typed_table(str(path), named, lambda n: f"{path}: record {n}")
    except InputError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: not readable as parquet ({reason}); restore the file") from None


def hub_table(task: TaskConfig, split: str) -> Table:
    """Open a split of the task's dataset on the hub, or of its copy in the local cache.

    Raises:
        InputError: it cannot be had, with the ways out.
    """
    import datasets

    hub = task.hub
    where = f"{hub.path}{f'/{hub.name}' if hub.name else ''} of the hub, split {split}"
    try:
        rows = datasets.load_dataset(hub.path, hub.name, split=split, revision=hub.revision)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"task={task.name}: cannot read {where} ({reason[:300]}); set data_dir= to the task's files, or fill HF_HOME "
            "where there is a network, or set task.hub.path= to another copy"
        ) from None
    return _typed_table(where, _named_labels(rows, rows.features), lambda n: f"{where}: record {n}")


def _named_labels(rows: Any, features: Mapping[str, Any] | None) -> Iterator[tuple[int, Any]]:
    """Rows whose numbered labels are names again; -1, the hub's way to say that a label is not known, is None."""
    names: dict[str, list[str]] = {}
    for column, feature in (features or {}).items():
        inner = getattr(feature, "feature", feature)
        if hasattr(inner, "names"):
            names[column] = inner.names

    def named(value: Any, of: list[str]) -> Any:
        if isinstance(value, list):
            return [named(item, of) for item in value]
        return of[value] if isinstance(value, int) and 0 <= value < len(of) else None

    for number, row in enumerate(rows, 1):
        yield (
            number,
            {column: named(value, names[column]) if column in names else value for column, value in row.items()},
        )
