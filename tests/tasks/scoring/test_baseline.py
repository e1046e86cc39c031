"""Guessing the commonest label, how far above it a score is, and what is suspicious."""

import math
from typing import Any

import numpy as np
import pytest
from task_configs import task_config

from bertkit.tasks.choice import ChoiceExample
from bertkit.tasks.scoring import tfidf
from bertkit.tasks.scoring.baseline import GAIN, Baseline
from bertkit.tasks.sequence import SequenceExample, SequencePrediction
from bertkit.tasks.spans.answers import SpanPrediction
from bertkit.tasks.spans.examples import Answer, SpanExample
from bertkit.tasks.trainable import task_of
from bertkit.tasks.words import TaggingExample, TaggingPrediction


def texts(*labels: Any) -> list[SequenceExample]:
    return [SequenceExample(str(number), "a", None, label) for number, label in enumerate(labels)]


def labelled_as(*labels: Any) -> list[SequencePrediction]:
    return [SequencePrediction(str(number), label, {}) for number, label in enumerate(labels)]


def tagged_as(*names: str) -> TaggingPrediction:
    return TaggingPrediction(list(names), [1.0] * len(names))


def tags(*rows: str) -> list[TaggingExample]:
    return [TaggingExample(str(number), tuple(row.split()), tuple(row.split())) for number, row in enumerate(rows)]


def baseline_of(name: str, train: list[Any], dev: list[Any], labels: list[str], *overrides: str) -> Baseline:
    return Baseline.of(task_of(task_config(name, *overrides), tuple(labels)), train, dev)


REGRESSION = ["task.labels=regression", "task.metrics=[pearson,spearmanr]", "task.best_metric=pearson"]
SEVERAL = ["task.multi_label=true", "task.metrics=[f1_micro,accuracy]", "task.best_metric=f1_micro"]
ANSWERED, OPEN = [Answer("b", 2)], list[Answer]()


def question(number: int, answers: list[Answer]) -> SpanExample:
    return SpanExample(str(number), "q", "a b", tuple(answers))


GUESSING = [  # task, training examples, dev examples, labels, overrides, scores of guessing
    ("mrpc", texts("no", "yes", "yes"), texts("no", "yes", "no", "no"), ["no", "yes"], [], {"accuracy": 0.25, "f1": 0.4}),
    ("sequence", texts(1.0, 2.0, 3.0), texts(1.0, 5.0), [], REGRESSION,
     {"pearson": 0.0, "spearmanr": 0.0, "rmse": 5**0.5, "mae": 2.0}),
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
    assert baseline_of(name, train, dev, labels, *overrides).scores["majority"] == pytest.approx(scores)


def test_guessing_that_there_is_no_answer() -> None:
    dev = [question(number, answers) for number, answers in enumerate((OPEN, OPEN, ANSWERED, ANSWERED, ANSWERED))]
    scores = baseline_of("squad2", [], dev, []).scores["majority"]
    assert (scores["exact"], scores["f1"], scores["NoAns_exact"], scores["HasAns_exact"]) == (40, 40, 100, 0)
    assert not [key for key in scores if "total" in key or "thresh" in key]


def test_the_interval_of_an_accuracy_by_hand() -> None:
    """Of ten examples the guess has 6 right, the model 9: it gains 4 and loses 1."""
    actual = baseline_of("sst2", texts("n"), texts(*"nnnnnnyyyy"), ["n", "y"])
    ranges = actual.intervals(labelled_as(*"nnnnnyyyyy"), {"accuracy": 0.9})
    assert ranges["accuracy"] == pytest.approx((0.5958, 0.9821), abs=1e-4)  # Wilson, by hand
    mean = 3 / 12
    half = 1.959964 * math.sqrt((6 / 12 - mean**2) / 12)  # Agresti and Min
    assert ranges[GAIN] == pytest.approx((mean - half, mean + half))
    same = actual.intervals(labelled_as(*"nnnnnnnnnn"), {"accuracy": 0.6})
    assert same[GAIN][0] < -0.1 < 0.1 < same[GAIN][1]  # equal predictions on few examples prove nothing


def test_intervals_of_other_scores_are_those_of_the_bootstrap() -> None:
    """Against the percentiles of 4,000 draws with numpy, which are nearly symmetric here."""
    rng = np.random.default_rng(1)
    true = rng.integers(0, 2, 101)
    predicted = np.where(rng.random(101) < 0.8, true, 1 - true)
    dev, names = texts(*(str(label) for label in true)), ["0", "1"]
    actual = baseline_of("mrpc", texts("0", "1", "1"), dev, names)
    ranges = actual.intervals(labelled_as(*map(str, predicted)), f1 := {"f1": f1_of(true, predicted), "accuracy": 0.8})
    drawn = [f1_of(true[rows], predicted[rows]) for rows in rng.integers(101, size=(4000, 101))]
    assert ranges["f1"] == pytest.approx(tuple(np.quantile(drawn, (0.025, 0.975))), abs=0.02)
    assert ranges["f1"] == actual.intervals(labelled_as(*map(str, predicted)), f1)["f1"]
    chunks = baseline_of("conll2003", tags("O"), tags(*["B-X O"] * 10), ["O", "B-X"])
    tagged = [tagged_as("B-X", "O")] * 9 + [tagged_as("O", "O")]
    ranges = chunks.intervals(tagged, {"overall_f1": 18 / 19})
    assert 0.6 < ranges["overall_f1"][0] < 18 / 19 < ranges["overall_f1"][1] == 1 == ranges[GAIN][1]


def test_the_interval_of_answers_by_hand() -> None:
    dev = [question(number, ANSWERED) for number in range(20)]
    answers = [SpanPrediction(str(number), "b" if number < 15 else "a", [], 0.0, 0.0) for number in range(20)]
    ranges = baseline_of("squad1", [], dev, []).intervals(answers, {"exact_match": 75.0, "f1": 75.0})
    assert ranges["exact_match"] == ranges["f1"] == pytest.approx((53.13, 88.81), abs=0.01)  # Wilson, by hand


def f1_of(true: Any, predicted: Any) -> float:
    return float(2 * (true * predicted).sum() / (true.sum() + predicted.sum()))


WORDS = [(f"w{n} good" if n % 3 else f"w{n} bad", "g" if n % 3 else "b") for n in range(60)]


def test_no_tfidf_for_labels_and_words_that_would_fill_the_memory() -> None:
    """L-BFGS would take 2 GB here, where the texts take 0.1 MB."""
    names = [f"label{number}" for number in range(3000)]
    assert tfidf.labels_by_words(names, names, names[:3]) == []
    assert tfidf.sets_by_words(names, [(name,) for name in names], names[:3]) == []


@pytest.mark.parametrize("several", [False, True])
def test_words_that_tell_the_labels_are_found_by_tfidf(several: bool) -> None:
    rows = [
        SequenceExample(str(n), text, None, (label,) if several else label) for n, (text, label) in enumerate(WORDS)
    ]
    actual = baseline_of("sequence", rows, rows[:20], ["b", "g"], *(SEVERAL if several else []))
    assert actual.scores["TF-IDF"]["accuracy"] == 1
    assert actual.scores["majority"]["accuracy"] < 0.7
    same = [rows[1]] * 9  # a single label
    kept = baseline_of("sequence", same, rows[:20], ["b", "g"], *(SEVERAL if several else [])).scores
    assert several or "TF-IDF" not in kept


def warned(train: str, dev: str, predicted: str) -> list[str]:
    result = baseline_of("sst2", texts(*train), texts(*dev), ["n", "y"])
    predictions = labelled_as(*predicted)
    score = sum(p == t for p, t in zip(predicted, dev, strict=True)) / len(dev)
    return result.warnings(predictions, score, result.intervals(predictions, {"accuracy": score})[GAIN])


def test_what_is_suspicious_is_said() -> None:
    dev = "n" * 50 + "y" * 50
    (line,) = warned("nny", dev, "n" * 48 + "y" * 2 + "n" * 47 + "y" * 3)  # 51 right, by chance; 95 % are n
    assert line.startswith(
        "accuracy 0.5100 is not clearly above the majority baseline (0.5000; 95 % interval of the difference -0.0"
    )
    (both,) = warned("nny", dev, "n" * 97 + "y" * 3)
    assert both.startswith("accuracy 0.5300 is not clearly above the majority baseline (0.5000; ")
    assert " and 97.0% of the predictions are 'n', but only 50.0% of the dev labels; " in both
    assert warned("nny", dev, "n" * 40 + "y" * 10 + "y" * 50) == []
    rare = "n" * 97 + "y" * 3
    assert warned("nny", rare, rare) != []  # three examples are too few to tell
    assert not [line for line in warned("nny", rare, rare) if "of the predictions" in line]
    assert len(warned("nny", dev, "n" * 100)) == 1  # what says the same of all is said by itself
