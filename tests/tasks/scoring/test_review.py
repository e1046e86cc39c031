"""Reviews by hand: scores by label and entity, calibration, confusions and mistakes."""

import numpy as np
import pytest
import seqeval.metrics
import sklearn.metrics
from task_configs import task_config

from bertkit.tasks.choice import ChoiceExample, ChoicePrediction
from bertkit.tasks.scoring import review
from bertkit.tasks.scoring.review import Case, TaggedSentence, calibration, confusion, scores_by_entity, scores_by_label
from bertkit.tasks.sequence import SequenceExample, SequencePrediction
from bertkit.tasks.spans.answers import SpanCandidate, SpanPrediction
from bertkit.tasks.spans.examples import Answer, SpanExample
from bertkit.tasks.trainable import task_of
from bertkit.tasks.words import TaggingExample, TaggingPrediction


def test_calibration_by_hand() -> None:
    """Of 0.55 and 0.58 one is right, 0.95 is right, 1.0 is wrong: 2/4 * |0.5 - 0.565| + 2/4 * |0.5 - 0.975|."""
    actual = calibration([(0.55, True), (0.95, True), (0.58, False), (1.0, False)])
    assert actual["error"] == pytest.approx(0.5 * 0.065 + 0.5 * 0.475)
    assert [(each["from"], each["count"], each["accuracy"]) for each in actual["bins"]] == [
        (8 / 15, 2, 0.5),
        (14 / 15, 2, 0.5),
    ]


def test_scores_by_label_and_entity_are_those_of_scikit_learn_and_seqeval() -> None:
    rng = np.random.default_rng(0)
    gold, output = (rng.choice(["a", "b", "c"], 101, p=share).tolist() for share in ([0.5, 0.3, 0.2], [0.2, 0.5, 0.3]))
    pairs: dict[tuple[str, str], int] = {}
    for pair in zip(gold, output, strict=True):
        pairs[pair] = pairs.get(pair, 0) + 1
    expected = sklearn.metrics.precision_recall_fscore_support(gold, output, labels=["a", "b", "c"])
    actual = scores_by_label(pairs, ["a", "b", "c"])
    assert [list(actual[label].values()) for label in "abc"] == pytest.approx(np.array(expected).T)
    assert confusion(pairs, ["a", "b", "c"])["counts"] == sklearn.metrics.confusion_matrix(gold, output).tolist()
    tags = ["O", "B-X", "I-X", "B-Y", "I-Y"]
    rows = [[rng.choice(tags, 13).tolist() for _ in range(31)] for _ in range(2)]
    report = seqeval.metrics.classification_report(*rows, output_dict=True)
    by_entity = scores_by_entity(TaggedSentence("", (), one, other, ()) for one, other in zip(*rows, strict=True))
    assert list(by_entity) == ["X", "Y"]
    for kind, scores in by_entity.items():
        theirs = [report[kind][name] for name in ("precision", "recall", "f1-score", "support")]
        assert list(scores.values()) == pytest.approx(theirs)


def test_single_texts_and_pairs_have_the_same_columns() -> None:
    examples = [SequenceExample("p", "a", "b", "x"), SequenceExample("q", "c", None, "x")]
    predictions = [SequencePrediction(own.id, "y", {"x": 0.1, "y": 0.9}) for own in examples]
    for order in (1, -1):
        actual = task_of(task_config("sequence"), ("x", "y")).review(examples[::order], predictions[::order])
        shown = actual["mistakes"]
        assert shown["columns"][:3] == ["id", "text", "second text"]
        assert sorted(row[:3] for row in shown["rows"]) == [["p", "a", "b"], ["q", "c", ""]]


def test_many_labels_are_put_together() -> None:
    labels = [f"l{n}" for n in range(20)]
    actual = confusion({(label, label): 30 - n for n, label in enumerate(labels)}, labels)
    assert actual["labels"] == [*labels[:15], "(others)"]
    assert [row[n] for n, row in enumerate(actual["counts"])] == [*range(30, 15, -1), sum(range(11, 16))]


def test_a_review_of_labels() -> None:
    """The mistakes come with their texts, the most confident first."""
    task, labels = task_config("sequence"), ["no", "yes"]
    cases = [("a", "no", 0.9), ("b", "yes", 0.7), ("c", "no", 0.6), ("d", "no", 0.8)]
    examples = [SequenceExample(text, text * 3, None if text != "d" else "pair", "yes") for text, _, _ in cases]
    predictions = [SequencePrediction(t, label, {label: p, labels[label == "no"]: 1 - p}) for t, label, p in cases]
    actual = task_of(task, tuple(labels)).review(examples, predictions)
    assert actual["by_label"]["yes"] == {"precision": 1.0, "recall": 0.25, "f1": 0.4, "support": 4}
    assert actual["confusion"]["counts"] == [[0, 0], [3, 1]]
    assert [row[:2] + row[-3:] for row in actual["mistakes"]["rows"]] == [
        ["a", "aaa", "yes", "no", "0.900"], ["d", "ddd", "yes", "no", "0.800"], ["c", "ccc", "yes", "no", "0.600"]
    ]  # fmt: skip
    assert set(review.eval_json_parts(actual)) == {"per_label", "calibration_error"}


def test_a_review_of_label_sets_and_numbers() -> None:
    several = task_config("sequence", "task.multi_label=true", "task.metrics=[f1_macro]", "task.best_metric=f1_macro")
    examples = [SequenceExample("a", "t", None, ("x",)), SequenceExample("b", "u", None, ("x", "y"))]
    shares = {"x": 0.9, "y": 0.8}, {"x": 0.3, "y": 0.6}
    predictions = [SequencePrediction("a", ("x", "y"), shares[0]), SequencePrediction("b", ("y",), shares[1])]
    actual = task_of(several, ("x", "y")).review(examples, predictions)
    assert actual["by_label"]["x"] == {"precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3), "support": 2}
    assert actual["by_label"]["y"]["precision"] == 0.5
    first, second = (row[2:] for row in actual["mistakes"]["rows"])
    assert (first, second) == (["y", "no", "yes", "0.800"], ["x", "yes", "no", "0.700"])
    numbers = task_config("stsb")
    examples = [SequenceExample(str(n), "t", None, float(n)) for n in range(3)]
    predictions = [SequencePrediction(str(n), n + 0.5 * n, {}) for n in range(3)]
    actual = task_of(numbers).review(examples, predictions)
    assert actual["scatter"] == [[0, 0, "0"], [1, 1.5, "1"], [2, 3, "2"]]
    assert actual["mean_absolute_error"] == 0.5
    assert actual["mistakes"]["rows"][0] == ["2", "t", "2", "3", "+1"]
    price, guess = SequenceExample("p", "t", None, 123456.0), SequencePrediction("p", 124567.8, {})
    assert task_of(numbers).review([price], [guess])["mistakes"]["rows"] == [["p", "t", "123,456", "124,568", "+1,112"]]


def test_a_review_of_tags() -> None:
    """One mistake of a sentence, the surest, among its neighbours; types by word, entities by type."""
    task = task_config("tagging")
    examples = [TaggingExample("1", ("a", "b", "c"), ("B-X", "I-X", "O")), TaggingExample("2", ("d",), ("O",))]
    predictions = [TaggingPrediction(["B-X", "B-Y", "B-Y"], [0.9, 0.6, 0.7]), TaggingPrediction(["O"], [0.8])]
    actual = task_of(task).review(examples, predictions)
    assert actual["by_label"] == {
        "X": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 1},
        "Y": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0},
    }
    assert actual["confusion"] == {"labels": ["X", "Y", "O"], "counts": [[1, 1, 0], [0, 0, 0], [0, 1, 1]]}
    assert actual["mistakes"]["rows"] == [["1", "c", "a b [c]", "O", "B-Y", "0.700"]]
    outside = task_of(task).review(
        [TaggingExample("1", ("a", "b"), ("X", "O"))], [TaggingPrediction(["X", "X"], [0.9] * 2)]
    )
    assert outside["confusion"] == {"labels": ["X", "O"], "counts": [[1, 0], [1, 0]]}
    parts = [TaggingExample("1", ("a", "b"), ("NOUN", "VERB"))]
    actual = task_of(task).review(parts, [TaggingPrediction(["NOUN", "NOUN"], [0.5, 0.5])])
    assert actual["by_label"]["NOUN"] == {"precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "support": 1}


def test_a_review_of_answers() -> None:
    task = task_config("squad2")
    answers = {"q1": (Answer("the red fox", 0),), "q2": (Answer("blue", 0),), "q3": ()}
    examples = [
        SpanExample(name, "w " * n, "c", own) for n, (name, own) in zip((3, 9, 20), answers.items(), strict=True)
    ]
    predictions = [SpanPrediction(name, text, [SpanCandidate(text, 0.75, 0, 0, 0, 1)], 0.0, 0.5)
            for name, text in (("q1", "Red fox!"), ("q2", "blue sea"), ("q3", "sea"))]  # fmt: skip
    actual = task_of(task).review(examples, predictions)
    by_answer, by_length = actual["groups"]
    assert by_answer["rows"] == [["answered", "50.0", "83.3", "2"], ["unanswerable", "0.0", "0.0", "1"]]
    assert [row[0] for row in by_length["rows"]] == ["up to 7 words", "8 to 11", "16 and more"]
    assert [row[0] for row in actual["mistakes"]["rows"]] == ["q3", "q2"]
    assert actual["calibration"]["error"] == pytest.approx(0.75 - 1 / 3)


def test_a_review_of_choices() -> None:
    task = task_config("choice")
    examples = [ChoiceExample(str(n), f"c{n}", ("x", "y", "z"), label) for n, label in enumerate((0, 2, 2))]
    predictions = [ChoicePrediction(str(n), label, (0.25, 0.25, 0.5)) for n, label in enumerate((2, 2, 2))]
    actual = task_of(task).review(examples, predictions)
    assert actual["confusion"]["counts"] == [[0, 0, 1], [0, 0, 0], [0, 0, 2]]
    assert actual["mistakes"]["rows"] == [["0", "c0", "x", "z", "0.500"]]


def test_mistakes_are_no_more_than_twenty() -> None:
    cases = [Case(str(n), {"text": "t"}, "a", "b" if n % 2 else "a", n / 100) for n in range(99)]
    actual = review.mistakes(cases)
    assert actual["title"] == "The 20 most confident mistakes"
    assert [row[0] for row in actual["rows"]] == [str(n) for n in range(97, 57, -2)]
