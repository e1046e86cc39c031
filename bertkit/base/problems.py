"""Problems with settings or with the content of a file: each names the place of the wrong value, and they are collected."""

import dataclasses
from collections.abc import Iterable

from bertkit.base.errors import named, nearest, user_name
from bertkit.base.text_files import JsonValue

# settings that must not be empty, because "" would mean the working directory
PLACES = ("output_dir", "output", "data_dir", "model_dir", "input", "corpus.path", "tokenizer.path")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a value of the settings is, such as `optimizer.beta1`, and the problems with all values so far."""

    path: str
    problems: list[str]
    takes_whole_floats = True  # steps=1e6
    takes_single_items = True  # plugins=mine is a list of one

    def inside(self, name: object) -> "Place":
        """Return the place of a value in this group."""
        return dataclasses.replace(self, path=f"{self.path}.{name}" if self.path else str(name))

    def item(self, number: int, is_group: bool) -> "Place":
        """Return the place of an item in this list; groups have no number, since glue's runs have the same settings."""
        return dataclasses.replace(self, path="" if is_group else f"{self.path}[{number}]")

    def refuse(self, problem: str) -> None:
        """Note a problem."""
        self.problems.append(problem)

    def refuse_value(self, value: object, expected: str) -> None:
        """Note that the value is not what is expected."""
        self.refuse(f"{user_name(self.path)}={value!r:.60}: expected {expected}".removeprefix("="))

    def refuse_absent(self) -> None:
        """Note that there is no value."""
        self.refuse(f"missing value: set {user_name(self.path)}=")

    def refuse_unknown(self, names: Iterable[object], known: Iterable[str]) -> None:
        """Note the names that this group does not have."""
        known = list(known)
        all_known = f"; {self.path} has only {named(known)}" if self.path and known else ""
        for name in names:
            if name not in known:
                self.refuse(f"unknown key '{self.inside(name).path}'{nearest(str(name), known) or all_known}")

    def is_unset(self, value: JsonValue) -> bool:
        """Whether the value only says that one has to be set."""
        return value == "???" or (value == "" and self.path in PLACES)


class PlaceInFile(Place):
    """Where a value of a file is: it may have more names than are known, and holds what it says."""

    takes_whole_floats = False
    takes_single_items = False

    def item(self, number: int, is_group: bool) -> Place:
        """Return the place of an item in this list."""
        return dataclasses.replace(self, path=f"{self.path}[{number}]")

    def refuse_absent(self) -> None:
        """Note that there is no value."""
        self.refuse(f"no field '{self.path}'")

    def refuse_unknown(self, names: Iterable[object], known: Iterable[str]) -> None:
        """Accept all names."""

    def is_unset(self, value: JsonValue) -> bool:
        """Return False."""
        return False
