"""The names of settings: the settings of each command, synonyms, and hints for unknown names.

A hint translates a name from another tool, or names the command that has the setting.
"""

import dataclasses
import functools
import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bertkit.base import plugins
from bertkit.base.errors import InputError, nearest
from bertkit.base.text_files import JsonObject, parse_yaml
from bertkit.base.typed_settings import at, conf_dir, dotted_keys, option_names, read_conf, refuse
from bertkit.settings.command import VERBATIM, WORDS, CommandSettings
from bertkit.settings.reading.assignments import Assignment

BESIDE = {"decoder=transformer": {"attention": "transformer"}}  # options of other groups that come with an option
OPTIONS = ("--help", "-h", "-m", "--multirun", "--debug", "--version", "--info")
VALUED_OPTIONS = ("--config-dir", "--config", "--cfg")
MODEL_DIR = "model_dir"
MODEL_DIR_SYNONYMS = ("checkpoint", "init_from")
_NEXT_SENTENCE = "segments.next_sentence"
_SYNONYMS = {
    MODEL_DIR: MODEL_DIR_SYNONYMS,
    _NEXT_SENTENCE: ("next_sentence",),
    "text_column": ("column", "task.columns.text"),  # of embed
    **{f"task.columns.{name}": (f"{name}_column",) for name in ("text", "text_pair", "label")},
}

_FILES = {"train_file": "train", "validation_file": "dev", "dev_file": "dev", "eval_file": "dev", "test_file": "test"}
_OWN_DATA = ("classification", "regression", "ner", "qa", "choice", "translation", "generation")  # tasks for any files
# commands in their usual order, and the setting by which a later command takes their output_dir
_PIPELINE = {"prepare": "data_dir", "pretrain": MODEL_DIR, "finetune": MODEL_DIR}


@functools.cache
def other_tools() -> dict[str, tuple[str, ...]]:
    """Return the settings that each name from another tool may mean, from names.yaml."""
    table = parse_yaml(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return {name: tuple(settings.split()) for settings, names in table.items() for name in names.split()}


def schema_of(command: str) -> type[CommandSettings]:
    """Import the dataclass of a command's settings, such as `PretrainSettings` from `bertkit.settings.pretrain`."""
    module = importlib.import_module(f"bertkit.settings.{command}")
    schema: type[CommandSettings] = vars(module)[f"{command.capitalize()}Settings"]
    return schema


@functools.cache
def fields_of(command: str) -> dict[str, Mapping[str, object]]:
    """Return the metadata of each field of a command's settings."""
    return {field.name: field.metadata for field in dataclasses.fields(schema_of(command))}


def is_verbatim(command: str, key: str) -> bool:
    """Whether the value of a key bypasses Hydra."""
    return fields_of(command).get(key) in (VERBATIM, WORDS)


def canonical_words(command: str, words: Sequence[str]) -> list[str]:
    """Replace synonyms in words `key=value` by the setting's own name; refuse words that are not UTF-8."""
    refuse_bytes(words)
    words = with_plugins(command, words)
    keys = [own_name(command, word.partition("=")[0]) for word in words]
    refuse_twice(keys, words)
    return [key + word[len(word.partition("=")[0]) :] for key, word in zip(keys, words, strict=True)]


def refuse_bytes(words: Sequence[str]) -> None:
    """Raise InputError for words that are not UTF-8, or have a NUL."""
    wrong = [word for word in words if re.search("[\0\ud800-\udfff]", word)]  # half a character is a byte
    refuse(f"{word}: not UTF-8, or with a NUL; write a text in UTF-8, or rename the file" for word in wrong)


def own_name(command: str, key: str) -> str:
    """Return the name of a setting, if the key is a synonym and the command has this setting; else the key."""
    owners = (
        name for name, synonyms in _SYNONYMS.items() if key in synonyms and _top_level(name) in settings_of(command)
    )
    return next(owners, key)


def refuse_twice(keys: Sequence[str], words: Sequence[str]) -> None:
    """Raise InputError if a setting with synonyms is set twice."""
    for setting in _SYNONYMS:
        same = [word for key, word in zip(keys, words, strict=True) if key == setting]
        if len(same) > 1:
            raise InputError(f"{' and '.join(same)}: the same setting; set {setting}= once")


def with_plugins(command: str, words: Sequence[str]) -> list[str]:
    """Import the modules in `plugins=`, and turn `masking=NAME` with a plug-in's name into `masking.kind=NAME`."""
    pairs = [word.partition("=")[::2] for word in words]
    plugins.load(name for key, value in pairs if key == "plugins" for name in _listed(value))
    return [
        plugin_key(key, value) + word[len(key) :]
        for (key, value), word in zip(pairs, words, strict=True)
        if key != "plugins" or key in settings_of(command)
    ]


def _listed(value: str) -> list[str]:
    """Return the texts of a list such as `[my_plugins]`."""
    inner = value.strip("[] ")
    return [name.strip("'\" ") for name in inner.split(",")] if inner else []


def plugin_key(key: str, value: object) -> str:
    """Return `masking.kind` for the group `masking` and the name of a plug-in; any other key as it is."""
    slot = plugins.SLOTS.get(key)
    if slot is None or value in option_names([conf_dir()]).get(key, ()):
        return key
    return slot.setting if plugins.exists(key, value) else key


@functools.cache
def settings_of(command: str) -> frozenset[str]:
    """Return the top-level settings and groups of a command, such as `steps` and `optimizer`."""
    content = read_conf(command)
    groups = [group for entry in content.pop("defaults", []) if isinstance(entry, dict) for group in entry]
    names = frozenset({*content, *groups})
    return names | settings_of("finetune") - {"task", "seed"} if command == "glue" else names


def settings_of_tasks() -> JsonObject:
    """Return the settings of all general tasks together; every task has some of them."""
    tasks = {kind: read_conf(f"task/{kind}") for kind in ("sequence", "tagging", "spans", "generation")}
    columns = {**tasks["generation"]["columns"], **tasks["sequence"]["columns"]}
    own = {kind: tasks[kind][kind] for kind in ("tagging", "spans", "generation")}
    return {**tasks["sequence"], "columns": columns, **own}


def unknown_option(command: str | None, option: str, value: str) -> str:
    """Return the error message for an unknown option such as --lr; `command` is None if it is unknown too."""
    key, has_value, own = option.lstrip("-").partition("=")
    key, value = key.replace("-", "_"), (own if has_value else value) or "..."
    if command is not None:
        setting = _translated(command, key, value)
        if setting is None and _top_level(key) in settings_of(command):
            setting = f"{key}={value}"
        if setting is not None:
            return f"unknown option {option}; settings have no dashes, write {setting}{_global_batch(setting, {})}"
    return f"unknown option {option}{nearest(option, (*OPTIONS, *VALUED_OPTIONS))}; see bertkit --help"


def refusal(
    command: str, one: Assignment, defaults: Mapping[str, object], groups: Mapping[str, list[str]]
) -> str | None:
    """Return the error message for an assignment whose key or option does not exist; None if both exist."""
    keys, key, text, value = dotted_keys(defaults), one.key, one.text, one.value
    keys += [key] if plugins.has_setting(key) and key.partition(".")[0] in keys else []
    parent, _, leaf = key.rpartition(".")
    if one.fault and (key in keys or key in groups or not key):
        return one.fault
    if key in groups:
        if value in groups[key] or (value is None and defaults.get(key) is None):
            return None
        if isinstance(value, (dict, list)):
            return f"'{text}': {key}= takes a name {options_line(key, groups[key])}; its settings are {key}.*"
        options = [*groups[key], *plugins.plugins_of(key)]
        hint = nearest(value, options) if isinstance(value, str) else ""
        meant = other_tools().get(str(value).lower().replace("-", "_"), ("",))[0]
        hint = f"; here it is {meant}" if meant.startswith(f"{key}=") else hint
        if key == "model" and command == "finetune" and not hint:
            hint = f"; a model to start from is model_dir={value}"
        return f"unknown option {key}={value}{hint}{'' if hint and key == 'task' else f' {options_line(key, options)}'}"
    if leaf in ("kind", "name") and value in groups.get(parent, ()):
        return f"{text}: leaves the other values of {parent} unchanged; choose {parent}={value}"
    if key in keys:
        return None
    if parent == "segments" and defaults.get("segments", "") is None:
        return f"'{key}': prepare stores tokens only; add segments=google, or pass it to pretrain"
    if parent in ("attention", "norm") and parent in groups and defaults.get(parent) is None:
        beside = ", with norm=post or norm=pre," if parent == "norm" else ""
        return (
            f"'{key}': only for decoder=transformer{beside} since otherwise model_dir= defines it; pass it to pretrain"
        )
    if key == _NEXT_SENTENCE:
        return f"'{text}': the instances of segments=google are for nsp, as in the original; leave it out"
    siblings = [known[len(parent) + 1 :] for known in keys if parent and known.startswith(f"{parent}.")]
    leaves = dict.fromkeys(known.rpartition(".")[2] for known in keys)
    hint = _advice(command, key, text.partition("=")[2], defaults) or nearest(leaf, siblings)
    hint = hint or nearest(key, [*keys, *groups]) or nearest(leaf.rpartition("/")[2], leaves)
    return f"unknown key '{key}'{hint or f'; see bertkit {command} --help'}"


def _advice(command: str, key: str, value: str, defaults: Mapping[str, object]) -> str | None:
    """Name the setting that an unknown key means here, or the command that has such a setting; None if there is none."""
    setting = _translated(command, key, value)
    if setting is not None:
        return f"; here it is {setting}{_global_batch(setting, defaults)}"
    candidates = other_tools().get(key.rpartition(".")[2], ())
    if candidates and command not in _PIPELINE:
        return f"; bertkit {command} has no such setting"
    commands = [*_PIPELINE, *sorted(path.stem for path in conf_dir().glob("*.yaml") if path.stem not in _PIPELINE)]
    for name in (key, *candidates):
        owner = next((other for other in commands if _top_level(name) in settings_of(other)), None)
        if owner is not None and _top_level(name) not in settings_of(command):
            setting, taker = name if "=" in name else f"{name}={value}", _PIPELINE.get(owner)
            comes_before = commands.index(owner) < commands.index(command)
            then = f", whose output_dir is {taker}= here" if taker in settings_of(command) and comes_before else ""
            return f"; pass {setting} to bertkit {owner}{then}"
    return None


def _translated(command: str, key: str, value: str) -> str | None:
    """Translate a name from another tool into a setting of this command; None if it has no such setting."""
    name = key.replace("-", "_").rpartition(".")[2]
    if name in _FILES and "task" in settings_of(command):
        path = Path(value)
        return f"data_dir={path.parent} task.files.{_FILES[name]}={path.name}"
    candidates = other_tools().get(name, ())
    setting = next((other for other in candidates if _top_level(other) in settings_of(command) and other != key), None)
    return setting if setting is None or "=" in setting else f"{setting}={value}"


def _global_batch(setting: str, defaults: Mapping[str, object]) -> str:
    """Return a hint after the setting for a forward pass: the one for a whole step, with its value if the defaults have it."""
    if not setting.startswith("batch.micro_sequences"):
        return ""
    size = at(defaults, "batch.sequences")
    size = at(defaults, size[2:-1]) if isinstance(size, str) else size
    return f"; the global batch is batch.sequences{f'={size}' if size else ''}"


def options_line(group: str, options: Sequence[str]) -> str:
    """Return the options of a group, in brackets; of the tasks, those for one's own data."""
    if group != "task":
        return f"(one of {', '.join(options)})"
    return f"(for your own data {', '.join(_OWN_DATA)}; `bertkit finetune --help` lists the benchmarks)"


def hint_for_word(command: str, word: str) -> str:
    """Return the end of the message about a word without a key: the setting that it may be the value of."""
    path = Path(word)
    places = {"input": path.is_file(), "corpus.path": path.exists(), "task.files.dev": path.is_file()}
    places |= {"data_dir": path.is_dir(), MODEL_DIR: path.exists()}
    known = settings_of(command)
    setting = next((name for name, fits in places.items() if fits and _top_level(name) in known), None)
    if setting is not None:
        return f"; did you mean {setting}={word}?"
    return "; no such file" if path.suffix else ", such as output_dir=runs/mine"


def _top_level(name: str) -> str:
    """Return the first part of a name: `optimizer` for `optimizer.beta1=0.9`."""
    return name.partition(".")[0].partition("=")[0]
