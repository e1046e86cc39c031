"""Batches: the only types that data and training share.

A batch is packed: it holds the tokens of all its sequences, one after another, without padding.

Axes: B sequences, S packed tokens, S_t packed target tokens, M masked positions, C labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

IGNORED = -100  # the label of tokens that the loss ignores, as in torch and transformers
TOKEN_HEADS = ("masked_lm", "next_token")  # what they predict has positions
_LOSS_NAMES = {"masked_lm": "mlm", "next_token": "lm", "next_sentence": "nsp"}


def loss_name(head: str) -> str:
    """Return the name of a head's loss in logs."""
    return _LOSS_NAMES.get(head, head)


@dataclass(frozen=True)
class Target:
    """What a head is to predict of a packed batch, or what an objective has added. The labels depend on the head:

    masked_lm, next_token: (M,), the original or the next ids at `positions`.
    next_sentence: (B,), 0 if B follows A, 1 if B is random or, with next_sentence=sop, if A and B are swapped.
    sequence: (B,) label numbers, (B,) floats for regression, or (B, C) floats, 0 or 1, for multi-label tasks.
    token: (S,) label numbers, `IGNORED` for tokens without a label.
    span: (B, 2), start and end in each sequence.
    choice: (examples,), the correct choice of each; every example has the same number of adjacent sequences.
    generation: (S_t,), the token after each of `decoder_ids`.
    """

    labels: NDArray[Any]
    positions: NDArray[np.int64] | None = None  # of masked or next tokens: from 0 to S - 1, ascending, (M,)
    weights: NDArray[np.float64] | None = None  # of each label number in the loss, (C,); None if all are 1
    smoothing: float = 0.0  # the probability that the loss of label numbers spreads evenly over all of them

    @property
    def count(self) -> float:
        """The divisor of the loss: the number of predictions, or the sum of their weights."""
        if self.labels.dtype.kind == "f":
            return self.labels.size
        if self.labels.ndim == 2:  # the places of an answer
            return len(self.labels)
        labels = self.labels[self.labels != IGNORED]
        return len(labels) if self.weights is None else float(self.weights[labels].sum())

    def part(self, is_chosen: NDArray[np.bool_], is_kept: NDArray[np.bool_]) -> Self:
        """Return the target of some sequences, (B,), which have these tokens, (S,)."""
        if self.positions is None:
            return replace(self, labels=self.labels[is_chosen if len(self.labels) == len(is_chosen) else is_kept])
        is_predicted = is_kept[self.positions]
        positions = (np.cumsum(is_kept) - 1)[self.positions[is_predicted]]
        return replace(self, labels=self.labels[is_predicted], positions=positions)


@dataclass(frozen=True)
class Batch:
    """One packed micro-batch: sequences, and what is to be predicted of them."""

    input_ids: NDArray[np.int64]  # token ids, after masking, (S,)
    token_type_ids: NDArray[np.int64]  # 0 for `[CLS] A [SEP]`, 1 for `B [SEP]`, (S,)
    sequence_lengths: NDArray[np.int64]  # number of tokens in each sequence, (B,); their sum is S
    targets: Mapping[str, Target] = field(default_factory=dict)  # by head; an objective may add others, by any name
    decoder_ids: NDArray[np.int64] | None = None  # the decoder's input, `[CLS] y1 .. yn` for each target, (S_t,)
    decoder_lengths: NDArray[np.int64] | None = None  # number of tokens in each target, n + 1, (B,); their sum is S_t

    @property
    def loss_counts(self) -> dict[str, float]:
        """The divisor of each loss, by its name."""
        return {loss_name(head): target.count for head, target in self.targets.items()}

    @property
    def num_tokens(self) -> int:
        """S + S_t, the number of real tokens."""
        return len(self.input_ids) + (0 if self.decoder_ids is None else len(self.decoder_ids))

    @property
    def token_head(self) -> str:
        """The head that predicts masked or next tokens, in a batch for language modelling."""
        return next(head for head in TOKEN_HEADS if head in self.targets)

    @property
    def starts(self) -> NDArray[np.int64]:
        """The position of the first token of each sequence, (B,)."""
        return self.sequence_lengths.cumsum() - self.sequence_lengths

    @property
    def masked_positions(self) -> NDArray[np.int64]:
        """The positions of the tokens to predict, (M,); those before the next tokens."""
        positions = self.targets[self.token_head].positions
        assert positions is not None, "tokens are predicted somewhere"
        return positions

    @property
    def masked_labels(self) -> NDArray[np.int64]:
        """The original ids at these positions, or the next ids, (M,)."""
        return self.targets[self.token_head].labels

    @property
    def original_ids(self) -> NDArray[np.int64]:
        """The token ids before masking, (S,)."""
        ids = self.input_ids.copy()
        if "masked_lm" in self.targets:
            ids[self.masked_positions] = self.masked_labels
        return ids

    def part(self, is_chosen: NDArray[np.bool_]) -> Self:
        """Return the batch of some of the sequences, (B,), which have no decoder.

        >>> numbers = np.arange(6)
        >>> masks = {"masked_lm": Target(np.array([7, 8]), positions=np.array([1, 4]))}
        >>> part = Batch(numbers, 0 * numbers, np.array([2, 4]), masks).part(np.array([False, True]))
        >>> part.input_ids, part.masked_positions, part.masked_labels
        (array([2, 3, 4, 5]), array([2]), array([8]))
        """
        is_kept = np.repeat(is_chosen, self.sequence_lengths)  # of the tokens
        return replace(
            self,
            input_ids=self.input_ids[is_kept],
            token_type_ids=self.token_type_ids[is_kept],
            sequence_lengths=self.sequence_lengths[is_chosen],
            targets={name: target.part(is_chosen, is_kept) for name, target in self.targets.items()},
        )


@dataclass(frozen=True)
class Predicted:
    """How well each of n labels was predicted."""

    losses: NDArray[np.float64]  # in nats, (n,)
    are_correct: NDArray[np.bool_]  # (n,)
