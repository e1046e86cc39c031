"""A text, or a pair of texts, with a label or a number: examples -> features, logits -> predictions.

A feature is `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, segment 0 up to the first [SEP]. Special tokens named in a text are
special, as they are to everyone who runs the exported model.

Source: Devlin et al. 2019, figure 4 (a) and (b); google-research/bert run_classifier.py `convert_single_example`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertkit.config import nearest
from bertkit.data.tokenizer import Tokenizer
from bertkit.errors import InputError
from bertkit.tasks.task import Feature, SequenceExample


@dataclass(frozen=True)
class SequencePrediction:
    """What a model says of an example.

    Attributes:
        id: of the example.
        label: the most probable label, or the number of a regression, or of labels that may hold at once those that are
            more likely than not.
        probabilities: of each label by name; empty for a regression.
    """

    id: str
    label: str | float | tuple[str, ...]
    probabilities: dict[str, float]


def make_features(
    examples: Sequence[SequenceExample], tokenizer: Tokenizer, labels: Sequence[str], max_seq_length: int
) -> list[Feature]:
    """Turn examples into features, one each, in their order.

    Args:
        examples: singles and pairs may be mixed.
        tokenizer: of the model.
        labels: the names in the order of their numbers; none for a regression.
        max_seq_length: in tokens, special ones counted; what does not fit is cut as `kept_of_pair` says.

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
    """Turn logits, (C,) of each feature, into predictions, one for each example.

    Args:
        examples: what was asked.
        features: what `make_features` made of them.
        logits: of each feature; (1,) in a regression.
        labels: the names in the order of their numbers; none for a regression.
        multi_label: any number of them may hold, each with a probability of its own.
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
