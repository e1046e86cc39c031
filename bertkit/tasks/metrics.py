"""Score predictions with the official metrics; what each is given, and what it gives.

| metric | predictions and references | keys of the scores |
|---|---|---|
| accuracy, f1 (of label 1), f1_macro, f1_micro, matthews_correlation | label numbers; accuracy also rows of tags | the metric's name |
| accuracy (of whole rows), f1_macro, f1_micro | several labels at once: an array of 0 and 1, a row each, a column a label | the metric's name |
| pearson, spearmanr | numbers | the metric's name |
| seqeval | rows of tags, one for each word | overall_precision, overall_recall, overall_f1, overall_accuracy |
| seqeval_strict (well-formed IOB2 only) | rows of tags | strict_precision, strict_recall, strict_f1 |
| bleu, chrf | texts | the metric's name |
| rouge | texts | rouge1, rouge2, rougeL |
| exact_match_text | texts | exact |
| squad | id -> answer, id -> accepted answers | exact_match, f1, total |
| squad_v2 | id -> answer, id -> accepted answers, and id -> probability of no answer | exact, f1, total, HasAns_* and NoAns_* of the same, best_exact, best_exact_thresh, best_f1, best_f1_thresh |

SQuAD's, bleu and chrf are in per cent, all others shares, as their official programs give them. Scores are of predictions,
which are small; no metric needs logits. `overlap` says more of those of texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from bertkit.errors import InputError
from bertkit.tasks import overlap

T = TypeVar("T")

_SQUAD_V2 = ("exact", "f1", "total")
METRICS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("accuracy", "f1", "f1_macro", "f1_micro", "matthews_correlation")},
    **{name: (name,) for name in ("pearson", "spearmanr")},
    "seqeval": ("overall_precision", "overall_recall", "overall_f1", "overall_accuracy"),
    "seqeval_strict": ("strict_precision", "strict_recall", "strict_f1"),
    "squad": ("exact_match", "f1", "total"),
    "squad_v2": (
        *(prefix + key for prefix in ("", "HasAns_", "NoAns_") for key in _SQUAD_V2),
        *("best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"),
    ),
    **overlap.KEYS,
}

MULTI_LABEL = ("accuracy", "f1_macro", "f1_micro")  # that measure several labels at once


def keys_of(names: Iterable[str]) -> list[str]:
    """Give the keys of the scores of some metrics."""
    return [key for name in names for key in METRICS[name]]


def signatures(names: Iterable[str]) -> dict[str, str]:
    """Give what the scores of some metrics have to be reported with, by the metric; nothing of those that have none."""
    given = {name: overlap.signature(name) for name in names}
    return {name: text for name, text in given.items() if text is not None}


def score(
    names: Iterable[str], predictions: Any, references: Any, no_answer_probs: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Compute metrics with the `evaluate` classes of `official.py`, those of texts with `overlap.py`.

    Args:
        names: some of `METRICS`.
        predictions: as the table above says, in the order of the references (mappings: in any order).
        references: likewise.
        no_answer_probs: squad_v2: question -> probability that it has no answer; None leaves the best_* out.

    Returns:
        Plain Python numbers by the keys of `METRICS`, in the order of the names.

    Raises:
        InputError: an unknown metric, nothing to score, not as many predictions as references, labels that f1 is not
            for, squad_v2 misses the prediction of a question, or the package of a metric is not installed.
    """
    names = list(names)
    for name in names:
        if name not in METRICS:
            raise InputError(f"metric {name!r}: expected one of {', '.join(METRICS)}")
    if not len(references):
        raise InputError(f"metrics {', '.join(names)}: no references to score against; check the split's labels")
    scores: dict[str, float] = {}
    for name in names:
        if name in overlap.KEYS:
            _check_number(name, predictions, references)
            scores.update(overlap.score_texts(name, predictions, references))
            continue
        from bertkit.tasks.official import CLASSES

        metric, options, keys = CLASSES[name]
        rows = _rows(name, predictions, references, no_answer_probs)
        config_name = "multilabel" if isinstance(references, np.ndarray) else None
        result = metric(config_name=config_name).compute(predictions=rows[0], references=rows[1], **options)
        scores.update(result if keys is None else {key: result[old] for old, key in keys.items()})
    return scores


def _rows(name: str, predictions: Any, references: Any, no_answer_probs: Mapping[str, float] | None) -> Any:
    """Give predictions and references in the rows that the metric's class takes."""
    if name in ("squad", "squad_v2"):
        missing = [key for key in references if key not in predictions]
        if missing and name == "squad_v2":
            raise InputError(
                f"squad_v2: {len(missing)} of {len(references)} questions without a prediction, the first {missing[0]!r}; "
                'predict "" for no answer'
            )
        answers = [{"id": key, "prediction_text": predictions.get(key)} for key in references]
        if name == "squad_v2":
            for answer in answers:
                key = answer["id"]
                answer["no_answer_probability"] = None if no_answer_probs is None else no_answer_probs[key]
        return answers, [{"id": key, "answers": {"text": list(texts)}} for key, texts in references.items()]
    _check_number(name, predictions, references)
    if isinstance(references, np.ndarray):
        return predictions.astype(int).tolist(), references.astype(int).tolist()
    if name.startswith("seqeval"):
        _check_rows(name, predictions, references)
        return [list(row) for row in predictions], [list(row) for row in references]
    if name == "accuracy" and not isinstance(references[0], int):  # rows of tags, numbered
        _check_rows(name, predictions, references)
        flat = [[tag for row in rows for tag in row] for rows in (predictions, references)]
        numbers = {tag: number for number, tag in enumerate(sorted({*flat[0], *flat[1]}))}
        return [[numbers[tag] for tag in tags] for tags in flat]
    return list(predictions), list(references)


def _check_number(name: str, predictions: Any, references: Any) -> None:
    if len(predictions) != len(references):
        raise InputError(f"metric {name}: {len(predictions)} predictions but {len(references)} references")


def _check_rows(name: str, predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> None:
    for number, (predicted, given) in enumerate(zip(predictions, references, strict=True)):
        if len(predicted) != len(given):
            raise InputError(f"metric {name}: row {number} has {len(predicted)} tags but {len(given)} references")
