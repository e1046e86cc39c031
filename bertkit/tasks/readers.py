"""Tables with a header, to examples: just enough to fine-tune on, until the readers of all formats take this place."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.errors import InputError
from bertkit.tasks.config import TaskConfig
from bertkit.tasks.task import ChoiceExample, Example, SequenceExample


@dataclass(frozen=True)
class Source:
    """The examples of a split.

    Attributes:
        description: the file or dataset, and its format.
        examples: in the order of the file.
        labels: names in the order of their numbers; none for a regression, spans and choices.
        warnings: what looks wrong and is no error, a line each.
    """

    description: str
    examples: list[Example]
    labels: tuple[str, ...]
    warnings: tuple[str, ...]


def read_examples(task: TaskConfig, data_dir: str | None, split: str, labels: tuple[str, ...] | None = None) -> Source:
    """Read `SPLIT.tsv` of a task's directory.

    Raises:
        InputError: there is no such file.
    """
    path = Path(data_dir or "") / f"{split}.tsv"
    if not path.is_file():
        raise InputError(f"data_dir={data_dir}: no {split}.tsv in it; put it there")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    read: dict[str, Any] = {"sequence": _sequence, "choice": _choice}
    examples = [read[task.kind](task, str(number), row) for number, row in enumerate(rows)]
    names = task.label_names or labels or tuple(sorted({str(row["label"]) for row in rows}))
    return Source(f"{path} (tsv)", examples, () if task.is_regression or task.kind == "choice" else names, ())


def _sequence(task: TaskConfig, number: str, row: dict[str, str]) -> SequenceExample:
    label = float(row["label"]) if task.is_regression else row["label"]
    return SequenceExample(number, row["text"], row.get("text_pair"), label)


def _choice(task: TaskConfig, number: str, row: dict[str, str]) -> ChoiceExample:
    return ChoiceExample(number, row["context"], (row["ending0"], row["ending1"]), int(row["label"]))


def describe(source: Source) -> str:
    """Say in a line what was read."""
    counts = Counter(str(getattr(example, "label", None)) for example in source.examples)
    listed = ", ".join(f"{label} {count:,}" for label, count in sorted(counts.items())[:8])
    return f"{source.description}: {len(source.examples):,} rows; {listed}"
