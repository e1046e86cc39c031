"""What is explained of each head's prediction, for `looking`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.base.errors import InputError
from bertkit.base.typed_settings import nearest
from bertkit.predict.task_model import Predictor
from bertkit.tasks.task import Feature


@dataclass(frozen=True)
class Target:
    """What is explained: a logit, or the sum of two, of one sequence.

    Attributes:
        what: it is, in words.
        head: whose logits.
        places: (token, column) of each logit; token None for a head of the whole sequence.
        tokens: that the target is about, such as those of an answer.
    """

    what: str
    head: str
    places: tuple[tuple[int | None, int], ...]
    tokens: tuple[int, ...] = ()


def chosen(target: str | None, names: Sequence[str], predicted: int, what: str) -> int:
    """Find what the user names, else what is predicted, among names."""
    if target is None:
        return predicted
    if target not in names:
        some = f"; expected one of {', '.join(names)}" if len(names) <= 50 else ""
        raise InputError(f"target={target}: no such {what}{nearest(target, names) or some}")
    return names.index(target)


def _sequence_aim(
    predictor: Predictor, example: Any, features: Sequence[Feature], prediction: Any, target: str | None
) -> tuple[Feature, Target]:
    labels = list(predictor.labels)
    if not labels:
        chosen(target, (), 0, "label: the model predicts a number")
        return features[0], Target("the number", "sequence", ((None, 0),))
    best = int(np.argmax([prediction.probabilities[label] for label in labels]))
    column = chosen(target, labels, best, "label")
    return features[0], Target(f"the label {labels[column]}", "sequence", ((None, column),))


def _token_aim(
    predictor: Predictor, example: Any, features: Sequence[Feature], prediction: Any, target: str | None
) -> tuple[Feature, Target | None]:
    """Explain the tag of a word, in the window with most around it, as the tag was chosen."""
    words: list[str] = list(example.words if hasattr(example, "words") else prediction.words)
    if not words:
        chosen(target, (), 0, "word: there are none")
        return features[0], None
    first = next((place for place, tag in enumerate(prediction.tags) if tag != "O"), 0)
    word = chosen(target, words, first, "word of the text")

    def room(feature: Feature) -> int:
        place = int(feature.where.index(word))
        return min(place - 1, len(feature.input_ids) - 2 - place)

    feature = max((each for each in features if word in each.where), key=room)
    start = feature.where.index(word)
    after = next((n for n, at in enumerate(feature.where) if n > start and at >= 0), len(feature.where) - 1)
    tag = prediction.tags[word]
    place = (start, list(predictor.labels).index(tag))
    return feature, Target(f"the tag {tag} of {words[word]}", "token", (place,), tuple(range(start, after)))


def _span_aim(
    predictor: Predictor, example: Any, features: Sequence[Feature], prediction: Any, target: str | None
) -> tuple[Feature, Target]:
    """Explain the start and the end of the answer; of no answer both at [CLS], in the first window."""
    chosen(target, (), 0, "choice: the answer is what is explained of a question")
    answer = next((each for each in prediction.n_best if each.text == prediction.text), None)
    if prediction.text and answer is not None:
        for feature in features:
            places = list(enumerate(feature.where))
            starts = [n for n, at in places if at is not None and at.is_max_context and at.start == answer.start]
            ends = [n for n, at in places if at is not None and at.end == answer.end]
            if starts and ends:
                start, end = starts[0], ends[-1]
                what = f"the answer {prediction.text}"
                return feature, Target(what, "span", ((start, 0), (end, 1)), tuple(range(start, end + 1)))
    return features[0], Target("that there is no answer", "span", ((0, 0), (0, 1)), (0,))


def _choice_aim(
    predictor: Predictor, example: Any, features: Sequence[Feature], prediction: Any, target: str | None
) -> tuple[Feature, Target]:
    column = chosen(target, [str(number) for number in range(len(features))], prediction.label, "ending")
    return features[column], Target(f"ending {column}", "choice", ((None, 0),))


AIMS: dict[str, Callable[[Predictor, Any, Sequence[Feature], Any, str | None], tuple[Feature, Target | None]]] = {
    "sequence": _sequence_aim,
    "token": _token_aim,
    "span": _span_aim,
    "choice": _choice_aim,
}
