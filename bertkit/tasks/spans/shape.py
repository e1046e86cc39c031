"""Spans: a question and a context -> windows -> an answer from the context, or none.

    [CLS] who lives there ? [SEP] some pieces of the context [SEP]

Axes: T tokens of a window.
Source: Devlin et al. 2019, sections 4.2 and 4.3; google-research/bert run_squad.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import InputError
from bertkit.base.files import to_json
from bertkit.data.corpus.tokenizer import TextPieces, Tokenizer
from bertkit.tasks.reading.source import Reading, given, text_of
from bertkit.tasks.scoring import metrics, review
from bertkit.tasks.scoring.metric_classes import exact, f1
from bertkit.tasks.spans.answers import HIGHEST_ODDS, SQUAD_FILES, SpanPrediction, answers_by_id, answers_of
from bertkit.tasks.task import Beside, Feature, Measured, Shape, json_lines, says_the_same
from bertkit.tasks.task_config import SpansConfig, TaskConfig

NO_ANSWER = (0, 0)  # start and end of a window without the answer: its [CLS]


@dataclass(frozen=True)
class Answer:
    """A part of a context: `context[start : start + len(text)] == text`."""

    text: str
    start: int


@dataclass(frozen=True)
class SpanExample:
    """A question about a context."""

    id: str  # of the question
    question: str  # as asked
    context: str  # where the answer is looked for; may be empty
    # the accepted ones; empty where there is none in the context; None where they are not known
    answers: tuple[Answer, ...] | None


def read(reading: Reading) -> Iterator[SpanExample]:
    """Read the rows of a table; of SQuAD's files, the questions.

    Raises:
        InputError: a column is missing; of a row, when it is taken.
    """
    task, is_input = reading.task, reading.is_input
    question = reading.find(task.columns.question, "question")
    context = reading.find(task.columns.context, "context")
    field = None if is_input else reading.table.find(task.columns.answers, "answers", False)
    ids = reading.ids(is_unique=True)  # answers go by them

    def example(row: Any, where: str, line: int) -> SpanExample:
        example_id = ids.take(given(row, ids.field), where, line)
        where = f"{where}: question '{example_id}'"
        asked, text = text_of(row, question, where), text_of(row, context, where)
        answers: tuple[Answer, ...] | None = None
        if not is_input and row.get("is_impossible") is True:
            answers = ()
        elif field is not None and row.get(field) is not None:
            answers = tuple(_answer(found, text, where) for found in _answers(row[field], where, field))
        if reading.is_labelled and answers is None:
            raise InputError(
                f"{where}: no answers; they are expected here (a test file has none); set task.columns.answers="
            )
        if answers == () and _settings(task).is_always_answered:
            raise InputError(
                f"{where}: empty answers, but task={task.name} has one for every question; try task=squad2"
            )
        reading.note_empty(where, asked, text)
        return SpanExample(example_id, asked, text, answers)

    return reading.each(example)


def _answers(value: Any, where: str, field: str) -> list[tuple[Any, Any]]:
    """Texts and starts: of SQuAD's list, of the hub's two lists, or of a text alone, whose start is not known."""
    if isinstance(value, str):
        return [(value, None)] if value else []
    if isinstance(value, dict):
        texts, starts = value.get("text"), value.get("answer_start")
        if isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts):
            return list(zip(texts, starts, strict=True))
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return [(item.get("text"), item.get("answer_start")) for item in value]
    raise InputError(f"{where}: field '{field}' holds no answers; expected [{{text, answer_start}}, ...]")


def _answer(found: tuple[Any, Any], context: str, where: str) -> Answer:
    text, start = found
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{where}: empty answer ({text!r}); correct it, or leave it out if there is none")
    if start is None:
        start = context.find(text)
        if start < 0:
            raise InputError(f"{where}: answer {text!r} is not in its context; correct it")
    if isinstance(start, bool) or not isinstance(start, int):
        raise InputError(f"{where}: answer_start {start!r} of answer {text!r}; expected a whole number of characters")
    if start < 0 or context[start : start + len(text)] != text:
        there = context[start : start + len(text)] if start >= 0 else ""
        raise InputError(
            f"{where}: answer {text!r} is not in its context at answer_start={start} (there is {there!r}); correct it"
        )
    return Answer(text, start)


class Place(NamedTuple):
    """Where a token of the context stands: its characters (first, last excluded), and whether no window shows more around it."""

    start: int
    end: int
    is_max_context: bool


def make_features(
    task: TaskConfig, examples: Sequence[SpanExample], tokenizer: Tokenizer, _: Sequence[str] = ()
) -> list[Feature]:
    """Put a question, cut to its first `max_query_length` pieces, before every window of its context.

    An empty context gives one window without any of it.

    Returns:
        The features of an example stand together; `where` has for each of the T tokens its `Place` in the context, None
        for special tokens and the question.

    Raises:
        InputError: no room for the context.
    """
    settings, max_seq_length = _settings(task), task.max_seq_length
    if max_seq_length - settings.max_query_length - 3 < 1:
        raise InputError(
            f"max_query_length={settings.max_query_length}: leaves no room for the context in "
            f"max_seq_length={max_seq_length}; set 0 to {max_seq_length - 4}"
        )
    facts = tokenizer.facts
    questions = tokenizer.encode_document([example.question for example in examples])
    contexts = list(dict.fromkeys(example.context for example in examples))
    pieces_of = dict(zip(contexts, tokenizer.encode_with_offsets(contexts), strict=True))
    features = []
    for place, (example, question) in enumerate(zip(examples, questions, strict=True)):
        head = [facts.cls, *question[: settings.max_query_length], facts.sep]
        pieces = pieces_of[example.context]
        room = max_seq_length - len(head) - 1
        windows = _windows(len(pieces.ids), room, min(settings.window_step, room))
        gold = None if not example.answers else _gold_pieces(pieces, example.answers[0])
        num_cut = max(0, len(question) - settings.max_query_length)
        for (first, last), is_max_context in zip(windows, _max_contexts(windows, len(pieces.ids)), strict=True):
            label = None if example.answers is None else NO_ANSWER
            if gold is not None and first <= gold[0] and gold[1] < last:
                label = (gold[0] - first + len(head), gold[1] - first + len(head))
            places = [
                Place(*offsets, bool(is_max))
                for offsets, is_max in zip(pieces.offsets[first:last], is_max_context, strict=True)
            ]
            where = [*[None] * len(head), *places, None]
            ids = [*head, *pieces.ids[first:last], facts.sep]
            types = [0] * len(head) + [1] * (last - first + 1)
            features.append(Feature(place, ids, types, label, where, num_cut))
    return features


def _windows(num_pieces: int, room: int, step: int) -> list[tuple[int, int]]:
    """Give the windows (first, last) over pieces, `last` excluded; the last window ends with the last piece."""
    count = 1 + max(0, math.ceil((num_pieces - room) / step))
    return [(number * step, min(number * step + room, num_pieces)) for number in range(count)]


def _max_contexts(windows: Sequence[tuple[int, int]], num_pieces: int) -> list[NDArray[np.bool_]]:
    """Say for the pieces of each window whether it is the one with most context for them, the first of several.

    Source: run_squad.py `_check_is_max_context`: the smaller of the pieces on the two sides + 0.01 * the window's length.
    """
    best = np.full(num_pieces, -1.0)
    owner = np.zeros(num_pieces, dtype=np.int64)
    for number, (first, last) in enumerate(windows):
        positions = np.arange(first, last)
        score = np.minimum(positions - first, last - 1 - positions) + 0.01 * (last - first)
        better = positions[score > best[first:last]]
        best[better], owner[better] = score[better - first], number
    return [owner[first:last] == number for number, (first, last) in enumerate(windows)]


def _gold_pieces(pieces: TextPieces, answer: Answer) -> tuple[int, int] | None:
    """Give the first and last piece that hold any character of an answer; None where no piece does.

    run_squad.py takes the words of the answer and narrows them to the pieces that spell it, which gives the same unless
    an answer begins or ends inside of a piece.
    """
    end = answer.start + len(answer.text)
    touched = [number for number, (a, b) in enumerate(pieces.offsets) if a < end and answer.start < b]
    return (touched[0], touched[-1]) if touched else None


def _settings(task: TaskConfig) -> SpansConfig:
    assert task.spans is not None, "refused by TaskConfig"
    return task.spans


def _measured(task: TaskConfig, _: Sequence[str] | None) -> Measured:
    if _settings(task).is_always_answered:
        return Measured("answers to every question", ("squad", "squad_v2"))
    return Measured("answers, or none", ("squad_v2",))


def _score(
    task: TaskConfig, examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction], _: Sequence[str]
) -> dict[str, float]:
    """Score the answers, and search the thresholds with each question's best one, whatever that of the predictions was.

    `best_*_thresh` are probabilities of no answer, as in the official script; `best_*_null_score_diff_threshold` are the
    same in the units of `task.spans.null_score_diff_threshold`, so that this setting gives the score.
    """
    accepted = {example.id: [answer.text for answer in example.answers or ()] for example in examples}
    scores = metrics.score(task.metrics, answers_by_id(predictions), accepted)
    if "squad_v2" not in task.metrics:
        return scores
    answers = {prediction.id: prediction.best_text for prediction in predictions}
    no_answer = {prediction.id: prediction.no_answer_probability for prediction in predictions}
    searched = metrics.score(["squad_v2"], answers, accepted, no_answer)
    best = {key: value for key, value in searched.items() if key.startswith("best_")}
    odds_of = {p.no_answer_probability: p.null_odds for p in sorted(predictions, key=lambda p: p.null_odds)}
    for name in ("exact", "f1"):
        # a probability that no question has stands for "" everywhere
        odds = odds_of.get(best[f"best_{name}_thresh"], -HIGHEST_ODDS)
        best[f"best_{name}_null_score_diff_threshold"] = odds
    return scores | best


def _beside(name: str) -> Beside:
    def text(_: Sequence[SpanExample], predictions: Sequence[SpanPrediction]) -> str:
        return json.dumps(SQUAD_FILES[name](predictions), indent=2, ensure_ascii=False)[2:-2]  # without its braces

    return Beside(name, text, ("{\n", ",\n", "\n}\n"), "{}\n")


def _files(examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]) -> dict[str, str]:
    rows = [
        {"id": p.id, "text": p.text, "no_answer_probability": p.no_answer_probability,
         "reference": [answer.text for answer in example.answers or ()]}
        for example, p in zip(examples, predictions, strict=True)
    ]  # fmt: skip
    squad = {name: to_json(content(predictions)) for name, content in SQUAD_FILES.items()}
    return {"predictions.jsonl": json_lines(rows), **squad}


def _row(example: SpanExample, prediction: SpanPrediction) -> dict[str, Any]:
    chosen = next(each for each in prediction.n_best if each.text == prediction.text)
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
    for example, said in zip(examples, predictions, strict=True):
        accepted = tuple(answer.text for answer in example.answers or ())
        sure = next((each.probability for each in said.n_best if each.text == said.text), 1.0)
        cases.append(review.Case(example.id, {"question": example.question}, accepted, said.text, sure))
        golds = accepted or ("",)
        scores.append((max(exact(gold, said.text) for gold in golds), max(f1(gold, said.text) for gold in golds)))
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
    predictions=lambda task, examples, features, logits, *_: answers_of(examples, features, logits, _settings(task)),
    measured=_measured,
    score=_score,
    is_degenerate=lambda _, examples, predictions: says_the_same(
        [p.text for p in predictions], [example.answers for example in examples]
    ),
    files=_files,
    row=_row,
    beside=tuple(map(_beside, SQUAD_FILES)),
    guess=lambda _, __, examples: [SpanPrediction(each.id, "", [], HIGHEST_ODDS, 1.0) for each in examples],
    said_of=lambda prediction: ["answered" if prediction.text else "unanswerable"],
    review=_review,
)
