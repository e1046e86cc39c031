"""Words of the command line in Hydra's grammar, `key=value` and `group=option`, as assignments; and the runs of a sweep."""

import contextlib
import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from bertkit.base.errors import InputError
from bertkit.base.problems import PLACES
from bertkit.base.typed_settings import conf_dirs, option_names, refuse
from bertkit.settings.command import VERBATIM, WORDS
from bertkit.settings.reading import names
from bertkit.settings.reading.assignments import Assignment, as_word, with_current_names
from bertkit.settings.reading.hints import unusable_word

MAX_RUNS = 1000  # of a sweep


def read_words(command: str, words: Sequence[str]) -> list[Assignment]:
    """Turn words into assignments, after importing the modules in `plugins=`; a malformed word has a fault.

    Texts that Hydra must not parse, and words without a key, as in `compare runs/a runs/b`, are passed on verbatim.
    """
    named = [Assignment(word.partition("=")[0], word.partition("=")[2], word) for word in words]
    fields, assignments, places = names.fields_of(command), list[Assignment](), list[str]()
    words_of = next((name for name, metadata in fields.items() if metadata == WORDS), None)
    for one in names.with_own_names(command, named):
        key, has_value = one.key, "=" in one.text
        if fields.get(key) == VERBATIM:
            assignments.append(one)
        elif words_of is not None and (not has_value or "/" in key or (key not in fields and Path(one.text).exists())):
            places.append(one.text)
        else:
            assignments.append(_assignment(command, f"{key}={one.value}" if has_value else one.text))
    if words_of is not None and places:
        assignments.append(Assignment(words_of, [*places], " ".join(places)))
    return with_current_names(assignments)


def _assignment(command: str, word: str) -> Assignment:
    override = _parse(word)
    if override is None:
        return Assignment("", None, word, _malformed(command, word))
    key, fault = override.key_or_group, None
    if override.is_sweep_override():
        values = word.partition("=")[2]
        fault = f"'{word}': several values; write {key}=[{values}] for a list, or add -m to run each of them"
    elif override.type is None or override.type.name != "CHANGE":
        fault = f"'{word}': expected key=value or group=option, without + or ~ before it"
    value = None if override.is_sweep_override() else override.value()
    return Assignment(key, value, str(override.input_line), fault)  # type: ignore[arg-type]


def _parse(word: str) -> Override | None:
    """Parse a word; None if it is malformed.

    A value without Hydra's signs, such as `lr=1e-4.tsv`, is quoted, and so are those of a list, and names of files.
    """
    key, has_value, value = word.partition("=")
    is_list = re.fullmatch(r"""\[[^][{}'"]*\]""", value) is not None
    is_plain = is_list or key in PLACES or (has_value and re.search(r"""[][{},'"]|^\w+\(""", value) is None)
    is_there = re.search(r"[][{},]", value) is not None and os.path.exists(value)
    quoted = _quoted(word)
    for one in [quoted] if is_there else [word, quoted] if is_plain else [word]:
        with contextlib.suppress(HydraException, RecursionError, ValueError):
            return OverridesParser.create().parse_override(one)
    return None


def _quoted(word: str) -> str:
    key, _, value = word.partition("=")
    is_list = re.fullmatch(r"""\[[^][{}'"]*\]""", value) is not None and not os.path.exists(value)
    return f"{key}={as_word([*value[1:-1].split(',')] if is_list else value)}"


def _malformed(command: str, word: str) -> str:
    if "=" not in word:
        return unusable_word(command, word)
    return f"'{word:.200}': expected key=value or group=option, quote the value twice: \"{_quoted(word):.200}\""


@dataclass(frozen=True)
class Combination:
    """A run of a sweep."""

    name: str
    words: list[str]


def combinations(command: str, words: Sequence[str], config_dir: str | None = None) -> list[Combination]:
    """List the runs of a sweep, with their words, including an output directory for each run alone.

    A swept value is `a,b`, `choice(a,b)`, `range(1,4)`, or, for the options of a group, `glob(*)`.
    """
    pairs = [(word, _parse(word)) for word in words]
    refuse([_malformed(command, word) for word, override in pairs if override is None])
    parsed, groups = [override for _, override in pairs if override is not None], option_names(conf_dirs(config_dir))
    choices = [
        [f"{item.key_or_group}={value}" for value in _swept_values(item, groups)]
        if item.is_sweep_override()
        else [str(item.input_line)]
        for item in parsed
    ]
    count = math.prod(map(len, choices))
    refuse(not 1 <= count <= MAX_RUNS and f"-m: {count:,} runs; expected 1 to {MAX_RUNS:,}; choose other values")
    output = next((n for n, item in enumerate(parsed) if item.key_or_group == "output_dir"), None)
    if output is None and "output_dir" in names.settings_of(command):
        raise InputError("-m needs output_dir=: each run goes to a directory below it")
    runs = []
    for combination in itertools.product(*choices):
        chosen = list(combination)
        name = "_".join(text for text, item in zip(chosen, parsed, strict=True) if item.is_sweep_override())
        if output is not None:
            place = f"{parsed[output].value()}/{name.replace('/', '-').replace('=', '-')}"
            chosen[output] = f"output_dir={as_word(place)}"
        runs.append(Combination(name, chosen))
    return runs


def _swept_values(item: Override, groups: Mapping[str, list[str]]) -> list[str]:
    """List the values of a swept override."""
    value = item.value()
    if isinstance(value, Glob):
        options = value.filter(groups.get(item.key_or_group, []))
        if not options:
            raise InputError(f"'{item.input_line}': no option of the group matches this glob")
        return options
    if isinstance(value, IntervalSweep):
        raise InputError(f"'{item.input_line}': an interval has infinitely many values; use choice(...) or range(...)")
    if isinstance(value, RangeSweep):
        refuse(value.step == 0 and f"'{item.input_line}': a range with steps of 0 has no end")
        if any(True for _ in itertools.islice(value.range(), MAX_RUNS, None)):  # without a list of all its values
            raise InputError(f"'{item.input_line}': more than {MAX_RUNS:,} values, each a run; choose a shorter range")
    return list(item.sweep_string_iterator())
