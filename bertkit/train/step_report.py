"""The report of an optimizer step; its numbers are copied from the device in the background."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bertkit.base.errors import NumericsError
from bertkit.train.loss_scale import SMALLEST


@dataclass(frozen=True)
class StepNumbers:
    """The numbers of a step, summed over the global batch."""

    losses: Tensor  # the sum of each loss
    num_correct: Tensor  # the correct predictions of each loss; NaN for a regression
    grad_norm: Tensor  # the global norm of the gradient before clipping
    loss_scale: Tensor | None = None  # the factor of the loss, with precision=fp16


class Numbers:
    """Numbers that are being copied from the device, packed; `read` waits for the copy, not for later work of the device."""

    def __init__(self, numbers: StepNumbers) -> None:
        tensors = [numbers.losses, numbers.num_correct, numbers.grad_norm]
        if numbers.loss_scale is not None:
            tensors.append(numbers.loss_scale)
        packed = torch.cat([tensor.to(torch.float64).reshape(-1) for tensor in tensors])
        self._sizes = [tensor.numel() for tensor in tensors]
        self._values = packed.to("cpu", non_blocking=True)
        self._arrival: torch.cuda.Event | None = None
        if packed.is_cuda:
            self._arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrival.record()

    def read(self) -> StepNumbers:
        """Wait for the numbers and return them, on the CPU."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return StepNumbers(*torch.split(self._values, self._sizes))


NO_NUMBERS = StepNumbers(torch.zeros(0), torch.zeros(0), torch.zeros(1))


@dataclass(frozen=True)
class Skips:
    """How many steps were skipped because a loss or the gradient was not finite; overflows of the loss scale do not count."""

    total: int = 0
    in_a_row: int = 0  # up to the newest step

    def after(self, report: StepReport) -> Skips:
        """Count one more step."""
        if report.has_overflowed or report.is_left_out:
            return self
        is_skipped = report.skip_reason is not None
        return Skips(self.total + is_skipped, self.in_a_row + 1 if is_skipped else 0)


NO_SKIPS = Skips()


@dataclass(frozen=True)
class StepReport:
    """One optimizer step, over all processes; its numbers are read when a property first needs them."""

    step: int  # optimizer steps finished, this one included
    learning_rate: float
    num_tokens: int  # in the global batch
    num_micro_batches: int  # in the global batch
    stop_requested: bool  # whether any process received a signal to stop
    counts: dict[str, float]  # the divisor of each loss; empty if the batch was left out
    numbers: Numbers | None = None  # None if the batch was left out
    seconds: float = 0.0  # wall-clock time
    is_synced: bool = False  # whether the host has waited for this step and read its numbers
    skips: Skips = NO_SKIPS  # counts the steps whose numbers have been read
    now_read: tuple[StepReport, ...] = ()  # the steps whose numbers are read since this step, the oldest first

    @property
    def is_left_out(self) -> bool:
        """Whether the batch was left out because of `data.skip_steps`."""
        return self.numbers is None

    @cached_property
    def _read(self) -> StepNumbers:
        return NO_NUMBERS if self.numbers is None else self.numbers.read()

    @property
    def losses(self) -> dict[str, float]:
        """The mean of each loss over its predictions in the global batch, before the update."""
        pairs = zip(self.counts.items(), self._read.losses.tolist(), strict=True)
        return {name: total / count for (name, count), total in pairs if count}

    @property
    def loss(self) -> float:
        """The sum of the means, which the step minimises; 0 if the batch was left out."""
        return sum(self.losses.values())

    @property
    def accuracies(self) -> dict[str, float]:
        """The share of correct predictions, for each loss that has an accuracy."""
        pairs = zip(self.counts.items(), self._read.num_correct.tolist(), strict=True)
        return {name: correct / count for (name, count), correct in pairs if count and not math.isnan(correct)}

    @property
    def grad_norm(self) -> float:
        """The global norm of the gradient before clipping."""
        return float(self._read.grad_norm)

    @property
    def loss_scale(self) -> float | None:
        """The factor of the loss in this step; None without loss scaling."""
        return None if self._read.loss_scale is None else float(self._read.loss_scale)

    @property
    def has_overflowed(self) -> bool:
        """Whether only the scaled gradient is not finite; with a scale of 1 or less, that is a fault like any other."""
        are_finite = bool(torch.isfinite(self._read.losses).all())
        return (self.loss_scale or 0) > SMALLEST and are_finite and not math.isfinite(self.grad_norm)

    @property
    def measured(self) -> dict[str, float]:
        """The numbers of the step by their names in the log; empty if the step was left out or skipped."""
        if self.is_left_out or self.skip_reason is not None:
            return {}
        losses = self.losses
        return {
            **({"loss": self.loss} if losses else {}),
            **{f"{name}_loss": value for name, value in losses.items()},
            **{f"{name}_accuracy": value for name, value in self.accuracies.items()},
            "grad_norm": self.grad_norm,
            **({} if self.loss_scale is None else {"loss_scale": self.loss_scale}),
        }

    @property
    def skip_reason(self) -> str | None:
        """Why the step was skipped, leaving weights and moments unchanged; None if it was not skipped."""
        if self.has_overflowed:
            return f"overflow in float16, loss scale {self.loss_scale:g}"
        values = dict(zip((f"{name}_loss" for name in self.counts), self._read.losses.tolist(), strict=True))
        values["grad_norm"] = self.grad_norm
        wrong = [f"{name} {value}" for name, value in values.items() if not math.isfinite(value)]
        return ", ".join(wrong) or None

    def check_skips(self, max_in_a_row: int) -> None:
        """Raise NumericsError if the last `max_in_a_row` steps were skipped."""
        if self.skips.in_a_row >= max_in_a_row:
            raise NumericsError(
                f"step {self.step}: the loss or the gradient was not finite in {self.skips.in_a_row} steps in a row "
                "(numerics.max_skips_in_a_row); resume with data.skip_steps=[...] for the steps marked in metrics.jsonl, or start "
                "another run with a lower optimizer.peak_learning_rate"
            )
