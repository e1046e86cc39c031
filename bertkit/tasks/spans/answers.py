"""The search for answers: start and end logits of windows -> an answer from the context, or none.

Every example gets an answer or "", whatever its question, its context and the logits are.

Axes: T tokens of a window.
Source: Devlin et al. 2019, sections 4.2 and 4.3; google-research/bert run_squad.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.tasks.task import Feature
from bertkit.tasks.task_config import SpansConfig

if TYPE_CHECKING:
    from bertkit.tasks.spans.shape import SpanExample

HIGHEST_ODDS = 1e9  # null odds where there is nothing but the null answer; JSON has no infinity
_TOO_LARGE = 1e30  # stands for infinite logits; logits that are not numbers are as bad as can be


@dataclass(frozen=True)
class SpanCandidate:
    """A possible answer."""

    text: str  # `context[start:end]`; "" for no answer
    probability: float  # among the candidates that are given
    start_logit: float  # of its first token
    end_logit: float  # of its last token
    start: int  # its first character in the context
    end: int  # the character after its last


@dataclass(frozen=True)
class SpanPrediction:
    """The answer to a question."""

    id: str  # of the question
    text: str  # the answer; "" for none
    n_best: list[SpanCandidate]  # the best candidates, the best first, none of them twice
    null_odds: float  # the score of no answer less that of the best span; `HIGHEST_ODDS` where there is no span
    no_answer_probability: float  # the softmax of these two scores

    @property
    def best_text(self) -> str:
        """The best answer that is one; "" where there is none."""
        return next((candidate.text for candidate in self.n_best if candidate.text), "")


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
    settings: SpansConfig,
) -> list[SpanPrediction]:
    """Answer every example.

    Of each window the `n_best` best starts and ends are paired, those are left out that do not lie in the context, end
    before they start, are too long, or start where another window has more context, and the spans of all windows are
    sorted by the sum of their logits. No answer scores the least sum of [CLS]'s over the windows.

    Logits are (T, 2) for each feature, start and end; what is not a number counts as very low. With `is_always_answered` ""
    is given only where no span is left.

    Source: google-research/bert run_squad.py `write_predictions`. Where no span is left it writes "empty", or ends with
    an AttributeError; here it is "". Its `get_final_text` puts an answer together from pieces; here it is a slice.
    """
    with_null = not settings.is_always_answered
    spans: list[list[_Span]] = [[] for _ in examples]
    nulls: dict[int, _Span] = {}
    for feature, scores in zip(features, logits, strict=True):
        finite = np.nan_to_num(scores.astype(np.float64), nan=-_TOO_LARGE, posinf=_TOO_LARGE, neginf=-_TOO_LARGE)
        spans[feature.example] += _spans_of(feature, finite, settings.n_best, settings.max_answer_length)
        start_logit, end_logit = finite[0].tolist()
        null = _Span(start_logit + end_logit, None, 0, 0, start_logit, end_logit)
        nulls[feature.example] = min(nulls.get(feature.example, null), null, key=lambda span: span.score)
    predictions = []
    for place, (example, found) in enumerate(zip(examples, spans, strict=True)):
        null = nulls[place]  # every example has a window
        candidates = [*found, null] if with_null else found or [null]
        distinct: dict[str, _Span] = {}
        for span in sorted(candidates, key=lambda span: -span.score):
            if len(distinct) == settings.n_best:
                break
            distinct.setdefault(example.context[slice(*_characters(span))], span)
        if with_null:
            distinct.setdefault("", null)
        best = next((text for text in distinct if text), "")
        odds = null.score - distinct[best].score if best else HIGHEST_ODDS
        answer = "" if with_null and odds > settings.null_score_diff_threshold else best
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


def _candidates(distinct: dict[str, _Span]) -> list[SpanCandidate]:
    scores = np.array([span.score for span in distinct.values()])
    weights = np.exp(scores - scores.max())
    return [
        SpanCandidate(text, float(weight), span.start_logit, span.end_logit, *_characters(span))
        for (text, span), weight in zip(distinct.items(), weights / weights.sum(), strict=True)
    ]


def _sigmoid(odds: float) -> float:
    return 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0


def answers_by_id(predictions: Sequence[SpanPrediction]) -> dict[str, str]:
    """Question -> answer."""
    return {prediction.id: prediction.text for prediction in predictions}


def _n_best(predictions: Sequence[SpanPrediction]) -> dict[str, list[dict[str, Any]]]:
    """Question -> candidates, with the fields of run_squad.py."""
    fields = ("text", "probability", "start_logit", "end_logit")
    return {each.id: [{name: getattr(found, name) for name in fields} for found in each.n_best] for each in predictions}


# what SQuAD's own programs read
SQUAD_FILES: dict[str, Callable[[Sequence[SpanPrediction]], dict[str, Any]]] = {
    "predictions.json": answers_by_id,
    "nbest_predictions.json": _n_best,
    "null_odds.json": lambda predictions: {each.id: each.null_odds for each in predictions},
}
