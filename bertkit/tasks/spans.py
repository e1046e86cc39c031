"""Spans: a question and a context -> windows -> start and end logits -> an answer from the context, or none.

    [CLS] who lives there ? [SEP] some pieces of the context [SEP]

Every example gets an answer or "", whatever its question, its context and the logits are.

Axes: T tokens of a window.
Source: Devlin et al. 2019, sections 4.2 and 4.3; google-research/bert run_squad.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.data.tokenizer import TextPieces, Tokenizer
from bertkit.data.words import split_words
from bertkit.errors import InputError
from bertkit.tasks.task import Answer, Feature, SpanExample

Alignment = Literal["offsets", "google"]
NO_ANSWER = (0, 0)  # start and end of a window without the answer: its [CLS]
HIGHEST_ODDS = 1e9  # null odds where there is nothing but the null answer; JSON has no infinity
_SPACES = " \t\r\n\u202f"  # what separates words in run_squad.py
_TOO_LARGE = 1e30  # stands for infinite logits; logits that are not numbers are as bad as can be


class Place(NamedTuple):
    """Where a token of the context stands: its characters (first, last excluded), and whether no window shows more around it."""

    start: int
    end: int
    is_max_context: bool


@dataclass(frozen=True)
class SpanCandidate:
    """A possible answer.

    Attributes:
        text: `context[start:end]`; "" for no answer. With alignment="google" what that alignment makes of it.
        probability: among the candidates that are given.
        start_logit: of its first token.
        end_logit: of its last token.
        start: its first character in the context.
        end: the character after its last.
    """

    text: str
    probability: float
    start_logit: float
    end_logit: float
    start: int
    end: int


@dataclass(frozen=True)
class SpanPrediction:
    """The answer to a question.

    Attributes:
        id: of the question.
        text: the answer; "" for none.
        n_best: the best candidates, the best first, none of them twice.
        null_odds: the score of no answer less that of the best span; `HIGHEST_ODDS` where there is no span.
        no_answer_probability: the softmax of these two scores.
    """

    id: str
    text: str
    n_best: list[SpanCandidate]
    null_odds: float
    no_answer_probability: float

    @property
    def best_text(self) -> str:
        """The best answer that is one; "" where there is none."""
        return next((candidate.text for candidate in self.n_best if candidate.text), "")


def make_features(
    examples: Sequence[SpanExample],
    tokenizer: Tokenizer,
    labels: Sequence[str],
    max_seq_length: int,
    *,
    window_step: int | None = None,
    window_overlap: int | None = None,
    max_query_length: int = 64,
) -> list[Feature]:
    """Put a question before every window of its context.

    The question is cut to its first `max_query_length` pieces; an empty context gives one window without any of it.

    The gold positions are those of the first accepted answer: by character offsets, the first and last piece that hold
    any of its characters; (0, 0) in a window that does not hold them all, and where there is no answer. (run_squad.py
    takes the words of the answer and narrows them to the pieces that spell it, which gives the same unless an answer
    begins or ends inside of a piece.)

    Args:
        examples: with answers, or without for features without labels.
        tokenizer: of questions and contexts.
        labels: (), because spans have none.
        max_seq_length: tokens of a window, question and special tokens among them.
        window_step: pieces from the beginning of a window to that of the next (run_squad.py's doc_stride).
        window_overlap: pieces that neighbouring windows share (Hugging Face's stride). Exactly one of the two is given.
        max_query_length: pieces of a question that are kept.

    Returns:
        The features of an example stand together; `where` has for each of the T tokens its `Place` in the context, None
        for special tokens and the question.

    Raises:
        InputError: both or neither of step and overlap, or no room for the context.
    """
    assert not labels, "spans have no labels"
    least_room = max_seq_length - max_query_length - 3
    if max_query_length < 0 or least_room < 1:
        raise InputError(
            f"max_query_length={max_query_length}: leaves no room for the context in max_seq_length={max_seq_length}; "
            f"set 0 to {max_seq_length - 4}"
        )
    if (window_step is None) == (window_overlap is None):
        raise InputError(
            f"window_step={window_step}, window_overlap={window_overlap}: expected one of the two; the step is from one "
            "window's beginning to the next's, the overlap what neighbours share"
        )
    if window_step is not None and window_step < 1:
        raise InputError(f"window_step={window_step}: expected 1 or more")
    if window_overlap is not None and not 0 <= window_overlap < least_room:
        raise InputError(
            f"window_overlap={window_overlap}: expected 0 to {least_room - 1}, less than the context's part of a window "
            f"(max_seq_length={max_seq_length} - max_query_length={max_query_length} - 3)"
        )
    facts = tokenizer.facts
    questions = tokenizer.encode_document([example.question for example in examples])
    contexts = list(dict.fromkeys(example.context for example in examples))
    pieces_of = dict(zip(contexts, tokenizer.encode_with_offsets(contexts), strict=True))
    features = []
    for place, (example, question) in enumerate(zip(examples, questions, strict=True)):
        head = [facts.cls, *question[:max_query_length], facts.sep]
        pieces = pieces_of[example.context]
        room = max_seq_length - len(head) - 1
        step = min(window_step, room) if window_step is not None else room - (window_overlap or 0)
        windows = _windows(len(pieces.ids), room, step)
        gold = None if not example.answers else _gold_pieces(pieces, example.answers[0])
        for (first, last), is_max_context in zip(windows, _max_contexts(windows, len(pieces.ids)), strict=True):
            label = None if example.answers is None else NO_ANSWER
            if gold is not None and first <= gold[0] and gold[1] < last:
                label = (gold[0] - first + len(head), gold[1] - first + len(head))
            places = [
                Place(*offsets, bool(is_max))
                for offsets, is_max in zip(pieces.offsets[first:last], is_max_context, strict=True)
            ]
            features.append(
                Feature(
                    example=place,
                    input_ids=[*head, *pieces.ids[first:last], facts.sep],
                    token_type_ids=[0] * len(head) + [1] * (last - first + 1),
                    label=label,
                    where=[*[None] * len(head), *places, None],
                    num_cut=max(0, len(question) - max_query_length),
                )
            )
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
    """Give the first and last piece that hold any character of an answer; None where no piece does."""
    end = answer.start + len(answer.text)
    touched = [number for number, (a, b) in enumerate(pieces.offsets) if a < end and answer.start < b]
    return (touched[0], touched[-1]) if touched else None


class _Span(NamedTuple):
    """A span among the candidates; positions are in its feature."""

    score: float
    feature: Feature | None  # None for no answer
    start: int
    end: int
    start_logit: float
    end_logit: float


def answers_of(
    examples: Sequence[SpanExample],
    features: Sequence[Feature],
    logits: Sequence[NDArray[np.floating]],
    *,
    with_null: bool,
    n_best: int = 20,
    max_answer_length: int = 30,
    null_score_diff_threshold: float = 0.0,
    alignment: Alignment = "offsets",
    tokenizer: Tokenizer | None = None,
) -> list[SpanPrediction]:
    """Answer every example.

    Of each window the `n_best` best starts and ends are paired, those are left out that do not lie in the context, end
    before they start, are too long, or start where another window has more context, and the spans of all windows are
    sorted by the sum of their logits. No answer scores the least sum of [CLS]'s over the windows.

    Args:
        examples: those that the features were made of.
        features: all of them, those of an example in their order.
        logits: (T, 2) for each feature, start and end. What is not a number counts as very low.
        with_null: whether "" is a possible answer (SQuAD 2.0). Without it "" is given where no span is left.
        n_best: starts and ends of a window, and candidates to give.
        max_answer_length: pieces.
        null_score_diff_threshold: "" is the answer where `null_odds` is greater.
        alignment: "offsets" for exact slices of the context; "google" for what run_squad.py makes of the pieces, with
            white space made single, and the whole words where its search fails.
        tokenizer: for alignment="google".

    Source: google-research/bert run_squad.py `write_predictions`. Where no span is left it writes "empty", or ends with
    an AttributeError; here it is "".
    """
    assert (alignment == "google") <= (tokenizer is not None), "Google's alignment needs the tokenizer"
    spans: list[list[_Span]] = [[] for _ in examples]
    nulls: dict[int, _Span] = {}
    for feature, scores in zip(features, logits, strict=True):
        finite = np.nan_to_num(scores.astype(np.float64), nan=-_TOO_LARGE, posinf=_TOO_LARGE, neginf=-_TOO_LARGE)
        spans[feature.example] += _spans_of(feature, finite, n_best, max_answer_length)
        start_logit, end_logit = finite[0].tolist()
        null = _Span(start_logit + end_logit, None, 0, 0, start_logit, end_logit)
        nulls[feature.example] = min(nulls.get(feature.example, null), null, key=lambda span: span.score)
    predictions = []
    for place, (example, found) in enumerate(zip(examples, spans, strict=True)):
        null = nulls[place]  # every example has a window
        candidates = [*found, null] if with_null else found or [null]
        distinct: dict[str, _Span] = {}
        for span in sorted(candidates, key=lambda span: -span.score):
            if len(distinct) == n_best:
                break
            text = _text(example.context, span, None if alignment == "offsets" else tokenizer)
            distinct.setdefault(text, span)
        if with_null:
            distinct.setdefault("", null)
        best = next((text for text in distinct if text), "")
        odds = null.score - distinct[best].score if best else HIGHEST_ODDS
        answer = "" if with_null and odds > null_score_diff_threshold else best
        n_best_list = _candidates(distinct)
        predictions.append(SpanPrediction(example.id, answer, n_best_list, odds, _sigmoid(odds)))
    return predictions


def _spans_of(feature: Feature, scores: NDArray[np.float64], n_best: int, max_answer_length: int) -> Iterator[_Span]:
    """Give the spans of a window that can be an answer, by the ranks of their starts, then of their ends."""
    starts, ends = (np.argsort(-column, kind="stable")[:n_best] for column in scores.T)
    in_context = np.array([place is not None for place in feature.where])
    may_start = np.array([place is not None and place.is_max_context for place in feature.where])
    lengths = ends[None, :] - starts[:, None] + 1
    allowed = may_start[starts][:, None] & in_context[ends][None, :] & (lengths >= 1) & (lengths <= max_answer_length)
    for row, column in np.argwhere(allowed):
        start, end = int(starts[row]), int(ends[column])
        start_logit, end_logit = float(scores[start, 0]), float(scores[end, 1])
        yield _Span(start_logit + end_logit, feature, start, end, start_logit, end_logit)


def _characters(span: _Span) -> tuple[int, int]:
    """Where a span begins and ends in the context; (0, 0) for no answer."""
    return (0, 0) if span.feature is None else (span.feature.where[span.start].start, span.feature.where[span.end].end)


def _text(context: str, span: _Span, tokenizer: Tokenizer | None) -> str:
    start, end = _characters(span)
    if tokenizer is None or span.feature is None:
        return context[start:end]
    while start > 0 and context[start - 1] not in _SPACES:
        start -= 1
    while end < len(context) and context[end] not in _SPACES:
        end += 1
    words = " ".join(word for word in re.split(f"[{_SPACES}]+", context[start:end]) if word)
    pieces = " ".join(tokenizer.vocab[number] for number in span.feature.input_ids[span.start : span.end + 1])
    return align_as_google(" ".join(pieces.replace(" ##", "").replace("##", "").split()), words, tokenizer.lowercase)


def align_as_google(pieces_text: str, words: str, lowercase: bool) -> str:
    """Find the characters of `words` that `pieces_text` stands for; all of `words` where that fails.

    It fails where the pieces are not found in the split words ([UNK]), and where splitting has changed the number of
    characters (accents that are written apart or dropped, control characters).

    Args:
        pieces_text: the pieces of an answer put together again: lower-cased, punctuation between spaces.
        words: the words of the text that the pieces are of.
        lowercase: whether the tokenizer lower-cases.

    Source: google-research/bert run_squad.py `get_final_text`.
    """
    split = " ".join(split_words(words, lowercase).split())
    found = split.find(pieces_text)
    places = [place for place, character in enumerate(words) if character != " "]
    split_places = [place for place, character in enumerate(split) if character != " "]
    if found < 0 or not pieces_text or len(places) != len(split_places):
        return words
    place_of = dict(zip(split_places, places, strict=True))
    return words[place_of[found] : place_of[found + len(pieces_text) - 1] + 1]


def _candidates(distinct: dict[str, _Span]) -> list[SpanCandidate]:
    scores = np.array([span.score for span in distinct.values()])
    weights = np.exp(scores - scores.max())
    return [
        SpanCandidate(text, float(weight), span.start_logit, span.end_logit, *_characters(span))
        for (text, span), weight in zip(distinct.items(), weights / weights.sum(), strict=True)
    ]


def _sigmoid(odds: float) -> float:
    return 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0


def predictions_json(predictions: Sequence[SpanPrediction]) -> dict[str, str]:
    """Give the content of `predictions.json`: question -> answer."""
    return {prediction.id: prediction.text for prediction in predictions}


def n_best_json(predictions: Sequence[SpanPrediction]) -> dict[str, list[dict[str, str | float]]]:
    """Give the content of `nbest_predictions.json`: question -> candidates with the fields of run_squad.py."""
    return {
        prediction.id: [
            {
                "text": candidate.text,
                "probability": candidate.probability,
                "start_logit": candidate.start_logit,
                "end_logit": candidate.end_logit,
            }
            for candidate in prediction.n_best
        ]
        for prediction in predictions
    }


def null_odds_json(predictions: Sequence[SpanPrediction]) -> dict[str, float]:
    """Give the content of `null_odds.json`: question -> the score of no answer less that of the best span."""
    return {prediction.id: prediction.null_odds for prediction in predictions}
