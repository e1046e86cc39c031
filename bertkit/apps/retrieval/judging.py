"""How good rankings are: the ranks of the right passages, and metrics with intervals; and the formats of rankings."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TextIO

import numpy as np

from bertkit.apps.retrieval.questions import AnswerScores, Question
from bertkit.apps.retrieval.ranking import Candidate
from bertkit.base.errors import InputError
from bertkit.base.plugins import option
from bertkit.base.text_files import JsonObject
from bertkit.tasks.reading.writers import OutputFormat, word_cell, write_lines
from bertkit.tasks.scoring.sampling import Interval, Mean

AT = (1, 5, 20)  # the values of k in accuracy at k, up to the number of candidates


class RankMetrics:
    """The ranks of the correct passages of labelled questions, for each order of results."""

    def __init__(self, orders: Sequence[str], has_reader: bool, num_candidates: int) -> None:
        self.has_reader, self.at = has_reader, [k for k in AT if k <= num_candidates]
        # from 1; infinity without a correct passage
        self.ranks: dict[str, list[float]] = {order: [] for order in orders}
        self.answered: dict[str, list[AnswerScores]] = {order: [] for order in orders}

    @property
    def num_labelled(self) -> int:
        """The number of questions with a label so far."""
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
        measured: dict[str, dict[str, Mean]] = {}
        for order, values in self.ranks.items():
            ranks = np.array(values)
            own = {f"accuracy_at_{k}": (ranks <= k).astype(float) for k in self.at} | {"mrr": 1 / ranks}
            if self.answered[order]:
                own |= dict(zip(AnswerScores._fields, np.array(self.answered[order]).T, strict=True))
            measured[order] = {name: Mean(values) for name, values in own.items()}
            summary[order] = {
                name: _rounded(values.mean(), measured[order][name].interval()) for name, values in own.items()
            }
        for other in [order for order in measured if order != "both" and "both" in measured]:
            summary[f"both_less_{other}"] = {
                name: _rounded((mean.values - measured[other][name].values).mean(), mean.gain(measured[other][name]))
                for name, mean in measured["both"].items()
            }
        return summary


def _rounded(mean: float, interval: Interval) -> JsonObject:
    return {"mean": round(float(mean), 4), "interval": [round(end, 4) for end in interval]}


@dataclass(frozen=True)
class Ranking:
    """The passages for a question in each order, with their scores."""

    question: Question
    ordered: dict[str, list[tuple[Candidate, float]]]
    row: Callable[[], JsonObject]  # returns the question and the first passages as a mapping


@option("passage_format", "")
class PassageFormat(OutputFormat):
    """Rankings as JSON lines; a subclass writes another format."""

    one_order: ClassVar[str] = ""  # what a file is called that has one order of passages, for the questions of a file

    def __init__(self, file: TextIO, top_k: int) -> None:
        self.file, self.top_k = file, top_k

    def put(self, ranking: Ranking) -> None:
        """Write the passages for a question."""
        write_lines(self.file, [ranking.row()])


@option("passage_format", ".trec")
class TrecRun(PassageFormat):
    """A line for each of the `top_k` best documents: question, Q0, document, rank, score, name of the run.

    A document has the score of its best passage (Dai and Callan 2019, MaxP), since trec_eval refuses a document that is listed twice.
    """

    one_order = "a TREC run"

    def __init__(self, file: TextIO, top_k: int) -> None:
        super().__init__(file, top_k)
        self.ids = set[str]()  # of the questions so far

    def put(self, ranking: Ranking) -> None:
        """Write the documents for a question; raises InputError for an id that another question has."""
        ((order, ordered),) = ranking.ordered.items()
        best = dict[str, float]()
        for candidate, score in ordered:
            best.setdefault(word_cell(candidate.hit.document), score)
        of_question = word_cell(ranking.question.id)
        if of_question in self.ids:
            raise InputError(
                f"question id {of_question!r:.80} occurs twice, which would be one question in a TREC run; change one"
            )
        self.ids.add(of_question)
        for rank, (document, score) in enumerate(itertools.islice(best.items(), self.top_k), 1):
            self.file.write(f"{of_question} Q0 {document} {rank} {score} bertkit-{order}\n")
