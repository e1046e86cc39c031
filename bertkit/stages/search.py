"""Stage: find passages for questions, and with a reader (a question answering model) the answers in them; compute metrics."""

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import InputError, counted, in_json, say
from bertkit.base.text_files import JsonObject
from bertkit.display.console import Progress
from bertkit.retrieval.encoders import encoder_of
from bertkit.retrieval.library import Library
from bertkit.retrieval.questions import Question, questions_of, read_questions
from bertkit.retrieval.ranking import Candidate, Searcher, fit, in_order, read_glossary, row
from bertkit.run.outputs import check_outputs, opened_output
from bertkit.settings.search import BothConfig, SearchSettings

AT = (1, 5, 20)  # the values of k in accuracy at k, up to the number of candidates
NO_ODDS = "the reader was trained without unanswerable questions: its scores rank passages, but are no probabilities"
NUM_RESAMPLES = 1000  # for the bootstrap intervals


def values(settings: SearchSettings, inputs: object = None) -> list[JsonObject]:
    """Search for one question, or for many, from Python or else those of `settings`; return the answers to each."""
    searcher = _open_searcher(settings)
    if settings.question is not None:
        return [{"question": settings.question, **searcher.search(settings.question, settings.order, settings.top_k)}]
    most = settings.max_questions
    questions = read_questions(str(settings.input), most) if inputs is None else questions_of(inputs, most)
    with Progress("searching", len(questions), silent=True) as progress:
        return list(_answers(settings, searcher, questions, progress, _metrics_of(settings, searcher)))


def _metrics_of(settings: SearchSettings, searcher: Searcher) -> "_Metrics":
    orders = searcher.orders if settings.order in (None, "all") else [settings.order]
    for order in orders:
        searcher.check(order)
    return _Metrics(orders, settings.model_dir is not None, settings.num_candidates)


def _open_searcher(settings: SearchSettings) -> Searcher:
    glossary = None if settings.glossary is None else read_glossary(Path(settings.glossary))
    library = Library(settings.index)  # before the models, so that a wrong index fails early
    predictor = translator = None
    if settings.model_dir is not None or settings.translate is not None:
        from bertkit.inference.predictor import open_predictor, open_translator  # imports torch, which takes seconds

        predictor = None if settings.model_dir is None else open_predictor(settings)
        translator = open_translator(settings)
    encoder = None if settings.order == "search" else encoder_of(library, settings.encoder, settings.device)
    searcher = Searcher(library, predictor, settings.both, settings.num_candidates, glossary, translator, encoder)
    if predictor is not None and not searcher.has_odds:
        say(NO_ODDS, file=sys.stderr)
    return searcher


def run(settings: SearchSettings) -> None:
    """Search the library, write the answers, and print them or their metrics."""
    to_file = settings.output != "-"
    if to_file:
        check_outputs(settings.output, settings.input, settings.overwrite)
    searcher = _open_searcher(settings)
    if settings.question is not None:
        answer: JsonObject = {**searcher.search(settings.question, settings.order, settings.top_k)}
        if to_file:
            with opened_output(settings.output) as file:
                file.write(f"{json.dumps({'question': settings.question, **answer}, ensure_ascii=False)}\n")
        else:
            say(*_readable(answer))
        return
    questions = read_questions(str(settings.input), settings.max_questions)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(opened_output(settings.output)) if to_file else sys.stdout
        progress = stack.enter_context(Progress("searching", len(questions), silent=not to_file, file=sys.stderr))
        metrics = _metrics_of(settings, searcher)
        for answer in _answers(settings, searcher, questions, progress, metrics):
            line = json.dumps(answer, ensure_ascii=False)
            file.write(f"{line if to_file else in_json(line)}\n")
    if metrics.num_labelled:
        say(*json.dumps(metrics.summary(), indent=2).split("\n"), file=sys.stdout if to_file else sys.stderr)
    if to_file:
        say(f"{counted(len(questions), 'question')} in {settings.output}", file=sys.stderr)


def _answers(
    settings: SearchSettings, searcher: Searcher, questions: Sequence[Question], progress: Progress, metrics: "_Metrics"
) -> Iterator[JsonObject]:
    """Yield the passages for each question, in each order, and the ranks of the right one; `metrics` collects the ranks."""
    for question, candidates, both in _candidates_and_weights(settings, searcher, questions, progress):
        ordered = {order: in_order(candidates, order, both) for order in metrics.ranks}
        answers = {order: [row(*pair) for pair in pairs[: settings.top_k]] for order, pairs in ordered.items()}
        ranks = metrics.add(question, ordered)
        yield {"id": question.id, "question": question.text, "has_odds": searcher.has_odds, **answers, **ranks}


def _candidates_and_weights(
    settings: SearchSettings, searcher: Searcher, questions: Sequence[Question], progress: Progress
) -> Iterator[tuple[Question, list[Candidate], BothConfig]]:
    """Yield each question, its candidates and the weights of `both`; fit=true fits them on the other half of the questions."""

    def candidates_of(number: int, question: Question) -> list[Candidate]:
        candidates = searcher.candidates(question.text, searcher.num_candidates)
        progress.advance(number)
        return candidates

    pairs = ((question, candidates_of(number, question)) for number, question in enumerate(questions, 1))
    if not settings.fit:
        yield from ((*pair, settings.both) for pair in pairs)
        return
    whole = list(pairs)
    labelled = [
        (candidates, [question.is_labelled and question.is_right(candidate.hit) for candidate in candidates])
        for question, candidates in whole
    ]
    if not any(any(is_right) for _, is_right in labelled):
        raise InputError(f"fit: input={settings.input}: no correct candidate; add questions, or raise candidates=")
    fitted = fit(labelled, settings.both)
    say(f"fitted: both.search={fitted.search} both.bert={fitted.bert} both.bias={fitted.bias}", file=sys.stderr)
    others = [fit(labelled[1::2], settings.both), fit(labelled[::2], settings.both)]
    yield from ((*pair, others[number % 2]) for number, pair in enumerate(whole))


class _Metrics:
    """The ranks of the correct passages of labelled questions, for each order of results."""

    def __init__(self, orders: Sequence[str], has_reader: bool, num_candidates: int) -> None:
        self.has_reader, self.at = has_reader, [k for k in AT if k <= num_candidates]
        # from 1; infinity without a correct passage
        self.ranks: dict[str, list[float]] = {order: [] for order in orders}
        self.answered: dict[str, list[tuple[float, float]]] = {order: [] for order in orders}  # exact match and F1

    @property
    def num_labelled(self) -> int:
        return len(next(iter(self.ranks.values())))

    def add(self, question: Question, ordered: dict[str, list[tuple[Candidate, float]]]) -> JsonObject:
        """Record a question with its ranked candidates; return the rank of the correct passage in each order."""
        if not question.is_labelled:
            return {}
        right_at: dict[str, int | None] = {}
        for order, candidates in ordered.items():
            correct = (rank for rank, (candidate, _) in enumerate(candidates, 1) if question.is_right(candidate.hit))
            right_at[order] = next(correct, None)
            self.ranks[order].append(right_at[order] or np.inf)
            if self.has_reader and question.answers:
                answer = candidates[0][0].answer if candidates else None
                self.answered[order].append(question.scores_of(answer or ""))
        return {"right_at": right_at}

    def summary(self) -> JsonObject:
        """Return every metric with its interval, and the gain of the order `both` over each other order."""
        summary: JsonObject = {"num_questions": self.num_labelled}
        measured: dict[str, dict[str, NDArray[np.float64]]] = {}
        for order, values in self.ranks.items():
            ranks = np.array(values)
            measured[order] = {f"accuracy_at_{k}": (ranks <= k).astype(float) for k in self.at} | {"mrr": 1 / ranks}
            if self.answered[order]:
                measured[order] |= dict(zip(("exact", "f1"), np.array(self.answered[order]).T, strict=True))
            summary[order] = {name: _with_interval(values) for name, values in measured[order].items()}
        for other in [order for order in measured if order != "both" and "both" in measured]:
            summary[f"both_less_{other}"] = {
                name: _with_interval(values - measured[other][name]) for name, values in measured["both"].items()
            }
        return summary


def _with_interval(values: NDArray[np.float64]) -> JsonObject:
    """Return the mean and its 95 % interval, by a bootstrap over the questions."""
    random = np.random.default_rng(0)
    means = [random.choice(values, len(values)).mean() for _ in range(NUM_RESAMPLES)]
    return {"mean": round(float(values.mean()), 4), "interval": np.percentile(means, [2.5, 97.5]).round(4).tolist()}


def _readable(result: JsonObject) -> Iterator[str]:
    """Yield lines for a terminal: numbered passages, with the answer between >> and <<."""
    if not result["answers"]:
        yield "no passage contains a word of the question"
    for number, hit in enumerate(result["answers"], 1):
        text = hit["passage"]
        if hit["answer"]:
            text = f"{text[: hit['start']]}>>{text[hit['start'] : hit['end']]}<<{text[hit['end'] :]}"
        where = ", ".join(filter(None, (hit["source"], hit["place"])))
        vectors = "" if hit["score_vectors"] is None else f"  vectors {hit['score_vectors']:.2f}"
        reader = f"  bert {hit['score_bert']:.2f}" if result["has_odds"] else ""
        yield f"{number}. {hit['title'] or '(no title)'}  [{where}]  search {hit['score_search']:.2f}{vectors}{reader}"
        yield f"   {' '.join(text.split())}"
    yield f"{counted(len(result['answers']), 'passage')} by order={result['order']} in {result['seconds']:.2f} s"
