"""Long texts, tokenized in parts: for megabytes at once, the library takes many times their size in memory.

The tokens of a word do not depend on its context, except for the combining marks after a letter and, by Google's rules, the
form of a sigma, which depends on the letters beyond a mark. So a part begins with a blank, a Chinese character or, by
Hugging Face's rules, a mark.
"""

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

FlatIds = tuple[NDArray[np.int32], NDArray[np.int64]]  # the ids of all texts, concatenated, and the length of each
PART_CHARACTERS = 1 << 15  # at least
PARTS_AT_ONCE = 32  # shared among the cores by the library
_BEGINS = {"hugging_face": re.compile("[ -/:-@[-`{-~\u4e00-\u9fff]"), "google": re.compile("[ \u4e00-\u9fff]")}
_ACCENTS = "".join(map(chr, range(0x300, 0x370)))
_LETTER = f"(?:[0-9A-Za-z][{_ACCENTS}]*+)"
_ENDLESS = re.compile(f"({_LETTER}{{{MAX_INPUT_CHARS_PER_WORD}}})({_LETTER}{{2,}}+)")  # in a word that is [UNK]


def encode_in_parts(sentences: list[str], rules: str, encode: Callable[[list[str]], FlatIds]) -> FlatIds:
    """Encode sentences with `encode`, long ones in parts."""
    if len(max(sentences, key=len, default="")) <= PART_CHARACTERS:
        return encode(sentences)
    parts = [list(parts_of(without_endless_runs(sentence)[0], rules)) for sentence in sentences]
    flat = list(chain.from_iterable(parts))
    batches = [encode(flat[first : first + PARTS_AT_ONCE]) for first in range(0, len(flat), PARTS_AT_ONCE)]
    ids, lengths = map(np.concatenate, zip(*batches, strict=True))
    return ids, np.add.reduceat(lengths, np.cumsum([0, *map(len, parts[:-1])]))


def joined(text: str, backend: Tokenizer) -> tuple[Any, list[tuple[int, int]]]:
    """Encode a long text in parts by Hugging Face's rules; return ids and word numbers, and the characters of the pieces."""
    shorter, place_in_text = without_endless_runs(text)
    whole, offsets, begins = SimpleNamespace(ids=[], word_ids=[]), [], 0
    for part in parts_of(shorter, "hugging_face"):
        encoding: Any = backend.encode(part, add_special_tokens=False)
        num_words = whole.word_ids[-1] + 1 if whole.word_ids else 0
        whole.ids.extend(encoding.ids)
        whole.word_ids.extend(num_words + number for number in encoding.word_ids)
        offsets += [(place_in_text(begins + start), place_in_text(begins + end)) for start, end in encoding.offsets]
        begins += len(part)
    return whole, offsets


def parts_of(text: str, rules: str) -> Iterator[str]:
    """Cut a text into parts with the same tokens."""
    start = 0
    while match := _BEGINS[rules].search(text, start + PART_CHARACTERS):
        yield text[start : match.start()]
        start = match.start()
    yield text[start:]


def without_endless_runs(text: str) -> tuple[str, Callable[[int], int]]:
    """Shorten runs of letters and digits that are too long and always [UNK]; keep their beginning and last letter.

    Returns:
        The text, and a function from the place where a word begins or ends in it to the place in the original.
    """
    kept, places, removed, start = [], [], [0], 0
    for match in _ENDLESS.finditer(text):
        last = match.start(2) + len(match[2].rstrip(_ACCENTS)) - 1
        kept.append(text[start : match.start(2)])
        removed.append(removed[-1] + last - match.start(2))
        places.append(last - removed[-1])
        start = last
    return "".join([*kept, text[start:]]), lambda place: place + removed[bisect.bisect_right(places, place)]
