"""Batches: the only types that data and training share.

A batch is packed: it holds the tokens of all its sequences, one after another, without padding.

Axes: B sequences, S packed tokens, S_t packed target tokens, M masked positions, C labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

IGNORED = -100  # the label of tokens that the loss ignores, as in torch and transformers


@dataclass(frozen=True)
class PretrainBatch:
    """One packed micro-batch for language modelling, by masks or by next tokens, and, with pairs, next sentence prediction."""

    input_ids: NDArray[np.int64]  # token ids after masking, (S,)
    token_type_ids: NDArray[np.int64]  # 0 for `[CLS] A [SEP]`, 1 for `B [SEP]`, (S,)
    sequence_lengths: NDArray[np.int64]  # number of tokens in each sequence, (B,); their sum is S
    masked_positions: NDArray[np.int64]  # positions of the tokens to predict, from 0 to S - 1, ascending, (M,)
    masked_labels: NDArray[np.int64]  # the original ids at those positions, or the next ids, (M,)
    # 0 if B follows A, 1 if B is random or, with next_sentence=sop, if A and B are swapped, (B,); None if there are no pairs,
    # or if the label is not predicted
    next_sentence_labels: NDArray[np.int64] | None
    objective: Literal["mlm", "lm"] = "mlm"  # lm: every position but the last predicts the next token
    targets: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # what an objective has added, by name

    @property
    def loss_counts(self) -> dict[str, int]:
        """The number of predictions in each loss."""
        counts: dict[str, int] = {self.objective: len(self.masked_labels)}
        if self.next_sentence_labels is not None:
            counts["nsp"] = len(self.next_sentence_labels)
        return counts

    @property
    def num_tokens(self) -> int:
        """S, the number of real tokens."""
        return len(self.input_ids)

    @property
    def original_ids(self) -> NDArray[np.int64]:
        """The token ids before masking, (S,)."""
        if self.objective == "lm":
            return self.input_ids
        ids = self.input_ids.copy()
        ids[self.masked_positions] = self.masked_labels
        return ids

    def part(self, is_chosen: NDArray[np.bool_]) -> Self:
        """Return the batch of some of the sequences, (B,), without what an objective has added.

        >>> numbers = np.arange(6)
        >>> batch = PretrainBatch(numbers, 0 * numbers, np.array([2, 4]), np.array([1, 4]), np.array([7, 8]), None)
        >>> part = batch.part(np.array([False, True]))
        >>> part.input_ids, part.masked_positions, part.masked_labels
        (array([2, 3, 4, 5]), array([2]), array([8]))
        """
        is_kept = np.repeat(is_chosen, self.sequence_lengths)  # of the tokens
        is_predicted, labels = is_kept[self.masked_positions], self.next_sentence_labels
        return replace(
            self,
            input_ids=self.input_ids[is_kept],
            token_type_ids=self.token_type_ids[is_kept],
            sequence_lengths=self.sequence_lengths[is_chosen],
            masked_positions=(np.cumsum(is_kept) - 1)[self.masked_positions[is_predicted]],
            masked_labels=self.masked_labels[is_predicted],
            next_sentence_labels=None if labels is None else labels[is_chosen],
            targets={},
        )


@dataclass(frozen=True)
class Predicted:
    """How well each of n labels was predicted."""

    losses: NDArray[np.float64]  # in nats, (n,)
    are_correct: NDArray[np.bool_]  # (n,)


@dataclass(frozen=True)
class TaskBatch:
    """One packed micro-batch of a task. The labels depend on the head; None if the batch has no labels:

    sequence: (B,) label numbers, (B,) floats for regression, or (B, C) floats, 0 or 1, for multi-label tasks;
    token: (S,) label numbers, `IGNORED` for tokens without a label; span: (B, 2), start and end in each sequence;
    choice: (B / num_choices,), the correct choice; generation: (S_t,), the token after each of `target_ids`.
    """

    head: str  # "sequence", "token", "span", "choice" or "generation"
    input_ids: NDArray[np.int64]  # (S,)
    token_type_ids: NDArray[np.int64]  # (S,)
    sequence_lengths: NDArray[np.int64]  # number of tokens in each sequence, (B,)
    labels: NDArray[np.int64] | NDArray[np.float64] | None
    num_choices: int = 1  # number of adjacent sequences that form one example; 1 for other heads than "choice"
    class_weights: NDArray[np.float64] | None = None  # the weight of each label in the loss, (C,); None if all are 1
    target_ids: NDArray[np.int64] | None = None  # the decoder's input, `[CLS] y1 .. yn` for each target, (S_t,)
    target_lengths: NDArray[np.int64] | None = None  # number of tokens in each target, n + 1, (B,); their sum is S_t
    targets: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # what an objective has added, by name

    @property
    def loss_counts(self) -> dict[str, float]:
        """The divisor of the loss: the number of predictions, or the sum of their weights."""
        assert self.labels is not None, "a batch without labels has no loss"
        if self.labels.dtype.kind == "f":
            return {self.head: self.labels.size}
        if self.labels.ndim == 2:  # the places of an answer
            return {self.head: len(self.labels)}
        labels = self.labels[self.labels != IGNORED]
        if self.class_weights is None:
            return {self.head: len(labels)}
        return {self.head: float(self.class_weights[labels].sum())}

    @property
    def num_tokens(self) -> int:
        """S + S_t, the number of tokens including targets."""
        return len(self.input_ids) + (0 if self.target_ids is None else len(self.target_ids))
