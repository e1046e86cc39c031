"""The short form of a command: `bertkit finetune reviews.csv --text review --label stars`."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bertkit.base.errors import InputError
from bertkit.settings.reading.assignments import as_word
from bertkit.settings.reading.hints import unknown_option

OPTIONS = ("--text", "--label", "--pair", "--dev", "--test", "--output")


def to_words(
    command: str, short: Mapping[str, str], words: Sequence[str], options: Sequence[tuple[str, str]]
) -> list[str]:
    """Replace words that are files, and add the options, pairs of name and value; `short` has the setting of each option."""
    files = [("", word) for word in words if short and "=" not in word and Path(word).is_file()]
    if len(files) > 1:
        raise InputError(f"'{files[1][1]}': expected one file; for a second one write --dev {files[1][1]}")
    settings = dict[str, str]()
    for option, value in [*files, *options]:
        if option not in short:
            raise InputError(unknown_option(command, option, value))
        is_file, is_number = short[option].startswith("task.files."), re.fullmatch("-?[0-9]{1,9}", value)
        plain = os.path.abspath(value) if is_file else int(value) if is_number else value
        settings[short[option]] = as_word(plain)
    return [*(f"{key}={word}" for key, word in settings.items()), *(word for word in words if ("", word) not in files)]
