"""`Reading`, a table from which a task reads its examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from bertkit.base.errors import InputError, named, not_text, user_name
from bertkit.base.text_files import is_blank
from bertkit.tasks.reading.cells import Cells, CountedRows
from bertkit.tasks.reading.labels import IdLike, Ids, Labels
from bertkit.tasks.reading.tables import InputTable
from bertkit.tasks.task_config import Column, TaskConfig, must_exist, names_of

ReadT = TypeVar("ReadT")
OWN_ID = "id"  # the column of ids in an input
ANSWERS = ("label", "tags", "answers", "target")  # columns that an input of `predict` does not need


@dataclass
class Reading:
    """A table, and what is found out while its rows are read as examples, such as labels and warnings."""

    config: TaskConfig
    table: InputTable
    # True: each example must have a label; None: labels are optional; False: an input of `predict`, without labels
    is_labelled: bool | None = None
    known_labels: tuple[str, ...] = ()  # from the model or the training file, if the task lists none
    columns: dict[tuple[str, str], None] = field(default_factory=dict)  # (setting, name) of the columns found so far
    absent: set[str] = field(default_factory=set)  # the names of columns that may be missing, and are
    labels: Labels | None = None  # None for a task without labels of its own
    id_column: Ids = field(default_factory=lambda: Ids(None))
    id_like: IdLike = field(default_factory=lambda: IdLike(()))
    notes: list[str] = field(default_factory=list)  # remarks on the format, for the description
    file_warnings: list[str] = field(default_factory=list)
    empty: CountedRows = field(default_factory=CountedRows)  # examples with an empty text
    unlabelled: list[str] = field(default_factory=list)  # the places of rows without the label that they must have
    num_skipped: int = 0  # rows that were skipped because of their label

    @property
    def is_input(self) -> bool:
        """Whether the labels are to be predicted, not read."""
        return self.is_labelled is False

    def find(self, column: Column, setting: str) -> str:
        """Find a column of the table, and record it in `columns`; in an input also by the setting's own name, such as "text".

        Raises InputError if it is missing, with a line for each column that the task must have and that is missing, too.
        """
        name = self.table.present(column)
        if name is None and self.is_input:
            name = self.table.present(setting)
        if name is None:
            own = {key: one for key, one in vars(self.config.columns).items() if must_exist(one)} | {setting: column}
            needed = {key: one for key, one in own.items() if not (self.is_input and key in ANSWERS)}
            raise InputError(
                *(self.table.missing(one, key) for key, one in needed.items() if self.table.present(one) is None)
            )
        self.columns[setting, name] = None
        several = [one for one in names_of(column) if one in self.table.names]
        if len(several) > 1 and self.config.hub.path is None:
            taken = f"{name!r} is taken, unless {user_name(f'task.columns.{setting}')}= names another"
            self.file_warnings.append(
                f"{self.table.name}: the column of {setting} may be {named(several, ' or ')}; {taken}"
            )
        return name

    def find_optional(self, column: Column, setting: str) -> str | None:
        """Find a column that may be missing; then no row may have it."""
        if self.table.find_optional(column, setting) is not None:
            return self.find(column, setting)
        self.absent.update(names_of(column))
        return None

    def ids(self, is_unique: bool = False) -> Ids:
        """Find the column of ids; called after all other columns are found.

        In an input the column "id" has them, whatever the files of training called theirs, unless they must be unique.
        """
        column = self.find_optional(self.config.columns.id, "id")
        if column is None and self.is_input and not is_unique:
            column = self.table.present(OWN_ID)
        if column is None and self.config.columns.id is not None:
            others = {name for _, name in self.columns}
            self.id_like = IdLike(name for name in self.table.names if name not in others)
        is_named = must_exist(self.config.columns.id)
        self.id_column = Ids(column, is_input=self.is_input, is_unique=is_unique, is_named=is_named)
        return self.id_column

    def label_field(self) -> str | None:
        """Find the column of labels; None for an input of `predict`."""
        column = self.config.columns.label
        if self.is_input:
            return None
        if (
            self.config.multi_label
            and len(several := [name for name in names_of(column) if name in self.table.names]) > 1
        ):
            way = "name one, with several labels in a cell, as in joy,fear"
            raise InputError(
                f"{self.table.place(1)}: {user_name('task.columns.label')}={list(names_of(column))} finds {named(several)}; {way}"
            )
        if self.is_labelled is None:
            return self.find_optional(names_of(column) or column, "label")
        self.table.present(column)  # refuses two columns of the name, where the advice below does not help
        try:
            return self.find(column, "label")
        except InputError as error:
            raise error.with_more(" (only a test file may have no labels)") from None

    def each(self, example: Callable[[Cells, str, int], ReadT | None]) -> Iterator[ReadT]:
        """Yield `example(row, place, line)` for each row; a row is skipped if this is None.

        Raises InputError if a record has a column that the first one lacks: the task would leave it out of all.
        """
        for number, cells, _ in self.table.rows:
            if not self.absent.isdisjoint(cells):
                found = f"{self.table.place(number)}: {named(self.absent.intersection(cells))}, which the first record lacks"
                raise InputError(f"{found}; give it to all records, or to none")
            self.id_like.look(cells.get(self.id_like.name))
            if (one := example(cells, self.table.place(number), number)) is not None:
                yield one

    def note_empty(self, where: str, *texts: str | None) -> None:
        """Count an example with an empty text."""
        if any(text is not None and is_blank(text) for text in texts):
            self.empty.add(where)


def required_value(row: Cells, field: str, where: str) -> object:
    """Return the value of a field; raises InputError if the row lacks it."""
    if field not in row:
        raise InputError(f"{where}: no field '{field}' (it has: {named(row)}); add it")
    return row[field]


def optional_value(row: Cells, field: str | None) -> object:
    """Return the value of a field, or None if the row lacks it or `field` is None."""
    return None if field is None else row.get(field)


def required_text(row: Cells, field: str, where: str) -> str:
    """Return the text of a field, empty for none; raises InputError if the row lacks the field, or it is not text."""
    value = required_value(row, field, where)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{where}: {not_text(field, value)}")
    return value
