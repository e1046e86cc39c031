"""The format of a file or an input: from its task, from its ending, else from its beginning."""

import csv
import io
import itertools
import re
from pathlib import Path

from bertkit.base.errors import InputError
from bertkit.base.text_files import PEEKED_BYTES, parse_json
from bertkit.tasks.reading.conll import BLANKS
from bertkit.tasks.reading.tables import all_names, names_of
from bertkit.tasks.task import Shape
from bertkit.tasks.task_config import TaskConfig

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
OF_WORDS = ("conll", "conllu")
_TAG = re.compile(r"O|[BIES]-\S+")
_JSON = re.compile(r'(\{|\[\s*\{)\s*"([^"\\]|\\.)*"\s*:')  # an object with a key, or an array of such
_QUOTED_CELLS = re.compile(r'"[^"]*"(,"[^"]*")+')


def suffix_of(path: Path) -> str:
    """Give the ending that tells the format, in lower case: `.csv` for `train.csv.gz`."""
    return (Path(path.stem) if path.suffix.lower() == ".gz" else path).suffix.lower()


def format_of_file(shape: Shape, task: TaskConfig, path: Path) -> str:
    """Choose the format of a file with labels.

    Raises:
        InputError: neither the task nor the ending tells the format, or it is for another shape.
    """
    suffix = suffix_of(path)
    format = ENDINGS.get(suffix)
    if task.format != "auto":
        # the format of the official files; a user's own copy may have another one, and its ending
        is_other = shape.is_word_level and suffix in (".jsonl", ".json", ".parquet")
        format = ENDINGS[suffix] if is_other else task.format
    elif shape.is_word_level and format in (None, "tsv"):
        format = "conll"
    if format is None:
        way_out = "set task.format=tsv, csv, jsonl, json, parquet, label_text, conll or conllu"
        raise InputError(f"{path}: unknown format (ending '{path.suffix}'); {way_out}")
    if format in OF_WORDS and not shape.is_word_level:
        raise InputError(f"{path}: format {format} is for tags, not for kind={shape.kind}; set task.format=")
    return format


def format_of_input(
    shape: Shape, task: TaskConfig, name: Path, beginning: str, labels: tuple[str, ...]
) -> tuple[str, bool]:
    """Choose the format of an input without labels; the second value: whether it is a guess from its beginning."""
    suffix = suffix_of(name)
    ending = ENDINGS.get(suffix)
    if shape.is_word_level and (ending == "tsv" or (ending is None and suffix not in ("", ".txt"))):
        return ("conll" if ending or task.format == "auto" else task.format), False  # such as eng.testb
    if ending is not None:
        return ending, False
    lines = beginning.split("\n")
    whole = [line.rstrip("\r") for line in lines[:-1] or lines]  # the last one may be cut
    format = json_format(beginning) or _conll_format(shape, task, whole, labels)
    if format is None and shape.plain is None:
        format = task.format if task.format != "auto" else "tsv" if "\t" in whole[0] else "csv"
    if format is None and shape.plain == "text":
        format = _table_format(task, whole, labels)
    return format or shape.plain or "", True


def check_input(shape: Shape, task: TaskConfig, format: str, name: Path) -> None:
    """Refuse a format that a model of this shape cannot read, and single texts where pairs are needed."""
    if format == "text" and is_of_pairs(task):
        wrong = f"task={task.name} is of pairs, and a text per line has no second one"
        raise InputError(f"{name}: {wrong}; use a file of named columns, or set format=")
    if format not in shape.formats:
        expected = ", ".join(shape.formats)
        raise InputError(f"{name}: format {format} does not fit a {shape.kind} model; set format= to one of {expected}")


def is_of_pairs(task: TaskConfig) -> bool:
    """Whether a text needs a second one."""
    return task.needs_pair or isinstance(task.columns.text_pair, (str, int))


def beginning(file: io.BufferedReader) -> str:
    """Peek at the first characters of an input."""
    return file.peek(PEEKED_BYTES)[:PEEKED_BYTES].decode("utf-8", "replace").removeprefix("\ufeff")


def json_format(beginning: str) -> str | None:
    """Detect JSON lines and JSON, an object or an array of objects; a text may also begin with a bracket, as in [MASK]."""
    text = beginning.lstrip()
    first, _, more = text.partition("\n")
    try:
        value = parse_json(first)
    except ValueError:
        if not _JSON.match(text):
            return None
        return "jsonl" if text[0] == "{" and not more and '"data"' not in first else "json"  # one long line, cut
    if isinstance(value, dict):
        return "json" if isinstance(value.get("data"), list) else "jsonl"
    return "json" if isinstance(value, list) and value and isinstance(value[0], dict) else None


def _conll_format(shape: Shape, task: TaskConfig, lines: list[str], labels: tuple[str, ...]) -> str | None:
    """Detect columns of words: equally many in every line, tags in one, blank lines, and a sentence of several lines."""
    rows = [BLANKS.split(line.strip(" \t")) for line in lines if not line.startswith("#")]
    words = [row for row in rows if row != [""]]
    if lines[0].startswith("-DOCSTART-"):
        return "conll"
    if words and all(len(line.split("\t")) == 10 and line[0].isdigit() for line in lines if line[:1] not in ("", "#")):
        return "conllu"
    has_sentences = [""] in rows and any(one != [""] != next_ for one, next_ in itertools.pairwise(rows))
    if not has_sentences or len({len(row) for row in words}) > 1 or len(words[0]) < 2:
        return None
    column = task.columns.tags if isinstance(task.columns.tags, int) else -1
    tags = {row[column] for row in words} if -len(words[0]) <= column < len(words[0]) else {""}
    if shape.is_word_level:
        return "conll" if all(tag in labels or _TAG.fullmatch(tag) for tag in tags) else None
    return "conll" if tags != {"O"} and all(map(_TAG.fullmatch, tags)) else None


def _table_format(task: TaskConfig, lines: list[str], labels: tuple[str, ...]) -> str | None:
    """Detect a table with a text per row: its first line names the columns, or all lines have the same number of tabs."""
    filled = [line for line in lines if line] or [""]
    tabs, commas = filled[0].split("\t"), _csv_cells(filled[0])
    for format, cells in (("tsv", tabs), ("csv", commas), ("csv", filled[0].split(";"))):
        if set(cells) & (all_names(task) if len(cells) > 1 else set(names_of(task.columns.text))):
            return format
    if task.format == "csv" and len(commas) == len(task.column_names or ()):
        return "csv"
    if len({line.count("\t") for line in filled}) == 1 and len(tabs) > 1:
        return "tsv"
    firsts = [line.partition(" ")[0] for line in filled]
    if task.format == "label_text" and firsts[0] in labels and all(":" in first for first in firsts):
        return "label_text"
    return "csv" if _QUOTED_CELLS.fullmatch(filled[0]) else None


def _csv_cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error:
        return []
