"""Two metrics, just enough to choose a checkpoint, until the official ones take this place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from bertkit.errors import InputError

T = TypeVar("T")

METRICS: dict[str, tuple[str, ...]] = {name: (name,) for name in ("accuracy", "pearson")}


def score(
    names: Iterable[str], predictions: Any, references: Any, no_answer_probs: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Compute metrics of predictions: label numbers, or numbers, in the order of the references.

    Raises:
        InputError: an unknown metric.
    """
    scores = {}
    for name in names:
        if name == "accuracy":
            scores[name] = float(np.mean(np.equal(predictions, references)))
        elif name == "pearson":
            scores[name] = float(np.corrcoef(predictions, references)[0, 1])
        else:
            raise InputError(f"metric {name!r}: expected accuracy or pearson")
    return scores


def gather_in_order(numbered: Iterable[tuple[int, T]], total: int) -> list[T]:
    """Collect the predictions of all processes, each exactly once, in the order of their numbers."""
    from torch import distributed

    own = dict(numbered)
    everyone: list[dict[int, T]] = [own]
    if distributed.is_available() and distributed.is_initialized():
        everyone = [own] * distributed.get_world_size()
        distributed.all_gather_object(everyone, own)
    gathered = {number: prediction for part in everyone for number, prediction in part.items()}
    return [gathered[number] for number in range(total)]
