"""Every setting of every command with a wrong letter, and with values that nobody can mean: one line, and nothing done."""

import contextlib
import copy
import dataclasses
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from cases import CONTROL
from conftest import Capsys
from test_cli import GIVEN

from bertkit import commands
from bertkit.base.errors import InputError
from bertkit.base.intervals import Interval
from bertkit.base.typed_settings import at
from bertkit.cli import run
from bertkit.commands import COMMANDS
from bertkit.settings.reading.names import schema_of

EVERY_INPUT = {**GIVEN, "finetune": [*GIVEN["finetune"], "data_dir=x"], "glue": [*GIVEN["glue"], "data_dir=x"]}
VALUES = {
    "a group": "{a: {b: 1}}",
    "a number without end": "1e999",
    "more than memory": "999999999999999999",
    "below nothing": "-7",
    "orders to a terminal": "\x1b[31m\u202ex",
}
NAMED = ("a letter", "a group")  # refused whatever the setting; of the others some may be meant


def leaves(composed: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for key, value in composed.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{path}{key}.")
        elif f"{path}{key}" not in ("explicit_keys", "task_changes", "runs"):
            yield f"{path}{key}"


def misspelt(key: str, rng: random.Random) -> str:
    at = rng.randrange(len(key) - 1)
    swapped = key[:at] + key[at + 1] + key[at] + key[at + 2 :]
    return rng.choice((key[: at + 1] + key[at:], key[:at] + key[at + 1 :], swapped))


def words_of(command: str, share: float) -> Iterator[tuple[str, str]]:
    rng = random.Random(command)
    known = list(leaves(commands.settings_from_words(command, EVERY_INPUT[command], None)))
    assert len(known) > 1
    for key in known:
        wrong = misspelt(key, rng)
        words = [("a letter", f"{wrong}=1")] * (wrong not in known)
        for what, word in words + [(what, f"{key}={value}") for what, value in VALUES.items()]:
            if rng.random() < share:
                yield what, word


def answers(command: str, share: float, capsys: Capsys) -> tuple[int, list[str]]:
    """Set each value in an otherwise valid command; count the commands, and list those that were not refused in one line."""
    count, faults = 0, []
    for what, word in words_of(command, share):
        count += 1
        code = run([command, *EVERY_INPUT[command], word])
        printed = capsys.readouterr().err
        lines = printed.splitlines()
        is_unnamed = what in NAMED and word.partition("=")[0].rpartition(".")[2] not in printed
        is_one_answer = code == 2 and 1 <= len(lines) <= 6 and lines[0].startswith("error: ")
        if is_unnamed or not is_one_answer or CONTROL.search(printed):
            faults.append(f"{what}: {word!r}: exit {code}, {printed[:500]!r}")
    return count, faults


@pytest.mark.parametrize("share", [0.03, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_settings_are_refused_in_one_line(
    command: str, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    assert set(COMMANDS) == set(GIVEN)
    count, faults = answers(command, share, capsys)
    print(f"{command}: {count} words, {len(faults)} not answered in one line")
    assert faults == []
    assert not list(tmp_path.iterdir())


def numbers(kind: Any, key: str = "", is_listed: bool = False) -> Iterator[tuple[str, bool, Interval | None]]:
    """The numbers among a command's settings: key, whether they stand in a list, and interval."""
    if dataclasses.is_dataclass(kind):
        for name, hint in get_type_hints(kind, include_extras=True).items():
            yield from numbers(hint, f"{key}.{name}".lstrip("."))
    elif kind in (int, float):
        yield key, is_listed, None
    elif get_origin(kind) is not Annotated:
        for inner in get_args(kind):
            yield from numbers(inner, key, is_listed or get_origin(kind) is tuple)
    elif isinstance(get_args(kind)[1], Interval):
        yield key, is_listed, get_args(kind)[1]


# settings that a command has only on request
ON_REQUEST = {
    "prepare": ["segments=google"],
    "pretrain": ["segments=google"],
    "finetune": ["task=translation", "decoder=transformer", "model=tiny", "tokenizer=wordpiece"],
    "evaluate": ["segments=google", "task=squad1"],
    **{command: ["task=squad1"] for command in ("predict", "view", "search")},
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_number_has_an_interval(command: str) -> None:
    """A command takes the ends of the interval, and refuses what is beyond them."""
    actual = {key: (is_listed, interval) for key, is_listed, interval in numbers(schema_of(command))}
    assert [key for key, (_, interval) in actual.items() if interval is None] == []
    composed = commands.settings_from_words(command, [*EVERY_INPUT[command], *ON_REQUEST.get(command, ())])
    tried = 0
    for key, (is_listed, interval) in actual.items():
        parent, _, leaf = key.rpartition(".")
        if interval is None or leaf not in ((at(composed, parent) if parent else composed) or ()):
            continue
        tried += 1
        low, high, (opens, closes) = interval
        step = 1 if isinstance(high, int) and high > 1 else 1e-3
        below, above = min(low - step, low * 1.001), max(high + step, high * 1.001)
        for value, is_inside in {below: False, low: opens == "[", high: closes == "]", above: False}.items():
            assert (interval.expected(value) == "") == is_inside, (key, value)
            changed = copy.deepcopy(composed)
            (at(changed, parent) if parent else changed)[leaf] = [value] if is_listed else value
            with pytest.raises(InputError) if not is_inside else contextlib.suppress(InputError) as refused:
                commands.build_settings(command, changed)
            place = f"{key}[0]=" if is_listed else f"{key}="
            assert is_inside or any(line.startswith(place) for line in refused.value.args), (key, value)
    assert command == "glue" or tried >= len(actual) * 0.6, tried  # glue has the numbers of fine-tuning, for each run
