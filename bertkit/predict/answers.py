"""Predictions for the examples of a task, in their order, by any number of processes."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from bertkit.base.batch import TaskBatch
from bertkit.base.errors import NumericsError
from bertkit.predict.generating import ROWS_AT_ONCE, forget_weights, num_rows, write_texts
from bertkit.predict.task_model import Predictor
from bertkit.run.objective import best_tokens, task_logits, task_losses
from bertkit.tasks.batching import FeatureBatches
from bertkit.tasks.task import Feature
from bertkit.train import processes
from bertkit.train.loop import evaluation_mode
from bertkit.train.losses import LossTerm
from bertkit.train.processes import gather_in_order

EXAMPLES_AT_ONCE = 2048  # the logits of so many are in memory together
MOST_LOSS = 700.0  # exp of more overflows


def answer(
    accelerator: processes.Accelerator,
    predictor: Predictor,
    examples: Sequence[Any],
    features: Sequence[Feature],
    losses: list[LossTerm] | None = None,
) -> list[Any]:
    """Predict every example; all processes take a share, and all get all predictions.

    Args:
        accelerator: has prepared the model, whose modes are restored at the end.
        predictor: the model with its task.
        examples: at least one.
        features: of the examples, in their order.
        losses: the loss of every batch of this process is added to it; then all features need labels.
    """
    rank, size = accelerator.process_index, accelerator.num_processes
    first, last = len(examples) * rank // size, len(examples) * (rank + 1) // size
    borders = np.searchsorted([feature.example for feature in features], np.arange(len(examples) + 1))
    predictions: list[tuple[int, Any]] = []
    with evaluation_mode(predictor.model):
        for start in range(first, last, EXAMPLES_AT_ONCE):
            stop = min(start + EXAMPLES_AT_ONCE, last)
            mine = [
                dataclasses.replace(feature, example=feature.example - start)
                for feature in features[borders[start] : borders[stop]]
            ]
            predictions += enumerate(answer_here(predictor, examples[start:stop], mine, losses), start)
    if predictor.shape.writes_text:
        forget_weights(predictor.model)
    return gather_in_order(predictions, len(examples))


def answer_here(
    predictor: Predictor, examples: Sequence[Any], features: Sequence[Feature], losses: list[LossTerm] | None = None
) -> list[Any]:
    """Predict examples in this process with a model in evaluation mode; arguments as for `answer`."""
    logits = logits_here(predictor, examples, features, losses)
    task, labels, tokenizer = predictor.task, predictor.labels, predictor.tokenizer
    return predictor.shape.predictions(task, examples, features, logits, labels, tokenizer)


def logits_here(
    predictor: Predictor, examples: Sequence[Any], features: Sequence[Feature], losses: list[LossTerm] | None = None
) -> list[Any]:
    """Give the logits of every feature: for masked LM the best tokens, for generation the texts; arguments as for `answer`."""
    shape, search = predictor.shape, predictor.task.generation
    if losses is None:
        features = [dataclasses.replace(feature, label=None) for feature in features]
    num_choices = shape.num_choices(examples)
    batches = FeatureBatches(features, shape.head, num_choices)
    most = None if search is None else max(1, ROWS_AT_ONCE // num_rows(search))
    logits: list[Any] = [None] * len(features)
    rows: list[Any]
    for items, batch in batches.in_turn(predictor.micro_tokens, 0, 1, most):
        places = (items[:, None] * num_choices + np.arange(num_choices)).reshape(-1)
        if shape.pack is not None:
            rows = list(_best_tokens(predictor, [features[place] for place in places.tolist()]))
        else:
            rows, loss = _rows_and_loss(predictor, batch, losses is not None)
            if losses is not None and loss is not None:
                losses.append(loss)
        for place, row in zip(places, rows, strict=True):
            logits[place] = row
    return logits


def _rows_and_loss(predictor: Predictor, batch: TaskBatch, with_loss: bool) -> tuple[list[Any], LossTerm | None]:
    """Give the logits, or the written texts, of every sequence, and the loss if asked for."""
    search, loss = predictor.task.generation, None
    if not predictor.shape.writes_text or search is None:
        rows, loss = task_logits(predictor.model, batch, predictor.precision)
        require_finite(all(np.isfinite(row).all() for row in rows))
        return rows, loss
    if with_loss:
        with torch.no_grad():
            loss = task_losses(predictor.model, batch, predictor.precision)[batch.head]
    written = write_texts(predictor.model, batch, search, predictor.precision)
    require_finite(all(math.isfinite(score) for texts in written for _, score in texts))
    return written, loss


def require_finite(is_finite: bool) -> None:
    """Refuse results of a model that overflowed.

    Raises:
        NumericsError: `is_finite` is false.
    """
    if not is_finite:
        raise NumericsError(
            "the model's output is not finite: its weights are too large or damaged; run verify on it, take another "
            "checkpoint, or train again with a lower optimizer.peak_learning_rate="
        )


def _best_tokens(predictor: Predictor, features: Sequence[Feature]) -> Iterator[list[tuple[list[int], list[float]]]]:
    """Give for every feature the tokens at its masks, the best first, and their probabilities."""
    assert predictor.shape.pack is not None
    tokens, shares = best_tokens(predictor.model, predictor.shape.pack(features), predictor.top_k, predictor.precision)
    require_finite(bool(np.isfinite(shares).all()))
    masks = zip(tokens.tolist(), shares.tolist(), strict=True)
    for feature in features:
        yield [next(masks) for _ in feature.where]


def mean_loss(accelerator: processes.Accelerator, losses: Sequence[LossTerm]) -> float:
    """Give the mean loss of the batches that `answer` added to `losses`, over all predictions of all processes."""
    own = sum(float(loss.sum) for loss in losses), sum(loss.count for loss in losses)
    everyone = gather_in_order([(accelerator.process_index, own)], accelerator.num_processes)
    return sum(total for total, _ in everyone) / sum(count for _, count in everyone)


def perplexity(loss: float) -> float:
    """Give the perplexity of a reference token from the mean loss in nats, without smoothing."""
    return math.exp(min(loss, MOST_LOSS))
