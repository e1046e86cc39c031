"""Small batches of every kind, for the tests of the training step."""

from typing import Any

import numpy as np

from bertkit.base.batch import PretrainBatch, TaskBatch

ODD = 19  # the number of the odd batch, with a single short sequence


def pretraining_batch(number: int, longest: int = 29, most: int = 6) -> PretrainBatch:
    """One to `most` sequences of 3 to `longest` tokens, the shortest first."""
    rng = np.random.default_rng(number)
    lengths = np.sort(rng.integers(3, longest + 1, size=rng.integers(1, most + 1))) if number != ODD else np.array([3])
    size = int(lengths.sum())
    ids, types = rng.integers(131, size=size), rng.integers(2, size=size)
    masked = np.sort(rng.permutation(size)[: 1 + size // 7])
    return PretrainBatch(ids, types, lengths, masked, ids[masked], rng.integers(2, size=len(lengths)))


def task_batch(kind: str, number: int = 0, longest: int = 13) -> TaskBatch:
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
    if kind in ("weighted", "token"):
        more["class_weights"] = np.array([0.25, 3.0])
    if kind == "generation":
        more |= {"target_ids": rng.integers(5, 131, targets.sum()), "target_lengths": targets}
    ids = rng.integers(5, 131, size)
    return TaskBatch(head, ids, ids % 2, lengths, labels[kind], 2 if kind == "choice" else 1, **more)
