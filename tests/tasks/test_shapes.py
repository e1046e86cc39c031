"""What holds for all shapes of tasks: which metrics fit, thresholds of answers, and runs that learnt nothing."""

import re
from typing import Any

import pytest
from task_configs import task_config

from bertkit.base.errors import InputError
from bertkit.tasks.choice import ChoiceExample, ChoicePrediction
from bertkit.tasks.generation import GenerationExample, GenerationPrediction
from bertkit.tasks.minimal_pairs import PairExample, PairPrediction
from bertkit.tasks.scoring.metrics import METRICS
from bertkit.tasks.sequence import SequenceExample, SequencePrediction
from bertkit.tasks.spans.answers import HIGHEST_ODDS, SpanCandidate, SpanPrediction
from bertkit.tasks.spans.examples import Answer, SpanExample
from bertkit.tasks.trainable import task_of
from bertkit.tasks.words import TaggingExample, TaggingPrediction

# task, its settings, labels -> what is predicted
PREDICTED: list[tuple[str, tuple[str, ...], tuple[str, ...] | None, str]] = [
    ("sequence", (), None, "one of two labels"),
    ("sequence", (), ("a", "b"), "one of two labels"),
    ("sequence", (), ("a", "b", "c"), "one of several labels"),
    ("sequence", ("multi_label=true",), ("a", "b", "c"), "several labels at once"),
    ("sequence", ("labels=regression",), (), "numbers"),
    ("tagging", (), None, "tags that mark chunks"),
    ("tagging", (), ("O", "B-PER", "I-PER"), "tags that mark chunks"),
    ("tagging", (), ("DT", "NN"), "tags that mark no chunks"),
    ("tagging", (), ("B_PER", "O"), "tags that mark no chunks"),
    ("squad1", (), (), "answers to every question"),
    ("squad2", (), (), "answers, or none"),
    ("choice", (), (), "a choice of endings"),
    ("translation", (), (), "texts"),
    ("minimal_pairs", (), (), "the more probable of two texts"),
]


@pytest.mark.parametrize(("name", "arguments", "labels", "predicted"), PREDICTED)
def test_metrics_that_fit_are_taken_and_others_refused(
    name: str, arguments: tuple[str, ...], labels: tuple[str, ...] | None, predicted: str
) -> None:
    measured = task_of(task_config(name, *(f"task.{each}" for each in arguments)), labels).fitting_metrics()
    assert measured.predictions == predicted
    for metric, (key, *_) in METRICS.items():
        asked = (*arguments, f"metrics=[{metric}]", f"best_metric={key}")
        task = task_config(name, *(f"task.{setting}" for setting in asked))
        if metric in measured.metrics:
            task_of(task, labels).check_metrics()
            continue
        with pytest.raises(InputError) as caught:
            task_of(task, labels).check_metrics()
        assert str(caught.value).startswith(f"task.metrics: {metric} cannot measure {predicted}")
        assert "set task.metrics=[" in str(caught.value)


REFUSED = [
    ("sequence", ("labels=regression",), (), ["accuracy", "task.metrics=[pearson]", "task.best_metric=pearson"]),
    ("tagging", (), ("DT", "NN"), ["seqeval", "'DT'", "task.metrics=[accuracy]", "task.best_metric=accuracy"]),
    ("squad2", ("metrics=[squad]",), (), ["squad", "task.metrics=[squad_v2]"]),
]


@pytest.mark.parametrize(("name", "arguments", "labels", "words"), REFUSED)
def test_unfit_metric_error_names_fitting_ones(
    name: str, arguments: tuple[str, ...], labels: tuple[str, ...], words: list[str]
) -> None:
    with pytest.raises(InputError, match=f"^task.metrics: {'.*'.join(map(re.escape, words))}"):
        task_of(task_config(name, *(f"task.{setting}" for setting in arguments)), labels).check_metrics()


def answered(name: str, best: str, odds: float, threshold: float = 0.0) -> SpanPrediction:
    n_best = [
        SpanCandidate(text, 0.5, 0.0, 0.0, 0, 0) for text in ((best, "") if odds < 0 else ("", best)) if text or odds
    ]
    return SpanPrediction(name, "" if odds > threshold else best, n_best, odds, 1 / (1 + 2.718281828459045**-odds))


def question(name: str, *answers: str) -> SpanExample:
    return SpanExample(name, "?", "cat dog bird", tuple(Answer(text, 0) for text in answers))


def test_thresholds_are_searched_with_the_best_answers() -> None:
    """At the threshold 0 only p is answered; at 2 r is too, which is right, and q still is not."""
    task = task_of(task_config("squad2"))
    examples = [question("p", "cat"), question("q"), question("r", "dog"), question("s")]
    predictions = [
        answered("p", "cat", -1.0),
        answered("q", "bird", 3.0),
        answered("r", "dog", 2.0),
        answered("s", "cat", 4.0),
    ]
    scores = task.score(examples, predictions)
    assert (scores["exact"], scores["f1"]) == (75.0, 75.0)
    for name in ("exact", "f1"):
        assert scores[f"best_{name}"] == 100.0
        assert scores[f"best_{name}_thresh"] == pytest.approx(0.8807970779778823)
        assert scores[f"best_{name}_null_score_diff_threshold"] == 2.0
    # the setting gives the score
    again = [answered(p.id, p.best_text, p.null_odds, 2.0) for p in predictions]
    assert task.score(examples, again)["exact"] == 100.0


def test_best_threshold_may_answer_nothing() -> None:
    scores = task_of(task_config("squad2")).score([question("p")], [answered("p", "cat", -1.0)])
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (100.0, 0.0)
    assert scores["best_f1_null_score_diff_threshold"] == -HIGHEST_ODDS


def labelled(*labels: Any) -> list[SequenceExample]:
    return [SequenceExample(str(n), "x", None, label) for n, label in enumerate(labels)]


def labelled_as(*labels: Any) -> list[SequencePrediction]:
    return [SequencePrediction(str(n), label, {}) for n, label in enumerate(labels)]


TAGS = [TaggingExample("0", ("a", "b"), ("B-X", "O")), TaggingExample("1", ("a",), ("O",))]
QUESTIONS = [question("p", "cat"), question("q", "dog")]


def tagged(*names: str) -> TaggingPrediction:
    return TaggingPrediction(list(names), [1.0] * len(names))


ENDINGS = [ChoiceExample(str(n), "x", ("a", "b"), n) for n in range(2)]
TRANSLATIONS = [GenerationExample(str(n), "x", "ab"[n]) for n in range(2)]
PAIRS = [PairExample("0", "a b", "b a", "order")]
NUMBERS = ("task.labels=regression", "task.metrics=[pearson]", "task.best_metric=pearson")
DEGENERATE: list[tuple[str, tuple[str, ...], Any, Any, bool]] = [
    ("sequence", (), labelled("a", "b"), labelled_as("a", "a"), True),
    ("sequence", (), labelled("a", "b"), labelled_as("b", "a"), False),
    ("sequence", (), labelled("a", "a"), labelled_as("a", "a"), False),
    ("sequence", NUMBERS, labelled(1.0, 5.0), labelled_as(2.0, 2.01), True),
    ("sequence", NUMBERS, labelled(1.0, 5.0), labelled_as(2.0, 2.1), False),
    ("sequence", NUMBERS, labelled(1.0, 1.0), labelled_as(2.0, 2.0), False),
    ("tagging", (), TAGS, [tagged("O", "O"), tagged("O")], True),
    ("tagging", (), TAGS, [tagged("O", "B-X"), tagged("O")], False),
    ("tagging", (), TAGS[1:], [tagged("O")], False),
    ("squad1", (), QUESTIONS, [answered("p", "", 1.0), answered("q", "", 1.0)], True),
    ("squad2", (), QUESTIONS, [answered("p", "cat", 1.0), answered("q", "dog", 1.0)], True),
    ("squad2", (), QUESTIONS, [answered("p", "cat", -1.0), answered("q", "dog", 1.0)], False),
    ("squad2", (), [question("p"), question("q")], [answered("p", "", 1.0), answered("q", "", 1.0)], False),
    ("choice", (), ENDINGS, [ChoicePrediction(str(n), 0, (1.0, 0.0)) for n in range(2)], True),
    ("choice", (), ENDINGS, [ChoicePrediction(str(n), n, (0.5, 0.5)) for n in range(2)], False),
    ("translation", (), TRANSLATIONS, [GenerationPrediction(str(n), "c", -1.0) for n in range(2)], True),
    ("translation", (), TRANSLATIONS, [GenerationPrediction(str(n), "cd"[n], -1.0) for n in range(2)], False),
    ("translation", (), TRANSLATIONS[:1], [GenerationPrediction("0", "c", -1.0)], False),
    ("minimal_pairs", (), PAIRS, [PairPrediction(-1.0, -1.0)], True),
    ("minimal_pairs", (), PAIRS, [PairPrediction(-1.0, -2.0)], False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "examples", "predictions", "expected"), DEGENERATE)
def test_constant_predictions_are_degenerate(
    name: str, arguments: tuple[str, ...], examples: Any, predictions: Any, expected: bool
) -> None:
    task = task_config(name, *arguments)
    assert task_of(task).is_degenerate(examples, predictions) is expected
