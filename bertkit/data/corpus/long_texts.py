"""Texts of megabytes, cut where a word ends by every rule: of one in a piece the library takes memory many times its size.

Words know no context, but for the combining marks after a letter and, by Google's rules, the form of a sigma, which
depends on the letters beyond a mark. So a part begins with a blank, a Chinese character or, by Hugging Face's rules, a
mark; where there is none, a part is as long as it is.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterator
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bertkit.data.corpus.google_words import MAX_INPUT_CHARS_PER_WORD

FlatIds = tuple[NDArray[np.int32], NDArray[np.int64]]  # the ids of all texts in a row, and how many belong to each
PART_CHARACTERS = 1 << 15  # at the least; a text of no more is left whole
PARTS_AT_ONCE = 32  # which the library shares among the cores
_BEGINS = {"hugging_face": re.compile("[ -/:-@[-`{-~\u4e00-\u9fff]"), "google": re.compile("[ \u4e00-\u9fff]")}
_ACCENTS = "".join(map(chr, range(0x300, 0x370)))
_LETTER = f"(?:[0-9A-Za-z][{_ACCENTS}]*+)"
_ENDLESS = re.compile(f"({_LETTER}{{{MAX_INPUT_CHARS_PER_WORD}}})({_LETTER}{{2,}}+)")  # in a word that is [UNK]


def encode_in_parts(sentences: list[str], rules: str, encode: Callable[[list[str]], FlatIds]) -> FlatIds:
    """Encode sentences as `encode` would, but the long ones part by part."""
    if len(max(sentences, key=len, default="")) <= PART_CHARACTERS:
        return encode(sentences)
    parts = [list(parts_of(without_endless_runs(sentence)[0], rules)) for sentence in sentences]
    every = list(chain.from_iterable(parts))
    found = [encode(every[first : first + PARTS_AT_ONCE]) for first in range(0, len(every), PARTS_AT_ONCE)]
    lengths = np.concatenate([each for _, each in found])
    firsts = np.cumsum([0, *map(len, parts[:-1])])
    return np.concatenate([ids for ids, _ in found]), np.add.reduceat(lengths, firsts)


def joined(text: str, backend: Tokenizer) -> tuple[Any, list[tuple[int, int]]]:
    """Encode a long text by Hugging Face's rules part by part; give what its encoding would, and the characters of its pieces."""
    shorter, place_in_text = without_endless_runs(text)
    found, offsets, begins = SimpleNamespace(ids=[], word_ids=[]), [], 0
    for part in parts_of(shorter, "hugging_face"):
        encoding: Any = backend.encode(part, add_special_tokens=False)
        num_words = found.word_ids[-1] + 1 if found.word_ids else 0
        found.ids.extend(encoding.ids)
        found.word_ids.extend(num_words + number for number in encoding.word_ids)
        offsets += [(place_in_text(begins + start), place_in_text(begins + end)) for start, end in encoding.offsets]
        begins += len(part)
    return found, offsets


def parts_of(text: str, rules: str) -> Iterator[str]:
    """Cut a text into parts whose tokens, one after another, are its own."""
    start = 0
    while found := _BEGINS[rules].search(text, start + PART_CHARACTERS):
        yield text[start : found.start()]
        start = found.start()
    yield text[start:]


def without_endless_runs(text: str) -> tuple[str, Callable[[int], int]]:
    """Shorten runs of letters and digits that are [UNK] however long they are, to the first ones and the last.

    Returns:
        The text, and what turns a place in it that begins or ends a word into one of the text given.
    """
    kept, places, removed, start = [], [], [0], 0
    for found in _ENDLESS.finditer(text):
        last = found.start(2) + len(found[2].rstrip(_ACCENTS)) - 1
        kept.append(text[start : found.start(2)])
        removed.append(removed[-1] + last - found.start(2))
        places.append(last - removed[-1])
        start = last
    return "".join([*kept, text[start:]]), lambda place: place + removed[bisect.bisect_right(places, place)]
