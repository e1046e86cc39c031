"""Stage: find passages for questions, and with a reader (a question answering model) the answers in them; compute metrics."""

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertkit.base.errors import InputError, counted, in_json, say
from bertkit.base.text_files import JsonObject
from bertkit.display.console import Progress
from bertkit.retrieval.encoders import encoder_of
from bertkit.retrieval.judging import RankMetrics, trec_lines
from bertkit.retrieval.library import Library
from bertkit.retrieval.passages import sentence_around
from bertkit.retrieval.questions import Question, questions_of, read_questions
from bertkit.retrieval.ranking import Candidate, Matches, Searcher, fit, in_order, read_glossary
from bertkit.run.outputs import check_outputs, opened_output
from bertkit.settings.search import BothConfig, SearchSettings

NO_ODDS = "the reader was trained without unanswerable questions: its scores rank passages, but are no probabilities"


def values(settings: SearchSettings, inputs: object = None) -> list[JsonObject]:
    """Search for one question, or for many, from Python or else those of `settings`; return the answers to each."""
    searcher = _open_searcher(settings)
    if settings.question is not None:
        return [{"question": settings.question, **_answer(settings, searcher, settings.question)}]
    most = settings.max_questions
    questions = read_questions(str(settings.input), most) if inputs is None else questions_of(inputs, most)
    metrics = _metrics_of(settings, searcher)
    with Progress("searching", len(questions), silent=True) as progress:
        ranked = _ranked(settings, searcher, questions, progress, metrics)
        return [_row(settings, searcher, one) for one in ranked]


def _metrics_of(settings: SearchSettings, searcher: Searcher) -> RankMetrics:
    orders = searcher.orders if settings.order in (None, "all") else [settings.order]
    orders = orders[-1:] if settings.is_trec else orders
    for order in orders:
        searcher.check(order)
    return RankMetrics(orders, settings.model_dir is not None, settings.num_candidates)


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
        answer = _answer(settings, searcher, settings.question)
        if to_file:
            with opened_output(settings.output) as file:
                file.write(f"{json.dumps({'question': settings.question, **answer}, ensure_ascii=False)}\n")
        else:
            say(*_readable(answer, [] if searcher.library.has(settings.where) else settings.where))
        return
    questions = read_questions(str(settings.input), settings.max_questions)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(opened_output(settings.output)) if to_file else sys.stdout
        progress = stack.enter_context(Progress("searching", len(questions), silent=not to_file, file=sys.stderr))
        metrics = _metrics_of(settings, searcher)
        for ranked in _ranked(settings, searcher, questions, progress, metrics):
            file.writelines(_lines(settings, searcher, ranked))
    if metrics.num_labelled:
        say(*json.dumps(metrics.summary(), indent=2).split("\n"), file=sys.stdout if to_file else sys.stderr)
    if to_file:
        say(f"{counted(len(questions), 'question')} in {settings.output}", file=sys.stderr)


def _answer(settings: SearchSettings, searcher: Searcher, question: str) -> JsonObject:
    return {**searcher.search(question, settings.order, settings.top_k, settings.where)}


@dataclass(frozen=True)
class _Ranked:
    """A question, its passages in each order, and the ranks of the right one."""

    question: Question
    matches: Matches
    ordered: dict[str, list[tuple[Candidate, float]]]
    ranks: JsonObject


def _ranked(
    settings: SearchSettings,
    searcher: Searcher,
    questions: Sequence[Question],
    progress: Progress,
    metrics: RankMetrics,
) -> Iterator[_Ranked]:
    """Rank the passages for each question; `metrics` collects the ranks of the right ones."""
    for question, matches, both in _matches_and_weights(settings, searcher, questions, progress):
        ordered = {order: in_order(matches.candidates, order, both) for order in metrics.ranks}
        yield _Ranked(question, matches, ordered, metrics.add(question, ordered))


def _row(settings: SearchSettings, searcher: Searcher, one: _Ranked) -> JsonObject:
    """Return a question and its passages as a mapping."""
    answers = {order: searcher.rows(one.matches, pairs[: settings.top_k]) for order, pairs in one.ordered.items()}
    return {"id": one.question.id, "question": one.question.text, "has_odds": searcher.has_odds, **answers, **one.ranks}


def _lines(settings: SearchSettings, searcher: Searcher, one: _Ranked) -> Iterator[str]:
    """Yield the lines of the output for a question."""
    if settings.is_trec:
        ((order, pairs),) = one.ordered.items()
        yield from trec_lines(one.question, pairs, settings.top_k, order)
    else:
        line = json.dumps(_row(settings, searcher, one), ensure_ascii=False)
        yield f"{in_json(line) if settings.output == '-' else line}\n"


def _matches_and_weights(
    settings: SearchSettings, searcher: Searcher, questions: Sequence[Question], progress: Progress
) -> Iterator[tuple[Question, Matches, BothConfig]]:
    """Yield each question, its matches and the weights of `both`; fit=true fits them on the other half of the questions."""

    def matches_of(number: int, question: Question) -> Matches:
        matches = searcher.matches(question.text, searcher.num_candidates, settings.where)
        progress.advance(number)
        return matches

    pairs = ((question, matches_of(number, question)) for number, question in enumerate(questions, 1))
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
