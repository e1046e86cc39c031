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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertkit.tasks.scoring.metrics import METRICS
from bertkit.tasks.task import most_frequent, shape_of
from bertkit.tasks.task_config import TaskConfig

RESAMPLES, MOST_DRAWN = 200, 200  # draws, and the most examples of a draw; some metrics take a millisecond an example
SHARES = ("accuracy", "exact_match", "exact")  # these are shares of the examples, unless each word has a label
MOST_ROWS = 20_000  # training rows of the logistic regression, which then takes seconds
MAX_SHARE = 0.95  # of all predictions; a label that is predicted more often is a warning
NO_SCORES = ("total", "_thresh", "_threshold")  # endings of keys whose values are not scores
GAIN = "difference_to_majority"  # the key of its interval, in `best_metric`
Interval = tuple[float, float]


@dataclass(frozen=True)
class Baseline:
    """The scores of the baselines, by name: "majority" and "TF-IDF", with its sample; empty if the shape of the task has none."""

    task: TaskConfig
    examples: Sequence[Any]  # the split that is scored
    labels: Sequence[str]  # names in the order of their numbers
    guesses: Sequence[Any] | None  # the majority's prediction for each example
    scores: dict[str, dict[str, float]]

    @classmethod
    def of(cls, task: TaskConfig, train: Sequence[Any], examples: Sequence[Any], labels: Sequence[str]) -> Baseline:
        """Compute the baselines."""
        guess = shape_of(task).guess
        found: dict[str, Any] = {} if guess is None else {"majority": guess(task, train, examples)}
        if task.kind == "sequence" and not task.is_regression:
            sample = f" on {MOST_ROWS:,} of {len(train):,} rows" if len(train) > MOST_ROWS else ""
            found[f"TF-IDF{sample}"] = simple_predictions(task, train, examples, found["majority"])
        scores = {name: _score(task, examples, items, labels) for name, items in found.items() if items}
        return cls(task, examples, labels, found.get("majority"), scores)

    def intervals(self, predictions: Sequence[Any], scores: Mapping[str, float]) -> dict[str, Interval]:
        """Return the 95 % interval of each score, and as `GAIN` that of the paired difference to guessing."""
        import scipy.stats  # takes a second

        shape, size, found = shape_of(self.task), len(self.examples), dict[str, Interval]()
        for name in [name for name in SHARES if name in scores and not shape.is_word_level]:
            whole = 100 if shape.answers_questions else 1
            test = scipy.stats.binomtest(round(size * scores[name] / whole), size)
            low, high = test.proportion_ci(method="wilson")
            found[name] = (whole * float(low), whole * float(high))
        if self.guesses is not None and "accuracy" in found and self.task.best_metric == "accuracy":
            gains = np.zeros(size)
            for sign, items in ((1, predictions), (-1, self.guesses)):
                pairs = zip(items, self.examples, strict=True)
                gains += sign * np.array([{*shape.predicted_labels(p)} == {*shape.labels_of(e)} for p, e in pairs])
            mean = np.sum(gains) / (size + 2)
            half = 1.96 * math.sqrt(((np.abs(gains).sum() + 1) / (size + 2) - mean**2) / (size + 2))
            found[GAIN] = (float(mean - half), float(mean + half))
        return self._bootstrap(predictions, scores, {*found}) | found

    def _bootstrap(
        self, predictions: Sequence[Any], scores: Mapping[str, float], known: set[str]
    ) -> dict[str, Interval]:
        """Return intervals of the scores that are not known, from examples that are drawn again, with the same seed."""
        shape, best, drawn = shape_of(self.task), self.task.best_metric, defaultdict[str, list[float]](list)
        rest = tuple(name for name in self.task.metrics if name in METRICS and not {*METRICS[name]} <= known)
        task, rng = replace(self.task, metrics=rest), np.random.default_rng(0)
        columns = [self.examples, predictions, *([] if self.guesses is None else [self.guesses])]
        if shape.is_word_level:  # a draw of sentences without words has no scores
            columns = [
                [*items]
                for items in zip(*(row for row in zip(*columns, strict=True) if shape.labels_of(row[0])), strict=True)
            ]
        size = len(columns[0])
        for _ in range(RESAMPLES if rest else 0):
            rows = rng.integers(size, size=min(size, MOST_DRAWN)).tolist()
            part, *pair = [[items[row] for row in rows] for items in columns]
            if shape.answers_questions:  # scored by the question's id, so one that is drawn twice needs two
                part, *pair = [[replace(item, id=str(n)) for n, item in enumerate(items)] for items in (part, *pair)]
            ours, *theirs = [_score(task, part, items, self.labels) for items in pair]
            if theirs and best in ours:
                ours[GAIN] = ours[best] - theirs[0][best]
            for name, value in ours.items():
                drawn[name].append(value)
        shrink = math.sqrt(min(size, MOST_DRAWN) / size)  # a draw of fewer examples spreads more
        found = dict[str, Interval]()
        for name, values in drawn.items():
            middle = scores.get(name, float(np.mean(values)))
            low, high = (float(middle + shrink * (np.quantile(values, q) - middle)) for q in (0.025, 0.975))
            found[name] = (low, high)
        return found

    def warnings(self, predictions: Sequence[Any], score: float, gain: Interval | None) -> list[str]:
        """Return a warning if the score is not clearly above the baseline's, or one label is predicted almost always."""
        faults, name = [], self.task.best_metric
        if gain is not None and gain[0] <= 0:
            guessed = self.scores["majority"][name]
            faults.append(
                f"{name} {score:.4f} is not clearly above the majority baseline ({guessed:.4f}; 95 % interval of the difference "
                f"{gain[0]:.4f} to {gain[1]:.4f})"
            )
        shape = shape_of(self.task)
        predicted = [label for prediction in predictions for label in shape.predicted_labels(prediction)]
        true = [label for example in self.examples for label in shape.labels_of(example)]
        if predicted and not self.task.is_regression:
            usual = most_frequent(predicted)
            share, expected = predicted.count(usual) / len(predicted), true.count(usual) / max(1, len(true))
            if max(MAX_SHARE, expected) < share < 1:
                faults.append(
                    f"{share:.1%} of the predictions are {usual!r}, but only {expected:.1%} of the dev labels"
                )
        advice = "; try another optimizer.peak_learning_rate=, a larger num_epochs=, or more examples"
        return [" and ".join(faults) + advice] if faults else []


def simple_predictions(
    task: TaskConfig, train: Sequence[Any], examples: Sequence[Any], guesses: Sequence[Any]
) -> list[Any] | None:
    """Predict labels of texts by TF-IDF and logistic regression on at most MOST_ROWS rows; None if there is nothing to learn."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # takes seconds
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MultiLabelBinarizer

    if len(train) > MOST_ROWS:
        train = [train[row] for row in np.random.default_rng(0).choice(len(train), MOST_ROWS, replace=False)]
    sets, model = MultiLabelBinarizer() if task.multi_label else None, LogisticRegression(max_iter=200)
    model = make_pipeline(TfidfVectorizer(token_pattern=r"\w+"), OneVsRestClassifier(model) if sets else model)
    texts = [[" ".join(filter(None, shape_of(task).content(row))) for row in rows] for rows in (train, examples)]
    true = [row.label for row in train]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # labels that all rows or no rows have; no convergence
            found = model.fit(texts[0], sets.fit_transform(true) if sets else true).predict(texts[1])
    except ValueError:  # a single label, or texts without words
        return None
    found = sets.inverse_transform(found.reshape(len(examples), -1)) if sets else found.tolist()
    return [replace(guess, label=label) for guess, label in zip(guesses, found, strict=True)]


def _score(
    task: TaskConfig, examples: Sequence[Any], predictions: Sequence[Any], labels: Sequence[str]
) -> dict[str, float]:
    """Score predictions, without warnings about constant ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about constant predictions
        scores = shape_of(task).score(task, examples, predictions, labels)
    return {key: value for key, value in scores.items() if not key.endswith(NO_SCORES)}
