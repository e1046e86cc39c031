"""What is wrong with a name that a command does not know, and what the user may mean by it.

A hint translates a name from another tool, names the command that has the setting, or the most similar name.
"""

import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertkit import COMMANDS
from bertkit.base import plugins
from bertkit.base.errors import closest, named, nearest
from bertkit.base.text_files import JsonObject
from bertkit.base.typed_settings import at, dotted_keys
from bertkit.settings.reading import answers, synonyms
from bertkit.settings.reading.assignments import Assignment, Plain
from bertkit.settings.reading.names import (
    command_of,
    in_place,
    meaning_of,
    settings_of,
    top_level,
    usual_keys,
    way_of_texts,
)

OPTIONS = ("--help", "--multirun", "--debug", "--version", "--info", "--config-dir", "--config", "--cfg")
_OWN_DATA = ("classification", "regression", "ner", "qa", "choice", "translation", "generation")  # tasks for any files
# the setting by which a later command takes the output_dir of a command
_TAKEN_AS = {"prepare": "data_dir", "pretrain": "model_dir", "finetune": "model_dir"}
_OF_DECODER = "since otherwise model_dir= defines it; pass it to pretrain"
# groups that are null here: when they have settings
_ABSENT = {
    "segments": "prepare stores tokens only; add segments=google, or pass it to pretrain",
    "attention": f"only for decoder=transformer {_OF_DECODER}",
    "model": f"only for decoder=transformer {_OF_DECODER}",
    "norm": f"only for decoder=transformer, with norm=post or norm=pre, {_OF_DECODER}",
}


def _meanings(name: str) -> list[str]:
    """Return the settings that a name may mean in another tool, also with a group before it."""
    return synonyms.meanings(name.rpartition(".")[2])


def _with_value(setting: str, value: str) -> str:
    """Return the assignment of a value, unless the setting has one."""
    return setting if "=" in setting else f"{setting}={in_place(setting, value)}"


def _translated(command: str, key: str, value: str) -> str:
    """Translate a name from another tool into an assignment of this command; "" if no setting has its meaning."""
    for setting in _meanings(key):
        if top_level(setting) in settings_of(command) and setting != key:
            return _with_value(setting, value)
    return ""


def _meant(command: str, keys: Sequence[str], name: str, value: str) -> str:
    """Return the assignment that an unknown name means: translated, or with its group, one of `keys`; "" for none."""
    in_groups = [_with_value(key, value) for key in keys if key.endswith(f".{name}")]
    return _translated(command, name, value) or " or ".join(in_groups)


def _elsewhere(command: str, key: str, value: str) -> str:
    """Name the command that has a setting, and how its result is passed on; "" if none has it, or this command has it too."""
    for name in (key, *_meanings(key)):
        owners = [other for other in COMMANDS if top_level(name) in settings_of(other)]
        if not owners or command in owners:
            continue
        earlier = [other for other in owners if COMMANDS.index(other) < COMMANDS.index(command)]
        owner = earlier[-1] if earlier else owners[0]
        taken_as = _TAKEN_AS.get(owner)
        then = f", whose output_dir is {taken_as}= here" if earlier and taken_as in settings_of(command) else ""
        return f"; pass {_with_value(name, value)} to bertkit {owner}{then}"
    return ""


def option_of(command: str, option: str, value: str) -> tuple[str, str]:
    """Return the key of an option, and its setting; --model with a directory or a model of the hub is model_dir, not a size."""
    key = option.lstrip("-").replace("-", "_")
    key = "model_dir" if key == "model" and ("/" in value or os.path.isdir(value)) else key
    return key, setting_of_option(command, key)


def setting_of_option(command: str, option: str) -> str:
    """Return the setting that an option such as --seed or --lr means, or its assignment, as for --fp16; "" for none."""
    if command not in COMMANDS:
        return ""
    key, settings = option.lstrip("-").replace("-", "_"), settings_of(command)
    slot = plugins.SLOTS.get(key)
    if top_level(key) in settings or (slot is not None and top_level(slot.setting) in settings):
        return key
    return meaning_of(command, key)


def unknown_option(command: str, option: str, value: str) -> str:
    """Return the error message for an unknown option such as --lr; the command may be unknown too."""
    key, has_value, own = option.lstrip("-").partition("=")
    key, value = key.replace("-", "_"), (own if has_value else value) or "..."
    if command not in COMMANDS:
        return f"unknown option {option}{nearest(option, OPTIONS)}; see bertkit --help"
    keys = usual_keys(command)
    if meant := _meant(command, keys, key, value):
        return f"unknown option {option}; here it is {meant}"
    known = [*OPTIONS, *command_of(command).short, *(f"--{key}" for key in keys)]
    return f"unknown option {option}{nearest(option, known)}; see bertkit {command} --help"


def options_line(group: str, options: Sequence[str]) -> str:
    """Return the options of a group, in brackets; of the tasks, those for one's own data."""
    if group != "task":
        plug_in = ", or a plug-in whose module is in plugins=" if group in plugins.SLOTS else ""
        return f"(one of {', '.join(options)}{plug_in})"
    return f"(for your own data {', '.join(_OWN_DATA)}; `bertkit finetune --help` lists the benchmarks)"


def setting_of_word(command: str, word: str) -> str:
    """Return the setting of a file, a folder such as a model, or a text of several words, that stands alone; "" if none takes it."""
    path = os.path.expanduser(word)  # os.path takes a text of any length for no file
    is_model = any(os.path.isfile(f"{path}/{name}") for name in ("config.json", "config.yaml", "bert_config.json"))
    is_file, is_folder = os.path.isfile(path), os.path.isdir(path) and not is_model
    is_text = " " in word and not os.path.exists(path)
    places = {"model_dir": is_model, "index": is_file and path.endswith(".db"), "text": is_text, "question": is_text}
    places |= {
        "input": is_file or word == "-",
        "task.files.dev": is_file,
        "data_dir": is_folder,
        "corpus.path": os.path.exists(path),
    }
    known = settings_of(command)
    return next((name for name, fits in places.items() if fits and top_level(name) in known), "")


def unusable_word(command: str, word: str) -> str:
    """Return the error message for a word that is neither a setting nor a file or folder that the command takes."""
    if os.path.exists(word):
        needs = command_of(command).needs
        return f"{word:.200}: bertkit {command} cannot use it (it needs: {needs}); see bertkit {command} --help"
    if Path(word).suffix or "/" in word:
        return f"{word:.200}: no such file or folder"
    if " " in word and (way := way_of_texts(command)):
        return f"'{word:.200}': {way}"
    texts = [f"{name}={word:.200}" for name in ("text", "question") if name in settings_of(command)]
    text = f"; for a text of one word write {texts[0]}" if texts else ""
    place = next((name for name in ("output_dir", "output") if name in settings_of(command)), "model_dir")
    return f"'{word:.200}': expected key=value or group=option, such as {place}=runs/mine{text}"


@dataclass(frozen=True)
class Configuration:
    """The names in the configuration of a command: its settings with their defaults, and the options of its groups."""

    command: str
    defaults: JsonObject
    groups: Mapping[str, list[str]]
    given: Mapping[str, Plain]  # what the user sets

    @functools.cached_property
    def keys(self) -> list[str]:
        """The dotted keys; a group comes before its keys."""
        return dotted_keys(self.defaults)

    def refusal(self, one: Assignment) -> str | None:
        """Return the error message for an assignment whose key or option does not exist; None if both exist."""
        key, (parent, _, leaf) = one.key, one.key.rpartition(".")
        is_known = key in self.groups or key in self.keys or self._is_of_plugin(key)
        if one.fault is not None and (is_known or not key):
            return one.fault
        if key in self.groups:
            return self._wrong_option(one)
        is_option = leaf in ("kind", "name") and one.value in self.groups.get(parent, ())
        if is_option and one.value != at(self.defaults, key):
            return f"{one.text}: leaves the other values of {parent} unchanged; choose {parent}={one.value}"
        if is_known:
            return self._not_a_group(one) or self._value_of_other_tool(one)
        if parent in _ABSENT.keys() & self.groups.keys() and self.defaults.get(parent) is None:
            return f"'{key}': {_ABSENT[parent]}"
        if key == "segments.next_sentence":
            return f"'{one.text}': the instances of segments=google are for nsp, as in the original; leave it out"
        return f"unknown key '{key}'{self._hint(one)}"

    def _current(self, key: str) -> object:
        """Return the value of a setting: the user's, or the default, which may be that of another one."""
        value = self.given.get(key, at(self.defaults, key))
        inner = re.fullmatch(r"\$\{([\w.]+)\}", value) if isinstance(value, str) else None
        return self._current(inner[1]) if inner else value

    def _is_of_plugin(self, key: str) -> bool:
        return plugins.has_setting(key) and top_level(key) in self.keys

    def _not_a_group(self, one: Assignment) -> str | None:
        """Return the error message for one value in place of a group of settings; None for any other."""
        group = at(self.defaults, one.key)
        if not isinstance(group, dict) or not group or one.value is None or isinstance(one.value, dict):
            return None
        return f"'{one.text}': {one.key} has settings of its own, {named(group)}"

    def _value_of_other_tool(self, one: Assignment) -> str | None:
        """Return the error message for a value such as float16 in precision=float16; None for any other."""
        assigned = f"{one.key}={one.value}"
        meant = [f"here it is {name}" for name in synonyms.meanings(str(one.value)) if name.startswith(f"{one.key}=")]
        answer = synonyms.advice(assigned) or "".join(meant[:1])
        return f"unknown value {assigned}; {answer}" if answer and answer != f"here it is {assigned}" else None

    def _hint(self, one: Assignment) -> str:
        """Return what the user may mean by an unknown key, the likeliest that is found."""
        key, value, (group, _, leaf) = one.key, one.text.partition("=")[2], one.key.rpartition(".")
        if answer := answers.answer(key, one.value, self._current):
            return f"; {answer}"
        if synonyms.truth_of(value) is False and any("=" in meant for meant in _meanings(key)):
            return f"; it is so unless {_meanings(key)[0]} is set; leave it out"
        if meant := _meant(self.command, self.keys, key, value):
            return f"; here it is {meant}"
        if _meanings(key) and self.command not in _TAKEN_AS:
            return f"; bertkit {self.command} has no such setting"
        if elsewhere := _elsewhere(self.command, key, value):
            return elsewhere
        if own := [name.removeprefix(f"{group}.") for name in self.keys if name.startswith(f"{group}.")]:
            return nearest(leaf, own) or f"; {group} has only {named(own)}"
        known = {name.rpartition(".")[2]: name for name in reversed(self.keys)}
        known |= {name: name for name in (*self.keys, *self.groups) if name != group}
        similar = closest(key, known)
        return f"; did you mean '{known[similar]}'?" if similar else f"; see bertkit {self.command} --help"

    def _wrong_option(self, one: Assignment) -> str | None:
        """Return the error message for an option that a group does not have."""
        key, value, options = one.key, one.value, self.groups[one.key]
        if value in options or (value is None and self.defaults.get(key) is None):
            return None
        if not isinstance(value, str):
            return f"'{one.text}': {key}= takes a name {options_line(key, options)}; its settings are {key}.*"
        options = [*options, *plugins.plugins_of(key)]
        hint = self._option_hint(key, value, options)
        return f"unknown option {key}={value}{hint} {options_line(key, options)}"

    def _option_hint(self, group: str, option: str, options: Sequence[str]) -> str:
        """Return what the user may mean by an unknown option, the likeliest that is found; "" for nothing."""
        own = [meant for meant in _meanings(option) if meant.startswith(f"{group}=")]
        if own:
            return f"; here it is {own[0]}"
        if similar := nearest(option, options):
            return similar
        meant = _translated(self.command, group, option)
        return meant and f"; here it is {meant}"
