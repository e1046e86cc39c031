"""The names of settings: those of each command, and synonyms and plug-ins, which are replaced by them."""

import contextlib
import dataclasses
import functools
import importlib
import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence

from bertkit.base import plugins
from bertkit.base.errors import InputError
from bertkit.base.text_files import JsonObject
from bertkit.base.typed_settings import conf_dir, dotted_keys, option_names, read_conf, refuse
from bertkit.settings.command import VERBATIM, WORDS, Command, CommandSettings
from bertkit.settings.reading.assignments import Assignment, Plain

# the setting that each of them means, in a command that has this setting
_SYNONYMS = {
    "checkpoint": "model_dir",
    "init_from": "model_dir",
    "next_sentence": "segments.next_sentence",
    "column": "text_column",  # of embed
    "task.columns.text": "text_column",
    "text_column": "task.columns.text",
    "text_pair_column": "task.columns.text_pair",
    "label_column": "task.columns.label",
}


@functools.cache
def command_of(name: str) -> Command:
    """Import the record of a command, such as `bertkit.settings.pretrain.COMMAND`."""
    command: Command = importlib.import_module(f"bertkit.settings.{name}").COMMAND
    return command


def names_of_rows(command: str) -> str:
    """Return the advice how rows from Python are passed to a command; "" if it takes none."""
    parameters = " or ".join(f"{name}=" for name in command_of(command).rows)
    return parameters and f"; pass rows as {parameters}"


def schema_of(command: str) -> type[CommandSettings]:
    """Import the dataclass of a command's settings, such as `PretrainSettings` from `bertkit.settings.pretrain`."""
    return command_of(command).settings


@functools.cache
def fields_of(command: str) -> dict[str, Mapping[str, object]]:
    """Return the metadata of each field of a command's settings."""
    return {field.name: field.metadata for field in dataclasses.fields(schema_of(command))}


def is_verbatim(command: str, key: str) -> bool:
    """Whether the value of a key bypasses Hydra."""
    return fields_of(command).get(key) in (VERBATIM, WORDS)


@functools.cache
def settings_of(command: str) -> frozenset[str]:
    """Return the top-level settings and groups of a command, such as `steps` and `optimizer`."""
    content = read_conf(command)
    options = _pop_options(content)
    names = frozenset({*options, *content})
    return names | settings_of("finetune") - {"task", "seed"} if command == "glue" else names


def usual_keys(command: str) -> list[str]:
    """Return the dotted names of a command's settings, with those of the usual option of each group."""
    content, options = read_conf(command), option_names([conf_dir()])
    chosen = _pop_options(content)
    groups = {group: read_conf(f"{group}/{name}") for group, name in chosen.items() if name in options[group]}
    return dotted_keys({**groups, **content})


def _pop_options(content: JsonObject) -> dict[str, str]:
    """Take the list of defaults out of a configuration file; return the option of each group."""
    return {group: name for entry in content.pop("defaults") if entry != "_self_" for group, name in entry.items()}


def settings_of_tasks() -> JsonObject:
    """Return the settings of all general tasks together; every task has some of them."""
    tasks = {kind: read_conf(f"task/{kind}") for kind in ("sequence", "tagging", "spans", "generation")}
    columns = {**tasks["generation"]["columns"], **tasks["sequence"]["columns"]}
    own = {kind: tasks[kind][kind] for kind in ("tagging", "spans", "generation")}
    return {**tasks["sequence"], "columns": columns, **own}


def top_level(name: str) -> str:
    """Return the first part of a name: `optimizer` for `optimizer.beta1=0.9`."""
    return name.partition(".")[0].partition("=")[0]


def column_words(command: str) -> dict[str, str]:
    """Return the word by which users name each column of a task, such as `text` for `task.columns.text`."""
    return {
        setting: option.removeprefix("--")
        for option, setting in command_of(command).short.items()
        if setting.startswith("task.columns.") and option.removeprefix("--") not in settings_of(command)
    }


@contextlib.contextmanager
def in_words_of(command: str, typed: Container[str]) -> Iterator[None]:
    """Name columns in errors as the user types them: `text=` for `task.columns.text=`, unless that is `typed`."""
    try:
        yield
    except InputError as error:
        for setting, word in column_words(command).items():
            if setting not in typed:
                error.args = tuple(line.replace(f"{setting}=", f"{word}=") for line in error.args)
        raise


def with_own_names(command: str, assignments: Sequence[Assignment]) -> list[Assignment]:
    """Import the modules in `plugins=`, and give each assignment the name of its setting in this command.

    Synonyms are replaced, and the words of the short form, such as `text=`, and `masking=NAME` with a plug-in's name by `masking.kind=NAME`. Raises
    InputError for a text that is not UTF-8, and for a setting that is set under two of its names.
    """
    wrong = [one.text for one in assignments if re.search("[\0\ud800-\udfff]", one.text)]  # half a character is a byte
    refuse(f"{text}: not UTF-8, or with a NUL; write a text in UTF-8, or rename the file" for text in wrong)
    load_plugins(assignments)
    own = [
        _with_own_name(command, one) for one in assignments if one.key != "plugins" or "plugins" in settings_of(command)
    ]
    for setting in _SYNONYMS.values():
        same = [one.text for one in own if one.key == setting]
        if len(same) > 1:
            raise InputError(f"{' and '.join(same)}: the same setting; set {setting}= once")
    return own


def load_plugins(assignments: Sequence[Assignment]) -> None:
    """Import the modules in `plugins=`."""
    plugins.load(name for one in assignments if one.key == "plugins" for name in names_in(one.value))


def names_in(value: Plain) -> list[str]:
    """Return the names in a value: one name, or a list of them, which is a text in a word such as `plugins=[a,b]`."""
    inner = str(value).strip("[] ")
    return [name.strip("'\" ") for name in inner.split(",")] if inner else []


def _with_own_name(command: str, one: Assignment) -> Assignment:
    """Give an assignment the name of its setting; `data_dir=` with a file is the file of the task."""
    file = command_of(command).short.get("", "")
    if one.key == "data_dir" and file.startswith("task.files.") and os.path.isfile(str(one.value)):
        return dataclasses.replace(one, key=file, value=os.path.abspath(str(one.value)))
    return dataclasses.replace(one, key=_own_name(command, one))


def _own_name(command: str, one: Assignment) -> str:
    slot, known = plugins.SLOTS.get(one.key), settings_of(command)
    if slot is not None and one.value not in option_names([conf_dir()]).get(one.key, ()):
        return slot.setting if plugins.exists(one.key, one.value) else one.key
    if one.key not in known and (setting := command_of(command).short.get(f"--{one.key}")):
        return setting
    meant = _SYNONYMS.get(one.key, one.key)
    return meant if top_level(meant) in known else one.key
