"""Questions for a library, with what is known of the passages that answer them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError
from bertkit.base.text_files import is_blank, opened_input, unpacked, unpacking
from bertkit.search.library import Hit
from bertkit.tasks.reading.formats import ENDINGS, beginning, json_format, suffix_of
from bertkit.tasks.reading.readers import input_table
from bertkit.tasks.reading.tables import Gaps
from bertkit.tasks.scoring.squad import exact, f1
from bertkit.tasks.task_config import TaskConfig


@dataclass(frozen=True)
class Question:
    """A question, and what is known of the right passage; None where it is not."""

    id: str
    text: str
    answers: tuple[str, ...]  # accepted ones; none where they are not known, or where there is none
    context: str | None  # that the passage lies in
    passage: str | None  # its id or its text

    @property
    def is_labelled(self) -> bool:
        """Whether anything says which passage is right."""
        return bool(self.answers) or self.passage is not None

    def is_right(self, hit: Hit) -> bool:
        """Whether a passage is the one, lies in the context, and has an answer: as far as each is known."""
        text = _plain(hit.passage)
        if self.passage is not None and self.passage != str(hit.id) and _plain(self.passage) != text:
            return False
        if self.context is not None and text not in _plain(self.context):
            return False
        return not self.answers or any(_plain(answer) in text for answer in self.answers)

    def scores_of(self, answer: str) -> tuple[float, float]:
        """Give exact match and F1 of an answer, by SQuAD's rules."""
        return max(exact(gold, answer) for gold in self.answers), max(f1(gold, answer) for gold in self.answers)


def read_questions(task: TaskConfig, name: str, most: int | None = None) -> list[Question]:
    """Read questions, the first ones, with what is known of their passages: a table's, SQuAD's, or a question a line.

    Args:
        task: the general one of spans.
        name: the input, a file or "-".
        most: as many at most; None for all.

    Raises:
        InputError: something in the input is wrong, with the line, or it has none.
    """
    path, gaps, questions = Path(name), Gaps(are_filled=True), list[Question]()
    with opened_input(name) as (stream, _):
        with unpacking(lambda: name):
            file = unpacked(stream, path)
            format = ENDINGS.get(suffix_of(path)) or json_format(beginning(file)) or "text"
        table = input_table(task, file, path, format, gaps)
        field = "text" if format == "text" else "question"
        if table.names and field not in table.names:
            raise InputError(f"{table.place(1)}: no column '{field}' (it has: {', '.join(table.names)[:300]})")
        for number, given in table.rows:
            if len(questions) == most:
                break
            if given != {} and not is_blank(str(given.get(field, ""))):
                questions.append(_question(given, field, table.place(number), number))
    if not questions:
        raise InputError(
            f"input={name}: no questions; expected a column 'question', SQuAD's JSON, or a question a line"
        )
    return questions


def _question(given: dict[str, Any], field: str, where: str, number: int) -> Question:
    text, context, passage = given.get(field), given.get("context"), given.get("passage")
    for name, value in ((field, text), ("context", "" if context is None else context)):
        if not isinstance(value, str):
            raise InputError(f"{where}: field '{name}' is {type(value).__name__}, expected text")
    answers = given.get("answers", given.get("answer"))
    if isinstance(answers, dict):  # as on the hub: {"text": [...], "answer_start": [...]}
        answers = answers.get("text")
    listed = [answers] if isinstance(answers, str) else answers if isinstance(answers, list) else []
    texts = [each.get("text") if isinstance(each, dict) else each for each in listed]
    kept = tuple(each for each in texts if isinstance(each, str) and each.strip())
    if len(kept) < len(texts):
        expected = "expected a text, a list of them, or SQuAD's answers"
        raise InputError(f"{where}: field 'answers' holds no texts; {expected}")
    named = None if passage is None else str(passage)
    return Question(str(given.get("id", number)), str(text), kept, context or None, named)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
