"""Baseline: always predict the most frequent training label (for QA, "no answer"); and how far a score is above it."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.tasks.scoring.metrics import keys_of
from bertkit.tasks.shapes import shape_of
from bertkit.tasks.task import commonest
from bertkit.tasks.task_config import TaskConfig

NUM_BLOCKS = 20  # of the jackknife
MAX_SHARE = 0.95  # of the predictions with one label, without a warning
NUM_ERRORS = 2  # standard errors above the baseline, without a warning
NO_SCORES = ("total", "_thresh", "_threshold")  # endings of names that are not scores


@dataclass(frozen=True)
class Baseline:
    """The predictions of a constant baseline, and their scores."""

    task: TaskConfig
    examples: Sequence[Any]  # of the split that is scored
    labels: Sequence[str]  # names in the order of their numbers
    guesses: Sequence[Any]  # a prediction for each example
    scores: dict[str, float]  # of the guesses

    @classmethod
    def of(
        cls, task: TaskConfig, train: Sequence[Any], examples: Sequence[Any], labels: Sequence[str]
    ) -> Baseline | None:
        """Compute the baseline; None for a shape without one."""
        guess = shape_of(task).guess
        if guess is None:
            return None
        guesses = guess(task, train, examples)
        scores = _score(task, examples, guesses, labels)
        return cls(task, examples, labels, guesses, {key: scores[key] for key in scores if not key.endswith(NO_SCORES)})

    def standard_error(self, predictions: Sequence[Any]) -> float | None:
        """Estimate the standard error of the difference to the baseline in `best_metric`; None for a single example.

        For the accuracy it is the standard error of the mean over the examples, for other metrics the jackknife's over
        blocks of examples (Efron and Tibshirani 1993, chapter 11).
        """
        size, task = len(self.examples), self.task
        if size < 2:
            return None
        true, said, guessed = self._true(), self._said(predictions), self._said(self.guesses)
        if task.best_metric == "accuracy" and all(len(labels) == 1 for labels in (*true, *said, *guessed)):
            right = [(s == t) - (g == t) for t, s, g in zip(true, said, guessed, strict=True)]
            return float(np.std(right, ddof=1) / math.sqrt(size))
        best = tuple(name for name in task.metrics if task.best_metric in keys_of([name]))
        task = dataclasses.replace(task, metrics=best)
        num_blocks = min(NUM_BLOCKS, size)
        gains = []
        for block in range(num_blocks):
            kept = [number for number in range(size) if number % num_blocks != block]
            examples, *pair = ([rows[number] for number in kept] for rows in (self.examples, predictions, self.guesses))
            ours, theirs = (_score(task, examples, rows, self.labels)[task.best_metric] for rows in pair)
            gains.append(ours - theirs)
        return float(math.sqrt(num_blocks - 1) * np.std(gains))

    def warnings(self, predictions: Sequence[Any], score: float, error: float | None) -> list[str]:
        """Warn about a score that is not above the baseline, and about a label that is predicted nearly always."""
        lines, name, guessed = [], self.task.best_metric, self.scores.get(self.task.best_metric, 0.0)
        if error is not None and not score - guessed > NUM_ERRORS * error:
            lines.append(
                f"{name} {score:.4f} is not above guessing ({guessed:.4f}) by two standard errors ({NUM_ERRORS * error:.4f}); "
                "try another optimizer.peak_learning_rate=, a larger num_epochs=, or more examples"
            )
        said, true = ([label for row in rows for label in row] for rows in (self._said(predictions), self._true()))
        if said and not self.task.is_regression:
            usual = commonest(said)
            share, expected = said.count(usual) / len(said), true.count(usual) / max(1, len(true))
            if max(MAX_SHARE, expected) < share < 1:
                lines.append(
                    f"{share:.1%} of the predictions are {usual!r}, but only {expected:.1%} of the dev labels; train longer, or "
                    "with another optimizer.peak_learning_rate="
                )
        return lines

    def _true(self) -> list[tuple[Any, ...]]:
        labels_of = shape_of(self.task).labels_of
        return [tuple(labels_of(example)) for example in self.examples]

    def _said(self, predictions: Sequence[Any]) -> list[tuple[Any, ...]]:
        said_of = shape_of(self.task).said_of
        return [tuple(said_of(prediction)) for prediction in predictions]


def _score(
    task: TaskConfig, examples: Sequence[Any], predictions: Sequence[Any], labels: Sequence[str]
) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant predictions
        return shape_of(task).score(task, examples, predictions, labels)
