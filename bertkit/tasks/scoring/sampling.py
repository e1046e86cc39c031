"""How sure a score is: its 95 % interval over examples like these.

A mean of values from 0 to 1, such as the share of right answers, has Wilson's interval. All other scores have the bootstrap's: the
examples are drawn again, as many as there are. A score is a function of how often each example counts, so that all draws are a few
products of matrices.

Axes: n examples, R draws.

Source: Wilson 1927; Price and Bonett 2004; Agresti and Min 2005; Efron 1987 (BCa); Hesterberg 2015 (quantiles for small samples).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float]
Floats = NDArray[np.float64]
Weigh = Callable[
    [Floats], Floats
]  # from weights (R, n), how often each draw takes each example, to a score for each draw
DRAWS, MOST_WEIGHTS = 2000, 1 << 22  # draws, and the most weights in memory at once
MOST_LEFT_OUT = 500  # blocks of examples that are left out one by one, for BCa's acceleration
Z = 1.959964  # the 97.5 % quantile of the normal distribution


class Sampled(Protocol):
    """A score of some examples."""

    def interval(self) -> Interval:
        """Return the 95 % interval."""

    def gain(self, other: Self) -> Interval:
        """Return the 95 % interval of the difference to another score of the same examples."""


@dataclass(frozen=True)
class Mean:
    """The mean of values from 0 to 1, such as 1 for a right answer; with groups, the mean of the groups' means."""

    values: Floats  # (n,)
    groups: Sequence[Hashable] | None = None  # the group of each value
    whole: float = 1.0  # the score if all values are 1

    def interval(self) -> Interval:
        """Return Wilson's interval for as many right and wrong answers as would give the mean the same variance.

        The variance of a small group whose values are all equal is not 0. So to each of k groups, if there are several, 4 / k
        values are added that are half right (Price and Bonett), and one like the mean of all.
        """
        names = self.groups or [0] * len(self.values)
        groups = np.unique(np.array(names), return_inverse=True)[1]
        sizes = np.bincount(groups)
        means, squares = (np.bincount(groups, self.values**power) / sizes for power in (1, 2))
        mean, num_groups = means.mean(), len(sizes)
        half, like_all = (4 / num_groups, 1) if num_groups > 1 else (0, 0)
        sums = [sizes * each + like_all * each.mean() + half / 2 for each in (means, squares)]
        first, second = (each / (sizes + like_all + half) for each in sums)
        spread = mean * (1 - mean)  # the variance of a single answer, right or wrong
        # 1 / the number of those answers; where all values are equal, rounding may leave a variance below 0
        ratio = np.sum(np.maximum(second - first**2, 0) / sizes) / spread if spread > 1e-12 else np.sum(1 / sizes)
        excess = Z**2 * ratio / num_groups**2
        center, width = (mean + excess / 2) / (1 + excess), np.sqrt(excess * spread + excess**2 / 4) / (1 + excess)
        return float(self.whole * (center - width)), float(self.whole * (center + width))

    def gain(self, other: Mean) -> Interval:
        """Return the interval of Agresti and Min for paired values."""
        differences = self.values - other.values
        size = len(differences) + 2
        mean = np.sum(differences) / size
        width = Z * np.sqrt(((differences**2).sum() + 1) / size - mean**2) / np.sqrt(size)
        return float(self.whole * (mean - width)), float(self.whole * (mean + width))


@dataclass(frozen=True)
class Drawn:
    """A score that is a function of how often each example counts."""

    size: int  # n
    of: Weigh
    ends: Interval | None = None  # the worst and the best score, if answers are right or wrong

    def interval(self) -> Interval:
        """Return the BCa interval of the bootstrap."""
        from scipy.special import ndtr, ndtri, stdtrit

        size, draws = self.size, np.concatenate([self.of(weights) for weights in _draws(self.size)])
        score = float(self.of(np.ones((1, size)))[0])
        if np.ptp(draws) < 1e-9:  # if all answers are right, or all wrong, as far as Wilson's interval for a share
            low, high = self.ends if self.ends and score in self.ends else (score, score)
            slack = (high - low) * Z**2 / (size + Z**2)
            return max(low, score - slack), min(high, score + slack)
        left_out = np.concatenate([self.of(weights) for weights in _left_out(size)])
        influence = left_out.mean() - left_out
        acceleration = np.sum(influence**3) / max(6 * np.sum(influence**2) ** 1.5, 1e-30)
        below = (np.mean(draws < score) + np.mean(draws <= score)) / 2
        bias = ndtri(np.clip(below, 0.5 / DRAWS, 1 - 0.5 / DRAWS))
        # Student's t, with the degrees of freedom of the variance of such influences: few if some are far out
        kurtosis = len(influence) * np.sum(influence**4) / max(np.sum(influence**2) ** 2, 1e-30)
        freedom = min(2 * len(influence) / max(kurtosis - 1, 1e-9), size - 1)
        z = bias + np.sqrt(size / (size - 1)) * stdtrit(freedom, np.array([0.025, 0.975]))
        low, high = np.quantile(draws, ndtr(bias + z / np.maximum(1 - acceleration * z, 0.1)))
        return float(low), float(high)

    def gain(self, other: Drawn) -> Interval:
        """Return the interval of the difference in the same draws."""
        return Drawn(self.size, lambda weights: self.of(weights) - other.of(weights)).interval()


def _left_out(size: int) -> Iterator[Floats]:
    """Yield the weights of all examples but those of one block, for each block, some (R, n) at once."""
    blocks, at_once = np.arange(min(size, MOST_LEFT_OUT)), max(1, MOST_WEIGHTS // size)
    for start in range(0, len(blocks), at_once):
        yield (blocks[start : start + at_once, None] != np.arange(size) % len(blocks)).astype(float)


def _draws(size: int) -> Iterator[Floats]:
    """Yield the weights of all draws, the same each time, some (R, n) at once."""
    rng, at_once = np.random.default_rng(0), max(1, MOST_WEIGHTS // size)
    for start in range(0, DRAWS, at_once):
        num_draws = min(at_once, DRAWS - start)
        places = rng.integers(size, size=(num_draws, size)) + size * np.arange(num_draws)[:, None]
        yield np.bincount(places.ravel(), minlength=num_draws * size).reshape(num_draws, size).astype(float)


def from_sums(rows: Floats, finish: Callable[..., Any], ends: Interval | None = None) -> Drawn:
    """Return a score that `finish` computes from sums over the examples; `rows` are their counts, a column for each sum."""
    return Drawn(len(rows), lambda weights: np.asarray(finish(*(rows.T @ weights.T))), ends)


def ratio(part: Any, whole: Any) -> Any:
    """Return part / whole; 0 where the whole is 0."""
    return np.divide(part, whole, out=np.zeros(np.broadcast(part, whole).shape), where=np.asarray(whole) > 0)


def f1_of(common: Any, predicted: Any, true: Any) -> Any:
    """Return F1 from counts."""
    return ratio(2 * common, predicted + true)
