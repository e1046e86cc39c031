"""Stage: a library, a reader and questions -> passages with their answers, and how often they are right."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import InputError, in_json, say
from bertkit.predict.predictor import open_predictor
from bertkit.predict.task_model import general_task
from bertkit.run.outputs import check_free, opened_output
from bertkit.search.questions import Question, read_questions
from bertkit.search.ranking import Candidate, Searcher, fit, in_order, read_glossary, row
from bertkit.settings.predict import PredictSettings
from bertkit.settings.search import BothConfig, SearchSettings
from bertkit.view.progress import Progress

AT = (1, 5, 20)  # how many of the first passages may hold the right one
NUM_RESAMPLES = 1000  # of the bootstrap
Found = list[Candidate]


def run(settings: SearchSettings) -> None:
    """Search.

    Raises:
        InputError: the index, the model or the input cannot be used.
    """
    to_file = settings.output != "-"
    if to_file:
        check_free(settings.output, settings.input, settings.overwrite)
    glossary = None if settings.glossary is None else read_glossary(Path(settings.glossary))
    searcher = Searcher(settings.index, None, settings.both, settings.candidates, glossary)  # before torch has work
    if settings.model_dir is not None:
        predictor = open_predictor(_reader(settings, settings.model_dir))
        searcher = Searcher(settings.index, predictor, settings.both, settings.candidates, glossary)
    if settings.question is not None:
        found = searcher.search(settings.question, settings.orders[0], settings.top_k)
        if to_file:
            with opened_output(settings.output) as file:
                file.write(f"{json.dumps({'question': settings.question, **found}, ensure_ascii=False)}\n")
        else:
            say(*_readable(found))
        return
    questions = read_questions(general_task("spans"), str(settings.input), settings.max_questions)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(opened_output(settings.output)) if to_file else sys.stdout
        progress = stack.enter_context(Progress("searching", len(questions), silent=not to_file, file=sys.stderr))
        metrics = _Metrics(settings.orders, settings.model_dir is not None)
        for question, candidates, both in _weighed(settings, searcher, questions, progress):
            ordered = {order: in_order(candidates, order, both) for order in settings.orders}
            answers = {order: [row(*each) for each in some[: settings.top_k]] for order, some in ordered.items()}
            places = metrics.add(question, ordered)
            line = json.dumps({"id": question.id, "question": question.text, **answers, **places}, ensure_ascii=False)
            file.write(f"{line if to_file else in_json(line)}\n")
    if metrics.num_labelled:
        say(*json.dumps(metrics.all(), indent=2).split("\n"), file=sys.stdout if to_file else sys.stderr)
    if to_file:
        say(f"{len(questions):,} questions in {settings.output}", file=sys.stderr)


def _reader(settings: SearchSettings, model_dir: str) -> PredictSettings:
    """Give the settings of the model that reads."""
    return PredictSettings(
        model_dir=model_dir, input="-", text=None, text_pair=None, output="-", carry_input=False, overwrite=False,
        task=settings.task, task_changes=settings.task_changes, format=None, top_k=1, precision=settings.precision,
        kernels=settings.kernels, device=settings.device,
    )  # fmt: skip


def _weighed(
    settings: SearchSettings, searcher: Searcher, questions: Sequence[Question], progress: Progress
) -> Iterator[tuple[Question, Found, BothConfig]]:
    """Give each question with its candidates and the weights of `both`: as set, or fitted on the other half of them."""
    num_found = max(settings.top_k, settings.candidates, AT[-1])

    def found() -> Iterator[tuple[Question, Found]]:
        for number, question in enumerate(questions, 1):
            yield question, searcher.candidates(question.text, num_found)
            progress.advance(number)

    if not settings.fit:
        yield from ((question, candidates, settings.both) for question, candidates in found())
        return
    whole = list(found())
    labelled = [
        (candidates, [question.is_labelled and question.is_right(each.hit) for each in candidates])
        for question, candidates in whole
    ]
    if not any(any(is_right) for _, is_right in labelled):
        raise InputError(f"fit: no question of input={settings.input} has a right passage among its candidates")
    fitted = fit(labelled, settings.both)
    say(f"fitted: both.search={fitted.search} both.bert={fitted.bert} both.bias={fitted.bias}", file=sys.stderr)
    others = [fit(labelled[1::2], settings.both), fit(labelled[::2], settings.both)]
    yield from ((*each, others[number % 2]) for number, each in enumerate(whole))


class _Metrics:
    """Where the right passage stands, by each order, of every question with a label."""

    def __init__(self, orders: Sequence[str], has_reader: bool) -> None:
        self.has_reader = has_reader
        self.places: dict[str, list[float]] = {order: [] for order in orders}  # from 1; infinity where there is none
        self.answered: dict[str, list[tuple[float, float]]] = {order: [] for order in orders}  # exact and F1

    @property
    def num_labelled(self) -> int:
        return len(next(iter(self.places.values())))

    def add(self, question: Question, ordered: dict[str, list[tuple[Candidate, float]]]) -> dict[str, Any]:
        """Take what was found for a question; say at which place by each order the right passage is."""
        if not question.is_labelled:
            return {}
        said: dict[str, int | None] = {}
        for order, candidates in ordered.items():
            rights = (place for place, (each, _) in enumerate(candidates, 1) if question.is_right(each.hit))
            said[order] = next(rights, None)
            self.places[order].append(said[order] or np.inf)
            if self.has_reader and question.answers:
                answer = candidates[0][0].answer if candidates else None
                self.answered[order].append(question.scores_of(answer or ""))
        return {"right_at": said}

    def all(self) -> dict[str, Any]:
        """Give every metric with its interval; of several orders also what `both` has more than each other one."""
        found: dict[str, Any] = {"num_questions": self.num_labelled}
        measured: dict[str, dict[str, NDArray[np.float64]]] = {}
        for order, given in self.places.items():
            places = np.array(given)
            measured[order] = {f"accuracy_at_{k}": (places <= k).astype(float) for k in AT} | {"mrr": 1 / places}
            if self.answered[order]:
                measured[order] |= dict(zip(("exact", "f1"), np.array(self.answered[order]).T, strict=True))
            found[order] = {name: _with_interval(values) for name, values in measured[order].items()}
        for other in [order for order in measured if order != "both" and "both" in measured]:
            found[f"both_less_{other}"] = {
                name: _with_interval(values - measured[other][name]) for name, values in measured["both"].items()
            }
        return found


def _with_interval(values: NDArray[np.float64]) -> dict[str, Any]:
    """Give the mean, and where 95 % of the means of a bootstrap over the questions lie."""
    random = np.random.default_rng(0)
    means = [random.choice(values, len(values)).mean() for _ in range(NUM_RESAMPLES)]
    return {"mean": round(float(values.mean()), 4), "interval": np.percentile(means, [2.5, 97.5]).round(4).tolist()}


def _readable(found: dict[str, Any]) -> Iterator[str]:
    """Write passages for people: numbered, the answer between arrows."""
    if not found["answers"]:
        yield "no passage has a word of the question"
    for number, each in enumerate(found["answers"], 1):
        text = each["passage"]
        if each["answer"]:
            text = f"{text[: each['start']]}>>{text[each['start'] : each['end']]}<<{text[each['end'] :]}"
        where = ", ".join(filter(None, (each["source"], each["place"])))
        reader = "" if each["score_bert"] is None else f"  bert {each['score_bert']:.2f}"
        yield f"{number}. {each['title'] or '(no title)'}  [{where}]  search {each['score_search']:.2f}{reader}"
        yield f"   {' '.join(text.split())}"
    yield f"{len(found['answers'])} passages by order={found['order']} in {found['seconds']:.2f} s"
