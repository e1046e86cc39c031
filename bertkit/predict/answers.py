"""What a model predicts of the examples of a task: in their order, by any number of processes."""

from __future__ import annotations

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
from bertkit.train.evaluation import evaluating
from bertkit.train.losses import LossTerm
from bertkit.train.processes import gather_in_order

EXAMPLES_AT_ONCE = 2048  # whose logits are kept at a time
MOST_LOSS = 700.0  # whose exponential is a number


def answer(
    accelerator: processes.Accelerator,
    predictor: Predictor,
    examples: Sequence[Any],
    features: Sequence[Feature],
    losses: list[LossTerm] | None = None,
) -> list[Any]:
    """Predict every example; all processes take a share, and all get all predictions.

    The accelerator has prepared the model, which is left in the modes it was in. There is at least one example;
    features come in the order of their examples. `losses` is where the loss of every batch of this process is put, of
    features that all have labels; None for features that need not have any.
    """
    rank, size = accelerator.process_index, accelerator.num_processes
    first, last = len(examples) * rank // size, len(examples) * (rank + 1) // size
    borders = np.searchsorted([feature.example for feature in features], np.arange(len(examples) + 1))
    found: list[tuple[int, Any]] = []
    with evaluating(predictor.model):
        for start in range(first, last, EXAMPLES_AT_ONCE):
            stop = min(start + EXAMPLES_AT_ONCE, last)
            mine = [
                dataclasses.replace(feature, example=feature.example - start)
                for feature in features[borders[start] : borders[stop]]
            ]
            found += enumerate(answer_here(predictor, examples[start:stop], mine, losses), start)
    if predictor.shape.head == "generation":
        forget_weights(predictor.model)
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
    search = predictor.task.generation
    most = None if search is None else max(1, ROWS_AT_ONCE // num_rows(search))
    for items, batch in batches.in_turn(predictor.micro_tokens, 0, 1, most):
        places = (items[:, None] * num_choices + np.arange(num_choices)).reshape(-1)
        if shape.pack is not None:
            rows = list(_best_tokens(predictor, [features[place] for place in places.tolist()]))
        else:
            rows, loss = _answers(predictor, batch, losses is not None)
            if losses is not None and loss is not None:
                losses.append(loss)
        for place, row in zip(places, rows, strict=True):
            logits[place] = row
    return logits


def _answers(predictor: Predictor, batch: TaskBatch, with_loss: bool) -> tuple[list[Any], LossTerm | None]:
    """Give the logits of each sequence, or the texts that are written of it, and the loss where it is asked for."""
    search, loss = predictor.task.generation, None
    if batch.head != "generation":
        rows, loss = task_logits(predictor.model, batch, predictor.precision)
        require_finite(all(np.isfinite(row).all() for row in rows))
        return rows, loss
    assert search is not None, "a task of generation"
    if with_loss:
        with torch.no_grad():
            loss = task_losses(predictor.model, batch, predictor.precision)[batch.head]
    written = write_texts(predictor.model, batch, search, predictor.precision)
    require_finite(all(math.isfinite(score) for texts in written for _, score in texts))
    return written, loss


def require_finite(is_finite: bool) -> None:
    """Refuse to take for an answer what a model overflowed at.

    Raises:
        NumericsError: so it is.
    """
    if not is_finite:
        raise NumericsError(
            "what the model computes is not finite: its weights are too large or damaged; verify says more; take another "
            "checkpoint, or train again with a lower optimizer.peak_learning_rate="
        )


def _best_tokens(predictor: Predictor, features: Sequence[Feature]) -> Iterator[list[tuple[list[int], list[float]]]]:
    """Give for each feature the tokens of its masks, the best first, and their probabilities."""
    assert predictor.shape.pack is not None
    tokens, shares = best_tokens(predictor.model, predictor.shape.pack(features), predictor.top_k, predictor.precision)
    require_finite(bool(np.isfinite(shares).all()))
    of_masks = zip(tokens.tolist(), shares.tolist(), strict=True)
    for feature in features:
        yield [next(of_masks) for _ in feature.where]


def mean_loss(accelerator: processes.Accelerator, losses: Sequence[LossTerm]) -> float:
    """Give the mean of what `answer` put into `losses`, over all predictions of all processes."""
    own = sum(float(loss.sum) for loss in losses), sum(loss.count for loss in losses)
    everyone = gather_in_order([(accelerator.process_index, own)], accelerator.num_processes)
    return sum(total for total, _ in everyone) / sum(count for _, count in everyone)


def perplexity(loss: float) -> float:
    """Give the perplexity of a token of the references from their mean loss in nats, without smoothing."""
    return math.exp(min(loss, MOST_LOSS))
