"""Values from Python, under dotted names or nested, as assignments."""

import os
import re
from collections.abc import Mapping
from typing import Protocol, TypeGuard

from bertkit.base.errors import InputError
from bertkit.base.text_files import TOO_DEEP, is_deep
from bertkit.base.typed_settings import conf_dir, option_names, refuse
from bertkit.settings.reading import names
from bertkit.settings.reading.assignments import Assignment, Plain, as_word, with_current_names

BARE = re.compile(r"(?!(?:null|true|false|nan|inf)$)[a-z_/.][\w./-]*", re.IGNORECASE)  # texts that need no quotes


class _Array(Protocol):
    """A number or an array of numpy."""

    dtype: object
    ndim: int

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
            named = next((each for each in ("name", "kind") if value.get(each) in groups.get(key, ())), None)
            option = {} if named is None else {key: value[named]}
            inner = {each: value[each] for each in value if each != named}
            assignments += [*_assignments(command, option, ""), *_assignments(command, inner, f"{key}.")]
        else:
            plain = _plain(value, key, command)
            if names.is_verbatim(command, key):
                assignments.append(Assignment(key, plain, f"{key}={plain}"))
            else:
                word = plain if isinstance(plain, str) and BARE.fullmatch(plain) else as_word(plain)
                assignments.append(Assignment(key, _without_interpolation(plain), f"{key}={word}"))
    return assignments


def _is_array(value: object) -> TypeGuard[_Array]:
    return hasattr(value, "dtype") and hasattr(value, "ndim")


def _plain(value: object, key: str, command: str) -> Plain:
    """Convert a value from Python; a path that begins with ~/ is in the home directory."""
    if _is_array(value):
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


def _without_interpolation(value: Plain) -> Plain:
    """Escape what OmegaConf would replace by the value of another setting."""
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda match: f"{match[1] * 2}\\${{", value)
    return [_without_interpolation(item) for item in value] if isinstance(value, list) else value
