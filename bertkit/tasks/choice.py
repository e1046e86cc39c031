"""Multiple choice: a text with several endings, of which one is right.

Source: Devlin et al. 2019, section 4.4 (SWAG): each ending is a sequence `[CLS] context [SEP] ending [SEP]` with one score;
the prediction is a softmax over the scores.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from bertkit.base import plugins
from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.feature import Feature, Logits, pieces, softmax, text_feature
from bertkit.tasks.reading.cells import Cells, FilledRows, ShortRows
from bertkit.tasks.reading.labels import as_number
from bertkit.tasks.reading.near_duplicates import Content
from bertkit.tasks.reading.reading import Reading, optional_value, required_text, required_value
from bertkit.tasks.scoring import metrics, review
from bertkit.tasks.scoring.calibration import Decisions
from bertkit.tasks.scoring.review import Review
from bertkit.tasks.task import TABLES, Row, Verdict
from bertkit.tasks.task_config import Column, first_name
from bertkit.tasks.trainable import HeadTask, TaskMetrics, most_frequent


@dataclass(frozen=True)
class ChoiceExample:
    """A text with several endings, of which one is right."""

    id: str  # from the file, or the number of the row
    context: str  # the first segment of every choice
    endings: tuple[str, ...]  # the second segments
    label: int | None  # the number of the right ending, from 0; None if unknown


@dataclass(frozen=True)
class ChoicePrediction:
    """The prediction for an example."""

    id: str  # the example's id
    label: int  # the number of the most probable ending
    probabilities: tuple[float, ...]  # one for each ending, in their order


@plugins.option("task", "choice")
class ChoiceTask(HeadTask[ChoiceExample, Feature, ChoicePrediction]):
    """Texts with several endings."""

    kind = "choice"
    head = "choice"
    unit = "row"
    formats = TABLES
    text_columns = ()

    def read(self, reading: Reading) -> Iterator[ChoiceExample]:
        """Read an example from each row; raises InputError if a column is missing or a row is wrong."""
        names = self.config.columns.endings
        context = reading.find(self.config.columns.context, "context")
        begin = reading.find_optional(self.config.columns.ending_start, "ending_start")
        columns = [reading.find(name, "endings") for name in (names if isinstance(names, tuple) else (names,))]
        field, ids = reading.label_field(), reading.ids()

        def example(row: Cells, where: str, line: int) -> ChoiceExample:
            values = [required_value(row, column, where) for column in columns]
            match values:
                case [list() as listed]:
                    values = listed
            endings = [value for value in values if isinstance(value, str)]
            if len(endings) < 2 or len(endings) < len(values):
                raise InputError(f"{where}: expected at least two endings, each a text; set task.columns.endings=")
            if begin is not None:
                endings = [f"{required_text(row, begin, where)} {ending}" for ending in endings]
            label = None
            if field is not None:
                label = _right_ending(optional_value(row, field), field, len(endings), where, bool(reading.is_labelled))
            text = required_text(row, context, where)
            reading.note_empty(where, text, *endings)
            return ChoiceExample(ids.take(optional_value(row, ids.field), where, line), text, tuple(endings), label)

        return reading.each(example)

    def num_choices(self, examples: Sequence[ChoiceExample]) -> int:
        """Return the number of endings; raises InputError if it differs between examples, or is less than two."""
        num_choices = len(examples[0].endings)
        for example in examples:
            if len(example.endings) != num_choices or num_choices < 2:
                expected = f"as many as in the first example, {num_choices}, and at least 2"
                raise InputError(f"example {example.id}: {len(example.endings)} endings; expected {expected}")
        return num_choices

    def features(self, examples: Sequence[ChoiceExample], tokenizer: Tokenizer) -> list[Feature]:
        """Turn each ending into a feature, truncated as in `truncated_lengths`.

        Raises InputError if the number of endings differs between examples, or a label is not the number of an ending.
        """
        num_choices, length = self.num_choices(examples), self.config.max_seq_length
        contexts = pieces(tokenizer, [example.context for example in examples])
        endings = pieces(tokenizer, [ending for example in examples for ending in example.endings])
        features = []
        for place, example in enumerate(examples):
            if example.label is not None and not 0 <= example.label < num_choices:
                raise InputError(f"example {example.id}: label {example.label}: expected 0 to {num_choices - 1}")
            for ending in endings[place * num_choices : (place + 1) * num_choices]:
                features.append(text_feature(tokenizer, place, contexts[place], ending, example.label, length))
        return features

    def logits_of(
        self, examples: Sequence[ChoiceExample], features: Sequence[Feature], logits: Sequence[Logits]
    ) -> list[Logits]:
        """Return the logits of all endings of each example."""
        count = self.num_choices(examples)
        return [np.concatenate(logits[first : first + count]) for first in range(0, len(logits), count)]

    def predictions(
        self, examples: Sequence[ChoiceExample], features: Sequence[Feature], logits: Sequence[Logits]
    ) -> list[ChoicePrediction]:
        """Turn the logits of each feature, (1,), into a prediction for each example."""
        predictions = []
        for example, row in zip(examples, self.logits_of(examples, features, logits), strict=True):
            probabilities = softmax(row)
            predictions.append(ChoicePrediction(example.id, int(probabilities.argmax()), tuple(probabilities.tolist())))
        return predictions

    def row(self, example: ChoiceExample, prediction: ChoicePrediction) -> Row:
        """Return the id, the number of the ending, and the probabilities."""
        return asdict(prediction)

    def verdict(self, example: ChoiceExample, prediction: ChoicePrediction) -> Verdict:
        """Return the ending, and the probabilities of all."""
        shares = zip(example.endings, prediction.probabilities, strict=True)
        return Verdict(example.endings[prediction.label], sorted(shares, key=lambda share: -share[1]))

    def input_columns(self) -> list[Column]:
        """Return the columns of the context and the endings."""
        columns = self.config.columns
        return [columns.context, columns.ending_start, columns.endings]

    def page_inputs(self) -> list[object]:
        """Return an example row, with the columns of the settings."""
        columns, (right, wrong) = self.config.columns, ("She takes the bread out.", "She swims away.")
        row: Row = {first_name(columns.context): "She opens the oven."}
        if columns.ending_start is not None:
            row[first_name(columns.ending_start)] = "She"
        if isinstance(columns.endings, tuple):
            return [row | {name: wrong if number % 2 else right for number, name in enumerate(columns.endings)}]
        return [row | {first_name(columns.endings): [right, wrong]}]

    def short_rows(self) -> ShortRows:
        """Return how rows of an input with too few cells are treated: with as many endings as the first."""
        return FilledRows(keep_lengths=True)

    def content(self, example: ChoiceExample) -> Content:
        """Return the context."""
        return example.context

    def labels_of(self, example: ChoiceExample) -> Sequence[str | None]:
        """Return the number of the right ending."""
        return [None if example.label is None else str(example.label)]

    def reference(self, example: ChoiceExample) -> int | None:
        """Return the number of the right ending."""
        return example.label

    def fitting_metrics(self) -> TaskMetrics:
        """Return the only metric."""
        return TaskMetrics("a choice of endings", ("accuracy",))

    def compared(
        self, examples: Sequence[ChoiceExample], predictions: Sequence[ChoicePrediction]
    ) -> tuple[metrics.Inputs, metrics.Inputs]:
        """Return the numbers of the endings."""
        return [prediction.label for prediction in predictions], [example.label for example in examples]

    def predicted_labels(self, prediction: ChoicePrediction) -> Sequence[str]:
        """Return the number of the ending."""
        return [str(prediction.label)]

    def baselines(
        self, train: Sequence[ChoiceExample], examples: Sequence[ChoiceExample]
    ) -> dict[str, list[ChoicePrediction]]:
        """Predict the most frequent number."""
        guess = most_frequent(example.label or 0 for example in train)
        return {"majority": [ChoicePrediction(example.id, guess, ()) for example in examples]}

    def decisions(self, examples: Sequence[ChoiceExample], predictions: Sequence[ChoicePrediction]) -> Decisions:
        """Return one decision for each context."""
        probabilities = np.array([[prediction.probabilities] for prediction in predictions])
        return Decisions.of(probabilities, [[example.label or 0] for example in examples])

    def review(self, examples: Sequence[ChoiceExample], predictions: Sequence[ChoicePrediction]) -> Review:
        """Return confusions by the number of the ending, calibration, and mistakes with the texts of the endings."""
        pairs, shown, confidences = Counter[tuple[str, str]](), [], []
        for example, p in zip(examples, predictions, strict=True):
            right, confidence = example.label or 0, p.probabilities[p.label]
            pairs[str(right), str(p.label)] += 1
            confidences.append((confidence, right == p.label))
            if right != p.label:
                texts = example.endings[right], example.endings[p.label]
                shown.append(review.Case(example.id, {"context": example.context}, *texts, confidence))
        return {
            "confusion": review.confusion(pairs, [*map(str, range(self.num_choices(examples)))]),
            "calibration": review.calibration(confidences),
            "mistakes": review.mistakes(shown),
        }


def _right_ending(value: object, field: str, num_endings: int, where: str, is_labelled: bool) -> int | None:
    if value in (None, "", -1, "-1") and not is_labelled:
        return None
    number = math.nan
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        number = as_number(value)
    if number not in range(num_endings):
        raise InputError(
            f"{where}: {field} {value!r:.80}; expected the number of the right ending, 0 to {num_endings - 1}"
        )
    return int(number)
