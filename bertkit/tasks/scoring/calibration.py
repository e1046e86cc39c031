"""Probabilities that can be trusted: one temperature, fitted on held-out examples, by which logits are divided.

Axes: n examples, L decisions about an example (1 if it has one label, else one for each label), K classes of a decision.
Source: Guo et al. 2017, 4.2, and for the expected calibration error equation 3, with bins as in Naeini et al. 2015.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bertkit.tasks.scoring.review import calibration

LIMITS = (0.01, 100.0)  # of a temperature
SMALLEST = np.finfo(np.float64).tiny  # stands for a probability of 0


@dataclass(frozen=True)
class Decisions:
    """What a model says of examples, and what is right."""

    log_probabilities: NDArray[np.float64]  # (n, L, K)
    right: NDArray[np.int64]  # (n, L)

    @classmethod
    def of(cls, probabilities: NDArray[np.float64], right: Sequence[Sequence[int]] | NDArray[np.bool_]) -> Self:
        """Return the decisions of probabilities, (n, L, K)."""
        return cls(np.log(np.maximum(probabilities, SMALLEST)), np.array(right, np.int64))

    def take(self, rows: NDArray[np.bool_]) -> "Decisions":
        """Return the decisions about some examples."""
        return Decisions(self.log_probabilities[rows], self.right[rows])

    def at(self, temperatures: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the log-probabilities after the logits of each example are divided by its temperature, (n,)."""
        from scipy.special import log_softmax

        return np.asarray(log_softmax(self.log_probabilities / temperatures[:, None, None], axis=-1))

    def error(self, temperatures: NDArray[np.float64]) -> float:
        """Return the expected calibration error with a temperature for each example, (n,)."""
        tempered = self.at(temperatures)
        confidences, is_right = np.exp(tempered.max(-1)), tempered.argmax(-1) == self.right
        return float(calibration(zip(confidences.ravel(), is_right.ravel(), strict=True))["error"])

    def temperature(self) -> float | None:
        """Return the temperature with the smallest negative log-likelihood of the right classes; None if there is none.

        The likelihood is concave in 1 / temperature. It has no maximum if every decision is right, or if the decisions are no better than none.
        """
        from scipy.optimize import minimize_scalar

        of_right = np.take_along_axis(self.log_probabilities, self.right[..., None], -1)[..., 0]
        is_right = of_right == self.log_probabilities.max(-1)
        if is_right.all() or of_right.mean() <= self.log_probabilities.mean():
            return None

        def loss(logarithm: float) -> float:
            tempered = self.at(np.full(len(self.right), np.exp(logarithm)))
            return -float(np.take_along_axis(tempered, self.right[..., None], -1).mean())

        low, high = np.log(LIMITS)
        return float(np.exp(minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-7}).x))


@dataclass(frozen=True)
class Calibration:
    """A temperature, and the expected calibration errors without and with it."""

    num_examples: int
    temperature: float | None  # None if none fits
    error_before: float
    error_after: float  # of each half of the examples, with the temperature of the other half

    @classmethod
    def of(cls, decisions: Decisions) -> Self:
        """Fit the temperature on all decisions, and for an honest error on each half, in which labels have equal shares."""
        right = decisions.right
        is_second = np.empty(len(right), np.bool_)
        is_second[np.lexsort(right.T)] = np.arange(len(right)) % 2 == 1
        crossed = np.ones(len(right))
        for half in (is_second, ~is_second):
            crossed[half] = decisions.take(~half).temperature() or 1.0
        errors = decisions.error(np.ones(len(right))), decisions.error(crossed)
        return cls(len(right), decisions.temperature(), *errors)

    def line(self, size: str) -> str:
        """Say what was fitted, on how many examples, such as "19 rows", and what came of it."""
        if self.temperature is None:
            why = "all predictions are right, or they are no better than chance"
            return f"calibrate=true: no temperature fits the {size} of dev: {why}; the probabilities stay as they are"
        return (
            f"calibrated: temperature {self.temperature:.4g}, fitted on the {size} of dev; expected calibration error "
            f"{self.error_before:.4f} before, {self.error_after:.4f} after (each half with the temperature of the other half)"
        )
