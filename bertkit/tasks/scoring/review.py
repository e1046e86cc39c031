"""The review of predictions for the report: scores by label, confusions, calibration, mistakes.

A task converts its predictions to `Case`s and calls the functions that fit. A review is a mapping with some of:

    by_label      precision, recall, f1 and support of each label
    by_paradigm   accuracy and num_pairs of each paradigm of minimal pairs
    confusion     labels, and counts: a row for each true label, a column for each predicted label
    calibration   error, and bins of equal width: from, to, confidence, accuracy, count
    scatter       for a regression: [true, predicted, id] of each example
    groups        tables of scores for groups of examples: title, columns, rows
    mistakes      a table of wrong predictions, sorted by confidence: title, columns, rows
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.tasks.reading.conll import chunks_of, parts_of

NUM_MISTAKES = 20
NUM_BINS = 15  # bins of confidence, as in Guo et al. 2017
MAX_LABELS = 16  # in a confusion matrix; more would be hard to read
OTHERS = "(others)"
ANSWERABLE = ("answered", "unanswerable")
LENGTHS, BORDERS = ("up to 7 words", "8 to 11", "12 to 15", "16 and more"), (8, 12, 16)  # groups of questions by length

Scores = dict[str, dict[str, float]]
Review = dict[str, Any]  # what eval.json and the report have of it


@dataclass(frozen=True)
class Case:
    """A prediction."""

    example: str  # the id of its example
    texts: Mapping[str, str]  # the texts of the example, each with a name for the report
    gold: Any  # the true label
    predicted: Any  # the predicted label
    confidence: float  # the probability of the predicted label


def eval_json_parts(review: Review) -> Review:
    """Return what eval.json contains of a review: `per_label`, `by_length`, `by_paradigm` and `calibration_error`."""
    names = {"by_label": "per_label", "by_length": "by_length", "by_paradigm": "by_paradigm"}
    parts = {names[key]: value for key, value in review.items() if key in names}
    return parts | ({"calibration_error": review["calibration"]["error"]} if "calibration" in review else {})


def review_of_labels(cases: Sequence[Case], labels: Sequence[str]) -> Review:
    """Review predictions with one label for each example."""
    pairs = Counter((case.gold, case.predicted) for case in cases)
    return {
        "by_label": scores_by_label(pairs, labels),
        "confusion": confusion(pairs, labels),
        "calibration": _calibration_of(cases),
        "mistakes": mistakes(cases),
    }


def review_of_label_sets(cases: Sequence[Case], labels: Sequence[str]) -> Review:
    """Review multi-label predictions; each case is one label of one example, `texts["label"]`, true or false."""
    pairs = Counter((c.texts["label"] * c.gold, c.texts["label"] * c.predicted) for c in cases)  # "" for false
    named = {True: "yes", False: "no"}
    shown = [Case(c.example, c.texts, named[c.gold], named[c.predicted], c.confidence) for c in cases]
    by_label = scores_by_label(pairs, labels)
    return {"by_label": by_label, "calibration": _calibration_of(cases), "mistakes": mistakes(shown)}


def _calibration_of(cases: Iterable[Case]) -> Review:
    return calibration((case.confidence, case.gold == case.predicted) for case in cases)


def review_of_numbers(cases: Sequence[Case]) -> Review:
    """Review a regression: predicted against true numbers, and the largest errors."""
    worst = sorted(cases, key=lambda case: -abs(case.gold - case.predicted))[:NUM_MISTAKES]
    columns = ["id", *_names(cases), "true", "predicted", "error"]
    rows = [
        [c.example, *c.texts.values(), _plain(c.gold), _plain(c.predicted), _plain(c.predicted - c.gold, "+")]
        for c in worst
    ]
    errors = np.array([case.predicted - case.gold for case in cases])
    return {
        "scatter": [[case.gold, case.predicted, case.example] for case in cases],
        "mean_absolute_error": float(np.abs(errors).mean()),
        "mistakes": {"title": f"The {len(rows)} largest errors", "columns": columns, "rows": rows},
    }


def _plain(number: float, sign: str = "") -> str:
    """Format a number, such as 4.5 or 1,410, with all digits before the point."""
    return f"{number:{sign},.0f}" if abs(number) >= 1000 else f"{number:{sign}.4g}"


@dataclass(frozen=True)
class TaggedSentence:
    """The tags of a sentence, true and predicted."""

    id: str
    words: Sequence[str]
    gold: Sequence[str]
    predicted: Sequence[str]
    scores: Sequence[float]  # the probabilities of the predicted tags

    def surest_mistake(self) -> Case:
        """Return the wrong tag with the highest probability, the first of several."""
        wrong = [place for place, tag in enumerate(self.predicted) if tag != self.gold[place]]
        place = max(wrong, key=lambda place: self.scores[place])
        about = {"word": self.words[place], "around": _around(self.words, place)}
        return Case(self.id, about, self.gold[place], self.predicted[place], self.scores[place])


def review_of_tags(sentences: Sequence[TaggedSentence]) -> Review:
    """Review tags: scores by type of entity, as in the CoNLL evaluation, or by tag if tags mark no chunks; confusions by word."""
    tags = itertools.chain.from_iterable([*one.gold, *one.predicted] for one in sentences)
    marks_chunks = all(map(parts_of, tags))
    pairs, confidences = Counter[tuple[str, str]](), []
    for one in sentences:
        for true, tag, score in zip(one.gold, one.predicted, one.scores, strict=True):
            pairs[_type(true, marks_chunks), _type(tag, marks_chunks)] += 1
            confidences.append((score, true == tag))
    # one mistake per sentence, because the others often follow from it
    mistaken = [one.surest_mistake() for one in sentences if [*one.gold] != [*one.predicted]]
    kinds = {*itertools.chain.from_iterable(pairs)}
    labels = sorted({*kinds, *("O",) * marks_chunks}, key=lambda kind: (kind == "O", kind))
    return {
        "by_label": scores_by_entity(sentences) if marks_chunks else scores_by_label(pairs, labels),
        "confusion": confusion(pairs, labels),
        "calibration": calibration(confidences),
        "mistakes": mistakes(mistaken, ", one per sentence"),
    }


def scores_by_entity(sentences: Iterable[TaggedSentence]) -> Scores:
    """Score the entities of each type; an entity is right if its type and both borders are right."""
    right, predicted, true = Counter[str](), Counter[str](), Counter[str]()
    for one in sentences:
        gold, found = {*chunks_of(one.gold)}, {*chunks_of(one.predicted)}
        for counts, chunks in ((right, gold & found), (predicted, found), (true, gold)):
            counts.update(kind for kind, _, _ in chunks)
    return {kind: _scores(right[kind], predicted[kind], true[kind]) for kind in sorted({*predicted, *true})}


def review_of_answers(cases: Sequence[Case], scores: Sequence[tuple[float, float]]) -> Review:
    """Review answers to questions: scores by answerability and by length, calibration of exact matches, the worst mistakes.

    In a case, `texts` has the `question`, and `gold` is a tuple of accepted answers, empty if the question has no answer.
    `scores` holds exact match and F1 of each case, from 0 to 1.
    """

    def grouped(title: str, names: Sequence[str], order: Sequence[str]) -> Review:
        rows = []
        for name in order:
            own = [pair for group, pair in zip(names, scores, strict=True) if group == name]
            if own:
                means = [f"{100 * sum(values) / len(own):.1f}" for values in zip(*own, strict=True)]
                rows.append([name, *means, f"{len(own):,}"])
        return {"title": title, "columns": ["", "exact match, %", "F1, %", "questions"], "rows": rows}

    scored = [(case, *pair) for case, pair in zip(cases, scores, strict=True)]
    wrong = [(case, f1) for case, exact, f1 in scored if exact < 1]
    rows = []
    for case, f1 in sorted(wrong, key=lambda pair: -(1 - pair[1]) * pair[0].confidence)[:NUM_MISTAKES]:
        answers = " | ".join(dict.fromkeys(case.gold)) or "(none)", case.predicted or "(none)"
        rows.append([case.example, case.texts["question"], *answers, f"{case.confidence:.3f}", f"{100 * f1:.0f}"])
    columns = ["id", "question", "accepted answers", "predicted", "confidence", "F1, %"]
    return {
        "groups": [
            grouped("By answerability", [ANSWERABLE[not case.gold] for case in cases], ANSWERABLE),
            grouped("By length of the question", [_length(case.texts["question"]) for case in cases], LENGTHS),
        ],
        "calibration": calibration((case.confidence, exact == 1) for case, exact, _ in scored),
        "mistakes": {"title": f"The {len(rows)} worst mistakes", "columns": columns, "rows": rows},
    }


def scores_by_label(pairs: Mapping[tuple[str, str], int], labels: Sequence[str]) -> Scores:
    """Compute the scores of each label from counts of (true, predicted)."""
    predicted, true = Counter[str](), Counter[str]()
    for (gold, label), count in pairs.items():
        predicted[label] += count
        true[gold] += count
    return {label: _scores(pairs.get((label, label), 0), predicted[label], true[label]) for label in labels}


def _scores(num_right: int, num_predicted: int, num_true: int) -> dict[str, float]:
    return {
        "precision": num_right / max(1, num_predicted),
        "recall": num_right / max(1, num_true),
        "f1": 2 * num_right / max(1, num_predicted + num_true),
        "support": num_true,
    }


def confusion(pairs: Mapping[tuple[str, str], int], labels: Sequence[str]) -> Review:
    """Arrange counts of (true, predicted) as a matrix; beyond `MAX_LABELS` rare labels share one row and one column."""
    frequency = Counter[str]()
    for (gold, predicted), count in pairs.items():
        frequency[gold] += count
        frequency[predicted] += count
    kept = set(labels)
    if len(labels) > MAX_LABELS:
        kept = {label for label, _ in frequency.most_common(MAX_LABELS - 1)}
    shown = [label for label in labels if label in kept] + ([OTHERS] if len(kept) < len(labels) else [])
    place = {label: shown.index(label if label in kept else OTHERS) for label in labels}
    counts = np.zeros((len(shown), len(shown)), np.int64)
    for (gold, predicted), count in pairs.items():
        counts[place[gold], place[predicted]] += count
    return {"labels": shown, "counts": counts.tolist()}


def calibration(predictions: Iterable[tuple[float, bool]]) -> Review:
    """Compare confidence with accuracy; each prediction is (confidence, whether it is right).

    The expected calibration error is the sum over bins of (share of predictions in the bin) * |accuracy - mean confidence|.

    Source: Guo et al. 2017, equation 3.
    """
    confidence, is_right = (np.array(column, np.float64) for column in zip(*predictions, strict=True))
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


def mistakes(cases: Sequence[Case], which: str = "") -> Review:
    """List the wrong predictions with the highest confidence."""
    wrong = sorted((c for c in cases if c.gold != c.predicted), key=lambda c: -c.confidence)[:NUM_MISTAKES]
    rows = [[c.example, *c.texts.values(), str(c.gold), str(c.predicted), f"{c.confidence:.3f}"] for c in wrong]
    return {
        "title": f"The {len(rows)} most confident mistakes{which}",
        "columns": ["id", *_names(cases), "true", "predicted", "confidence"],
        "rows": rows,
    }


def _names(cases: Sequence[Case]) -> list[str]:
    return list(cases[0].texts) if cases else []


def _type(tag: str, marks_chunks: bool) -> str:
    parts = parts_of(tag) if marks_chunks else None
    return tag if parts is None else parts.type or "O"


def _around(words: Sequence[str], place: int, num_words: int = 8) -> str:
    """Return a word, in brackets, with the words around it."""
    before, after = words[max(0, place - num_words) : place], words[place + 1 : place + 1 + num_words]
    ends = ["…"] if place > num_words else [], ["…"] if place + 1 + num_words < len(words) else []
    return " ".join([*ends[0], *before, f"[{words[place]}]", *after, *ends[1]])


def _length(question: str) -> str:
    """Return the group in `LENGTHS` of a question."""
    return LENGTHS[sum(len(question.split()) >= border for border in BORDERS)]
