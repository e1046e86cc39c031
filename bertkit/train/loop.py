"""The training loop: any module, any batches, any losses.

A step of training, whatever the number of processes and micro-batches:

    counts = all_reduce(sum of the loss counts of every micro-batch)        # before any forward pass
    for each micro-batch: backward(sum of term.sum / counts[term.name])
    clip the global norm -> learning rate -> optimizer step, unless a number is not finite -> zero gradients -> StepReport

so the gradient is that of the mean over the whole global batch, exactly, however it is cut up. Whether a step is skipped
is decided on the device, from numbers summed over all processes; the host reads them later, when the next step is under
way.
"""

import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bertkit.train.gradient_sums import DataParallelSum, OrderedSum
from bertkit.train.losses import Losses
from bertkit.train.micro_batches import NumberedBatches
from bertkit.train.optimizer import Optimizer, clip_global_norm
from bertkit.train.processes import Accelerator, sum_over_processes
from bertkit.train.step_report import NO_SKIPS, Numbers, Skips, StepReport


@dataclass(frozen=True)
class Learner:
    """A model with its optimizer and its losses."""

    accelerator: Accelerator
    model: nn.Module  # prepared by the accelerator, in training mode
    optimizer: Optimizer  # over the model's parameters
    losses: Losses


@dataclass(frozen=True)
class Course:
    """The steps to take."""

    batches: Callable[[int], NumberedBatches]  # step, counted from 0 -> this process's micro-batches
    learning_rate: Callable[[int], float]  # of a step, counted from 0
    first_step: int  # steps done already
    steps: int  # where to stop
    max_grad_norm: float  # the global norm is clipped to this
    seed: int  # of the dropout, which is a function of (seed, step, micro-batch)
    num_parts: int | None = None  # of a batch, whose gradients `OrderedSum` adds; None for `DataParallelSum`
    skip_steps: Sequence[int] = ()  # steps, counted from 1 as in the log, whose batches are left out


def train(
    learner: Learner,
    course: Course,
    *,
    skips: Skips = NO_SKIPS,
    is_read: Callable[[int], bool] = lambda step: True,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Iterator[StepReport]:
    """Take the steps of a course; yield a report after each.

    Args:
        learner: trained in place.
        course: the steps.
        skips: of the steps done already.
        is_read: whether the numbers of a step, counted from 1, will be read at once; the others are read one step later,
            when the device is done with them, to learn which steps were skipped.
        stop_requested: called once a step; if true on any process, all reports say so.
    """
    unread: list[StepReport] = []
    for step in range(course.first_step, course.steps):
        started_at = time.perf_counter()
        micro_batches = course.batches(step) if step + 1 not in course.skip_steps else ()
        report = optimizer_step(learner, course, step, micro_batches, stop_requested=stop_requested())
        if not report.is_left_out:
            unread.append(report)
        skipped_before = []
        # reading the newest report before the next step would wait for the device
        reads_all = is_read(step + 1) or report.stop_requested or step + 1 == course.steps
        while len(unread) > (0 if reads_all else 1):
            oldest = unread.pop(0)
            skips = skips.after(oldest.fault is not None)
            if oldest.fault is not None and oldest is not report:
                skipped_before.append(oldest)
        seconds = time.perf_counter() - started_at
        yield dataclasses.replace(
            report, seconds=seconds, is_read=reads_all, skips=skips, skipped_before=tuple(skipped_before)
        )


def optimizer_step(
    learner: Learner, course: Course, step: int, micro_batches: NumberedBatches, *, stop_requested: bool = False
) -> StepReport:
    """Take one step over this process's micro-batches of the global batch; without any, only report."""
    report, num_micro_batches = _agree(learner, course, step, micro_batches, stop_requested)
    if not micro_batches:
        return report
    names, scored = list(report.counts), set()
    gradients: DataParallelSum | OrderedSum = DataParallelSum(learner.accelerator, learner.model)
    if course.num_parts is not None:
        gradients = OrderedSum(learner.accelerator, learner.model, course.num_parts, num_micro_batches)
    for part in gradients.parts(micro_batches):
        numbers = torch.zeros(2 * len(names), dtype=torch.float64, device=learner.accelerator.device)
        for number, batch in part:
            torch.manual_seed(_dropout_seed(course.seed, step, number))
            with gradients.exchange(is_last=number == part[-1][0]):
                terms = learner.losses(learner.model, batch)
                # a loss without predictions is 0 with a gradient of 0: every parameter takes part in every step
                loss = sum(terms[name].sum / (report.counts[name] or 1) for name in names)
                learner.accelerator.backward(loss * gradients.scale)
            for index, name in enumerate(names):
                right = terms[name].correct
                numbers[index] += terms[name].sum.detach()
                if right is not None:
                    scored.add(name)
                    numbers[len(names) + index] += right
        gradients.add(numbers)
    numbers = gradients.finish()
    grad_norm = clip_global_norm(learner.model.parameters(), course.max_grad_norm)
    numbers = gradients.all_reduce(torch.cat([numbers, grad_norm[None].to(numbers)]))
    _update(learner.optimizer, report.learning_rate, numbers)
    return dataclasses.replace(report, scored=frozenset(scored), numbers=Numbers(numbers))


def _agree(
    learner: Learner, course: Course, step: int, micro_batches: NumberedBatches, stop_requested: bool
) -> tuple[StepReport, int]:
    """Sum counts, tokens and requests to stop over all processes; give an unfinished report and the micro-batches."""
    names = sorted(micro_batches[0][1].loss_counts) if micro_batches else []
    local: list[float] = [sum(batch.loss_counts[name] for _, batch in micro_batches) for name in names]
    local += [sum(batch.num_tokens for _, batch in micro_batches), len(micro_batches), int(stop_requested)]
    *counts, num_tokens, num_micro_batches, stops = sum_over_processes(learner.accelerator, local)
    report = StepReport(
        step=step + 1,
        learning_rate=course.learning_rate(step),
        num_tokens=int(num_tokens),
        stop_requested=bool(stops),
        counts=dict(zip(names, counts, strict=True)),
        scored=frozenset(),
        numbers=None,
    )
    return report, int(num_micro_batches)


def _update(optimizer: Optimizer, learning_rate: float, numbers: Tensor) -> None:
    """Update the weights, unless a number is not finite; the numbers are the same on every process."""
    optimizer.found_inf = (~torch.isfinite(numbers).all()).to(torch.float32)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["rate_scale"]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _dropout_seed(seed: int, step: int, number: int) -> int:
    """A 63-bit seed for the dropout of one micro-batch of one step."""
    digest = hashlib.blake2b(f"dropout {seed} {step} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
