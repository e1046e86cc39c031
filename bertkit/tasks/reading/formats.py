"""Detect the format of a file: from the task's settings, from the file's ending, or else from its first lines."""

import csv
import io
import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from bertkit.base.blocks import ending_of
from bertkit.base.errors import InputError
from bertkit.base.text_files import PEEKED_BYTES, opened_input, parse_json, unpacked
from bertkit.tasks.reading.conll import BLANKS
from bertkit.tasks.reading.tables import all_names
from bertkit.tasks.task import CONLL_FORMATS, AnyTask
from bertkit.tasks.task_config import TEXTS, WORDS, TaskConfig, must_exist, names_of, number_of

_TAG = re.compile(r"O|[BIES]-\S+")
_CONLLU = re.compile(r"\d[^\t]*(\t[^\t]*){9}")
_JSON = re.compile(r'(\{|\[\s*\{)\s*"([^"\\]|\\.)*"\s*:')  # an object with a key, or an array of objects
_QUOTED_CELLS = re.compile(r'"[^"]*"(,"[^"]*")+')


def format_of_file(task: AnyTask, path: Path) -> str:
    """Return the format of a file with labels; raises InputError if it is unknown, or is one for another task."""
    format = task.file_format(ending_of(path))
    if format is None:
        way_out = "set task.format=tsv, csv, jsonl, json, parquet, xlsx, label_text, conll or conllu"
        with opened_input(str(path)) as (file, _):
            unpacked(file, path)  # refuses archives
        raise InputError(f"{path}: unknown format (ending '{path.suffix}'); {way_out}")
    if format in CONLL_FORMATS and not task.has_words:
        raise InputError(f"{path}: format {format} holds tags, which kind={task.kind} cannot use; set task.format=")
    return format


@dataclass(frozen=True)
class InputFormat:
    """The format of an input of `predict`."""

    name: str
    is_guess: bool = False  # whether it was guessed from the first lines


def format_of_input(task: AnyTask, name: Path, beginning: str) -> InputFormat:
    """Detect the format of an input of `predict`, from its ending or its first lines."""
    format = task.input_format(ending_of(name))
    if format is not None:
        return InputFormat(format)
    lines = beginning.split("\n")
    whole = [line.rstrip("\r") for line in lines[:-1] or lines]  # the last line may be incomplete
    return InputFormat(json_format(beginning) or conll_format(task, whole) or _plain_format(task, whole), is_guess=True)


def check_input(task: AnyTask, format: str, name: Path) -> None:
    """Raise InputError for a format that the task cannot read, and for single texts if the task needs pairs."""
    if format == "text" and needs_text_pair(task.config):
        wrong = f"task={task.config.name} needs pairs of texts, but a plain text file has one text per line"
        raise InputError(f"{name}: {wrong}; use a file with named columns, or set format=")
    if format not in task.formats:
        expected = ", ".join(task.formats)
        raise InputError(f"{name}: format {format} does not fit a {task.kind} model; set format= to one of {expected}")


def needs_text_pair(task: TaskConfig) -> bool:
    """Check whether an example of the task needs a pair of texts."""
    return task.needs_pair or must_exist(task.columns.text_pair)


def beginning(file: io.BufferedReader, encoding: str) -> str:
    """Return the first characters of an input, without consuming them."""
    return file.peek(PEEKED_BYTES)[:PEEKED_BYTES].decode(encoding, "replace").removeprefix("\ufeff")


def json_format(beginning: str) -> str | None:
    """Detect JSON lines or JSON: an object, or an array of objects. A plain text may also begin with a bracket, as in [MASK]."""
    text = beginning.lstrip()
    first, _, more = text.partition("\n")
    try:
        value = parse_json(first)
    except ValueError:
        if not _JSON.match(text):
            return None
        return "jsonl" if text[0] == "{" and not more and '"data"' not in first else "json"  # a long, incomplete line
    match value:
        case {"data": list()} | [dict(), *_]:
            return "json"
        case dict():
            return "jsonl"
    return None


def conll_format(task: AnyTask, lines: list[str]) -> str | None:
    """Detect CoNLL: equally many columns in every line, one of them with tags, and blank lines between sentences.

    For a tagger a single word in every line is enough, as in a test file without tags.
    """
    if lines[0].startswith("-DOCSTART-"):
        return "conll"
    content = [line for line in lines if line[:1] not in ("", "#")]
    if content and all(map(_CONLLU.fullmatch, content)):
        return "conllu"
    rows = [BLANKS.split(line.strip(" \t")) for line in lines if not line.startswith("#")]
    words = [row for row in rows if row != [""]]
    has_sentences = [""] in rows and any(one != [""] != next_ for one, next_ in itertools.pairwise(rows))
    if not has_sentences or len({*map(len, words)}) > 1:
        return None
    if len(words[0]) == 1:
        return "conll" if task.has_words else None
    column = number_of(task.config.columns.tags, -1)
    tags = {row[column] for row in words} if -len(words[0]) <= column < len(words[0]) else {""}
    only_by_chance = set() if task.has_words else {"O"}  # a text may have the letter O in each line
    known = task.labels if task.has_words else ()
    return "conll" if tags != only_by_chance and all(map(_TAG.fullmatch, tags.difference(known))) else None


def _plain_format(task: AnyTask, lines: list[str]) -> str:
    """Return the format of an input that is neither JSON nor CoNLL."""
    match task.plain:
        case "text":
            return _table_format(task, lines) or "text"
        case None:
            usual = "tsv" if "\t" in lines[0] else "csv"
            return usual if task.config.format == "auto" else task.config.format
        case "words":
            columns = task.config.columns
            names = {*names_of(columns.words or WORDS), *names_of(columns.text or TEXTS)}
            cells = {"tsv": lines[0].split("\t"), "csv": _csv_cells(lines[0])}
            return next((one for one, own in cells.items() if len(own) > 1 and not names.isdisjoint(own)), "words")
    return task.plain


def _table_format(task: AnyTask, lines: list[str]) -> str | None:
    """Detect a table: the first line names columns of the task, or all lines have the same number of tabs."""
    config = task.config
    filled = list(filter(None, lines)) or [""]
    first, widths = filled[0], {line.count("\t") for line in filled}
    tabs, commas, labels = first.split("\t"), _csv_cells(first), [line.partition(" ")[0] for line in filled]
    rules = (
        ("tsv", _names_columns(config, tabs)),
        ("csv", _names_columns(config, commas)),
        ("csv", _names_columns(config, first.split(";"))),
        ("csv", config.format == "csv" and len(commas) == len(config.column_names or ())),
        ("tsv", len(tabs) > 1 and len(widths) == 1),
        (
            "label_text",
            config.format == "label_text" and labels[0] in task.labels and all(":" in one for one in labels),
        ),
        ("csv", _QUOTED_CELLS.fullmatch(first)),
    )
    return next((format for format, fits in rules if fits), None)


def _names_columns(config: TaskConfig, cells: list[str]) -> bool:
    """Whether a line names a column of the task; a single cell must name the column of texts."""
    names = all_names(config) if len(cells) > 1 else names_of(config.columns.text)
    return not set(cells).isdisjoint(names)


def _csv_cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error:
        return []
