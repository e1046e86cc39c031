"""The shapes of tasks side by side: which head each needs, its features, its predictions and their scores.

One `case` a shape in each function; the work is done in the shape's own file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.data.tokenizer import Tokenizer
from bertkit.errors import InputError
from bertkit.tasks import choice, metrics, sequence
from bertkit.tasks.config import TaskConfig
from bertkit.tasks.task import Feature

HEADS = {"sequence": "sequence", "tagging": "token", "spans": "span", "choice": "choice"}


def make_features(
    task: TaskConfig, examples: Sequence[Any], tokenizer: Tokenizer, labels: Sequence[str]
) -> list[Feature]:
    """Turn the examples of a task into features, with labels where they have them."""
    match task.kind:
        case "sequence":
            return sequence.make_features(examples, tokenizer, labels, task.max_seq_length)
        case "choice":
            return choice.make_features(examples, tokenizer, task.max_seq_length)
    raise InputError(f"task.kind={task.kind}: expected sequence or choice")


def num_choices_of(task: TaskConfig, examples: Sequence[Any]) -> int:
    """Give the number of neighbouring features that belong together."""
    return len(examples[0].endings) if task.kind == "choice" else 1


def predict(
    task: TaskConfig,
    examples: Sequence[Any],
    features: Sequence[Feature],
    logits: Sequence[NDArray[np.floating]],
    labels: Sequence[str],
) -> list[Any]:
    """Turn the logits of each feature into a prediction for each example."""
    if task.kind == "choice":
        return choice.predictions(examples, features, logits)
    return sequence.predictions(examples, features, logits, labels)


def check_metrics(task: TaskConfig) -> None:
    """Refuse metrics that there are not, before anything is trained.

    Raises:
        InputError: one of the task's metrics is unknown, or its main one is not among their scores.
    """
    unknown = [name for name in task.metrics if name not in metrics.METRICS]
    if unknown:
        raise InputError(f"task.metrics: unknown {', '.join(unknown)}; expected some of {', '.join(metrics.METRICS)}")
    keys = [key for name in task.metrics for key in metrics.METRICS[name]]
    if task.best_metric not in keys:
        raise InputError(f"task.best_metric={task.best_metric}: expected one of {', '.join(keys)}")


def score(
    task: TaskConfig, examples: Sequence[Any], predictions: Sequence[Any], labels: Sequence[str]
) -> dict[str, float]:
    """Compute the task's metrics of predictions, in the order of the examples, against the examples' labels."""
    answers = [prediction.label for prediction in predictions]
    references = [example.label for example in examples]
    if task.kind == "sequence" and labels:
        numbers = {name: number for number, name in enumerate(labels)}
        answers, references = [numbers[name] for name in answers], [numbers[name] for name in references]
    return metrics.score(task.metrics, answers, references)


def is_degenerate(examples: Sequence[Any], predictions: Sequence[Any]) -> bool:
    """Whether a model says the same of every example though their labels differ: a run that has learnt nothing."""
    if not hasattr(predictions[0], "label"):
        return False
    return len({p.label for p in predictions}) == 1 and len({example.label for example in examples}) > 1


def row_of(example: Any, prediction: Any) -> dict[str, Any]:
    """Give the line of a predictions file: the prediction's fields, and the true label as `reference`."""
    return {**dataclasses.asdict(prediction), "reference": example.label}
