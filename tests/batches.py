"""Small batches of every kind, for the tests of the training step."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.base.batch import Batch, Target

ODD = 19  # the number of the odd batch, with a single short sequence


Ints = NDArray[np.int64]


def masked_batch(
    ids: Ints, types: Ints, lengths: Ints, positions: Ints, labels: Ints, next_sentence: Ints | None = None
) -> Batch:
    """A batch for masked LM and, with its labels, next sentence prediction."""
    pairs = {} if next_sentence is None else {"next_sentence": Target(next_sentence)}
    return Batch(ids, types, lengths, {"masked_lm": Target(labels, positions), **pairs})


def pretraining_batch(number: int, longest: int = 29, most: int = 6) -> Batch:
    """One to `most` sequences of 3 to `longest` tokens, the shortest first."""
    rng = np.random.default_rng(number)
    lengths = np.sort(rng.integers(3, longest + 1, size=rng.integers(1, most + 1))) if number != ODD else np.array([3])
    size = int(lengths.sum())
    ids, types = rng.integers(131, size=size), rng.integers(2, size=size)
    masked = np.sort(rng.permutation(size)[: 1 + size // 7])
    return masked_batch(ids, types, lengths, masked, ids[masked], rng.integers(2, size=len(lengths)))


def task_batch(kind: str, number: int = 0, longest: int = 13) -> Batch:
    """A batch of four sequences for a head; further kinds are "regression", "several" labels, and weighted labels."""
    rng = np.random.default_rng(number)
    lengths = np.sort(rng.integers(2, longest + 1, size=4))
    size, targets = int(lengths.sum()), np.array([3, 5, 2, 5])
    tags = np.where(np.arange(size) % 3 == 0, np.arange(size) % 2, -100)
    head = {"regression": "sequence", "several": "sequence", "weighted": "sequence"}.get(kind, kind)
    labels: dict[str, Any] = {
        "sequence": np.array([1, 0, 1, 1]), "weighted": np.array([1, 0, 1, 1]), "regression": np.array([0.5, 2.0, 1, 0]),
        "several": np.array([[0.0, 1], [1, 1], [0, 0], [1, 0]]), "token": tags, "choice": np.array([1, 0]),
        "span": np.array([[0, 1], [1, 1], [0, 0], [1, 1]]), "generation": rng.integers(5, 131, targets.sum()),
    }  # fmt: skip
    more: dict[str, Any] = {}
    if kind == "generation":
        more = {"decoder_ids": rng.integers(5, 131, targets.sum()), "decoder_lengths": targets}
    ids = rng.integers(5, 131, size)
    weights = np.array([0.25, 3.0]) if kind in ("weighted", "token") else None
    return Batch(ids, ids % 2, lengths, {head: Target(labels[kind], weights=weights)}, **more)
