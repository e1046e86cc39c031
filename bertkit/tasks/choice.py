"""A text with several endings, one of them right: examples -> features, one for each ending, logits -> predictions.

Source: Devlin et al. 2019, section 4.4 (SWAG): one sequence `[CLS] context [SEP] ending [SEP]` a choice, a single score
each, a softmax over the choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertkit.data.tokenizer import Tokenizer
from bertkit.errors import InputError
from bertkit.tasks.sequence import assemble, pieces, softmax
from bertkit.tasks.task import ChoiceExample, Feature


@dataclass(frozen=True)
class ChoicePrediction:
    """What a model says of an example.

    Attributes:
        id: of the example.
        label: the number of the most probable ending.
        probabilities: of the endings, in their order.
    """

    id: str
    label: int
    probabilities: tuple[float, ...]


def make_features(
    examples: Sequence[ChoiceExample], tokenizer: Tokenizer, max_seq_length: int, num_choices: int
) -> list[Feature]:
    """Turn examples into features: for each example one of every ending, side by side.

    Args:
        examples: all with the same number of endings.
        tokenizer: of the model.
        max_seq_length: in tokens, special ones counted; what does not fit is cut as in `sequence.kept_of_pair`.
        num_choices: that number, two or more.

    Raises:
        InputError: another number of endings, or a label that is none of them.
    """
    contexts = pieces(tokenizer, [example.context for example in examples])
    endings = pieces(tokenizer, [ending for example in examples for ending in example.endings])
    features = []
    for place, example in enumerate(examples):
        if len(example.endings) != num_choices or num_choices < 2:
            raise InputError(
                f"example {example.id}: {len(example.endings)} endings; expected as many as of the first example, "
                f"{num_choices}, and at least 2"
            )
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
