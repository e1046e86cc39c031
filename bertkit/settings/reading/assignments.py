"""Assignments: settings and the values that a user gives them, from words of the command line or from Python."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bertkit.base.renamed import RENAMED

Plain = str | int | float | bool | None | Sequence["Plain"]


@dataclass(frozen=True)
class Assignment:
    """A setting, or a group, and the value that the user gives it."""

    key: str  # dotted, such as `optimizer.peak_learning_rate`; empty for a word that is no assignment
    value: Plain
    text: str  # the word of the command line
    fault: str | None = None  # why the word cannot be used: it is malformed, or has several values


def keys_of(assignments: Iterable[Assignment]) -> set[str]:
    """Return the keys that are assigned."""
    return {one.key for one in assignments}


def with_current_names(assignments: Iterable[Assignment]) -> list[Assignment]:
    """Replace settings of earlier versions: `masking.whole_word=true` is `masking=whole_word`."""
    current = list[Assignment]()
    for one in assignments:
        if one.key not in RENAMED or one.fault is not None:
            current.append(one)
            continue
        for name, value in RENAMED[one.key](one.value).items():
            key = name.removesuffix(".kind")
            current.append(Assignment(key, value, f"{key}={value}"))
    return current


def as_word(value: Plain) -> str:
    """Write a value as Hydra parses it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return repr(value)
    if not isinstance(value, str):
        return f"[{','.join(map(as_word, value))}]"
    # escape quotes, backslashes before them, and interpolations
    text = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), value)
    return "'" + text.replace("${", "\\${") + "'"
