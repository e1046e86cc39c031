"""The shapes of tasks by their names, and what is the same of all: features a part at a time, metrics that fit."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.scoring import metrics
from bertkit.tasks.task import Feature, LabelNames, Shape
from bertkit.tasks.task_config import SHAPES, TaskConfig

EXAMPLES_AT_ONCE = 4096  # that are tokenized together


def shape_of(task: TaskConfig) -> Shape:
    """Give the shape of a task."""
    return _shape(task.kind)


def shape_of_head(head: str) -> Shape:
    """Give the shape whose tasks a head is for; the first of several."""
    return next(shape for shape in map(_shape, SHAPES) if shape.head == head)


def of_running_text(shape: Shape) -> Shape:
    """Give what reads running text where words are not given: of a tagger, entities; every other shape reads it itself."""
    if not shape.is_of_words:
        return shape
    from bertkit.tasks import entities

    return entities.SHAPE


def _shape(kind: str) -> Shape:
    shape: Shape = importlib.import_module(SHAPES[kind]).SHAPE
    return shape


def make_features(
    task: TaskConfig, examples: Sequence[Any], tokenizer: Tokenizer, labels: LabelNames, shape: Shape | None = None
) -> Iterator[Feature]:
    """Turn the examples of a task into features, with labels where they have them; `shape` is the task's if not given.

    A part of the examples at a time, since what tokenizing makes on its way is many times larger than the features.
    """
    shape = shape or shape_of(task)
    if examples:
        shape.num_choices(examples)  # refused before any is made
    for start in range(0, len(examples), EXAMPLES_AT_ONCE):
        part = examples[start : start + EXAMPLES_AT_ONCE]
        for feature in shape.features(task, part, tokenizer, labels):
            yield feature if start == 0 else dataclasses.replace(feature, example=feature.example + start)


def check_metrics(task: TaskConfig, labels: LabelNames | None = None) -> None:
    """Refuse metrics that there are not, and those that do not measure what the task predicts, before anything is trained.

    Where `labels` is None only the data knows them, and what depends on them is left out.

    Raises:
        InputError: a metric is unknown or not for the shape and labels, or the main one is not among the scores.
    """
    unknown = [name for name in task.metrics if name not in metrics.METRICS]
    if unknown:
        raise InputError(f"task.metrics: unknown {', '.join(unknown)}; expected some of {', '.join(metrics.METRICS)}")
    measured = shape_of(task).measured(task, labels)
    fitting = measured.metrics
    unfit = [name for name in task.metrics if name not in fitting]
    if unfit:
        what = f"task.metrics: {', '.join(unfit)} cannot measure {measured.what}"
        if measured.way_out:
            raise InputError(f"{what}{measured.way_out}")
        main = next((name for name in fitting if task.best_metric in metrics.METRICS[name]), None)
        way = "" if main else f" task.best_metric={metrics.METRICS[fitting[0]][0]}"
        raise InputError(f"{what}; expected some of {', '.join(fitting)}: set task.metrics=[{main or fitting[0]}]{way}")
    keys = [key for name in task.metrics for key in metrics.METRICS[name]]
    if task.best_metric not in keys:
        raise InputError(f"task.best_metric={task.best_metric}: expected one of {', '.join(keys)}")
