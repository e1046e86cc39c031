"""Controls for what a language model has learned: the best prediction without context, and the same text with shuffled words.

Without context, a model sees a masked position alone: a [MASK], or a token that was kept or drawn at random. `Counting` predicts
from this and from the counts of a training text. A model that is better has learned from other tokens: perhaps only from the
pieces of the same word. Shuffled words keep those and lose all other context.

Axes: S packed tokens, M masked positions, V tokens of the vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertkit.base.batch import Batch, Predicted, Target
from bertkit.data.corpus.prepared import SplitTokens
from bertkit.data.corpus.tokenizer import VocabFacts

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
COUNTED_AT_ONCE = 1 << 22  # tokens


def token_counts(split: SplitTokens, vocab_size: int) -> Ints:
    """Count the tokens of a split, (V,)."""
    counts = np.zeros(vocab_size, np.int64)
    for tokens in split.chunks(COUNTED_AT_ONCE):
        counts += np.bincount(tokens, minlength=vocab_size)
    return counts


@dataclass(frozen=True)
class Counting:
    """Bayes' prediction of tokens from counts, without context.

    Before it sees the position, it expects token y with probability p(y), its count plus one over the sum of these. At a [MASK]
    nothing else is known. Another token x was kept with probability k and drawn at random with probability r, so y = x has the
    posterior p(x) (k + r / V) / Z, and any other y has p(y) r / (V Z), with Z = k p(x) + r / V.

    k and r, and the shares of labels that begin and that continue a word, are those of the measured positions: masks may be
    chosen in any way, and a model could learn these few numbers without context too.
    """

    prior: Floats  # p, (V,)
    kept_prob: float  # k / (k + r)
    is_seen: bool  # whether anything but [MASK] is seen; False for next tokens
    mask: int  # the id of [MASK]

    @classmethod
    def of(cls, counts: Ints, batches: Iterable[Batch], vocab: VocabFacts) -> Counting:
        """Prepare the prediction of the masked, or next, tokens of some batches; `counts` (V,) are those of the training text."""
        kind = 2 + vocab.borders.continues  # (V,): 0 never predicted; 1 [SEP]; 2 begins a word; 3 continues it
        kind[[vocab.pad, vocab.cls, vocab.mask]] = 0
        kind[vocab.sep] = 1
        labelled, num_kept, num_drawn, is_seen = np.zeros(4), 0, 0, False
        for batch in batches:
            seen, labels = batch.input_ids[batch.masked_positions], batch.masked_labels
            labelled += np.bincount(kind[labels], minlength=4)
            is_seen |= batch.token_head == "masked_lm"
            num_kept += int(((seen != vocab.mask) & (seen == labels)).sum())
            num_drawn += int(((seen != vocab.mask) & (seen != labels)).sum())
        weights = counts + 1.0
        shares = labelled / max(labelled.sum(), 1) / np.maximum(np.bincount(kind, weights, minlength=4), 1)
        return cls(weights * shares[kind], num_kept / max(num_kept + num_drawn, 1), is_seen, vocab.mask)

    def predict(self, batch: Batch) -> Predicted:
        """Predict the token at each masked position of one of the batches."""
        prior, labels = self.prior, batch.masked_labels
        seen = batch.input_ids[batch.masked_positions] if self.is_seen else np.full_like(labels, self.mask)
        is_mask, best = seen == self.mask, int(prior.argmax())
        # how probable what is seen is, for each label; the same for all of them at a [MASK]
        kept, drawn = self.kept_prob, (1 - self.kept_prob) / len(prior)
        likelihood = np.where(is_mask, 1.0, kept * (labels == seen) + drawn)
        evidence = np.where(is_mask, 1.0, kept * prior[seen] + drawn)
        is_kept = ~is_mask & (prior[seen] * (kept + drawn) >= prior[best] * drawn)
        return Predicted(np.log(evidence) - np.log(prior[labels] * likelihood), labels == np.where(is_kept, seen, best))


@dataclass(frozen=True)
class ShuffledWords:
    """A batch whose words are shuffled."""

    batch: Batch
    order: Ints  # the label m of the batch is label `order[m]` of the unshuffled one, (M,)


def shuffle_words(batch: Batch, vocab: VocabFacts) -> ShuffledWords:
    """Exchange the words of a batch at random with words of as many pieces; each keeps its masks, and each sequence its length."""
    ahead = int(batch.token_head == "next_token")  # a label is the next token
    text, targets = batch.input_ids.copy(), batch.masked_positions + ahead
    text[targets] = batch.masked_labels
    is_special = np.isin(text, (vocab.cls, vocab.sep))
    begins = vocab.borders.begins(text) | is_special
    begins[1:] |= is_special[:-1]
    starts = np.flatnonzero(begins)
    lengths = np.diff(np.append(starts, len(text)))
    is_whole = ~is_special[starts] & ~vocab.borders.continues[text[starts]]  # the rest of a cut word stays where it is
    rng, place = np.random.default_rng(0), np.arange(len(text))  # where each token goes, (S,)
    for length in np.unique(lengths):
        words = starts[(lengths == length) & is_whole]
        steps = np.arange(length)
        place[words[:, None] + steps] = rng.permutation(words)[:, None] + steps
    moved, shown = np.empty_like(text), text.copy()
    shown[targets] = batch.masked_labels if ahead else batch.input_ids[targets]
    moved[place] = shown
    order = np.argsort(place[targets])
    positions = place[targets][order] - ahead
    shuffled = {**batch.targets, batch.token_head: Target(batch.masked_labels[order], positions)}
    return ShuffledWords(dataclasses.replace(batch, input_ids=moved, targets=shuffled), order)
