"""Words to windows and back: tables by hand, and one tag for each word of anything."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from task_configs import task_config

from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import SPECIAL_TOKENS, Tokenizer, wordpiece
from bertkit.tasks import words as words_module
from bertkit.tasks.entities import entities_of
from bertkit.tasks.feature import TaggingFeature
from bertkit.tasks.task_config import TaggingConfig
from bertkit.tasks.trainable import task_of
from bertkit.tasks.words import TaggingExample, TaggingPrediction

TOKENS = [*SPECIAL_TOKENS, *"abcdefg", *(f"##{letter}" for letter in "abcdefg"), ".", "x", "##x"]
LABELS = ("O", "B-X", "I-X", "B-Y")


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    return wordpiece({token: number for number, token in enumerate(TOKENS)}, lowercase=True)


def features_of(
    examples: list[TaggingExample],
    tokenizer: Tokenizer,
    labels: tuple[str, ...],
    max_seq_length: int,
    window_overlap: int | None = None,
) -> list[TaggingFeature]:
    tags = TaggingConfig(window_overlap)
    task: Any = SimpleNamespace(max_seq_length=max_seq_length, tagging=tags)  # shorter than any
    pieces = words_module.pieces_of(examples, tokenizer)
    return words_module.make_features(task, examples, pieces, tokenizer.facts, labels)


def example(text: str, tags: str | None = None) -> TaggingExample:
    return TaggingExample("1", tuple(text.split(" ")), None if tags is None else tuple(tags.split(" ")))


def tags_of(*value: Any) -> list[list[str]]:
    return [output.tags for output in words_module.tags_of(*value)]


def shown(tokenizer: Tokenizer, feature: TaggingFeature) -> str:
    return " ".join(tokenizer.vocab[number] for number in feature.input_ids)


def test_the_first_piece_of_each_word_is_labelled(letters: Tokenizer) -> None:
    """The zero-width word and the control character have no piece; they become [UNK] and keep their tags."""
    sample = example("abc d \u200b fa.g \x07 ab", "B-X I-X O B-Y I-X O")
    (feature,) = features_of([sample], letters, LABELS, 29)
    assert shown(letters, feature) == "[CLS] a ##b ##c d [UNK] f ##a . g [UNK] a ##b [SEP]"
    n = -100
    assert feature.token_labels == [n, 1, n, n, 2, 0, 3, n, n, n, 2, 0, n, n]
    assert feature.words == [-1, 0, -1, -1, 1, 2, 3, -1, -1, -1, 4, 5, -1, -1]
    assert feature.token_type_ids == [0] * 14


def test_features_without_tags_have_no_labels(letters: Tokenizer) -> None:
    features = features_of([example("a b"), TaggingExample("2", (), None)], letters, LABELS, 7)
    assert [feature.token_labels for feature in features] == [None, None]
    assert shown(letters, features[1]) == "[CLS] [SEP]"
    examples = [example("a b"), TaggingExample("2", (), None)]
    assert tags_of(examples, features, [np.eye(4), np.eye(4)[:2]], LABELS) == [["B-X", "I-X"], []]


WINDOWS = [
    # text, max_seq_length, overlap -> words of each window
    ("a b c d e f g", 6, None, ["a b c d", "c d e f", "e f g"]),
    ("a b c d e f g", 6, 0, ["a b c d", "e f g"]),
    ("a b c d e f g", 6, 3, ["a b c d", "b c d e", "c d e f", "d e f g"]),
    ("ab cd ef g", 6, None, ["ab cd", "cd ef", "ef g"]),
    ("abc de f g", 6, 2, ["abc", "de f g"]),  # a word that does not fit begins the next window
    ("a bcd ef", 6, 1, ["a bcd", "ef"]),  # no whole word fits the overlap
    ("a b", 6, None, ["a b"]),
    ("a b c d", 6, None, ["a b c d"]),
    ("a bcdefgabc d e", 6, None, ["a", "bcde", "d e"]),  # a word longer than a window: its first pieces
]


@pytest.mark.parametrize(("text", "max_seq_length", "overlap", "expected"), WINDOWS)
def test_tagging_windows_are_as_by_hand(
    letters: Tokenizer, text: str, max_seq_length: int, overlap: int | None, expected: list[str]
) -> None:
    features = features_of([example(text)], letters, LABELS, max_seq_length, window_overlap=overlap)
    words = [shown(letters, feature)[len("[CLS] ") : -len(" [SEP]")].replace(" ##", "") for feature in features]
    assert words == expected
    assert max(len(feature.input_ids) for feature in features) <= max_seq_length


def test_a_word_is_tagged_where_it_has_most_context(letters: Tokenizer) -> None:
    """Each window gives its own label to all; d has the same context in both, and goes to the earlier."""
    sample = example("a b c d e f g")
    features = features_of([sample], letters, ("W0", "W1", "W2"), 7, window_overlap=3)
    assert [feature.words[1:-1] for feature in features] == [[0, 1, 2, 3, 4], [2, 3, 4, 5, 6]]
    logits = [np.tile(np.eye(3)[number], (7, 1)) for number in range(2)]
    #          a  b  c  d  e  f  g
    # window 0 0  1  2  1  0
    # window 1       0  1  2  1  0
    expected = ["W0", "W0", "W0", "W0", "W1", "W1", "W1"]
    assert tags_of([sample], features, logits, ("W0", "W1", "W2")) == [expected]


TASK_SETTINGS = [
    # task.tagging.* -> words of each window, labels of the first, the window that each word's tag is from
    ((), ["a bc d ef", "d ef g a b", "g a b cde", "cde f"], [-100, 0, 1, -100, 0, 0, -100, -100], "0 0 0 0 1 1 2 2 3"),
    (("window_overlap=0",), ["a bc d ef", "g a b cde", "f"], [-100, 0, 1, -100, 0, 0, -100, -100], "0 0 0 0 1 1 1 1 2"),
    (("window_overlap=2",), ["a bc d ef", "ef g a b", "a b cde f"], [-100, 0, 1, -100, 0, 0, -100, -100], "0 0 0 0 1 1 2 2 2"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "windows", "labels", "tags"), TASK_SETTINGS)
def test_settings_reach_features_and_words_keep_one_tag(
    letters: Tokenizer, overrides: tuple[str, ...], windows: list[str], labels: list[int], tags: str
) -> None:
    """Twelve pieces in windows of six; each window gives its own number to all of its words."""
    task = task_config("tagging", "task.max_seq_length=8", *(f"task.tagging.{text}" for text in overrides))
    sample = [example("a bc d ef g a b cde f", "O B-X O O O O O B-Y O")]
    features = list(task_of(task, LABELS).each_feature(sample, letters))
    assert [shown(letters, each)[len("[CLS] ") : -len(" [SEP]")].replace(" ##", "") for each in features] == windows
    assert features[0].token_labels == labels
    numbers = tuple(map(str, range(len(windows))))
    logits = [np.tile(np.eye(len(windows))[n], (len(each.input_ids), 1)) for n, each in enumerate(features)]
    (predictions,) = task_of(task, numbers).predictions(sample, features, logits)
    assert predictions.tags == tags.split()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.text("abc.\u200b\x07\u4e00é [", min_size=1, max_size=17), max_size=23), max_size=5),
    st.integers(3, 13),
    st.integers(0, 10),
)
def test_one_tag_for_each_word_of_anything(texts: list[list[str]], max_seq_length: int, overlap: int) -> None:
    """The logits say of each token the label of its word, so the tags must come back as they were."""
    tokenizer = wordpiece({token: number for number, token in enumerate(TOKENS)}, lowercase=True)
    examples = [
        TaggingExample(str(n), tuple(words), tuple(LABELS[len(word) % 4] for word in words))
        for n, words in enumerate(texts)
    ]
    overlap = min(overlap, max_seq_length - 3)
    features = features_of(examples, tokenizer, LABELS, max_seq_length, window_overlap=overlap)
    logits = [np.eye(4)[[max(label, 0) for label in feature.token_labels]] for feature in features]
    assert tags_of(examples, features, logits, LABELS) == [list(each.tags or ()) for each in examples]
    assert all(len(feature.input_ids) <= max_seq_length for feature in features)


def test_a_sentence_of_2000_words_has_2000_tags(letters: Tokenizer) -> None:
    rng = np.random.default_rng(0)
    words = tuple("".join(rng.choice(list("abcdefg"), rng.integers(1, 9))) for _ in range(2000))
    tags = tuple(LABELS[rng.integers(4)] for _ in words)
    examples = [TaggingExample("long", words, tags)]
    features = features_of(examples, letters, LABELS, 128)
    assert len(features) > 100
    logits = [np.eye(4)[np.maximum(feature.token_labels, 0)] for feature in features]
    assert tags_of(examples, features, logits, LABELS) == [list(tags)]


def test_a_text_that_fits_is_one_window(letters: Tokenizer) -> None:
    logits = np.random.default_rng(0).normal(size=(5, 4))
    sample = example("ab c")
    features = features_of([sample], letters, LABELS, 5)
    best = logits.argmax(-1)
    assert tags_of([sample], features, [logits], LABELS) == [[LABELS[best[1]], LABELS[best[3]]]]


def test_unknown_tag_is_refused(letters: Tokenizer) -> None:
    with pytest.raises(InputError, match="example 1: unknown tag 'B-Z'"):
        features_of([example("a", "B-Z")], letters, LABELS, 7)


@pytest.mark.parametrize(
    ("labels", "tags", "expected"),
    [
        (("O", "X", "Y"), "X X O Y X", [("a b", "X"), ("d", "Y"), ("e", "X")]),  # as the pipeline of transformers
        (("O", "X", "Y"), "O O O O O", []),
        (("N", "V"), "N N V N N", [("a", "N"), ("b", "N"), ("c", "V"), ("d", "N"), ("e", "N")]),
        (LABELS, "B-X I-X O B-Y B-X", [("a b", "X"), ("d", "Y"), ("e", "X")]),
    ],
)
def test_entities_of_labels_with_and_without_prefixes(
    letters: Tokenizer, labels: tuple[str, ...], tags: str, expected: list[tuple[str, str]]
) -> None:
    text = "a b c d e"
    prediction = TaggingPrediction(tags.split(), [0.5] * 5)
    entities = entities_of(text, letters.words([text])[0], prediction, labels)
    assert [(entity.text, entity.label) for entity in entities] == expected
