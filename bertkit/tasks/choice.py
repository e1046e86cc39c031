"""Choice: a text with several endings, one of them right.

Source: Devlin et al. 2019, section 4.4 (SWAG): one sequence `[CLS] context [SEP] ending [SEP]` a choice, a single score
each, a softmax over the choices.
"""

from __future__ import annotations

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
from bertkit.tasks.reading.source import Reading, given, text_of, value_of
from bertkit.tasks.scoring import metrics, review
from bertkit.tasks.sequence import assemble, pieces, softmax
from bertkit.tasks.task import TABLES, Feature, Measured, Shape, commonest, labelled_lines, says_the_same
from bertkit.tasks.task_config import TaskConfig


@dataclass(frozen=True)
class ChoiceExample:
    """A text with several endings, one of them right."""

    id: str  # as the file has it, or the number of the row
    context: str  # the first segment of every choice
    endings: tuple[str, ...]  # the second segments
    label: int | None  # the number of the right one; None where it is not known


@dataclass(frozen=True)
class ChoicePrediction:
    """What a model says of an example."""

    id: str  # of the example
    label: int  # the number of the most probable ending
    probabilities: tuple[float, ...]  # of the endings, in their order


def read(reading: Reading) -> Iterator[ChoiceExample]:
    """Read the rows of a table.

    Raises:
        InputError: a column is missing; of a row, when it is taken.
    """
    names = reading.task.columns.endings
    context = reading.find(reading.task.columns.context, "context")
    begin = reading.find(reading.task.columns.ending_start, "ending_start", False)
    columns = [reading.find(name, "endings") for name in (names if isinstance(names, tuple) else (names,))]
    field, ids = reading.label_field(), reading.ids()

    def example(row: Any, where: str, line: int) -> ChoiceExample:
        values = [value_of(row, column or "", where) for column in columns]
        endings = values[0] if len(values) == 1 and isinstance(values[0], list) else values
        if len(endings) < 2 or not all(isinstance(ending, str) for ending in endings):
            raise InputError(f"{where}: expected at least two endings, each a text; set task.columns.endings=")
        if begin is not None:
            endings = [f"{text_of(row, begin, where)} {ending}" for ending in endings]
        label = None
        if field is not None:
            label = _number_of_right(given(row, field), field, len(endings), where, bool(reading.is_labelled))
        text = text_of(row, context, where)
        reading.note_empty(where, text, *endings)
        return ChoiceExample(ids.take(given(row, ids.field), where, line), text, tuple(endings), label)

    return reading.each(example)


def _number_of_right(value: Any, field: str, num_endings: int, where: str, is_labelled: bool) -> int | None:
    if value in (None, "", -1, "-1") and not is_labelled:
        return None
    number = math.nan if isinstance(value, bool) or value is None else as_number(value)
    if number not in range(num_endings):
        raise InputError(f"{where}: {field} {value!r}; expected the number of the right ending, 0 to {num_endings - 1}")
    return int(number)


def num_choices_of(examples: Sequence[ChoiceExample]) -> int:
    """Give the number of endings that every example has.

    Raises:
        InputError: another number, or fewer than two.
    """
    num_choices = len(examples[0].endings)
    for example in examples:
        if len(example.endings) != num_choices or num_choices < 2:
            raise InputError(
                f"example {example.id}: {len(example.endings)} endings; expected as many as of the first example, "
                f"{num_choices}, and at least 2"
            )
    return num_choices


def make_features(examples: Sequence[ChoiceExample], tokenizer: Tokenizer, max_seq_length: int) -> list[Feature]:
    """Turn examples into features: one of every ending, side by side; cut as `sequence.kept_of_pair` says.

    Raises:
        InputError: another number of endings, or a label that is none of them.
    """
    num_choices = num_choices_of(examples)
    contexts = pieces(tokenizer, [example.context for example in examples])
    endings = pieces(tokenizer, [ending for example in examples for ending in example.endings])
    features = []
    for place, example in enumerate(examples):
        if example.label is not None and not 0 <= example.label < num_choices:
            raise InputError(f"example {example.id}: label {example.label}: expected 0 to {num_choices - 1}")
        for ending in endings[place * num_choices : (place + 1) * num_choices]:
            features.append(assemble(tokenizer, place, contexts[place], ending, example.label, max_seq_length))
    return features


def predictions(
    examples: Sequence[ChoiceExample], features: Sequence[Feature], logits: Sequence[NDArray[np.floating]]
) -> list[ChoicePrediction]:
    """Turn the logits, (1,) of each feature, into predictions, one for each example."""
    scores: list[list[float]] = [[] for _ in examples]
    for feature, logit in zip(features, logits, strict=True):
        scores[feature.example].append(float(logit[0]))
    answers = []
    for example, row in zip(examples, scores, strict=True):
        shares = softmax(np.array(row))
        answers.append(ChoicePrediction(example.id, int(shares.argmax()), tuple(shares.tolist())))
    return answers


def _review(
    _: TaskConfig, examples: Sequence[ChoiceExample], predictions: Sequence[ChoicePrediction], __: Sequence[str]
) -> dict[str, Any]:
    """Endings by their numbers, from 0; mistakes by their texts."""
    pairs, shown, sure = Counter[tuple[str, str]](), [], []
    for example, said in zip(examples, predictions, strict=True):
        right, confidence = example.label or 0, said.probabilities[said.label]
        pairs[str(right), str(said.label)] += 1
        sure.append((confidence, right == said.label))
        if right != said.label:
            texts = example.endings[right], example.endings[said.label]
            shown.append(review.Case(example.id, {"context": example.context}, *texts, confidence))
    numbers = [str(number) for number in range(num_choices_of(examples))]
    found = {"confusion": review.confusion(pairs, numbers), "calibration": review.calibration(sure)}
    return {**found, "mistakes": review.mistakes(shown)}


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
    measured=lambda *_: Measured("a choice of endings", ("accuracy",)),
    score=lambda task, examples, predictions, _: metrics.score(
        task.metrics, [p.label for p in predictions], [example.label for example in examples]
    ),
    is_degenerate=lambda _, examples, predictions: says_the_same(
        [p.label for p in predictions], [example.label for example in examples]
    ),
    files=labelled_lines,
    row=lambda _, prediction: asdict(prediction),
    guess=lambda _, train, examples: [
        ChoicePrediction(example.id, commonest(each.label for each in train), ()) for example in examples
    ],
    said_of=lambda prediction: [str(prediction.label)],
    review=_review,
)
