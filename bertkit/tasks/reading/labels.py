"""Labels and ids as files hold them, checked: a label by its name, an id once."""

from __future__ import annotations

import math
from typing import Any

from bertkit.base.errors import InputError
from bertkit.tasks.task_config import TaskConfig

LARGEST = 1e15  # of a number to learn: its square has room in float32


class Ids:
    """Ids of examples, each once, or its example's number where a row has none.

    Of an input to predict from, which needs none, they may be empty, and the same several times unless `is_unique`: the
    questions of spans, whose answers go by their ids. A question without one then has its line, since a number may be the
    id of another.
    """

    def __init__(self, field: str | None, *, is_input: bool = False, is_unique: bool = True) -> None:
        self.field, self.is_input, self.is_unique = field, is_input, is_unique
        self.places: dict[str, str] = {}
        self.num_taken = 0

    def take(self, value: Any, where: str, line: int) -> str:
        """Check the next example's id and give it."""
        self.num_taken += 1
        if value is None or (self.is_input and value == ""):
            by_line = self.is_input and self.is_unique and self.field is not None
            return f"line {line}" if by_line else str(self.num_taken - 1)
        name = str(value)
        if self.is_unique or not self.is_input:
            if name in self.places:
                raise InputError(
                    f"{where}: {self.field} '{name}' is there twice, first at {self.places[name]}; "
                    "remove one of them, or set task.columns.id=null"
                )
            self.places[name] = where
        return name


class Labels:
    """Labels as a file holds them to names, each checked."""

    def __init__(self, task: TaskConfig, field: str | None, labels: tuple[str, ...] | None, is_typed: bool) -> None:
        self.task, self.field, self.is_typed = task, field, is_typed
        self.names = task.label_names or labels
        self.by_value = {name: name for name in self.names or ()}
        if task.labels_in_files is not None and self.names is not None:
            self.by_value |= dict(zip(task.labels_in_files, self.names, strict=True))
        self.seen: dict[str, str] = {}  # name -> the first place
        self.first_type: tuple[str, str, Any] | None = None  # type, place and value

    def name_of(self, value: Any, where: str) -> str | float:
        """Check a label that is there, and give its name, or the number of a regression."""
        if isinstance(value, str):
            value = value.strip()
        if value is None or value == "":
            raise InputError(f"{where}: {self.field}: empty label; expected {self._expected()}")
        if not isinstance(value, (str, int, float)):
            raise InputError(f"{where}: {self.field}: the label is {type(value).__name__}; expected {self._expected()}")
        if self.is_typed or (self.names is None and not self.task.is_regression):
            self._check_type(value, where)
        if self.task.is_regression:
            return self._number(value, where)
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{where}: {self.field}: the label is {value}; expected {self._expected()}")
        if isinstance(value, bool):
            value = str(value).lower()
        elif isinstance(value, float) and value.is_integer():
            value = int(value)
        name = str(value)
        if self.names is None:
            self.seen.setdefault(name, where)
            return name
        if name not in self.by_value:
            raise InputError(
                f"{where}: {self.field}: unknown label {value!r}; expected {self._expected()}; correct it, or set task.labels="
            )
        self.seen.setdefault(self.by_value[name], where)
        return self.by_value[name]

    def names_of(self, value: Any, where: str) -> tuple[str, ...]:
        """Check the labels that hold at once, none or more, and give their names, each once."""
        if isinstance(value, str):
            value = value.split(self.task.label_separator) if value.strip() else []
        parts = value if isinstance(value, list) else [value]
        return tuple(dict.fromkeys(str(self.name_of(part, where)) for part in parts))

    def all(self) -> tuple[str, ...]:
        """The names in the order of their numbers: as listed, else numbers by value, then the alphabet."""
        if self.task.is_regression:
            return ()
        return self.names or tuple(sorted(self.seen, key=lambda name: (as_number(name), name)))

    def _expected(self) -> str:
        if self.task.is_regression:
            return "a number from {:g} to {:g}".format(*self.task.label_range) if self.task.label_range else "a number"
        return " or ".join(map(repr, self.by_value)) if self.names else "a label"

    def _check_type(self, value: Any, where: str) -> None:
        written = "text"
        if isinstance(value, bool):
            written = "true or false"
        elif isinstance(value, (int, float)) or (not self.is_typed and as_number(value) < math.inf):
            written = "a number"
        if self.first_type is None:
            self.first_type = written, where, value
        elif self.first_type[0] != written:
            raise InputError(
                f"{where}: {self.field}: mixed label types: {value!r} is {written}, but {self.first_type[2]!r} at {self.first_type[1]} "
                f"is {self.first_type[0]}; write all alike{'' if self.is_typed else ', or set task.labels='}"
            )

    def _number(self, value: Any, where: str) -> float:
        number = math.nan if isinstance(value, bool) else as_number(value)
        low, high = self.task.label_range or (-LARGEST, LARGEST)
        if not (math.isfinite(number) and low <= number <= high):
            raise InputError(f"{where}: {self.field}: label {value!r}; expected {self._expected()}")
        return number


def as_number(value: Any) -> float:
    """The value as a number; infinite if it is none."""
    try:
        number = float(value)
    except ValueError:
        return math.inf
    return math.inf if math.isnan(number) else number
