"""Overrides from Python values, and from the short form of a command: `bertkit finetune reviews.csv --text review --label stars`."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError
from bertkit.base.text_files import TOO_DEEP, is_deep
from bertkit.base.typed_settings import conf_dir, option_names, refuse
from bertkit.settings.names import unknown_option

OPTIONS = ("--text", "--label", "--pair", "--dev", "--test", "--output")
_COLUMNS = {"--text": "task.columns.text", "--pair": "task.columns.text_pair"}
_TRAINING = {"--label": "task.columns.label", "--dev": "task.files.dev", "--test": "task.files.test"}
# for each command: the setting of a word that is a file, and of each option
COMMANDS = {
    "finetune": {"": "task.files.train", **_COLUMNS, **_TRAINING, "--output": "output_dir"},
    "predict": {"": "input", **_COLUMNS, "--output": "output"},
    "embed": {"": "input", "--text": "text_column", "--output": "output"},
}


def to_settings(command: str, overrides: Sequence[str], options: Sequence[tuple[str, str]]) -> list[str]:
    """Replace words that are files, and add the options, which are pairs of name and value."""
    settings = COMMANDS.get(command, {})
    files = [("", word) for word in overrides if settings and "=" not in word and Path(word).is_file()]
    if len(files) > 1:
        raise InputError(f"'{files[1][1]}': expected one file; for a second one write --dev {files[1][1]}")
    if not files and not options:
        return list(overrides)
    values: dict[str, str | int] = {}
    for option, value in [*files, *options]:
        if option not in settings:
            raise InputError(unknown_option(command, option, value))
        is_file, is_number = settings[option].startswith("task.files."), re.fullmatch("-?[0-9]{1,9}", value)
        values[settings[option]] = os.path.abspath(value) if is_file else int(value) if is_number else value
    return [*to_overrides(values), *(word for word in overrides if ("", word) not in files)]


def to_overrides(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Turn Python values, nested or under dotted names, into overrides; a group's mapping may have its option as `name`."""
    refuse(is_deep(settings) and f"settings: {TOO_DEEP}")
    overrides, groups = [], option_names([conf_dir()])
    for key, value in settings.items():
        if isinstance(value, Mapping):
            named = next((name for name in ("name", "kind") if value.get(name) in groups.get(prefix + key, ())), None)
            overrides += [f"{key}={value[named]}"] if named else []
            overrides += to_overrides({name: value[name] for name in value if name != named}, f"{prefix}{key}.")
        elif isinstance(value, str) and not prefix and key in groups and re.fullmatch(r"[\w./-]+", value):
            overrides.append(f"{key}={value}")  # an option of a group
        else:
            overrides.append(f"{prefix}{key}={override_value(value, f'{prefix}{key}')}")
    return overrides


def override_value(value: Any, key: str) -> str:
    """Write a Python value as Hydra parses it."""
    value = value.tolist() if hasattr(value, "dtype") and hasattr(value, "ndim") else value  # of numpy
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{','.join(override_value(item, key) for item in value)}]"
    if isinstance(value, (int, float)):
        return repr(value)
    if not isinstance(value, (str, os.PathLike)):
        raise InputError(f"{key}: {type(value).__name__}: expected text, a number, a list or a mapping")
    text = str(os.fspath(value) if isinstance(value, os.PathLike) else value)
    text = os.path.expanduser(text) if text.startswith("~/") else text
    # escape quotes, backslashes before them, and interpolations
    text = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text)
    return "'" + text.replace("${", "\\${") + "'"
