"""The names of settings: those of each command, and synonyms and plug-ins, which are replaced by them."""

import contextlib
import dataclasses
import functools
import importlib
import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TypeVar

from bertkit.base import plugins
from bertkit.base.errors import InputError, user_names
from bertkit.base.text_files import JsonObject
from bertkit.base.typed_settings import conf_dir, dotted_keys, option_names, read_conf, refuse
from bertkit.settings.command import VERBATIM, WORDS, Command, CommandSettings
from bertkit.settings.reading import synonyms
from bertkit.settings.reading.assignments import Assignment, Plain, keys_of

ValueT = TypeVar("ValueT")


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


@functools.cache
def _groups_of(command: str) -> frozenset[str]:
    """Return the groups of a command that take no value themselves, such as `checkpoint` of pretrain."""
    return frozenset(name for name, content in read_conf(command).items() if isinstance(content, Mapping))


def usual_options(command: str) -> dict[str, str]:
    """Return the option that each group of a command has unless the user chooses another one."""
    return _pop_options(read_conf(command))


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
    """Name settings in messages as the user types them: `text=` for `task.columns.text=`, unless that is `typed`."""
    words = {setting: word for setting, word in column_words(command).items() if setting not in typed}
    before = user_names.set({**words, **command_of(command).user_names})
    try:
        yield
    finally:
        user_names.reset(before)


def with_own_names(command: str, assignments: Sequence[Assignment]) -> list[Assignment]:
    """Import the modules in `plugins=`, and give each assignment the name of its setting in this command.

    Synonyms are replaced, and the words of the short form, such as `text=`, and `masking=NAME` with a plug-in's name by `masking.kind=NAME`. Raises
    InputError for a text that is not UTF-8, and for a setting that is set under two of its names.
    """
    wrong = [one.text for one in assignments if re.search("[\0\ud800-\udfff]", one.text)]  # half a character is a byte
    refuse(f"{text}: not UTF-8, or with a NUL; write a text in UTF-8, or rename the file" for text in wrong)
    load_plugins(assignments)
    typed = [one for one in assignments if one.key != "plugins" or "plugins" in settings_of(command)]
    _refuse_column_alone(command, typed)
    own = [_with_own_name(command, one) for one in typed]
    for setting in keys_of(own):
        same = [one for one, meant in zip(typed, own, strict=True) if meant.key == setting]
        if len(keys_of(same)) > 1:
            raise InputError(f"{' and '.join(one.text for one in same)}: the same setting; set {setting}= once")
    return own


def way_of_texts(command: str) -> str:
    """Return how texts themselves, not their file, are passed to a command that has only input=; "" for another command."""
    if command_of(command).short.get("") != "input" or "text" in settings_of(command):
        return ""
    return f"pass texts on standard input, as in echo 'a text' | bertkit {command} input=- output=-, or from Python as input=[...]"


def _refuse_column_alone(command: str, assignments: Sequence[Assignment]) -> None:
    """Refuse the column of an input that is missing: the user may mean a text."""
    way, keys = way_of_texts(command), keys_of(assignments)
    columns = [one.text for one in assignments if one.key in ("text", command_of(command).short.get("--text"))]
    refuse(
        [
            f"{text}: the column of a file, which is missing; set input=, or {way}"
            for text in columns
            if way and "input" not in keys
        ]
    )


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
    slot, known = plugins.SLOTS.get(one.key), settings_of(command)
    if slot is not None and one.value not in option_names([conf_dir()]).get(one.key, ()):
        return dataclasses.replace(one, key=slot.setting if plugins.exists(one.key, one.value) else one.key)
    if one.key not in known and (setting := command_of(command).short.get(f"--{one.key}")):
        return dataclasses.replace(one, key=setting)
    if str(one.value).startswith("{"):  # the settings of a group
        return one
    setting, is_flag, own = meaning_of(command, one.key).partition("=")
    if is_flag:  # such as fp16
        return dataclasses.replace(one, key=setting, value=own) if synonyms.truth_of(one.value) else one
    return dataclasses.replace(one, key=setting or one.key, value=in_place(setting, one.value))


def in_place(setting: str, value: ValueT) -> ValueT | str:
    """Return the value of a setting; a file of a task is absolute, since the others are in data_dir."""
    return os.path.abspath(str(value)) if setting.startswith("task.files.") else value


def meaning_of(command: str, name: str) -> str:
    """Return the setting of a command that a name means in other tools, or its assignment, as for fp16; "" for a name that is known."""
    known = settings_of(command) - _groups_of(command)
    meant = (setting for setting in synonyms.meanings(name) if top_level(setting) in settings_of(command))
    return "" if name in known else next(meant, "")
