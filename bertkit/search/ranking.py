"""A question -> passages in the order of a search engine, of a reader, or of both, with their answers.

    search   BM25, as the library gives it
    bert     the reader's score s: the logits of start and end of its best answer, less those of no answer
    both     p(i) ~ softmax(search * BM25)[i] * sigmoid(bert * s[i] + bias), over the candidates i, of which p sums to 1

The two factors of `both` are probabilities: that i is the right one of the candidates, by its words; that i has an answer,
by what stands in it. `fit` finds the three numbers by maximum likelihood: they make p as large as they can at the
passages that are right. Nogueira and Cho 2019 rank passages by BERT, Wang et al. 2019
(Multi-passage BERT) by BERT times BM25.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from bertkit.base.errors import InputError
from bertkit.base.text_files import is_blank, read_lines
from bertkit.base.typed_settings import conf_dir
from bertkit.predict.answers import answer_here
from bertkit.predict.task_model import Predictor
from bertkit.search.library import Hit, Library
from bertkit.search.passages import words_of
from bertkit.settings.search import ORDERS, BothConfig
from bertkit.tasks.reading.readers import take_texts
from bertkit.tasks.shapes import make_features

LEAST_SCORE = -1e4  # of a reader: JSON and sigmoid take it, and no logits come near


@dataclass(frozen=True)
class Candidate:
    """A passage that may be right, and what the reader says of it; its score is None where there is no reader."""

    hit: Hit
    score_bert: float | None = None
    answer: str | None = None
    start: int | None = None  # of the answer in the passage, in characters
    end: int | None = None


class Searcher:
    """Find passages for questions.

    Calls from several threads must wait for one another: there is one model.
    """

    def __init__(
        self,
        index: str | os.PathLike[str],
        predictor: Predictor | None,
        both: BothConfig | None = None,
        num_candidates: int | None = None,
        glossary: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Open an index.

        Args:
            index: a library.
            predictor: the reader, a model of spans; None for search alone.
            both: how `both` weighs the scores; None for what conf/search.yaml has.
            num_candidates: passages that the reader reads; None likewise.
            glossary: a word, as `words_of` has it -> words that widen a question with it.

        Raises:
            InputError: there is no such library, or the model does not read.
        """
        if predictor is not None and predictor.shape.head != "span":
            raise InputError(
                f"model_dir: a model of {predictor.shape.kind} answers no questions; give one that was fine-tuned on "
                "squad1, squad2 or spans"
            )
        self.library = Library(Path(index).expanduser())
        default: dict[str, Any] = yaml.safe_load((conf_dir() / "search.yaml").read_text(encoding="utf-8"))
        self.predictor, self.both = predictor, both or BothConfig(**default["both"])
        self.num_candidates: int = num_candidates or default["candidates"]
        self.glossary = glossary or {}

    def search(self, question: str, order: str | None, top_k: int) -> dict[str, Any]:
        """Answer a question.

        Args:
            question: any text.
            order: "search", "bert" or "both"; None for `both` where there is a reader, else search.
            top_k: passages that are given, at most.

        Returns:
            {"answers": [...], "order": order, "seconds": how long it took}; each answer as `row` has it.

        Raises:
            InputError: there is no reader for this order.
        """
        started_at = time.monotonic()
        order = order or ("search" if self.predictor is None else "both")
        if order not in ORDERS:
            raise InputError(f"order={order}: expected {', '.join(ORDERS)}")
        if order != "search" and self.predictor is None:
            raise InputError(
                f"order={order}: needs a reader; give a model fine-tuned on questions, or take order=search"
            )
        found = self.candidates(question, top_k if order == "search" else max(top_k, self.num_candidates))
        answers = [row(candidate, score) for candidate, score in in_order(found, order, self.both)[:top_k]]
        return {"answers": answers, "order": order, "seconds": time.monotonic() - started_at}

    def candidates(self, question: str, num_candidates: int) -> list[Candidate]:
        """Find passages for a question and read them, all of them in packed batches; in the order of the library."""
        more = [other for word in words_of(question) for other in self.glossary.get(word, ())]
        if self.predictor is None:
            return [Candidate(hit) for hit in self.library.find(question, num_candidates, more)]
        hits = self.library.find(question, num_candidates, more, fill=True)
        if not hits:
            return []
        predictor = self.predictor
        asked = [question] * len(hits)
        inputs = take_texts(predictor.shape, predictor.task, asked, [hit.passage for hit in hits])
        examples = [example for chunk in inputs.chunks for example in chunk]
        features = list(make_features(predictor.task, examples, predictor.tokenizer, predictor.labels, predictor.shape))
        return [
            _read(hit, prediction)
            for hit, prediction in zip(hits, answer_here(predictor, examples, features), strict=True)
        ]


def _read(hit: Hit, prediction: Any) -> Candidate:
    """Take what the reader says of a passage: its best answer, whether or not no answer is likelier."""
    best = next((each for each in prediction.n_best if each.text), None)
    if best is None:
        return Candidate(hit, LEAST_SCORE)
    score = max(-prediction.null_odds, LEAST_SCORE)
    return Candidate(hit, score, best.text, best.start, best.end)


def row(candidate: Candidate, score: float) -> dict[str, Any]:
    """Write a passage with its answer as `bertkit search` and `POST /search` give it."""
    found = dataclasses.asdict(candidate.hit)
    score_search = found.pop("score")
    return {
        **found,
        "score_search": score_search,
        "score_bert": candidate.score_bert,
        "score": score,
        "answer": candidate.answer,
        "start": candidate.start,
        "end": candidate.end,
    }


def in_order(candidates: Sequence[Candidate], order: str, both: BothConfig) -> list[tuple[Candidate, float]]:
    """Sort candidates by their score in an order, the best first; those of the same score as the library has them."""
    if order == "search":  # of a small library the reader reads all; here what has no word of the question is not found
        candidates = [each for each in candidates if each.hit.score > 0]
    if not candidates:
        return []
    by_search, by_bert = scores_of(candidates)
    scores = {"search": by_search, "bert": by_bert}.get(order)
    if scores is None:
        log = log_both(by_search, by_bert, dataclasses.astuple(both))
        scores = np.exp(log - np.logaddexp.reduce(log))
    ranks = np.argsort(-scores, kind="stable")
    return [(candidates[place], float(scores[place])) for place in ranks.tolist()]


def scores_of(candidates: Sequence[Candidate]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Give the engine's and the reader's scores of some candidates; (n,) each."""
    return (
        np.array([candidate.hit.score for candidate in candidates], dtype=np.float64),
        np.array([candidate.score_bert or 0.0 for candidate in candidates], dtype=np.float64),
    )


def log_both(
    by_search: NDArray[np.float64], by_bert: NDArray[np.float64], weights: Sequence[float]
) -> NDArray[np.float64]:
    """Give log p, not normalised, for weights (search, bert, bias); (..., n) candidates, those with -inf are none."""
    search, bert, bias = weights
    scaled = search * by_search
    log_softmax = scaled - np.logaddexp.reduce(scaled, axis=-1, keepdims=True)
    return log_softmax - np.logaddexp(0, -(bert * by_bert + bias))


def fit(questions: Sequence[tuple[Sequence[Candidate], Sequence[bool]]], start: BothConfig) -> BothConfig:
    """Find the numbers of `both` by maximum likelihood, by BFGS.

    Args:
        questions: for each its candidates, and whether each of them is right; those without a right one say nothing.
        start: where the search begins.

    Returns:
        The numbers, rounded to four digits; `start` where no question says anything.
    """
    from scipy.optimize import minimize

    known = [(*scores_of(found), np.array(is_right)) for found, is_right in questions if any(is_right)]
    if not known:
        return start
    most = max(len(is_right) for _, _, is_right in known)
    padding = (-np.inf, 0.0, False)
    by_search, by_bert, is_right = (
        np.stack([np.pad(each[part], (0, most - len(each[part])), constant_values=padding[part]) for each in known])
        for part in range(3)
    )  # (questions, candidates)

    def weights_at(free: NDArray[np.float64]) -> list[float]:
        return [*np.exp(free[:2]).tolist(), float(free[2])]  # the first two stay positive as exponentials

    def loss(free: NDArray[np.float64]) -> float:
        log = log_both(by_search, by_bert, weights_at(free))
        of_all, of_right = (np.logaddexp.reduce(each, axis=1) for each in (log, np.where(is_right, log, -np.inf)))
        # the last term keeps what the questions leave open near 1, 1 and 0
        return float((of_all - of_right).mean() + 1e-4 * (free**2).sum())

    begin = [*np.log([max(start.search, 1e-3), max(start.bert, 1e-3)]), start.bias]
    return BothConfig(*(round(weight, 4) for weight in weights_at(minimize(loss, begin, method="BFGS").x)))


def read_glossary(path: Path) -> dict[str, list[str]]:
    """Read a TSV of a word and the words that widen a question with it; a word may have several lines.

    Raises:
        InputError: a line has no tab, or nothing on one side of it.
    """
    glossary: dict[str, list[str]] = {}
    for number, line in read_lines(path):
        if is_blank(line):
            continue
        word, tab, others = line.partition("\t")
        if not tab or is_blank(word) or is_blank(others):
            raise InputError(f"{path}:{number}: expected a word, a tab, and the words that widen a question with it")
        glossary.setdefault(" ".join(words_of(word)), []).append(others.strip())
    return glossary
