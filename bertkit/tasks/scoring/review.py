"""What is worth knowing of predictions beside their scores: scores by label, calibration, mistakes.

A shape gives its predictions as cases, and picks from here; the result is plain values, for eval.json and for the report:

    by_label      label -> precision, recall, f1, support
    confusion     labels, and counts: a row a true label, a column a predicted one
    calibration   error, and bins of equal width: from, to, confidence, accuracy, count
    scatter       of numbers: [true, predicted, id] of each
    groups        tables of scores by a trait of the examples: title, columns, rows
    mistakes      title, columns, rows: the most confident first
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.tasks.reading.conll import chunks_of, parts_of

NUM_MISTAKES = 20
NUM_BINS = 10  # of confidence; Guo et al. 2017 use 15, for test sets of 5,000 and more
MAX_LABELS = 16  # of a confusion matrix that a reader can take in
OTHERS = "(others)"
ANSWERABLE = ("answered", "unanswerable")
LENGTHS, BORDERS = ("up to 7 words", "8 to 11", "12 to 15", "16 and more"), (8, 12, 16)  # of questions

Scores = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Case:
    """A single prediction."""

    example: str  # the id of its example
    about: Mapping[str, str]  # what the model read, by name
    gold: Any  # what is true
    said: Any  # what was predicted
    confidence: float  # the probability that the model gives to what it said


def measured_beside(review: Mapping[str, Any]) -> dict[str, Any]:
    """Give what stands beside the scores in eval.json, nested: `per_label`, `by_length` and `calibration_error`."""
    found: dict[str, Any] = {}
    if "by_label" in review:
        found["per_label"] = review["by_label"]
    if "by_length" in review:
        found["by_length"] = review["by_length"]
    if "calibration" in review:
        found["calibration_error"] = review["calibration"]["error"]
    return found


def review_of_labels(cases: Sequence[Case], labels: Sequence[str]) -> dict[str, Any]:
    """Review predictions of one label each."""
    pairs = Counter((case.gold, case.said) for case in cases)
    return {
        "by_label": scores_by_label(pairs, labels),
        "confusion": confusion(pairs, labels),
        "calibration": calibration((case.confidence, case.gold == case.said) for case in cases),
        "mistakes": mistakes(cases),
    }


def review_of_label_sets(cases: Sequence[Case], labels: Sequence[str]) -> dict[str, Any]:
    """Review predictions of several labels at once: a case for each label, which holds or not; `about` names it as `label`."""
    by_label = {}
    for label in labels:
        own = Counter((case.gold, case.said) for case in cases if case.about["label"] == label)
        by_label[label] = _scores(
            own[True, True], own[True, True] + own[False, True], own[True, True] + own[True, False]
        )
    named = {True: "holds", False: "does not"}
    shown = [Case(c.example, c.about, named[c.gold], named[c.said], c.confidence) for c in cases]
    sure = ((case.confidence, case.gold == case.said) for case in cases)
    return {"by_label": by_label, "calibration": calibration(sure), "mistakes": mistakes(shown)}


def review_of_numbers(cases: Sequence[Case]) -> dict[str, Any]:
    """Review a regression: true and predicted numbers, and where they are farthest apart."""
    worst = sorted(cases, key=lambda case: -abs(case.gold - case.said))[:NUM_MISTAKES]
    columns = ["id", *_names(cases), "true", "predicted", "error"]
    rows = [
        [case.example, *case.about.values(), f"{case.gold:.3g}", f"{case.said:.3g}", f"{case.said - case.gold:+.3g}"]
        for case in worst
    ]
    errors = np.array([case.said - case.gold for case in cases])
    return {
        "scatter": [[case.gold, case.said, case.example] for case in cases],
        "mean_absolute_error": float(np.abs(errors).mean()),
        "mistakes": {"title": f"The {len(rows)} largest errors", "columns": columns, "rows": rows},
    }


def review_of_tags(
    sentences: Sequence[tuple[str, Sequence[str], Sequence[str], Sequence[str], Sequence[float]]],
) -> dict[str, Any]:
    """Review tags: scores by entity as the CoNLL evaluation counts them, or by tag; types mistaken for others, by word.

    Args:
        sentences: of each the id, the words, the true and the predicted tags, and the probability of each of these.
    """
    marks_chunks = all(parts_of(tag) for _, _, gold, said, _ in sentences for tag in (*gold, *said))
    pairs, surest, sure = Counter[tuple[str, str]](), [], []
    for name, words, gold, said, scores in sentences:
        wrong = []
        for place, (true, tag, score) in enumerate(zip(gold, said, scores, strict=True)):
            pairs[_type(true, marks_chunks), _type(tag, marks_chunks)] += 1
            sure.append((score, true == tag))
            if true != tag:
                wrong.append((score, place))
        if wrong:  # one of a sentence: the others often follow from it
            score, place = max(wrong, key=lambda each: (each[0], -each[1]))
            surest.append(
                Case(name, {"word": words[place], "around": _around(words, place)}, gold[place], said[place], score)
            )
    types = sorted({each for pair in pairs for each in pair} - {"O"})
    labels = [*types, "O"] if marks_chunks else types
    by_label = scores_by_entity(sentences) if marks_chunks else scores_by_label(pairs, labels)
    found = {"by_label": by_label, "confusion": confusion(pairs, labels), "calibration": calibration(sure)}
    return {**found, "mistakes": mistakes(surest, ", one of a sentence")}


def scores_by_entity(sentences: Iterable[tuple[Any, Any, Sequence[str], Sequence[str], Any]]) -> Scores:
    """Count whole entities of each type, right in type and borders."""
    right, said, true = Counter[str](), Counter[str](), Counter[str]()
    for _, _, gold_tags, said_tags, _ in sentences:
        gold_chunks, said_chunks = ({*chunks_of(tags)} for tags in (gold_tags, said_tags))
        for counts, found in ((right, gold_chunks & said_chunks), (said, said_chunks), (true, gold_chunks)):
            counts.update(kind for kind, _, _ in found)
    return {kind: _scores(right[kind], said[kind], true[kind]) for kind in sorted({*said, *true})}


def review_of_answers(cases: Sequence[Case], scores: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Review answers to questions: scores by answerability and length, calibration of exact matches, the worst mistakes.

    Args:
        cases: `about` has the `question`; `gold` is the tuple of accepted answers, none where there is no answer.
        scores: exact match and F1 of each, 0 to 1.
    """

    def grouped(title: str, names: Sequence[str], order: Sequence[str]) -> dict[str, Any]:
        rows = []
        for name in (each for each in order if each in names):
            own = [pair for each, pair in zip(names, scores, strict=True) if each == name]
            means = [f"{100 * sum(values) / len(own):.1f}" for values in zip(*own, strict=True)]
            rows.append([name, *means, f"{len(own):,}"])
        return {"title": title, "columns": ["", "exact match, %", "F1, %", "questions"], "rows": rows}

    order = sorted(range(len(cases)), key=lambda n: -(1 - scores[n][1]) * cases[n].confidence)
    worst = [n for n in order if scores[n][0] < 1][:NUM_MISTAKES]
    rows = [
        [
            cases[n].example,
            cases[n].about["question"],
            " | ".join(dict.fromkeys(cases[n].gold)) or "(none)",
            cases[n].said or "(none)",
            f"{cases[n].confidence:.3f}",
            f"{100 * scores[n][1]:.0f}",
        ]
        for n in worst
    ]
    columns = ["id", "question", "accepted answers", "predicted", "confidence", "F1, %"]
    return {
        "groups": [
            grouped("By answerability", [ANSWERABLE[not case.gold] for case in cases], ANSWERABLE),
            grouped("By length of the question", [_length(case.about["question"]) for case in cases], LENGTHS),
        ],
        "calibration": calibration((case.confidence, score[0] == 1) for case, score in zip(cases, scores, strict=True)),
        "mistakes": {"title": f"The {len(rows)} worst mistakes", "columns": columns, "rows": rows},
    }


def scores_by_label(pairs: Mapping[tuple[str, str], int], labels: Sequence[str]) -> Scores:
    """Score each label from the counts of (true, predicted)."""
    said, true = Counter[str](), Counter[str]()
    for (gold, label), count in pairs.items():
        said[label] += count
        true[gold] += count
    return {label: _scores(pairs.get((label, label), 0), said[label], true[label]) for label in labels}


def _scores(num_right: int, num_said: int, num_true: int) -> dict[str, float]:
    return {
        "precision": num_right / num_said if num_said else 0.0,
        "recall": num_right / num_true if num_true else 0.0,
        "f1": 2 * num_right / (num_said + num_true) if num_right else 0.0,
        "support": num_true,
    }


def confusion(pairs: Mapping[tuple[str, str], int], labels: Sequence[str]) -> dict[str, Any]:
    """Count (true, predicted) in a matrix; of many labels the rarest are put together."""
    frequency = Counter[str]()
    for (gold, said), count in pairs.items():
        frequency[gold] += count
        frequency[said] += count
    kept = set(labels)
    if len(labels) > MAX_LABELS:
        kept = {label for label, _ in frequency.most_common(MAX_LABELS - 1)}
    shown = [label for label in labels if label in kept] + ([OTHERS] if len(kept) < len(labels) else [])
    place = {label: shown.index(label if label in kept else OTHERS) for label in labels}
    counts = np.zeros((len(shown), len(shown)), np.int64)
    for (gold, said), count in pairs.items():
        counts[place[gold], place[said]] += count
    return {"labels": shown, "counts": counts.tolist()}


def calibration(sure: Iterable[tuple[float, bool]]) -> dict[str, Any]:
    """Compare confidence with accuracy: the expected calibration error, and what it is made of.

    ECE = sum over bins of (share of the predictions) * |accuracy - mean confidence|

    Args:
        sure: the confidence of each prediction, and whether it is right.

    Source: Guo et al. 2017, equation 3.
    """
    confidence, is_right = (np.array(column, np.float64) for column in zip(*sure, strict=True))
    which = np.minimum((confidence * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    bins, error = [], 0.0
    for number in range(NUM_BINS):
        own = which == number
        if own.any():
            mean, accuracy, count = float(confidence[own].mean()), float(is_right[own].mean()), int(own.sum())
            error += count / len(which) * abs(accuracy - mean)
            edges = {"from": number / NUM_BINS, "to": (number + 1) / NUM_BINS}
            bins.append({**edges, "confidence": mean, "accuracy": accuracy, "count": count})
    return {"error": error, "bins": bins}


def mistakes(cases: Sequence[Case], which: str = "") -> dict[str, Any]:
    """List the wrong predictions that the model is surest of."""
    wrong = sorted((case for case in cases if case.gold != case.said), key=lambda case: -case.confidence)[:NUM_MISTAKES]
    rows = [
        [case.example, *case.about.values(), str(case.gold), str(case.said), f"{case.confidence:.3f}"] for case in wrong
    ]
    return {
        "title": f"The {len(rows)} most confident mistakes{which}",
        "columns": ["id", *_names(cases), "true", "predicted", "confidence"],
        "rows": rows,
    }


def _names(cases: Sequence[Case]) -> list[str]:
    return list(cases[0].about) if cases else []


def _type(tag: str, marks_chunks: bool) -> str:
    parts = parts_of(tag) if marks_chunks else None
    return tag if parts is None else parts[1] or "O"


def _around(words: Sequence[str], place: int, num_words: int = 8) -> str:
    """Show a word, in brackets, among its neighbours."""
    before, after = words[max(0, place - num_words) : place], words[place + 1 : place + 1 + num_words]
    ends = ["…"] if place > num_words else [], ["…"] if place + 1 + num_words < len(words) else []
    return " ".join([*ends[0], *before, f"[{words[place]}]", *after, *ends[1]])


def _length(question: str) -> str:
    """Name the group of questions of about this length."""
    return LENGTHS[sum(len(question.split()) >= border for border in BORDERS)]
