"""Compose the configuration of a command from `conf/`, the user's assignments, and perhaps an earlier run, with Hydra.

Unknown keys and options are refused, with the nearest known name, before Hydra composes.
"""

import contextlib
import re
import stat
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import OmegaConfBaseException

from bertkit.base.errors import InputError, in_one_line, refusing
from bertkit.base.hub_ids import missing_model
from bertkit.base.text_files import JsonObject, parse_yaml
from bertkit.base.typed_settings import at, checked, conf_dirs, dotted_keys, option_file, option_names, refuse
from bertkit.settings.glue import GLUE_TASKS
from bertkit.settings.reading import names
from bertkit.settings.reading.assignments import Assignment, keys_of
from bertkit.settings.reading.hints import Configuration, options_line
from bertkit.settings.reading.overrides import read_words
from bertkit.settings.reading.values import read_values
from bertkit.tasks.task_config import without_retired

MAX_BYTES = 1_000_000  # of a file with settings; those of bertkit have a few thousand
LENGTHS = {"segments.max_seq_length", "final_phase.max_seq_length"}
_OF_FAMILY = re.compile(
    r"^(roberta|albert|electra|deberta|eurobert)_(?=mini$)"
)  # before the size, which decides on the settings of a run from scratch
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
    """Compose from the settings in a file, such as the `config.yaml` of a run, and from assignments, which override them.

    Settings that are newer than the file get their defaults. Raises InputError if the file or an assignment is wrong.
    """
    replaced = keys_of(assignments) & option_names(conf_dirs(config_dir)).keys()
    saved = [one for one in _read_saved(command, path) if names.top_level(one.key) not in replaced]
    return _compose_one(command, assignments, config_dir, saved)


def _read_saved(command: str, path: str) -> list[Assignment]:
    """Read the saved settings without those that have been removed since."""
    if command == "glue":
        raise InputError("--config: glue has the settings of several runs; repeat one of these runs with finetune")
    advice = "pass the config.yaml of a run"
    with refusing((OSError, ValueError), lambda error: f"--config {path}: {in_one_line(error)}; {advice}"):
        content = parse_yaml(_read_settings(Path(path).expanduser()))
    saved = checked(JsonObject, content, f"--config {path}", advice)
    if isinstance(saved.get("task"), dict):
        saved["task"] = without_retired(saved["task"])
    if isinstance(saved.get("launch"), dict):
        saved["launch"].pop("interface", None)  # GLOO_SOCKET_IFNAME replaces it
    return read_values(command, saved)


def _compose_suite(assignments: Sequence[Assignment], config_dir: str | None) -> JsonObject:
    """Compose glue: its own settings, and a fine-tuning run for each task; all other assignments apply to every run."""
    keys = _compose_one("glue", [], config_dir)
    own = [one for one in assignments if one.key in keys]
    others = [one for one in assignments if one.key not in keys]
    plural = [one for one in others if one.key in ("task", "seed")]
    refuse([f"'{one.text}': glue takes several; set {one.key}s=[...]" for one in plural])
    suite = _compose_one("glue", own, config_dir)
    places = {name: suite[name] or "?" for name in ("model_dir", "output_dir")} | {"data_dir": suite["data_dir"]}
    suite["runs"] = [
        _compose_one("finetune", [Assignment("task", task, f"task={task}"), *others], config_dir) | places
        for task in names.names_in(suite["tasks"])
        if task in GLUE_TASKS  # others are refused when the settings are built
    ]
    return suite


def _compose_one(
    command: str, assignments: Sequence[Assignment], config_dir: str | None, saved: Sequence[Assignment] = ()
) -> JsonObject:
    """Compose one configuration file, such as `conf/pretrain.yaml`; names in saved assignments are checked with their values."""
    directories = conf_dirs(config_dir)
    check_own_files(directories)
    fields, own_names = names.fields_of(command), names.settings_of(command)
    verbatim = {one.key: one.value for one in assignments if names.is_verbatim(command, one.key)}
    own = [one for one in assignments if one.key not in verbatim]
    num_given = Counter(one.key for one in assignments)  # of other settings the last value counts, as in Hydra
    changes = [*saved, *own]
    groups = {group: options for group, options in option_names(directories).items() if group in own_names}
    choices = {one.key: str(one.value) for one in changes if one.value in groups.get(one.key, ())}
    with _hydra(directories):
        composed = _with_options(command, choices, directories)
        for one in [*_of_size(command, changes, choices, directories), *_implied(command, changes)]:
            OmegaConf.update(composed, one.key, one.value)
        # changes to the task that the model has
        task = "task." if composed.get("task") is not None else "task_changes."
        # a word without a key may be the file that would say the task
        is_missing = command == "finetune" and not {"task", ""} & keys_of(changes)
        given = {one.key: one.value for one in own}
        configuration = Configuration(command, _defaults(command, composed, own, "task" in choices), groups, given)
        refuse(
            is_missing and f"missing value: set task= {options_line('task', groups['task'])}",
            is_missing and "output_dir" not in given and "missing value: set output_dir=",
            is_missing and not {"model_dir", "decoder"} & {*given, *choices} and missing_model(),
            [
                f"{key}= is given twice; expected one text, or input=FILE for several"
                for key in verbatim
                if num_given[key] > 1
            ],
            [line for one in own if (line := configuration.refusal(one))],
        )
        for one in changes:
            if one.key not in groups:
                OmegaConf.update(composed, re.sub(r"^task\.", task, one.key), one.value, merge=True, force_add=True)
        plain: JsonObject = OmegaConf.to_container(composed, resolve=True)  # type: ignore[assignment]
    plain |= verbatim
    if "task_changes" in fields:
        plain.setdefault("task_changes", {})
    if "explicit_keys" in fields:
        more = _keys_of_experiment(directories, choices["experiment"]) if "experiment" in choices else []
        plain["explicit_keys"] = [*(one.key for one in own), *more]
    return plain


def _with_options(command: str, choices: Mapping[str, str], directories: Sequence[Path]) -> DictConfig:
    """Compose a command's file with options of its groups, and those that come with them."""
    beside = {"attention": "transformer"} if choices.get("decoder") == "transformer" else {}
    task = {"task": "sequence"} if command == "finetune" else {}  # if it is missing, to check the other settings
    options = [f"{group}={option}" for group, option in {**task, **beside, **choices}.items()]
    composed = hydra_compose(command, overrides=[*options, *_searchpath(directories)])
    if beside and OmegaConf.select(composed, "model.hidden_act") == "gelu":
        OmegaConf.update(composed, "model.hidden_act", "relu")  # Vaswani et al. 2017, equation 2
    return composed


def _of_size(
    command: str, changes: Sequence[Assignment], choices: Mapping[str, str], directories: Sequence[Path]
) -> list[Assignment]:
    """List what `conf/from_scratch` sets for a model of this size, in a run that trains it from scratch.

    An experiment states all of its settings, and an option of a group brings its own. The two lengths go together, with the share
    of the second; they are left out if the user sets one of them, or a single step, which cannot have both.
    """
    given = {one.key: one.value for one in changes}
    if command != "pretrain" or "experiment" in choices or given.get("model_dir") is not None:
        return []
    shape = choices.get("model", names.usual_options(command)["model"])
    path = option_file(directories, "from_scratch", _OF_FAMILY.sub("", shape))
    content = parse_yaml(path.read_text(encoding="utf-8")) if path.is_file() else {}
    has_lengths = {*LENGTHS, "segments"} & given.keys() or given.get("steps") == 1
    left_out = choices.keys() - {"model"} | ({*LENGTHS, "final_phase"} if has_lengths else set())
    return [one for one in read_values(command, content) if not left_out & {one.key, names.top_level(one.key)}]


def _implied(command: str, changes: Sequence[Assignment]) -> list[Assignment]:
    """List what the user's settings imply, unless they say otherwise: a token that predicts the next one must not see it."""
    given = {one.key: one.value for one in changes}
    if command != "pretrain" or given.get("objective") != "next_token" or given.get("model_dir") is not None:
        return []
    return read_values(command, {"attention": {"pattern": "causal"}})


def _defaults(command: str, composed: DictConfig, own: Sequence[Assignment], has_task: bool) -> JsonObject:
    """Return the settings before the user's; without a task, those of every task, for changes to the one that the model has."""
    known: JsonObject = OmegaConf.to_container(composed, resolve=False)  # type: ignore[assignment]
    takes_changes = {"task", "task_changes"} & names.fields_of(command).keys() and not has_task
    if takes_changes and any(one.key.startswith("task.") for one in own):
        known["task"] = names.settings_of_tasks()
    return known


def _readable_error(error: Exception) -> InputError:
    """Turn an error from Hydra into one line for the user."""
    reason = " ".join(str(error.__cause__ or error).split())
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
            except (
                HydraException,
                OmegaConfBaseException,
                yaml.YAMLError,
                ValueError,
                TypeError,
                RecursionError,
            ) as error:
                raise _readable_error(error) from None
            finally:
                resolvers.update(before)


def _read_settings(path: Path) -> str:
    """Read a file with settings; a pipe or a device could be endless."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
        raise ValueError(f"expected a regular file of at most {MAX_BYTES // 1_000_000} MB")
    return path.read_text(encoding="utf-8")


def check_own_files(directories: Sequence[Path]) -> None:
    """Refuse files in the user's directory that are not settings, with clearer messages than Hydra's."""
    for directory in directories[1:]:
        for path in sorted(directory.glob("*/*.yaml")):
            content = _read_own_file(path)
            if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
                raise InputError(f"{path}: expected lines 'key: value', got {content!r:.40}; correct it")
            if hydra := [key for key in [*content, *_chosen_groups(content)] if key.partition("/")[0] == "hydra"]:
                raise InputError(
                    f"{path}: {hydra[0]}: bertkit composes settings with Hydra, but sets it up itself; remove it"
                )


def _read_own_file(path: Path) -> object:
    kinds = (yaml.YAMLError, ValueError, RecursionError)
    with refusing(kinds, lambda error: f"{path}: not YAML ({in_one_line(error)}); correct it"):
        return yaml.safe_load(_read_settings(path))


def _chosen_groups(content: JsonObject) -> list[str]:
    """List the groups in the defaults of a file."""
    defaults = content.get("defaults") or []
    return [key.removeprefix("override").strip(" /") for one in defaults if isinstance(one, dict) for key in one]


def _keys_of_experiment(directories: Sequence[Path], name: str) -> list[str]:
    """List the groups that an experiment overrides, and the keys that it sets."""
    content = yaml.safe_load(option_file(directories, "experiment", name).read_text(encoding="utf-8"))
    settings = {key: value for key, value in content.items() if key != "defaults"}
    return [*_chosen_groups(content), *_keys_of_values(settings)]


def _keys_of_values(mapping: JsonObject) -> list[str]:
    """List the dotted keys of a nested mapping, without those of groups."""
    return [key for key in dotted_keys(mapping) if not isinstance(at(mapping, key), dict)]


def _searchpath(directories: Sequence[Path]) -> list[str]:
    return [f"hydra.searchpath=['file://{directory}']" for directory in directories[1:]]


def option_lines(group: str, option: str, directories: Sequence[Path]) -> list[str]:
    """Compose one option of a group by itself; return its settings, one line each."""
    with _hydra(directories):
        composed = hydra_compose(None, overrides=[f"+{group}={option}", *_searchpath(directories)])
        plain: JsonObject = OmegaConf.to_container(composed, resolve=True)  # type: ignore[assignment]
    inner = plain[group]
    # dumped inside a list, because YAML ends a document of one scalar with a line "..."
    return [
        f"{group}.{key}: {yaml.safe_dump([at(inner, key)], default_flow_style=True, width=999).strip()[1:-1]}"
        for key in _keys_of_values(inner)
    ]
