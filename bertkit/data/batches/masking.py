"""Masking of single WordPieces, whole words, n-grams of words, or a plug-in's choice; 15 % of the tokens by default.

The masks of a sequence depend only on the sequence and its random key, not on the rest of the batch.
"""

import bisect
import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.base import plugins
from bertkit.base.batch import IGNORED
from bertkit.base.intervals import Size
from bertkit.data.batches.keyed_random import Stream, below, bits, uniform
from bertkit.data.corpus.tokenizer import VocabFacts
from bertkit.data.data_config import MaskingConfig

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class Unmasked:
    """Packed sequences before masking."""

    input_ids: Ints  # (S,)
    starts: Ints  # the first token of each sequence, (B,)
    sequence: Ints  # the number of each token's sequence, (S,)
    position: Ints  # of each token in its sequence, (S,)
    is_maskable: Bools  # False for [CLS] and [SEP], (S,)
    quota: Ints  # the largest number of predictions in each sequence, (B,)
    keys: Keys  # the random key of each sequence, (B,)
    vocab: VocabFacts


@dataclass(frozen=True)
class Chosen:
    """The tokens to predict, and perhaps what replaces them; None: the shares of `MaskingConfig` decide."""

    positions: Ints  # ascending, (M,)
    masked_ids: Ints | None = None  # (S,)


def mask_tokens(
    input_ids: Ints, sequence_lengths: Ints, keys: NDArray[np.uint64], policy: MaskingConfig, vocab: VocabFacts
) -> tuple[Ints, Ints, Ints]:
    """Mask packed sequences; return the masked ids (S,), the positions to predict (M,) and the original ids there (M,).

    A sequence of n tokens, with [CLS] and [SEP], has max(1, round(n * probability)) predictions, halves rounded to even.
    By default 80 % of the tokens to predict become [MASK], 10 % become a random token of the vocabulary, and 10 % stay.
    Lengths and random keys are (B,).

    Source: google-research/bert create_pretraining_data.py, `create_masked_lm_predictions`.
    """
    sequence = np.repeat(np.arange(len(sequence_lengths)), sequence_lengths)  # (S,)
    starts = np.cumsum(sequence_lengths) - sequence_lengths  # (B,)
    position = np.arange(len(input_ids)) - starts[sequence]  # (S,) within the sequence
    quota = np.maximum(1, np.rint(sequence_lengths * policy.probability)).astype(np.int64)  # (B,)
    maskable = ~np.isin(input_ids, (vocab.cls, vocab.sep))  # (S,)

    batch = Unmasked(input_ids, starts, sequence, position, maskable, quota, keys, vocab)
    made = choose(batch, policy)
    chosen = made.positions
    if made.masked_ids is not None:
        return made.masked_ids, chosen, input_ids[chosen]
    labels, place = input_ids[chosen], position[chosen]
    kind = uniform(place, after=bits(keys, Stream.MASK_KIND)[sequence[chosen]])
    random_ids = below(vocab.size, place, after=bits(keys, Stream.MASK_TOKEN)[sequence[chosen]])
    masked_ids = input_ids.copy()
    masked_ids[chosen] = np.where(
        kind < policy.mask_prob, vocab.mask, np.where(kind < policy.mask_prob + policy.random_prob, random_ids, labels)
    )
    return masked_ids, chosen, labels


def choose(batch: Unmasked, policy: MaskingConfig) -> Chosen:
    """Choose the tokens to predict by the masking `policy.kind`: a class that is called with the batch, or a function of each sequence."""
    masking = plugins.bind("masking", policy.kind, policy.options)
    if inspect.isclass(masking.func):
        return Chosen(masking()(batch))
    return by_sequence(batch, policy, masking)


@plugins.option("masking", "bert")
class Pieces:
    """Exactly `quota` single WordPieces in each sequence."""

    in_instances = True

    def __call__(self, batch: Unmasked) -> Ints:
        """Return the positions to predict."""
        draws = uniform(batch.position, after=bits(batch.keys, Stream.MASK_CHOICE)[batch.sequence])
        priority = np.where(batch.is_maskable, draws, 2.0)
        order = np.lexsort((priority, batch.sequence))  # sorted by priority within each sequence
        return np.sort(order[(batch.position < batch.quota[batch.sequence]) & (priority[order] < 2.0)])


@plugins.option("masking", "whole_word")
class WholeWords:
    """Whole words with at most `quota` tokens in each sequence."""

    by_words = in_instances = True

    def __call__(self, batch: Unmasked) -> Ints:
        """Return the positions of the pieces of the words."""
        return _concatenated(each for words in _words(batch) for each in _words_that_fit(words))


@plugins.option("masking", "ngram")
class Ngrams:
    """N-grams of up to `max_ngram` words, with at most `quota` tokens in each sequence."""

    by_words = True

    def __init__(self, *, max_ngram: Size = 3) -> None:
        self.max_ngram = max_ngram

    def __call__(self, batch: Unmasked) -> Ints:
        """Return the positions of the pieces of the n-grams."""
        return _concatenated(each for words in _words(batch) for each in _ngrams_that_fit(words, self.max_ngram))


def by_sequence(batch: Unmasked, policy: MaskingConfig, choose: Callable[..., Any]) -> Chosen:
    """Mask every sequence by a function: `choose(ids (T,), special (T,), rng, policy)`, special being [CLS] and [SEP].

    It returns the positions to predict, or `(input_ids, labels)`, both (T,), with the label -100 for other tokens. Raises
    InputError if it returns anything else, or no position in any of the sequences.
    """
    positions, replaced = [], []
    sequences = zip(
        batch.starts, bits(batch.keys, Stream.MASK_CHOICE), np.split(batch.input_ids, batch.starts[1:]), strict=True
    )
    for start, key, ids in sequences:
        is_special = ~batch.is_maskable[start : start + len(ids)]
        made = choose(ids.copy(), is_special, np.random.Generator(np.random.Philox(int(key))), policy)
        chosen = _read(made, len(ids))
        if chosen is None or not _fits(chosen, is_special, batch.vocab.size):
            expected = (
                f"positions of the {len(ids)} tokens, none of them special, or (input_ids, labels) of the same length"
            )
            raise plugins.wrong_result("masking", policy.kind, made, expected)
        positions.append(chosen.positions + start)
        replaced += [] if chosen.masked_ids is None else [chosen.masked_ids]
    if not any(map(len, positions)):
        expected = f"at least one position in a batch of {len(positions)} sequences"
        raise plugins.wrong_result("masking", policy.kind, [], expected)
    if len(replaced) not in (0, len(positions)):
        expected = "the one or the other for all sequences"
        raise plugins.wrong_result("masking", policy.kind, "positions and (input_ids, labels)", expected)
    return Chosen(np.concatenate(positions), np.concatenate(replaced) if replaced else None)


def _read(made: Any, length: int) -> Chosen | None:
    """Read what a function returned for a sequence of this length; None if it is neither positions nor a pair."""
    arrays = list[Ints]()
    with contextlib.suppress(TypeError, ValueError):
        arrays = [_integers(part) for part in (made if isinstance(made, tuple) else (made,))]
    match arrays:
        case [positions]:
            return Chosen(np.unique(positions))
        case [input_ids, labels] if input_ids.shape == labels.shape == (length,):
            return Chosen(np.flatnonzero(labels != IGNORED), input_ids)
    return None


def _integers(values: Any) -> Ints:
    """Convert to whole numbers; raises TypeError or ValueError for other values."""
    array = np.asarray(values)
    return array.astype(np.int64, casting="same_kind" if array.size else "unsafe")


def _fits(chosen: Chosen, is_special: Bools, vocab_size: int) -> bool:
    """Whether the positions are in the sequence and not special, and the ids in the vocabulary."""
    are_inside = _are_below(chosen.positions, len(is_special))
    are_known = chosen.masked_ids is None or _are_below(chosen.masked_ids, vocab_size)
    return are_inside and are_known and not is_special[chosen.positions].any()


def _are_below(numbers: Ints, end: int) -> bool:
    return bool(((numbers >= 0) & (numbers < end)).all())


@dataclass(frozen=True)
class Words:
    """The words of a sequence, in a random order."""

    positions: list[Ints]  # of the pieces of each word
    order: Ints
    key: NDArray[np.uint64]  # of the sequence
    quota: int  # the largest number of pieces to predict


def _words(batch: Unmasked) -> Iterator[Words]:
    """Find the words of each sequence that has any."""
    begins = batch.is_maskable & batch.vocab.borders.begins(batch.input_ids)
    # a ## piece right after [CLS] or [SEP] also begins a word
    begins[1:] |= batch.is_maskable[1:] & ~batch.is_maskable[:-1]
    ends = [*batch.starts[1:], len(batch.input_ids)]
    for start, end, quota, key in zip(batch.starts, ends, batch.quota, batch.keys, strict=True):
        tokens = np.arange(start, end)
        tokens = tokens[batch.is_maskable[tokens]]
        if len(tokens):
            words = np.split(tokens, np.flatnonzero(begins[tokens])[1:])
            yield Words(words, np.argsort(uniform(key, Stream.MASK_CHOICE, np.arange(len(words)))), key, int(quota))


def _concatenated(positions: Iterable[Ints]) -> Ints:
    """Concatenate and sort positions."""
    return np.sort(np.concatenate([np.zeros(0, np.int64), *positions]))


def _words_that_fit(words: Words) -> Iterator[Ints]:
    """Choose words in their order, with at most `quota` tokens; a word that does not fit is skipped, not cut."""
    room = words.quota
    for number in words.order:
        word = words.positions[number]
        if len(word) <= room:
            yield word
            room -= len(word)
        if room == 0:
            break


def _ngrams_that_fit(words: Words, max_ngram: int) -> Iterator[Ints]:
    """Choose n-grams, with at most `quota` tokens; their first words are tried in the order of the words.

    An n-gram has n words with probability p(n) = (1/n) / (1/1 + ... + 1/N). N is max_ngram, or smaller if the segment ends
    or the next chosen word follows before. If an n-gram does not fit, words at its end are left out. A word that does not fit
    is skipped, not cut.

    Source: Lan et al. 2020 (ALBERT), section 4.1; google-research/albert create_pretraining_data.py and NVIDIA/Megatron-LM
    megatron/data/dataset_utils.py, `create_masked_lm_predictions`. Their n-grams may contain a [SEP], and an n-gram with an
    already chosen word is dropped.
    """
    sums = list(itertools.accumulate(1 / n for n in range(1, max_ngram + 1)))
    starts, ends = [int(word[0]) for word in words.positions], [int(word[-1]) + 1 for word in words.positions]
    draws = uniform(words.key, Stream.NGRAM_LENGTH, np.arange(len(starts)))
    room, is_free = words.quota, [True] * len(starts)
    for first in words.order.tolist():
        stop, most = first, min(first + max_ngram, len(starts))
        # words that do not touch have a [SEP] between them
        while stop < most and is_free[stop] and (stop == first or starts[stop] == ends[stop - 1]):
            stop += 1
        num_free = stop - first
        if num_free:
            stop = first + 1 + bisect.bisect_right(sums, draws[first] * sums[num_free - 1], 0, num_free - 1)
        while stop > first and ends[stop - 1] - starts[first] > room:
            stop -= 1
        if stop > first:
            is_free[first:stop] = [False] * (stop - first)
            yield np.arange(starts[first], ends[stop - 1])
            room -= ends[stop - 1] - starts[first]
        if room == 0:
            break
