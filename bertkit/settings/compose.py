"""YAML and overrides to a plain mapping, by Hydra: its only home.

Every key and option that does not exist is refused, with the nearest name, before Hydra composes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping
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

from bertkit.base.errors import InputError
from bertkit.base.typed_settings import at, conf_dir, conf_dirs, dotted_keys, nearest, option_names
from bertkit.settings import hints
from bertkit.settings.glue import GLUE_TASKS
from bertkit.settings.yaml_files import check_files, keys_of_experiment

WRITE_A_DIRECTORY = ("prepare", "pretrain", "finetune", "glue", "export")
KNOW_WHAT_IS_GIVEN = ("prepare", "pretrain", "evaluate")  # they ask which settings the command line names
OF_WORDS = {"compare": "runs"}  # a setting that is given as words without a name, too
KNOW_THE_TASK_OF_A_MODEL = ("predict", "evaluate", "view", "search", "serve")  # they take task.* without task=
# settings whose value is a text as it stands, whatever Hydra would read in it
LITERAL = {"predict": ("text", "text_pair"), "view": ("text", "text_pair", "target_text"), "search": ("question",)}


def compose(command: str, overrides: list[str], config_dir: str | None = None) -> dict[str, Any]:
    """Compose a command's configuration into a plain, resolved mapping.

    Raises:
        InputError: unknown keys and options, each with the nearest known name; malformed overrides.
    """
    hints.check_depth(overrides)
    overrides = hints.canonical_overrides(command, overrides)
    if command == "glue":
        return _compose_suite(overrides, config_dir)
    return _compose_one(command, overrides, config_dir)


def spelled(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Write settings given as values, nested or by dotted names, as the command line writes them."""
    found = []
    groups = option_names([conf_dir()])
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found += spelled(value, f"{prefix}{key}.")
        elif isinstance(value, str) and not prefix and key in groups and re.fullmatch(r"[\w./-]+", value):
            found.append(f"{key}={value}")  # an option of a group
        else:
            found.append(f"{prefix}{key}={_spelled_value(value)}")
    return found


def _spelled_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_spelled_value, value))}]"
    if isinstance(value, (int, float)):
        return repr(value)
    # quotes are escaped, and the backslashes before them; an interpolation is only a text
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    text = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), str(value))
    return "'" + text.replace("${", "\\${") + "'"


def _compose_suite(overrides: list[str], config_dir: str | None) -> dict[str, Any]:
    """Compose glue: its own settings, and those of fine-tuning on each task, to which every other override goes."""
    own = _compose_one("glue", [], config_dir)
    mine = [text for text in overrides if text.partition("=")[0] in own]
    others = [text for text in overrides if text not in mine]
    for text in others:
        if text.partition("=")[0] in ("task", "seed"):
            raise InputError(f"'{text}': glue has several; set {text.partition('=')[0]}s=[...]")
    suite = _compose_one("glue", mine, config_dir)
    places = {name: suite[name] or "?" for name in ("model_dir", "output_dir")} | {"data_dir": suite["data_dir"]}
    given = suite["tasks"] if isinstance(suite["tasks"], list) else []
    tasks = [task for task in given if task in GLUE_TASKS]  # the others are refused when the settings are built
    suite["runs"] = [_compose_one("finetune", [f"task={task}", *others], config_dir) | places for task in tasks]
    return suite


def _compose_one(command: str, overrides: list[str], config_dir: str | None) -> dict[str, Any]:
    """Compose one configuration file."""
    directories = conf_dirs(config_dir)
    check_files(config_dir)
    searchpath = _searchpath(directories)
    overrides, literal = _without_literal(command, overrides)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(directories[0]), version_base="1.3"), _nothing_from_outside():
        own = hints.names_of(command)
        groups = {group: options for group, options in option_names(directories).items() if group in own}
        parsed, malformed = _parsed(overrides)
        chosen = {one.key_or_group: one.value() for one in parsed if one.value() in groups.get(one.key_or_group, ())}
        try:
            choices = [f"{group}={option}" for group, option in chosen.items()]
            composed = hydra_compose(command, overrides=[*choices, *searchpath])
            known: dict[str, Any] = OmegaConf.to_container(composed, resolve=False)  # type: ignore[assignment]
            task = OmegaConf.create({})  # what is set of the task of the model's run
            if command in KNOW_THE_TASK_OF_A_MODEL and known.get("task") is None:
                known |= {"task": _keys_of_tasks()} if any(text.startswith("task.") for text in overrides) else {}
            _check_overrides(command, parsed, malformed, known, groups)
            for one in parsed:
                if one.key_or_group not in groups:
                    is_of_run = one.key_or_group.startswith("task.") and composed.get("task") is None
                    OmegaConf.update(task if is_of_run else composed, one.key_or_group, one.value(), merge=True)
            plain: dict[str, Any] = OmegaConf.to_container(composed, resolve=True)  # type: ignore[assignment]
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
            reason = " ".join(str(error.__cause__ or error).split())
            required = re.match(r"You must specify '(\w+)'", reason)
            if required:
                _refuse_unknown_option(required.group(1), overrides, groups)
                options = ", ".join(groups[required.group(1)])
                raise InputError(f"missing value: set {required.group(1)}= (one of {options})") from None
            resolver = re.match(r"Unsupported interpolation type (\S+)(?: full_key: (\S+))?", reason)
            if resolver:
                where = f"{resolver[2]}: " if resolver[2] else ""
                raise InputError(
                    f"{where}${{{resolver[1]}:...}}: a setting takes nothing from the environment or a program; write "
                    f'the value, or have the shell put it on the command line: {resolver[2] or "key"}="$NAME"'
                ) from None
            raise InputError(f"cannot compose the configuration: {reason}") from None
    plain.pop("experiment", None)
    plain |= literal
    if command in KNOW_THE_TASK_OF_A_MODEL:
        plain["task_changes"] = OmegaConf.to_container(task.get("task") or OmegaConf.create({}))
    if command in KNOW_WHAT_IS_GIVEN:
        mine = keys_of_experiment(directories, str(chosen["experiment"])) if "experiment" in chosen else []
        plain["given"] = [*(one.key_or_group for one in parsed), *mine]
    return plain


@contextlib.contextmanager
def _nothing_from_outside() -> Iterator[None]:
    """Leave `${another.key}` the only interpolation.

    Resolvers such as `oc.env` would put secrets of whoever runs somebody's configuration into files that are passed on.
    """
    resolvers = BaseContainer._resolvers
    before = dict(resolvers)
    resolvers.clear()
    try:
        yield
    finally:
        resolvers.update(before)


def _searchpath(directories: list[Path]) -> list[str]:
    return [f"hydra.searchpath=['file://{directory}']" for directory in directories[1:]]


def option_lines(group: str, option: str, config_dir: str | None) -> list[str]:
    """Compose one option of a group by itself; give its settings, a line each."""
    check_files(config_dir)
    directories = sorted(conf_dirs(config_dir), key=lambda each: not (each / group / f"{option}.yaml").is_file())
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(directories[0]), version_base="1.3"), _nothing_from_outside():
        try:
            composed = hydra_compose(f"{group}/{option}", overrides=_searchpath(directories))
            plain: dict[str, Any] = OmegaConf.to_container(composed, resolve=True)  # type: ignore[assignment]
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, RecursionError) as error:
            raise InputError(f"{directories[0] / group / option}.yaml: {' '.join(str(error).split())}") from None
    inner = plain[group]
    # in a list, since a document that is a word alone has an end mark
    return [
        f"{group}.{key}: {yaml.safe_dump([value], default_flow_style=True, width=999).strip()[1:-1]}"
        for key in dotted_keys(inner)
        if not isinstance(value := at(inner, key), dict)
    ]


def _without_literal(command: str, overrides: list[str]) -> tuple[list[str], dict[str, str | list[str]]]:
    """Take out what Hydra must not read: texts, and words without a name; give the rest, and these by their settings."""
    literal: dict[str, str | list[str]] = {}
    rest, words = [], []
    for text in overrides:
        key, has_value, value = text.partition("=")
        if key in LITERAL.get(command, ()):
            literal[key] = value
        elif not has_value and command in OF_WORDS:
            words.append(text)
        else:
            rest.append(text)
    return rest, literal | ({OF_WORDS[command]: words} if words else {})


def _refuse_unknown_option(group: str, overrides: list[str], groups: Mapping[str, list[str]]) -> None:
    """Refuse an option of a required group, which is missing because there is no such option."""
    for text in overrides:
        name, _, value = text.partition("=")
        if name == group:
            hint = nearest(value, groups[group])
            raise InputError(f"unknown option {text}{hint} (one of {', '.join(groups[group])})")


def _parsed(overrides: list[str]) -> tuple[list[Override], list[str]]:
    """Parse overrides; give also a line on each that is none."""
    parser, parsed, malformed = OverridesParser.create(), [], []
    for text in overrides:
        try:
            parsed.append(parser.parse_override(text))
        except HydraException:
            given, has_value, rest = text.partition("=")
            each = ",".join(f"'{one}'" for one in rest[1:-1].split(","))
            quoted = f"[{each}]" if rest.startswith("[") and rest.endswith("]") else f"'{rest}'"
            hint = f'quote the value twice: "{given}={quoted}"' if has_value else "such as output_dir=runs/mine"
            malformed.append(f"'{text}': expected key=value or group=option, {hint}")
    return parsed, malformed


def _check_overrides(
    command: str,
    overrides: list[Override],
    malformed: list[str],
    defaults: Mapping[str, Any],
    groups: Mapping[str, list[str]],
) -> None:
    """Refuse every override whose key or option does not exist, all of them in one error."""
    keys, errors = dotted_keys(defaults), list(malformed)
    for override in overrides:
        key, text = override.key_or_group, str(override.input_line)
        name = key.split("/")[-1]
        is_known = key in keys or key in groups
        if is_known and override.is_sweep_override():
            values = text.partition("=")[2]
            errors.append(f"'{text}': several values; write {key}=[{values}] for a list, or add -m to run each of them")
        elif is_known and override.type is not OverrideType.CHANGE:
            errors.append(f"'{text}': expected key=value or group=option, without + or ~ before it")
        elif key in groups:
            value = override.value()
            if value is None and defaults.get(key) is None:
                continue
            if value not in groups[key]:
                hint = nearest(value, groups[key]) if isinstance(value, str) else ""
                if key == "model" and command == "finetune" and not hint:
                    hint = f"; a model to start from is model_dir={value}"
                errors.append(f"unknown option {key}={value}{hint} (one of {', '.join(groups[key])})")
        elif key.endswith((".kind", ".name")) and override.value() in groups.get(key.rpartition(".")[0], ()):
            group = key.rpartition(".")[0]
            errors.append(f"{text}: would leave the other values as they are; choose {group}={override.value()}")
        elif key not in keys and key.startswith("segments.") and defaults.get("segments", "") is None:
            errors.append(f"'{key}': prepare stores tokens only; add segments=google, or give it to pretrain")
        elif key == hints.NEXT_SENTENCE and key not in keys:
            errors.append(f"'{text}': the instances of segments=google are for nsp, as the original; leave it out")
        elif key not in keys:
            known = [*keys, *groups]
            leaves = {leaf.split(".")[-1]: leaf for leaf in keys}
            hint = nearest(key, known) or nearest(name.split(".")[-1], leaves)
            parent, _, leaf = key.rpartition(".")
            if parent and any(known_key.startswith(f"{parent}.") for known_key in keys):
                siblings = [k[len(parent) + 1 :] for k in keys if k.startswith(f"{parent}.")]
                hint = nearest(leaf, siblings) or hint
            hint = hints.advice(command, key, text.partition("=")[2]) or hint
            errors.append(f"unknown key '{key}'{hint or f'; see bertkit {command} --help'}")
    if errors:
        raise InputError(*errors)


def _keys_of_tasks() -> dict[str, Any]:
    """What may be set of a task of any shape, as the general ones have it."""
    tasks = {
        kind: yaml.safe_load((conf_dir() / "task" / f"{kind}.yaml").read_text(encoding="utf-8"))
        for kind in ("sequence", "tagging", "spans", "generation")
    }
    columns = {**tasks["generation"]["columns"], **tasks["sequence"]["columns"]}
    own = {kind: tasks[kind][kind] for kind in ("tagging", "spans", "generation")}
    return {**tasks["sequence"], "columns": columns, **own}


def combinations(command: str, overrides: list[str], config_dir: str | None = None) -> list[tuple[str, list[str]]]:
    """Give every combination of overrides with several values: its name, and its overrides with a directory of its own.

    Several values are `a,b`, `choice(a,b)`, `range(1,4)`, or `glob(*)` of the options of a group.

    Raises:
        InputError: an override is malformed, or there is no `output_dir` to make directories in.
    """
    hints.check_depth(overrides)
    parsed, malformed = _parsed(overrides)
    if malformed:
        raise InputError(*malformed)
    groups = option_names(conf_dirs(config_dir))
    choices = [
        [f"{item.key_or_group}={value}" for value in _swept(item, groups)]
        if item.is_sweep_override()
        else [str(item.input_line)]
        for item in parsed
    ]
    output = next((n for n, item in enumerate(parsed) if item.key_or_group == "output_dir"), None)
    if output is None and command in WRITE_A_DIRECTORY:
        raise InputError("-m needs output_dir=: each run goes to a directory below it")
    found = []
    for combination in itertools.product(*choices):
        arguments = list(combination)
        name = "_".join(text for text, item in zip(arguments, parsed, strict=True) if item.is_sweep_override())
        if output is not None:
            output_dir = arguments[output].partition("=")[2].strip("'\"")
            arguments[output] = f"output_dir='{output_dir}/{name.replace('/', '-').replace('=', '-')}'"
        found.append((name, arguments))
    return found


def _swept(item: Override, groups: Mapping[str, list[str]]) -> list[str]:
    """Give the values of a sweep."""
    value = item.value()
    if isinstance(value, Glob):
        names = value.filter(groups.get(item.key_or_group, []))
        if not names:
            raise InputError(f"'{item.input_line}': glob chooses among the options of a group, and none fits")
        return names
    if isinstance(value, IntervalSweep):
        raise InputError(f"'{item.input_line}': an interval has no end of values; give choice(...) or range(...)")
    return list(item.sweep_string_iterator())
