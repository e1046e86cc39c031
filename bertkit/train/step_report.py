"""The report of an optimizer step, whose numbers are read without holding up the device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bertkit.base.errors import NumericsError


class Numbers:
    """Numbers on their way from the device; reading them waits only for the work before them."""

    def __init__(self, values: Tensor) -> None:
        self._values = values.to("cpu", non_blocking=True)
        self._arrival: torch.cuda.Event | None = None
        if values.is_cuda:
            self._arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrival.record()

    def read(self) -> list[float]:
        """Give the numbers."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._values.tolist()


@dataclass(frozen=True)
class Skips:
    """The number of steps skipped for a number that is not finite."""

    total: int = 0
    in_a_row: int = 0  # up to now

    def after(self, is_skipped: bool) -> Skips:
        """Count one more step."""
        return Skips(self.total + is_skipped, self.in_a_row + 1 if is_skipped else 0)


NO_SKIPS = Skips()


@dataclass(frozen=True)
class StepReport:
    """One optimizer step, over all processes; losses, accuracies, gradient norm and fault are read on demand."""

    step: int  # optimizer steps finished, this one included
    learning_rate: float
    num_tokens: int  # of the global batch
    stop_requested: bool  # by a signal to any process
    counts: dict[str, float]  # the divisor of each loss; empty where the batch was left out
    scored: frozenset[str]  # the losses that count right predictions
    # the sum of every loss, then its right predictions, then the gradient's norm; None where the batch was left out
    numbers: Numbers | None
    seconds: float = 0.0  # wall-clock time
    is_read: bool = False  # its numbers are read already
    skips: Skips = NO_SKIPS  # the skipped steps among those that are read
    skipped_before: tuple[StepReport, ...] = ()  # earlier steps that are now known to be skipped

    @property
    def is_left_out(self) -> bool:
        """Whether `data.skip_steps` left out the batch."""
        return self.numbers is None

    @cached_property
    def _values(self) -> list[float]:
        return [0.0] if self.numbers is None else self.numbers.read()

    @property
    def losses(self) -> dict[str, float]:
        """The mean of each loss with predictions over the global batch, before the update."""
        pairs = zip(self.counts.items(), self._values, strict=False)
        return {name: total / count for (name, count), total in pairs if count}

    @property
    def accuracies(self) -> dict[str, float]:
        """The share of right predictions of each loss that counts them."""
        pairs = zip(self.counts.items(), self._values[len(self.counts) :], strict=False)
        return {name: right / count for (name, count), right in pairs if count and name in self.scored}

    @property
    def grad_norm(self) -> float:
        """The global norm of the gradient before clipping."""
        return self._values[-1]

    @property
    def measured(self) -> dict[str, float]:
        """The numbers of the step by their names in the log; empty where it was left out or skipped."""
        if self.is_left_out or self.fault is not None:
            return {}
        losses = self.losses
        return {
            **({"loss": sum(losses.values())} if losses else {}),
            **{f"{name}_loss": value for name, value in losses.items()},
            **{f"{name}_accuracy": value for name, value in self.accuracies.items()},
            "grad_norm": self.grad_norm,
        }

    @property
    def fault(self) -> str | None:
        """Why the step was skipped, without a change of weights and moments; None where it was not."""
        names = [f"{name}_loss" for name in self.counts]
        named = zip([*names, "grad_norm"], [*self._values[: len(names)], self.grad_norm], strict=True)
        wrong = [f"{name} {value}" for name, value in named if not math.isfinite(value)]
        return ", ".join(wrong) or None

    def check_skips(self, max_in_a_row: int) -> None:
        """Stop a run that does not recover.

        Raises:
            NumericsError: the last `max_in_a_row` steps were skipped.
        """
        if self.skips.in_a_row >= max_in_a_row:
            raise NumericsError(
                f"step {self.step}: the loss or the gradient was not finite in {self.skips.in_a_row} steps in a row "
                "(numerics.max_skips_in_a_row); resume with data.skip_steps= the skipped steps of metrics.jsonl, or start "
                "another run with a lower optimizer.peak_learning_rate"
            )
