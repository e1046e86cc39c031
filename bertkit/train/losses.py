"""Losses as (sum, count); the loop divides once, by the count over the whole global batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.batch import IGNORED


@dataclass(frozen=True)
class LossTerm:
    """One loss of one micro-batch.

    Attributes:
        sum: the loss summed over its predictions, with gradient.
        count: the number of predictions, or the sum of their weights.
        correct: how many of them were right, weighted alike; None where no prediction is right or wrong.
    """

    sum: Tensor
    count: float
    correct: Tensor | None


def cross_entropy(
    logits: Tensor, labels: Tensor, class_weights: Tensor | None = None, count: float | None = None
) -> LossTerm:
    """Sum the cross-entropy, in nats, of logits (n, classes) against labels (n,), in float32 or better.

    Args:
        logits: (n, classes).
        labels: (n,); `IGNORED` ones are left out.
        class_weights: what a prediction of each label counts, (classes,), in the sum and in the count, as torch's
            `CrossEntropyLoss(weight=...)` has it; None when all count 1.
        count: what the labels count together, which a device would have to be waited for; None where all count 1.
    """
    logits = in_float32(logits)
    is_right = logits.detach().argmax(1) == labels
    if class_weights is None:
        total = F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED)
        return LossTerm(total, len(labels) if count is None else count, is_right.sum())
    assert count is not None, "what the labels count together, by their weights"
    weights = class_weights.to(logits.dtype)
    total = F.cross_entropy(logits, labels, weights, reduction="sum")
    counted = class_weights[labels]
    return LossTerm(total, count, (counted * is_right).sum())


def squared_error(outputs: Tensor, numbers: Tensor) -> LossTerm:
    """Sum the squared differences of a regression's outputs (n,) from the numbers (n,)."""
    outputs = in_float32(outputs)
    return LossTerm(F.mse_loss(outputs, numbers.to(outputs.dtype), reduction="sum"), len(numbers), None)


def binary_cross_entropy(logits: Tensor, targets: Tensor) -> LossTerm:
    """Sum the cross-entropy of a yes or no for each label: logits (n, classes) against targets of 0 and 1 alike."""
    logits = in_float32(logits)
    total = F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="sum")
    return LossTerm(total, targets.numel(), ((logits.detach() > 0) == (targets > 0.5)).sum())


def in_float32(logits: Tensor) -> Tensor:
    """Widen half precision; float32 and float64 stay."""
    return logits if logits.dtype.itemsize >= 4 else logits.to(torch.float32)
