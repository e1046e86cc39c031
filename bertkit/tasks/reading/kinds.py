"""Infer the task of a training file from its format, its columns and its labels."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from bertkit.base.errors import InputError
from bertkit.base.text_files import as_utf8, opened_input, unpacked
from bertkit.tasks.reading.conll import detect_scheme
from bertkit.tasks.reading.formats import beginning, conll_format, format_of_input, suffix_of
from bertkit.tasks.reading.labels import as_number
from bertkit.tasks.reading.readers import find_file, open_file
from bertkit.tasks.reading.reading import Reading
from bertkit.tasks.reading.tables import InputTable
from bertkit.tasks.task import CONLL_FORMATS, ENDINGS
from bertkit.tasks.task_config import TAGS, WORDS, TaskConfig
from bertkit.tasks.trainable import task_of

MAX_NUMBERS = 20  # different whole numbers that may be classes, such as stars; more are the labels of a regression
_WAY_OUT = "set task=, such as task=classification"


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
    with opened_input(str(path)) as (file, _):
        head = beginning(*as_utf8(unpacked(file, path), task.encoding))
    format = format_of_input(sequences, path, head).name if head else "csv"
    if format in ("tsv", "text"):
        format = conll_format(sequences, head.splitlines()) or format
    if format == "text":
        raise InputError(f"{path}: no columns; expected a table, CoNLL, or SQuAD's JSON; {_WAY_OUT}")
    table = open_file(task, path, format)
    inferred = _from_sentences(table) if format in CONLL_FORMATS else _from_table(task, path, table)
    is_told = suffix_of(path) in ENDINGS or format in CONLL_FORMATS
    return inferred if is_told else inferred._replace(settings=[*inferred.settings, f"task.format={format}"])


def _from_sentences(table: InputTable) -> Inferred:
    return Inferred(_of_tags([sentence.tags for sentence in table.sentences()]), "it is CoNLL")


def _from_table(task: TaskConfig, path: Path, table: InputTable) -> Inferred:
    names, rows = {*table.names}, (cells for _, cells, _ in table.rows)
    if names.intersection(WORDS):
        column = next((name for name in TAGS if name in names), "")
        return Inferred(_of_tags([cells.get(column) for cells in rows]), "it has lists of words")
    if {"question", "context"} <= names:
        return Inferred(["task=qa"], "it has questions and contexts")
    column = Reading(task, table).find(task.columns.label, "label")
    labels = [cells[column] for cells in rows if cells.get(column) not in (None, "")]
    inferred = _of_labels(task, labels)
    if not inferred.settings:
        raise InputError(f"{path}: column '{column}' has {inferred.reason} in {len(labels):,} rows; {_WAY_OUT}")
    return inferred._replace(reason=f"column '{column}' has {inferred.reason}")


def _of_tags(tags: Sequence[object]) -> list[str]:
    """Return the settings for the tags of sentences."""
    has_chunks = detect_scheme([[*map(str, some)] for some in tags if isinstance(some, Iterable)]) != "none"
    return ["task=tagging", *([] if has_chunks else ["task.metrics=[accuracy]", "task.best_metric=accuracy"])]


def _of_labels(task: TaskConfig, labels: Sequence[object]) -> Inferred:
    """Return the settings for these labels, none if nearly every label is different, and a description of the labels."""
    texts = {label for label in labels if isinstance(label, (str, int, float))}
    parts = {part.strip() for text in texts for part in str(text).split(task.label_separator)}
    if len(texts) < len({*map(str, labels)}) or len(parts) < len(texts):
        metrics = ["task.metrics=[f1_micro,f1_macro,accuracy]", "task.best_metric=f1_micro"]
        return Inferred(["task=classification", "task.multi_label=true", *metrics], "lists of labels")
    numbers = {as_number(text) for text in texts}
    are_classes = len(numbers) <= MAX_NUMBERS and all(map(float.is_integer, numbers))
    if numbers and max(numbers) < float("inf") and not are_classes:
        return Inferred(["task=regression"], f"{len(numbers):,} different numbers")
    is_few = len(texts) <= max(2, len(labels) / 2)
    are_stars = len(texts) > 2 and max(numbers) < float("inf")
    more = " (numbers; if their sizes matter, as of stars, set task=regression)" if are_stars else ""
    return Inferred(["task=classification"] if is_few else [], f"{len(texts):,} different labels{more}")
