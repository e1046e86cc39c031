"""Search for the passages and answers to a question. The reader is a question answering model; it is optional.

A translation and a glossary add words to a question, whose names match in both languages; the reader reads the question alone.

The passages are ordered by one of these scores:

    search   BM25
    vectors  the cosine of the vectors of the question and the passage, from an encoder
    hybrid   the sum of both, each of them scaled over the candidates
    bert     the reader's score s: the start and end logits of its best answer, minus those of "no answer"
    both     p(i) ~ softmax(search * BM25)[i] * sigmoid(bert * s[i] + bias), normalized over the candidates i

The first factor of `both` is the probability that candidate i is the right passage, estimated from its words; the second is the
probability that it contains an answer, estimated by the reader. `fit` estimates the weights search, bert and bias by maximum
likelihood. Nogueira and Cho 2019 rank passages by BERT; Wang et al. 2019 (Multi-passage BERT) by BERT times BM25.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from bertkit.apps.retrieval.library import Hit, Library
from bertkit.apps.retrieval.passages import TextSpan, words_of
from bertkit.apps.retrieval.snippets import snippet_of
from bertkit.base.errors import InputError
from bertkit.base.files import check_regular
from bertkit.base.text_files import is_blank, read_lines
from bertkit.base.typed_settings import read_conf
from bertkit.settings.search import BothConfig

if TYPE_CHECKING:
    from bertkit.apps.retrieval.encoders import PassageEncoder
    from bertkit.inference.task_model import Predictor
    from bertkit.tasks.spans.answers import SpanPrediction

Row = dict[str, object]
_VECTORS = "vectors; add them with bertkit index model_dir="
_READER = "a reader; set model_dir= to a question answering model"
NEEDS = {"vectors": _VECTORS, "hybrid": _VECTORS, "bert": _READER, "both": _READER}  # what an order needs
MIN_SCORE = -1e4  # lower than any logit, but finite, as JSON and sigmoid require


@dataclass(frozen=True)
class Candidate:
    """A passage and the reader's best answer in it."""

    hit: Hit
    score_bert: float | None = None  # None without a reader
    place: TextSpan | None = None  # of the answer in the passage

    @property
    def answer(self) -> str | None:
        """The answer; None if there is none."""
        return None if self.place is None else self.hit.passage[self.place.start : self.place.end]


@dataclass(frozen=True)
class Matches:
    """The candidates for a question, and the words that a glossary and a translation added to it."""

    question: str
    more: Sequence[str]
    candidates: Sequence[Candidate]
    is_cut: bool  # whether a model has read only the beginning of the question


class SearchResult(TypedDict):
    """The passages for a question, and the answers in them."""

    answers: list[Row]  # the passages, the best first
    order: str
    has_odds: bool  # whether score_bert is the log odds of an answer
    is_cut: bool  # whether a model has read only the beginning of the question; BM25 uses all words
    seconds: float


class Searcher:
    """Finds passages for questions; not thread-safe."""

    def __init__(
        self,
        library: Library,
        predictor: Predictor | None,
        both: BothConfig | None = None,
        num_candidates: int | None = None,
        glossary: Mapping[str, Sequence[str]] = {},
        translator: Predictor | None = None,
        encoder: PassageEncoder | None = None,
    ) -> None:
        """Search a library; the reader `predictor` is a question answering model, `encoder` made the library's vectors.

        The weights of `both`, and the number of passages for the reader, are by default those in conf/search.yaml. The
        glossary has, for words as `words_of` writes them, the words to add to a question with them; the translator writes more.
        """
        if predictor is not None and predictor.task.head != "span":
            kind = predictor.task.kind
            raise InputError(
                f"model_dir: its task is of kind {kind}; give a model fine-tuned on squad1, squad2 or spans"
            )
        default = read_conf("search")
        self.library, self.predictor, self.both = library, predictor, both or BothConfig(**default["both"])
        spans = None if predictor is None else predictor.task.config.spans
        self.has_odds = spans is not None and not spans.is_always_answered
        self.num_candidates: int = num_candidates or default["candidates"]
        self.glossary, self.translator, self.encoder = glossary, translator, encoder
        self.num_cut = 0  # questions of which a model has read only the beginning

    @property
    def orders(self) -> list[str]:
        """The possible orders, the best one last."""
        by_vectors = [] if self.encoder is None else ["vectors", "hybrid"]
        by_reader = [] if self.predictor is None else ["bert", "both"]
        return ["search", *by_vectors, *by_reader]

    def check(self, order: str) -> None:
        """Raise InputError for an order that is not possible."""
        if order not in self.orders:
            raise InputError(f"order={order}: needs {NEEDS[order]}, or set order=search")

    def search(self, question: str, order: str | None, top_k: int, where: Sequence[str] = ()) -> SearchResult:
        """Find at most `top_k` passages and their answers.

        The order is one of `orders`; None for the last one. `where` has conditions on the documents, such as "lang=de".
        """
        started_at = time.monotonic()
        order = order or self.orders[-1]
        self.check(order)
        num_candidates = top_k if order == "search" else max(top_k, self.num_candidates)
        matches = self.matches(question, num_candidates, where, with_vectors=order != "search")
        answers = self.rows(matches, in_order(matches.candidates, order, self.both)[:top_k])
        seconds = time.monotonic() - started_at
        return {
            "answers": answers,
            "order": order,
            "has_odds": self.has_odds,
            "is_cut": matches.is_cut,
            "seconds": seconds,
        }

    def rows(self, matches: Matches, ordered: Sequence[tuple[Candidate, float]]) -> list[Row]:
        """Return candidates, with their scores in an order, as `bertkit search` and `POST /search` show them."""
        passages = [candidate.hit.passage for candidate, _ in ordered]
        marks = self.library.marks(passages, matches.question, matches.more)
        return [_row(*pair, some) for pair, some in zip(ordered, marks, strict=True)]

    def matches(
        self, question: str, num_candidates: int, where: Sequence[str] = (), *, with_vectors: bool = True
    ) -> Matches:
        """Return passages by BM25, the best first, then others by their vectors, each with the reader's best answer."""
        words = f" {' '.join(words_of(question))} "
        more = [other for key, others in self.glossary.items() if f" {key} " in words for other in others]
        are_cut, predictor = list[bool](), self.predictor
        if self.translator is not None:
            translations, is_cut = _predictions(self.translator, [question])
            more.append(translations[0].text)
            are_cut.append(is_cut)
        hits = self.library.find(question, num_candidates, more, where, add_rest=predictor is not None)
        if self.encoder is not None and with_vectors:
            self.encoder.check(self.library)  # the file may be another one than at the start
            vector, is_cut = self.encoder.of_question(question)
            hits = self.library.add_nearest(hits, vector, num_candidates, where)
            are_cut.append(is_cut)
        candidates = [Candidate(hit) for hit in hits]
        if predictor is not None and hits:
            predictions, is_cut = _predictions(predictor, [(question, hit.passage) for hit in hits])
            candidates = list(map(_with_answer, hits, predictions))
            are_cut.append(is_cut)
        self.num_cut += any(are_cut)
        return Matches(question, more, candidates, any(are_cut))


def _predictions(predictor: Predictor, inputs: Sequence[str] | Sequence[tuple[str, str]]) -> tuple[list[Any], bool]:
    """Return the predictions, and whether a text was cut."""
    from bertkit.inference.chunks import read_rows  # imports torch, which takes seconds
    from bertkit.inference.forward import predict_local

    read = read_rows(predictor.task, inputs)
    examples = [example for chunk in read.chunks for example in chunk]
    features = predictor.features(examples)
    return predict_local(predictor, read.task, examples, features), any(feature.num_cut for feature in features)


def _with_answer(hit: Hit, prediction: SpanPrediction) -> Candidate:
    """Return a passage with the reader's best answer, even if "no answer" is more probable."""
    best = next((answer for answer in prediction.n_best if answer.text), None)
    if best is None:
        return Candidate(hit, MIN_SCORE)
    score = max(-prediction.null_odds, MIN_SCORE)
    return Candidate(hit, score, TextSpan(best.start, best.end))


def _row(candidate: Candidate, score: float, marks: Sequence[TextSpan]) -> Row:
    """Return a passage, its answer and its snippet as a mapping."""
    row, place = dataclasses.asdict(candidate.hit), candidate.place
    row["score_search"], row["score_vectors"] = row.pop("score"), row.pop("score_vectors")
    start, end = place or (None, None)
    reader = {"answer": candidate.answer, "start": start, "end": end}
    snippet = snippet_of(candidate.hit.passage, marks, place)
    shown = {"snippet": snippet.text, "snippet_start": snippet.start, "marks": list(map(list, snippet.marks))}
    return {**row, "score_bert": candidate.score_bert, "score": score, **reader, **shown}


def in_order(candidates: Sequence[Candidate], order: str, both: BothConfig) -> list[tuple[Candidate, float]]:
    """Sort candidates by the score that `order` names, the best first; return them with this score."""
    if order == "search":  # passages without a word of the question are only for the reader
        candidates = [candidate for candidate in candidates if candidate.hit.score > 0]
    if not candidates:
        return []
    by_search, by_bert = scores_of(candidates)
    by_vectors = np.array([candidate.hit.score_vectors or 0.0 for candidate in candidates], dtype=np.float64)
    by_order = {
        "search": by_search,
        "vectors": by_vectors,
        "hybrid": _scaled(by_search) + _scaled(by_vectors),
        "bert": by_bert,
    }
    scores = by_order.get(order)
    if scores is None:
        log = log_both(by_search, by_bert, dataclasses.astuple(both))
        scores = np.exp(log - np.logaddexp.reduce(log))
    ranks = np.argsort(-scores, kind="stable")
    return [(candidates[place], float(scores[place])) for place in ranks.tolist()]


def _scaled(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Map the scores of all candidates linearly to 0 ... 1."""
    spread = float(np.ptp(scores)) or 1.0
    scaled: NDArray[np.float64] = (scores - scores.min()) / spread
    return scaled


class Scores(NamedTuple):
    """The scores of candidates, (n,) each."""

    by_search: NDArray[np.float64]  # BM25
    by_bert: NDArray[np.float64]  # the reader's


def scores_of(candidates: Sequence[Candidate]) -> Scores:
    """Return the scores of candidates."""
    return Scores(
        np.array([candidate.hit.score for candidate in candidates], dtype=np.float64),
        np.array([candidate.score_bert or 0.0 for candidate in candidates], dtype=np.float64),
    )


def log_both(
    by_search: NDArray[np.float64], by_bert: NDArray[np.float64], weights: Sequence[float]
) -> NDArray[np.float64]:
    """Return log p before normalization, (..., n), for the weights (search, bert, bias); a BM25 of -inf is padding."""
    search, bert, bias = weights
    scaled = search * by_search
    log_softmax = scaled - np.logaddexp.reduce(scaled, axis=-1, keepdims=True)
    return log_softmax - np.logaddexp(0, -(bert * by_bert + bias))


def fit(questions: Sequence[tuple[Sequence[Candidate], Sequence[bool]]], start: BothConfig) -> BothConfig:
    """Estimate the weights of `both` by maximum likelihood, with BFGS from the weights `start`; round them to four digits.

    A question has candidates, and whether each of them is right; without a right one it is ignored. If all questions are
    ignored, the result is `start`.
    """
    from scipy.optimize import minimize

    known = [(*scores_of(candidates), np.array(is_right)) for candidates, is_right in questions if any(is_right)]
    if not known:
        return start
    most = max(len(is_right) for _, _, is_right in known)
    padding = (-np.inf, 0.0, False)
    by_search, by_bert, is_right = (
        np.stack([np.pad(one[part], (0, most - len(one[part])), constant_values=padding[part]) for one in known])
        for part in range(3)
    )  # (questions, candidates)

    def weights_at(free: NDArray[np.float64]) -> list[float]:
        return [*np.exp(free[:2]).tolist(), float(free[2])]  # exponentials keep the first two positive

    def loss(free: NDArray[np.float64]) -> float:
        log = log_both(by_search, by_bert, weights_at(free))
        whole, right = (np.logaddexp.reduce(part, axis=1) for part in (log, np.where(is_right, log, -np.inf)))
        return float((whole - right).mean() + 1e-4 * (free**2).sum())  # regularized towards the weights 1, 1, 0

    begin = [*np.log([max(start.search, 1e-3), max(start.bert, 1e-3)]), start.bias]
    return BothConfig(*(round(weight, 4) for weight in weights_at(minimize(loss, begin, method="BFGS").x)))


def read_glossary(place: str | Path | None) -> dict[str, list[str]]:
    """Read a TSV file of a word and the words to add to a question that contains it; a word may have several lines. None has no words."""
    glossary: dict[str, list[str]] = {}
    if place is None:
        return glossary
    path = Path(place)
    check_regular(path, "glossary")
    for number, line in read_lines(path):
        if is_blank(line):
            continue
        word, tab, others = line.partition("\t")
        words = words_of(word)
        if not tab or not words or not words_of(others):
            raise InputError(f"{path}:{number}: expected a word, a tab, and the words to add to a question with it")
        glossary.setdefault(" ".join(words), []).append(others.strip())
    return glossary
