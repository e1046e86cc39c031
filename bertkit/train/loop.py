"""The training loop: any module, any batches, any losses.

A step of training, whatever the number of processes and micro-batches:

    counts = all_reduce(sum of the loss counts of every micro-batch)        # before any forward pass
    for each micro-batch: backward(sum of term.sum / counts[term.name])
    clip the global norm -> learning rate -> optimizer step, unless a number is not finite -> zero gradients -> StepReport

so the gradient is that of the mean over the whole global batch, exactly, however it is cut up. Whether a step is skipped
is decided on the device, from numbers summed over all processes; the host reads them later, when the next step is under
way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bertkit.train.losses import LossTerm
from bertkit.train.micro_batches import TreeSum, exchange_and_add, local_parts
from bertkit.train.optimizer import Optimizer, clip_global_norm
from bertkit.train.processes import Accelerator, gather_in_order, sum_over_processes
from bertkit.train.step_report import NO_SKIPS, Numbers, Skips, StepReport


class MicroBatch(Protocol):
    """What the loop needs to know of a batch."""

    @property
    def loss_counts(self) -> Mapping[str, float]:
        """What each loss is divided by: its number of predictions, or the sum of their weights."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens that are not padding."""


Losses = Callable[[nn.Module, Any], dict[str, LossTerm]]
Numbered = Sequence[tuple[int, MicroBatch]]  # the micro-batches of a step, each with its number in the global batch


@dataclass(frozen=True)
class Learner:
    """What learns: a model, what updates it, and what is minimised."""

    accelerator: Accelerator  # what `make_accelerator` gave
    model: nn.Module  # prepared by the accelerator, in training mode
    optimizer: Optimizer  # over the model's parameters
    losses: Losses  # model and micro-batch -> loss terms


@dataclass(frozen=True)
class Course:
    """The steps to take."""

    batches: Callable[[int], Numbered]  # step, counted from 0 -> this process's micro-batches of it
    learning_rate: Callable[[int], float]  # of a step, counted from 0
    first_step: int  # steps done already
    steps: int  # where to stop
    max_grad_norm: float  # the global norm is clipped to this
    seed: int  # of the dropout, which is a function of (seed, step, micro-batch)
    # add the gradients of so many parts of the global batch in one order, the same for every number of processes
    # (`shares`); None leaves the order to data-parallel training
    num_parts: int | None = None
    skip_steps: Sequence[int] = ()  # steps, counted from 1 as in the log, whose batches are left out


def train(
    learner: Learner,
    course: Course,
    *,
    skips: Skips = NO_SKIPS,
    is_read: Callable[[int], bool] = lambda step: True,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Iterator[StepReport]:
    """Take the steps of a course, giving a report after each.

    Args:
        learner: trained in place.
        course: the steps.
        skips: of the steps done already.
        is_read: whether the numbers of a step, counted from 1, will be read at once; those of other steps are read one
            step later, when the device is done with them anyway, to find out which were skipped.
        stop_requested: asked once a step; when any process says yes, every process's report says so.
    """
    unread: list[StepReport] = []
    for step in range(course.first_step, course.steps):
        started_at = time.perf_counter()
        micro_batches = course.batches(step) if step + 1 not in course.skip_steps else ()
        report = optimizer_step(learner, course, step, micro_batches, stop_requested=stop_requested())
        if not report.is_left_out:
            unread.append(report)
        skipped_before = []
        # the newest report stays unread until the next step is under way: to read it now would wait for the device
        reads_all = is_read(step + 1) or report.stop_requested or step + 1 == course.steps
        while len(unread) > (0 if reads_all else 1):
            oldest = unread.pop(0)
            skips = skips.after(oldest.fault is not None)
            if oldest.fault is not None and oldest is not report:
                skipped_before.append(oldest)
        seconds = time.perf_counter() - started_at
        yield dataclasses.replace(report, seconds=seconds, is_read=reads_all, skips=skips, found=tuple(skipped_before))


def optimizer_step(
    learner: Learner, course: Course, step: int, micro_batches: Numbered, *, stop_requested: bool = False
) -> StepReport:
    """Take one step over this process's share of the global batch; without micro-batches, only report."""
    report, num_micro_batches = _agree(learner, course, step, micro_batches, stop_requested)
    if not micro_batches:
        return report
    names, scored = list(report.counts), set()
    gradients = _AnyOrder(learner) if course.num_parts is None else _InOrder(learner, course, num_micro_batches)
    for part in gradients.parts(micro_batches):
        numbers = torch.zeros(2 * len(names), dtype=torch.float64, device=learner.accelerator.device)
        for number, batch in part:
            torch.manual_seed(_dropout_seed(course.seed, step, number))
            with gradients.exchanged(is_last=number == part[-1][0]):
                terms = learner.losses(learner.model, batch)
                # a loss without any prediction is 0 with a gradient of 0, so that every parameter takes part in every step
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
    numbers = gradients.of_all(torch.cat([numbers, grad_norm[None].to(numbers)]))
    _update(learner.optimizer, report.learning_rate, numbers)
    return dataclasses.replace(report, scored=frozenset(scored), numbers=Numbers(numbers))


def _agree(
    learner: Learner, course: Course, step: int, micro_batches: Numbered, stop_requested: bool
) -> tuple[StepReport, int]:
    """Agree with the other processes on what this step is: counts, tokens, and whether any was asked to stop.

    Gives the report to be filled in, and the number of all micro-batches.
    """
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
    """Update the weights, unless a number is not finite; every process sees the same numbers, and so decides alike."""
    optimizer.found_inf = (~torch.isfinite(numbers).all()).to(torch.float32)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["rate_scale"]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


class _AnyOrder:
    """Gradients that data-parallel training adds, in the order that is fastest."""

    def __init__(self, learner: Learner) -> None:
        self.accelerator, self.model = learner.accelerator, learner.model
        self.scale = learner.accelerator.num_processes  # the exchange averages over processes: times this it is the sum

    def parts(self, micro_batches: Numbered) -> list[Numbered]:
        """All of this process's micro-batches are one part."""
        return [micro_batches]

    def exchanged(self, is_last: bool) -> AbstractContextManager[None]:
        """Exchange gradients once, after the last micro-batch."""
        return nullcontext() if is_last else self.accelerator.no_sync(self.model)

    def add(self, numbers: Tensor) -> None:
        """Take this process's numbers; its gradient is in the model."""
        self.numbers = numbers

    def finish(self) -> Tensor:
        """The whole gradient is in the model; give this process's numbers."""
        return self.numbers

    def of_all(self, numbers: Tensor) -> Tensor:
        """Sum numbers over the processes; the last one, the gradient's norm, is the same on each unless one of them fails."""
        numbers = self.accelerator.reduce(numbers, "sum")
        numbers[-1] /= self.scale
        return numbers


class _InOrder:
    """Gradients of the parts of a batch, added in the order of `shares` whatever the processes."""

    scale = 1

    def __init__(self, learner: Learner, course: Course, num_micro_batches: int) -> None:
        assert course.num_parts is not None, "gradients are added in one order part by part"
        self.accelerator, self.model = learner.accelerator, learner.model
        self.num_parts, self.num_micro_batches = course.num_parts, num_micro_batches
        self.trained = [parameter for parameter in learner.model.parameters() if parameter.requires_grad]
        self.gradients, self.numbers = TreeSum(), TreeSum()

    def parts(self, micro_batches: Numbered) -> list[Numbered]:
        """Group this process's micro-batches by parts; some may be empty."""
        by_number, rank, size = dict(micro_batches), self.accelerator.process_index, self.accelerator.num_processes
        parts = local_parts(self.num_micro_batches, self.num_parts, rank, size)
        return [[(number, by_number[number]) for number in part] for part in parts]

    def exchanged(self, is_last: bool) -> AbstractContextManager[None]:
        """Exchange nothing yet."""
        no_exchange: AbstractContextManager[None] = self.accelerator.no_sync(self.model)
        return no_exchange

    def add(self, numbers: Tensor) -> None:
        """Take a part's numbers, and its gradient out of the model."""
        self.numbers.add(numbers)
        whole = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.trained]
        self.gradients.add(torch.cat([gradient.reshape(-1) for gradient in whole]))
        for parameter in self.trained:
            parameter.grad = None

    def finish(self) -> Tensor:
        """Leave the whole gradient, of all processes, in the model; give the sum of their numbers."""
        rank, size = self.accelerator.process_index, self.accelerator.num_processes
        gradient, numbers = (exchange_and_add(tree.total(), rank, size) for tree in (self.gradients, self.numbers))
        pieces = torch.split(gradient, [parameter.numel() for parameter in self.trained])
        for parameter, piece in zip(self.trained, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
        return numbers

    def of_all(self, numbers: Tensor) -> Tensor:
        """They are those of all processes already."""
        return numbers


@dataclass(frozen=True)
class Measured:
    """The mean loss and the accuracy over a number of predictions; NaN where none is right or wrong."""

    loss: float
    accuracy: float
    count: int


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and afterwards each of its modules back into the mode that it was in.

    Frozen parts stay in evaluation mode while the others train.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@torch.no_grad()
def evaluate(
    accelerator: Accelerator, model: nn.Module, losses: Losses, batches: Iterator[MicroBatch]
) -> dict[str, Measured]:
    """Measure each loss that has predictions over all batches of all processes.

    Every process brings its own, disjoint batches; it may have none.
    """
    sums: dict[str, list[float]] = {}
    with evaluating(model):
        for batch in batches:
            for name, term in losses(model, batch).items():
                total = sums.setdefault(name, [0.0, 0.0, 0.0])
                correct = math.nan if term.correct is None else float(term.correct)
                for index, value in enumerate((float(term.sum), correct, float(term.count))):
                    total[index] += value
    rank, size = accelerator.process_index, accelerator.num_processes
    gathered = gather_in_order([(rank, sums)], size)
    names = sorted({name for part in gathered for name in part})
    results = {}
    for name in names:
        loss, correct, count = (sum(part[name][index] for part in gathered if name in part) for index in range(3))
        if count:
            results[name] = Measured(loss / count, correct / count, int(count))
    return results


def _dropout_seed(seed: int, step: int, number: int) -> int:
    """A 63-bit seed for the dropout of one micro-batch of one step."""
    digest = hashlib.blake2b(f"dropout {seed} {step} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
