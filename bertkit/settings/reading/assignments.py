"""Assignments: settings and the values that a user gives them, from words of the command line or from Python."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bertkit.base.renamed import RENAMED

BARE = re.compile(r"(?!(?:null|true|false|nan|inf)$)[a-z_/.][\w./-]*", re.IGNORECASE | re.ASCII)  # texts without quotes
Plain = str | int | float | bool | None | Sequence["Plain"]


@dataclass(frozen=True)
class Assignment:
    """A setting, or a group, and the value that the user gives it."""

    key: str  # dotted, such as `optimizer.peak_learning_rate`; empty for a word that is no assignment
    value: Plain
    text: str  # the word of the command line
    fault: str | None = None  # why the word cannot be used: it is malformed, or has several values


def unparsed(word: str) -> Assignment:
    """Return a word of the command line as an assignment, whose value is still a text."""
    key, is_assignment, value = word.partition("=")
    return Assignment(key if is_assignment else "", value, word)


def keys_of(assignments: Iterable[Assignment]) -> set[str]:
    """Return the keys that are assigned."""
    return {one.key for one in assignments}


def with_current_names(assignments: Iterable[Assignment]) -> list[Assignment]:
    """Replace settings of earlier versions: `masking.whole_word=true` is `masking=whole_word`."""
    current = list[Assignment]()
    for one in assignments:
        if one.key in RENAMED and one.fault is None:
            settings = RENAMED[one.key](one.value).items()
            named = [(name.removesuffix(".kind"), value) for name, value in settings]
            current += [Assignment(key, value, f"{key}={value}") for key, value in named]
        else:
            current.append(one)
    return current


def as_word(value: Plain) -> str:
    """Write a value as Hydra parses it; a text in quotes, if it needs them."""
    if isinstance(value, str):
        return value if BARE.fullmatch(value) else quoted(value)
    if isinstance(value, Sequence):
        return f"[{','.join(map(as_word, value))}]"
    return json.dumps(value)


def quoted(text: str) -> str:
    """Write a text in quotes for Hydra: backslashes before a quote are doubled."""
    text = re.sub(r"\\+(?='|\Z)", r"\g<0>\g<0>", without_interpolation(text))
    return "'" + text.replace("'", "\\'") + "'"


def without_interpolation(text: str) -> str:
    """Escape what OmegaConf would replace by the value of another setting."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
