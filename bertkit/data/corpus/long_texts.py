"""Long texts, tokenized in parts, since the `tokenizers` library needs many times the size of a text in memory.

The tokens of a word do not depend on the text around it, with two exceptions: a letter and the combining marks after it belong
together; and by Google's rules the form of a Greek sigma depends on the letters around it, even across punctuation. So a text
may be cut before a space, a Chinese character or, by Hugging Face's rules, a punctuation mark.
"""

import bisect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bertkit.data.corpus.google_words import MAX_INPUT_CHARS_PER_WORD

FlatIds = tuple[NDArray[np.int32], NDArray[np.int64]]  # concatenated ids of all texts; number of ids in each text
PART_CHARACTERS = 1 << 15  # minimum
PARTS_AT_ONCE = 32  # encoded in parallel
# not before the last character of "[MASK]"
_BEGINS = {"hugging_face": re.compile(r"[ -/:-@[\\^-`{-~\u4e00-\u9fff]"), "google": re.compile("[ \u4e00-\u9fff]")}
_ACCENTS = "".join(map(chr, range(0x300, 0x370)))
_LETTER = f"(?:[0-9A-Za-z][{_ACCENTS}]*+)"
_TOO_LONG_RUN = re.compile(f"({_LETTER}{{{MAX_INPUT_CHARS_PER_WORD}}})({_LETTER}{{2,}}+)")  # such a word is [UNK]


@dataclass(frozen=True)
class TextPieces:
    """The WordPieces of a text."""

    ids: list[int]
    offsets: list[tuple[int, int]]  # (first, last) character of each piece in the text, `last` excluded
    word_ids: Sequence[int | None]  # the number of the word of each piece


def encode_in_parts(sentences: list[str], rules: str, encode: Callable[[list[str]], FlatIds]) -> FlatIds:
    """Encode sentences with `encode`; long sentences are passed to it in parts."""
    if len(max(sentences, key=len, default="")) <= PART_CHARACTERS:
        return encode(sentences)
    parts = [list(parts_of(shorten_long_runs(sentence).text, rules)) for sentence in sentences]
    flat = list(chain.from_iterable(parts))
    batches = [encode(flat[first : first + PARTS_AT_ONCE]) for first in range(0, len(flat), PARTS_AT_ONCE)]
    ids, lengths = map(np.concatenate, zip(*batches, strict=True))
    return ids, np.add.reduceat(lengths, np.cumsum([0, *map(len, parts[:-1])]))


def encode_long(text: str, backend: Tokenizer) -> TextPieces:
    """Encode a long text in parts by Hugging Face's rules."""
    shorter, place_in_text = shorten_long_runs(text)
    ids, offsets, word_ids, begins = list[int](), list[tuple[int, int]](), list[int](), 0
    for part in parts_of(shorter, "hugging_face"):
        encoding = backend.encode(part, add_special_tokens=False)
        num_words = word_ids[-1] + 1 if word_ids else 0
        ids += encoding.ids
        offsets += [(place_in_text(begins + start), place_in_text(begins + end)) for start, end in encoding.offsets]
        word_ids += [num_words + number for number in encoding.word_ids if number is not None]
        begins += len(part)
    return TextPieces(ids, offsets, word_ids)


def parts_of(text: str, rules: str) -> Iterator[str]:
    """Cut a text into parts whose tokens, concatenated, are the tokens of the text."""
    start = 0
    while match := _BEGINS[rules].search(text, start + PART_CHARACTERS):
        yield text[start : match.start()]
        start = match.start()
    yield text[start:]


class ShorterText(NamedTuple):
    """A text without the middle of its long runs."""

    text: str
    place_in_original: Callable[[int], int]  # of the place where a word begins or ends


def shorten_long_runs(text: str) -> ShorterText:
    """Shorten runs of letters and digits that are so long that they become [UNK]; keep their beginning and last letter."""
    kept, places, removed, start = [], [], [0], 0
    for match in _TOO_LONG_RUN.finditer(text):
        last = match.start(2) + len(match[2].rstrip(_ACCENTS)) - 1
        kept.append(text[start : match.start(2)])
        removed.append(removed[-1] + last - match.start(2))
        places.append(last - removed[-1])
        start = last
    shorter = "".join([*kept, text[start:]])
    return ShorterText(shorter, lambda place: place + removed[bisect.bisect_right(places, place)])
