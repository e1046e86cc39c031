"""YAML that Hydra does not read: settings of a run that was passed on; and what it reads of the user, looked at before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from bertkit.base.errors import InputError
from bertkit.base.text_files import MAX_DEPTH, TOO_DEEP
from bertkit.base.typed_settings import conf_dirs, dotted_keys


def parse_yaml(text: str) -> Any:
    """Read YAML that anybody may have written: plain values, and no aliases, which could stand for values without end.

    Raises:
        ValueError: it is not such YAML.
    """
    loader, depth = getattr(yaml, "CSafeLoader", yaml.SafeLoader), 0
    try:
        for event in yaml.parse(text, loader):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("an alias; write out what it stands for")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ValueError(TOO_DEEP)
        return yaml.load(text, loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def check_files(config_dir: str | None) -> None:
    """Refuse files of the user's directory that are no settings, in words that Hydra does not have."""
    for directory in conf_dirs(config_dir)[1:]:
        for path in sorted([*directory.glob("*.yaml"), *directory.glob("*/*.yaml")]):
            try:
                content = yaml.safe_load(path.read_text(encoding="utf-8"))
            except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
                raise InputError(f"{path}: not YAML ({' '.join(str(error).split())}); correct it") from None
            if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
                raise InputError(
                    f"{path}: expected settings, a line 'key: value' each, found {content!r:.40}; correct it"
                )


def keys_of_experiment(directories: list[Path], name: str) -> list[str]:
    """The groups that an experiment overrides, and the keys that it sets."""
    path = next(path for directory in directories if (path := directory / "experiment" / f"{name}.yaml").is_file())
    content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    defaults = [entry for entry in content.pop("defaults", []) if isinstance(entry, dict)]
    groups = [key.removeprefix("override").strip(" /") for entry in defaults for key in entry]
    keys = dotted_keys(content)
    return [*groups, *(key for key in keys if not any(other.startswith(f"{key}.") for other in keys))]
