"""Detect the format of a file: from the task's settings, from the file's ending, or else from its first lines."""

import csv
import io
import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from bertkit.base.errors import InputError
from bertkit.base.text_files import PEEKED_BYTES, opened_input, parse_json, unpacked
from bertkit.tasks.reading.conll import BLANKS
from bertkit.tasks.reading.tables import all_names, names_of
from bertkit.tasks.task import TABLES, AnyTask
from bertkit.tasks.task_config import TaskConfig

CONLL_FORMATS = ("conll", "conllu")
ENDINGS = {f".{format}": format for format in (*TABLES, *CONLL_FORMATS)} | {".ndjson": "jsonl"}
_TAG = re.compile(r"O|[BIES]-\S+")
_JSON = re.compile(r'(\{|\[\s*\{)\s*"([^"\\]|\\.)*"\s*:')  # an object with a key, or an array of objects
_QUOTED_CELLS = re.compile(r'"[^"]*"(,"[^"]*")+')


def suffix_of(path: Path) -> str:
    """Return the ending of the uncompressed file, in lower case: `.csv` for `train.csv.gz`."""
    return (Path(path.stem) if path.suffix.lower() == ".gz" else path).suffix.lower()


def format_of_file(task: AnyTask, path: Path) -> str:
    """Return the format of a file with labels; raises InputError if it is unknown, or is one for another task."""
    suffix = suffix_of(path)
    format, wanted = ENDINGS.get(suffix), task.config.format
    if wanted != "auto":
        # the task sets the format of the official files; a user's copy may have another one, with its own ending
        is_other = task.has_words and suffix in (".jsonl", ".json", ".parquet")
        format = format if is_other else wanted
    elif task.has_words and format in (None, "tsv"):
        format = "conll"
    if format is None:
        way_out = "set task.format=tsv, csv, jsonl, json, parquet, label_text, conll or conllu"
        with opened_input(str(path)) as (file, _):
            unpacked(file, path)  # refuses Excel's files
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
    suffix, wanted = suffix_of(name), task.config.format
    ending = ENDINGS.get(suffix)
    if task.has_words and (ending == "tsv" or (ending is None and suffix not in ("", ".txt"))):
        return InputFormat("conll" if ending or wanted == "auto" else wanted)  # such as eng.testb
    if ending is not None:
        return InputFormat(ending)
    lines = beginning.split("\n")
    whole = [line.rstrip("\r") for line in lines[:-1] or lines]  # the last line may be incomplete
    format = json_format(beginning) or conll_format(task, whole)
    if format is None and task.plain is None:
        format = wanted if wanted != "auto" else "tsv" if "\t" in whole[0] else "csv"
    if format is None and task.plain == "text":
        format = _table_format(task, whole)
    return InputFormat(format or task.plain or "", is_guess=True)


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
    return task.needs_pair or isinstance(task.columns.text_pair, (str, int))


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
    if isinstance(value, dict):
        return "json" if isinstance(value.get("data"), list) else "jsonl"
    return "json" if isinstance(value, list) and value and isinstance(value[0], dict) else None


def conll_format(task: AnyTask, lines: list[str]) -> str | None:
    """Detect CoNLL: equally many columns in every line, one of them with tags, and blank lines between sentences."""
    rows = [BLANKS.split(line.strip(" \t")) for line in lines if not line.startswith("#")]
    words = [row for row in rows if row != [""]]
    if lines[0].startswith("-DOCSTART-"):
        return "conll"
    if words and all(len(line.split("\t")) == 10 and line[0].isdigit() for line in lines if line[:1] not in ("", "#")):
        return "conllu"
    has_sentences = [""] in rows and any(one != [""] != next_ for one, next_ in itertools.pairwise(rows))
    if not has_sentences or len({len(row) for row in words}) > 1 or len(words[0]) < 2:
        return None
    place = task.config.columns.tags
    column = place if isinstance(place, int) else -1
    tags = {row[column] for row in words} if -len(words[0]) <= column < len(words[0]) else {""}
    if task.has_words:
        return "conll" if all(tag in task.labels or _TAG.fullmatch(tag) for tag in tags) else None
    return "conll" if tags != {"O"} and all(map(_TAG.fullmatch, tags)) else None


def _table_format(task: AnyTask, lines: list[str]) -> str | None:
    """Detect a table: the first line names columns of the task, or all lines have the same number of tabs."""
    config = task.config
    filled = [line for line in lines if line] or [""]
    tabs, commas = filled[0].split("\t"), _csv_cells(filled[0])
    for format, cells in (("tsv", tabs), ("csv", commas), ("csv", filled[0].split(";"))):
        if set(cells) & (all_names(config) if len(cells) > 1 else set(names_of(config.columns.text))):
            return format
    if config.format == "csv" and len(commas) == len(config.column_names or ()):
        return "csv"
    if len({line.count("\t") for line in filled}) == 1 and len(tabs) > 1:
        return "tsv"
    firsts = [line.partition(" ")[0] for line in filled]
    if config.format == "label_text" and firsts[0] in task.labels and all(":" in first for first in firsts):
        return "label_text"
    return "csv" if _QUOTED_CELLS.fullmatch(filled[0]) else None


def _csv_cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error:
        return []
