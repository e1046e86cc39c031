"""Texts and pairs: how they are cut, what their labels become, and the way back from logits."""

import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import wordpiece
from bertkit.tasks.choice import ChoiceExample, ChoiceTask
from bertkit.tasks.feature import Feature, truncated_lengths
from bertkit.tasks.label_kinds import Number, OneLabel, SeveralLabels, sigmoid
from bertkit.tasks.sequence import SequenceExample

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d", "e"]
TOKENIZER = wordpiece({token: number for number, token in enumerate(TOKENS)}, lowercase=True)


def sized(max_seq_length: int) -> Any:
    """Settings of a task whose sequences may be shorter than any."""
    return SimpleNamespace(max_seq_length=max_seq_length, long_texts=None)


def make_features(
    examples: list[SequenceExample], labels: tuple[str, ...], length: int, task: type = OneLabel
) -> list[Feature]:
    return task(sized(length), labels).features(examples, TOKENIZER)  # type: ignore[no-any-return]


def test_several_labels_at_once() -> None:
    examples = [SequenceExample(str(n), "a", None, label) for n, label in enumerate([("z", "x"), (), ("y",)])]
    features = make_features(examples, ("x", "y", "z"), 8, SeveralLabels)
    assert [feature.label for feature in features] == [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    logits = [np.array(row) for row in ([0.1, -0.1, 40.0], [-1.0, 0.0, -800.0], [np.log(3), 0.0, 0.0])]
    actual = SeveralLabels(sized(8), ("x", "y", "z")).predictions(examples, features, logits)
    assert [each.label for each in actual] == [("x", "z"), (), ("x",)]
    assert list(actual[1].probabilities.values()) == pytest.approx([1 / (1 + np.e), 0.5, 0.0])
    assert actual[2].probabilities["x"] == pytest.approx(0.75)


@pytest.mark.parametrize("task", [OneLabel, SeveralLabels])
def test_predictions_of_thousands_of_labels_need_eight_bytes_a_label(task: type) -> None:
    several = task(sized(8), tuple(f"label {number}" for number in range(5000)))
    assert several.prediction("first", sigmoid(np.zeros(5000, np.float32))).probabilities["label 7"] > 0
    tracemalloc.start()
    kept = [several.prediction("a", sigmoid(np.full(5000, -number, np.float32))) for number in range(19)]
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept) * 5000 * 8 < taken < len(kept) * 5000 * 9 + 50_000


def words(ids: list[int]) -> str:
    return " ".join(TOKENS[number] for number in ids)


def example(text: str, pair: str | None = None, label: str | float | None = None) -> SequenceExample:
    return SequenceExample("7", text, pair, label)


@pytest.mark.parametrize(("text", "pair", "length", "expected", "types", "num_cut"), [
    ("a b", None, 9, "[CLS] a b [SEP]", "0000", 0),
    ("", None, 9, "[CLS] [SEP]", "00", 0),
    ("a b c d", None, 5, "[CLS] a b c [SEP]", "00000", 1),
    ("a b", "c", 9, "[CLS] a b [SEP] c [SEP]", "000011", 0),
    ("a b", "", 9, "[CLS] a b [SEP] [SEP]", "00001", 0),
    ("a b c d", "e", 6, "[CLS] a b [SEP] e [SEP]", "000011", 2),
    ("a", "b c d e", 6, "[CLS] a [SEP] b c [SEP]", "000111", 2),
    ("a b c", "c d e", 8, "[CLS] a b [SEP] c d e [SEP]", "00001111", 1),  # of equal ones the first gives first
])  # fmt: skip
def test_sequence_features_are_as_by_hand(
    text: str, pair: str | None, length: int, expected: str, types: str, num_cut: int
) -> None:
    (feature,) = make_features([example(text, pair)], ("no", "yes"), length)
    assert words(feature.input_ids) == expected
    assert "".join(map(str, feature.token_type_ids)) == types
    assert (feature.example, feature.label, feature.num_cut) == (0, None, num_cut)


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 30))
def test_what_stays_of_a_pair_is_what_transformers_keeps(a: int, b: int, budget: int) -> None:
    library = LibraryTokenizer(WordLevel({"a": 0, "b": 1}))
    library.pre_tokenizer = WhitespaceSplit()
    library.enable_truncation(budget, strategy="longest_first")
    ids = library.encode("a " * a, "b " * b).ids
    assert truncated_lengths(a, b, budget) == (ids.count(0), ids.count(1))


def test_singles_and_pairs_may_be_mixed() -> None:
    features = make_features([example("a", "b"), example("c"), example("d", "e")], (), 9)
    texts = [words(feature.input_ids) for feature in features]
    assert texts == ["[CLS] a [SEP] b [SEP]", "[CLS] c [SEP]", "[CLS] d [SEP] e [SEP]"]
    assert [feature.example for feature in features] == [0, 1, 2]


def test_labels_become_numbers_by_name() -> None:
    examples = [example("a", label="yes"), example("a", label="no"), example("a", label=None)]
    assert [f.label for f in make_features(examples, ("no", "yes"), 9)] == [1, 0, None]
    assert [f.label for f in make_features([example("a", label=2.5)], (), 9, Number)] == [2.5]
    with pytest.raises(InputError, match="example 7: unknown label 'yess'; did you mean 'yes'"):
        make_features([example("a", label="yess")], ("no", "yes"), 9)
    with pytest.raises(InputError, match="example 7: label 'yes': expected a number"):
        make_features([example("a", label="yes")], (), 9, Number)


def test_label_and_number_predictions_are_as_by_hand() -> None:
    examples = [example("a"), example("b")]
    logits = [np.array([0.0, np.log(3.0)], np.float32), np.array([800.0, -800.0], np.float32)]
    first, second = OneLabel(sized(9), ("no", "yes")).predictions(examples, [], logits)
    assert (first.id, first.label, second.label) == ("7", "yes", "no")
    assert first.probabilities == pytest.approx({"no": 0.25, "yes": 0.75})
    assert second.probabilities == {"no": 1.0, "yes": 0.0}
    (score,) = Number(sized(9)).predictions(examples[:1], [], [np.array([2.5], np.float32)])
    assert (score.label, score.probabilities) == (2.5, {})


CHOICES = [ChoiceExample("x", "a b", ("c", "d e"), 1), ChoiceExample("y", "b", ("d", "c c c"), None)]


@pytest.mark.parametrize(
    ("labels", "written"), [(("-1", "0", "10"), [-1, 0, 10]), (("01", "2"), ["01", "2"]), (("1", "two"), ["1", "two"])]
)  # fmt: skip
def test_labels_that_are_whole_numbers_are_written_as_numbers(labels: tuple[str, ...], written: list[object]) -> None:
    row = example("a", label=labels[0])
    logits = [np.eye(len(labels))[number] for number in range(len(labels))]
    one, several = OneLabel(sized(8), labels), SeveralLabels(sized(8), labels)
    rows = [one.row(row, one.prediction("0", own)) for own in logits]
    assert [row["label"] for row in rows] == written
    assert list(rows[0]["probabilities"]) == list(labels)
    assert one.reference(row) == written[0]
    assert [several.row(row, several.prediction("0", own))["label"] for own in logits] == [[one] for one in written]


def test_each_ending_is_a_feature() -> None:
    features = ChoiceTask(sized(7)).features(CHOICES, TOKENIZER)
    assert [words(feature.input_ids) for feature in features] == [
        "[CLS] a b [SEP] c [SEP]",
        "[CLS] a b [SEP] d e [SEP]",
        "[CLS] b [SEP] d [SEP]",
        "[CLS] b [SEP] c c c [SEP]",
    ][:4]
    assert [(f.example, f.label, f.num_cut) for f in features] == [(0, 1, 0), (0, 1, 0), (1, None, 0), (1, None, 0)]


def test_predictions_of_choices() -> None:
    features = ChoiceTask(sized(9)).features(CHOICES, TOKENIZER)
    logits = [np.array([value], np.float32) for value in (np.log(3.0), 0.0, -2.0, -2.0 + np.log(4.0))]
    first, second = ChoiceTask(sized(9)).predictions(CHOICES, features, logits)
    assert (first.id, first.label) == ("x", 0)
    assert first.probabilities == pytest.approx((0.75, 0.25))
    assert (second.label, second.probabilities) == (1, pytest.approx((0.2, 0.8)))


@pytest.mark.parametrize(
    ("endings", "label", "line"), [(("a",), 0, "1 endings"), (("a", "b"), 2, "label 2: expected 0 to 1")]
)
def test_choices_that_do_not_fit(endings: tuple[str, ...], label: int, line: str) -> None:
    with pytest.raises(InputError, match=line):
        ChoiceTask(sized(9)).features([CHOICES[0], ChoiceExample("z", "a", endings, label)], TOKENIZER)
