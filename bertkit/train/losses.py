"""Losses as (sum, count); the loop divides once, by the count over the whole global batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.base.batch import IGNORED

ROWS_AT_ONCE = 16  # of a loss in place; with BERT's vocabulary two megabytes, which stay in the cache


@dataclass(frozen=True)
class LossTerm:
    """One loss of one micro-batch."""

    sum: Tensor  # the loss summed over its predictions, with gradient
    count: float  # the number of predictions, or the sum of their weights
    correct: Tensor | None  # the right predictions, weighted likewise; None where none is right or wrong


Losses = Callable[[nn.Module, Any], dict[str, LossTerm]]  # model and micro-batch -> loss terms by name


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    class_weights: Tensor | None = None,
    count: float | None = None,
    label_smoothing: float = 0.0,
) -> LossTerm:
    """Sum the cross-entropy, in nats, of logits (n, classes) against labels (n,), in float32 or better.

    Args:
        logits: (n, classes).
        labels: (n,); `IGNORED` ones are left out.
        class_weights: (classes,), as in torch's `CrossEntropyLoss(weight=...)`; None for weights of 1.
        count: the sum of the labels' weights, to be known without waiting for the device; None for weights of 1.
        label_smoothing: the share of each label's weight that all classes share (Szegedy et al. 2016, section 7).
    """
    logits = in_float32(logits)
    is_right = logits.detach().argmax(1) == labels
    if class_weights is None:
        total = F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED, label_smoothing=label_smoothing)
        return LossTerm(total, len(labels) if count is None else count, is_right.sum())
    assert count is not None, "the sum of the labels' weights"
    weights = class_weights.to(logits.dtype)
    total = F.cross_entropy(logits, labels, weights, reduction="sum")
    counted = class_weights[labels]
    return LossTerm(total, count, (counted * is_right).sum())


def cross_entropy_in_place(logits: Tensor, labels: Tensor, count: float, label_smoothing: float = 0.0) -> LossTerm:
    """`cross_entropy` for logits that are not used again: on a CPU their gradient overwrites them, so backward runs once."""
    if logits.device.type != "cpu" or not logits.requires_grad or not torch.is_grad_enabled():
        return cross_entropy(logits, labels, count=count, label_smoothing=label_smoothing)
    total, best = _CrossEntropyInPlace.apply(logits, labels, label_smoothing)  # type: ignore[no-untyped-call]
    return LossTerm(total, count, (best == labels).sum())


class _CrossEntropyInPlace(torch.autograd.Function):
    """Sum of the cross-entropies, and the best label of each row; the logits become exp(logit - highest), then the gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        logits = logits.detach()
        is_known = labels != IGNORED
        indices = labels.where(is_known, 0)[:, None]
        dtype = torch.promote_types(logits.dtype, torch.float32)
        chosen = logits.gather(1, indices)[:, 0].to(dtype)
        highest, sums, best = torch.empty_like(chosen), torch.empty_like(chosen), torch.empty_like(labels)
        means = torch.empty_like(chosen)
        for first in range(0, len(logits), ROWS_AT_ONCE):
            part = slice(first, first + ROWS_AT_ONCE)
            rows = logits[part]
            wide = rows.to(dtype)
            highest[part], best[part] = wide.max(1)
            if smoothing:
                means[part] = wide.mean(1)
            sums[part] = wide.sub_(highest[part, None]).exp_().sum(1)
            if wide is not rows:
                rows.copy_(wide)
        losses = highest + sums.log() - chosen
        ctx.save_for_backward(logits, indices, sums, losses, is_known)
        ctx.mark_non_differentiable(best)
        ctx.smoothing = smoothing
        if smoothing:  # of all classes alike, the mean of their losses
            losses = (1 - smoothing) * losses + smoothing * (highest + sums.log() - means)
        return losses.where(is_known, 0).sum(), best

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        logits, indices, sums, losses, is_known = ctx.saved_tensors
        factors = gradient * is_known
        of_all = ctx.smoothing / logits.shape[1]
        logits.mul_((factors / sums)[:, None])
        if of_all:
            logits.sub_((factors * of_all)[:, None])
        # that of the label by itself: in half precision nothing would be left of a small difference from 1
        of_label = torch.expm1(-losses) + ctx.smoothing - of_all
        logits.scatter_(1, indices, (factors * of_label)[:, None].to(logits.dtype))
        return logits, None, None


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
