"""Stage: find passages for questions, and with a reader (a question answering model) the answers in them; compute metrics."""

import contextlib
import functools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from bertkit.apps.retrieval.encoders import encoder_of
from bertkit.apps.retrieval.judging import PassageFormat, Ranking, RankMetrics
from bertkit.apps.retrieval.library import Library
from bertkit.apps.retrieval.passages import sentence_around
from bertkit.apps.retrieval.questions import Question, questions_of, read_questions
from bertkit.apps.retrieval.ranking import Candidate, Matches, Searcher, fit, in_order, read_glossary
from bertkit.base import plugins
from bertkit.base.errors import InputError, counted, say
from bertkit.base.text_files import JsonObject
from bertkit.base.typed_settings import refuse
from bertkit.display.console import Progress
from bertkit.run.outputs import check_outputs, opened_output
from bertkit.settings.search import BothConfig, SearchSettings
from bertkit.tasks.reading.writers import write_lines

ORDERS = ("search", "vectors", "hybrid", "bert", "both")
NO_ODDS = "the reader was trained without unanswerable questions: its scores rank passages, but are no probabilities"


def values(settings: SearchSettings, inputs: object = None) -> list[JsonObject]:
    """Search for one question, or for many, from Python or else those of `settings`; return the answers to each."""
    searcher = _open_searcher(settings)
    if settings.question is not None:
        return [_answer(settings, searcher, settings.question)]
    return [ranking.row() for ranking in _Rankings(settings, searcher, inputs, PassageFormat).each(is_silent=True)]


def run(settings: SearchSettings, inputs: object = None) -> None:
    """Search the library, write the answers, and print them or their metrics."""
    to_file, output_format = settings.output != "-", _format_of(settings)
    if to_file:
        check_outputs(settings.output, settings.input, settings.overwrite)
    searcher = _open_searcher(settings)
    if settings.question is not None:
        answer = _answer(settings, searcher, settings.question)
        if to_file:
            with opened_output(settings.output) as file:
                write_lines(file, [answer])
        else:
            say(*_readable(answer, [] if searcher.library.has(settings.where) else settings.where))
        return
    rankings = _Rankings(settings, searcher, inputs, output_format)
    with contextlib.ExitStack() as stack:
        file = sys.stdout
        if to_file:
            file = stack.enter_context(opened_output(settings.output, is_binary=output_format.is_binary))
        writer = stack.enter_context(output_format(file, settings.top_k))
        for ranking in rankings.each(is_silent=not to_file):
            writer.put(ranking)
    if rankings.metrics.num_labelled:
        metrics = json.dumps(rankings.metrics.summary(), indent=2)
        say(*metrics.split("\n"), file=sys.stdout if to_file else sys.stderr)
    if to_file:
        say(f"{counted(len(rankings.questions), 'question')} in {settings.output}", file=sys.stderr)


def _format_of(settings: SearchSettings) -> type[PassageFormat]:
    """Return the format of the output; raises InputError if it cannot hold what is asked for."""
    name = settings.ending if plugins.exists("passage_format", settings.ending) else ""
    chosen = cast(type[PassageFormat], plugins.get("passage_format", name))
    one = chosen.one_order
    refuse(
        one and settings.question is not None and f"output={settings.output}: {one} needs input=, a file of questions",
        one and settings.order == "all" and f"order=all: {one} has one order; choose {', '.join(ORDERS)}",
    )
    return chosen


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


def _answer(settings: SearchSettings, searcher: Searcher, question: str) -> JsonObject:
    return {"question": question, **searcher.search(question, settings.order, settings.top_k, settings.where)}


class _Rankings:
    """The passages for many questions, from Python or else those of `settings`, and how good their ranking is."""

    def __init__(
        self, settings: SearchSettings, searcher: Searcher, inputs: object, output_format: type[PassageFormat]
    ) -> None:
        self.settings, self.searcher, most = settings, searcher, settings.max_questions
        self.questions = read_questions(str(settings.input), most) if inputs is None else questions_of(inputs, most)
        orders = searcher.orders if settings.order in (None, "all") else [settings.order]
        orders = orders[-1:] if output_format.one_order else orders
        for order in orders:
            searcher.check(order)
        self.metrics = RankMetrics(orders, settings.model_dir is not None, settings.num_candidates)

    def each(self, is_silent: bool) -> Iterator[Ranking]:
        """Rank the passages for each question; `metrics` collects the ranks of the right ones."""
        with Progress("searching", len(self.questions), silent=is_silent, file=sys.stderr) as progress:
            for question, matches, both in self._matches_and_weights(progress):
                ordered = {order: in_order(matches.candidates, order, both) for order in self.metrics.ranks}
                ranks = self.metrics.add(question, ordered)
                yield Ranking(question, ordered, functools.partial(self._row, question, matches, ordered, ranks))

    def _row(
        self, question: Question, matches: Matches, ordered: dict[str, list[tuple[Candidate, float]]], ranks: JsonObject
    ) -> JsonObject:
        """Return a question and its passages as a mapping."""
        searcher, most = self.searcher, self.settings.top_k
        answers = {order: searcher.rows(matches, pairs[:most]) for order, pairs in ordered.items()}
        return {"id": question.id, "question": question.text, "has_odds": searcher.has_odds, **answers, **ranks}

    def _matches_and_weights(self, progress: Progress) -> Iterator[tuple[Question, Matches, BothConfig]]:
        """Yield each question, its matches and the weights of `both`; fit=true fits them on the other half of the questions."""
        settings, searcher = self.settings, self.searcher

        def matches_of(number: int, question: Question) -> Matches:
            matches = searcher.matches(question.text, searcher.num_candidates, settings.where)
            progress.advance(number)
            return matches

        pairs = ((question, matches_of(number, question)) for number, question in enumerate(self.questions, 1))
        if not settings.fit:
            yield from ((*pair, settings.both) for pair in pairs)
            return
        whole = list(pairs)
        labelled = [
            (of.candidates, [question.is_labelled and question.is_right(candidate.hit) for candidate in of.candidates])
            for question, of in whole
        ]
        if not any(any(is_right) for _, is_right in labelled):
            raise InputError(f"fit: input={settings.input}: no correct candidate; add questions, or raise candidates=")
        fitted = fit(labelled, settings.both)
        say(f"fitted: both.search={fitted.search} both.bert={fitted.bert} both.bias={fitted.bias}", file=sys.stderr)
        others = [fit(labelled[1::2], settings.both), fit(labelled[::2], settings.both)]
        yield from ((*pair, others[number % 2]) for number, pair in enumerate(whole))


def _readable(result: JsonObject, unmet: Sequence[str]) -> Iterator[str]:
    """Yield lines for a terminal: the answer in its sentence, and numbered passages with their snippets.

    `unmet` has the conditions, if no document fulfils them.
    """
    hits, has_odds = result["answers"], result["has_odds"]
    if not hits:
        yield f"no document has where={' and '.join(unmet)}" if unmet else "no passage contains a word of the question"
    best = next((hit for hit in hits if hit["answer"] and not (has_odds and hit["score_bert"] < 0)), None)
    if best is not None:
        start, end = sentence_around(best["passage"], best["start"])
        yield _marked(best["passage"][start:end], [(best["start"] - start, best["end"] - start, ">>", "<<")])
    for number, hit in enumerate(hits, 1):
        where = ", ".join(filter(None, (hit["source"], hit["place"])))
        vectors = "" if hit["score_vectors"] is None else f"  vectors {hit['score_vectors']:.2f}"
        reader = f"  bert {hit['score_bert']:.2f}" if has_odds else ""
        yield f"{number}. {hit['title'] or '(no title)'}  [{where}]  search {hit['score_search']:.2f}{vectors}{reader}"
        yield f"   {_marked(hit['snippet'], [(*mark, '*', '*') for mark in hit['marks']])}"
    yield f"{counted(len(hits), 'passage')} by order={result['order']} in {result['seconds']:.2f} s"


def _marked(text: str, marks: Sequence[tuple[int, int, str, str]]) -> str:
    """Put signs before and after some places of a text, (start, end, before, after); join its lines."""
    for start, end, before, after in reversed(marks):
        text = f"{text[:start]}{before}{text[start:end]}{after}{text[end:]}"
    return " ".join(text.split())
