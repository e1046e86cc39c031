"""`Reading`, from which a shape of task reads its examples, and `Source`, the examples of a split."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertkit.base.errors import InputError, check_distinct, listed, named
from bertkit.tasks.reading.labels import Ids, Labels
from bertkit.tasks.reading.near_duplicates import groups_of
from bertkit.tasks.reading.tables import Table, names_of
from bertkit.tasks.task import Shape
from bertkit.tasks.task_config import Column, TaskConfig

MAX_SHARES = 20  # labels in a description
NO_LABEL = "(none)"  # stands for an empty set of labels


@dataclass
class Reading:
    """A table, and what is found out while its rows are read as examples, such as labels and warnings."""

    task: TaskConfig
    table: Table
    # True: each example must have a label; None: labels are optional; False: an input of `predict`, without labels
    is_labelled: bool | None = None
    known_labels: tuple[str, ...] | None = None  # from the model or the training file, if the task lists none
    columns: list[tuple[str, str]] = field(default_factory=list)  # (setting, name) of the columns found so far
    labels: Labels | None = None  # None for a shape without named labels
    expected_labels: tuple[str, ...] = ()  # labels that should occur
    notes: list[str] = field(default_factory=list)  # remarks on the format, for the description
    file_warnings: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)  # the places (file and line) of examples with an empty text
    unlabelled: list[str] = field(default_factory=list)  # the places of rows without the label that they must have
    num_skipped: int = 0  # rows that were skipped because of their label

    @property
    def is_input(self) -> bool:
        """Whether the labels are to be predicted, not read."""
        return self.is_labelled is False

    def find(self, column: Column, setting: str, needed: bool = True) -> str | None:
        """Find a column of the table, and record it in `columns`."""
        name = self.table.find(column, setting, needed)
        if name is not None and (setting, name) not in self.columns:
            self.columns.append((setting, name))
        return name

    def ids(self, is_unique: bool = False) -> Ids:
        """Find the column of ids; called after all other columns are found."""
        return Ids(self.find(self.task.columns.id, "id", False), is_input=self.is_input, is_unique=is_unique)

    def label_field(self) -> str | None:
        """Find the column of labels; None for an input of `predict`."""
        column = self.task.columns.label
        if self.is_input:
            return None
        if self.is_labelled is None:
            return self.table.find(names_of(column) or column, "label", False)
        try:
            return self.table.find(column, "label")
        except InputError as error:
            raise InputError(f"{error} (only a test file may have no labels)") from None

    def each(self, example: Callable[[Any, str, int], Any]) -> Iterator[Any]:
        """Yield `example(row, place, line)` for each row; a row is skipped if this is None."""
        for number, row in self.table.rows:
            if (found := example(row, self.table.place(number), number)) is not None:
                yield found

    def note_empty(self, where: str, *texts: str | None) -> None:
        """Record the place of an example with an empty text."""
        if any(text is not None and not text.strip() for text in texts):
            self.empty.append(where)


def required_value(row: Any, field: str, where: str) -> Any:
    """Return the value of a field; raises InputError if the row lacks it."""
    if field not in row:
        raise InputError(f"{where}: no field '{field}' (it has: {named(row)}); add it")
    return row[field]


def optional_value(row: Any, field: str | None) -> Any:
    """Return the value of a field, or None if the row lacks it or `field` is None."""
    return None if field is None else row.get(field)


def required_text(row: Any, field: str | None, where: str) -> str:
    """Return the text of a field; raises InputError if the row lacks it, or it is not text."""
    value = required_value(row, field or "", where)
    if not isinstance(value, str):
        raise InputError(f"{where}: field '{field}' is {type(value).__name__}, expected text")
    return value


@dataclass(frozen=True)
class Source:
    """The examples of a split."""

    shape: Shape
    description: str  # names the file or dataset, and its format
    examples: list[Any]  # in the order of the file
    labels: tuple[str, ...] = ()  # names in the order of their numbers; empty for a regression, spans and choice
    name: str = ""  # the file or dataset
    expected_labels: tuple[str, ...] = ()  # labels that should occur
    file_warnings: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the file, and about the labels of these examples."""
        return (*self.file_warnings, *self._class_warnings())

    def _class_warnings(self) -> list[str]:
        if not self.shape.has_classes:
            return []
        seen: set[str] = set()
        classes: set[str] = set()
        for example in self.examples:
            own = [label for label in self.shape.labels_of(example) if isinstance(label, str)]
            seen.update(own)
            classes.update(own if self.shape.is_word_level else [", ".join(own)] if own else [])
        if len(classes) == 1:
            (only,) = classes
            return [f"{self.name}: every label is '{only}'; nothing can be learned from a single class"]
        missing = [label for label in self.expected_labels if label not in seen]
        return [f"{self.name}: labels without an example: {listed(missing, ', ')}"] if missing and seen else []

    def describe(self) -> str:
        """Describe the examples in one line: the file, the number of examples, and the frequency of each label."""
        text = f"{self.description}: {len(self.examples):,} {self.shape.unit}"
        counts = Counter(label for example in self.examples for label in self.shape.labels_of(example))
        total = counts.total() if self.shape.is_word_level else len(self.examples)  # an example may have several labels
        if self.shape.is_word_level:
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

    def num_near(self, train: Source) -> int:
        """Count the examples that are near-duplicates of examples of `train`."""
        groups, size = groups_of([*train.contents(), *self.contents()]), len(train.examples)
        return int(np.isin(groups[size:], groups[:size]).sum())

    def contents(self) -> list[Any]:
        """Return the text of each example, without its label and id."""
        return [self.shape.content(example) for example in self.examples]

    def hold_out(self, share: float, in_groups: bool = True) -> tuple[Source, Source]:
        """Split the examples by a hash of their texts; return those to train on, and about a `share` of them as held out.

        Examples with the same text (or pair of texts, or context) stay together; with `in_groups`, all near-duplicates do.
        Raises InputError if one of the two parts is empty.
        """
        held, rest = list[Any](), list[Any]()
        contents = list(map(repr, self.contents()))
        groups = groups_of(self.contents()).tolist() if in_groups else contents
        smallest = dict(sorted(zip(groups, contents, strict=True), key=lambda pair: pair[1], reverse=True))  # last wins
        for example, group in zip(self.examples, groups, strict=True):
            content = smallest[group].encode("utf-8", "surrogatepass")
            number = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) / 2**64
            (held if number < share else rest).append(example)
        if not held or not rest:
            wrong = f"holds out {len(held)} of the {len(self.examples)} examples of {self.name}"
            raise InputError(f"dev_share={share:g}: {wrong}; choose another share, or add a dev file")
        kept = dataclasses.replace(self, examples=rest, name=f"{self.name} without dev_share={share:g}")
        name, description = f"dev_share={share:g} of {self.name}", f"held out of {self.description}"
        return kept, dataclasses.replace(self, examples=held, name=name, description=description, file_warnings=())

    def first(self, num_examples: int) -> Source:
        """Return a copy with only the first examples."""
        if num_examples >= len(self.examples):
            return self
        name = f"the first {num_examples:,} examples of {self.name}"
        return dataclasses.replace(self, examples=self.examples[:num_examples], name=name)


def collect_examples(shape: Shape, reading: Reading) -> Source:
    """Read all examples of a table; raises InputError if there is none, or one is wrong."""
    task, table = reading.task, reading.table
    examples = list(shape.read(reading))
    labels = reading.labels.all() if reading.labels is not None else ()
    if reading.labels is not None and (missing := reading.unlabelled):
        wrong = f"empty label (rows without one: {len(missing):,}); expected {reading.labels.expected()}"
        raise InputError(f"{missing[0]}: {wrong}; fill them in, or skip them with \"task.skip_labels=['']\"")
    notes = [] if table.has_header else ["without a header"]
    description = f"{table.name} ({', '.join([table.format, *notes, *reading.notes])})"
    if not examples:
        raise InputError(f"{description}: no examples; add examples, or give another file")
    file_warnings = []
    if reading.num_skipped:
        labels_of = named(task.skip_labels, " or ")
        file_warnings.append(f"{table.name}: {reading.num_skipped:,} rows with the label {labels_of} were skipped")
    if table.short_rows.num_rows:
        file_warnings.append(f"{table.name}: {table.short_rows.num_rows:,} rows with too few cells were skipped")
    if not table.has_header and task.header is None and task.column_names is None:
        file_warnings += _header_as_row(table, [shape.labels_of(example)[0] for example in examples])
    file_warnings += reading.file_warnings
    if reading.empty:
        file_warnings.append(f"{len(reading.empty):,} examples have an empty text, the first at {reading.empty[0]}")
    expected = reading.expected_labels or (labels if not shape.is_word_level else ())
    return Source(shape, description, examples, labels, table.name, expected, tuple(file_warnings))


def _header_as_row(table: Table, labels: list[Any]) -> list[str]:
    """Warn if the first line may be a header: no other line has its label. Columns are known by number only."""
    if len(labels) < 3 or labels[0] is None or labels.count(labels[0]) > 1 or isinstance(labels[0], float):
        return []
    return [
        f"{table.place(1)}: no other line has the label {labels[0]!r}; if this line is a header, set task.header=true, else "
        "task.header=false"
    ]


def plain_rows(rows: Any, what: str, text: str | None = None) -> Iterator[dict[str, Any]]:
    """Convert rows to mappings with JSON types: text, number, boolean, None, list or mapping; raises InputError for others.

    `rows` are mappings of columns to values, a `datasets.Dataset` (numbers of class labels become names), or a pandas data
    frame (missing values become None). `what` names them in messages. `text` is the column of rows that are bare texts; None
    refuses these.
    """
    for number, row in enumerate(_mappings(rows, what), start=1):
        row = {text: row} if text is not None and isinstance(row, str) else row
        if not isinstance(row, Mapping):
            raise InputError(f"{what}:{number}: {type(row).__name__}: expected a mapping from columns to values")
        try:
            yield _plain(dict(row))
        except (TypeError, RecursionError) as error:
            raise InputError(f"{what}:{number}: {error}; use texts, numbers, and lists of them") from None


def is_frame(rows: Any) -> bool:
    """Whether rows are a pandas data frame."""
    return hasattr(rows, "notna") and hasattr(rows, "columns")


def _mappings(rows: Any, what: str) -> Iterable[Any]:
    if hasattr(rows, "column_names") and hasattr(rows, "features"):
        return with_label_names(rows, label_names(rows.features))
    if is_frame(rows):
        check_distinct(rows.columns, what)
        records: list[Any] = rows.astype(object).where(rows.notna(), None).to_dict("records")
        return records
    return iterated(rows, what)


def iterated(items: Any, what: str) -> Iterator[Any]:
    """Iterate over rows or texts from Python; raises InputError for a single one."""
    with contextlib.suppress(TypeError):
        if not isinstance(items, (str, bytes, Mapping)):
            return iter(items)
    expected = "expected rows or texts, in a list, a column, a pandas data frame or a datasets.Dataset"
    raise InputError(f"{what}: {type(items).__name__}: {expected}")


def label_names(features: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """Return the label names of each column of a dataset that stores labels as numbers."""
    inner = {column: getattr(feature, "feature", feature) for column, feature in (features or {}).items()}
    return {column: feature.names for column, feature in inner.items() if hasattr(feature, "names")}


def with_label_names(rows: Iterable[Mapping[str, Any]], names: Mapping[str, list[str]]) -> Iterator[dict[str, Any]]:
    """Replace label numbers by names; -1, which means an unknown label on the hub, becomes None."""

    def name_of(value: Any, own: list[str]) -> Any:
        if isinstance(value, list):
            return [name_of(item, own) for item in value]
        return own[value] if isinstance(value, int) and 0 <= value < len(own) else None

    for row in rows:
        yield {key: name_of(value, names[key]) if key in names else value for key, value in row.items()}


def _plain(value: Any) -> Any:
    """Convert numpy numbers and arrays, also inside lists and mappings, to Python types."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise TypeError(f"a value has the type {type(value).__name__}")
