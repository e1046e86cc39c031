"""A question -> passages in the order of BM25, of a reader, or of both, with their answers.

    search   BM25, from the library
    bert     the reader's score s: the logits of start and end of its best answer, less those of no answer
    both     p(i) ~ softmax(search * BM25)[i] * sigmoid(bert * s[i] + bias), normalized over the candidates i

The factors of `both` are the probabilities that i is the right candidate, by its words, and that it has an answer, by the
reader. `fit` finds the three numbers by maximum likelihood of the right passages. Nogueira and Cho 2019 rank passages by BERT,
Wang et al. 2019 (Multi-passage BERT) by BERT times BM25.
"""

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
from bertkit.tasks.reading.readers import read_texts

MIN_SCORE = -1e4  # of a reader: far below any logits, but fine for JSON and sigmoid


@dataclass(frozen=True)
class Candidate:
    """A passage with the reader's answer."""

    hit: Hit
    score_bert: float | None = None  # None without a reader
    answer: str | None = None
    start: int | None = None  # of the answer in the passage, in characters
    end: int | None = None


class Searcher:
    """Find passages for questions; not for several threads at once."""

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
            both: weights of `both`; None for those of conf/search.yaml.
            num_candidates: number of passages for the reader; None for that of conf/search.yaml.
            glossary: a word from `words_of` -> words to add to questions with it.

        Raises:
            InputError: there is no such library, or the model does not answer questions.
        """
        if predictor is not None and not predictor.shape.answers_questions:
            kind = predictor.shape.kind
            raise InputError(f"model_dir: a model of kind {kind}; give one fine-tuned on squad1, squad2 or spans")
        self.library = Library(Path(index).expanduser())
        default: dict[str, Any] = yaml.safe_load((conf_dir() / "search.yaml").read_text(encoding="utf-8"))
        self.predictor, self.both = predictor, both or BothConfig(**default["both"])
        self.num_candidates: int = num_candidates or default["candidates"]
        self.glossary = glossary or {}

    def search(self, question: str, order: str | None, top_k: int) -> dict[str, Any]:
        """Answer a question.

        Args:
            question: any text.
            order: "search", "bert" or "both"; None for `both` with a reader, else search.
            top_k: the largest number of passages.

        Returns:
            {"answers": [...], "order": order, "seconds": time taken}; the answers are `row`s.

        Raises:
            InputError: the order needs a reader.
        """
        started_at = time.monotonic()
        order = order or ("search" if self.predictor is None else "both")
        if order not in ORDERS:
            raise InputError(f"order={order}: expected {', '.join(ORDERS)}")
        if order != "search" and self.predictor is None:
            raise InputError(
                f"order={order}: needs a reader; give a model fine-tuned on questions, or take order=search"
            )
        candidates = self.candidates(question, top_k if order == "search" else max(top_k, self.num_candidates))
        answers = [row(candidate, score) for candidate, score in in_order(candidates, order, self.both)[:top_k]]
        return {"answers": answers, "order": order, "seconds": time.monotonic() - started_at}

    def candidates(self, question: str, num_candidates: int) -> list[Candidate]:
        """Find passages for a question and read them in packed batches; in the order of the library."""
        more = [other for word in words_of(question) for other in self.glossary.get(word, ())]
        predictor = self.predictor
        hits = self.library.find(question, num_candidates, more, fill=predictor is not None)
        if predictor is None or not hits:
            return [Candidate(hit) for hit in hits]
        passages = [hit.passage for hit in hits]
        inputs = read_texts(predictor.shape, predictor.task, [question] * len(hits), passages)
        examples = [example for chunk in inputs.chunks for example in chunk]
        predictions = answer_here(predictor, examples, predictor.features(examples))
        return [_read(hit, prediction) for hit, prediction in zip(hits, predictions, strict=True)]


def _read(hit: Hit, prediction: Any) -> Candidate:
    """Take the reader's best answer in a passage, even if no answer is likelier."""
    best = next((answer for answer in prediction.n_best if answer.text), None)
    if best is None:
        return Candidate(hit, MIN_SCORE)
    score = max(-prediction.null_odds, MIN_SCORE)
    return Candidate(hit, score, best.text, best.start, best.end)


def row(candidate: Candidate, score: float) -> dict[str, Any]:
    """Give a passage with its answer, for `bertkit search` and `POST /search`."""
    row = dataclasses.asdict(candidate.hit)
    row["score_search"] = row.pop("score")
    reader = {"answer": candidate.answer, "start": candidate.start, "end": candidate.end}
    return {**row, "score_bert": candidate.score_bert, "score": score, **reader}


def in_order(candidates: Sequence[Candidate], order: str, both: BothConfig) -> list[tuple[Candidate, float]]:
    """Sort candidates by their score in an order, the best first; equal scores keep the library's order."""
    if order == "search":  # the reader also reads passages without a word of the question
        candidates = [candidate for candidate in candidates if candidate.hit.score > 0]
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
    """Give the engine's and the reader's scores, (n,) each."""
    return (
        np.array([candidate.hit.score for candidate in candidates], dtype=np.float64),
        np.array([candidate.score_bert or 0.0 for candidate in candidates], dtype=np.float64),
    )


def log_both(
    by_search: NDArray[np.float64], by_bert: NDArray[np.float64], weights: Sequence[float]
) -> NDArray[np.float64]:
    """Give log p, not normalized, for weights (search, bert, bias); (..., n) candidates, where -inf is padding."""
    search, bert, bias = weights
    scaled = search * by_search
    log_softmax = scaled - np.logaddexp.reduce(scaled, axis=-1, keepdims=True)
    return log_softmax - np.logaddexp(0, -(bert * by_bert + bias))


def fit(questions: Sequence[tuple[Sequence[Candidate], Sequence[bool]]], start: BothConfig) -> BothConfig:
    """Find the weights of `both` by maximum likelihood, with BFGS.

    Args:
        questions: (candidates, whether each is right); without a right one, a question does not count.
        start: the first weights.

    Returns:
        The weights, rounded to four digits; `start` if no question counts.
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
        return float((whole - right).mean() + 1e-4 * (free**2).sum())  # the last term prefers 1, 1 and 0

    begin = [*np.log([max(start.search, 1e-3), max(start.bert, 1e-3)]), start.bias]
    return BothConfig(*(round(weight, 4) for weight in weights_at(minimize(loss, begin, method="BFGS").x)))


def read_glossary(path: Path) -> dict[str, list[str]]:
    """Read a TSV: a word, and the words to add to questions with it; a word may have several lines.

    Raises:
        InputError: a line has no tab, or an empty cell.
    """
    glossary: dict[str, list[str]] = {}
    for number, line in read_lines(path):
        if is_blank(line):
            continue
        word, tab, others = line.partition("\t")
        if not tab or is_blank(word) or is_blank(others):
            raise InputError(f"{path}:{number}: expected a word, a tab, and the words to add to a question with it")
        glossary.setdefault(" ".join(words_of(word)), []).append(others.strip())
    return glossary
