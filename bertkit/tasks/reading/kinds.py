"""Infer the task of a training file from its format, its columns and its labels."""

from collections.abc import Iterable, Sequence

from bertkit.base.errors import InputError
from bertkit.base.text_files import as_utf8, opened_input, unpacked
from bertkit.tasks.reading.conll import detect_scheme
from bertkit.tasks.reading.formats import beginning, conll_format, format_of_input, suffix_of
from bertkit.tasks.reading.labels import as_number
from bertkit.tasks.reading.readers import find_file, open_file
from bertkit.tasks.task import CONLL_FORMATS, ENDINGS
from bertkit.tasks.task_config import TAGS, WORDS, TaskConfig
from bertkit.tasks.trainable import task_of

MAX_NUMBERS = 20  # different whole numbers that may be classes, such as stars; more are the labels of a regression
_WAY_OUT = "set task=, such as task=classification"


def infer_task(task: TaskConfig, data_dir: str | None = None) -> tuple[list[str], str]:
    """Infer the settings for the training file of `task`, a task for sequences; return overrides, and the reason.

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
    is_conll, table = format in CONLL_FORMATS, open_file(task, path, format)
    own = [] if suffix_of(path) in ENDINGS or is_conll else [f"task.format={format}"]
    if is_conll or {*WORDS} & {*table.names}:
        column = next((name for name in TAGS if name in table.names), "")
        tags = [sentence.tags if sentence else cells.get(column) for _, cells, sentence in table.rows]
        has_chunks = detect_scheme([[*map(str, some)] for some in tags if isinstance(some, Iterable)]) != "none"
        metrics = [] if has_chunks else ["task.metrics=[accuracy]", "task.best_metric=accuracy"]
        return ["task=tagging", *metrics, *own], "it is CoNLL" if is_conll else "it has lists of words"
    if {"question", "context"} <= {*table.names}:
        return ["task=qa", *own], "it has questions and contexts"
    column = table.find(task.columns.label, "label")
    labels = [cells[column] for _, cells, _ in table.rows if cells.get(column) not in (None, "")]
    settings, labels_are = _of_labels(task, labels)
    if not settings:
        raise InputError(f"{path}: column '{column}' has {labels_are} in {len(labels):,} rows; {_WAY_OUT}")
    return [*settings, *own], f"column '{column}' has {labels_are}"


def _of_labels(task: TaskConfig, labels: Sequence[object]) -> tuple[list[str], str]:
    """Return the settings for these labels, none if nearly every label is different, and a description of the labels."""
    texts = {label for label in labels if isinstance(label, (str, int, float))}
    parts = {part.strip() for text in texts for part in str(text).split(task.label_separator)}
    if len(texts) < len({*map(str, labels)}) or len(parts) < len(texts):
        metrics = ["task.metrics=[f1_micro,f1_macro,accuracy]", "task.best_metric=f1_micro"]
        return ["task=classification", "task.multi_label=true", *metrics], "lists of labels"
    numbers = {as_number(text) for text in texts}
    are_classes = len(numbers) <= MAX_NUMBERS and all(number.is_integer() for number in numbers)
    if numbers and max(numbers) < float("inf") and not are_classes:
        return ["task=regression"], f"{len(numbers):,} different numbers"
    is_few = len(texts) <= max(2, len(labels) / 2)
    return ["task=classification"] if is_few else [], f"{len(texts):,} different labels"
