"""The search for the best answer in the start and end logits of all windows of a context.

Axes: T tokens of a window.
Source: Devlin et al. 2019, sections 4.2 and 4.3; google-research/bert run_squad.py.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.tasks.feature import Logits, SpanFeature
from bertkit.tasks.spans.examples import SpanExample
from bertkit.tasks.task_config import SpansConfig

HIGHEST_ODDS = 1e9  # `null_odds` if "no answer" is the only candidate; JSON has no infinity
_HUGE = 1e30  # replaces infinite logits; NaN becomes -_HUGE


@dataclass(frozen=True)
class SpanCandidate:
    """A possible answer."""

    text: str  # `context[start:end]`; "" for no answer
    probability: float  # softmax over the candidates
    start_logit: float  # the start logit of its first token
    end_logit: float  # the end logit of its last token
    start: int  # the index of its first character in the context
    end: int  # the index after its last character


@dataclass(frozen=True)
class SpanPrediction:
    """The answer to a question."""

    id: str  # the question's id
    text: str  # the answer; "" for no answer
    n_best: list[SpanCandidate]  # candidates with different texts, sorted from best to worst
    null_odds: float  # the score of "no answer" minus the score of the best span; `HIGHEST_ODDS` if there is no span
    no_answer_probability: float  # softmax over these two scores

    @property
    def chosen(self) -> SpanCandidate:
        """The candidate that is the answer."""
        return next(candidate for candidate in self.n_best if candidate.text == self.text)

    @property
    def best_text(self) -> str:
        """The text of the best candidate other than "no answer"; "" if there is none."""
        return next((candidate.text for candidate in self.n_best if candidate.text), "")


class _Span(NamedTuple):
    """A candidate, `context[start:end]`; start and end are 0 for "no answer"."""

    score: float
    start_logit: float
    end_logit: float
    start: int
    end: int


def answers_of(
    examples: Sequence[SpanExample],
    features: Sequence[SpanFeature],
    logits: Sequence[Logits],
    settings: SpansConfig,
) -> list[SpanPrediction]:
    """Predict the answer to each question; "" means no answer.

    In each window, the `n_best` best start tokens are combined with the `n_best` best end tokens. A span is dropped if it is
    outside the context, ends before it starts, is too long, or starts with a token that has more context in another window.
    The score of a span is start logit + end logit. The score of "no answer" is the lowest such sum at [CLS] of all windows.

    Logits are (T, 2) for each feature, start and end; NaN counts as very low. With `is_always_answered`, the answer is "" only
    if no span is left.

    Source: google-research/bert run_squad.py `write_predictions`. If no span is left, run_squad.py writes "empty" or fails with
    an AttributeError; here the answer is "". Its `get_final_text` joins pieces to a text; here the answer is a slice of the
    context.
    """
    spans: list[list[_Span]] = [[] for _ in examples]
    nulls: dict[int, _Span] = {}
    for feature, scores in zip(features, logits, strict=True):
        finite = np.nan_to_num(scores.astype(np.float64), nan=-_HUGE, posinf=_HUGE, neginf=-_HUGE)
        spans[feature.example] += _spans_of(feature, finite, settings.n_best, settings.max_answer_length)
        start_logit, end_logit = finite[0].tolist()
        null = _Span(start_logit + end_logit, start_logit, end_logit, 0, 0)
        nulls[feature.example] = min(nulls.get(feature.example, null), null, key=lambda span: span.score)
    return [
        _prediction(example, candidates, nulls[place], settings)  # each example has a window
        for place, (example, candidates) in enumerate(zip(examples, spans, strict=True))
    ]


def _prediction(example: SpanExample, spans: list[_Span], null: _Span, settings: SpansConfig) -> SpanPrediction:
    with_null = not settings.is_always_answered
    candidates = [*spans, null] if with_null else spans or [null]
    distinct: dict[str, _Span] = {}
    for span in sorted(candidates, key=lambda span: -span.score):
        if len(distinct) == settings.n_best:
            break
        distinct.setdefault(example.context[span.start : span.end], span)
    if with_null:
        distinct.setdefault("", null)
    best = next((text for text in distinct if text), "")
    odds = null.score - distinct[best].score if best else HIGHEST_ODDS
    answer = "" if with_null and odds > settings.null_score_diff_threshold else best
    scores = np.array([span.score for span in distinct.values()])
    weights = np.exp(scores - scores.max())
    n_best = [
        SpanCandidate(text, float(weight), *span[1:])
        for (text, span), weight in zip(distinct.items(), weights / weights.sum(), strict=True)
    ]
    no_answer_probability = 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0
    return SpanPrediction(example.id, answer, n_best, odds, no_answer_probability)


def _spans_of(
    feature: SpanFeature, scores: NDArray[np.float64], n_best: int, max_answer_length: int
) -> Iterator[_Span]:
    """Yield the possible answers of a window, sorted by the rank of their start, then by the rank of their end."""
    starts, ends = (np.argsort(-column, kind="stable")[:n_best] for column in scores.T)
    in_context = np.array([place is not None for place in feature.origins])
    may_start = np.array([place is not None and place.is_max_context for place in feature.origins])
    lengths = ends[None, :] - starts[:, None] + 1
    allowed = may_start[starts][:, None] & in_context[ends][None, :] & (lengths >= 1) & (lengths <= max_answer_length)
    for row, column in np.argwhere(allowed):
        start, end = starts[row], ends[column]
        start_logit, end_logit = float(scores[start, 0]), float(scores[end, 1])
        first, last = feature.origins[start], feature.origins[end]
        assert first is not None, "starts in the context"
        assert last is not None, "ends in the context"
        if first.start < last.end:  # else it is white space, which is a piece in some vocabularies
            yield _Span(start_logit + end_logit, start_logit, end_logit, first.start, last.end)
