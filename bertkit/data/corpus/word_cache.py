"""Sentences to ids, with a cache of tokenized words; the result equals `Tokenizer.encode_flat`.

A run is the text between two spaces. Its tokens do not depend on the text around it: cleaning, separating Chinese characters
and lower-casing look at single characters or at one run, and accents belong to the character before them. This holds for
Hugging Face's rules and for Google's. A plain run, of ASCII letters, digits and printed punctuation, is cut further, into words
and punctuation marks. So the entries of the cache are words, marks, and other runs, which may contain other white space, control
characters or the name of a special token. The library encodes the entries that the cache does not have.

numpy cuts and looks up all entries of a text at once, as bytes in UTF-8: a Python string for each would take most of the time.
"""

import hashlib
import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.data.corpus.long_texts import FlatIds, encode_in_parts
from bertkit.data.corpus.tokenizer import Tokenizer

# the kinds of bytes; REST are the second and third bytes of a mark
WHITE, WORD, MARK, OTHER, REST = range(5)
_KINDS = bytes(
    WHITE if byte in b" \n" else WORD if bytes([byte]).isalnum() else MARK if 32 < byte < 127 else OTHER
    for byte in range(256)
)
# the quotes, dashes and ellipsis of printed English, which like ASCII's marks are words by both rules: 0xe2, 0x80 and this byte
_IS_LAST_OF_MARK = np.isin(np.arange(256), [mark.encode()[2] for mark in "‘’“”–—…"])
_is_plain = re.compile("[0-9A-Za-z]+|[!-~‘’“”–—…]").fullmatch
_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
_KEY_BYTES = 15  # of an entry that is its own key; the key's last byte is the length
TOKENS_PER_ENTRY = 8  # on average; a cache with more is emptied; frequent entries soon come back


class _Ranges(NamedTuple):
    """Ranges of bytes or tokens, (n,) each."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


class WordCache:
    """Encodes sentences as the tokenizer does, in constant memory.

    A hash of an entry's key is its place, where it replaces any other entry. The entry in place n has the ids
    `tokens[starts[n] : starts[n] + lengths[n]]`.
    """

    def __init__(self, tokenizer: Tokenizer, num_entries: int) -> None:
        """Make an empty cache; the entries of the current sentences may exceed `num_entries`."""
        self.tokenizer, self.num_entries = tokenizer, num_entries
        self._keys = np.zeros((2, num_entries), np.uint64)
        self._starts, self._lengths = np.zeros((2, num_entries), np.int64)
        self._tokens = np.zeros(0, np.int32)

    def encode_flat(self, sentences: list[str]) -> FlatIds:
        """Return the same ids and lengths as `Tokenizer.encode_flat`."""
        return encode_in_parts(sentences, self.tokenizer.rules, self._encode_flat)

    def _encode_flat(self, sentences: list[str]) -> FlatIds:
        text = "\n".join([*sentences, ""]).encode("utf-8", "surrogatepass")
        ends_of_sentences = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
        if not sentences or len(ends_of_sentences) > len(sentences):  # a sentence contains a line break
            return self.tokenizer.encode_flat(sentences)
        if len(self._tokens) > TOKENS_PER_ENTRY * self.num_entries:
            self._keys[:], self._tokens = 0, self._tokens[:0]
        begins, sizes = _entries(text)
        low, high = keys = _keys(text, begins, sizes)
        mixed = low * np.uint64(0x9E3779B97F4A7C15) ^ high * np.uint64(0xC2B2AE3D27D4EB4F)
        places = ((mixed >> np.uint64(32)) * np.uint64(self.num_entries) >> np.uint64(32)).astype(np.int64)
        starts, lengths = self._starts[places], self._lengths[places]
        new = np.flatnonzero((self._keys[0][places] != low) | (self._keys[1][places] != high))
        if len(new):
            at = zip(begins[new].tolist(), (begins + sizes)[new].tolist(), strict=True)
            starts[new], lengths[new] = self._learn([text[begin:end] for begin, end in at])
            self._keys[:, places[new]] = keys[:, new]
            self._starts[places[new]], self._lengths[places[new]] = starts[new], lengths[new]
        ends = np.cumsum(lengths)
        # token n of the result is token n + shift of the cache; each entry has its own shift
        indices = np.repeat(starts - ends + lengths, lengths)
        indices += np.arange(len(indices))
        text_ends = np.append(0, ends)[np.searchsorted(begins, ends_of_sentences)]
        return self._tokens[indices], np.diff(text_ends, prepend=0)

    def _learn(self, new: list[bytes]) -> _Ranges:
        """Encode new entries; return for each the range of its tokens in the cache."""
        texts = {entry: entry.decode("utf-8", "surrogatepass") for entry in new}
        plain = {entry: text for entry, text in texts.items() if _is_plain(text)}
        # as one text, which is faster; a token without `##` begins a word
        words, _ = self.tokenizer.encode_flat([" ".join(plain.values())])
        first = np.flatnonzero(self.tokenizer.facts.borders.begins(words))
        assert len(first) == len(plain), "each word of ASCII letters and digits begins with a token without ##"
        runs = {entry: text for entry, text in texts.items() if entry not in plain}
        tokens, lengths = self.tokenizer.encode_flat(list(runs.values()))
        lengths = np.concatenate([np.diff(first, append=len(words)), lengths])
        starts = len(self._tokens) + np.cumsum(lengths) - lengths
        self._tokens = np.concatenate([self._tokens, words, tokens])
        numbers = dict(zip((*plain, *runs), range(len(texts)), strict=True))
        chosen = np.fromiter(map(numbers.__getitem__, new), np.int64, len(new))
        return _Ranges(starts[chosen], lengths[chosen])


def _entries(text: bytes) -> _Ranges:
    """Return the range of bytes of each entry of a text that is not empty."""
    bytes_ = np.frombuffer(text, np.uint8)
    kinds = np.frombuffer(bytearray(text.translate(_KINDS)), np.uint8)
    marks = np.flatnonzero(bytes_ == 0xE2)
    marks = marks[(bytes_[marks + 1] == 0x80) & _IS_LAST_OF_MARK[bytes_[marks + 2]]]
    kinds[marks], kinds[marks + 1], kinds[marks + 2] = MARK, REST, REST
    is_border = kinds == MARK
    is_border[0] = True
    is_border[1:] |= (kinds[1:] != kinds[:-1]) & (kinds[1:] != REST)
    begins = np.flatnonzero(is_border)
    kinds = kinds[begins]
    is_white = kinds == WHITE
    run = np.cumsum(is_white)  # the number of each entry's run
    is_other = np.zeros(run[-1] + 1, np.bool_)
    is_other[run[kinds == OTHER]] = True
    is_entry = is_white | np.append(True, is_white[:-1]) | ~is_other[run]  # a run of another kind is one entry
    begins, is_white = begins[is_entry], is_white[is_entry]
    sizes = np.diff(begins, append=len(text))
    return _Ranges(begins[~is_white], sizes[~is_white])


def _keys(text: bytes, begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the key of each entry, which no other entry has: its bytes and their number, or a hash of a long entry."""
    eight_bytes = np.ndarray(len(text) + 1, "<u8", text + bytes(8 + 7), 0, (1,))  # from each byte on
    low = eight_bytes[begins] & _FIRST_BYTES[np.minimum(sizes, 8)]
    high = eight_bytes[np.minimum(begins + 8, len(text))] & _FIRST_BYTES[np.clip(sizes - 8, 0, 7)]
    keys = np.array([low, high | np.minimum(sizes, 255).astype(np.uint64) << np.uint64(56)])
    long = np.flatnonzero(sizes > _KEY_BYTES)
    at = zip(begins[long].tolist(), (begins + sizes)[long].tolist(), strict=True)
    hashes = b"".join(hashlib.blake2b(text[begin:end], digest_size=16).digest() for begin, end in at)
    keys[:, long] = np.frombuffer(hashes, "<u8").reshape(-1, 2).T | np.array([[0], [0xFF << 56]], np.uint64)
    return keys
