"""Read examples from the files of a task, from its dataset on the hub, or from an input of `predict`.

| format | one example is |
|---|---|
| tsv, csv, jsonl, json, parquet, xlsx, label_text | a row or record; in SQuAD's JSON a question |
| conll, conllu | a sentence or document |
| text | a line, for sequences and masked LM |
| words | a line of words separated by blanks, for tagging |

A tagger also reads running text: with format=text, or from a table that has a column of texts and none of words.

Labels are matched by name. A test file may have examples without a label; in other splits this is an error.

An input of `predict` has one example for each line or row: a blank line is an empty text or a sentence without words, and
missing cells of a table are empty texts.
"""

import dataclasses
import io
import itertools
import os
import shlex
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from bertkit.base.blocks import ending_of
from bertkit.base.errors import InputError, check_distinct, counted, in_one_line, refusing, user_name
from bertkit.base.files import check_size
from bertkit.base.hub_ids import is_offline
from bertkit.base.json_stream import is_inner_text
from bertkit.base.text_files import as_utf8, is_blank, numbered_lines, read_lines, unpacked, unpacking
from bertkit.data.texts.parquet import parquet_records
from bertkit.data.texts.workbooks import read_sheet
from bertkit.tasks.reading.cells import Cells, CountedRows, ShortRows, SkippedRows, up_to_filled
from bertkit.tasks.reading.formats import (
    InputFormat,
    beginning,
    check_input,
    format_of_file,
    format_of_input,
    needs_text_pair,
)
from bertkit.tasks.reading.labels import IdLike, Ids
from bertkit.tasks.reading.reading import Reading
from bertkit.tasks.reading.rows import label_names, names_by_file, with_label_names
from bertkit.tasks.reading.source import SplitExamples, collect_examples, joined
from bertkit.tasks.reading.tables import SEPARATORS, InputTable, Rows, cell_table, open_table, records
from bertkit.tasks.task import ENDINGS, AnyTask
from bertkit.tasks.task_config import TaskConfig, names_of
from bertkit.tasks.trainable import task_of

SPLITS = ("train", "dev", "test", "dev_mismatched", "test_mismatched")
READ_AT_ONCE = 1024  # read, predicted and written together


def read_examples(task: TaskConfig, data_dir: str | None, split: str, labels: tuple[str, ...] = ()) -> SplitExamples:
    """Read a split, one of `SPLITS`, or `validation` or `dev_matched`; raises InputError if a file is missing or wrong.

    `data_dir` is the task's folder or the one above it; None for the hub. `labels` are those of the model or the training
    file, if the task lists none; without any the labels are those in this file.
    """
    asked, split = split, split.replace("validation", "dev").removesuffix("_matched")
    if split not in SPLITS:
        raise InputError(f"split={asked}: expected {', '.join(SPLITS)}")
    paths = find_files(task, data_dir, split)
    is_labelled = True if not split.startswith("test") else None
    if paths:
        read = joined([read_file(task, path, is_labelled, labels) for path in paths])
        return dataclasses.replace(read, files=tuple(paths))
    hub_split = vars(task.hub)[split]
    if hub_split is None:
        raise InputError(f"task={task.name}: no {split} split on the hub; set data_dir=, or task.hub.{split}=")
    return collect_examples(task_of(task), Reading(task, _hub_table(task, hub_split), is_labelled, labels))


def read_file(
    task: TaskConfig, path: Path, is_labelled: bool | None = None, labels: tuple[str, ...] = ()
) -> SplitExamples:
    """Read a file; see `Reading` for `is_labelled`, and `read_examples` for `labels`; raises InputError if it is wrong."""
    table = open_file(task, path, format_of_file(task_of(task), path), bool(is_labelled))
    return collect_examples(task_of(task), Reading(task, table, is_labelled, labels))


def open_file(task: TaskConfig, path: Path, format: str, is_labelled: bool = True) -> InputTable:
    """Open a file as a table; raises InputError if it is empty, or not in this format."""
    short_rows = SkippedRows() if is_labelled and task.skip_short_rows else ShortRows()
    if format == "parquet":
        return _parquet_table(path)
    if format == "xlsx":
        check_size(path)
        return _sheet_table(task, path, path.read_bytes(), short_rows)
    lines = read_lines(path, **_options(task, path, format))
    head = up_to_filled(lines, lambda numbered: not is_blank(numbered[1]))
    if not head:
        raise InputError(f"{path}:1: the file is empty; add examples, or give another file")
    table, rows = open_table(task, path, format, itertools.chain(head, lines), short_rows), names_by_file.get()
    return dataclasses.replace(table, name=rows[path.name], counts=" row ") if path.name in rows else table


@dataclass(frozen=True)
class Inputs:
    """The examples of an input of `predict`, read chunk by chunk."""

    description: str  # how the input is read; empty for an empty input
    chunks: Iterator[list[Any]]  # the examples in order, up to READ_AT_ONCE in a chunk
    short_rows: ShortRows  # the rows with too few cells that were read so far
    task: AnyTask  # predicts these examples: a tagger has another task for running text
    rows: deque[Cells] = field(default_factory=deque)  # the rows read so far, if they are kept
    empty: CountedRows = field(default_factory=CountedRows)  # the examples with an empty text that were read so far
    ids: Callable[[], Ids] = lambda: Ids(None)  # those that were read so far
    id_like: IdLike = field(default_factory=lambda: IdLike(()))
    has_ids: bool = True  # whether the results have the ids
    num_bytes: int | None = None  # size of a file; None for the others
    note: str = ""  # about the table
    position: Callable[[], int] | None = None  # returns the number of bytes read; None for inputs from Python

    @property
    def warnings(self) -> list[str]:
        """Warnings about what was read so far."""
        of_ids = [*self.ids().warnings, self.id_like.remark] if self.has_ids else []
        texts = f"{counted(self.empty.num_rows, 'example')} had an empty text, the first at {self.empty.first}"
        of_texts = self.empty.warning(f"{texts}; ignore their results")
        return [*filter(None, [*self.short_rows.warnings, self.note, *of_ids, *of_texts])]


def open_inputs(
    task: AnyTask, file: io.BufferedReader, name: Path, set_format: str | None, keep_rows: bool = False
) -> Inputs:
    """Open an input of `predict`, of which nothing has been read yet: detect its format and find its columns.

    `name` is `-` for standard input. `set_format` is the setting format=; None detects it from the ending, or else from the
    first lines, where lines of words that end with one of the model's labels are CoNLL. `keep_rows` fills `Inputs.rows`.

    Raises InputError if the input is wrong (a wrong line raises when it is read).
    """
    with unpacking(lambda: str(name)):
        file, encoding = as_utf8(unpacked(file, name), task.config.encoding)
        head = beginning(file, encoding)
    if not head:
        return Inputs("", iter(()), task.short_rows(), task)
    task = task.changed(encoding=encoding)
    detected = InputFormat(set_format) if set_format else format_of_input(task, name, head)
    format = "json" if detected.name == "squad" else detected.name
    task = task.for_format(format)
    check_input(task, format, name)
    if format == "text":
        columns = dataclasses.replace(task.config.columns, text="text", text_pair=None, id=None)
        task = task.changed(columns=columns)
    try:
        table = input_table(task.config, file, name, format, task.short_rows())
        return read_table(task, table, keep_rows)
    except InputError as error:
        if detected.is_guess and task.plain and not needs_text_pair(task.config):
            raise error.with_more(f"; for plain text set format={task.plain}") from None
        raise


def read_table(task: AnyTask, table: InputTable, keep_rows: bool = False) -> Inputs:
    """Read the rows of a table for `predict`; raises InputError for a missing column, or when a wrong row is read."""
    task = task.for_columns(table.names)
    rows: deque[Cells] = deque()
    if keep_rows:
        check_distinct(table.names, table.place(1))
        table = dataclasses.replace(table, rows=_noted(table.rows, rows))
    reading = Reading(task.config, table, is_labelled=False)
    examples = task.read(reading)
    unit = table.unit or ", ".join(f"{setting} in column '{column}'" for setting, column in reading.columns)
    chunks = iter(lambda: list(itertools.islice(examples, READ_AT_ONCE)), [])
    header = "" if table.has_header else " without a header"
    return Inputs(
        f"{table.name} read as {table.format}{header}: {unit}",
        chunks,
        table.short_rows,
        task,
        rows,
        reading.empty,
        lambda: reading.id_column,
        IdLike(()) if keep_rows else reading.id_like,
        note=table.note,
    )


def _noted(rows: Rows, kept: deque[Cells]) -> Rows:
    for row in rows:
        kept.append({name: value for name, value in row.cells.items() if not is_inner_text(name, row.cells)})
        yield row


def find_file(task: TaskConfig, data_dir: str | None, split: str) -> Path | None:
    """Return the file of a split, the first of several; None if it comes from the hub; raises InputError like `find_files`."""
    return next(iter(find_files(task, data_dir, split)), None)


def has_split(task: TaskConfig, data_dir: str | None, split: str) -> bool:
    """Return whether a split exists: in `data_dir`, or without data_dir on the hub."""
    try:
        path = find_file(task, data_dir, split)
    except InputError:
        return False
    return path is not None or vars(task.hub)[split] is not None


def find_files(task: TaskConfig, data_dir: str | None, split: str) -> list[Path]:
    """Return the files of a split; none if it comes from the hub; raises InputError if none matches, or several do for a task that reads one."""
    names = names_of(vars(task.files)[split])
    is_local = data_dir is None and task.hub.path is None
    own = (path for path in map(Path, names) if path.is_file() and (path.is_absolute() or is_local))
    if path := next(own, None):
        return [path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path]  # as the user calls it
    if data_dir is not None:
        return _files_below(task, data_dir, split, names)
    if task.hub.path is not None:
        return []
    missing = next((f"{name}: no such file" for name in names if Path(name).is_absolute()), f"no {split} file")
    raise InputError(
        f"task={task.name}: {missing}; set task.files.{split}= to a file, or data_dir= to the task's folder"
    )


def _files_below(task: TaskConfig, data_dir: str, split: str, names: tuple[str, ...]) -> list[Path]:
    if not names:
        raise InputError(f"task={task.name} has no {split} split; set task.files.{split}=")
    above = Path(os.path.expanduser(data_dir))
    if above.is_file():
        raise InputError(f"data_dir={data_dir} is a file; set data_dir={above.parent} task.files.{split}={above.name}")
    if not above.is_dir():
        raise InputError(f"data_dir={data_dir}: no such directory")
    folders = [*filter(Path.is_dir, map(above.joinpath, task.folders)), above]
    for name, folder in itertools.product(names, folders):
        matches = _matches(folder, name)
        if len(matches) > 1 and not task_of(task).reads_several_files:
            listed = ", ".join(path.name for path in matches)
            raise InputError(f"{folder}: several files for {split} ({listed}); set task.files.{split}= to one of them")
        if matches:
            return matches
    raise InputError(
        f"{' or '.join(map(str, folders))}: no {split} file for task={task.name}; expected {' or '.join(names)}; "
        f"set task.files.{split}="
    )


def _matches(folder: Path, pattern: str) -> list[Path]:
    """Return the file of this name, or else those that match the pattern, preferably with a known ending: skips train.csv.bak."""
    if "*" not in pattern or Path(pattern).is_absolute() or (folder / pattern).is_file():
        return [*filter(Path.is_file, [folder / pattern])]
    paths = sorted(filter(Path.is_file, folder.glob(pattern)))
    return [path for path in paths if ending_of(path) in (*ENDINGS, ".txt")] or paths


class _LineOptions(TypedDict):
    """How a file is read as lines."""

    encoding: str
    advice: str  # about bytes that do not fit it
    in_blocks: bool  # whether to read blocks of JSON
    keeps_returns: bool  # whether lines keep the carriage return at their end


def _options(task: TaskConfig, path: Path, format: str) -> _LineOptions:
    files = f"{shlex.quote(str(path))} > {shlex.quote(f'{path.stem}.utf8{path.suffix}')}"
    convert, setting = f"convert it: iconv -f WINDOWS-1252 -t UTF-8 {files}", user_name("task.encoding")
    way = f"{convert}; or set {setting}=cp1252" if setting else convert
    advice = way if task.encoding == "utf-8" else "set another task.encoding="
    return {
        "encoding": task.encoding,
        "advice": advice,
        "in_blocks": format == "json",
        "keeps_returns": format in SEPARATORS,
    }


def _parquet_table(path: Path, data: bytes | None = None) -> InputTable:
    file = parquet_records(path, data)
    rows = enumerate(with_label_names(file.records, file.label_names), 1)
    return records(str(path), "parquet", rows, ShortRows(), counts=" record ")


def _sheet_table(task: TaskConfig, path: Path, data: bytes, short_rows: ShortRows) -> InputTable:
    sheet = read_sheet(path, data)
    more = f", the first of {sheet.num_sheets}" if sheet.num_sheets > 1 else ""
    head = list(itertools.islice(sheet.rows, 1))
    if not head:
        raise InputError(f"{path}: sheet '{sheet.name}'{more} is empty; add examples, or give another file")
    rows = itertools.chain(head, sheet.rows)
    return cell_table(task, str(path), f"xlsx, sheet '{sheet.name}'{more}", rows, short_rows, counts=" row ")


def input_table(
    config: TaskConfig, file: io.BufferedReader, name: Path, format: str, short_rows: ShortRows
) -> InputTable:
    """Open an uncompressed file or pipe as a table; raises InputError for a line that does not fit, when it is read."""
    if format not in ("parquet", "xlsx"):
        lines = numbered_lines(file, name, **_options(config, name, format))
        return open_table(config, name, format, lines, short_rows)
    with unpacking(lambda: str(name)):
        data = file.read()
    return _parquet_table(name, data) if format == "parquet" else _sheet_table(config, name, data, short_rows)


def _hub_table(task: TaskConfig, split: str) -> InputTable:
    """Open a split of the task's dataset on the hub or in the local cache."""
    is_offline()
    import datasets

    hub = task.hub
    where = f"{hub.path}{f'/{hub.name}' if hub.name else ''} of the hub, split {split}"
    ways = "set data_dir= to the task's files, or copy a filled HF_HOME to this machine, or set task.hub.path= to another copy"
    with refusing(
        Exception, lambda error: f"task={task.name}: cannot read {where} ({in_one_line(error)[:300]}); {ways}"
    ):
        rows = datasets.load_dataset(hub.path, hub.name, split=split, revision=hub.revision)
    named = with_label_names(rows, label_names(rows.features))
    return records(where, "datasets", enumerate(named, 1), ShortRows(), counts=" record ")
