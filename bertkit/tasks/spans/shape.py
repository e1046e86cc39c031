"""The shape of span tasks: their scores, and the rows and files of their predictions."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from bertkit.base.files import to_json
from bertkit.tasks.scoring import metrics, review
from bertkit.tasks.scoring.squad import best_of, exact, f1
from bertkit.tasks.spans.answers import HIGHEST_ODDS, SpanPrediction, answers_of
from bertkit.tasks.spans.examples import SpanExample, make_features, read, settings_of
from bertkit.tasks.task import ExtraFile, Shape, TaskMetrics, is_constant, json_lines
from bertkit.tasks.task_config import TaskConfig


def _accepted(example: SpanExample) -> list[str]:
    return [answer.text for answer in example.answers or ()]


def _measured(task: TaskConfig, _: Sequence[str] | None) -> TaskMetrics:
    if settings_of(task).is_always_answered:
        return TaskMetrics("answers to every question", ("squad", "squad_v2"))
    return TaskMetrics("answers, or none", ("squad_v2",))


def _score(
    task: TaskConfig, examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction], _: Sequence[str]
) -> dict[str, float]:
    """Score the answers, and search the thresholds for "no answer" that would have given the best scores.

    `best_*_thresh` is such a threshold as a probability, as in the official script. `best_*_null_score_diff_threshold` is the
    same threshold as a value for the setting `task.spans.null_score_diff_threshold`. The search takes the best answer to each
    question, also where "no answer" was predicted.
    """
    accepted = {example.id: _accepted(example) for example in examples}
    scores = metrics.score(task.metrics, {p.id: p.text for p in predictions}, accepted)
    if "squad_v2" not in task.metrics:
        return scores
    answers = {p.id: p.best_text for p in predictions}
    no_answer = {p.id: p.no_answer_probability for p in predictions}
    searched = metrics.score(["squad_v2"], answers, accepted, no_answer)
    best = {key: value for key, value in searched.items() if key.startswith("best_")}
    odds_of = {p.no_answer_probability: p.null_odds for p in sorted(predictions, key=lambda p: p.null_odds)}
    for name in ("exact", "f1"):
        # a threshold that is not the probability of any question predicts "" for all of them
        best[f"best_{name}_null_score_diff_threshold"] = odds_of.get(best[f"best_{name}_thresh"], -HIGHEST_ODDS)
    return scores | best


# the content of the files that the SQuAD scripts read, with the same fields as in run_squad.py
SQUAD_FILES: dict[str, Callable[[Sequence[SpanPrediction]], dict[str, Any]]] = {
    "predictions.json": lambda predictions: {p.id: p.text for p in predictions},
    "nbest_predictions.json": lambda predictions: {
        p.id: [
            {name: getattr(candidate, name) for name in ("text", "probability", "start_logit", "end_logit")}
            for candidate in p.n_best
        ]
        for p in predictions
    },
    "null_odds.json": lambda predictions: {p.id: p.null_odds for p in predictions},
}


def _beside(name: str) -> ExtraFile:
    def text(_: Sequence[SpanExample], predictions: Sequence[SpanPrediction]) -> str:
        return json.dumps(SQUAD_FILES[name](predictions), indent=2, ensure_ascii=False)[2:-2]  # without braces

    return ExtraFile(name, text, ("{\n", ",\n", "\n}\n"), "{}\n")


def _files(examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]) -> dict[str, str]:
    rows = [
        {"id": p.id, "text": p.text, "no_answer_probability": p.no_answer_probability, "reference": _accepted(example)}
        for example, p in zip(examples, predictions, strict=True)
    ]
    squad = {name: to_json(content(predictions)) for name, content in SQUAD_FILES.items()}
    return {"predictions.jsonl": json_lines(rows), **squad}


def _row(example: SpanExample, prediction: SpanPrediction) -> dict[str, Any]:
    chosen = next(candidate for candidate in prediction.n_best if candidate.text == prediction.text)
    return {
        "id": example.id,
        "text": prediction.text,
        "probability": chosen.probability,
        "start": chosen.start if prediction.text else None,
        "end": chosen.end if prediction.text else None,
        "no_answer_probability": prediction.no_answer_probability,
    }


def _review(
    _: TaskConfig, examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction], __: Sequence[str]
) -> dict[str, Any]:
    cases, scores = [], []
    for example, p in zip(examples, predictions, strict=True):
        accepted = tuple(_accepted(example))
        confidence = next((candidate.probability for candidate in p.n_best if candidate.text == p.text), 1.0)
        cases.append(review.Case(example.id, {"question": example.question}, accepted, p.text, confidence))
        scores.append((best_of(exact, accepted or ("",), p.text), best_of(f1, accepted or ("",), p.text)))
    return review.review_of_answers(cases, scores)


SHAPE = Shape(
    kind="spans",
    head="span",
    unit="questions",
    formats=("jsonl", "json", "csv", "tsv", "parquet"),
    text_columns=("question", "context"),
    needs_pair=True,
    has_token_logits=True,
    answers_questions=True,
    has_classes=False,
    read=read,
    content=lambda example: example.context,
    labels_of=lambda example: [None if example.answers is None else "answered" if example.answers else "unanswerable"],
    is_labelled=lambda example: example.answers is not None,
    features=make_features,
    predictions=lambda task, examples, features, logits, *_: answers_of(examples, features, logits, settings_of(task)),
    fitting_metrics=_measured,
    score=_score,
    is_degenerate=lambda _, examples, predictions: is_constant(
        [p.text for p in predictions], [example.answers for example in examples]
    ),
    eval_files=_files,
    row=_row,
    extra_files=tuple(map(_beside, SQUAD_FILES)),
    guess=lambda _, __, examples: [SpanPrediction(example.id, "", [], HIGHEST_ODDS, 1.0) for example in examples],
    predicted_labels=lambda prediction: ["answered" if prediction.text else "unanswerable"],
    review=_review,
)
