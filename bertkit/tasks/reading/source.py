"""The rows of a file as examples on their way, and the examples of a split with what looks wrong in them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bertkit.base.errors import InputError
from bertkit.tasks.reading.labels import Ids, Labels
from bertkit.tasks.reading.tables import Table
from bertkit.tasks.task import Shape
from bertkit.tasks.task_config import Column, TaskConfig

MAX_SHARES = 20  # labels that a description counts
NONE_OF_THEM = "(none)"  # where several labels may hold at once


@dataclass
class Reading:
    """A table's examples on their way; what is found out about them is complete when all have been taken."""

    task: TaskConfig  # how the table is written
    table: Table  # that is read
    # whether every example must have its label; None takes those that are there, False none: an input to predict from
    is_labelled: bool | None = None
    known_labels: tuple[str, ...] | None = None  # of the model or the training file, where none are listed
    columns: list[tuple[str, str]] = field(default_factory=list)  # settings and names of those found, in their order
    labels: Labels | None = None  # what is known of the labels; None where a shape has none by name
    expected_labels: tuple[str, ...] = ()  # those that should come
    notes: list[str] = field(default_factory=list)  # of the format, for the description
    oddities: list[str] = field(default_factory=list)  # what looks wrong and is no error, a line each
    empty: list[str] = field(default_factory=list)  # the places of examples with an empty text
    num_skipped: int = 0  # rows that were left out for their label

    @property
    def is_input(self) -> bool:
        """Whether labels are to be predicted, not read."""
        return self.is_labelled is False

    def find(self, column: Column, setting: str, needed: bool = True) -> str | None:
        """Find a column of the table, and note it."""
        name = self.table.find(column, setting, needed)
        if name is not None and (setting, name) not in self.columns:
            self.columns.append((setting, name))
        return name

    def ids(self, is_unique: bool = False) -> Ids:
        """Find the column of ids, after all others."""
        return Ids(self.find(self.task.columns.id, "id", False), is_input=self.is_input, is_unique=is_unique)

    def label_field(self) -> str | None:
        """Find the column of labels, if they are to be read."""
        column = self.task.columns.label
        if self.is_input:
            return None
        if self.is_labelled is None:
            return self.table.find((column,) if isinstance(column, str) else column, "label", False)
        try:
            return self.table.find(column, "label")
        except InputError as error:
            raise InputError(f"{error} (labels are expected here; a test file has none)") from None

    def each(self, example: Callable[[Any, str, int], Any]) -> Iterator[Any]:
        """Make an example of every row, its place and its line; a row of which None is made is left out."""
        place = self.table.place
        for number, row in self.table.rows:
            if (one := example(row, place(number), number)) is not None:
                yield one

    def note_empty(self, where: str, *texts: str | None) -> None:
        """Note an example one of whose texts is empty."""
        for text in texts:
            if text is not None and not text.strip():
                self.empty.append(where)
                return


def value_of(row: Any, field: str, where: str) -> Any:
    """Give the value of a field that has to be there."""
    if field not in row:
        raise InputError(f"{where}: no field '{field}' (it has: {', '.join(map(repr, row))}); add it")
    return row[field]


def given(row: Any, field: str | None) -> Any:
    """Give a value that need not be there."""
    return None if field is None else row.get(field)


def text_of(row: Any, field: str | None, where: str) -> str:
    """Give the text of a field."""
    value = value_of(row, field or "", where)
    if not isinstance(value, str):
        raise InputError(f"{where}: field '{field}' is {type(value).__name__}, expected text")
    return value


@dataclass(frozen=True)
class Source:
    """The examples of a split."""

    shape: Shape  # of the examples
    description: str  # the file or dataset, and its format
    examples: list[Any]  # in the order of the file
    labels: tuple[str, ...] = ()  # names in the order of their numbers; none for a regression, spans and choices
    name: str = ""  # of the file or dataset
    expected_labels: tuple[str, ...] = ()  # those that should come
    oddities: tuple[str, ...] = ()  # what looks wrong in the file and is no error, a line each

    @property
    def warnings(self) -> tuple[str, ...]:
        """What looks wrong and is no error, a line each: in the file, and in the labels of these examples."""
        return (*self.oddities, *self._class_warnings())

    def _class_warnings(self) -> list[str]:
        """Say that there is one class alone, or which labels never come; nothing of numbers and what has no labels."""
        if not self.shape.has_classes:
            return []
        seen: set[str] = set()
        classes: set[str] = set()
        for example in self.examples:
            own = [label for label in self.shape.labels_of(example) if isinstance(label, str)]
            seen.update(own)
            classes.update(own if self.shape.is_of_words else [", ".join(own)] if own else [])
        if len(classes) == 1:
            (only,) = classes
            return [f"{self.name}: every label is '{only}'; nothing can be learned or measured from one class"]
        missing = [label for label in self.expected_labels if label not in seen]
        return [f"{self.name}: labels that never come: {', '.join(missing)}"] if missing and seen else []

    def describe(self) -> str:
        """Say in a line what was read: the source, the number of examples, and how often each label or kind is there."""
        text = f"{self.description}: {len(self.examples):,} {self.shape.unit}"
        counts = Counter(label for example in self.examples for label in self.shape.labels_of(example))
        total = counts.total() if self.shape.is_of_words else len(self.examples)  # of which several labels may hold
        if self.shape.is_of_words:
            text += f" of {total:,} words"
        if numbers := [label for label in counts.elements() if isinstance(label, float)]:
            mean = sum(numbers) / len(numbers)
            return f"{text}; labels {min(numbers):g} to {max(numbers):g}, mean {mean:.2f}"
        if set(counts) == {None}:
            return f"{text}; no labels"
        order = {label: place for place, label in enumerate(self.labels)}
        histogram = sorted(counts.items(), key=lambda item: (order.get(str(item[0]), len(order)), str(item[0])))
        shares = [f"{'no label' if label is None else label} {n:,} ({n / total:.1%})" for label, n in histogram]
        more = [f"and {len(shares) - MAX_SHARES} more"] if len(shares) > MAX_SHARES else []
        return f"{text}; {', '.join([*shares[:MAX_SHARES], *more])}"

    def hold_out(self, share: float) -> tuple[Source, Source]:
        """Divide a source into the rest and about a share of it, chosen by a hash of the texts.

        What one has is on one side: examples of the same text, pair or context stay together, wherever they stand.

        Raises:
            InputError: no example is left on one of the sides.
        """
        held, rest = list[Any](), list[Any]()
        for example in self.examples:
            content = repr(self.shape.content(example)).encode("utf-8", "surrogatepass")
            number = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) / 2**64
            (held if number < share else rest).append(example)
        if not held or not rest:
            raise InputError(
                f"dev_share={share:g}: holds out {len(held)} of the {len(self.examples)} examples of {self.name}; change it, "
                "or give a dev file"
            )
        name = f"the share of {self.name} held out by dev_share={share:g}"
        return (
            dataclasses.replace(self, examples=rest, name=f"what dev_share={share:g} leaves of {self.name}"),
            dataclasses.replace(
                self, examples=held, name=name, description=f"held out of {self.description}", oddities=()
            ),
        )

    def first(self, num_examples: int) -> Source:
        """Take the first examples alone."""
        if num_examples >= len(self.examples):
            return self
        return dataclasses.replace(
            self, examples=self.examples[:num_examples], name=f"the first {num_examples:,} examples of {self.name}"
        )


def take_all(shape: Shape, reading: Reading) -> Source:
    """Take all examples of a table.

    Raises:
        InputError: there are none, or something is wrong with one.
    """
    task, table = reading.task, reading.table
    examples = list(shape.read(reading))
    labels = reading.labels.all() if reading.labels is not None else ()
    notes = [] if table.has_header else ["without a header"]
    description = f"{table.name} ({', '.join([table.format, *notes, *reading.notes])})"
    if not examples:
        raise InputError(f"{description}: no examples; restore the file")
    oddities = []
    if reading.num_skipped:
        named = " or ".join(map(repr, task.skip_labels))
        oddities.append(f"{table.name}: {reading.num_skipped:,} rows with the label {named} left out")
    if table.gaps.num_rows:
        oddities.append(f"{table.name}: {table.gaps.num_rows:,} rows with too few cells left out")
    if not table.has_header and task.header is None and task.column_names is None:
        oddities += _header_as_row(table, [shape.labels_of(example)[0] for example in examples])
    oddities += reading.oddities
    if reading.empty:
        oddities.append(f"{len(reading.empty):,} examples have an empty text, the first at {reading.empty[0]}")
    expected = reading.expected_labels or (labels if not shape.is_of_words else ())
    return Source(shape, description, examples, labels, table.name, expected, tuple(oddities))


def _header_as_row(table: Table, labels: list[Any]) -> list[str]:
    """Columns are given by their numbers, and the first line has a label that no other has: perhaps a header's word."""
    if len(labels) < 3 or labels[0] is None or labels.count(labels[0]) > 1 or isinstance(labels[0], float):
        return []
    return [
        f"{table.place(1)}: the label {labels[0]!r} comes only in the first line, which is read as an example; if it is a "
        "header, set task.header=true, else task.header=false"
    ]
