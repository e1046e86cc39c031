"""Losses as a sum and a count; the training loop divides once, by the count over the global batch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from bertkit.base.batch import IGNORED

ROWS_AT_ONCE = 16  # in `cross_entropy_in_place`; with BERT's vocabulary 2 MB of float32, which fit the cache


@dataclass(frozen=True)
class LossTerm:
    """One loss of one micro-batch.

    Args:
        sum: the loss summed over its predictions, with a gradient; the log has it with its weight, if you multiply it by one.
        count: the number of predictions, or the sum of their weights: the same number as in the objective's `counts`.
        correct: the number of correct predictions, or the sum of their weights; None for a regression.
    """

    sum: Tensor
    count: float
    correct: Tensor | None


Losses = Callable[[nn.Module, Any], dict[str, LossTerm]]  # takes a model and a micro-batch; returns loss terms by name


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    class_weights: Tensor | None = None,
    count: float | None = None,
    label_smoothing: float = 0.0,
) -> LossTerm:
    """Return the sum of the cross-entropies, in nats, computed in float32 or float64.

    Args:
        logits: (n, classes).
        labels: (n,); those equal to `IGNORED` are left out.
        class_weights: (classes,), as in torch's `CrossEntropyLoss(weight=...)`; None if all are 1.
        count: the sum of the labels' weights, computed on the host to avoid waiting for the device; None: the number of labels.
        label_smoothing: the probability that is spread evenly over all classes (Szegedy et al. 2016, section 7).
    """
    logits = in_float32(logits)
    is_correct = logits.detach().argmax(1) == labels
    if class_weights is None:
        total = F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED, label_smoothing=label_smoothing)
        return LossTerm(total, len(labels) if count is None else count, is_correct.sum())
    assert count is not None, "the sum of the labels' weights"
    weights = class_weights.to(logits.dtype)
    total = F.cross_entropy(logits, labels, weights, reduction="sum", label_smoothing=label_smoothing)
    return LossTerm(total, count, (class_weights[labels] * is_correct).sum())


def cross_entropy_in_place(logits: Tensor, labels: Tensor, count: float, label_smoothing: float = 0.0) -> LossTerm:
    """Return `cross_entropy`; on a CPU the gradient overwrites the logits, which must not be used afterwards."""
    if logits.device.type != "cpu" or not logits.requires_grad or not torch.is_grad_enabled():
        return cross_entropy(logits, labels, count=count, label_smoothing=label_smoothing)
    total, best = _CrossEntropyInPlace.apply(logits, labels, label_smoothing)  # type: ignore[no-untyped-call]
    return LossTerm(total, count, (best == labels).sum())


class _Kept(FunctionCtx):
    saved_tensors: tuple[Tensor, ...]
    smoothing: float


class _CrossEntropyInPlace(torch.autograd.Function):
    """Sum of the cross-entropies, and the best class of each row.

    `forward` replaces the logits by exp(logit - highest logit of the row); `backward` replaces them by the gradient.
    """

    @staticmethod
    def forward(ctx: _Kept, logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        logits = logits.detach()
        is_known = labels != IGNORED
        indices = labels.where(is_known, 0)[:, None]
        dtype = torch.promote_types(logits.dtype, torch.float32)
        chosen = logits.gather(1, indices)[:, 0].to(dtype)
        highest, sums, best = torch.empty_like(chosen), torch.empty_like(chosen), torch.empty_like(labels)
        means = torch.empty_like(chosen)
        for part in _parts(logits):
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
        if smoothing:  # adds the mean of the losses of all classes
            losses = (1 - smoothing) * losses + smoothing * (highest + sums.log() - means)
        return losses.where(is_known, 0).sum(), best

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: _Kept, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        logits, indices, sums, losses, is_known = ctx.saved_tensors
        factors = gradient * is_known
        evenly = ctx.smoothing / logits.shape[1]
        for part in _parts(logits):
            rows = logits[part]
            wide = rows.to(sums.dtype).mul_((factors[part] / sums[part])[:, None])
            if evenly:
                wide.sub_((factors[part] * evenly)[:, None])
            if wide is not rows:
                rows.copy_(wide)
        # the gradient of the label's logit, p - 1, computed separately: in half precision it would be rounded to 0 for p near 1
        of_label = torch.expm1(-losses) + ctx.smoothing - evenly
        logits[torch.arange(len(logits)), indices[:, 0]] = (factors * of_label).to(logits.dtype)
        return logits, None, None


def _parts(logits: Tensor) -> Iterator[slice]:
    return (slice(first, first + ROWS_AT_ONCE) for first in range(0, len(logits), ROWS_AT_ONCE))


def squared_error(outputs: Tensor, numbers: Tensor) -> LossTerm:
    """Return the sum of the squared errors between a regression's outputs (n,) and the correct numbers (n,)."""
    outputs = in_float32(outputs)
    return LossTerm(F.mse_loss(outputs, numbers.to(outputs.dtype), reduction="sum"), len(numbers), None)


def binary_cross_entropy(logits: Tensor, targets: Tensor) -> LossTerm:
    """Return the sum of the binary cross-entropies of logits (n, classes) and targets (n, classes), which are 0 or 1."""
    logits = in_float32(logits)
    total = F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="sum")
    return LossTerm(total, targets.numel(), ((logits.detach() > 0) == (targets > 0.5)).sum())


def in_float32(logits: Tensor) -> Tensor:
    """Convert half precision to float32; leave float32 and float64 unchanged."""
    return logits if logits.dtype.itemsize >= 4 else logits.to(torch.float32)
