"""The target of an explanation: which logit is explained, for every head."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.base.errors import InputError
from bertkit.base.typed_settings import nearest
from bertkit.explain.attributions import Target, run_copies
from bertkit.model.heads import BertWithHeads
from bertkit.predict.answers import require_finite
from bertkit.predict.task_model import Predictor
from bertkit.tasks.task import Feature

NUM_WORDS = 5  # shown for a [MASK]
FOLLOWS = ("follows", "does not follow")  # the labels of next sentence prediction


def _chosen(target: str | None, names: Sequence[str], predicted: int, what: str) -> int:
    """Give the index of the user's target among names, else the predicted one."""
    if target is None:
        return predicted
    if target not in names:
        some = f"; expected one of {', '.join(names)}" if len(names) <= 50 else ""
        raise InputError(f"target={target}: no such {what}{nearest(target, names) or some}")
    return names.index(target)


def target_of(
    predictor: Predictor, example: Any, features: Sequence[Feature], prediction: Any, target: str | None
) -> tuple[Feature, Target | None]:
    """Give the explained feature and logit of a task's prediction: by default the predicted one."""
    labels = list(predictor.labels)
    match predictor.shape.head:
        case "token":
            return _tag_target(labels, example, features, prediction, target)
        case "span":
            _chosen(target, (), 0, "choice: for a question the answer is explained")
            return _answer_target(features, prediction)
        case "choice":
            column = _chosen(target, [str(number) for number in range(len(features))], prediction.label, "ending")
            return features[column], Target(f"ending {column}", "choice", ((0, 0),))
    if not labels:
        _chosen(target, (), 0, "label: the model predicts a number")
        return features[0], Target("the number", "sequence", ((0, 0),))
    best = int(np.argmax([prediction.probabilities[label] for label in labels]))
    column = _chosen(target, labels, best, "label")
    return features[0], Target(f"the label {labels[column]}", "sequence", ((0, column),))


def _tag_target(
    labels: list[str], example: Any, features: Sequence[Feature], prediction: Any, target: str | None
) -> tuple[Feature, Target | None]:
    """Explain the tag of a word, in the window with the most context around it, where `predict` takes the tag."""
    words: list[str] = list(example.words if hasattr(example, "words") else prediction.words)
    if not words:
        _chosen(target, (), 0, "word: there are none")
        return features[0], None
    first = next((place for place, tag in enumerate(prediction.tags) if tag != "O"), 0)
    word = _chosen(target, words, first, "word of the text")

    def room(feature: Feature) -> int:
        place = int(feature.where.index(word))
        return min(place - 1, len(feature.input_ids) - 2 - place)

    feature = max((window for window in features if word in window.where), key=room)
    start = feature.where.index(word)
    after = next((n for n, at in enumerate(feature.where) if n > start and at >= 0), len(feature.where) - 1)
    tag = prediction.tags[word]
    place = (start, labels.index(tag))
    return feature, Target(f"the tag {tag} of {words[word]}", "token", (place,), tuple(range(start, after)))


def _answer_target(features: Sequence[Feature], prediction: Any) -> tuple[Feature, Target]:
    """Explain the start and the end of the answer; without an answer both at [CLS], in the first window."""
    answer: Any = next((answer for answer in prediction.n_best if answer.text == prediction.text), None)
    for feature in features if prediction.text and answer is not None else ():
        places = list(enumerate(feature.where))
        starts = [n for n, at in places if at is not None and at.is_max_context and at.start == answer.start]
        ends = [n for n, at in places if at is not None and at.end == answer.end]
        if starts and ends:
            start, end = starts[0], ends[-1]
            span = tuple(range(start, end + 1))
            return feature, Target(f"the answer {prediction.text}", "span", ((start, 0), (end, 1)), span)
    return features[0], Target("that there is no answer", "span", ((0, 0), (0, 1)), (0,))


def pretraining_target(
    predictor: Predictor, feature: Feature, target: str | None
) -> tuple[dict[str, Any] | None, Target | None]:
    """Explain the word at the first [MASK], else whether the second text follows; nothing if no head predicts either."""
    model: Any = predictor.model
    vocab, mask = predictor.tokenizer.vocab, predictor.tokenizer.facts.mask
    if "masked_lm" in model.heads and mask in feature.input_ids:
        place = feature.input_ids.index(mask)
        shares = _probabilities(model, feature, "masked_lm", place)
        best = shares.argsort()[::-1][:NUM_WORDS].tolist()
        words = [{"token": vocab[number], "probability": float(shares[number])} for number in best]
        column = _chosen(target, vocab, best[0], "token of the vocabulary")
        return {"masks": [words]}, Target(f"{vocab[column]} at [MASK]", "masked_lm", ((0, column),), (place,))
    if "next_sentence" in model.heads and 1 in feature.token_type_ids:
        shares = _probabilities(model, feature, "next_sentence")
        column = _chosen(target, FOLLOWS, int(shares.argmax()), "label")
        row = {"next_sentence": dict(zip(FOLLOWS, shares.tolist(), strict=True))}
        return row, Target(f"that the second text {FOLLOWS[column]}", "next_sentence", ((0, column),))
    return None, None


@torch.no_grad()
def _probabilities(model: BertWithHeads, feature: Feature, head: str, *masked: int) -> NDArray[np.float64]:
    """Give the probabilities of a pretraining head."""
    logits = run_copies(model, feature, masked=masked).logits[head][0].double()
    require_finite(bool(torch.isfinite(logits).all()))
    return torch.softmax(logits, -1).cpu().numpy()
