"""Counting tokens is Bayes' rule, written out; shuffled words keep their pieces, their masks and their labels."""

from collections import Counter

import numpy as np
import pytest
from batches import masked_batch
from test_masking import CLS, FIRST_PIECE, MASK, PAD, SEP, SIZE, VOCAB, make_batch

from bertkit.base.batch import Batch, Target
from bertkit.data.batches.controls import Counting, shuffle_words
from bertkit.data.batches.masking import mask_tokens
from bertkit.data.data_config import MaskingConfig

POLICY = MaskingConfig(0.15, 0.8, 0.1)


def masked(lengths: list[int], policy: MaskingConfig | None = POLICY, seed: int = 0) -> tuple[Batch, np.ndarray]:
    """A batch, of masked or (None) next tokens, and its text."""
    text, sizes, keys = make_batch(lengths, seed)
    if policy is None:
        positions = np.delete(np.arange(len(text)), np.cumsum(sizes) - 1)
        return Batch(text, text * 0, sizes, {"next_token": Target(text[positions + 1], positions)}), text
    ids, positions, labels = mask_tokens(text, sizes, keys, policy, VOCAB)
    return masked_batch(ids, text * 0, sizes, positions, labels), text


@pytest.mark.parametrize("policy", [POLICY, MaskingConfig(0.3, 1.0, 0.0), MaskingConfig(0.2, 0.5, 0.5), None])
def test_counting_is_the_posterior_of_bayes(policy: MaskingConfig | None) -> None:
    counts = np.random.default_rng(1).integers(0, 90, SIZE)
    batches = [masked([31, 17, 43, 37], policy, seed)[0] for seed in range(11)]
    counting = Counting.of(counts, batches, VOCAB)
    seen = np.concatenate([batch.input_ids[batch.masked_positions] for batch in batches])
    labels = np.concatenate([batch.masked_labels for batch in batches])
    classes = [np.arange(SIZE) == SEP, np.arange(SIZE) >= FIRST_PIECE]
    classes.append(~np.any([*classes, np.isin(np.arange(SIZE), (PAD, CLS, MASK))], axis=0))
    prior = np.zeros(SIZE)
    for members in classes:
        prior[members] = members[labels].mean() * (counts[members] + 1) / (counts[members] + 1).sum()
    shown = seen != MASK
    kept = np.mean(seen[shown] == labels[shown]) if shown.any() else 0
    for batch in batches[:2]:
        predicted = counting.predict(batch)
        for index, (token, label) in enumerate(
            zip(batch.input_ids[batch.masked_positions], batch.masked_labels, strict=True)
        ):
            posterior = prior.copy()
            if policy is not None and token != MASK:
                posterior = prior * (kept * (np.arange(SIZE) == token) + (1 - kept) / SIZE)
            posterior /= posterior.sum()
            assert predicted.losses[index] == pytest.approx(-np.log(posterior[label]))
            assert predicted.are_correct[index] == (posterior.argmax() == label)


def test_counting_reaches_the_entropy_of_independent_tokens_at_masks() -> None:
    """All tokens equally frequent: log of their number at [MASK]; a kept token is nearly certain."""
    batches = [masked([128] * 64, seed=seed)[0] for seed in range(7)]
    text = np.concatenate([masked([128] * 64, seed=seed)[1] for seed in range(7)])
    counting = Counting.of(np.bincount(text, minlength=SIZE), batches, VOCAB)
    for batch in batches[:1]:
        losses, seen = counting.predict(batch).losses, batch.input_ids[batch.masked_positions]
        share = np.bincount(text[~np.isin(text, (CLS, SEP))], minlength=SIZE) / (~np.isin(text, (CLS, SEP))).sum()
        entropy = -(share[share > 0] * np.log(share[share > 0])).sum()
        assert losses[seen == MASK].mean() == pytest.approx(entropy, abs=0.02)
        assert losses[seen == batch.masked_labels].max() < 1.2  # k / (k + r / (p V)), about a half


@pytest.mark.parametrize("policy", [POLICY, MaskingConfig(0.3, 0.8, 0.1, "whole_word"), None])
def test_shuffled_words_keep_their_pieces_masks_and_labels(policy: MaskingConfig | None) -> None:
    batch, text = masked([29, 41, 3, 37, 53], policy, seed=3)
    shuffled = shuffle_words(batch, VOCAB)
    new, ahead = shuffled.batch, int(policy is None)
    assert np.array_equal(new.sequence_lengths, batch.sequence_lengths)
    assert np.array_equal(np.isin(new.input_ids, (CLS, SEP)), np.isin(batch.input_ids, (CLS, SEP)))
    assert np.array_equal(new.masked_labels, batch.masked_labels[shuffled.order])
    assert (np.diff(new.masked_positions) > 0).all()
    new_text = new.input_ids.copy()
    new_text[new.masked_positions + ahead] = new.masked_labels

    def words(text: np.ndarray, shown: np.ndarray) -> Counter[tuple[int, ...]]:
        special = np.isin(text, (CLS, SEP))
        begins = ~(VOCAB.borders.continues[text]) | special
        begins[1:] |= special[:-1]
        return Counter(
            tuple(both.ravel().tolist()) for both in np.split(np.stack([text, shown], 1), np.flatnonzero(begins)[1:])
        )

    assert words(new_text, new.input_ids) == words(text, batch.input_ids)
    assert (new_text != text).mean() > 0.5
