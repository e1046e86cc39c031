"""Opening a library with its models; passages for one question or for many, and how good their ranking is."""

import functools
import sys
from collections.abc import Iterator

from bertkit.apps.retrieval.encoders import encoder_of
from bertkit.apps.retrieval.judging import Ranking, RankMetrics
from bertkit.apps.retrieval.library import Library
from bertkit.apps.retrieval.questions import Question, questions_of, read_questions
from bertkit.apps.retrieval.ranking import Candidate, Matches, Searcher, fit, in_order, read_glossary
from bertkit.base.errors import InputError, counted, say, warn
from bertkit.base.text_files import JsonObject
from bertkit.display.console import Progress
from bertkit.settings.search import BothConfig, SearchSettings

NO_ODDS = "the reader was trained without unanswerable questions: its scores rank passages, but are no probabilities"


def open_searcher(settings: SearchSettings) -> Searcher:
    """Open the library, and load the models that the settings name; print a line if the reader's scores are no odds."""
    glossary = read_glossary(settings.glossary)
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


def answer_of(settings: SearchSettings, searcher: Searcher, question: str) -> JsonObject:
    """Return a question and its passages."""
    return {"question": question, **searcher.search(question, settings.order, settings.top_k, settings.where)}


def warn_of_cut(searcher: Searcher) -> None:
    """Print a line if the encoder, the reader or the translator has read only the beginning of a question."""
    if searcher.num_cut:
        long = f"{counted(searcher.num_cut, 'question')} longer than a model reads"
        warn(f"{long}: the model has read only the beginning, BM25 uses all words")


class Rankings:
    """The passages for many questions, from Python or else those of `settings`, and how good their ranking is."""

    def __init__(self, settings: SearchSettings, searcher: Searcher, inputs: object, one_order: bool) -> None:
        """Raises InputError if the questions are wrong, or an order lacks what it needs; `one_order` keeps the best order."""
        self.settings, self.searcher, most = settings, searcher, settings.max_questions
        self.questions = read_questions(str(settings.input), most) if inputs is None else questions_of(inputs, most)
        orders = searcher.orders if settings.order in (None, "all") else [settings.order]
        orders = orders[-1:] if one_order else orders
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
