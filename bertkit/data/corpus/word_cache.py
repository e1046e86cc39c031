"""Sentences to ids, with a cache of tokenized words; the result equals `Tokenizer.encode_flat`.

A run is the text between two spaces. Its tokens do not depend on the text around it: cleaning, separating Chinese characters
and lower-casing look at single characters or at one run, and accents belong to the character before them. This holds for
Hugging Face's rules and for Google's. There are two caches:

1. The cache of runs. A sentence is cut only at spaces, so a run may contain other white space, control characters or the name
   of a special token.
2. The cache of words, for new runs that consist of ASCII letters, digits and punctuation. They are cut into words and
   punctuation marks, so "Word", "word," and "word" share an entry. Other new runs are encoded by the library.
"""

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bertkit.data.corpus.long_texts import FlatIds, encode_in_parts
from bertkit.data.corpus.tokenizer import Tokenizer

# ASCII, and the quotes, dashes and ellipsis of printed English; every punctuation mark here is a word by both rules
_is_plain = re.compile("[!-~‘’“”–—…]+").fullmatch
_words_of_plain = re.compile("[0-9A-Za-z]+|.").findall
CHARACTERS_PER_ENTRY = 16  # on average; if runs are longer, as in Chinese, the cache has fewer entries


class WordCache:
    """Encodes sentences as the tokenizer does, in constant memory."""

    def __init__(self, tokenizer: Tokenizer, num_entries: int) -> None:
        """Make empty caches for `num_entries` runs and words; the words of the current sentences may exceed this number."""
        self.tokenizer = tokenizer
        self._runs = _Cache("\n", num_entries)
        self._words = _Cache(" ", num_entries)

    def encode_flat(self, sentences: list[str]) -> FlatIds:
        """Return the same ids and lengths as `Tokenizer.encode_flat`."""
        return encode_in_parts(sentences, self.tokenizer.rules, self._encode_flat)

    def _encode_flat(self, sentences: list[str]) -> FlatIds:
        joined = " \n ".join(sentences)
        if not sentences or joined.count("\n") >= len(sentences):  # a sentence contains a line break
            return self.tokenizer.encode_flat(sentences)
        return self._runs.encode_flat(joined.split(" "), self._learn_runs)

    def _learn_runs(self, new: set[str]) -> None:
        plain = list(filter(_is_plain, new))
        if plain:
            joined = " ".join(plain)
            words = _words_of_plain(joined.lower() if self.tokenizer.lowercase else joined)
            self._runs.add(plain, *self._words.encode_flat(words, self._learn_words))
        others = list(new.difference(plain))
        self._runs.add(others, *self.tokenizer.encode_flat(others))

    def _learn_words(self, new: set[str]) -> None:
        """Encode new words as one text, which is faster; a token without `##` begins a word."""
        words = list(new)
        tokens, _ = self.tokenizer.encode_flat([" ".join(words)])
        first = np.flatnonzero(~self.tokenizer.facts.is_continuation[tokens])
        assert len(first) == len(words), "each word of ASCII letters and digits begins with a token without ##"
        self._words.add(words, tokens, np.diff(first, append=len(tokens)))


class _Cache:
    """The token ids of entries, which are runs or words.

    Entry n has the ids `tokens[starts[n] : starts[n] + lengths[n]]`; entry 0 is the separator between texts, without ids. A
    full cache is emptied; frequent entries soon come back.
    """

    def __init__(self, separator: str, num_entries: int) -> None:
        self.separator, self.num_entries = separator, num_entries
        self._numbers: dict[str, int]
        self._num_characters: int
        self._starts: NDArray[np.int64]
        self._lengths: NDArray[np.int64]
        self._tokens: NDArray[np.int32]
        self._clear()

    def encode_flat(self, entries: list[str], learn: Callable[[set[str]], None]) -> FlatIds:
        """Encode texts that are cut into entries; `learn` adds the entries that the cache does not have."""
        if len(self._numbers) > self.num_entries or self._num_characters > CHARACTERS_PER_ENTRY * self.num_entries:
            self._clear()
        new = set(entries).difference(self._numbers)
        if new:
            learn(new)
        numbers = np.fromiter(map(self._numbers.__getitem__, entries), np.int64, len(entries))
        lengths = self._lengths[numbers]
        ends = np.cumsum(lengths)
        # token n of the result is token n + shift of the cache; each entry has its own shift
        indices = np.repeat(self._starts[numbers] - ends + lengths, lengths)
        indices += np.arange(len(indices))
        text_ends = ends[np.append(np.flatnonzero(numbers == 0), -1)]
        return self._tokens[indices], np.diff(text_ends, prepend=0)

    def add(self, new: list[str], tokens: NDArray[np.int32], lengths: NDArray[np.int64]) -> None:
        """Add new entries and their ids."""
        self._numbers.update(zip(new, range(len(self._numbers), len(self._numbers) + len(new)), strict=True))
        self._starts = np.concatenate([self._starts, len(self._tokens) + np.cumsum(lengths) - lengths])
        self._lengths = np.concatenate([self._lengths, lengths])
        self._tokens = np.concatenate([self._tokens, tokens])
        self._num_characters += sum(map(len, new))

    def _clear(self) -> None:
        self._numbers = {self.separator: 0}
        self._num_characters = 0
        self._starts = self._lengths = np.zeros(1, np.int64)
        self._tokens = np.zeros(0, np.int32)
