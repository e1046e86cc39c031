"""Infer the task of a training file from its format, its columns and its labels."""

import contextlib
import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bertkit.base.blocks import ending_of
from bertkit.base.errors import InputError, counted
from bertkit.base.text_files import as_utf8, opened_input, unpacked, unpacking
from bertkit.base.typed_settings import refuse
from bertkit.tasks.reading.conll import detect_scheme
from bertkit.tasks.reading.formats import beginning, conll_format, format_of_input
from bertkit.tasks.reading.labels import SEPARATORS, as_number, parts_of, spelled, tags_in, with_decimal_comma
from bertkit.tasks.reading.readers import find_file, open_file
from bertkit.tasks.reading.reading import Reading
from bertkit.tasks.reading.tables import InputTable
from bertkit.tasks.task import CONLL_FORMATS, ENDINGS
from bertkit.tasks.task_config import ENTITIES, TAGS, WORDS, TaskConfig, must_exist
from bertkit.tasks.trainable import task_of

MAX_NUMBERS = 20  # different whole numbers that may be classes, such as stars; more are the labels of a regression
MIN_SEVERAL = 0.05  # of the cells must have several labels; otherwise a comma is a part of a label
MOSTLY = 0.9  # of the labels are numbers: then those that are not are named
_WAY_OUT = "set task=, such as task=classification"
_SEVERAL = (
    "task=classification",
    "task.multi_label=true",
    "task.metrics=[f1_micro,f1_macro,accuracy]",
    "task.best_metric=f1_micro",
)
_SIGN = r"(?:[$€£¥₹₽₩₺₴¢%]|[A-Z]{3})"
_WRITTEN_NUMBER = re.compile(rf"{_SIGN}?\s*[+-]?(?:\d{{1,3}}(?:[., '’]\d{{3}})+|\d+)(?:[.,]\d+)?\s*{_SIGN}?")

_PADDED_DECIMALS = re.compile(r".*,0[0-9]+")  # 180,02 is no list of class numbers, but 0,5 and 12,50 may be one
_PADDED_WHOLE = re.compile(r"[+-]?0[0-9].*")  # 01,03 may be a list


class Inferred(NamedTuple):
    """Settings, and why they are chosen."""

    settings: list[str]
    reason: str


def infer_task(task: TaskConfig, data_dir: str | None = None) -> Inferred:
    """Infer the settings for the training file of `task`, a task for sequences.

    Raises InputError if the file cannot be read, has no column of labels, or too many different labels.
    """
    path, sequences = find_file(task, data_dir, "train"), task_of(task)
    assert path is not None, "sequence has no dataset on the hub"
    with opened_input(str(path)) as (file, _), unpacking(lambda: str(path)):
        head = beginning(*as_utf8(unpacked(file, path), task.encoding))
    format = format_of_input(sequences, path, head).name if head else "csv"
    if format in ("tsv", "text"):
        format = conll_format(sequences, head.splitlines()) or format
    if format == "text":
        raise InputError(f"{path}: no columns; expected a table, CoNLL, or SQuAD's JSON; {_WAY_OUT}")
    table = open_file(task, path, format)
    inferred = _from_sentences(table) if format in CONLL_FORMATS else _from_table(task, table)
    is_told = ending_of(path) in ENDINGS or format in CONLL_FORMATS
    return inferred if is_told else inferred._replace(settings=[*inferred.settings, f"task.format={format}"])


def _from_sentences(table: InputTable) -> Inferred:
    return Inferred(_of_tags([sentence.tags for sentence in table.sentences()]), "it is CoNLL")


def _from_table(task: TaskConfig, table: InputTable) -> Inferred:
    names, rows = {*table.names}, [cells for _, cells, _ in table.rows]
    if names.intersection(WORDS):
        column = next((name for name in TAGS if name in names), "")
        return Inferred(_of_tags([cells.get(column) for cells in rows]), "it has lists of words")
    spans = next((name for name in ENTITIES if name in names), "")
    if any(_has_spans(cells.get(spans)) for cells in rows):
        return Inferred(["task=tagging"], f"column '{spans}' has entities")
    if {"question", "context"} <= names:
        return Inferred(["task=qa"], "it has questions and contexts")
    needed = {
        key: one for key, one in vars(task.columns).items() if must_exist(one) or (one and key in ("text", "label"))
    }
    refuse([table.missing(one, key) for key, one in needed.items() if table.present(one) is None])
    column = Reading(task, table).find(task.columns.label, "label")
    inferred = _of_labels(task, [cells[column] for cells in rows if cells.get(column) not in (None, "")])
    if not inferred.settings:
        raise InputError(f"{table.name}: column '{column}' has {inferred.reason}")
    return inferred._replace(reason=f"column '{column}' has {inferred.reason}")


def _has_spans(value: object) -> bool:
    match value:
        case [list() | dict(), *_]:
            return True
    return False


def _of_tags(tags: Sequence[object]) -> list[str]:
    """Return the settings for the tags of sentences."""
    lists = [_in_text(some) if isinstance(some, str) else some for some in tags]
    has_chunks = detect_scheme([[*map(str, some)] for some in lists if isinstance(some, Iterable)]) != "none"
    return ["task=tagging", *([] if has_chunks else ["task.metrics=[accuracy]", "task.best_metric=accuracy"])]


def _in_text(tags: str) -> Sequence[str]:
    """Return the tags in a text; none in one that the reader will refuse."""
    with contextlib.suppress(ValueError):
        return tags_in(tags)
    return []


def _of_labels(task: TaskConfig, labels: Sequence[object]) -> Inferred:
    """Return the settings for these labels, and a description; no settings if nearly every label is different, or a number has signs."""
    values = [spelled(label) for label in labels if isinstance(label, (str, int, float))]
    texts = dict.fromkeys(filter(None, values))
    written = [text for text in texts if _WRITTEN_NUMBER.fullmatch(text)]
    is_few = len(texts) <= max(2, len(labels) / 2)
    odd = [text for text in (written if is_few else texts) if as_number(text) == math.inf]
    have_commas = bool(odd) and all(with_decimal_comma(text) < math.inf or text.isdecimal() for text in texts)
    are_decimals = any(map(_PADDED_DECIMALS.fullmatch, texts)) and not any(map(_PADDED_WHOLE.fullmatch, texts))
    if have_commas and not is_few and are_decimals:
        return Inferred(["task=regression"], f"{len(texts):,} different numbers with decimal commas")
    if odd and len(written) >= MOSTLY * len(texts):
        number = "set task=regression for decimal commas" if have_commas else "write numbers as in 1234.5"
        way = f"{number}, or set task.multi_label=true if these are lists of labels"
        return Inferred([], f"numbers, but also {odd[0]!r:.40}; {way}")
    separators = [mark for mark in dict.fromkeys((task.label_separator, *SEPARATORS)) if _are_lists(values, mark)]
    if separators or len(values) < len(labels):
        separator = separators[0] if separators else task.label_separator
        other = [] if separator == task.label_separator else [f"task.label_separator='{separator}'"]
        return Inferred([*_SEVERAL, *other], "lists of labels")
    numbers = {as_number(text) for text in texts}
    are_classes = len(numbers) <= MAX_NUMBERS and all(map(float.is_integer, numbers))
    if numbers and max(numbers) < math.inf and not are_classes:
        return Inferred(["task=regression"], f"{len(numbers):,} different numbers")
    are_stars = len(texts) > 2 and max(numbers) < math.inf
    more = " (numbers; if their sizes matter, as of stars, set task=regression)" if are_stars else ""
    if not is_few:
        return Inferred([], f"{len(texts):,} different labels in {len(labels):,} rows; {_WAY_OUT}")
    found = counted(len(texts), "different label") if len(texts) > 1 else "one label alone"
    return Inferred(["task=classification"], f"{found}{more}")


def _are_lists(values: Sequence[str], separator: str) -> bool:
    """Whether many cells have several labels, which other cells have, too; a single label may contain a comma."""
    lists = {value: [spelled(str(part)) for part in parts_of(value, separator) or ()] for value in {*values}}
    num_several = sum(len(lists[value]) != 1 or value.startswith("[") for value in values)
    parts = {part for own in lists.values() for part in own}
    return num_several >= MIN_SEVERAL * len(values) and len(parts) < len(lists)
