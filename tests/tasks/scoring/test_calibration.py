"""The temperature and the expected calibration error, beside a fine grid and plain loops."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, softmax

from bertkit.tasks.scoring.calibration import Calibration, Decisions


def ece(probabilities: NDArray[np.float64], right: NDArray[np.int64]) -> float:
    """Guo et al. 2017, equation 3, bin by bin: probabilities (m, K) and right classes (m,)."""
    total, confidence, is_right = 0.0, probabilities.max(1), probabilities.argmax(1) == right
    for number in range(15):
        own = (confidence >= number / 15) & ((confidence < (number + 1) / 15) | (number == 14))
        if own.any():
            total += own.sum() / len(right) * abs(is_right[own].mean() - confidence[own].mean())
    return total


def drawn(num_examples: int, num_classes: int, sharpness: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Logits that are `sharpness` times those that the classes are drawn from: the best temperature is near it."""
    rng = np.random.default_rng(7)
    logits = rng.normal(0, 1.5, (num_examples, num_classes))
    right = np.array([rng.choice(num_classes, p=row) for row in softmax(logits, axis=1)])
    return sharpness * logits, right


@pytest.mark.parametrize("sharpness", [0.4, 3.0])
def test_one_label(sharpness: float) -> None:
    logits, right = drawn(401, 5, sharpness)
    decisions = Decisions.of(softmax(logits, axis=1)[:, None], right[:, None].tolist())
    actual = Calibration.of(decisions)
    grid = np.exp(np.linspace(np.log(sharpness / 2), np.log(sharpness * 2), 4001))
    losses = [-log_softmax(logits / value, axis=1)[np.arange(401), right].mean() for value in grid]
    assert actual.temperature == pytest.approx(grid[np.argmin(losses)], rel=4e-4)
    assert actual.temperature == pytest.approx(sharpness, rel=0.2)
    assert actual.error_before == pytest.approx(ece(softmax(logits, axis=1), right))
    assert actual.error_after < actual.error_before / 2
    # each half with the temperature of the other: halves by turns in the order of the labels
    crossed, halves = np.empty_like(logits), np.empty(401, bool)
    halves[np.argsort(right, kind="stable")] = np.arange(401) % 2 == 1
    for half in (halves, ~halves):
        losses = [
            -log_softmax(logits[~half] / value, axis=1)[np.arange((~half).sum()), right[~half]].mean() for value in grid
        ]
        crossed[half] = logits[half] / grid[np.argmin(losses)]
    assert actual.error_after == pytest.approx(ece(softmax(crossed, axis=1), right), abs=2e-3)


def test_several_labels_are_decisions_of_yes_and_no() -> None:
    logits, _ = drawn(97, 3, 4.0)
    labels = np.random.default_rng(3).random((97, 3)) < expit(logits / 4)
    shares = expit(logits)
    actual = Calibration.of(Decisions.of(np.stack([1 - shares, shares], -1), labels))
    grid = np.exp(np.linspace(np.log(2), np.log(8), 4001))
    losses = [-np.log(np.where(labels, expit(logits / value), expit(-logits / value))).mean() for value in grid]
    assert actual.temperature == pytest.approx(grid[np.argmin(losses)], rel=4e-4)
    assert actual.error_before == pytest.approx(ece(np.stack([1 - shares, shares], -1).reshape(-1, 2), labels.ravel()))


@pytest.mark.parametrize("right", [[[0]], [[0]] * 7, [[1]] * 7])  # a single row; all right; all wrong
def test_no_temperature_fits(right: list[list[int]]) -> None:
    actual = Calibration.of(Decisions.of(np.array([[[0.8, 0.2]]] * len(right)), right))
    assert actual.temperature is None
    assert actual.error_after == actual.error_before == pytest.approx(0.8 if right[0] == [1] else 0.2)
    assert "no temperature fits the 7 rows of dev: all predictions are right, or" in actual.line("7 rows")
