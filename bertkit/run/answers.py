"""A model's predictions for the examples of a task, in their order, by any number of processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from bertkit.data.tokenizer import Tokenizer
from bertkit.run.objective import best_tokens, task_logits
from bertkit.tasks.batching import FeatureBatches
from bertkit.tasks.config import TaskConfig
from bertkit.tasks.task import Feature, Shape
from bertkit.train import loop, processes
from bertkit.train.losses import LossTerm
from bertkit.train.processes import gather_in_order

EXAMPLES_AT_ONCE = 2048  # whose logits are kept at a time
TOP_K = 5  # tokens of a mask


@dataclass(frozen=True)
class Predictor:
    """A model that predicts the examples of a task.

    Attributes:
        model: with the head of the shape; as `answer` and `answer_here` need it.
        shape: of the examples.
        tokenizer: that features are made with.
        task: what the shape needs to know.
        labels: the names in the order of the logits.
        precision: of the matrix products.
        micro_tokens: of one forward pass.
        top_k: of masked LM, the most probable tokens that are given for a mask.
    """

    model: nn.Module
    shape: Shape
    tokenizer: Tokenizer
    task: TaskConfig
    labels: Sequence[str]
    precision: str
    micro_tokens: int
    top_k: int = TOP_K


def answer(
    accelerator: processes.Accelerator,
    predictor: Predictor,
    examples: Sequence[Any],
    features: Sequence[Feature],
    losses: list[LossTerm] | None = None,
) -> list[Any]:
    """Predict every example; all processes take a share, and all get all predictions.

    Args:
        accelerator: what `processes.make_accelerator` gave.
        predictor: of a model that the accelerator prepared; it is left in the modes it was in.
        examples: at least one.
        features: of the examples, in their order.
        losses: where the loss of every batch of this process is put, of features that all have labels; None for features
            that need not have any.
    """
    rank, size = accelerator.process_index, accelerator.num_processes
    first, last = len(examples) * rank // size, len(examples) * (rank + 1) // size
    borders = np.searchsorted([feature.example for feature in features], np.arange(len(examples) + 1))
    found: list[tuple[int, Any]] = []
    with loop.evaluating(predictor.model):
        for start in range(first, last, EXAMPLES_AT_ONCE):
            stop = min(start + EXAMPLES_AT_ONCE, last)
            mine = [
                dataclasses.replace(feature, example=feature.example - start)
                for feature in features[borders[start] : borders[stop]]
            ]
            found += enumerate(answer_here(predictor, examples[start:stop], mine, losses), start)
    return gather_in_order(found, len(examples))


def answer_here(
    predictor: Predictor,
    examples: Sequence[Any],
    features: Sequence[Feature],
    losses: list[LossTerm] | None = None,
) -> list[Any]:
    """Predict examples in this process, with a model in evaluation mode; arguments as of `answer`."""
    logits = logits_here(predictor, examples, features, losses)
    task, labels, tokenizer = predictor.task, predictor.labels, predictor.tokenizer
    return predictor.shape.predictions(task, examples, features, logits, labels, tokenizer)


def logits_here(
    predictor: Predictor,
    examples: Sequence[Any],
    features: Sequence[Feature],
    losses: list[LossTerm] | None = None,
) -> list[Any]:
    """Give the logits of each feature, of masked LM the most probable tokens; arguments as of `answer`."""
    shape = predictor.shape
    given = features if losses is not None else [dataclasses.replace(feature, label=None) for feature in features]
    num_choices = shape.num_choices(examples)
    batches = FeatureBatches(given, shape.head, num_choices)
    logits: list[Any] = [None] * len(features)
    rows: list[Any]
    for items, batch in batches.in_turn(predictor.micro_tokens, 0, 1):
        places = (items[:, None] * num_choices + np.arange(num_choices)).reshape(-1)
        if shape.pack is not None:
            rows = list(_best_tokens(predictor, [features[place] for place in places.tolist()]))
        else:
            rows, loss = task_logits(predictor.model, batch, predictor.precision)
            if losses is not None and loss is not None:
                losses.append(loss)
        for place, row in zip(places, rows, strict=True):
            logits[place] = row
    return logits


def _best_tokens(predictor: Predictor, features: Sequence[Feature]) -> Iterator[list[tuple[list[int], list[float]]]]:
    """Give for each feature the tokens of its masks, the best first, and their probabilities."""
    assert predictor.shape.pack is not None
    tokens, shares = best_tokens(predictor.model, predictor.shape.pack(features), predictor.top_k, predictor.precision)
    of_masks = zip(tokens.tolist(), shares.tolist(), strict=True)
    for feature in features:
        yield [next(of_masks) for _ in feature.where]


def mean_loss(accelerator: processes.Accelerator, losses: Sequence[LossTerm]) -> float:
    """Give the mean of what `answer` put into `losses`, over all predictions of all processes."""
    own = sum(float(loss.sum) for loss in losses), sum(loss.count for loss in losses)
    everyone = gather_in_order([(accelerator.process_index, own)], accelerator.num_processes)
    return sum(total for total, _ in everyone) / sum(count for _, count in everyone)
