"""The metrics as classes of `evaluate`: in the package, so that they need no network and no home directory.

`metrics.score` uses them; importing this module costs the seconds that importing `evaluate` costs. Names and numbers are
those of evaluate's own modules of the same names, except that numbers stay in double precision: evaluate's Pearson and
Spearman round what they are given to single.

SQuAD's scores come first: as its two official scripts give them, to the last digit. Sums run over the questions in their
order, because floating-point sums depend on it.

Source: the official evaluation scripts, evaluate-v1.1.py and evaluate-v2.0.py (rajpurkar.github.io/SQuAD-explorer).
"""

from __future__ import annotations

import re
import string
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import evaluate
import numpy as np
import scipy.stats
import seqeval.metrics
import seqeval.scheme
import sklearn.metrics
from datasets import Features, List, Value

from bertkit.errors import InputError

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)

Texts = Mapping[str, str | None]  # question -> answer; None for a question that was not answered
Golds = Mapping[str, Sequence[str]]  # question -> accepted answers; none where there is no answer


def normalize_answer(text: str) -> str:
    """Lower-case, drop ASCII punctuation, then the articles, then superfluous white space, in this order."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact(gold: str, prediction: str) -> float:
    """1 where both are the same after `normalize_answer`, else 0."""
    return float(normalize_answer(gold) == normalize_answer(prediction))


def f1(gold: str, prediction: str) -> float:
    """F1 of the words that both have; where either has none, whether both have none."""
    gold_words, words = normalize_answer(gold).split(), normalize_answer(prediction).split()
    if not gold_words or not words:
        return float(gold_words == words)
    common = sum((Counter(gold_words) & Counter(words)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(words), common / len(gold_words)
    return (2 * precision * recall) / (precision + recall)


def _f1_of_version_1(gold: str, prediction: str) -> float:
    """Version 1 gives 0 where both have no words."""
    return f1(gold, prediction) if normalize_answer(gold) else 0.0


def squad_v1(predictions: Texts, golds: Golds) -> dict[str, float]:
    """Score SQuAD 1.1: `exact_match` and `f1` in per cent, and `total` questions; a question not answered scores 0.

    Args:
        predictions: an answer for each question of `golds`.
        golds: one accepted answer or more for each question.
    """
    scores: dict[str, float] = {}
    for name, measure in (("exact_match", exact), ("f1", _f1_of_version_1)):
        best = (_best(measure, golds[key], predictions[key]) for key in golds)
        scores[name] = 100.0 * _sum(best) / len(golds)
    return {**scores, "total": len(golds)}


def squad_v2(
    predictions: Mapping[str, str], golds: Golds, no_answer_probs: Mapping[str, float] | None
) -> dict[str, float]:
    """Score SQuAD 2.0: `exact`, `f1` and `total`, the same of the questions with and without an answer, best thresholds.

    Args:
        predictions: an answer for each question of `golds`; "" for no answer. The thresholds are of use where each is the
            best answer that there is, and not "" already where no answer is likely.
        golds: the accepted answers of each question; none where there is no answer.
        no_answer_probs: how likely each question has no answer. None leaves out `best_exact`, `best_exact_thresh`,
            `best_f1` and `best_f1_thresh`: what the scores would be with "" for every probability above the threshold.
            Where questions have the same probability, the threshold may lie among them, as in the official script.
    """
    has_answer = {key: bool(texts) for key, texts in golds.items()}
    measured: dict[str, dict[str, float]] = {}
    for name, measure in (("exact", exact), ("f1", f1)):
        measured[name] = {
            key: _best(measure, [gold for gold in texts if normalize_answer(gold)] or [""], predictions[key])
            for key, texts in golds.items()
        }
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
            best, threshold = _best_threshold(predictions, values, no_answer_probs, has_answer)
            scores[f"best_{name}"], scores[f"best_{name}_thresh"] = best, threshold
    return scores


def _best(measure: Callable[[str, str], float], golds: Sequence[str], prediction: str | None) -> float:
    return 0.0 if prediction is None else max(measure(gold, prediction) for gold in golds)


def _sum(values: Iterable[float]) -> float:
    """Add one after another; `sum` compensates for rounding since Python 3.12, which the official numbers do not."""
    total = 0.0
    for value in values:
        total += value
    return total


def _best_threshold(
    predictions: Mapping[str, str],
    values: Mapping[str, float],
    no_answer_probs: Mapping[str, float],
    has_answer: Mapping[str, bool],
) -> tuple[float, float]:
    """Begin with "" for every question and take the given answers in, the surest first."""
    current = best = float(sum(not answered for answered in has_answer.values()))
    threshold = 0.0
    for key in sorted(values, key=lambda key: no_answer_probs[key]):
        if has_answer[key]:
            current += values[key]
        elif predictions[key]:
            current -= 1
        if current > best:
            best, threshold = current, no_answer_probs[key]
    return 100.0 * best / len(values), threshold


_NUMBER = Value("int64")
_REAL = Value("float64")
_TAGS = List(Value("string"))
_GOLD = {"id": Value("string"), "answers": {"text": List(Value("string"))}}


class PackagedMetric(evaluate.Metric):  # type: ignore[misc]
    """A metric that keeps its data in memory, and makes its (empty) cache directory where temporary files go."""

    prediction: ClassVar[Any]
    reference: ClassVar[Any]

    def __init__(self, **options: Any) -> None:
        """Take evaluate's own options; none is needed."""
        self._temporary = tempfile.TemporaryDirectory(prefix="bertkit-metric-")
        super().__init__(**{"keep_in_memory": True, "cache_dir": self._temporary.name, "seed": 0, **options})

    def _info(self) -> Any:
        of_several = self.config_name == "multilabel"  # evaluate's own name for rows of 0 and 1
        types = [List(each) if of_several else each for each in (self.prediction, self.reference)]
        features = Features({"predictions": types[0], "references": types[1]})
        return evaluate.MetricInfo(description=type(self).__doc__, citation="", features=features)


class Accuracy(PackagedMetric):
    """The share of label numbers, or of whole rows of several labels, that are right."""

    prediction = reference = _NUMBER

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        return {"accuracy": float(sklearn.metrics.accuracy_score(references, predictions))}


class F1(PackagedMetric):
    """F1 of label numbers: of label 1 with average="binary", else "macro" or "micro" over all labels, or several at once."""

    prediction = reference = _NUMBER

    def _compute(self, predictions: Any, references: Any, average: str = "binary") -> dict[str, float]:
        if average == "binary" and not (labels := {*predictions, *references}) <= {0, 1}:
            raise InputError(f"metric f1: labels {sorted(labels)}, expected 0 and 1; use f1_macro or f1_micro")
        value = sklearn.metrics.f1_score(references, predictions, average=average, zero_division=0.0)
        return {"f1": float(value)}


class MatthewsCorrelation(PackagedMetric):
    """Matthews correlation of label numbers; 0 where predictions or references are all the same."""

    prediction = reference = _NUMBER

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a single label
            value = sklearn.metrics.matthews_corrcoef(references, predictions)
        return {"matthews_correlation": float(value)}


class Pearsonr(PackagedMetric):
    """Pearson correlation; 0 with a warning where it is not defined."""

    prediction = reference = _REAL

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        return {"pearsonr": _correlation(scipy.stats.pearsonr, "pearson", predictions, references)}


class Spearmanr(PackagedMetric):
    """Spearman rank correlation; 0 with a warning where it is not defined."""

    prediction = reference = _REAL

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        return {"spearmanr": _correlation(scipy.stats.spearmanr, "spearmanr", predictions, references)}


def _correlation(function: Callable[..., Any], name: str, predictions: Any, references: Any) -> float:
    for what, values in (("predictions", predictions), ("references", references)):
        if len(values) < 2 or not np.isfinite(values).all() or len(set(values)) == 1:
            fault = "fewer than two" if len(values) < 2 else "all the same" if len(set(values)) == 1 else "not finite"
            warnings.warn(f"{name} is not defined: {what} are {fault}; taken as 0", stacklevel=2)
            return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy's warning of values that are nearly the same
        value = float(function(predictions, references)[0])
    return value if np.isfinite(value) else 0.0


class Seqeval(PackagedMetric):
    """Precision, recall and F1 of whole entities, and accuracy of tags.

    mode=None counts as the CoNLL evaluation does and takes IOB1, IOB2 and BIOES; mode="strict" counts entities that are
    well-formed in `scheme` and no others.
    """

    prediction = reference = _TAGS

    def _compute(
        self, predictions: Any, references: Any, mode: str | None = None, scheme: str | None = None
    ) -> dict[str, float]:
        chosen = None if scheme is None else getattr(seqeval.scheme, scheme)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nothing predicted, or tags without a prefix
            report = seqeval.metrics.classification_report(
                references, predictions, output_dict=True, mode=mode, scheme=chosen, zero_division=0
            )["micro avg"]
            accuracy = seqeval.metrics.accuracy_score(references, predictions)
        return {
            "overall_precision": float(report["precision"]),
            "overall_recall": float(report["recall"]),
            "overall_f1": float(report["f1-score"]),
            "overall_accuracy": float(accuracy),
        }


class Squad(PackagedMetric):
    """SQuAD 1.1: exact match and F1, in per cent; a prediction_text of None is a question that was not answered."""

    prediction: ClassVar[Any] = {"id": Value("string"), "prediction_text": Value("string")}
    reference = _GOLD

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        texts = {row["id"]: row["prediction_text"] for row in predictions}
        return squad_v1(texts, {row["id"]: row["answers"]["text"] for row in references})


class SquadV2(PackagedMetric):
    """SQuAD 2.0: exact and F1, in per cent; best thresholds where every no_answer_probability is known (not None)."""

    prediction: ClassVar[Any] = {
        "id": Value("string"),
        "prediction_text": Value("string"),
        "no_answer_probability": _REAL,
    }
    reference = _GOLD

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        texts = {row["id"]: row["prediction_text"] for row in predictions}
        probs = {row["id"]: row["no_answer_probability"] for row in predictions}
        golds = {row["id"]: row["answers"]["text"] for row in references}
        return squad_v2(texts, golds, None if None in probs.values() else probs)


# Name of a metric -> its class, the options of `compute`, and the key in the scores of each result that is given.
CLASSES: dict[str, tuple[type[PackagedMetric], dict[str, str], dict[str, str] | None]] = {
    "accuracy": (Accuracy, {}, None),
    "f1": (F1, {"average": "binary"}, None),
    "f1_macro": (F1, {"average": "macro"}, {"f1": "f1_macro"}),
    "f1_micro": (F1, {"average": "micro"}, {"f1": "f1_micro"}),
    "matthews_correlation": (MatthewsCorrelation, {}, None),
    "pearson": (Pearsonr, {}, {"pearsonr": "pearson"}),
    "spearmanr": (Spearmanr, {}, None),
    "seqeval": (Seqeval, {}, None),
    "seqeval_strict": (
        Seqeval,
        {"mode": "strict", "scheme": "IOB2"},
        {"overall_precision": "strict_precision", "overall_recall": "strict_recall", "overall_f1": "strict_f1"},
    ),
    "squad": (Squad, {}, None),
    "squad_v2": (SquadV2, {}, None),
}
