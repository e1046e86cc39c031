"""The training loop for any module, any batches and any losses.

One training step, for any number of processes and micro-batches:

    counts = all_reduce(sum of the loss counts of every micro-batch)        # before any forward pass
    for each micro-batch: backward(sum of term.sum / counts[term.name])
    clip the global norm -> learning rate -> optimizer step, unless a number is not finite -> zero gradients -> StepReport

So the gradient is exactly the gradient of the mean loss over the global batch, for any division into micro-batches. The
device decides whether a step is skipped, from numbers summed over all processes. The host reads these numbers later, while
the next step is running.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bertkit.base.batch import Batch
from bertkit.base.errors import InputError
from bertkit.train.gradient_sum import ForwardPass, GradientSum, gradient_sum, sum_over_processes
from bertkit.train.loss_scale import LossScale
from bertkit.train.losses import Losses, LossTerm
from bertkit.train.micro_batches import NumberedBatches
from bertkit.train.optimizer import Optimizer, clip_global_norm
from bertkit.train.step_report import NO_SKIPS, Numbers, Skips, StepNumbers, StepReport

if TYPE_CHECKING:
    from accelerate import Accelerator

Counts = Callable[[Any], Mapping[str, float]]  # takes a micro-batch; returns the divisor of each loss


@dataclass(frozen=True)
class Learner:
    """A model with its optimizer and its losses."""

    accelerator: Accelerator
    model: nn.Module  # prepared by the accelerator, in training mode
    optimizer: Optimizer  # over the model's parameters
    losses: Losses
    loss_scale: LossScale | None = None  # with precision=fp16
    num_parts: int | None = (
        None  # the parts of a batch whose gradients are summed in a fixed order; None: the fastest order
    )
    counts: Counts = lambda batch: batch.loss_counts

    @functools.cached_property
    def parameters(self) -> list[Tensor]:
        """The parameters of the model."""
        return list(self.model.parameters())

    @functools.cached_property
    def gradient(self) -> GradientSum:
        """How the gradients of a step are summed."""
        return gradient_sum(self.accelerator, self.model, self.num_parts)


@dataclass(frozen=True)
class Course:
    """The steps of a training run, with their batches and learning rates."""

    batches: Callable[[int], NumberedBatches]  # takes a step, counted from 0; returns this process's micro-batches
    learning_rate: Callable[[int], float]  # takes a step, counted from 0
    first_step: int  # steps done already
    steps: int  # the total number of steps when the run ends
    max_grad_norm: float  # the global norm is clipped to this
    seed: int  # dropout is a function of (seed, step, micro-batch)
    skip_steps: Sequence[int] = ()  # steps, counted from 1 as in the log, whose batches are left out


def train(
    learner: Learner,
    course: Course,
    *,
    skips: Skips = NO_SKIPS,
    should_sync: Callable[[int], bool] = lambda step: True,
    stop_requested: Callable[[], bool] = lambda: False,
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[StepReport]:
    """Run the steps of a course; yield a report after each step.

    `skips` counts the skipped steps before the first step. `should_sync` takes a step, counted from 1; it returns whether to wait
    until the device has finished it. The numbers of the other steps are read one step later, without waiting. `stop_requested`
    is called once a step; if it is true on any process, `stop_requested` is true in all reports. `is_over` is called before
    each step, and ends the course early.
    """
    unread: list[StepReport] = []
    for step in range(course.first_step, course.steps):
        if is_over():
            return
        started_at = time.perf_counter()
        micro_batches = course.batches(step) if step + 1 not in course.skip_steps else ()
        report = optimizer_step(learner, course, step, micro_batches, stop_requested=stop_requested())
        unread.append(report)
        # reading the newest report before the next step would make the host wait for the device
        is_synced = should_sync(step + 1) or report.stop_requested or step + 1 == course.steps
        num_read = len(unread) if is_synced else len(unread) - 1
        now_read, unread = unread[:num_read], unread[num_read:]
        for finished in now_read:
            skips = skips.after(finished)
        seconds = time.perf_counter() - started_at
        yield dataclasses.replace(report, seconds=seconds, is_synced=is_synced, skips=skips, now_read=tuple(now_read))


def optimizer_step(
    learner: Learner, course: Course, step: int, micro_batches: NumberedBatches, *, stop_requested: bool = False
) -> StepReport:
    """Train one step on this process's micro-batches of the global batch; without micro-batches only return a report."""
    report = _sum_counts(learner, course, step, micro_batches, stop_requested)
    if not micro_batches:
        return report
    optimizer, loss_scale = learner.optimizer, learner.loss_scale
    factor = 1.0 if loss_scale is None else loss_scale.factor

    def forward(number: int, batch: Batch) -> ForwardPass:
        _seed_dropout(course.seed, step, number)
        terms = learner.losses(learner.model, batch)
        # a loss without predictions is 0, with a gradient of 0, since every parameter needs a gradient in every step
        mean: Tensor = sum(terms[name].sum / (count or 1) for name, count in report.counts.items())  # type: ignore[assignment]
        return ForwardPass(mean * factor, _sums_of([terms[name] for name in report.counts]))

    losses, num_correct = learner.gradient.over(micro_batches, report.num_micro_batches, forward)
    grad_norm = clip_global_norm(learner.parameters, course.max_grad_norm, factor)
    # every process has the same losses and the same gradient, so all of them update their weights, or none does
    found_inf = (~(torch.isfinite(losses).all() & torch.isfinite(grad_norm))).to(torch.float32)
    optimizer.update(report.learning_rate, found_inf)
    numbers = Numbers(StepNumbers(losses, num_correct, grad_norm, None if loss_scale is None else loss_scale.factor))
    if loss_scale is not None:
        loss_scale.update(found_inf)
    return dataclasses.replace(report, numbers=numbers)


def _sum_counts(
    learner: Learner, course: Course, step: int, micro_batches: NumberedBatches, stop_requested: bool
) -> StepReport:
    """Sum counts, tokens and stop requests over all processes; return a report without the numbers of the step."""
    counts = [learner.counts(batch) for _, batch in micro_batches]
    names = sorted(counts[0]) if counts else []
    if other := next((own for own in counts if sorted(own) != names), None):
        raise InputError(
            f"the micro-batches of step {step + 1} have different losses: {', '.join(names)}, and {', '.join(sorted(other))}; "
            "an objective has the same losses in each of them, perhaps with a count of 0"
        )
    local: list[float] = [sum(own[name] for own in counts) for name in names]
    local += [sum(batch.num_tokens for _, batch in micro_batches), len(micro_batches), int(stop_requested)]
    *totals, num_tokens, num_micro_batches, stops = sum_over_processes(learner.accelerator, local)
    return StepReport(
        step=step + 1,
        learning_rate=course.learning_rate(step),
        num_tokens=int(num_tokens),
        num_micro_batches=int(num_micro_batches),
        stop_requested=bool(stops),
        counts=dict(zip(names, totals, strict=True)),
    )


def _seed_dropout(seed: int, step: int, number: int) -> None:
    """Make dropout a function of the seed, the step and the micro-batch."""
    digest = hashlib.blake2b(f"dropout {seed} {step} {number}".encode(), digest_size=8).digest()
    key = int.from_bytes(digest, "little") >> 1
    # without `torch.manual_seed`, which formats a traceback for each kind of device that is not in use
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(key)


def _sums_of(terms: Sequence[LossTerm]) -> Tensor:
    """Return the sum of each loss and, in a second row, its correct predictions: NaN for a regression."""
    sums = [term.sum.detach() for term in terms]
    correct = [torch.full_like(term.sum, math.nan) if term.correct is None else term.correct for term in terms]
    return torch.stack([number.to(torch.float64) for number in (*sums, *correct)]).view(2, -1)


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode; afterwards restore the mode of each module."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
