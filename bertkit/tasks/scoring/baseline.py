"""The baseline: always predict the most frequent training label (for questions, "no answer"). Is the model better?"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.tasks.scoring.metrics import keys_of
from bertkit.tasks.task import most_frequent, shape_of
from bertkit.tasks.task_config import TaskConfig

NUM_BLOCKS = 20  # blocks of examples in the jackknife
MAX_SHARE = 0.95  # of all predictions; a label that is predicted more often is a warning
MIN_ERRORS = 2  # standard errors above the baseline; a smaller difference is a warning
NO_SCORES = ("total", "_thresh", "_threshold")  # endings of keys whose values are not scores


@dataclass(frozen=True)
class Baseline:
    """The predictions of a constant baseline, and their scores."""

    task: TaskConfig
    examples: Sequence[Any]  # the split that is scored
    labels: Sequence[str]  # names in the order of their numbers
    guesses: Sequence[Any]  # the baseline's prediction for each example
    scores: dict[str, float]  # the baseline's scores

    @classmethod
    def of(
        cls, task: TaskConfig, train: Sequence[Any], examples: Sequence[Any], labels: Sequence[str]
    ) -> Baseline | None:
        """Compute the baseline; None if the shape of the task has none."""
        guess = shape_of(task).guess
        if guess is None:
            return None
        guesses = guess(task, train, examples)
        scores = _score(task, examples, guesses, labels)
        return cls(task, examples, labels, guesses, {key: scores[key] for key in scores if not key.endswith(NO_SCORES)})

    def standard_error(self, predictions: Sequence[Any]) -> float | None:
        """Estimate the standard error of the difference in `best_metric` between the model and the baseline.

        For accuracy this is the standard error of the mean over the examples. For other metrics it is a jackknife estimate over
        blocks of examples (Efron and Tibshirani 1993, chapter 11). None for a single example.
        """
        size, task = len(self.examples), self.task
        if size < 2:
            return None
        true, predicted, guessed = self._true(), self._predicted(predictions), self._predicted(self.guesses)
        if task.best_metric == "accuracy" and all(len(labels) == 1 for labels in (*true, *predicted, *guessed)):
            gains = [(p == t) - (g == t) for t, p, g in zip(true, predicted, guessed, strict=True)]
            return float(np.std(gains, ddof=1) / math.sqrt(size))
        best = tuple(name for name in task.metrics if task.best_metric in keys_of([name]))
        task = dataclasses.replace(task, metrics=best)
        num_blocks = min(NUM_BLOCKS, size)
        differences = []
        for block in range(num_blocks):
            kept = [number for number in range(size) if number % num_blocks != block]
            examples, *pair = ([rows[number] for number in kept] for rows in (self.examples, predictions, self.guesses))
            ours, theirs = (_score(task, examples, rows, self.labels)[task.best_metric] for rows in pair)
            differences.append(ours - theirs)
        return float(math.sqrt(num_blocks - 1) * np.std(differences))

    def warnings(self, predictions: Sequence[Any], score: float, error: float | None) -> list[str]:
        """Return warnings: the score is not clearly above the baseline's, or one label is predicted almost always."""
        lines, name, guessed = [], self.task.best_metric, self.scores.get(self.task.best_metric, 0.0)
        if error is not None and not score - guessed > MIN_ERRORS * error:
            lines.append(
                f"{name} {score:.4f} is not above guessing ({guessed:.4f}) by two standard errors ({MIN_ERRORS * error:.4f}); "
                "try another optimizer.peak_learning_rate=, a larger num_epochs=, or more examples"
            )
        predicted = [label for labels in self._predicted(predictions) for label in labels]
        true = [label for labels in self._true() for label in labels]
        if predicted and not self.task.is_regression:
            usual = most_frequent(predicted)
            share, expected = predicted.count(usual) / len(predicted), true.count(usual) / max(1, len(true))
            if max(MAX_SHARE, expected) < share < 1:
                lines.append(
                    f"{share:.1%} of the predictions are {usual!r}, but only {expected:.1%} of the dev labels; train longer, or "
                    "with another optimizer.peak_learning_rate="
                )
        return lines

    def _true(self) -> list[tuple[Any, ...]]:
        labels_of = shape_of(self.task).labels_of
        return [tuple(labels_of(example)) for example in self.examples]

    def _predicted(self, predictions: Sequence[Any]) -> list[tuple[Any, ...]]:
        predicted_labels = shape_of(self.task).predicted_labels
        return [tuple(predicted_labels(prediction)) for prediction in predictions]


def _score(
    task: TaskConfig, examples: Sequence[Any], predictions: Sequence[Any], labels: Sequence[str]
) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about constant predictions
        return shape_of(task).score(task, examples, predictions, labels)
