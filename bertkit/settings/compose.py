"""Compose the configuration of a command from `conf/`, the command line, and perhaps an earlier run. Only this file uses Hydra.

Unknown keys and options are refused, with the nearest known name, before Hydra composes.
"""

import contextlib
import dataclasses
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import OmegaConfBaseException

from bertkit.base import plugins
from bertkit.base.errors import InputError
from bertkit.base.text_files import TOO_DEEP, parse_yaml
from bertkit.base.typed_settings import at, conf_dir, conf_dirs, dotted_keys, option_names, refuse
from bertkit.settings import names
from bertkit.settings.glue import GLUE_TASKS
from bertkit.tasks.task_config import without_retired


def compose(command: str, overrides: list[str], config_dir: str | None = None) -> dict[str, Any]:
    """Compose a command's configuration into a plain, resolved mapping.

    Raises:
        InputError: unknown keys and options, each with the nearest known name; malformed overrides.
    """
    texts = names.canonical_overrides(command, overrides)
    return _compose_suite(texts, config_dir) if command == "glue" else _compose_one(command, texts, config_dir)


def compose_from_run(command: str, path: str, overrides: list[str], config_dir: str | None = None) -> dict[str, Any]:
    """Compose from the settings in a file, such as the `config.yaml` of a run, and from overrides.

    Settings that are newer than the file get their defaults.

    Raises:
        InputError: the file cannot be read or holds no settings; or an override is wrong.
    """
    saved = _read_saved(command, path)
    overrides = names.canonical_overrides(command, overrides)
    options_of = option_names(conf_dirs(config_dir))
    groups = names.settings_of(command) & options_of.keys() - {text.partition("=")[0] for text in overrides}
    options = {group: _option_of(saved.get(group)) for group in sorted(groups)}
    same = [f"{group}={option}" for group, option in options.items() if option in options_of[group]]
    composed = compose(command, [*same, *overrides], config_dir)
    if "explicit_keys" in composed:
        composed["explicit_keys"] = composed["explicit_keys"][len(same) :]
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


def _read_saved(command: str, path: str) -> dict[str, Any]:
    """Read the saved settings, and translate those that have been renamed or removed since."""
    if command == "glue":
        raise InputError("--config: glue has the settings of several runs; repeat one of these runs with finetune")
    try:
        saved = parse_yaml(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"--config {path}: {' '.join(str(error).split())}; pass the config.yaml of a run") from None
    if not isinstance(saved, dict):
        raise InputError(f"--config {path}: no settings; pass the config.yaml of a run")
    if isinstance(saved.get("task"), dict):
        saved["task"] = without_retired(saved["task"])
    for name in names.MODEL_DIR_SYNONYMS:
        if name in saved and not isinstance(saved[name], Mapping):
            saved[names.MODEL_DIR] = saved.pop(name)
    if isinstance(saved.get("launch"), dict):
        saved["launch"].pop("interface", None)  # retired; GLOO_SOCKET_IFNAME replaces it
    return saved


def _option_of(section: Any) -> str:
    """Return the name of the option that a saved section was composed from."""
    return str(section.get("kind", section.get("name"))) if isinstance(section, Mapping) else ""


def to_overrides(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Turn Python values, nested or under dotted names, into overrides; a group's mapping may have its option as `name`."""
    overrides = []
    groups = option_names([conf_dir()])
    for key, value in settings.items():
        if isinstance(value, Mapping):
            named = next((name for name in ("name", "kind") if value.get(name) in groups.get(prefix + key, ())), None)
            overrides += [f"{key}={value[named]}"] if named else []
            overrides += to_overrides({name: value[name] for name in value if name != named}, f"{prefix}{key}.")
        elif isinstance(value, str) and not prefix and key in groups and re.fullmatch(r"[\w./-]+", value):
            overrides.append(f"{key}={value}")  # an option of a group
        else:
            overrides.append(f"{prefix}{key}={_override_value(value, f'{prefix}{key}')}")
    return overrides


def _override_value(value: Any, key: str) -> str:
    value = value.tolist() if hasattr(value, "dtype") and hasattr(value, "ndim") else value  # of numpy
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_override_value(item, key) for item in value)}]"
    if isinstance(value, (int, float)):
        return repr(value)
    if not isinstance(value, (str, os.PathLike)):
        raise InputError(f"{key}: {type(value).__name__}: expected text, a number, a list or a mapping")
    # escape quotes, backslashes before them, and interpolations
    text = str(os.fspath(value) if isinstance(value, os.PathLike) else value)
    text = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text)
    return "'" + text.replace("${", "\\${") + "'"


def _compose_suite(overrides: list[str], config_dir: str | None) -> dict[str, Any]:
    """Compose glue: its own settings, and a fine-tuning run for each task; all other overrides apply to every run."""
    keys = _compose_one("glue", [], config_dir)
    own = [text for text in overrides if text.partition("=")[0] in keys]
    others = [text for text in overrides if text not in own]
    for text in others:
        if text.partition("=")[0] in ("task", "seed"):
            raise InputError(f"'{text}': glue takes several; set {text.partition('=')[0]}s=[...]")
    suite = _compose_one("glue", own, config_dir)
    places = {name: suite[name] or "?" for name in ("model_dir", "output_dir")} | {"data_dir": suite["data_dir"]}
    chosen = suite["tasks"] if isinstance(suite["tasks"], list) else []
    tasks = [task for task in chosen if task in GLUE_TASKS]  # others are refused when the settings are built
    suite["runs"] = [_compose_one("finetune", [f"task={task}", *others], config_dir) | places for task in tasks]
    return suite


def _compose_one(command: str, overrides: list[str], config_dir: str | None) -> dict[str, Any]:
    """Compose one configuration file, such as `conf/pretrain.yaml`."""
    directories = conf_dirs(config_dir)
    _check_own_files(directories)
    fields = {field.name: field.metadata for field in dataclasses.fields(names.schema_of(command))}
    overrides, verbatim = _split_verbatim(fields, overrides)
    own_names, options_of = names.settings_of(command), option_names(directories)
    groups = {group: options for group, options in options_of.items() if group in own_names}
    with _hydra(directories):
        parsed, malformed = _parse(command, overrides)
        choices = {one.key_or_group: one.value() for one in parsed if one.value() in groups.get(one.key_or_group, ())}
        choices = {**names.BESIDE.get(f"decoder={choices.get('decoder')}", {}), **choices}
        try:
            arguments = [*(f"{group}={option}" for group, option in choices.items()), *_searchpath(directories)]
            lacks_task = command == "finetune" and "task" not in choices
            arguments += ["task=sequence"] if lacks_task else []  # to check the other settings
            composed = hydra_compose(command, overrides=arguments)
            known: dict[str, Any] = OmegaConf.to_container(composed, resolve=False)  # type: ignore[assignment]
            if lacks_task and all(one.key_or_group != "task" for one in parsed):
                malformed.append(f"missing value: set task= {names.options_line('task', groups['task'])}")
            if at(known, "decoder.kind") == "transformer" and at(known, "model.hidden_act") == "gelu":
                OmegaConf.update(
                    composed, "model.hidden_act", "relu"
                )  # Vaswani et al. 2017, equation 2; not the user's
            task_changes = OmegaConf.create({})
            changes_task = "task_changes" in fields and any(text.startswith("task.") for text in overrides)
            if lacks_task or (changes_task and known.get("task") is None):
                known["task"] = names.settings_of_tasks()
            refuse(malformed, [line for one in parsed if (line := names.refusal(command, one, known, groups))])
            for one in parsed:
                if one.key_or_group not in groups:
                    is_change = one.key_or_group.startswith("task.") and composed.get("task") is None
                    target, is_new = task_changes if is_change else composed, plugins.has_setting(one.key_or_group)
                    OmegaConf.update(target, one.key_or_group, one.value(), merge=True, force_add=is_new)
            plain: dict[str, Any] = OmegaConf.to_container(composed, resolve=True)  # type: ignore[assignment]
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
            raise _readable_error(error) from None
    plain.pop("experiment", None)
    plain |= verbatim
    if "task_changes" in fields:
        plain["task_changes"] = OmegaConf.to_container(task_changes.get("task") or OmegaConf.create({}))
    if "explicit_keys" in fields:
        own = _keys_of_experiment(directories, str(choices["experiment"])) if "experiment" in choices else []
        plain["explicit_keys"] = [*(one.key_or_group for one in parsed), *own]
    return plain


def _readable_error(error: Exception) -> InputError:
    """Turn an error from Hydra into one line for the user."""
    reason = " ".join(str(error.__cause__ or error).split())
    if "recursion" in reason:
        return InputError(f"an override: {TOO_DEEP}; quote the value if it is a text")
    if resolver := re.match(r"Unsupported interpolation type (\S+)(?: full_key: (\S+))?", reason):
        place = f"{resolver[2]}: " if resolver[2] else ""
        return InputError(
            f"{place}${{{resolver[1]}:...}}: settings cannot use environment variables or resolvers; write the value, or "
            f'let the shell insert it: {resolver[2] or "key"}="$NAME"'
        )
    return InputError(f"cannot compose the configuration: {reason}")


@contextlib.contextmanager
def _hydra(directories: Sequence[Path]) -> Iterator[None]:
    """Initialise Hydra in the first directory, without resolvers: `${another.key}` stays the only interpolation.

    Resolvers such as `oc.env` could copy secrets from the user's environment into files that are shared.
    """
    resolvers, before = BaseContainer._resolvers, dict(BaseContainer._resolvers)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(directories[0]), version_base="1.3"):
        resolvers.clear()
        try:
            yield
        finally:
            resolvers.update(before)


def _check_own_files(directories: Sequence[Path]) -> None:
    """Refuse files in the user's directory that are not settings, with clearer messages than Hydra's."""
    for directory in directories[1:]:
        for path in sorted([*directory.glob("*.yaml"), *directory.glob("*/*.yaml")]):
            try:
                content = yaml.safe_load(path.read_text(encoding="utf-8"))
            except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
                raise InputError(f"{path}: not YAML ({' '.join(str(error).split())}); correct it") from None
            if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
                raise InputError(f"{path}: expected lines 'key: value', got {content!r:.40}; correct it")


def _keys_of_experiment(directories: Sequence[Path], name: str) -> list[str]:
    """List the groups that an experiment overrides, and the keys that it sets."""
    path = next(path for directory in directories if (path := directory / "experiment" / f"{name}.yaml").is_file())
    content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    defaults = [entry for entry in content.pop("defaults", []) if isinstance(entry, dict)]
    groups = [key.removeprefix("override").strip(" /") for entry in defaults for key in entry]
    keys = dotted_keys(content)
    return [*groups, *(key for key in keys if not any(other.startswith(f"{key}.") for other in keys))]


def _searchpath(directories: Sequence[Path]) -> list[str]:
    return [f"hydra.searchpath=['file://{directory}']" for directory in directories[1:]]


def option_lines(group: str, option: str, config_dir: str | None) -> list[str]:
    """Compose one option of a group by itself; return its settings, one line each."""
    directories = sorted(conf_dirs(config_dir), key=lambda folder: not (folder / group / f"{option}.yaml").is_file())
    _check_own_files(conf_dirs(config_dir))
    with _hydra(directories):
        try:
            composed = hydra_compose(f"{group}/{option}", overrides=_searchpath(directories))
            plain: dict[str, Any] = OmegaConf.to_container(composed, resolve=True)  # type: ignore[assignment]
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, RecursionError) as error:
            raise InputError(f"{directories[0] / group / option}.yaml: {' '.join(str(error).split())}") from None
    inner = plain[group]
    # dumped inside a list, because YAML ends a document of one scalar with a line "..."
    return [
        f"{group}.{key}: {yaml.safe_dump([value], default_flow_style=True, width=999).strip()[1:-1]}"
        for key in dotted_keys(inner)
        if not isinstance(value := at(inner, key), dict)
    ]


def _split_verbatim(
    fields: Mapping[str, Mapping[str, Any]], overrides: list[str]
) -> tuple[list[str], dict[str, str | list[str]]]:
    """Return the overrides for Hydra, and the settings that Hydra must not parse: verbatim texts, and words without a key."""
    words_of = next((name for name, metadata in fields.items() if metadata == names.WORDS), None)
    verbatim: dict[str, str | list[str]] = {}
    rest, words = [], []
    for text in overrides:
        key, has_value, value = text.partition("=")
        if key in fields and fields[key] == names.VERBATIM:
            verbatim[key] = value
        elif words_of is not None and not has_value:
            words.append(text)
        else:
            rest.append(text)
    return rest, verbatim | ({words_of: words} if words_of is not None and words else {})


def _parse(command: str, overrides: list[str]) -> tuple[list[Override], list[str]]:
    """Parse overrides; return them with an error message for each malformed one."""
    parser, parsed, malformed = OverridesParser.create(), [], []
    for text in overrides:
        try:
            parsed.append(parser.parse_override(text))
        except (HydraException, RecursionError):
            key, has_value, value = text.partition("=")
            quoted = f"'{value}'"
            if value.startswith("[") and value.endswith("]"):
                quoted = "[" + ",".join(f"'{item}'" for item in value[1:-1].split(",")) + "]"
            twice = f', quote the value twice: "{key}={quoted:.200}"'
            hint = twice if has_value else names.hint_for_word(command, text)
            malformed.append(f"'{text:.200}': expected key=value or group=option{hint}")
    return parsed, malformed


def combinations(command: str, overrides: list[str], config_dir: str | None = None) -> list[tuple[str, list[str]]]:
    """List the runs of a sweep, each with a name and its overrides, including an output directory for this run alone.

    A swept value is `a,b`, `choice(a,b)`, `range(1,4)`, or, for the options of a group, `glob(*)`.

    Raises:
        InputError: an override is malformed, or a command that needs `output_dir` has none.
    """
    parsed, malformed = _parse(command, overrides)
    refuse(malformed)
    groups = option_names(conf_dirs(config_dir))
    choices = [
        [f"{item.key_or_group}={value}" for value in _swept_values(item, groups)]
        if item.is_sweep_override()
        else [str(item.input_line)]
        for item in parsed
    ]
    output = next((n for n, item in enumerate(parsed) if item.key_or_group == "output_dir"), None)
    if output is None and "output_dir" in names.settings_of(command):
        raise InputError("-m needs output_dir=: each run goes to a directory below it")
    runs = []
    for combination in itertools.product(*choices):
        arguments = list(combination)
        name = "_".join(text for text, item in zip(arguments, parsed, strict=True) if item.is_sweep_override())
        if output is not None:
            output_dir = arguments[output].partition("=")[2].strip("'\"")
            arguments[output] = f"output_dir='{output_dir}/{name.replace('/', '-').replace('=', '-')}'"
        runs.append((name, arguments))
    return runs


def _swept_values(item: Override, groups: Mapping[str, list[str]]) -> list[str]:
    """List the values of a swept override."""
    value = item.value()
    if isinstance(value, Glob):
        options = value.filter(groups.get(item.key_or_group, []))
        if not options:
            raise InputError(f"'{item.input_line}': no option of the group matches this glob")
        return options
    if isinstance(value, IntervalSweep):
        raise InputError(f"'{item.input_line}': an interval has infinitely many values; use choice(...) or range(...)")
    return list(item.sweep_string_iterator())
