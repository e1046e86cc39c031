"""Guessing the commonest label, how far above it a score is, and what is suspicious."""

import math
from typing import Any

import numpy as np
import pytest
from task_configs import task_config

from bertkit.tasks.choice import ChoiceExample
from bertkit.tasks.scoring.baseline import Baseline
from bertkit.tasks.sequence import SequenceExample, SequencePrediction
from bertkit.tasks.spans.examples import Answer, SpanExample
from bertkit.tasks.tagging import TaggingExample, TaggingPrediction


def texts(*labels: Any) -> list[SequenceExample]:
    return [SequenceExample(str(number), "a", None, label) for number, label in enumerate(labels)]


def said(*labels: Any) -> list[SequencePrediction]:
    return [SequencePrediction(str(number), label, {}) for number, label in enumerate(labels)]


def tagged_as(*names: str) -> TaggingPrediction:
    return TaggingPrediction(list(names), [1.0] * len(names))


def tags(*rows: str) -> list[TaggingExample]:
    return [TaggingExample(str(number), tuple(row.split()), tuple(row.split())) for number, row in enumerate(rows)]


def baseline_of(name: str, train: list[Any], dev: list[Any], labels: list[str], *overrides: str) -> Baseline:
    found = Baseline.of(task_config(name, *overrides), train, dev, labels)
    assert found is not None
    return found


REGRESSION = ["task.labels=regression", "task.metrics=[pearson,spearmanr]", "task.best_metric=pearson"]
SEVERAL = ["task.multi_label=true", "task.metrics=[f1_micro,accuracy]", "task.best_metric=f1_micro"]
ANSWERED, OPEN = [Answer("b", 2)], list[Answer]()


def question(number: int, answers: list[Answer]) -> SpanExample:
    return SpanExample(str(number), "q", "a b", tuple(answers))


GUESSING = [  # task, training examples, dev examples, labels, overrides, scores of guessing
    ("mrpc", texts("no", "yes", "yes"), texts("no", "yes", "no", "no"), ["no", "yes"], [], {"accuracy": 0.25, "f1": 0.4}),
    ("sequence", texts(1.0, 2.0, 3.0), texts(1.0, 5.0), [], REGRESSION, {"pearson": 0.0, "spearmanr": 0.0}),
    ("sequence", texts(("x",), ("x", "y"), ("z",)), texts(("x",), ("y",)), ["x", "y", "z"], SEVERAL,
     {"f1_micro": 0.5, "accuracy": 0.5}),
    ("conll2003", tags("O O B-PER"), tags("O O O B-PER", "O"), ["O", "B-PER"], [],
     {"overall_precision": 0.0, "overall_recall": 0.0, "overall_f1": 0.0, "overall_accuracy": 0.8}),
    ("swag", [ChoiceExample("0", "a", ("b", "c"), 1)] * 2 + [ChoiceExample("0", "a", ("b", "c"), 0)],
     [ChoiceExample("0", "a", ("b", "c"), 1), ChoiceExample("1", "a", ("b", "c"), 0)], [], [], {"accuracy": 0.5}),
    ("squad1", [], [question(0, ANSWERED), question(1, ANSWERED)], [], [], {"exact_match": 0.0, "f1": 0.0}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "train", "dev", "labels", "overrides", "scores"), GUESSING)
def test_guessing_by_hand(
    name: str, train: list[Any], dev: list[Any], labels: list[str], overrides: list[str], scores: dict[str, float]
) -> None:
    assert baseline_of(name, train, dev, labels, *overrides).scores == pytest.approx(scores)


def test_guessing_that_there_is_no_answer() -> None:
    dev = [question(number, answers) for number, answers in enumerate((OPEN, OPEN, ANSWERED, ANSWERED, ANSWERED))]
    scores = baseline_of("squad2", [], dev, []).scores
    assert (scores["exact"], scores["f1"], scores["NoAns_exact"], scores["HasAns_exact"]) == (40, 40, 100, 0)
    assert not [key for key in scores if "total" in key or "thresh" in key]


def test_the_standard_error_of_an_accuracy_by_hand_and_of_others_by_the_jackknife() -> None:
    """Of ten examples the guess has 6 right, the model 9: it gains 4 and loses 1."""
    dev = texts(*"nnnnnnyyyy")
    found = baseline_of("sst2", texts("n"), dev, ["n", "y"])
    error = found.standard_error(said(*"nnnnnyyyyy"))
    gains = np.array([0] * 5 + [-1] + [1] * 4)
    assert error == pytest.approx(gains.std(ddof=1) / math.sqrt(10))
    assert found.scores["accuracy"] == 0.6
    # of a mean, the jackknife's is the same
    tagged = baseline_of("pos", tags("n"), tags(*"nnnnnnyyyy"), ["n", "y"])
    assert tagged.task.best_metric == "accuracy"
    assert tagged.standard_error([tagged_as(tag) for tag in "nnnnnyyyyy"]) == pytest.approx(error)
    chunks = baseline_of("conll2003", tags("O"), tags(*["B-X O"] * 10), ["O", "B-X"])
    assert chunks.standard_error([tagged_as("B-X", "O")] * 9 + [tagged_as("O", "O")]) == pytest.approx(0.0545, abs=2e-3)
    assert baseline_of("sst2", texts("n"), texts("n"), ["n", "y"]).standard_error(said("n")) is None


def warned(train: str, dev: str, predicted: str) -> list[str]:
    found = baseline_of("sst2", texts(*train), texts(*dev), ["n", "y"])
    predictions = said(*predicted)
    score = sum(p == t for p, t in zip(predicted, dev, strict=True)) / len(dev)
    return found.warnings(predictions, score, found.standard_error(predictions))


def test_what_is_suspicious_is_said() -> None:
    dev = "n" * 50 + "y" * 50
    (line,) = warned("nny", dev, "n" * 48 + "y" * 2 + "n" * 47 + "y" * 3)  # 51 right, by chance; 95 % are n
    assert line.startswith("accuracy 0.5100 is not above guessing (0.5000) by two standard errors (0.0")
    low, one = warned("nny", dev, "n" * 97 + "y" * 3)
    assert low.startswith("accuracy 0.5300 is not above guessing (0.5000)")
    assert one.startswith("97.0% of the predictions are 'n', but only 50.0% of the dev labels; ")
    assert warned("nny", dev, "n" * 40 + "y" * 10 + "y" * 50) == []
    rare = "n" * 97 + "y" * 3
    assert warned("nny", rare, rare) != []  # three examples are too few to tell
    assert not [line for line in warned("nny", rare, rare) if "of the predictions" in line]
    assert len(warned("nny", dev, "n" * 100)) == 1  # what says the same of all is said by itself
