"""Sequence classification and regression: a text, or a pair of texts; what is predicted of them is in label_kinds.py.

A feature is `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`; segment 0 ends with the first [SEP]. Where a text contains the name of
a special token, such as "[MASK]", it is encoded as that token, as `transformers` does.

Axes: C labels.
Source: Devlin et al. 2019, figure 4 (a) and (b); google-research/bert run_classifier.py `convert_single_example`.
"""

import functools
import itertools
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import InputError, counted, refusing, user_name
from bertkit.base.typed_settings import refuse
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.feature import Feature, Label, Logits, pieces, text_feature
from bertkit.tasks.reading.cells import Cells, CountedRows
from bertkit.tasks.reading.labels import spelled
from bertkit.tasks.reading.near_duplicates import Content
from bertkit.tasks.reading.reading import Reading, optional_value, required_text, required_value
from bertkit.tasks.scoring import metrics, review, tfidf
from bertkit.tasks.scoring.review import Review
from bertkit.tasks.task import TABLES, Row, Verdict
from bertkit.tasks.trainable import Embed, HeadTask, is_constant

LabelT = TypeVar("LabelT", bound=str | float | tuple[str, ...])  # a label's name, a number, or several names
STRENGTH = (
    10**0.5
)  # vectors of length 1, which this multiplies, are regularised less: C=10 of scikit-learn (recipes/own_data)
ReadLabel = Callable[[object, str], LabelT]  # from the value and its place in the file


@dataclass(frozen=True)
class SequenceExample(Generic[LabelT]):
    """A text, or a pair of texts, with a label."""

    id: str  # from the file, or the number of the row
    text: str  # the first segment
    text_pair: str | None  # the second segment; None for a single text
    label: LabelT | None  # None if unknown


@dataclass(frozen=True)
class SequencePrediction(Generic[LabelT]):
    """The prediction for an example."""

    id: str  # the example's id
    label: LabelT  # the most probable label, the number, or all labels above 0.5
    probabilities: Mapping[str, float]  # the probability of each label; empty for a regression


class Probabilities(Mapping[str, float]):
    """The probability of each label, in 8 bytes; a dict, which predictions with thousands of labels would fill, takes ten times as much."""

    def __init__(self, numbers: Mapping[str, int], values: NDArray[np.float64]) -> None:
        self.numbers, self.values_by_number = numbers, values  # (C,)

    def __getitem__(self, label: str) -> float:
        return float(self.values_by_number[self.numbers[label]])

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


class SequenceTask(HeadTask[SequenceExample[LabelT], Feature, SequencePrediction[LabelT]], Generic[LabelT]):
    """Texts or pairs of texts, whatever their labels are."""

    kind = "sequence"
    head = "sequence"
    unit = "row"
    formats = ("text", *TABLES, "label_text")
    plain = "text"
    learn: ClassVar[Callable[..., list[Any]]]  # a function of scoring.tfidf

    @abstractmethod
    def label_reader(self, reading: Reading, field: str | None) -> ReadLabel[LabelT]:
        """Return the function that checks a value and returns the label; set `reading.labels`."""

    @abstractmethod
    def target(self, label: LabelT) -> Label:
        """Return the label for the loss; raises ValueError for an unknown label."""

    @abstractmethod
    def outputs(self, logits: Logits) -> NDArray[np.float64]:
        """Turn logits, (n, C), into the probabilities of labels, or (n, 1) into the numbers of a regression."""

    @abstractmethod
    def prediction(self, example: str, output: NDArray[np.float64]) -> SequencePrediction[LabelT]:
        """Turn an example's row of `outputs` into the prediction with its id."""

    @abstractmethod
    def names_in(self, label: LabelT) -> Sequence[str | float]:
        """Return the names, or the number, in a label, to be counted."""

    @abstractmethod
    def for_metrics(self, labels: Sequence[LabelT]) -> metrics.Values:
        """Convert labels to the input of the metrics."""

    @abstractmethod
    def guess(self, labels: Sequence[LabelT]) -> LabelT:
        """Return the baseline's prediction, from the training labels."""

    @abstractmethod
    def review_of(self, cases: Sequence[review.Case], predictions: Sequence[SequencePrediction[LabelT]]) -> Review:
        """Review predictions, of which each has a case."""

    def labels_by_words(
        self,
        train: Sequence[SequenceExample[LabelT]],
        examples: Sequence[SequenceExample[LabelT]],
        vectors: tfidf.SplitVectors | None = None,
    ) -> list[LabelT]:
        """Predict labels by TF-IDF, or by vectors; none if there is nothing to learn."""
        return self.learn(texts_of(train), known(train), texts_of(examples), vectors)

    @functools.cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each label."""
        return {name: number for number, name in enumerate(self.labels)}

    @functools.cached_property
    def as_written(self) -> dict[str, str | int]:
        """Each label as `predict` writes it: whole numbers if all are, as in the training file."""
        are_numbers = all(re.fullmatch("0|-?[1-9][0-9]*", name) for name in self.labels)
        return {name: int(name) if are_numbers else name for name in self.labels}

    def columns_filled_by(self, value: str | tuple[str, ...] | list[str]) -> Sequence[str]:
        """Return the columns that an input from Python fills; of a model that was trained on single texts the first one alone."""
        takes_pairs = self.config.takes_pairs and self.config.columns.text_pair is not None
        return super().columns_filled_by(value) if takes_pairs else self.text_columns[:1]

    def is_without_label(self, value: object) -> bool:
        """Whether a cell with this value lacks the label that it must have."""
        return value == ""

    def read(self, reading: Reading) -> Iterator[SequenceExample[LabelT]]:
        """Read an example from each row; raises InputError if a column is missing or a row is wrong."""
        config = self.config
        text = reading.find(config.columns.text, "text")
        find_pair = reading.find if config.needs_pair else reading.find_optional
        pair = find_pair(config.columns.text_pair, "text_pair")
        field, ids, is_labelled = reading.label_field(), reading.ids(), reading.is_labelled
        if pair is not None and config.takes_pairs and config.long_texts is not None:
            where = f"{reading.table.name} has pairs of texts (column '{pair}')"
            raise InputError(f"task.long_texts={config.long_texts}: {where}, which are cut; leave it out")
        way_out = f"leave it out, or set {user_name('task.columns.text_pair')}=null"
        label_of, skipped = self.label_reader(reading, field), {*map(spelled, config.skip_labels)}
        singles = CountedRows()

        def second_text(row: Cells, where: str) -> str | None:
            # null is no second text, as in a pipeline of `transformers`; where each row has one, it is empty, as in a CSV file
            if pair is None or (not config.needs_pair and required_value(row, pair, where) is None):
                return None
            return required_text(row, pair, where)

        def example(row: Cells, where: str, line: int) -> SequenceExample[LabelT] | None:
            label = None
            if field is not None:
                value = required_value(row, field, where) if is_labelled else row.get(field)
                plain = value.strip() if isinstance(value, str) else "" if value is None else value
                if isinstance(plain, (str, int, float)) and spelled(plain) in skipped:
                    if is_labelled:
                        reading.num_skipped += 1
                        ids.skip()
                        return None
                    value = None  # a test file keeps all its rows
                elif is_labelled and self.is_without_label(plain):
                    reading.unlabelled.append(f"{where}: {field}")
                    ids.skip()
                    return None
                if value not in (None, "") or is_labelled:
                    label = label_of(value, where)
            first, second = required_text(row, text, where), second_text(row, where)
            if not config.takes_pairs:
                refuse(second and f"{where}: {pair}: a second text, but this model takes single texts; {way_out}")
                second = None
            elif pair is not None and second is None:
                singles.add(where)
            reading.note_empty(where, first, second)
            return SequenceExample(ids.take(optional_value(row, ids.field), where, line), first, second, label)

        return _counted(reading, reading.each(example), singles)

    def features(self, examples: Sequence[SequenceExample[LabelT]], tokenizer: Tokenizer) -> list[Feature]:
        """Turn each example into a feature; long texts are truncated as in `truncated_lengths`.

        With `long_texts`, a long text becomes several features: windows, each of which shares half with the one before it.
        Raises InputError if a label is unknown, or is not a number in a regression.
        """
        length, in_windows = self.config.max_seq_length, self.config.long_texts is not None
        first = pieces(tokenizer, [example.text for example in examples])
        paired = [place for place, example in enumerate(examples) if example.text_pair is not None]
        second = dict(
            zip(paired, pieces(tokenizer, [examples[place].text_pair or "" for place in paired]), strict=True)
        )
        features = []
        for place, example in enumerate(examples):
            target = self._target_of(example)
            room = length - 2 if in_windows else len(first[place]) or 1
            last = max(0, len(first[place]) - room)  # the last window ends with the text
            for start in [*range(0, last, max(1, room // 2)), last]:
                window = first[place][start : start + room]
                features.append(text_feature(tokenizer, place, window, second.get(place), target, length))
        return features

    def _target_of(self, example: SequenceExample[LabelT]) -> Label | None:
        if example.label is None:
            return None
        with refusing(ValueError, lambda error: f"example {example.id}: {error}"):
            return self.target(example.label)

    def logits_of(
        self, examples: Sequence[SequenceExample[LabelT]], features: Sequence[Feature], logits: Sequence[Logits]
    ) -> list[Logits]:
        """Return the logits of each example, (C,): for a text in windows their mean or maximum, by `long_texts`."""
        if self.config.long_texts is None:
            return list(logits)
        combine = np.mean if self.config.long_texts == "mean" else np.max
        groups = itertools.groupby(zip(features, logits, strict=True), key=lambda pair: pair[0].example)
        return [combine([row for _, row in group], axis=0) for _, group in groups]

    def predictions(
        self, examples: Sequence[SequenceExample[LabelT]], features: Sequence[Feature], logits: Sequence[Logits]
    ) -> list[SequencePrediction[LabelT]]:
        """Turn the logits of the features into a prediction for each example."""
        outputs = self.outputs(np.stack(self.logits_of(examples, features, logits)))
        return [self.prediction(example.id, output) for example, output in zip(examples, outputs, strict=True)]

    def row(self, example: SequenceExample[LabelT], prediction: SequencePrediction[LabelT]) -> Row:
        """Return the id, the label and the probabilities."""
        label = self.written(prediction.label)
        return {"id": prediction.id, "label": label, "probabilities": dict(prediction.probabilities)}

    def written(self, label: LabelT) -> object:
        """Return a label as `predict` writes it."""
        return label

    def verdict(self, example: SequenceExample[LabelT], prediction: SequencePrediction[LabelT]) -> Verdict:
        """Return the label, or all labels, and the probabilities."""
        shares = sorted(prediction.probabilities.items(), key=lambda share: -share[1])
        return Verdict(", ".join(self.predicted_labels(prediction)), shares)

    def content(self, example: SequenceExample[LabelT]) -> Content:
        """Return both texts."""
        return example.text, example.text_pair

    def labels_of(self, example: SequenceExample[LabelT]) -> Sequence[str | float | None]:
        """Return the names, or the number, in the label."""
        return [None] if example.label is None else self.names_in(example.label)

    def is_labelled(self, example: SequenceExample[LabelT]) -> bool:
        """Whether the label is known."""
        return example.label is not None

    def reference(self, example: SequenceExample[LabelT]) -> object:
        """Return the label, as `predict` writes it."""
        return None if example.label is None else self.written(example.label)

    def compared(
        self, examples: Sequence[SequenceExample[LabelT]], predictions: Sequence[SequencePrediction[LabelT]]
    ) -> tuple[metrics.Inputs, metrics.Inputs]:
        """Return the labels."""
        return self.for_metrics([prediction.label for prediction in predictions]), self.for_metrics(known(examples))

    def is_degenerate(
        self, examples: Sequence[SequenceExample[LabelT]], predictions: Sequence[SequencePrediction[LabelT]]
    ) -> bool:
        """Check whether all labels that are predicted are equal."""
        return is_constant([prediction.label for prediction in predictions], known(examples))

    def baselines(
        self, train: Sequence[SequenceExample[LabelT]], examples: Sequence[SequenceExample[LabelT]]
    ) -> dict[str, list[SequencePrediction[LabelT]]]:
        """Predict the most frequent label, and if possible labels by TF-IDF."""
        guess = self.guess(known(train))
        labels = {"majority": [guess] * len(examples), tfidf.name_of(len(train)): self.labels_by_words(train, examples)}
        return {name: _predicted(examples, own) for name, own in labels.items() if own}

    def by_vectors(
        self,
        train: Sequence[SequenceExample[LabelT]],
        examples: Sequence[SequenceExample[LabelT]],
        embed: Embed,
    ) -> list[SequencePrediction[LabelT]]:
        """Predict by a linear head on the vectors of texts, or for pairs on the sizes of their differences, |u - v|."""
        vectors = tfidf.SplitVectors(*(_vectors_of(own, embed) for own in (train, examples)))
        labels = self.labels_by_words(train, examples, vectors)
        return _predicted(examples, labels) if labels else []

    def review(
        self, examples: Sequence[SequenceExample[LabelT]], predictions: Sequence[SequencePrediction[LabelT]]
    ) -> Review:
        """Return what the report shows of the labels."""
        cases, has_pairs = [], any(example.text_pair is not None for example in examples)
        for example, p in zip(examples, predictions, strict=True):
            texts = {"text": example.text} | ({"second text": example.text_pair or ""} if has_pairs else {})
            cases.append(review.Case(example.id, texts, example.label, p.label, p.probabilities.get(str(p.label), 0.0)))
        return self.review_of(cases, predictions)


def _counted(
    reading: Reading, examples: Iterator[SequenceExample[LabelT]], singles: CountedRows
) -> Iterator[SequenceExample[LabelT]]:
    """Yield examples; warn at the end if some rows of a file have a second text, and others, `singles`, null."""
    num_pairs = 0
    for example in examples:
        num_pairs += example.text_pair is not None
        yield example
    if num_pairs:
        few = f"{counted(singles.num_rows, 'row')} with null as a second text, the first at {singles.first}"
        reading.file_warnings += singles.warning(f"{few}, beside {counted(num_pairs, 'pair')}: they are single texts")


def _vectors_of(examples: Sequence[SequenceExample[LabelT]], embed: Embed) -> NDArray[np.float32]:
    vectors = embed([example.text for example in examples])
    if any(example.text_pair is not None for example in examples):
        vectors = abs(vectors - embed([example.text_pair or "" for example in examples]))
    return STRENGTH * vectors


def _predicted(
    examples: Sequence[SequenceExample[LabelT]], labels: Sequence[LabelT]
) -> list[SequencePrediction[LabelT]]:
    return [SequencePrediction(example.id, label, {}) for example, label in zip(examples, labels, strict=True)]


def known(examples: Sequence[SequenceExample[LabelT]]) -> list[LabelT]:
    """Return the labels of labelled examples."""
    return [example.label for example in examples if example.label is not None]


def texts_of(examples: Sequence[SequenceExample[LabelT]]) -> list[str]:
    """Return the whole text of each example."""
    return [" ".join(filter(None, (example.text, example.text_pair))) for example in examples]
