"""The shapes of tasks by name, and their common functions: features of many examples, metrics that fit."""

import dataclasses
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from bertkit.base import plugins
from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.scoring import metrics
from bertkit.tasks.task import Feature, LabelNames, Shape
from bertkit.tasks.task_config import SHAPES, TaskConfig

EXAMPLES_AT_ONCE = 4096  # tokenized together


def shape_of(task: TaskConfig) -> Shape:
    """Give the shape of a task."""
    return _shape(task.kind)


def shape_of_head(head: str) -> Shape:
    """Give the first shape with this head."""
    return next(shape for shape in map(_shape, SHAPES) if shape.head == head)


def of_running_text(shape: Shape) -> Shape:
    """Give the shape that reads running text: entities for a tagger; other shapes read it themselves."""
    if not shape.is_of_words:
        return shape
    from bertkit.tasks import entities

    return entities.SHAPE


def _shape(kind: str) -> Shape:
    shape: Shape = importlib.import_module(SHAPES[kind]).SHAPE if kind in SHAPES else plugins.get("shape", kind)()
    return shape


def make_features(
    task: TaskConfig, examples: Sequence[Any], tokenizer: Tokenizer, labels: LabelNames, shape: Shape | None = None
) -> Iterator[Feature]:
    """Turn the examples of a task into features, some at a time, since tokenizing takes much memory.

    `shape` is the task's own by default.
    """
    shape = shape or shape_of(task)
    if examples:
        shape.num_choices(examples)  # checks all before the first
    for start in range(0, len(examples), EXAMPLES_AT_ONCE):
        part = examples[start : start + EXAMPLES_AT_ONCE]
        for feature in shape.features(task, part, tokenizer, labels):
            yield feature if start == 0 else dataclasses.replace(feature, example=feature.example + start)


def check_metrics(task: TaskConfig, labels: LabelNames | None = None) -> None:
    """Refuse metrics that are unknown or do not fit the task, before training.

    `labels` is None where they are known only from the data; checks of labels are then skipped.

    Raises:
        InputError: a metric does not fit the shape or labels, or `best_metric` is not among the scores.
    """
    own = [name for name in task.metrics if name not in metrics.METRICS]
    if unknown := [name for name in own if plugins.find("metric", name) is None]:
        known = [*metrics.METRICS, *plugins.names_of("metric")]
        raise InputError(f"task.metrics: unknown {', '.join(unknown)}; expected some of {', '.join(known)}")
    measured = shape_of(task).measured(task, labels)
    fitting = measured.metrics
    if unfit := [name for name in task.metrics if name not in (*fitting, *own)]:
        main = next((name for name in fitting if task.best_metric in metrics.METRICS[name]), None)
        best = "" if main else f" task.best_metric={metrics.METRICS[fitting[0]][0]}"
        usual = f"; expected some of {', '.join(fitting)}: set task.metrics=[{main or fitting[0]}]{best}"
        raise InputError(f"task.metrics: {', '.join(unfit)} cannot measure {measured.what}{measured.way_out or usual}")
    keys = metrics.keys_of(task.metrics)
    if task.best_metric not in keys:
        raise InputError(f"task.best_metric={task.best_metric}: expected one of {', '.join(keys)}")
