"""The short form of a command: `bertkit finetune reviews.csv --text review --label stars`."""

import os
import re
from collections.abc import Container, Iterable, Sequence

from bertkit.base.errors import InputError
from bertkit.base.hub_ids import DEFAULT_MODEL
from bertkit.base.typed_settings import conf_dir, option_names
from bertkit.settings.reading.assignments import as_word
from bertkit.settings.reading.hints import setting_of_option, setting_of_word, unknown_option
from bertkit.settings.reading.names import column_words, command_of, in_place, is_verbatim, settings_of

OPTIONS = ("--text", "--label", "--pair", "--dev", "--test", "--output")


def with_values(arguments: Iterable[str]) -> list[str]:
    """Join an option and its value, such as `--output -o.npy`, if that begins with a dash."""
    joined = list[str]()
    for argument in arguments:
        is_dashed = argument[:1] == "-" and argument[:2] not in ("-", "--")
        if is_dashed and joined and joined[-1] in ("--config", "--config-dir", *OPTIONS):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def to_words(command: str, words: Sequence[str], options: Sequence[tuple[str, str]]) -> list[str]:
    """Replace words that are files or models, and the options of the short form, pairs of name and value, by settings."""
    settings, others = dict[str, str | int](), list[str]()
    for word in words:
        setting = _setting_of(command, word)
        if "=" not in word and _is_second_place(command, settings):
            setting = "output_dir"
        if setting in settings:
            more = f"for a second file write --dev {word}" if setting == "task.files.train" else "leave one out"
            raise InputError(f"'{word}': {setting}= is {settings[setting]} already; {more}")
        if setting:
            settings[setting] = in_place(setting, word)
        else:
            others.append(word)
    record = command_of(command)
    file = record.short.get("", "")
    has_file = file in settings or any(word.startswith(f"{file}=") for word in others)
    short = record.short if has_file else {**record.short, **record.short_without_file}
    for option, value in options:
        setting = short.get(option) or setting_of_option(command, option)
        if (
            option == "--model"
            and "model_dir" in settings_of(command)
            and value not in option_names([conf_dir()])["model"]
        ):
            setting, value = "model_dir", DEFAULT_MODEL if value.lower() == "minilm" else value
        if not setting:
            raise InputError(unknown_option(command, option, value))
        placed = in_place(setting, value)
        settings[setting] = int(value) if placed == value and re.fullmatch("-?[0-9]{1,9}", value) else placed
    short_names = column_words(command) if settings else {}  # read with the configuration, which help does without
    named = {short_names.get(key, key): value for key, value in settings.items()}
    return [
        *(f"{key}={value if is_verbatim(command, key) else as_word(value)}" for key, value in named.items()),
        *others,
    ]


def _is_second_place(command: str, settings: Container[str]) -> bool:
    """Whether a word is where the command writes to, as in `export RUN OUT`."""
    return (
        command_of(command).positions[1:2] == ("output_dir",)
        and "model_dir" in settings
        and "output_dir" not in settings
    )


def _setting_of(command: str, word: str) -> str:
    """Return the setting of a word without a key, such as a file; "" if there is none."""
    if "=" in word:
        return ""
    file = command_of(command).short.get("")
    return file if file and os.path.isfile(word) else setting_of_word(command, word)
