"""Baselines and 95 % intervals: how sure are the scores, and is the model better than something simple?

The baselines: the most frequent training label for every example (for questions, "no answer"); for labels of texts also TF-IDF
(weighted counts of words) with logistic regression. A share of the examples, such as an accuracy, has Wilson's interval; its
difference to guessing has that of Agresti and Min for pairs. Other scores have the bootstrap's: the examples are drawn again,
RESAMPLES times. Metrics of plug-ins have none, because they may be slow.

Source: Wilson 1927; Agresti and Min 2005; Efron and Tibshirani 1993, chapter 13.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
GAIN = "difference_to_majority"  # the key of the difference in `best_metric` to guessing
Interval = tuple[float, float]


def intervals(
    task: TaskConfig,
    examples: Sequence[Any],
    predictions: Sequence[Any],
    labels: Sequence[str],
    scores: Mapping[str, float],
    guesses: Sequence[Any] | None = None,
) -> dict[str, Interval]:
    """Return the 95 % interval of each score; with `guesses`, also that of the paired difference to them, as `GAIN`."""
    import scipy.stats  # takes a second

    shape, size, best, found = shape_of(task), len(examples), task.best_metric, dict[str, Interval]()
    scale = 100 if shape.answers_questions else 1
    for name in [name for name in SHARES if name in scores and not shape.is_word_level]:
        test = scipy.stats.binomtest(round(size * scores[name] / scale), size)
        low, high = test.proportion_ci(method="wilson")
        found[name] = (scale * float(low), scale * float(high))
    if guesses is not None and best == "accuracy" and best in found:
        true = [set(shape.labels_of(example)) for example in examples]
        right, lucky = (
            [set(shape.predicted_labels(p)) == t for p, t in zip(items, true, strict=True)]
            for items in (predictions, guesses)
        )
        found[GAIN] = _paired(right, lucky)
    rest = tuple(name for name in task.metrics if name in METRICS and not {*METRICS[name]} <= {*found})
    task = dataclasses.replace(task, metrics=rest)
    drawn: dict[str, list[float]] = defaultdict(list)
    rng, columns = np.random.default_rng(0), [examples, predictions, *([] if guesses is None else [guesses])]
    for _ in range(RESAMPLES if rest else 0):
        rows = rng.integers(size, size=min(size, MOST_DRAWN)).tolist()
        part, *pair = [[items[row] for row in rows] for items in columns]
        if shape.answers_questions:  # answers are scored by question, so a question that is drawn twice needs two names
            part, *pair = [
                [dataclasses.replace(item, id=str(n)) for n, item in enumerate(items)] for items in (part, *pair)
            ]
        ours, *theirs = [score(task, part, items, labels) for items in pair]
        if theirs and best in ours:
            ours[GAIN] = ours[best] - theirs[0][best]
        for name, value in ours.items():
            drawn[name].append(value)
    # fewer examples spread more: by the square root of their number
    shrink = math.sqrt(min(size, MOST_DRAWN) / size)
    for name, values in drawn.items():
        if name not in found and not name.endswith(NO_SCORES):
            middle = scores.get(name, float(np.mean(values)))
            low, high = (middle + shrink * (np.quantile(values, q) - middle) for q in (0.025, 0.975))
            found[name] = (float(low), float(high))
    return found


def _paired(right: Sequence[bool], lucky: Sequence[bool]) -> Interval:
    """Return the interval of the difference between two accuracies on the same examples; half an example is added to each cell."""
    gains = [ours - theirs for ours, theirs in zip(right, lucky, strict=True)]
    size, mean = len(gains) + 2, sum(gains) / (len(gains) + 2)
    half = 1.96 * math.sqrt((sum(map(abs, gains)) + 1) / size - mean**2) / math.sqrt(size)
    return mean - half, mean + half


def simple_predictions(
    task: TaskConfig, train: Sequence[Any], examples: Sequence[Any], guesses: Sequence[Any]
) -> list[Any] | None:
    """Predict labels of texts by TF-IDF and logistic regression on at most MOST_ROWS rows; None if there is nothing to learn."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # takes seconds
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.preprocessing import MultiLabelBinarizer

    if len(train) > MOST_ROWS:
        train = [train[row] for row in np.random.default_rng(0).choice(len(train), MOST_ROWS, replace=False)]
    words, sets, several = TfidfVectorizer(token_pattern=r"\w+"), MultiLabelBinarizer(), task.multi_label
    texts = [[" ".join(filter(None, shape_of(task).content(row))) for row in rows] for rows in (train, examples)]
    true, model = [row.label for row in train], LogisticRegression(max_iter=200)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # labels that all rows or no rows have; no convergence
            model = OneVsRestClassifier(model) if several else model
            model.fit(words.fit_transform(texts[0]), sets.fit_transform(true) if several else true)
            found = model.predict(words.transform(texts[1]))
    except ValueError:  # a single label, or texts without words
        return None
    found = sets.inverse_transform(found) if several else found.tolist()
    return [dataclasses.replace(guess, label=label) for guess, label in zip(guesses, found, strict=True)]


@dataclass(frozen=True)
class Baseline:
    """The predictions of a constant baseline, and the scores of the baselines."""

    task: TaskConfig
    examples: Sequence[Any]  # the split that is scored
    guesses: Sequence[Any]  # the baseline's prediction for each example
    scores: dict[str, float]  # the baseline's scores
    simple: dict[str, float]  # the scores of TF-IDF with logistic regression; empty if there are none

    @classmethod
    def of(
        cls, task: TaskConfig, train: Sequence[Any], examples: Sequence[Any], labels: Sequence[str]
    ) -> Baseline | None:
        """Compute the baselines; None if the shape of the task has none."""
        guess = shape_of(task).guess
        if guess is None:
            return None
        guesses = guess(task, train, examples)
        simple = None
        if task.kind == "sequence" and not task.is_regression:
            simple = simple_predictions(task, train, examples, guesses)
        scores = [score(task, examples, items, labels) if items else {} for items in (guesses, simple)]
        return cls(
            task, examples, guesses, *({k: v for k, v in one.items() if not k.endswith(NO_SCORES)} for one in scores)
        )

    @property
    def by_name(self) -> dict[str, dict[str, float]]:
        """The scores of the baselines that there are."""
        return {"majority": self.scores} | ({"TF-IDF": self.simple} if self.simple else {})

    def warnings(self, predictions: Sequence[Any], score: float, gain: Interval | None) -> list[str]:
        """Return a warning if the score is not clearly above the baseline's, or one label is predicted almost always."""
        faults, name, guessed = [], self.task.best_metric, self.scores.get(self.task.best_metric, 0.0)
        if gain is not None and gain[0] <= 0:
            faults.append(
                f"{name} {score:.4f} is not clearly above guessing ({guessed:.4f}; 95 % interval of the difference "
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


def score(
    task: TaskConfig, examples: Sequence[Any], predictions: Sequence[Any], labels: Sequence[str]
) -> dict[str, float]:
    """Score predictions, without warnings about constant ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about constant predictions
        return shape_of(task).score(task, examples, predictions, labels)
