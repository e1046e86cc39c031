"""The short form of a command, as settings: `bertkit finetune reviews.csv --text review --label stars`."""

import os
from collections.abc import Sequence
from pathlib import Path

from bertkit.base.errors import InputError
from bertkit.settings.names import unknown_option

OPTIONS = ("--text", "--label", "--pair", "--dev", "--test", "--output")
_COLUMNS = {"--text": "task.columns.text", "--pair": "task.columns.text_pair"}
_TRAINING = {"--label": "task.columns.label", "--dev": "task.files.dev", "--test": "task.files.test"}
# for each command: the setting of a word that is a file, and of each option
COMMANDS = {
    "finetune": {"": "task.files.train", **_COLUMNS, **_TRAINING, "--output": "output_dir"},
    "predict": {"": "input", **_COLUMNS, "--output": "output"},
    "embed": {"": "input", "--text": "text_column", "--output": "output"},
}


def to_settings(command: str, overrides: Sequence[str], options: Sequence[tuple[str, str]]) -> list[str]:
    """Replace words that are files, and add the options, which are pairs of name and value.

    Raises:
        InputError: the command has no such option, an option has no value, or there are two files.
    """
    settings = COMMANDS.get(command, {})
    files = [("", word) for word in overrides if settings and "=" not in word and Path(word).is_file()]
    if len(files) > 1:
        raise InputError(f"'{files[1][1]}': expected one file; for a second one write --dev {files[1][1]}")
    if not files and not options:
        return list(overrides)
    from bertkit.settings.compose import to_overrides

    values: dict[str, str | int] = {}
    for option, value in [*files, *options]:
        if option not in settings or not value:
            raise InputError(f"{option}: expected a value" if not value else unknown_option(command, option, value))
        is_file, is_number = settings[option].startswith("task.files."), value.lstrip("-").isdigit()
        values[settings[option]] = os.path.abspath(value) if is_file else int(value) if is_number else value
    return [*to_overrides(values), *(word for word in overrides if ("", word) not in files)]
