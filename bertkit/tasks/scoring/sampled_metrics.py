"""The metrics as scores of samples: of the same predictions and references, for their intervals. The tests compare the values.

Axes: n examples, C labels, R draws.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bertkit.tasks.scoring import squad
from bertkit.tasks.scoring.sampling import Drawn, Floats, Interval, Mean, Sampled, f1_of, from_sums, ratio

Each = Sequence[Any]  # of the examples: labels, numbers, lists of tags, texts
SampledScores = dict[str, Sampled]  # by the keys of the metric's scores


def accuracy(predictions: Each, references: Each) -> SampledScores:
    """The share of examples with the right label or labels; with lists of tags, that of the right tags."""
    if isinstance(references, np.ndarray) or isinstance(references[0], int):
        right = np.array(predictions) == np.array(references)
        return {"accuracy": Mean(right.reshape(len(right), -1).all(1).astype(float))}
    rows = [(sum(map(str.__eq__, own, true)), len(true)) for own, true in zip(predictions, references, strict=True)]
    return {"accuracy": from_sums(np.array(rows, float), ratio, (0.0, 1.0))}


def f1(predictions: Each, references: Each) -> SampledScores:
    """F1 of label 1."""
    predicted, true = (np.array(labels) == 1 for labels in (predictions, references))
    rows = np.stack([predicted & true, predicted, true], 1).astype(float)
    return {"f1": from_sums(rows, f1_of, (0.0, 1.0))}


def f1_macro(predictions: Each, references: Each) -> SampledScores:
    """The mean of the F1 of the labels that occur."""
    every = isinstance(references, np.ndarray)  # several labels: also those that do not occur

    def mean(common: Floats, predicted: Floats, true: Floats) -> Floats:
        occurs = (predicted + true > 0) | every
        return np.asarray(ratio((f1_of(common, predicted, true) * occurs).sum(0), occurs.sum(0)))

    return {"f1_macro": _of_labels(predictions, references, mean, (0.0, 1.0))}


def f1_micro(predictions: Each, references: Each) -> SampledScores:
    """F1 over the predictions of all labels."""
    return {
        "f1_micro": _of_labels(predictions, references, lambda *counts: f1_of(*(c.sum(0) for c in counts)), (0.0, 1.0))
    }


def matthews_correlation(predictions: Each, references: Each) -> SampledScores:
    """Matthews' correlation of several labels."""

    def correlation(common: Floats, predicted: Floats, true: Floats) -> Floats:
        size = true.sum(0)
        covariance = common.sum(0) * size - (predicted * true).sum(0)
        variances = [size**2 - (counts**2).sum(0) for counts in (predicted, true)]
        return np.asarray(ratio(covariance, np.sqrt(variances[0] * variances[1])))

    return {"matthews_correlation": _of_labels(predictions, references, correlation, (-1.0, 1.0))}


def _of_labels(predictions: Each, references: Each, finish: Callable[..., Floats], ends: Interval) -> Drawn:
    """Return a score from three counts of each label, (C, R): right predictions, predictions and references."""
    from scipy import sparse

    if isinstance(references, np.ndarray):
        predicted, true = (sparse.csr_array(np.array(labels, float)) for labels in (predictions, references))
    else:
        size = len(references)
        names, numbers = np.unique([*predictions, *references], return_inverse=True)
        predicted, true = (
            sparse.csr_array((np.ones(size), (np.arange(size), own)), (size, len(names)))
            for own in (numbers[:size], numbers[size:])
        )
    rows = sparse.csr_array(sparse.hstack([predicted * true, predicted, true]))
    return Drawn(rows.shape[0], lambda weights: finish(*(rows.T @ weights.T).reshape(3, -1, len(weights))), ends)


def pearson(predictions: Each, references: Each) -> SampledScores:
    """Pearson's correlation."""
    x, y = (np.array(values, float) - np.mean(values) for values in (predictions, references))
    rows = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], 1)
    return {"pearson": from_sums(rows, _correlation)}


def spearmanr(predictions: Each, references: Each) -> SampledScores:
    """Spearman's correlation: Pearson's of the ranks, which each draw has anew."""
    numbers = [np.unique(values, return_inverse=True)[1] for values in (predictions, references)]
    size = len(references)

    def ranks(weights: Floats, own: Any) -> Floats:
        counts = np.stack([np.bincount(own, row) for row in weights])  # of each value
        middles = np.cumsum(counts, 1) - (counts - 1) / 2 - (weights.sum(1, keepdims=True) + 1) / 2
        return np.asarray(middles[:, own])

    def score(weights: Floats) -> Floats:
        x, y = (ranks(weights, own) for own in numbers)
        return _correlation(*((weights * term).sum(1) for term in (np.ones_like(x), x, y, x * x, y * y, x * y)))

    return {"spearmanr": Drawn(size, score, (-1.0, 1.0))}


def _correlation(size: Floats, x: Floats, y: Floats, xx: Floats, yy: Floats, xy: Floats) -> Floats:
    """Return the correlation from sums; 0 where all values of a variable are the same."""
    variances = [
        np.where(each > 1e-12 * whole, each, 0) for each, whole in ((xx - x * x / size, xx), (yy - y * y / size, yy))
    ]
    return np.asarray(ratio(xy - x * y / size, np.sqrt(variances[0] * variances[1])))


def r2(predictions: Each, references: Each) -> SampledScores:
    """The coefficient of determination; 0 where all references are the same."""
    errors, y = np.subtract(predictions, references), np.array(references, float) - np.mean(references)

    def share(size: Floats, error: Floats, y: Floats, yy: Floats) -> Floats:
        variance = yy - y * y / size
        return np.asarray(np.where(variance > 1e-12 * yy, 1 - ratio(error, variance), 0.0))

    return {"r2": from_sums(np.stack([np.ones_like(y), errors**2, y, y * y], 1), share)}


def errors(predictions: Each, references: Each) -> SampledScores:
    """The root mean square and the mean of the errors."""
    sizes = np.abs(np.subtract(predictions, references))
    rows = np.stack([sizes**2, np.ones_like(sizes)], 1)
    return {
        "rmse": from_sums(rows, lambda squares, size: np.sqrt(squares / size)),
        "mae": from_sums(np.stack([sizes, rows[:, 1]], 1), ratio),
    }


def entities(keys: Sequence[str], found: Sequence[tuple[set[Any], set[Any]]]) -> SampledScores:
    """Precision, recall and F1 of the predicted and the true entities of each sentence."""
    counts = np.array([(len(own & true), len(own), len(true)) for own, true in found], float)
    finish: Sequence[Callable[..., Any]] = (
        lambda common, predicted, true: ratio(common, predicted),
        lambda common, predicted, true: ratio(common, true),
        f1_of,
    )
    return {key: from_sums(counts, each, (0.0, 1.0)) for key, each in zip(keys, finish, strict=True)}


def seqeval(predictions: Each, references: Each) -> SampledScores:
    """Precision, recall and F1 of entities, and the accuracy of tags."""
    from seqeval.metrics.sequence_labeling import get_entities

    found = [({*get_entities(own)}, {*get_entities(true)}) for own, true in zip(predictions, references, strict=True)]
    scores = entities(("overall_precision", "overall_recall", "overall_f1"), found)
    return scores | {"overall_accuracy": accuracy(predictions, references)["accuracy"]}


def seqeval_strict(predictions: Each, references: Each) -> SampledScores:
    """Precision, recall and F1 of valid entities."""
    from seqeval.scheme import IOB2, Entities

    found = zip(*(Entities(list(tags), IOB2).entities for tags in (predictions, references)), strict=True)
    sets = [({e.to_tuple() for e in own}, {e.to_tuple() for e in true}) for own, true in found]
    return entities(("strict_precision", "strict_recall", "strict_f1"), sets)


def squad_v1(predictions: Mapping[str, str], references: squad.Golds) -> SampledScores:
    """Exact match and F1 of answers."""
    values = squad.values_of_version_1({key: predictions.get(key) for key in references}, references)
    return {name: Mean(np.array([*own.values()]), whole=100.0) for name, own in values.items()}


def squad_v2(predictions: Mapping[str, str], references: squad.Golds) -> SampledScores:
    """Exact match and F1 of answers, of which some are none; also of the questions with and without an answer."""
    values, answered = squad.values_of_version_2(predictions, references), np.array([*map(bool, references.values())])
    chosen = {"": np.ones_like(answered), "HasAns_": answered, "NoAns_": ~answered}
    return {
        prefix + name: Mean(np.array([*own.values()])[places], whole=100.0)
        for prefix, places in chosen.items()
        if places.any()
        for name, own in values.items()
    }


def squad_v2_best(
    predictions: Mapping[str, str], references: squad.Golds, no_answer_probs: Mapping[str, float]
) -> SampledScores:
    """The best scores of squad_v2 if no answer is predicted above a threshold, which each draw has anew."""
    answered = np.array([*map(bool, references.values())])
    order = np.argsort([no_answer_probs[key] for key in references], kind="stable")
    costs = np.array([-1.0 if predictions[key] else 0.0 for key in references])

    def score_of(values: Floats) -> Drawn:
        gains = np.where(answered, values, costs)[order]

        def best(weights: Floats) -> Floats:
            gained = np.cumsum(weights[:, order] * gains, 1).max(1, initial=0.0)
            return np.asarray(100 * (gained + weights @ ~answered) / weights.sum(1))

        return Drawn(len(values), best, (0.0, 100.0))

    values = squad.values_of_version_2(predictions, references)
    return {f"best_{name}": score_of(np.array([*own.values()])) for name, own in values.items()}


def bleu(predictions: Each, references: Each) -> SampledScores:
    """BLEU."""
    from sacrebleu.metrics import BLEU

    return {"bleu": _of_sacrebleu(BLEU(), predictions, references)}


def chrf(predictions: Each, references: Each) -> SampledScores:
    """ChrF2."""
    from sacrebleu.metrics import CHRF

    return {"chrf": _of_sacrebleu(CHRF(), predictions, references)}


def _of_sacrebleu(scorer: Any, predictions: Each, references: Each) -> Drawn:
    """Return a score from the counts of each text, as in sacrebleu's own bootstrap (sacrebleu/significance.py)."""
    rows = np.array(scorer._extract_corpus_statistics(list(predictions), [list(references)]))

    def score(weights: Floats) -> Floats:
        return np.array([scorer._compute_score_from_stats(sums.tolist()).score for sums in weights @ rows])

    return Drawn(len(rows), score, (0.0, 100.0))


def rouge(predictions: Each, references: Each) -> SampledScores:
    """The mean F of ROUGE-1, ROUGE-2 and ROUGE-L."""
    from rouge_score.rouge_scorer import RougeScorer

    names = ("rouge1", "rouge2", "rougeL")
    scored = [RougeScorer(names).score(true, own) for own, true in zip(predictions, references, strict=True)]
    return {name: Mean(np.array([scores[name].fmeasure for scores in scored])) for name in names}


def exact_match_text(predictions: Each, references: Each) -> SampledScores:
    """The share of texts that are equal except for white space."""
    pairs = zip(predictions, references, strict=True)
    return {"exact": Mean(np.array([text.split() == true.split() for text, true in pairs], float))}


def group_accuracy(predictions: Each, references: Each) -> SampledScores:
    """The mean over groups of the share of right pairs in each."""
    return {"accuracy": Mean(np.array(predictions, float), groups=references)}
