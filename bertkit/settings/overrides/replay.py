"""Start from the settings of an earlier run: `bertkit pretrain --config run/config.yaml [key=value] ...`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError
from bertkit.base.text_files import parse_yaml
from bertkit.base.typed_settings import conf_dirs, option_names
from bertkit.settings.compose import compose
from bertkit.settings.overrides.hints import MODEL_DIR, SYNONYMS, canonical_overrides, names_of
from bertkit.tasks.task_config import without_retired


def replayed(command: str, path: str, overrides: list[str], config_dir: str | None = None) -> dict[str, Any]:
    """Read the settings in a file, such as the `config.yaml` of a run, and apply overrides.

    Settings that are newer than the file have their defaults.

    Raises:
        InputError: the file cannot be read or holds no settings; or an override is wrong.
    """
    saved = _read(command, path)
    overrides = canonical_overrides(command, overrides)
    options_of = option_names(conf_dirs(config_dir))
    groups = names_of(command) & options_of.keys() - {text.partition("=")[0] for text in overrides}
    options = {group: _option_of(saved.get(group)) for group in sorted(groups)}
    same = [f"{group}={option}" for group, option in options.items() if option in options_of[group]]
    composed = compose(command, [*same, *overrides], config_dir)
    if "given" in composed:
        composed["given"] = composed["given"][len(same) :]
    settings = {**composed, **saved}
    for key in composed.keys() & saved.keys():
        new, old = composed[key], saved[key]
        is_same_option = key not in options_of or _option_of(new) == _option_of(old)
        if is_same_option and isinstance(new, Mapping) and isinstance(old, Mapping):
            settings[key] = {**new, **old}
    for text in overrides:
        *parents, leaf = text.partition("=")[0].split(".")
        target, source = settings, composed
        for parent in parents:
            target, source = target[parent], source[parent]
            if not isinstance(target, dict):
                raise InputError(f"--config {path}: {parent}={target!r}: expected a group of settings")
        target[leaf] = source[leaf]
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
    for name in SYNONYMS:  # earlier names of model_dir
        if name in saved and not isinstance(saved[name], Mapping):
            saved[MODEL_DIR] = saved.pop(name)
    if isinstance(saved.get("launch"), dict):
        saved["launch"].pop("interface", None)  # retired; GLOO_SOCKET_IFNAME replaces it
    return saved


def _option_of(section: Any) -> str:
    """Give the name of the option that a saved section was composed from."""
    return str(section.get("kind", section.get("name"))) if isinstance(section, Mapping) else ""
