"""`SplitExamples`, the examples of a split, and what their reading found."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shlex
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertkit.base.errors import InputError, counted, listed, named, user_name
from bertkit.tasks.reading import held_out
from bertkit.tasks.reading.labels import as_number, check_marks
from bertkit.tasks.reading.near_duplicates import Content, NearDuplicates
from bertkit.tasks.reading.reading import Reading
from bertkit.tasks.reading.tables import InputTable
from bertkit.tasks.task import LabelNames
from bertkit.tasks.task_config import TaskConfig, names_of
from bertkit.tasks.trainable import AnyTrainable

MAX_SHARES = 20  # labels in a description
PARTS_OF_A_TEXT = ("text_pair", "ending_start")  # columns that may be missing, but not in one of two splits
GAPS = {"nan", "NaN", "NA", "<NA>", "N/A", "n/a", "#N/A", "NULL", "null", "None", "NaT"}  # what pandas reads as missing
MAX_DIFFERENCE = 0.2  # of the share that is held out from the one that was asked for, without a warning


@dataclass(frozen=True)
class SplitExamples:
    """The examples of a split."""

    task: AnyTrainable  # with the labels of the file
    description: str  # names the file or dataset, and its format
    examples: list[Any]  # in the order of the file
    name: str = ""  # the file or dataset
    file_warnings: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()  # none for a dataset of the hub
    # the name of each setting's column; none in a file without columns
    columns: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)  # the decimal marks of a regression's labels; see `Labels`

    @property
    def labels(self) -> LabelNames:
        """The names in the order of their numbers; empty for a regression, spans and choice."""
        return self.task.labels

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the file, and about the labels of these examples."""
        unmeasured = (f"{self.name}: {line}" for line in self.task.unmeasured(self.examples))
        return (*self.file_warnings, *self._class_warnings(), *unmeasured)

    def _class_warnings(self) -> list[str]:
        classes = set(itertools.chain.from_iterable(map(self.task.classes_of, self.examples)))
        if len(classes) == 1:
            (only,) = classes
            return [f"{self.name}: every label is '{only}'; nothing can be learned from a single class"]
        seen = set(self._counts())
        missing = [label for label in self.task.expected_labels() if label not in seen]
        return [f"{self.name}: labels without an example: {listed(missing, ', ')}"] if missing and classes else []

    def with_rare_labels(self) -> SplitExamples:
        """Return the examples of training with a warning about labels of a single example, which can be learned or measured, not both."""
        classes = Counter(itertools.chain.from_iterable(map(self.task.classes_of, self.examples)))
        rare = [label for label, count in classes.items() if count == 1 and label in self.labels]
        if not rare or len(rare) == len(self.labels):
            return self
        line = f"{self.name}: labels with one example alone: {listed(rare, ', ')}; add examples, or write them as another label"
        return dataclasses.replace(self, file_warnings=(*self.file_warnings, line))

    def _counts(self) -> Counter[str | float | None]:
        """Return how many examples have each label."""
        return Counter(itertools.chain.from_iterable(map(self.task.labels_of, self.examples)))

    def describe(self) -> str:
        """Describe the examples in one line: the file, the number of examples, and the frequency of each label."""
        text = f"{self.description}: {self.task.size(self.examples)}"
        counts = self._counts()
        if numbers := [label for label in counts.elements() if isinstance(label, float)]:
            mean = sum(numbers) / len(numbers)
            return f"{text}; labels {min(numbers):g} to {max(numbers):g}, mean {mean:.2f}"
        if set(counts) == {None}:
            return f"{text}; no labels"
        total = self.task.num_labelled(self.examples)
        order = {label: place for place, label in enumerate(self.labels)}
        histogram = sorted(counts.items(), key=lambda item: (order.get(str(item[0]), len(order)), str(item[0])))
        shares = [f"{'no label' if label is None else label} {n:,} ({n / total:.1%})" for label, n in histogram]
        more = [f"and {len(shares) - MAX_SHARES} more"] if len(shares) > MAX_SHARES else []
        return "; ".join(filter(None, [text, ", ".join([*shares[:MAX_SHARES], *more]), self.task.remark]))

    def check_labelled(self, split: str) -> None:
        """Raise InputError if an example has no label."""
        num_unlabelled = sum(not self.task.is_labelled(example) for example in self.examples)
        if num_unlabelled:
            wrong = f"{num_unlabelled:,} of {len(self.examples):,} examples have no label"
            raise InputError(f"split={split}: {self.description}: {wrong}; use predict")

    def differing_marks(self, marks: Mapping[str, str]) -> list[str]:
        """Return a warning if the labels have another decimal mark than `marks`, those of the training data."""
        if not marks or not self.marks or marks.keys() == self.marks.keys():
            return []
        names = {".": "a decimal point", ",": "a decimal comma"}
        trained, here = (f"{place} has {names[mark]}" for each in (marks, self.marks) for mark, place in each.items())
        return [f"labels: in the training data {trained}, here {here}; check that 1.500 means the same in both"]

    def num_near(self, train: SplitExamples) -> int:
        """Count the examples that are near-duplicates of examples of `train`."""
        near = NearDuplicates.of([*train.contents(), *self.contents()])
        return int(near.across(np.arange(len(near.distinct)) >= len(train.examples)).sum())

    def contents(self) -> list[Content]:
        """Return the text of each example, without its label and id."""
        return [self.task.content(example) for example in self.examples]

    def hold_out(self, share: float, seed: int = 0, method: str | None = held_out.STRATIFIED) -> DividedExamples:
        """Hold out a share of the examples, chosen by a method of `held_out`; raises InputError if one of the parts is empty."""
        contents, count = self.contents(), len(self.examples)
        if method == held_out.STRATIFIED:
            labels = [self.task.labels_of(example) for example in self.examples]
            is_held = held_out.stratified(contents, labels, share, seed)
            why = "so that both sides have each label"
        else:
            is_held, why = held_out.by_hash(contents, share, method), "as in the version that began this run"
        held, rest = (
            [one for one, own in zip(self.examples, is_held, strict=True) if own == part] for part in (True, False)
        )
        if not held or not rest:
            wrong = f"holds out {len(held)} of the {count} examples of {self.name}"
            raise InputError(f"dev_share={share:g}: {wrong}; choose another share, or add a dev file")
        kept = dataclasses.replace(self, examples=rest, name=f"{self.name} without dev_share={share:g}")
        name, actual = f"dev_share={share:g} of {self.name}", len(held) / count
        why = "the nearest whole number" if len(held) == held_out.num_wanted(count, share) else why
        differs = abs(actual - share) > MAX_DIFFERENCE * share
        warnings = (
            (f"{name}: {counted(len(held), self.task.unit)} of {count:,} ({actual:.1%}), {why}",) if differs else ()
        )
        description = f"{actual:.1%} held out of {self.description}"
        part = dataclasses.replace(self, examples=held, name=name, description=description, file_warnings=warnings)
        return DividedExamples(kept, part)

    def first(self, num_examples: int) -> SplitExamples:
        """Return a copy with only the first examples."""
        if num_examples >= len(self.examples):
            return self
        name = f"the first {num_examples:,} examples of {self.name}"
        return dataclasses.replace(self, examples=self.examples[:num_examples], name=name)


def joined(files: Sequence[SplitExamples]) -> SplitExamples:
    """Join the examples of several files of one split, at least one."""
    first, *others = files
    if not others:
        return first
    name = f"{Path(first.name).parent} ({len(files)} files)"
    examples = [example for file in files for example in file.examples]
    warnings = tuple(warning for file in files for warning in file.file_warnings)
    marks = common_marks(files)
    return dataclasses.replace(
        first, description=name, examples=examples, name=name, file_warnings=warnings, marks=marks
    )


def common_marks(parts: Iterable[SplitExamples]) -> Mapping[str, str]:
    """Return the decimal mark of all labels, none for whole numbers; raises InputError if there are two.

    `1.500` is 1.5 in one country and 1500 in another: only labels with the other mark tell.
    """
    marks = {mark: place for part in parts for mark, place in part.marks.items()}
    check_marks(marks)
    return marks


def check_same_texts(task: TaskConfig, one: SplitExamples, other: SplitExamples) -> None:
    """Raise InputError if the examples of one file have a second text, or a beginning of endings, and those of another have none."""
    for setting in PARTS_OF_A_TEXT:
        for having, lacking in ((one, other), (other, one)):
            if setting in having.columns and setting not in lacking.columns:
                expected = named(names_of(vars(task.columns)[setting]), " or ")
                raise InputError(
                    f"{lacking.name}: no column {expected}, but {having.name} has {having.columns[setting]!r}; name the columns alike, or "
                    f"set {user_name(f'task.columns.{setting}')}=null"
                )


class DividedExamples(NamedTuple):
    """Examples of which some are held out."""

    kept: SplitExamples  # to train on
    held_out: SplitExamples


def collect_examples(task: AnyTrainable, reading: Reading) -> SplitExamples:
    """Read all examples of a table; raises InputError if there is none, or one is wrong."""
    config, table = reading.config, reading.table
    examples = list(task.read(reading))
    missing, ids = reading.unlabelled, reading.id_column
    labels, marks = tuple[str, ...](), dict[str, str]()
    if reading.labels is not None:
        reading.labels.check_separator()
        labels, marks = reading.labels.all(), reading.labels.marks
        if missing and not examples:
            raise InputError(f"{missing[0]}: empty label, as in every row; expected {reading.labels.expected()}")
    if ids.repeated:
        pairs = zip(examples, ids.numbers, strict=True)
        examples = [dataclasses.replace(example, id=str(number)) for example, number in pairs]
    notes = [] if table.has_header else ["without a header"]
    description = f"{table.name} ({', '.join([table.format, *notes, *reading.notes])})"
    if not examples:
        raise InputError(f"{description}: no examples; add examples, or give another file")
    labels_skipped = [f"the label '{label}'" if label else "no label" for label in config.skip_labels]
    skipped = (
        (reading.num_skipped, " or ".join(labels_skipped)),
        (table.short_rows.num_rows, "too few cells"),
    )
    warnings = [f"{table.name}: skipped {counted(count, 'row')} with {what}" for count, what in skipped if count]
    if missing:
        warnings.append(
            f"{table.name}: skipped {counted(len(missing), 'row')} without a label, the first at {missing[0]}"
        )
    if ids.repeated:
        warnings.append(f"{ids.repeated}; the ids are the numbers of the rows instead")
    warnings += [table.note] if table.note else []
    if not table.has_header and config.header is None and config.column_names is None:
        warnings += _header_as_row(table, [task.labels_of(example)[0] for example in examples])
    warnings += [*reading.file_warnings, *_alike(table.name, labels)]
    if not reading.known_labels and not config.label_names and config.kind == "sequence":
        warnings += [*_gaps(table.name, labels), *_quoted(table.name, labels)]
    kept = f"kept {counted(reading.empty.num_rows, 'example')} with an empty text"
    warnings += reading.empty.warning(f"{kept}, the first at {reading.empty.first}")
    labelled = dataclasses.replace(task, labels=labels)
    columns = dict(iter(reading.columns))
    return SplitExamples(labelled, description, examples, table.name, tuple(warnings), columns=columns, marks=marks)


def _alike(name: str, labels: Sequence[str]) -> list[str]:
    """Warn of labels that look the same, or differ in capital letters alone, and for which there is a class each."""
    by_look: dict[str, list[str]] = {}
    for label in labels:
        by_look.setdefault(_look(label), []).append(label)
    several = [named(own, " and ") for own in by_look.values() if len(own) > 1]
    same = "differ in capital letters alone, in blanks, in how a number is written, or in how Unicode writes them, and are classes of their own; write them alike if they are one"
    return [f"{name}: labels {listed(several)} {same}"] if several else []


def _look(label: str) -> str:
    """Return a label in small letters, one Unicode normal form and single blanks, without invisible characters; of a number its value."""
    visible = "".join(one for one in unicodedata.normalize("NFKC", label) if unicodedata.category(one) != "Cf")
    plain = " ".join(visible.casefold().split())
    number = as_number(plain)
    return plain if number == math.inf else repr(number + 0.0)


def _gaps(name: str, labels: Sequence[str]) -> list[str]:
    """Warn of a class for which other tools write a missing value."""
    gaps = [label for label in labels if label in GAPS]
    skip = shlex.quote(f"{user_name('task.skip_labels')}=[{', '.join(map(repr, gaps))}]")
    line = f"{name}: {named(gaps, ' and ')} may stand for missing labels, but count as classes; {skip} skips these rows"
    return [line] if gaps else []


def _quoted(name: str, labels: Sequence[str]) -> list[str]:
    """Warn of labels with quotes around them, which are part of a CSV cell if a blank is before them."""
    quoted = [label for label in labels if len(label) > 2 and label[0] == label[-1] and label[0] in "\"'"]
    way_out = "if they are no part of the labels, remove them, or in CSV the blanks before them"
    return [f"{name}: the labels {named(quoted)} have quotes around them; {way_out}"] if quoted else []


def _header_as_row(table: InputTable, labels: list[str | float | None]) -> list[str]:
    """Warn if the first line may be a header: no other line has its label. Columns are known by number only."""
    if len(labels) < 3 or labels[0] is None or labels.count(labels[0]) > 1 or isinstance(labels[0], float):
        return []
    return [
        f"{table.place(1)}: no other line has the label {labels[0]!r}; if this line is a header, set task.header=true, else "
        "task.header=false"
    ]
