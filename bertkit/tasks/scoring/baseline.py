"""Baselines and 95 % intervals: how sure are the scores, and is the model better than something simple?

The baselines: the most frequent training label for every example (for questions, "no answer"); for labels of texts also TF-IDF
(weighted counts of words) with logistic regression. A share of the examples, such as an accuracy, has Wilson's interval; its
difference to guessing has that of Agresti and Min for pairs. Other scores have the bootstrap's: the examples are drawn again,
RESAMPLES times. Metrics of plug-ins have none, because they may be slow.

Source: Wilson 1927; Agresti and Min 2005; Efron and Tibshirani 1993, chapter 13.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.tasks.scoring.metrics import METRICS
from bertkit.tasks.task import Example
from bertkit.tasks.trainable import AnyTrainable, most_frequent

RESAMPLES, MOST_DRAWN = 200, 200  # draws, and the most examples of a draw; some metrics take a millisecond an example
MAX_SHARE = 0.95  # of all predictions; a label that is predicted more often is a warning
NO_SCORES = ("total", "_thresh", "_threshold")  # endings of keys whose values are not scores
GAIN = "difference_to_majority"  # the key of its interval, in `best_metric`
Interval = tuple[float, float]


@dataclass(frozen=True)
class Baseline:
    """The scores of the baselines, by name: "majority" and "TF-IDF", with its sample; empty if the task has none."""

    task: AnyTrainable  # with the labels, in the order of their numbers
    examples: Sequence[Example]
    guesses: Sequence[object] | None  # the majority's prediction for each example
    scores: dict[str, dict[str, float]]

    @classmethod
    def of(cls, task: AnyTrainable, train: Sequence[Example], examples: Sequence[Example]) -> Baseline:
        """Compute the baselines."""
        predictions = task.baselines(train, examples)
        scores = {name: _score(task, examples, own) for name, own in predictions.items()}
        return cls(task, examples, predictions.get("majority"), scores)

    def intervals(self, predictions: Sequence[object], scores: Mapping[str, float]) -> dict[str, Interval]:
        """Return the 95 % interval of each score, and as `GAIN` that of the paired difference to guessing."""
        import scipy.stats  # takes a second

        task, size, intervals = self.task, len(self.examples), dict[str, Interval]()
        for name, whole in task.shares.items():
            if name in scores:
                test = scipy.stats.binomtest(round(size * scores[name] / whole), size)
                low, high = test.proportion_ci(method="wilson")
                intervals[name] = (whole * float(low), whole * float(high))
        if self.guesses is not None and "accuracy" in intervals and task.config.best_metric == "accuracy":
            gains = np.zeros(size)
            for sign, items in ((1, predictions), (-1, self.guesses)):
                pairs = zip(items, self.examples, strict=True)
                gains += sign * np.array([{*task.predicted_labels(p)} == {*task.labels_of(e)} for p, e in pairs])
            mean = np.sum(gains) / (size + 2)
            half = 1.96 * math.sqrt(((np.abs(gains).sum() + 1) / (size + 2) - mean**2) / (size + 2))
            intervals[GAIN] = (float(mean - half), float(mean + half))
        return self._bootstrap(predictions, scores, {*intervals}) | intervals

    def _bootstrap(
        self, predictions: Sequence[object], scores: Mapping[str, float], known: set[str]
    ) -> dict[str, Interval]:
        """Return intervals of the scores that are not known, from examples that are drawn again, with the same seed."""
        config, drawn = self.task.config, defaultdict[str, list[float]](list)
        rest = tuple(name for name in config.metrics if name in METRICS and not {*METRICS[name]} <= known)
        task, rng, best = self.task.changed(metrics=rest), np.random.default_rng(0), config.best_metric
        # a draw of sentences without words has no scores
        usable = [place for place, example in enumerate(self.examples) if task.labels_of(example)]
        size = len(usable)
        for _ in range(RESAMPLES if rest else 0):
            places = [usable[row] for row in rng.integers(size, size=min(size, MOST_DRAWN)).tolist()]
            examples = task.numbered_examples([self.examples[place] for place in places])
            ours = _score(task, examples, task.numbered_predictions([predictions[place] for place in places]))
            if self.guesses is not None:
                guesses = task.numbered_predictions([self.guesses[place] for place in places])
                if best in ours:
                    ours[GAIN] = ours[best] - _score(task, examples, guesses)[best]
            for name, value in ours.items():
                drawn[name].append(value)
        shrink = math.sqrt(min(size, MOST_DRAWN) / size)  # a draw of fewer examples spreads more
        intervals = dict[str, Interval]()
        for name, values in drawn.items():
            middle = scores.get(name, float(np.mean(values)))
            low, high = (float(middle + shrink * (np.quantile(values, q) - middle)) for q in (0.025, 0.975))
            intervals[name] = (low, high)
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
        words = self.scores.get("TF-IDF", {}).get(name, -math.inf)
        if words > score:
            faults.append(f"{name} {score:.4f} is below that of TF-IDF, which counts words ({words:.4f})")
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
