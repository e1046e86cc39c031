"""Baselines: is the model better than something simple?

The baselines: the most frequent training label for every example (for questions, "no answer"); for labels of texts also TF-IDF
(weighted counts of words) with logistic regression, and for few texts the same on the vectors of the frozen model. Metrics of plug-ins have no intervals, because they may be slow.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bertkit.tasks.scoring.sampling import Interval
from bertkit.tasks.task import Example
from bertkit.tasks.trainable import AnyTrainable, Embed, most_frequent

MAX_SHARE = 0.95  # of all predictions; a label that is predicted more often is a warning
NO_SCORES = ("total", "_thresh", "_threshold")  # endings of keys whose values are not scores
LINEAR = "linear head on frozen vectors"
SIMPLE = {"TF-IDF": "TF-IDF, which counts words", LINEAR: f"a {LINEAR}"}  # what warnings call them
GAIN = "difference_to_majority"  # the key of its interval, in `best_metric`


@dataclass(frozen=True)
class Baseline:
    """The scores of the baselines, by name: "majority", "TF-IDF", with its sample, and `LINEAR`; empty if the task has none."""

    task: AnyTrainable  # with the labels, in the order of their numbers
    examples: Sequence[Example]
    guesses: Sequence[object] | None  # the majority's prediction for each example
    scores: dict[str, dict[str, float]]

    @classmethod
    def of(
        cls, task: AnyTrainable, train: Sequence[Example], examples: Sequence[Example], embed: Embed | None = None
    ) -> Baseline:
        """Compute the baselines; `embed` gives the vectors of the frozen model."""
        predictions = task.baselines(train, examples)
        if embed is not None and (linear := task.by_vectors(train, examples, embed)):
            predictions[LINEAR] = linear
        scores = {name: _score(task, examples, own) for name, own in predictions.items()}
        return cls(task, examples, predictions.get("majority"), scores)

    def intervals(self, predictions: Sequence[object], scores: Mapping[str, float]) -> dict[str, Interval]:
        """Return the 95 % interval of each score, and as `GAIN` that of the paired difference to guessing."""
        ours, best = self.task.sampled(self.examples, predictions), self.task.config.best_metric
        intervals = {name: score.interval() for name, score in ours.items() if name in scores}
        if self.guesses is not None and best in ours:
            intervals[GAIN] = ours[best].gain(self.task.sampled(self.examples, self.guesses)[best])
        return intervals

    def warnings(self, predictions: Sequence[object], score: float, gain: Interval | None) -> list[str]:
        """Return a warning if the score is not clearly above a baseline's, or one label is predicted almost always."""
        faults, name = [], self.task.config.best_metric
        if gain is not None and gain[0] <= 0:
            guessed = self.scores["majority"][name]
            faults.append(
                f"{name} {score:.4f} is not clearly above the majority baseline ({guessed:.4f}; 95 % interval of the difference "
                f"{gain[0]:.4f} to {gain[1]:.4f})"
            )
        simple = {other: self.scores.get(other, {}).get(name, -math.inf) for other in SIMPLE}
        better = [f"that of {what} ({simple[other]:.4f})" for other, what in SIMPLE.items() if simple[other] > score]
        if better:
            faults.append(f"{name} {score:.4f} is below {' and '.join(better)}")
        predicted = [label for prediction in predictions for label in self.task.predicted_labels(prediction)]
        true = [label for example in self.examples for label in self.task.labels_of(example)]
        if predicted:
            usual = most_frequent(predicted)
            share, expected = predicted.count(usual) / len(predicted), true.count(usual) / max(1, len(true))
            if max(MAX_SHARE, expected) < share < 1:
                faults.append(
                    f"{share:.1%} of the predictions are {usual!r}, but only {expected:.1%} of the dev labels"
                )
        advice = "; try another optimizer.peak_learning_rate=, a larger num_epochs=, or more examples"
        return [" and ".join(faults) + advice] if faults else []


def _score(task: AnyTrainable, examples: Sequence[Example], predictions: Sequence[object]) -> dict[str, float]:
    """Score predictions, without warnings about constant ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about constant predictions
        scores = task.score(examples, predictions)
    return {key: value for key, value in scores.items() if not key.endswith(NO_SCORES)}
