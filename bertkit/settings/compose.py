"""YAML and overrides to a plain mapping. Only this file uses Hydra.

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
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, OverrideType
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import OmegaConfBaseException

from bertkit.base import plugins
from bertkit.base.errors import InputError
from bertkit.base.text_files import TOO_DEEP
from bertkit.base.typed_settings import at, conf_dir, conf_dirs, dotted_keys, nearest, option_names, refuse
from bertkit.settings.common import VERBATIM, WORDS, schema_of
from bertkit.settings.glue import GLUE_TASKS
from bertkit.settings.overrides import hints


def compose(command: str, overrides: list[str], config_dir: str | None = None) -> dict[str, Any]:
    """Compose a command's configuration into a plain, resolved mapping.

    Raises:
        InputError: unknown keys and options, each with the nearest known name; malformed overrides.
    """
    overrides = hints.canonical_overrides(command, overrides)
    if command == "glue":
        return _compose_suite(overrides, config_dir)
    return _compose_one(command, overrides, config_dir)


def spelled(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Turn Python values, nested or under dotted names, into overrides as on the command line."""
    overrides = []
    groups = option_names([conf_dir()])
    for key, value in settings.items():
        if isinstance(value, Mapping):
            overrides += spelled(value, f"{prefix}{key}.")
        elif isinstance(value, str) and not prefix and key in groups and re.fullmatch(r"[\w./-]+", value):
            overrides.append(f"{key}={value}")  # an option of a group
        else:
            overrides.append(f"{prefix}{key}={_spelled_value(value)}")
    return overrides


def _spelled_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_spelled_value, value))}]"
    if isinstance(value, (int, float)):
        return repr(value)
    # escape quotes, backslashes before them, and interpolations
    text = str(os.fspath(value) if isinstance(value, os.PathLike) else value)
    text = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text)
    return "'" + text.replace("${", "\\${") + "'"


def _compose_suite(overrides: list[str], config_dir: str | None) -> dict[str, Any]:
    """Compose glue: its own settings, and one fine-tuning run for each task; overrides of other settings go to every run."""
    keys = _compose_one("glue", [], config_dir)
    own = [text for text in overrides if text.partition("=")[0] in keys]
    others = [text for text in overrides if text not in own]
    for text in others:
        if text.partition("=")[0] in ("task", "seed"):
            raise InputError(f"'{text}': glue takes several; set {text.partition('=')[0]}s=[...]")
    suite = _compose_one("glue", own, config_dir)
    places = {name: suite[name] or "?" for name in ("model_dir", "output_dir")} | {"data_dir": suite["data_dir"]}
    names = suite["tasks"] if isinstance(suite["tasks"], list) else []
    tasks = [task for task in names if task in GLUE_TASKS]  # others are refused when the settings are built
    suite["runs"] = [_compose_one("finetune", [f"task={task}", *others], config_dir) | places for task in tasks]
    return suite


def _compose_one(command: str, overrides: list[str], config_dir: str | None) -> dict[str, Any]:
    """Compose one configuration file."""
    directories = conf_dirs(config_dir)
    _check_own_files(directories)
    fields = {field.name: field.metadata for field in dataclasses.fields(schema_of(command))}
    overrides, verbatim = _split_verbatim(fields, overrides)
    groups = {
        group: options for group, options in option_names(directories).items() if group in hints.names_of(command)
    }
    with _hydra(directories):
        parsed, malformed = _parsed(overrides)
        choices = {one.key_or_group: one.value() for one in parsed if one.value() in groups.get(one.key_or_group, ())}
        try:
            arguments = [*(f"{group}={option}" for group, option in choices.items()), *_searchpath(directories)]
            composed = hydra_compose(command, overrides=arguments)
            known: dict[str, Any] = OmegaConf.to_container(composed, resolve=False)  # type: ignore[assignment]
            task_changes = OmegaConf.create({})
            if "task_changes" in fields and known.get("task") is None:
                known |= {"task": _keys_of_tasks()} if any(text.startswith("task.") for text in overrides) else {}
            refuse(malformed, [line for one in parsed if (line := _refusal(command, one, known, groups))])
            for one in parsed:
                if one.key_or_group not in groups:
                    is_change = one.key_or_group.startswith("task.") and composed.get("task") is None
                    target, is_new = task_changes if is_change else composed, plugins.has_setting(one.key_or_group)
                    OmegaConf.update(target, one.key_or_group, one.value(), merge=True, force_add=is_new)
            plain: dict[str, Any] = OmegaConf.to_container(composed, resolve=True)  # type: ignore[assignment]
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
            raise _explained(error, overrides, groups) from None
    plain.pop("experiment", None)
    plain |= verbatim
    if "task_changes" in fields:
        plain["task_changes"] = OmegaConf.to_container(task_changes.get("task") or OmegaConf.create({}))
    if "given" in fields:
        own = _keys_of_experiment(directories, str(choices["experiment"])) if "experiment" in choices else []
        plain["given"] = [*(one.key_or_group for one in parsed), *own]
    return plain


def _explained(error: Exception, overrides: list[str], groups: Mapping[str, list[str]]) -> InputError:
    """Turn an error of Hydra into one line for the user."""
    reason = " ".join(str(error.__cause__ or error).split())
    if "recursion" in reason:
        return InputError(f"an override: {TOO_DEEP}; quote the value if it is a text")
    if required := re.match(r"You must specify '(\w+)'", reason):
        group = required[1]
        option = next((value for text in overrides for key, _, value in [text.partition("=")] if key == group), None)
        options = f"(one of {', '.join(groups[group])})"
        if option is None:
            return InputError(f"missing value: set {group}= {options}")
        return InputError(f"unknown option {group}={option}{nearest(option, groups[group])} {options}")
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
    resolvers = BaseContainer._resolvers
    before = dict(resolvers)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(directories[0]), version_base="1.3"):
        resolvers.clear()
        try:
            yield
        finally:
            resolvers.update(before)


def _check_own_files(directories: Sequence[Path]) -> None:
    """Refuse files in the user's own directory that are not settings, with clearer messages than Hydra's."""
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
    """Compose one option of a group by itself; give its settings, one line each."""
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
    """Separate what Hydra must not parse: verbatim texts, and words without a key; the latter under their setting."""
    words_of = next((name for name, metadata in fields.items() if metadata == WORDS), None)
    verbatim: dict[str, str | list[str]] = {}
    rest, words = [], []
    for text in overrides:
        key, has_value, value = text.partition("=")
        if key in fields and fields[key] == VERBATIM:
            verbatim[key] = value
        elif words_of is not None and not has_value:
            words.append(text)
        else:
            rest.append(text)
    return rest, verbatim | ({words_of: words} if words_of is not None and words else {})


def _parsed(overrides: list[str]) -> tuple[list[Override], list[str]]:
    """Parse overrides; give an error line for each malformed one."""
    parser, parsed, malformed = OverridesParser.create(), [], []
    for text in overrides:
        try:
            parsed.append(parser.parse_override(text))
        except (HydraException, RecursionError):
            key, has_value, value = text.partition("=")
            quoted = f"'{value}'"
            if value.startswith("[") and value.endswith("]"):
                quoted = "[" + ",".join(f"'{item}'" for item in value[1:-1].split(",")) + "]"
            hint = f'quote the value twice: "{key}={quoted:.200}"' if has_value else "such as output_dir=runs/mine"
            malformed.append(f"'{text:.200}': expected key=value or group=option, {hint}")
    return parsed, malformed


def _refusal(
    command: str, override: Override, defaults: Mapping[str, Any], groups: Mapping[str, list[str]]
) -> str | None:
    """Say why an override is refused; None if its key and its option exist."""
    keys, key, text = dotted_keys(defaults), override.key_or_group, str(override.input_line)
    keys += [key] if plugins.has_setting(key) and key.partition(".")[0] in keys else []
    parent, _, leaf = key.rpartition(".")
    if key in keys or key in groups:
        if override.is_sweep_override():
            values = text.partition("=")[2]
            return f"'{text}': several values; write {key}=[{values}] for a list, or add -m to run each of them"
        if override.type is not OverrideType.CHANGE:
            return f"'{text}': expected key=value or group=option, without + or ~ before it"
    value = None if override.is_sweep_override() else override.value()
    if key in groups:
        if value in groups[key] or (value is None and defaults.get(key) is None):
            return None
        options = [*groups[key], *plugins.names_of(key)]
        hint = nearest(value, options) if isinstance(value, str) else ""
        if key == "model" and command == "finetune" and not hint:
            hint = f"; a model to start from is model_dir={value}"
        return f"unknown option {key}={value}{hint} (one of {', '.join(options)})"
    if leaf in ("kind", "name") and value in groups.get(parent, ()):
        return f"{text}: leaves the other values of {parent} unchanged; choose {parent}={value}"
    if key in keys:
        return None
    if parent == "segments" and defaults.get("segments", "") is None:
        return f"'{key}': prepare stores tokens only; add segments=google, or give it to pretrain"
    if key == hints.NEXT_SENTENCE:
        return f"'{text}': the instances of segments=google are for nsp, as in the original; leave it out"
    siblings = [known[len(parent) + 1 :] for known in keys if parent and known.startswith(f"{parent}.")]
    leaves = dict.fromkeys(known.rpartition(".")[2] for known in keys)
    hint = hints.advice(command, key, text.partition("=")[2]) or nearest(leaf, siblings)
    hint = hint or nearest(key, [*keys, *groups]) or nearest(leaf.rpartition("/")[2], leaves)
    return f"unknown key '{key}'{hint or f'; see bertkit {command} --help'}"


def _keys_of_tasks() -> dict[str, Any]:
    """Give the settings of the general tasks: any task of any shape has some of them."""
    tasks = {
        kind: yaml.safe_load((conf_dir() / "task" / f"{kind}.yaml").read_text(encoding="utf-8"))
        for kind in ("sequence", "tagging", "spans", "generation")
    }
    columns = {**tasks["generation"]["columns"], **tasks["sequence"]["columns"]}
    own = {kind: tasks[kind][kind] for kind in ("tagging", "spans", "generation")}
    return {**tasks["sequence"], "columns": columns, **own}


def combinations(command: str, overrides: list[str], config_dir: str | None = None) -> list[tuple[str, list[str]]]:
    """List the runs of a sweep: a name, and the overrides, which include an output directory for this run alone.

    A swept value is `a,b`, `choice(a,b)`, `range(1,4)`, or, for the options of a group, `glob(*)`.

    Raises:
        InputError: an override is malformed, or a command that needs `output_dir` has none.
    """
    parsed, malformed = _parsed(overrides)
    refuse(malformed)
    groups = option_names(conf_dirs(config_dir))
    choices = [
        [f"{item.key_or_group}={value}" for value in _swept(item, groups)]
        if item.is_sweep_override()
        else [str(item.input_line)]
        for item in parsed
    ]
    output = next((n for n, item in enumerate(parsed) if item.key_or_group == "output_dir"), None)
    if output is None and "output_dir" in hints.names_of(command):
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


def _swept(item: Override, groups: Mapping[str, list[str]]) -> list[str]:
    """List the values of a swept override."""
    value = item.value()
    if isinstance(value, Glob):
        names = value.filter(groups.get(item.key_or_group, []))
        if not names:
            raise InputError(f"'{item.input_line}': no option of the group matches this glob")
        return names
    if isinstance(value, IntervalSweep):
        raise InputError(f"'{item.input_line}': an interval has infinitely many values; use choice(...) or range(...)")
    return list(item.sweep_string_iterator())
