"""Choose the tokens to predict and hide them: 15 %, 80/10/10, single pieces or whole words.

Which tokens, and what stands in their place, is a function of each sequence's own key, so a sequence is masked
the same way in whatever batch it comes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bertkit.data.config import MaskingConfig
from bertkit.data.keyed_random import Stream, below, bits, uniform
from bertkit.data.tokenizer import VocabFacts

Ids = NDArray[np.int64]


def mask_tokens(
    input_ids: Ids, sequence_lengths: Ids, keys: NDArray[np.uint64], policy: MaskingConfig, vocab: VocabFacts
) -> tuple[Ids, Ids, Ids]:
    """Mask packed sequences: give the masked ids (S,), the masked positions (M,) and the original ids there (M,).

    A sequence of n tokens, [CLS] and [SEP] counted, has max(1, round(n * probability)) predictions, halves rounded to
    even. Of the chosen tokens, 80 % become [MASK], 10 % a token drawn from the whole vocabulary, 10 % stay.

    The tokens of all sequences stand one after another, (S,); lengths and random keys are those of each sequence, (B,).

    Source: google-research/bert create_pretraining_data.py, `create_masked_lm_predictions`.
    """
    num_sequences = len(sequence_lengths)
    sequence = np.repeat(np.arange(num_sequences), sequence_lengths)  # (S,)
    starts = np.cumsum(sequence_lengths) - sequence_lengths  # (B,)
    position = np.arange(len(input_ids)) - starts[sequence]  # (S,) within the sequence
    quota = np.maximum(1, np.rint(sequence_lengths * policy.probability)).astype(np.int64)  # (B,)
    maskable = ~np.isin(input_ids, (vocab.cls, vocab.sep))  # (S,)

    if policy.whole_word:
        chosen = _whole_words(input_ids, starts, sequence_lengths, maskable, quota, keys, vocab)
    else:
        priority = np.where(maskable, uniform(position, after=bits(keys, Stream.MASK_CHOICE)[sequence]), 2.0)
        order = np.lexsort((priority, sequence))  # each sequence's tokens, lowest priority number first
        chosen = np.sort(order[(position < quota[sequence]) & (priority[order] < 2.0)])

    labels = input_ids[chosen]
    place, of = position[chosen], sequence[chosen]
    kind = uniform(place, after=bits(keys, Stream.MASK_KIND)[of])
    random_ids = below(vocab.size, place, after=bits(keys, Stream.MASK_TOKEN)[of])
    masked_ids = input_ids.copy()
    masked_ids[chosen] = np.where(
        kind < policy.mask_prob,
        vocab.mask,
        np.where(kind < policy.mask_prob + policy.random_prob, random_ids, labels),
    )
    return masked_ids, chosen, labels


def _whole_words(
    input_ids: Ids,
    starts: Ids,
    lengths: Ids,
    maskable: NDArray[np.bool_],
    quota: Ids,
    keys: NDArray[np.uint64],
    vocab: VocabFacts,
) -> Ids:
    """Take words in random order while they fit the quota; a word that would overflow it is skipped, not cut.

    A word is a piece and the `##` pieces that follow it.
    """
    begins = maskable & ~vocab.is_continuation[input_ids]
    begins[1:] |= maskable[1:] & ~maskable[:-1]  # a continuation right after [CLS] or [SEP] starts a word
    chosen: list[NDArray[np.int64]] = []
    for start, length, limit, key in zip(starts, lengths, quota, keys, strict=True):
        tokens = np.arange(start, start + length)
        tokens = tokens[maskable[tokens]]
        words = np.split(tokens, np.flatnonzero(begins[tokens])[1:])
        order = np.argsort(uniform(key, Stream.MASK_CHOICE, np.arange(len(words))))
        room = int(limit)
        for word in order:
            if len(words[word]) <= room:
                chosen.append(words[word])
                room -= len(words[word])
            if room == 0:
                break
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)
