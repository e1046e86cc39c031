"""The settings of an earlier run once more: `bertkit pretrain --config run/config.yaml [key=value] ...`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError
from bertkit.base.typed_settings import conf_dirs, option_names
from bertkit.settings.compose import compose
from bertkit.settings.hints import MODEL_DIR, SYNONYMS, canonical_overrides, names_of
from bertkit.settings.yaml_files import parse_yaml
from bertkit.tasks.task_config import without_retired


def replayed(command: str, path: str, overrides: list[str], config_dir: str | None = None) -> dict[str, Any]:
    """Take the settings of a file, such as the `config.yaml` of a run, and change what the command line names.

    Settings that the file does not have, since it is older than they are, have their defaults.

    Raises:
        InputError: the file cannot be read or holds no settings; or an override is wrong.
    """
    saved = _read(command, path)
    overrides = canonical_overrides(command, overrides)
    groups = {
        group: options for group, options in option_names(conf_dirs(config_dir)).items() if group in names_of(command)
    }
    asked_groups = {text.partition("=")[0] for text in overrides}
    like = [
        f"{group}={option}"
        for group, options in groups.items()
        if group not in asked_groups and (option := _option_of(saved.get(group))) in options
    ]
    asked = compose(command, [*like, *overrides], config_dir)
    if "given" in asked:
        asked["given"] = [key for key in asked["given"] if f"{key}={_option_of(saved.get(key))}" not in like]
    settings = {key: _over(asked[key], saved[key], key in groups) if key in saved else asked[key] for key in asked}
    settings |= {key: saved[key] for key in saved if key not in asked}
    for text in overrides:
        *parents, leaf = text.partition("=")[0].lstrip("+~").split(".")
        inside, source = settings, asked
        for parent in parents:
            inside, source = inside[parent], source[parent]
            if not isinstance(inside, dict):
                raise InputError(f"--config {path}: {parent}={inside!r}: expected a group of settings")
        inside[leaf] = source[leaf]
    return settings


def _read(command: str, path: str) -> dict[str, Any]:
    if command == "glue":
        raise InputError("--config: glue has the settings of several runs; replay one of them with finetune")
    try:
        saved = parse_yaml(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"--config {path}: {' '.join(str(error).split())}; give the config.yaml of a run") from None
    if not isinstance(saved, dict):
        raise InputError(f"--config {path}: no settings; give the config.yaml of a run")
    if isinstance(saved.get("task"), dict):
        saved["task"] = without_retired(saved["task"])
    for name in SYNONYMS:  # what model_dir was called before
        if name in saved and not isinstance(saved[name], Mapping):
            saved[MODEL_DIR] = saved.pop(name)
    if isinstance(saved.get("launch"), dict):
        saved["launch"].pop("interface", None)  # which GLOO_SOCKET_IFNAME says now
    return saved


def _option_of(section: Any) -> str:
    """Give the option of a group that has the keys of a saved section."""
    return str(section.get("kind", section.get("name"))) if isinstance(section, Mapping) else ""


def _over(default: Any, saved: Any, is_group: bool) -> Any:
    is_other_option = is_group and _option_of(default) != _option_of(saved)
    if is_other_option or not isinstance(default, Mapping) or not isinstance(saved, Mapping):
        return saved
    return {**default, **saved}
