"""Reading questions for a library, with labels: the answers or the right passage, if known."""

import itertools
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.apps.retrieval.library import Hit
from bertkit.apps.retrieval.passages import has_words
from bertkit.base.blocks import ending_of
from bertkit.base.errors import InputError, named, not_text, warn
from bertkit.base.text_files import is_blank, opened_input, unpacked, unpacking
from bertkit.base.typed_settings import build, read_conf, refuse
from bertkit.tasks.reading.cells import FilledRows, id_text
from bertkit.tasks.reading.formats import beginning, json_format
from bertkit.tasks.reading.labels import is_impossible, items_in, spelled
from bertkit.tasks.reading.readers import input_table
from bertkit.tasks.reading.rows import plain_rows
from bertkit.tasks.scoring.squad import best_of, exact, f1
from bertkit.tasks.task import ENDINGS
from bertkit.tasks.task_config import TaskConfig

ANSWERS = ("answers", "answer", "answer_text")  # the columns that may have them, as for `task=spans`


class AnswerScores(NamedTuple):
    """The scores of an answer by SQuAD's rules, the best over the accepted answers."""

    exact: float
    f1: float


@dataclass(frozen=True)
class Question:
    """A question and its label, the right passage."""

    id: str
    text: str
    answers: tuple[str, ...]  # accepted answers; empty if unknown, or if there is no answer
    context: str | None  # a text that contains the right passage; None if unknown
    passage: str | None  # id or text of the right passage; None if unknown

    @property
    def is_labelled(self) -> bool:
        """Whether a right passage can be recognized."""
        return bool(self.answers) or self.passage is not None

    def is_right(self, hit: Hit) -> bool:
        """Whether a passage is the right one, is in the context and has an answer, in whole words; unknown conditions are not checked."""
        text = _plain(hit.passage)
        if self.passage is not None and self.passage != str(hit.id) and _plain(self.passage) != text:
            return False
        if self.context is not None and text not in _plain(self.context):
            return False
        return not self.answers or any(has_words(text, _plain(answer)) for answer in self.answers)

    def scores_of(self, answer: str) -> AnswerScores:
        """Score an answer."""
        return AnswerScores(best_of(exact, self.answers, answer), best_of(f1, self.answers, answer))


def read_questions(name: str, most: int | None = None) -> list[Question]:
    """Read all or `most` questions from a table, SQuAD's JSON, or a text with one question per line; "-": standard input."""
    task = build(TaskConfig, read_conf("task/spans"))
    path, short_rows, questions = Path(name), FilledRows(), list[Question]()
    with opened_input(name) as (stream, _):
        with unpacking(lambda: name):
            file = unpacked(stream, path)
            format = ENDINGS.get(ending_of(path)) or json_format(beginning(file, "utf-8")) or "text"
        table = input_table(task, file, path, format, short_rows)
        field = "text" if format == "text" else "question"
        if table.names and field not in table.names:
            raise InputError(f"{table.place(1)}: no column '{field}' (it has: {named(table.names)})")
        for number, row, _ in table.rows:
            if len(questions) == most:
                break
            if row != {} and not is_blank(str(row.get(field, ""))):
                questions.append(_question(row, field, table.place(number), number))
    warn(*short_rows.warnings)
    if not questions:
        raise InputError(
            f"input={name}: no questions; expected a column 'question', SQuAD's JSON, or one question per line"
        )
    return questions


def questions_of(rows: object, most: int | None = None) -> list[Question]:
    """Take all or `most` questions from Python: texts, mappings, a data frame or a dataset."""
    numbered = enumerate(plain_rows(rows, "input", "question"), start=1)
    questions = [
        _question(row, "question", f"input: row {number}", number) for number, row in itertools.islice(numbered, most)
    ]
    refuse(not questions and "input: no rows; pass at least one")
    return questions


def _question(row: Mapping[str, Any], field: str, where: str, number: int) -> Question:
    text, context, passage = row.get(field), row.get("context"), row.get("passage")
    for name, value in ((field, text), ("context", "" if context is None else context)):
        if not isinstance(value, str):
            raise InputError(f"{where}: {not_text(name, value)}")
    texts = _texts_in(next((row[name] for name in ANSWERS if row.get(name) not in (None, "")), []))
    kept = tuple(text for text in texts if isinstance(text, str) and text.strip())
    if len(kept) < len(texts):
        raise InputError(f"{where}: field 'answers' is not a text, a list of texts, or SQuAD's answers; correct it")
    named = None if passage in (None, "") else spelled(passage)
    own_id, right = row.get("id"), () if is_impossible(row, where) else kept
    return Question(id_text(number if own_id in (None, "") else own_id), str(text), right, context or None, named)


def _texts_in(answers: object) -> list[object]:
    """Return the answers in a cell: a text, a list of texts, SQuAD's list, or as the hub has them, {"text": [], "answer_start": []}."""
    match answers:
        case {"text": texts}:
            return _texts_in(texts)
        case str() if (items := items_in(answers)) is not None:
            return [*items]
        case list():
            return [answer.get("text") if isinstance(answer, dict) else answer for answer in answers]
    return [answers]


def _plain(text: str) -> str:
    """Return a text to be compared: with the characters that the search takes as the same, in small letters, with single blanks."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
