"""The training loop, and evaluation, for any module, any batches and any losses.

One training step, for any number of processes and micro-batches:

    counts = all_reduce(sum of the loss counts of every micro-batch)        # before any forward pass
    for each micro-batch: backward(sum of term.sum / counts[term.name])
    clip the global norm -> learning rate -> optimizer step, unless a number is not finite -> zero gradients -> StepReport

So the gradient is exactly the gradient of the mean loss over the global batch, for any division into micro-batches. The
device decides whether a step is skipped, from numbers summed over all processes. The host reads these numbers later, while
the next step is running.
"""

import contextlib
import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from bertkit.train.loss_scale import LossScale
from bertkit.train.losses import Losses
from bertkit.train.micro_batches import DataParallelSum, MicroBatch, NumberedBatches, OrderedSum
from bertkit.train.optimizer import Optimizer, clip_global_norm
from bertkit.train.processes import Accelerator, gather_in_order, sum_over_processes
from bertkit.train.step_report import NO_SKIPS, Numbers, Skips, StepReport


@dataclass(frozen=True)
class Learner:
    """A model with its optimizer and its losses."""

    accelerator: Accelerator
    model: nn.Module  # prepared by the accelerator, in training mode
    optimizer: Optimizer  # over the model's parameters
    losses: Losses
    loss_scale: LossScale | None = None  # with precision=fp16


@dataclass(frozen=True)
class Course:
    """The steps of a training run, with their batches and learning rates."""

    batches: Callable[[int], NumberedBatches]  # takes a step, counted from 0; returns this process's micro-batches
    learning_rate: Callable[[int], float]  # takes a step, counted from 0
    first_step: int  # steps done already
    steps: int  # the total number of steps when the run ends
    max_grad_norm: float  # the global norm is clipped to this
    seed: int  # dropout is a function of (seed, step, micro-batch)
    num_parts: int | None = None  # parts of a batch in `OrderedSum`; None: `DataParallelSum` adds the gradients
    skip_steps: Sequence[int] = ()  # steps, counted from 1 as in the log, whose batches are left out


def train(
    learner: Learner,
    course: Course,
    *,
    skips: Skips = NO_SKIPS,
    should_sync: Callable[[int], bool] = lambda step: True,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Iterator[StepReport]:
    """Run the steps of a course; yield a report after each step.

    `skips` counts the skipped steps before the first step. `should_sync` takes a step, counted from 1; it returns whether to wait
    until the device has finished it. The numbers of the other steps are read one step later, without waiting. `stop_requested`
    is called once a step; if it is true on any process, `stop_requested` is true in all reports.
    """
    pending: list[StepReport] = []  # their numbers are not read yet
    for step in range(course.first_step, course.steps):
        started_at = time.perf_counter()
        micro_batches = course.batches(step) if step + 1 not in course.skip_steps else ()
        report = optimizer_step(learner, course, step, micro_batches, stop_requested=stop_requested())
        if not report.is_left_out:
            pending.append(report)
        skipped_before = []
        # reading the newest report before the next step would make the host wait for the device
        is_synced = should_sync(step + 1) or report.stop_requested or step + 1 == course.steps
        while len(pending) > (0 if is_synced else 1):
            oldest = pending.pop(0)
            skips = skips.after(oldest)
            if oldest.skip_reason is not None and oldest is not report:
                skipped_before.append(oldest)
        seconds = time.perf_counter() - started_at
        yield dataclasses.replace(
            report, seconds=seconds, is_synced=is_synced, skips=skips, skipped_before=tuple(skipped_before)
        )


def optimizer_step(
    learner: Learner, course: Course, step: int, micro_batches: NumberedBatches, *, stop_requested: bool = False
) -> StepReport:
    """Train one step on this process's micro-batches of the global batch; without micro-batches only return a report."""
    report, num_micro_batches = _sum_counts(learner, course, step, micro_batches, stop_requested)
    if not micro_batches:
        return report
    names, scored, loss_scale = list(report.counts), set(), learner.loss_scale
    factor = 1.0 if loss_scale is None else loss_scale.factor
    gradients: DataParallelSum | OrderedSum = DataParallelSum(learner.accelerator, learner.model)
    if course.num_parts is not None:
        gradients = OrderedSum(learner.accelerator, learner.model, course.num_parts, num_micro_batches)
    for part in gradients.parts(micro_batches):
        step_sums = torch.zeros(2 * len(names), dtype=torch.float64, device=learner.accelerator.device)
        for number, batch in part:
            # dropout is a function of the seed, the step and the micro-batch
            digest = hashlib.blake2b(f"dropout {course.seed} {step} {number}".encode(), digest_size=8).digest()
            torch.manual_seed(int.from_bytes(digest, "little") >> 1)
            with gradients.exchange(is_last=number == part[-1][0]):
                terms = learner.losses(learner.model, batch)
                # a loss without predictions is 0, with a gradient of 0, since every parameter needs a gradient in every step
                loss = sum(terms[name].sum / (report.counts[name] or 1) for name in names)
                learner.accelerator.backward(loss * (gradients.scale * factor))
            for index, name in enumerate(names):
                correct = terms[name].correct
                step_sums[index] += terms[name].sum.detach()
                if correct is not None:
                    scored.add(name)
                    step_sums[len(names) + index] += correct
        gradients.add(step_sums)
    step_sums = gradients.finish()
    grad_norm = clip_global_norm(learner.model.parameters(), course.max_grad_norm, factor)
    step_sums = gradients.all_reduce(torch.cat([step_sums, grad_norm[None].to(step_sums)]))
    optimizer = learner.optimizer  # updates the weights if all numbers are finite; they are the same on every process
    optimizer.found_inf = (~torch.isfinite(step_sums).all()).to(torch.float32)
    for group in optimizer.param_groups:
        group["lr"] = report.learning_rate * group["rate_scale"]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if loss_scale is not None:
        step_sums = torch.cat([step_sums, loss_scale.factor[None]])
        loss_scale.update(optimizer.found_inf)
    return dataclasses.replace(report, scored=frozenset(scored), numbers=Numbers(step_sums))


def _sum_counts(
    learner: Learner, course: Course, step: int, micro_batches: NumberedBatches, stop_requested: bool
) -> tuple[StepReport, int]:
    """Sum counts, tokens and stop requests over all processes; return an unfinished report and the number of micro-batches."""
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


@dataclass(frozen=True)
class EvaluationResult:
    """The mean loss and the accuracy over `count` predictions; the accuracy of a regression is NaN."""

    loss: float
    accuracy: float
    count: int


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


@torch.no_grad()
def evaluate(
    accelerator: Accelerator, model: nn.Module, losses: Losses, batches: Iterable[MicroBatch]
) -> dict[str, EvaluationResult]:
    """Evaluate each loss that has predictions, over the batches of all processes; a process may have none."""
    sums: dict[str, list[float]] = {}
    with evaluation_mode(model):
        for batch in batches:
            for name, term in losses(model, batch).items():
                total = sums.setdefault(name, [0.0, 0.0, 0.0])
                correct = math.nan if term.correct is None else float(term.correct)
                for index, value in enumerate((float(term.sum), correct, float(term.count))):
                    total[index] += value
    gathered = gather_in_order([(accelerator.process_index, sums)], accelerator.num_processes)
    results = {}
    for name in sorted({name for part in gathered for name in part}):
        loss, correct, count = (sum(part[name][index] for part in gathered if name in part) for index in range(3))
        if count:
            results[name] = EvaluationResult(loss / count, correct / count, int(count))
    return results
