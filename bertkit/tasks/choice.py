"""Multiple choice: a text with several endings, of which one is right.

Source: Devlin et al. 2019, section 4.4 (SWAG): each ending is a sequence `[CLS] context [SEP] ending [SEP]` with one score;
the prediction is a softmax over the scores.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.reading.labels import as_number
from bertkit.tasks.reading.source import Reading, optional_value, required_text, required_value
from bertkit.tasks.scoring import metrics, review
from bertkit.tasks.sequence import make_feature, pieces, softmax
from bertkit.tasks.task import TABLES, Feature, Shape, TaskMetrics, eval_lines, is_constant, most_frequent
from bertkit.tasks.task_config import TaskConfig


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


def read(reading: Reading) -> Iterator[ChoiceExample]:
    """Read an example from each row; raises InputError if a column is missing or a row is wrong."""
    names = reading.task.columns.endings
    context = reading.find(reading.task.columns.context, "context")
    begin = reading.find(reading.task.columns.ending_start, "ending_start", False)
    columns = [reading.find(name, "endings") for name in (names if isinstance(names, tuple) else (names,))]
    field, ids = reading.label_field(), reading.ids()

    def example(row: Any, where: str, line: int) -> ChoiceExample:
        values = [required_value(row, column or "", where) for column in columns]
        endings = values[0] if len(values) == 1 and isinstance(values[0], list) else values
        if len(endings) < 2 or not all(isinstance(ending, str) for ending in endings):
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


def _right_ending(value: Any, field: str, num_endings: int, where: str, is_labelled: bool) -> int | None:
    if value in (None, "", -1, "-1") and not is_labelled:
        return None
    number = math.nan if isinstance(value, bool) or value is None else as_number(value)
    if number not in range(num_endings):
        raise InputError(
            f"{where}: {field} {value!r:.80}; expected the number of the right ending, 0 to {num_endings - 1}"
        )
    return int(number)


def num_choices_of(examples: Sequence[ChoiceExample]) -> int:
    """Return the number of endings; raises InputError if it differs between examples, or is less than two."""
    num_choices = len(examples[0].endings)
    for example in examples:
        if len(example.endings) != num_choices or num_choices < 2:
            expected = f"as many as in the first example, {num_choices}, and at least 2"
            raise InputError(f"example {example.id}: {len(example.endings)} endings; expected {expected}")
    return num_choices


def make_features(examples: Sequence[ChoiceExample], tokenizer: Tokenizer, max_seq_length: int) -> list[Feature]:
    """Turn each ending into a feature, truncated as in `truncated_lengths`; the features of an example are consecutive.

    Raises InputError if the number of endings differs between examples, or a label is not the number of an ending.
    """
    num_choices = num_choices_of(examples)
    contexts = pieces(tokenizer, [example.context for example in examples])
    endings = pieces(tokenizer, [ending for example in examples for ending in example.endings])
    features = []
    for place, example in enumerate(examples):
        if example.label is not None and not 0 <= example.label < num_choices:
            raise InputError(f"example {example.id}: label {example.label}: expected 0 to {num_choices - 1}")
        for ending in endings[place * num_choices : (place + 1) * num_choices]:
            features.append(make_feature(tokenizer, place, contexts[place], ending, example.label, max_seq_length))
    return features


def predictions(
    examples: Sequence[ChoiceExample], features: Sequence[Feature], logits: Sequence[NDArray[np.floating]]
) -> list[ChoicePrediction]:
    """Turn the logits of each feature, (1,), into a prediction for each example."""
    scores: list[list[float]] = [[] for _ in examples]
    for feature, logit in zip(features, logits, strict=True):
        scores[feature.example].append(float(logit[0]))
    found = []
    for example, row in zip(examples, scores, strict=True):
        probabilities = softmax(np.array(row))
        found.append(ChoicePrediction(example.id, int(probabilities.argmax()), tuple(probabilities.tolist())))
    return found


def _review(
    _: TaskConfig, examples: Sequence[ChoiceExample], predictions: Sequence[ChoicePrediction], __: Sequence[str]
) -> dict[str, Any]:
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
        "confusion": review.confusion(pairs, [*map(str, range(num_choices_of(examples)))]),
        "calibration": review.calibration(confidences),
        "mistakes": review.mistakes(shown),
    }


SHAPE = Shape(
    kind="choice",
    head="choice",
    unit="rows",
    formats=TABLES,
    text_columns=(),
    has_choices=True,
    num_choices=num_choices_of,
    read=read,
    content=lambda example: example.context,
    labels_of=lambda example: [None if example.label is None else str(example.label)],
    is_labelled=lambda example: example.label is not None,
    features=lambda task, examples, tokenizer, _: make_features(examples, tokenizer, task.max_seq_length),
    predictions=lambda task, examples, features, logits, *_: predictions(examples, features, logits),
    fitting_metrics=lambda *_: TaskMetrics("a choice of endings", ("accuracy",)),
    score=lambda task, examples, predictions, _: metrics.score(
        task.metrics, [p.label for p in predictions], [example.label for example in examples]
    ),
    is_degenerate=lambda _, examples, predictions: is_constant(
        [p.label for p in predictions], [example.label for example in examples]
    ),
    eval_files=eval_lines,
    row=lambda _, prediction: asdict(prediction),
    guess=lambda _, train, examples: [
        ChoicePrediction(example.id, most_frequent(other.label for other in train), ()) for example in examples
    ],
    predicted_labels=lambda prediction: [str(prediction.label)],
    review=_review,
)
