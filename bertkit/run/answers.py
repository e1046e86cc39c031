"""A model's predictions for the examples of a task, in their order, by any number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from bertkit.data.tokenizer import Tokenizer
from bertkit.run.objective import task_logits
from bertkit.tasks import shapes
from bertkit.tasks.batching import FeatureBatches
from bertkit.tasks.config import TaskConfig
from bertkit.tasks.metrics import gather_in_order
from bertkit.tasks.task import Feature
from bertkit.train import loop
from bertkit.train.losses import LossTerm

EXAMPLES_AT_ONCE = 2048  # whose logits are kept at a time


def answer(
    accelerator: loop.Accelerator,
    model: nn.Module,
    task: TaskConfig,
    examples: Sequence[Any],
    features: Sequence[Feature],
    labels: Sequence[str],
    tokenizer: Tokenizer,
    *,
    precision: str,
    micro_tokens: int,
    losses: list[LossTerm] | None = None,
) -> list[Any]:
    """Predict every example; all processes take a share, and all get all predictions.

    Args:
        accelerator: what `loop.make_accelerator` gave.
        model: prepared by it; left in the modes it was in.
        task: its shape.
        examples: at least one.
        features: of the examples, in their order.
        labels: the names in the order of their numbers.
        tokenizer: that the features were made with.
        precision: of the matrix products.
        micro_tokens: of one forward pass.
        losses: where the loss of every batch of this process is put, of features that all have labels; None for features
            that need not have any.
    """
    rank, size = accelerator.process_index, accelerator.num_processes
    first, last = len(examples) * rank // size, len(examples) * (rank + 1) // size
    borders = np.searchsorted([feature.example for feature in features], np.arange(len(examples) + 1))
    found: list[tuple[int, Any]] = []
    with loop.evaluating(model):
        for start in range(first, last, EXAMPLES_AT_ONCE):
            stop = min(start + EXAMPLES_AT_ONCE, last)
            mine = [_renumbered(feature, start) for feature in features[borders[start] : borders[stop]]]
            here = answer_here(
                model,
                task,
                examples[start:stop],
                mine,
                labels,
                tokenizer,
                precision=precision,
                micro_tokens=micro_tokens,
                losses=losses,
            )
            found += enumerate(here, start)
    return gather_in_order(found, len(examples))


def answer_here(
    model: nn.Module,
    task: TaskConfig,
    examples: Sequence[Any],
    features: Sequence[Feature],
    labels: Sequence[str],
    tokenizer: Tokenizer,
    *,
    precision: str,
    micro_tokens: int,
    losses: list[LossTerm] | None = None,
) -> list[Any]:
    """Predict examples in this process, with a model in evaluation mode; arguments as of `answer`."""
    num_choices = shapes.num_choices_of(task, examples)
    given = features if losses is not None else map(_unlabelled, features)
    batches = FeatureBatches(given, shapes.HEADS[task.kind], num_choices)
    logits: list[Any] = [None] * len(features)
    for items, batch in batches.in_turn(micro_tokens, 0, 1):
        places = (items[:, None] * num_choices + np.arange(num_choices)).reshape(-1)
        rows, loss = task_logits(model, batch, precision)
        if losses is not None and loss is not None:
            losses.append(loss)
        for place, row in zip(places, rows, strict=True):
            logits[place] = row
    return shapes.predict(task, examples, features, logits, labels, tokenizer)


def mean_loss(accelerator: loop.Accelerator, losses: Sequence[LossTerm]) -> float:
    """Give the mean of what `answer` put into `losses`, over all predictions of all processes."""
    own = sum(float(loss.sum) for loss in losses), sum(loss.count for loss in losses)
    everyone = gather_in_order([(accelerator.process_index, own)], accelerator.num_processes)
    return sum(total for total, _ in everyone) / sum(count for _, count in everyone)


def _renumbered(feature: Feature, first_example: int) -> Feature:
    return Feature(
        feature.example - first_example,
        feature.input_ids,
        feature.token_type_ids,
        feature.label,
        feature.where,
        feature.num_cut,
    )


def _unlabelled(feature: Feature) -> Feature:
    return Feature(feature.example, feature.input_ids, feature.token_type_ids, None)
