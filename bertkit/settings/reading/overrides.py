"""Words of the command line in Hydra's grammar, `key=value` and `group=option`, as assignments; and the runs of a sweep."""

import contextlib
import itertools
import math
import os
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, OverrideType, RangeSweep
from hydra.errors import HydraException

from bertkit.base.errors import InputError
from bertkit.base.problems import PLACES
from bertkit.base.typed_settings import conf_dirs, option_names, refuse
from bertkit.settings.command import VERBATIM, WORDS
from bertkit.settings.reading import names
from bertkit.settings.reading.assignments import Assignment, as_word, quoted, unparsed, with_current_names
from bertkit.settings.reading.hints import unusable_word

MAX_RUNS = 1000  # of a sweep
SIGNS = re.compile(r"""[][{},'"]|^\w+\(""")  # what Hydra gives a meaning in a value
FLAT_LIST = re.compile(r"""\[[^][{}'"]*\]""")


def read_words(command: str, words: Sequence[str]) -> list[Assignment]:
    """Turn words into assignments, after importing the modules in `plugins=`; a malformed word has a fault.

    Texts that Hydra must not parse, and words without a key, as in `compare runs/a runs/b`, are passed on verbatim.
    """
    fields, assignments, places = names.fields_of(command), list[Assignment](), list[str]()
    words_of = next((name for name, metadata in fields.items() if metadata == WORDS), "")
    for one in names.with_own_names(command, [unparsed(word) for word in words]):
        if fields.get(one.key) == VERBATIM:
            assignments.append(one)
        elif words_of and _is_place(one, fields):
            places.append(one.text)
        else:
            assignments.append(_assignment(command, f"{one.key}={one.value}" if "=" in one.text else one.text))
    if places:
        assignments.append(Assignment(words_of, [*places], " ".join(places)))
    return with_current_names(assignments)


def _is_place(one: Assignment, fields: Container[str]) -> bool:
    """Whether a word is a path, and no assignment; `runs/seed=1` is a path, too."""
    return "=" not in one.text or "/" in one.key or (one.key not in fields and os.path.exists(one.text))


def _assignment(command: str, word: str) -> Assignment:
    try:
        override = _parse(command, word)
    except InputError as error:
        return Assignment("", None, word, str(error))
    key, value = override.key_or_group, word.partition("=")[2]
    if override.is_sweep_override():
        how = f"write {key}=[{value}] for a list, or add -m to run each of them"
        return Assignment(key, None, word, f"'{word}': several values; {how}")
    if override.type != OverrideType.CHANGE:
        return Assignment(key, None, word, f"'{word}': expected key=value or group=option, without + or ~ before it")
    return Assignment(key, override.value(), word)  # type: ignore[arg-type]


def _parse(command: str, word: str) -> Override:
    """Parse a word; raises InputError if no form of it is in Hydra's grammar."""
    for form in _forms(word):
        with contextlib.suppress(HydraException, RecursionError, ValueError):
            return OverridesParser.create().parse_override(form)
    if "=" not in word:
        raise InputError(unusable_word(command, word))
    advice = f'quote the value twice: "{_quoted(word):.200}"'
    raise InputError(f"'{word:.200}': expected key=value or group=option, {advice}")


def _forms(word: str) -> list[str]:
    """Return the forms in which a word is to be parsed, until one is in Hydra's grammar.

    A value without Hydra's signs, such as `lr=1e-4.tsv`, may also be meant in quotes, and so may the items of a list.
    """
    key, has_value, value = word.partition("=")
    if SIGNS.search(value) and os.path.exists(value):
        return [_quoted(word)]
    if has_value and (key in PLACES or FLAT_LIST.fullmatch(value) or not SIGNS.search(value)):
        return [word, _quoted(word)]
    return [word]


def _quoted(word: str) -> str:
    """Put the value of a word in quotes, or, if it is a list and not the name of a file, its items."""
    key, _, value = word.partition("=")
    if FLAT_LIST.fullmatch(value) and not os.path.exists(value):
        return f"{key}=[{','.join(quoted(item.strip()) for item in value[1:-1].split(','))}]"
    return f"{key}={quoted(value)}"


@dataclass(frozen=True)
class Combination:
    """A run of a sweep."""

    name: str
    words: list[str]


def combinations(command: str, words: Sequence[str], config_dir: str | None = None) -> list[Combination]:
    """List the runs of a sweep, with their words, including an output directory for each run alone.

    A swept value is `a,b`, `choice(a,b)`, `range(1,4)`, or, for the options of a group, `glob(*)`.
    """
    overrides, groups = [_parse(command, word) for word in words], option_names(conf_dirs(config_dir))
    choices = [_swept_words(override, groups) for override in overrides]
    count = math.prod(map(len, choices))
    refuse(not 1 <= count <= MAX_RUNS and f"-m: {count:,} runs; expected 1 to {MAX_RUNS:,}; choose other values")
    keys = [names.meaning_of(command, one.key_or_group) or one.key_or_group for one in overrides]
    output = keys.index("output_dir") if "output_dir" in keys else None
    if output is None and "output_dir" in names.settings_of(command):
        raise InputError("-m needs output_dir=: each run goes to a directory below it")
    runs = []
    for combination in itertools.product(*choices):
        chosen = list(combination)
        name = "_".join(word for word, one in zip(chosen, overrides, strict=True) if one.is_sweep_override())
        if output is not None:
            place = f"{overrides[output].value()}/{name.replace('/', '-').replace('=', '-')}"
            chosen[output] = f"output_dir={as_word(place)}"
        runs.append(Combination(name, chosen))
    return runs


def _swept_words(override: Override, groups: Mapping[str, list[str]]) -> list[str]:
    """Return a word for each value of an override."""
    value, word = override.value(), str(override.input_line)
    if not override.is_sweep_override():
        return [word]
    if isinstance(value, IntervalSweep) or (isinstance(value, RangeSweep) and value.step == 0):
        raise InputError(f"'{word}': it has infinitely many values; use choice(...) or range(...)")
    if isinstance(value, Glob):
        values = value.filter(groups.get(override.key_or_group, []))
        refuse(not values and f"'{word}': no option of the group matches this glob")
    else:
        values = list(itertools.islice(override.sweep_string_iterator(), MAX_RUNS + 1))
        refuse(len(values) > MAX_RUNS and f"'{word}': more than {MAX_RUNS:,} values, each a run; choose fewer")
    return [f"{override.key_or_group}={one}" for one in values]
