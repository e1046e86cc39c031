"""The shapes of tasks side by side: which head each needs, its features, its predictions, their scores and files.

One `case` a shape in each function; the work is done in the shape's own file.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit import signs
from bertkit.data.tokenizer import Tokenizer
from bertkit.errors import InputError
from bertkit.files import to_json
from bertkit.tasks import choice, chunks, metrics, sequence, spans, tagging
from bertkit.tasks.config import TaskConfig
from bertkit.tasks.task import Feature

EXAMPLES_AT_ONCE = 4096  # that are tokenized together
SAME_NUMBERS = 0.01  # of the labels' deviation: numbers that deviate less are the same
HEADS = {"sequence": "sequence", "tagging": "token", "spans": "span", "choice": "choice"}


def make_features(
    task: TaskConfig, examples: Sequence[Any], tokenizer: Tokenizer, labels: Sequence[str]
) -> Iterator[Feature]:
    """Turn the examples of a task into features, with labels where they have them.

    A part of the examples at a time, since what tokenizing makes on its way is many times larger than the features.
    """
    for start in range(0, len(examples), EXAMPLES_AT_ONCE):
        part = examples[start : start + EXAMPLES_AT_ONCE]
        for feature in signs.beating(_features_of(task, part, tokenizer, labels, num_choices_of(task, examples))):
            yield feature if start == 0 else dataclasses.replace(feature, example=feature.example + start)


def _features_of(
    task: TaskConfig, examples: Sequence[Any], tokenizer: Tokenizer, labels: Sequence[str], num_choices: int
) -> list[Feature]:
    match task.kind:
        case "sequence":
            return sequence.make_features(examples, tokenizer, labels, task.max_seq_length)
        case "choice":
            return choice.make_features(examples, tokenizer, task.max_seq_length, num_choices)
        case "tagging":
            assert task.tagging is not None
            return tagging.make_features(
                examples,
                tokenizer,
                labels,
                task.max_seq_length,
                label_all_pieces=task.tagging.label_all_pieces,
                window_overlap=task.tagging.window_overlap,
            )
        case "spans":
            assert task.spans is not None
            return spans.make_features(
                examples,
                tokenizer,
                labels,
                task.max_seq_length,
                window_step=task.spans.window_step,
                window_overlap=task.spans.window_overlap,
                max_query_length=task.spans.max_query_length,
            )


def num_choices_of(task: TaskConfig, examples: Sequence[Any]) -> int:
    """Give the number of neighbouring features that belong together."""
    return len(examples[0].endings) if task.kind == "choice" else 1


def predict(
    task: TaskConfig,
    examples: Sequence[Any],
    features: Sequence[Feature],
    logits: Sequence[NDArray[np.floating]],
    labels: Sequence[str],
    tokenizer: Tokenizer,
) -> list[Any]:
    """Turn the logits of each feature into a prediction for each example; of tagging, its tags."""
    match task.kind:
        case "sequence":
            return sequence.predictions(examples, features, logits, labels, task.multi_label)
        case "choice":
            return choice.predictions(examples, features, logits)
        case "tagging":
            return tagging.tags_of(examples, features, logits, labels)
        case "spans":
            assert task.spans is not None
            return spans.answers_of(
                examples,
                features,
                logits,
                with_null=not task.spans.is_always_answered,
                n_best=task.spans.n_best,
                max_answer_length=task.spans.max_answer_length,
                null_score_diff_threshold=task.spans.null_score_diff_threshold,
                alignment=task.spans.alignment,
                tokenizer=tokenizer,
            )


def check_metrics(task: TaskConfig, labels: Sequence[str] | None = None) -> None:
    """Refuse metrics that there are not, and those that do not measure what the task predicts, before anything is trained.

    Args:
        task: its metrics and shape.
        labels: the names; None where only the data knows them, which leaves out what depends on them.

    Raises:
        InputError: one of the task's metrics is unknown or not for its shape and labels, or its main one is not among their
            scores.
    """
    unknown = [name for name in task.metrics if name not in metrics.METRICS]
    if unknown:
        raise InputError(f"task.metrics: unknown {', '.join(unknown)}; expected some of {', '.join(metrics.METRICS)}")
    predicted = _what_is_predicted(task, labels)
    fitting = metrics.FITTING[predicted]
    unfit = [name for name in task.metrics if name not in fitting]
    if unfit:
        what = f"task.metrics: {', '.join(unfit)} cannot measure {predicted}"
        if predicted == "tags that mark no chunks":
            strange = next(label for label in labels or () if chunks.parts_of(label) is None)
            raise InputError(
                f"{what}, such as '{strange}'; set task.metrics=[accuracy] task.best_metric=accuracy, or write tags as in B-PER"
            )
        main = next((name for name in fitting if task.best_metric in metrics.METRICS[name]), None)
        way = "" if main else f" task.best_metric={metrics.METRICS[fitting[0]][0]}"
        raise InputError(f"{what}; expected some of {', '.join(fitting)}: set task.metrics=[{main or fitting[0]}]{way}")
    keys = [key for name in task.metrics for key in metrics.METRICS[name]]
    if task.best_metric not in keys:
        raise InputError(f"task.best_metric={task.best_metric}: expected one of {', '.join(keys)}")


def _what_is_predicted(task: TaskConfig, labels: Sequence[str] | None) -> str:
    """Say it in the words of `metrics.FITTING`; where labels are not known yet, what most metrics measure."""
    match task.kind:
        case "tagging":
            marks_chunks = all(chunks.parts_of(label) for label in labels or ())
            return "tags that mark chunks" if marks_chunks else "tags that mark no chunks"
        case "spans":
            assert task.spans is not None
            return "answers to every question" if task.spans.is_always_answered else "answers, or none"
        case "choice":
            return "a choice of endings"
    if task.is_regression:
        return "numbers"
    if task.multi_label:
        return "several labels at once"
    return "one of several labels" if len(labels or ()) > 2 else "one of two labels"


def score(
    task: TaskConfig, examples: Sequence[Any], predictions: Sequence[Any], labels: Sequence[str]
) -> dict[str, float]:
    """Compute the task's metrics of predictions, in the order of the examples, against the examples' labels."""
    match task.kind:
        case "tagging":
            return metrics.score(task.metrics, predictions, [list(example.tags or ()) for example in examples])
        case "spans":
            accepted = {example.id: [answer.text for answer in example.answers] for example in examples}
            scores = metrics.score(task.metrics, spans.predictions_json(predictions), accepted)
            return scores | (_best_thresholds(predictions, accepted) if "squad_v2" in task.metrics else {})
    given = [prediction.label for prediction in predictions]
    references = [example.label for example in examples]
    if task.multi_label:
        rows, true_rows = (
            np.array([[name in each for name in labels] for each in all_]) for all_ in (given, references)
        )
        return metrics.score(task.metrics, rows, true_rows)
    if task.kind == "sequence" and labels:
        numbers = {name: number for number, name in enumerate(labels)}
        given, references = [numbers[name] for name in given], [numbers[name] for name in references]
    return metrics.score(task.metrics, given, references)


def _best_thresholds(predictions: Sequence[spans.SpanPrediction], accepted: dict[str, list[str]]) -> dict[str, float]:
    """Search the thresholds with each question's best answer, whatever the threshold of the predictions was.

    `best_*_thresh` are probabilities of no answer, as in the official script; `best_*_null_score_diff_threshold` are the
    same in the units of `task.spans.null_score_diff_threshold`, so that this setting gives the score.
    """
    answers = {prediction.id: prediction.best_text for prediction in predictions}
    no_answer = {prediction.id: prediction.no_answer_probability for prediction in predictions}
    scores = metrics.score(["squad_v2"], answers, accepted, no_answer)
    best = {key: value for key, value in scores.items() if key.startswith("best_")}
    odds_of = {p.no_answer_probability: p.null_odds for p in sorted(predictions, key=lambda p: p.null_odds)}
    for name in ("exact", "f1"):
        # a probability that no question has stands for "" everywhere
        odds = odds_of.get(best[f"best_{name}_thresh"], -spans.HIGHEST_ODDS)
        best[f"best_{name}_null_score_diff_threshold"] = odds
    return best


def is_labelled(task: TaskConfig, example: Any) -> bool:
    """Whether an example has what its prediction is scored against; a sentence without words has no tag to miss."""
    match task.kind:
        case "tagging":
            return example.tags is not None or not example.words
        case "spans":
            return example.answers is not None
    return example.label is not None


def is_degenerate(task: TaskConfig, examples: Sequence[Any], predictions: Sequence[Any]) -> bool:
    """Whether a model says the same of every example though their labels differ: a run that has learnt nothing.

    Numbers count as the same where they hardly deviate beside the labels, tags where those of all words are.
    """
    said: set[Any]
    match task.kind:
        case "tagging":
            said = {tag for tags in predictions for tag in tags}
            true = {tag for example in examples for tag in example.tags or ()}
        case "spans":
            said = {prediction.text for prediction in predictions}
            true = {example.answers for example in examples}
        case _:
            said, true = {p.label for p in predictions}, {example.label for example in examples}
    if task.is_regression:
        return bool(np.std([p.label for p in predictions]) < SAME_NUMBERS * np.std([e.label for e in examples]))
    return len(said) == 1 and len(true) > 1


def files_of(task: TaskConfig, examples: Sequence[Any], predictions: Sequence[Any]) -> dict[str, str]:
    """Give the files of a labelled split's predictions, by name.

    predictions.jsonl has a line for each example with its true label as `reference`; tags are in predictions.txt too, a
    word, its tag and the predicted one a line; answers also in SQuAD's own three files.
    """
    match task.kind:
        case "tagging":
            rows = [
                {"id": example.id, "words": example.words, "tags": tags, "reference": example.tags or ()}
                for example, tags in zip(examples, predictions, strict=True)
            ]
            sentences = (zip(row["words"], row["reference"], row["tags"], strict=True) for row in rows)
            conll = "\n".join("".join(f"{' '.join(line)}\n" for line in sentence) for sentence in sentences)
            return {"predictions.jsonl": _lines(rows), "predictions.txt": conll}
        case "spans":
            rows = [
                {"id": p.id, "text": p.text, "no_answer_probability": p.no_answer_probability,
                 "reference": [answer.text for answer in example.answers]}
                for example, p in zip(examples, predictions, strict=True)
            ]  # fmt: skip
            return {
                "predictions.jsonl": _lines(rows),
                "predictions.json": to_json(spans.predictions_json(predictions)),
                "nbest_predictions.json": to_json(spans.n_best_json(predictions)),
                "null_odds.json": to_json(spans.null_odds_json(predictions)),
            }
    pairs = zip(examples, predictions, strict=True)
    return {"predictions.jsonl": _lines([{**dataclasses.asdict(p), "reference": e.label} for e, p in pairs])}


def _lines(rows: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
