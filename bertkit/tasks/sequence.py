"""Sequence classification and regression: a text, or a pair of texts, with a label, several labels, or a number.

A feature is `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`; segment 0 ends with the first [SEP]. Where a text contains the name of
a special token, such as "[MASK]", it is encoded as that token, as `transformers` does.

Axes: C labels.
Source: Devlin et al. 2019, figure 4 (a) and (b); google-research/bert run_classifier.py `convert_single_example`.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import InputError, named
from bertkit.base.typed_settings import nearest
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.reading.labels import Labels, NumericLabels
from bertkit.tasks.reading.source import NO_LABEL, Reading, optional_value, required_text, required_value
from bertkit.tasks.scoring import metrics, review
from bertkit.tasks.task import TABLES, Feature, LabelNames, Shape, TaskMetrics, eval_lines, is_constant, most_frequent
from bertkit.tasks.task_config import TaskConfig

Logits = NDArray[np.floating]
MIN_DEVIATION = 0.01  # standard deviation of predictions / of labels; below, a regression has learned nothing


@dataclass(frozen=True)
class SequenceExample:
    """A text, or a pair of texts, with a label."""

    id: str  # from the file, or the number of the row
    text: str  # the first segment
    text_pair: str | None  # the second segment; None for a single text
    # a label's name; a number for a regression; a tuple of names for several labels; None if unknown
    label: str | float | tuple[str, ...] | None


@dataclass(frozen=True)
class SequencePrediction:
    """The prediction for an example."""

    id: str  # the example's id
    label: str | float | tuple[str, ...]  # the most probable label, the number, or all labels above 0.5
    probabilities: dict[str, float]  # the probability of each label; empty for a regression


@dataclass(frozen=True)
class LabelKind:
    """How one of three kinds of labels is read, trained, predicted and scored: one label, several labels, or a number."""

    label_checker: type[Labels]  # checks the labels of a file
    read: Callable[[Any, Any, str], Any]  # returns the label, from a reader, the value and its place in the file
    # returns the label for the loss; raises ValueError for an unknown label
    target: Callable[[Any, Mapping[str, int]], float | list[float]]
    predicted: Callable[[Logits, LabelNames], tuple[Any, dict[str, float]]]  # the label, and all probabilities
    fitting_metrics: Callable[[int], TaskMetrics]  # the metrics for this number of labels; 0 if unknown
    for_metrics: Callable[[Sequence[Any], LabelNames], Any]  # converts labels to the input of the metrics
    guess: Callable[[Sequence[Any]], Any]  # the baseline's prediction, computed from the training labels
    review: Callable[[Sequence[review.Case], Sequence[Mapping[str, float]], LabelNames], dict[str, Any]]
    # whether all predictions are equal although the labels differ
    is_degenerate: Callable[[Sequence[Any], Sequence[Any]], bool] = is_constant


def sigmoid(logits: Logits) -> NDArray[np.float64]:
    """1 / (1 + exp(-x)), in float64."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64))))


def softmax(logits: Logits) -> NDArray[np.float64]:
    """exp(x) / sum(exp(x)), in float64."""
    powers = np.exp(logits.astype(np.float64) - np.max(logits))
    return np.asarray(powers / powers.sum())


def _number_of_label(label: Any, numbers: Mapping[str, int]) -> int:
    if label not in numbers:
        hint = nearest(str(label), numbers) or f"; expected one of {named(numbers)}"
        raise ValueError(f"unknown label {label!r:.80}{hint}")
    return numbers[label]


def _most_probable(logits: Logits, names: LabelNames) -> tuple[str, dict[str, float]]:
    probabilities = softmax(logits)
    return names[int(probabilities.argmax())], dict(zip(names, probabilities.tolist(), strict=True))


def _metrics_of_one(num_labels: int) -> TaskMetrics:
    if num_labels > 2:
        return TaskMetrics("one of several labels", (*metrics.MULTI_LABEL, "matthews_correlation"))
    return TaskMetrics("one of two labels", ("accuracy", "f1", "f1_macro", "f1_micro", "matthews_correlation"))


ONE_LABEL = LabelKind(
    label_checker=Labels,
    read=Labels.name_of,
    target=_number_of_label,
    predicted=_most_probable,
    fitting_metrics=_metrics_of_one,
    for_metrics=lambda labels, names: [*map({name: number for number, name in enumerate(names)}.__getitem__, labels)],
    guess=most_frequent,
    review=lambda cases, _, names: review.review_of_labels(cases, names),
)


def _above_one_half(logits: Logits, names: LabelNames) -> tuple[tuple[str, ...], dict[str, float]]:
    probabilities = dict(zip(names, sigmoid(logits).tolist(), strict=True))
    return tuple(name for name, probability in probabilities.items() if probability > 0.5), probabilities


def _labels_of_majority(labels: Sequence[Any]) -> tuple[str, ...]:
    counts = Counter(name for label in labels for name in label)
    return tuple(name for name, count in counts.items() if count > len(labels) / 2)


def _review_of_sets(
    cases: Sequence[review.Case], probabilities: Sequence[Mapping[str, float]], names: LabelNames
) -> dict[str, Any]:
    """Review each label of each example separately, as true or false."""
    single = [
        review.Case(case.example, {**case.texts, "label": name}, name in case.gold, share > 0.5, max(share, 1 - share))
        for case, shares in zip(cases, probabilities, strict=True)
        for name, share in shares.items()
    ]
    return review.review_of_label_sets(single, names)


SEVERAL_LABELS = LabelKind(
    label_checker=Labels,
    read=Labels.names_of,
    target=lambda label, numbers: [float(name in label) for name in numbers],
    predicted=_above_one_half,
    fitting_metrics=lambda _: TaskMetrics("several labels at once", metrics.MULTI_LABEL),
    for_metrics=lambda labels, names: np.array([[name in label for name in names] for label in labels]),
    guess=_labels_of_majority,
    review=_review_of_sets,
)


def _as_number(label: Any, _: Mapping[str, int]) -> float:
    if isinstance(label, str):
        raise ValueError(f"label {label!r}: expected a number: this task is a regression")
    return float(label)


NUMBER = LabelKind(
    label_checker=NumericLabels,
    read=NumericLabels.name_of,
    target=_as_number,
    predicted=lambda logits, _: (float(logits[0]), {}),
    fitting_metrics=lambda _: TaskMetrics("numbers", ("pearson", "spearmanr")),
    for_metrics=lambda labels, _: labels,
    guess=lambda labels: float(np.mean(np.array(labels, float))),
    review=lambda cases, _, __: review.review_of_numbers(cases),
    is_degenerate=lambda predicted, true: bool(np.std(predicted) < MIN_DEVIATION * np.std(true)),
)


def kind_of(task: TaskConfig, labels: LabelNames | None = None) -> LabelKind:
    """Return the kind of a task's labels; a model without named labels predicts a number."""
    if task.is_regression or (labels is not None and not labels):
        return NUMBER
    return SEVERAL_LABELS if task.multi_label else ONE_LABEL


def read(reading: Reading) -> Iterator[SequenceExample]:
    """Read an example from each row; raises InputError if a column is missing or a row is wrong."""
    task, kind = reading.task, kind_of(reading.task)
    text = reading.find(task.columns.text, "text")
    pair = reading.find(task.columns.text_pair, "text_pair", task.needs_pair)
    field, ids, is_labelled = reading.label_field(), reading.ids(), reading.is_labelled
    if pair is not None and task.long_texts is not None:
        where = f"{reading.table.name} has pairs of texts (column '{pair}')"
        raise InputError(f"task.long_texts={task.long_texts}: {where}, which are cut; leave it out")
    reading.labels = labels = kind.label_checker(task, field, reading.known_labels, reading.table.is_typed)

    def example(row: Any, where: str, line: int) -> SequenceExample | None:
        label: str | float | tuple[str, ...] | None = None
        if field is not None:
            value = required_value(row, field, where) if is_labelled else row.get(field)
            plain = value.strip() if isinstance(value, str) else "" if value is None else value
            if plain in task.skip_labels:
                if is_labelled:
                    reading.num_skipped += 1
                    return None
                value = None  # a test file keeps all its rows
            elif is_labelled and plain == "" and kind is not SEVERAL_LABELS:
                reading.unlabelled.append(f"{where}: {field}")
                return None
            if value not in (None, "") or is_labelled:
                label = kind.read(labels, value, where)
        first, second = required_text(row, text, where), None if pair is None else required_text(row, pair, where)
        reading.note_empty(where, first, second)
        return SequenceExample(ids.take(optional_value(row, ids.field), where, line), first, second, label)

    return reading.each(example)


def make_features(
    examples: Sequence[SequenceExample],
    tokenizer: Tokenizer,
    labels: LabelNames,
    max_seq_length: int,
    kind: LabelKind = ONE_LABEL,
    in_windows: bool = False,
) -> list[Feature]:
    """Turn each example into a feature; long texts are truncated as in `truncated_lengths`.

    With `in_windows`, a long single text becomes several features: windows, each of which shares half with the one before it.
    Raises InputError if a label is not in `labels`, or is not a number in a regression.
    """
    numbers = {name: number for number, name in enumerate(labels)}
    first = pieces(tokenizer, [example.text for example in examples])
    paired = [place for place, example in enumerate(examples) if example.text_pair is not None]
    second = dict(zip(paired, pieces(tokenizer, [examples[place].text_pair or "" for place in paired]), strict=True))
    features = []
    for place, example in enumerate(examples):
        try:
            target = None if example.label is None else kind.target(example.label, numbers)
        except ValueError as error:
            raise InputError(f"example {example.id}: {error}") from None
        room = max_seq_length - 2 if in_windows else len(first[place]) or 1
        last = max(0, len(first[place]) - room)  # the last window ends with the text
        for start in [*range(0, last, max(1, room // 2)), last]:
            window = first[place][start : start + room]
            features.append(make_feature(tokenizer, place, window, second.get(place), target, max_seq_length))
    return features


def pieces(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Encode texts as token ids, without [CLS] and [SEP]."""
    if not texts:
        return []
    encoded: list[list[int]] = tokenizer(list(texts))["input_ids"]
    return [ids[1:-1] for ids in encoded]


def make_feature(
    tokenizer: Tokenizer,
    example: int,
    first: list[int],
    second: list[int] | None,
    label: float | list[float] | None,
    max_seq_length: int,
) -> Feature:
    """Build `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]` from token ids, truncated to `max_seq_length`."""
    facts, budget = tokenizer.facts, max_seq_length - (2 if second is None else 3)
    num_first, num_second = truncated_lengths(len(first), len(second or ()), budget)
    input_ids = [facts.cls, *first[:num_first], facts.sep]
    token_type_ids = [0] * len(input_ids)
    if second is not None:
        input_ids += [*second[:num_second], facts.sep]
        token_type_ids += [1] * (num_second + 1)
    num_cut = len(first) + len(second or ()) - num_first - num_second
    return Feature(example, input_ids, token_type_ids, label, num_cut=num_cut)


def truncated_lengths(num_first: int, num_second: int, budget: int) -> tuple[int, int]:
    """Return the lengths of two segments after truncation: the longer segment loses its last piece until both fit.

    Of two equally long segments the second is cut, as in Google's run_classifier.py and Hugging Face's slow tokenizers. Hugging
    Face's fast tokenizers may keep one piece more of the second segment, and one less of the first.

    Source: google-research/bert run_classifier.py `_truncate_seq_pair`.
    """
    if num_first + num_second <= budget:
        return num_first, num_second
    second = min(num_second, max(budget // 2, budget - num_first))
    return budget - second, second


def of_examples(task: TaskConfig, features: Sequence[Feature], logits: Sequence[Logits]) -> list[Logits]:
    """Return the logits of each example, (C,): for a text in windows their mean or maximum, by `task.long_texts`."""
    if task.long_texts is None:
        return list(logits)
    combine = np.mean if task.long_texts == "mean" else np.max
    groups = itertools.groupby(zip(features, logits, strict=True), key=lambda pair: pair[0].example)
    return [combine([row for _, row in group], axis=0) for _, group in groups]


def predictions(
    examples: Sequence[SequenceExample], logits: Sequence[Logits], labels: LabelNames, kind: LabelKind = ONE_LABEL
) -> list[SequencePrediction]:
    """Turn the logits of each example, (C,), or (1,) in a regression, into a prediction."""
    pairs = zip(examples, logits, strict=True)
    return [SequencePrediction(example.id, *kind.predicted(row, labels)) for example, row in pairs]


def _labels_of(example: SequenceExample | SequencePrediction) -> Sequence[Any]:
    return (example.label or (NO_LABEL,)) if isinstance(example.label, tuple) else (example.label,)


def _labels(items: Sequence[Any]) -> list[Any]:
    return [item.label for item in items]


def _review(
    task: TaskConfig, examples: Sequence[Any], predictions: Sequence[SequencePrediction], labels: LabelNames
) -> dict[str, Any]:
    cases = []
    for example, p in zip(examples, predictions, strict=True):
        about: dict[str, str] = {"text": example.text}
        if example.text_pair is not None:
            about["second text"] = example.text_pair
        cases.append(review.Case(example.id, about, example.label, p.label, p.probabilities.get(str(p.label), 0.0)))
    return kind_of(task).review(cases, [p.probabilities for p in predictions], labels)


SHAPE = Shape(
    kind="sequence",
    head="sequence",
    unit="rows",
    formats=("text", *TABLES, "label_text"),
    plain="text",
    has_labels=True,
    read=read,
    content=lambda example: (example.text, example.text_pair),
    labels_of=_labels_of,
    is_labelled=lambda example: example.label is not None,
    features=lambda task, examples, tokenizer, labels: make_features(
        examples, tokenizer, labels, task.max_seq_length, kind_of(task, labels), task.long_texts is not None
    ),
    predictions=lambda task, examples, features, logits, labels, _: predictions(
        examples, of_examples(task, features, logits), labels, kind_of(task, labels)
    ),
    fitting_metrics=lambda task, labels: kind_of(task).fitting_metrics(len(labels or ())),
    score=lambda task, examples, predictions, labels: metrics.score(
        task.metrics, *(kind_of(task, labels).for_metrics(_labels(items), labels) for items in (predictions, examples))
    ),
    is_degenerate=lambda task, examples, predictions: kind_of(task).is_degenerate(
        _labels(predictions), _labels(examples)
    ),
    eval_files=eval_lines,
    row=lambda _, prediction: asdict(prediction),
    guess=lambda task, train, examples: [
        SequencePrediction(example.id, guess, {})
        for guess in [kind_of(task).guess(_labels(train))]
        for example in examples
    ],
    predicted_labels=_labels_of,
    review=_review,
)
