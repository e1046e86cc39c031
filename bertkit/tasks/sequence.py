"""Sequence: a text, or a pair of texts, with a label, several of them, or a number.

A feature is `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, segment 0 up to the first [SEP]. Special tokens named in a text are
special, as they are to everyone who runs the exported model.

Source: Devlin et al. 2019, figure 4 (a) and (b); google-research/bert run_classifier.py `convert_single_example`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import InputError
from bertkit.base.typed_settings import nearest
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.reading.labels import Labels
from bertkit.tasks.reading.source import NONE_OF_THEM, Reading, given, text_of, value_of
from bertkit.tasks.scoring import metrics, review
from bertkit.tasks.task import TABLES, Feature, Measured, Shape, commonest, labelled_lines, says_the_same
from bertkit.tasks.task_config import TaskConfig

SAME_NUMBERS = 0.01  # of the labels' deviation: numbers that deviate less are the same


@dataclass(frozen=True)
class SequenceExample:
    """A text, or a pair, with a label."""

    id: str  # as the file has it, or the number of the row
    text: str  # the first segment
    text_pair: str | None  # the second segment; None for a single text
    # a label's name, or a number for a regression, or the names of all that hold; None where it is not known
    label: str | float | tuple[str, ...] | None


@dataclass(frozen=True)
class SequencePrediction:
    """What a model says of an example."""

    id: str  # of the example
    # the most probable label, or the number of a regression, or of labels that may hold at once those that are more
    # likely than not
    label: str | float | tuple[str, ...]
    probabilities: dict[str, float]  # of each label by name; empty for a regression


def read(reading: Reading) -> Iterator[SequenceExample]:
    """Read the rows of a table.

    Raises:
        InputError: a column is missing; of a row, when it is taken.
    """
    task = reading.task
    text = reading.find(task.columns.text, "text")
    pair = reading.find(task.columns.text_pair, "text_pair", task.needs_pair)
    field, ids, is_labelled = reading.label_field(), reading.ids(), reading.is_labelled
    reading.labels = labels = Labels(task, field, reading.known_labels, reading.table.is_typed)
    names_of, skipped = labels.names_of if task.multi_label else labels.name_of, task.skip_labels

    def example(row: Any, where: str, line: int) -> SequenceExample | None:
        label: str | float | tuple[str, ...] | None = None
        if field is not None:
            value = value_of(row, field, where) if is_labelled else row.get(field)
            if value in skipped:
                if is_labelled:
                    reading.num_skipped += 1
                    return None
                value = None  # of a test file, every row counts
            if value not in (None, "") or is_labelled:
                label = names_of(value, where)
        first, second = text_of(row, text, where), None if pair is None else text_of(row, pair, where)
        if not first.strip() or (second is not None and not second.strip()):
            reading.empty.append(where)
        return SequenceExample(ids.take(given(row, ids.field), where, line), first, second, label)

    return reading.each(example)


def make_features(
    examples: Sequence[SequenceExample], tokenizer: Tokenizer, labels: Sequence[str], max_seq_length: int
) -> list[Feature]:
    """Turn examples, singles and pairs, into features, one each; what does not fit is cut as `kept_of_pair` says.

    Raises:
        InputError: a label that is not among `labels`, or not a number in a regression.
    """
    numbers = {name: number for number, name in enumerate(labels)}
    first = pieces(tokenizer, [example.text for example in examples])
    paired = [place for place, example in enumerate(examples) if example.text_pair is not None]
    second = dict(zip(paired, pieces(tokenizer, [examples[place].text_pair or "" for place in paired]), strict=True))
    return [
        assemble(tokenizer, place, first[place], second.get(place), _label(example, numbers), max_seq_length)
        for place, example in enumerate(examples)
    ]


def pieces(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Encode texts without [CLS] and [SEP]."""
    if not texts:
        return []
    encoded: list[list[int]] = tokenizer(list(texts))["input_ids"]
    return [ids[1:-1] for ids in encoded]


def assemble(
    tokenizer: Tokenizer,
    example: int,
    first: list[int],
    second: list[int] | None,
    label: float | list[float] | None,
    max_seq_length: int,
) -> Feature:
    """Put one or two segments of pieces between [CLS] and [SEP], cut from their ends to fit."""
    facts = tokenizer.facts
    if second is None:
        num_first, num_second = min(len(first), max_seq_length - 2), 0
        input_ids = [facts.cls, *first[:num_first], facts.sep]
        token_type_ids = [0] * len(input_ids)
    else:
        num_first, num_second = kept_of_pair(len(first), len(second), max_seq_length - 3)
        input_ids = [facts.cls, *first[:num_first], facts.sep, *second[:num_second], facts.sep]
        token_type_ids = [0] * (num_first + 2) + [1] * (num_second + 1)
    num_cut = len(first) + len(second or ()) - num_first - num_second
    return Feature(example, input_ids, token_type_ids, label, num_cut=num_cut)


def kept_of_pair(num_first: int, num_second: int, budget: int) -> tuple[int, int]:
    """Tell how many pieces of each segment stay when the longer one gives up its last piece until both fit.

    Of two segments of equal length the second gives, so an odd budget leaves the first one longer. Google's
    run_classifier.py and Hugging Face's slow tokenizers do so; their fast ones may leave the second one longer by one.

    Source: google-research/bert run_classifier.py `_truncate_seq_pair`.
    """
    if num_first + num_second <= budget:
        return num_first, num_second
    second = min(num_second, max(budget // 2, budget - num_first))
    return budget - second, second


def _label(example: SequenceExample, numbers: Mapping[str, int]) -> float | list[float] | None:
    label = example.label
    if label is None:
        return None
    if isinstance(label, tuple):
        return [float(name in label) for name in numbers]
    if not numbers:
        if isinstance(label, str):
            raise InputError(
                f"example {example.id}: label {label!r}: expected a number, for the task has no labels by name"
            )
        return float(label)
    if label not in numbers:
        hint = nearest(str(label), numbers) or f"; expected one of {', '.join(numbers)}"
        raise InputError(f"example {example.id}: unknown label {label!r}{hint}")
    return numbers[str(label)]


def predictions(
    examples: Sequence[SequenceExample],
    features: Sequence[Feature],
    logits: Sequence[NDArray[np.floating]],
    labels: Sequence[str],
    multi_label: bool = False,
) -> list[SequencePrediction]:
    """Turn logits, (C,) of each feature, (1,) in a regression, into predictions, one for each example.

    With `multi_label` any number of the labels may hold, each with a probability of its own.
    """
    answers = []
    for feature, scores in zip(features, logits, strict=True):
        name = examples[feature.example].id
        if not labels:
            answers.append(SequencePrediction(name, float(scores[0]), {}))
            continue
        shares = sigmoid(scores) if multi_label else softmax(scores)
        probabilities = {label: float(share) for label, share in zip(labels, shares, strict=True)}
        likely = tuple(label for label, share in probabilities.items() if share > 0.5)
        answers.append(SequencePrediction(name, likely if multi_label else labels[int(shares.argmax())], probabilities))
    return answers


def sigmoid(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """1 / (1 + exp(-x)), in float64."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64))))


def softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """exp(x) / sum(exp(x)), in float64."""
    powers = np.exp(logits.astype(np.float64) - np.max(logits))
    return np.asarray(powers / powers.sum())


def _labels_of(example: SequenceExample | SequencePrediction) -> Sequence[Any]:
    return (example.label or (NONE_OF_THEM,)) if isinstance(example.label, tuple) else (example.label,)


def _measured(task: TaskConfig, labels: Sequence[str] | None) -> Measured:
    if task.is_regression:
        return Measured("numbers", ("pearson", "spearmanr"))
    if task.multi_label:
        return Measured("several labels at once", metrics.MULTI_LABEL)
    if len(labels or ()) > 2:
        return Measured("one of several labels", (*metrics.MULTI_LABEL, "matthews_correlation"))
    return Measured("one of two labels", ("accuracy", "f1", "f1_macro", "f1_micro", "matthews_correlation"))


def _score(
    task: TaskConfig, examples: Sequence[Any], predictions: Sequence[Any], labels: Sequence[str]
) -> dict[str, float]:
    said, true = [p.label for p in predictions], [example.label for example in examples]
    if task.multi_label:
        rows, true_rows = (np.array([[name in each for name in labels] for each in all_]) for all_ in (said, true))
        return metrics.score(task.metrics, rows, true_rows)
    if labels:
        numbers = {name: number for number, name in enumerate(labels)}
        said, true = [numbers[name] for name in said], [numbers[name] for name in true]
    return metrics.score(task.metrics, said, true)


def _is_degenerate(task: TaskConfig, examples: Sequence[Any], predictions: Sequence[Any]) -> bool:
    """Numbers count as the same where they hardly deviate beside the labels."""
    said, true = [p.label for p in predictions], [example.label for example in examples]
    if task.is_regression:
        return bool(np.std(said) < SAME_NUMBERS * np.std(true))
    return says_the_same(said, true)


def _guess(
    task: TaskConfig, train: Sequence[SequenceExample], examples: Sequence[SequenceExample]
) -> list[SequencePrediction]:
    """Say the commonest label, or the mean, or of labels that may hold at once those that mostly do."""
    labels = [example.label for example in train]
    answer: Any
    if task.is_regression:
        answer = float(np.mean(np.array(labels, float)))
    elif task.multi_label:
        counts = Counter(name for names in labels if isinstance(names, tuple) for name in names)
        answer = tuple(name for name, count in counts.items() if count > len(labels) / 2)
    else:
        answer = commonest(labels)
    return [SequencePrediction(example.id, answer, {}) for example in examples]


def _review(
    task: TaskConfig, examples: Sequence[Any], predictions: Sequence[SequencePrediction], labels: Sequence[str]
) -> dict[str, Any]:
    cases = []
    for example, said in zip(examples, predictions, strict=True):
        about: dict[str, str] = {"text": example.text}
        if example.text_pair is not None:
            about["second text"] = example.text_pair
        if task.multi_label:
            for label, share in said.probabilities.items():
                holds, named = label in example.label, {**about, "label": label}
                cases.append(review.Case(example.id, named, holds, share > 0.5, max(share, 1 - share)))
        else:
            sure = said.probabilities.get(str(said.label), 0.0)
            cases.append(review.Case(example.id, about, example.label, said.label, sure))
    if task.is_regression:
        return review.review_of_numbers(cases)
    return (review.review_of_label_sets if task.multi_label else review.review_of_labels)(cases, labels)


SHAPE = Shape(
    kind="sequence",
    head="sequence",
    unit="rows",
    formats=("text", *TABLES, "label_text"),
    plain="text",
    has_names=True,
    read=read,
    content=lambda example: (example.text, example.text_pair),
    labels_of=_labels_of,
    is_labelled=lambda example: example.label is not None,
    features=lambda task, examples, tokenizer, labels: make_features(examples, tokenizer, labels, task.max_seq_length),
    predictions=lambda task, examples, features, logits, labels, _: predictions(
        examples, features, logits, labels, task.multi_label
    ),
    measured=_measured,
    score=_score,
    is_degenerate=_is_degenerate,
    files=labelled_lines,
    row=lambda _, prediction: asdict(prediction),
    guess=_guess,
    said_of=_labels_of,
    review=_review,
)
