"""Masking of single WordPieces, whole words, or n-grams of words; 15 % of the tokens by default.

The masks of a sequence depend only on the sequence and its random key, not on the rest of the batch.
"""

import bisect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.base import plugins
from bertkit.base.errors import InputError
from bertkit.data.batches.keyed_random import Stream, below, bits, uniform
from bertkit.data.corpus.tokenizer import VocabFacts
from bertkit.data.data_config import MaskingConfig

Ints = NDArray[np.int64]


def mask_tokens(
    input_ids: Ints, sequence_lengths: Ints, keys: NDArray[np.uint64], policy: MaskingConfig, vocab: VocabFacts
) -> tuple[Ints, Ints, Ints]:
    """Mask packed sequences; return the masked ids (S,), the positions to predict (M,) and the original ids there (M,).

    A sequence of n tokens, with [CLS] and [SEP], has max(1, round(n * probability)) predictions, halves rounded to even.
    By default 80 % of the tokens to predict become [MASK], 10 % become a random token of the vocabulary, and 10 % stay.
    Lengths and random keys are (B,).

    Source: google-research/bert create_pretraining_data.py, `create_masked_lm_predictions`.
    """
    num_sequences = len(sequence_lengths)
    sequence = np.repeat(np.arange(num_sequences), sequence_lengths)  # (S,)
    starts = np.cumsum(sequence_lengths) - sequence_lengths  # (B,)
    position = np.arange(len(input_ids)) - starts[sequence]  # (S,) within the sequence
    quota = np.maximum(1, np.rint(sequence_lengths * policy.probability)).astype(np.int64)  # (B,)
    maskable = ~np.isin(input_ids, (vocab.cls, vocab.sep))  # (S,)

    if policy.kind != "bert":
        choose = plugins.bind("masking", policy.kind, policy.options)
        replaced, chosen = _by_plugin(choose, np.split(input_ids, starts[1:]), ~maskable, keys, policy)
        if replaced is not None:
            return replaced, chosen, input_ids[chosen]
    elif policy.whole_word:
        chosen = _whole_words(input_ids, starts, sequence_lengths, maskable, quota, keys, policy.max_ngram, vocab)
    else:
        priority = np.where(maskable, uniform(position, after=bits(keys, Stream.MASK_CHOICE)[sequence]), 2.0)
        order = np.lexsort((priority, sequence))  # sorted by priority within each sequence
        chosen = np.sort(order[(position < quota[sequence]) & (priority[order] < 2.0)])

    labels, place = input_ids[chosen], position[chosen]
    kind = uniform(place, after=bits(keys, Stream.MASK_KIND)[sequence[chosen]])
    random_ids = below(vocab.size, place, after=bits(keys, Stream.MASK_TOKEN)[sequence[chosen]])
    masked_ids = input_ids.copy()
    masked_ids[chosen] = np.where(
        kind < policy.mask_prob, vocab.mask, np.where(kind < policy.mask_prob + policy.random_prob, random_ids, labels)
    )
    return masked_ids, chosen, labels


def _by_plugin(
    choose: Callable[..., Any],
    sequences: list[Ints],
    special: NDArray[np.bool_],
    keys: NDArray[np.uint64],
    policy: MaskingConfig,
) -> tuple[Ints | None, Ints]:
    """Mask every sequence by a plug-in: `choose(ids (T,), special (T,), rng, policy)`, special being [CLS] and [SEP].

    It returns the positions to predict, or `(input_ids, labels)`, both (T,), with the label -100 for other tokens. The results
    are the replaced ids (S,), None if the plug-in left that to `policy`, and the positions to predict (M,). Raises InputError
    if a position is special, or outside of the sequence.
    """
    positions, replaced, start = [], [], 0
    for ids, key in zip(sequences, bits(keys, Stream.MASK_CHOICE), strict=True):
        is_special = special[start : start + len(ids)]
        made = choose(ids.copy(), is_special, np.random.Generator(np.random.Philox(int(key))), policy)
        if isinstance(made, tuple):
            replaced.append(np.asarray(made[0], np.int64))
            made = np.flatnonzero(np.asarray(made[1]) != -100)
        chosen = np.unique(np.asarray(made, np.int64))
        if len(chosen) and (chosen[0] < 0 or chosen[-1] >= len(ids) or is_special[chosen].any()):
            raise InputError(
                f"masking={policy.kind}: positions {chosen.tolist()} of {len(ids)} tokens; expected none that is special"
            )
        positions.append(chosen + start)
        start += len(ids)
    return np.concatenate(replaced) if replaced else None, np.concatenate(positions)


def _whole_words(
    input_ids: Ints,
    starts: Ints,
    lengths: Ints,
    maskable: NDArray[np.bool_],
    quota: Ints,
    keys: NDArray[np.uint64],
    max_ngram: int,
    vocab: VocabFacts,
) -> Ints:
    """Choose words, or n-grams of words, with at most `quota` tokens per sequence; return the positions of their tokens."""
    begins = maskable & ~vocab.is_continuation[input_ids]
    begins[1:] |= maskable[1:] & ~maskable[:-1]  # a ## piece right after [CLS] or [SEP] also begins a word
    chosen: list[Ints] = []
    for start, length, limit, key in zip(starts, lengths, quota, keys, strict=True):
        tokens = np.arange(start, start + length)
        tokens = tokens[maskable[tokens]]
        if not len(tokens):
            continue
        words = np.split(tokens, np.flatnonzero(begins[tokens])[1:])
        number = np.arange(len(words))
        order = np.argsort(uniform(key, Stream.MASK_CHOICE, number))
        if max_ngram == 1:
            chosen += _words_that_fit(words, order, int(limit))
        else:
            chosen += _ngrams_that_fit(words, order, uniform(key, Stream.NGRAM_LENGTH, number), int(limit), max_ngram)
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)


def _words_that_fit(words: list[Ints], order: Ints, room: int) -> Iterator[Ints]:
    """Choose words in this order, with at most `room` tokens; a word that does not fit is skipped, not cut."""
    for word in order:
        if len(words[word]) <= room:
            yield words[word]
            room -= len(words[word])
        if room == 0:
            break


def _ngrams_that_fit(
    words: list[Ints], order: Ints, draws: NDArray[np.float64], room: int, max_ngram: int
) -> Iterator[Ints]:
    """Choose n-grams, with at most `room` tokens; their first words are tried in this order.

    An n-gram has n words with probability p(n) = (1/n) / (1/1 + ... + 1/N). N is max_ngram, or smaller if the segment ends
    or the next chosen word follows before. If an n-gram does not fit, words at its end are left out. A word that does not fit
    is skipped, not cut.

    Source: Lan et al. 2020 (ALBERT), section 4.1; google-research/albert create_pretraining_data.py and NVIDIA/Megatron-LM
    megatron/data/dataset_utils.py, `create_masked_lm_predictions`. Their n-grams may contain a [SEP], and an n-gram with an
    already chosen word is dropped.
    """
    sums = list(itertools.accumulate(1 / n for n in range(1, max_ngram + 1)))
    starts, ends = [int(word[0]) for word in words], [int(word[-1]) + 1 for word in words]
    is_free = [True] * len(words)
    for first in order.tolist():
        stop, most = first, min(first + max_ngram, len(words))
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
