"""The scores of SQuAD, equal to the official scripts to the last digit; so sums follow the order of the questions.

Source: the official evaluation scripts, evaluate-v1.1.py and evaluate-v2.0.py (rajpurkar.github.io/SQuAD-explorer).
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from bertkit.base.errors import InputError

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)

Texts = Mapping[str, str | None]  # the answer by question id; None for a question without a prediction
Values = dict[str, dict[str, float]]  # by name and question id
Golds = Mapping[str, Sequence[str]]  # the accepted answers by question id; empty if the question has no answer


def normalize_answer(text: str) -> str:
    """Convert to lower case; then remove ASCII punctuation, articles, and superfluous white space, in this order."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact(gold: str, prediction: str) -> float:
    """Return 1 if both texts are equal after `normalize_answer`, else 0."""
    return float(normalize_answer(gold) == normalize_answer(prediction))


def f1(gold: str, prediction: str) -> float:
    """Return the F1 of the common words; if one text has no words, 1 if both have none, else 0."""
    gold_words, words = normalize_answer(gold).split(), normalize_answer(prediction).split()
    if not gold_words or not words:
        return float(gold_words == words)
    common = sum((Counter(gold_words) & Counter(words)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(words), common / len(gold_words)
    return (2 * precision * recall) / (precision + recall)


def _f1_of_version_1(gold: str, prediction: str) -> float:
    """Return F1 as SQuAD 1.1 does: 0 if both texts have no words."""
    return f1(gold, prediction) if normalize_answer(gold) else 0.0


def squad_v1(predictions: Texts, golds: Golds) -> dict[str, float]:
    """Return SQuAD 1.1's `exact_match` and `f1` in per cent, and `total` questions; a missing prediction scores 0."""
    measured = values_of_version_1(predictions, golds)
    scores = {name: 100.0 * _sum(values.values()) / len(golds) for name, values in measured.items()}
    return {**scores, "total": len(golds)}


def values_of_version_1(predictions: Texts, golds: Golds) -> Values:
    """Return the values of SQuAD 1.1, from 0 to 1, of each question."""
    return {
        name: {key: best_of(measure, golds[key], predictions[key]) for key in golds}
        for name, measure in (("exact_match", exact), ("f1", _f1_of_version_1))
    }


def squad_v2(
    predictions: Mapping[str, str], golds: Golds, no_answer_probs: Mapping[str, float] | None
) -> dict[str, float]:
    """Return the scores of SQuAD 2.0: `exact`, `f1` and `total`, also for questions with and without an answer.

    With `no_answer_probs` also `best_exact`, `best_exact_thresh`, `best_f1` and `best_f1_thresh`: the best scores if "" is
    predicted above a threshold. As in the official script, a threshold may divide questions with equal probabilities. For
    useful thresholds, predict the best answer to each question. Raises InputError if a question has no prediction.
    """
    if missing := [key for key in golds if key not in predictions]:
        raise InputError(
            f"squad_v2: {len(missing)} of {len(golds)} questions without a prediction, the first {missing[0]!r}; "
            'predict "" for no answer'
        )
    has_answer = {key: bool(texts) for key, texts in golds.items()}
    measured = values_of_version_2(predictions, golds)
    scores: dict[str, float] = {}
    for prefix, keys in (
        ("", list(golds)),
        ("HasAns_", [key for key in golds if has_answer[key]]),
        ("NoAns_", [key for key in golds if not has_answer[key]]),
    ):
        if keys:
            for name, values in measured.items():
                scores[prefix + name] = 100.0 * _sum(values[key] for key in keys) / len(keys)
            scores[f"{prefix}total"] = len(keys)
    if no_answer_probs is not None:
        for name, values in measured.items():
            best = _best_threshold(predictions, values, no_answer_probs, has_answer)
            scores |= {f"best_{name}": best.score, f"best_{name}_thresh": best.threshold}
    return scores


def values_of_version_2(predictions: Mapping[str, str], golds: Golds) -> Values:
    """Return the values of SQuAD 2.0, from 0 to 1, of each question."""
    return {
        name: {
            key: best_of(measure, [gold for gold in texts if normalize_answer(gold)] or [""], predictions[key])
            for key, texts in golds.items()
        }
        for name, measure in (("exact", exact), ("f1", f1))
    }


def best_of(measure: Callable[[str, str], float], golds: Sequence[str], prediction: str | None) -> float:
    """Return the highest score of a prediction over the accepted answers; 0 without a prediction."""
    return 0.0 if prediction is None else max(measure(gold, prediction) for gold in golds)


def _sum(values: Iterable[float]) -> float:
    """Add the values one by one, as the official scripts did: since Python 3.12, `sum` compensates for rounding errors."""
    total = 0.0
    for value in values:
        total += value
    return total


class _Best(NamedTuple):
    """The best score, in per cent, and the threshold that gives it."""

    score: float
    threshold: float


def _best_threshold(
    predictions: Mapping[str, str],
    values: Mapping[str, float],
    no_answer_probs: Mapping[str, float],
    has_answer: Mapping[str, bool],
) -> _Best:
    """Search the best score and its threshold: accept the answers one by one, those with the lowest probability first."""
    current = best = float(sum(not answered for answered in has_answer.values()))
    threshold = 0.0
    for key in sorted(values, key=lambda key: no_answer_probs[key]):
        if has_answer[key]:
            current += values[key]
        elif predictions[key]:
            current -= 1
        if current > best:
            best, threshold = current, no_answer_probs[key]
    return _Best(100.0 * best / len(values), threshold)
