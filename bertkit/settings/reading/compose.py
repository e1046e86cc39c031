"""Compose the configuration of a command from `conf/`, the user's assignments, and perhaps an earlier run, with Hydra.

Unknown keys and options are refused, with the nearest known name, before Hydra composes.
"""

import contextlib
import re
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import OmegaConfBaseException

from bertkit.base import plugins
from bertkit.base.errors import InputError
from bertkit.base.renamed import current
from bertkit.base.text_files import TOO_DEEP, JsonObject, parse_yaml
from bertkit.base.typed_settings import at, conf_dirs, dotted_keys, option_names, refuse
from bertkit.settings.glue import GLUE_TASKS
from bertkit.settings.reading import names
from bertkit.settings.reading.assignments import Assignment, keys_of
from bertkit.settings.reading.overrides import read_words
from bertkit.settings.reading.values import read_values
from bertkit.tasks.task_config import without_retired

MAX_BYTES = 1_000_000  # of a file with settings; those of bertkit have a few thousand
ONE_AT_A_TIME = threading.Lock()  # Hydra has one state for the whole process


def compose(command: str, words: Sequence[str], config_dir: str | None = None) -> JsonObject:
    """Compose a command's configuration from words of the command line, as `compose_assigned` does."""
    return compose_assigned(command, read_words(command, words), config_dir)


def compose_values(command: str, values: Mapping[str, object]) -> JsonObject:
    """Compose a command's configuration from values in Python, as `compose_assigned` does."""
    return compose_assigned(command, read_values(command, values))


def compose_assigned(command: str, assignments: Sequence[Assignment], config_dir: str | None = None) -> JsonObject:
    """Compose a command's configuration into a plain, resolved mapping; raises InputError for unknown names."""
    if command == "glue":
        return _compose_suite(assignments, config_dir)
    return _compose_one(command, assignments, config_dir)


def compose_from_run(
    command: str, path: str, assignments: Sequence[Assignment], config_dir: str | None = None
) -> JsonObject:
    """Compose from the settings in a file, such as the `config.yaml` of a run, and from assignments.

    Settings that are newer than the file get their defaults. Raises InputError if the file or an assignment is wrong.
    """
    saved = _read_saved(command, path)
    options_of = option_names(conf_dirs(config_dir))
    groups = names.settings_of(command) & options_of.keys() - keys_of(assignments)
    options = {group: _option_of(saved.get(group)) for group in sorted(groups)}
    same = [Assignment(group, option, "") for group, option in options.items() if option in options_of[group]]
    composed = compose_assigned(command, [*same, *assignments], config_dir)
    if "explicit_keys" in composed:
        composed["explicit_keys"] = composed["explicit_keys"][len(same) :]
    settings = {**composed, **saved}
    for key in composed.keys() & saved.keys():
        new, old = composed[key], saved[key]
        is_same_option = key not in options_of or _option_of(new) == _option_of(old)
        if is_same_option and isinstance(new, Mapping) and isinstance(old, Mapping):
            settings[key] = {**new, **old}
    for one in assignments:
        *parents, leaf = one.key.split(".")
        target, source = settings, composed
        for parent in parents:
            target, source = target.setdefault(parent, {}), source[parent]
            if not isinstance(target, dict):
                raise InputError(f"--config {path}: {parent}={target!r}: expected a group of settings")
        target[leaf] = source[leaf]
    return settings


def _read_saved(command: str, path: str) -> JsonObject:
    """Read the saved settings, and translate those that have been renamed or removed since."""
    if command == "glue":
        raise InputError("--config: glue has the settings of several runs; repeat one of these runs with finetune")
    try:
        saved = parse_yaml(_read_settings(Path(path).expanduser()))
    except (OSError, ValueError) as error:
        raise InputError(f"--config {path}: {' '.join(str(error).split())}; pass the config.yaml of a run") from None
    if not isinstance(saved, dict):
        raise InputError(f"--config {path}: no settings; pass the config.yaml of a run")
    saved = current(saved)
    if isinstance(saved.get("task"), dict):
        saved["task"] = without_retired(saved["task"])
    for name in names.MODEL_DIR_SYNONYMS:
        if name in saved and not isinstance(saved[name], Mapping):
            saved[names.MODEL_DIR] = saved.pop(name)
    if isinstance(saved.get("launch"), dict):
        saved["launch"].pop("interface", None)  # retired; GLOO_SOCKET_IFNAME replaces it
    return saved


def _option_of(section: object) -> str:
    """Return the name of the option that a saved section was composed from."""
    return str(section.get("kind", section.get("name"))) if isinstance(section, Mapping) else ""


def _compose_suite(assignments: Sequence[Assignment], config_dir: str | None) -> JsonObject:
    """Compose glue: its own settings, and a fine-tuning run for each task; all other assignments apply to every run."""
    keys = _compose_one("glue", [], config_dir)
    own = [one for one in assignments if one.key in keys]
    others = [one for one in assignments if one not in own]
    for one in others:
        if one.key in ("task", "seed"):
            raise InputError(f"'{one.text}': glue takes several; set {one.key}s=[...]")
    suite = _compose_one("glue", own, config_dir)
    places = {name: suite[name] or "?" for name in ("model_dir", "output_dir")} | {"data_dir": suite["data_dir"]}
    chosen = suite["tasks"] if isinstance(suite["tasks"], list) else []
    tasks = [task for task in chosen if task in GLUE_TASKS]  # others are refused when the settings are built
    suite["runs"] = [
        _compose_one("finetune", [Assignment("task", task, f"task={task}"), *others], config_dir) | places
        for task in tasks
    ]
    return suite


def _compose_one(command: str, assignments: Sequence[Assignment], config_dir: str | None) -> JsonObject:
    """Compose one configuration file, such as `conf/pretrain.yaml`."""
    directories = conf_dirs(config_dir)
    _check_own_files(directories)
    fields = names.fields_of(command)
    verbatim = {one.key: one.value for one in assignments if names.is_verbatim(command, one.key)}
    changes = [one for one in assignments if one.key not in verbatim]
    own_names, options_of = names.settings_of(command), option_names(directories)
    groups = {group: options for group, options in options_of.items() if group in own_names}
    choices = {one.key: one.value for one in changes if one.value in groups.get(one.key, ())}
    choices = {**names.BESIDE.get(f"decoder={choices.get('decoder')}", {}), **choices}
    lacks_task = command == "finetune" and "task" not in choices
    with _hydra(directories):
        try:
            arguments = [*(f"{group}={option}" for group, option in choices.items()), *_searchpath(directories)]
            arguments += ["task=sequence"] if lacks_task else []  # to check the other settings
            composed = hydra_compose(command, overrides=arguments)
            known: JsonObject = OmegaConf.to_container(composed, resolve=False)  # type: ignore[assignment]
            is_missing = lacks_task and "task" not in keys_of(changes)
            missing = is_missing and f"missing value: set task= {names.options_line('task', groups['task'])}"
            if at(known, "decoder.kind") == "transformer" and at(known, "model.hidden_act") == "gelu":
                # Vaswani et al. 2017, equation 2; not the user's
                OmegaConf.update(composed, "model.hidden_act", "relu")
            task_changes = OmegaConf.create({})
            changes_task = "task_changes" in fields and any(one.key.startswith("task.") for one in changes)
            if lacks_task or (changes_task and known.get("task") is None):
                known["task"] = names.settings_of_tasks()
            refuse(
                missing,
                [line for one in changes if (line := names.refusal(command, one, known, groups))],
            )
            for one in changes:
                if one.key not in groups:
                    is_change = one.key.startswith("task.") and composed.get("task") is None
                    target, is_new = task_changes if is_change else composed, plugins.has_setting(one.key)
                    OmegaConf.update(target, one.key, one.value, merge=True, force_add=is_new)
            plain: JsonObject = OmegaConf.to_container(composed, resolve=True)  # type: ignore[assignment]
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
            raise _readable_error(error) from None
    plain.pop("experiment", None)
    plain |= verbatim
    if "task_changes" in fields:
        plain["task_changes"] = OmegaConf.to_container(task_changes.get("task") or OmegaConf.create({}))
    if "explicit_keys" in fields:
        own = _keys_of_experiment(directories, str(choices["experiment"])) if "experiment" in choices else []
        plain["explicit_keys"] = [*(one.key for one in changes), *own]
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
    with ONE_AT_A_TIME:
        resolvers, before = BaseContainer._resolvers, dict(BaseContainer._resolvers)
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(directories[0]), version_base="1.3"):
            resolvers.clear()
            try:
                yield
            finally:
                resolvers.update(before)


def _read_settings(path: Path) -> str:
    """Read a file with settings; a pipe or a device could be endless."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
        raise ValueError(f"expected a regular file of at most {MAX_BYTES // 1_000_000} MB")
    return path.read_text(encoding="utf-8")


def _check_own_files(directories: Sequence[Path]) -> None:
    """Refuse files in the user's directory that are not settings, with clearer messages than Hydra's."""
    for directory in directories[1:]:
        for path in sorted(path for depth in ("", "*/", "*/*/") for path in directory.glob(f"{depth}*.yaml")):
            try:
                content = yaml.safe_load(_read_settings(path))
            except (yaml.YAMLError, ValueError, RecursionError) as error:
                raise InputError(f"{path}: not YAML ({' '.join(str(error).split())}); correct it") from None
            if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
                raise InputError(f"{path}: expected lines 'key: value', got {content!r:.40}; correct it")
            if hydra := [key for key in [*content, *_chosen_groups(content)] if key.partition("/")[0] == "hydra"]:
                raise InputError(
                    f"{path}: {hydra[0]}: bertkit composes settings with Hydra, but sets it up itself; remove it"
                )


def _chosen_groups(content: JsonObject) -> list[str]:
    """List the groups in the defaults of a file."""
    defaults = content.get("defaults") or []
    return [key.removeprefix("override").strip(" /") for one in defaults if isinstance(one, dict) for key in one]


def _keys_of_experiment(directories: Sequence[Path], name: str) -> list[str]:
    """List the groups that an experiment overrides, and the keys that it sets."""
    path = next(path for directory in directories if (path := directory / "experiment" / f"{name}.yaml").is_file())
    content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    keys = dotted_keys({key: value for key, value in content.items() if key != "defaults"})
    return [*_chosen_groups(content), *(key for key in keys if not any(other.startswith(f"{key}.") for other in keys))]


def _searchpath(directories: Sequence[Path]) -> list[str]:
    return [f"hydra.searchpath=['file://{directory}']" for directory in directories[1:]]


def option_lines(group: str, option: str, config_dir: str | None) -> list[str]:
    """Compose one option of a group by itself; return its settings, one line each."""
    directories = sorted(conf_dirs(config_dir), key=lambda folder: not (folder / group / f"{option}.yaml").is_file())
    _check_own_files(conf_dirs(config_dir))
    with _hydra(directories):
        try:
            composed = hydra_compose(f"{group}/{option}", overrides=_searchpath(directories))
            plain: JsonObject = OmegaConf.to_container(composed, resolve=True)  # type: ignore[assignment]
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, RecursionError) as error:
            raise InputError(f"{directories[0] / group / option}.yaml: {' '.join(str(error).split())}") from None
    inner = plain[group]
    # dumped inside a list, because YAML ends a document of one scalar with a line "..."
    return [
        f"{group}.{key}: {yaml.safe_dump([value], default_flow_style=True, width=999).strip()[1:-1]}"
        for key in dotted_keys(inner)
        if not isinstance(value := at(inner, key), dict)
    ]
