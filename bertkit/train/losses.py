"""Losses as (sum, count); the loop divides once, by the count over the whole global batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class LossTerm:
    """One loss of one micro-batch.

    Attributes:
        sum: the loss summed over its predictions, with gradient.
        count: the number of predictions.
        correct: how many of them were right.
    """

    sum: Tensor
    count: int
    correct: Tensor


def cross_entropy(logits: Tensor, labels: Tensor) -> LossTerm:
    """Sum the cross-entropy, in nats, of logits (n, classes) against labels (n,), in float32 or better."""
    logits = logits if logits.dtype.itemsize >= 4 else logits.float()
    correct = (logits.detach().argmax(1) == labels).sum()
    return LossTerm(F.cross_entropy(logits, labels, reduction="sum"), len(labels), correct)
