"""Values from Python, under dotted names or nested, as assignments."""

import os
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from bertkit.base.errors import InputError
from bertkit.base.text_files import TOO_DEEP, is_deep
from bertkit.base.typed_settings import conf_dir, option_names, refuse
from bertkit.settings.reading import names
from bertkit.settings.reading.assignments import Assignment, Plain, as_word, with_current_names, without_interpolation


@runtime_checkable
class _Array(Protocol):
    """A number or an array of numpy, torch or pandas."""

    def tolist(self) -> Plain:
        """Return plain numbers."""


def read_values(command: str, settings: Mapping[str, object]) -> list[Assignment]:
    """Turn settings into assignments, after importing the modules in `plugins`.

    The mapping of a group may have the group's option as `name`. Raises InputError if a value is neither a text, a number, a
    list nor a mapping.
    """
    refuse(is_deep(settings) and f"settings: {TOO_DEEP}")
    return with_current_names(names.with_own_names(command, _assignments(command, settings, "")))


def _assignments(command: str, settings: Mapping[str, object], prefix: str) -> list[Assignment]:
    assignments, groups = list[Assignment](), option_names([conf_dir()])
    for name, value in settings.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            # the first of these settings that names an option of the group
            option = [own for own in ("name", "kind") if value.get(own) in groups.get(key, ())][:1]
            assignments += [Assignment(key, value[own], f"{key}={value[own]}") for own in option]
            inner = {own: item for own, item in value.items() if own not in option}
            assignments += _assignments(command, inner, f"{key}.")
        else:
            plain = _plain(value, key, command)
            if names.is_verbatim(command, key):
                assignments.append(Assignment(key, plain, f"{key}={plain}"))
            else:
                assignments.append(Assignment(key, _literal(plain), f"{key}={as_word(plain)}"))
    return assignments


def _plain(value: object, key: str, command: str) -> Plain:
    """Convert a value from Python; a path that begins with ~/ is in the home directory."""
    if isinstance(value, _Array):
        return value.tolist()
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item, key, command) for item in value]
    if isinstance(value, (str, os.PathLike)):
        text = str(os.fspath(value))
        return os.path.expanduser(text) if text.startswith("~/") else text
    expected = f"expected text, a number, a list or a mapping{names.names_of_rows(command)}"
    raise InputError(f"{key}: {type(value).__name__}: {expected}")


def _literal(value: Plain) -> Plain:
    """Return a value in which OmegaConf finds no references to other settings."""
    if isinstance(value, str):
        return without_interpolation(value)
    return [_literal(item) for item in value] if isinstance(value, list) else value
