"""SQuAD's files and others of its shape."""

import json
from pathlib import Path

import pytest
from task_files import read, write

from bertkit.tasks.spans.examples import Answer, SpanExample

CONTEXT = "Normandy is in France. 😀 é France"
QUESTIONS = [
    SpanExample("q1", "Where?", CONTEXT, (Answer("France", 15), Answer("France", 27))),
    SpanExample("q2", "Why?", CONTEXT, ()),
]
ANSWERS = [{"text": "France", "answer_start": 15}, {"text": "France", "answer_start": 27}]
QAS = [
    {"id": "q1", "question": "Where?", "answers": ANSWERS, "is_impossible": False},
    {"id": "q2", "question": "Why?", "answers": [], "is_impossible": True, "plausible_answers": ANSWERS},
]
NESTED = {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": QAS}]}]}
LISTS = {"text": ["France", "France"], "answer_start": [15, 27]}
FLAT = [{**QAS[0], "context": CONTEXT, "answers": LISTS}, {**QAS[1], "context": CONTEXT}]
SQUAD = {
    "train-v2.0.json": json.dumps(NESTED),
    "train-v2.0.flat.json": json.dumps({"data": FLAT}),
    "train-v2.0.array.json": json.dumps(FLAT, indent=2),
    "train-v2.0.lines.json": "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in FLAT),
}


@pytest.mark.parametrize("name", SQUAD)
def test_squad(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, SQUAD[name])
    source = read(tmp_path, "squad2", "train")
    assert source.examples == QUESTIONS
    assert source.labels == source.warnings == ()
    assert source.describe().endswith("2 questions; answered 1 (50.0%), unanswerable 1 (50.0%)")


def test_answers_that_are_texts_alone(tmp_path: Path) -> None:
    write(tmp_path, "train.csv", f"id,question,context,answer\nq1,Where?,{CONTEXT},France\nq2,Why?,{CONTEXT},\n")
    source = read(tmp_path, "spans", "train")
    assert [example.answers for example in source.examples] == [(Answer("France", 15),), ()]  # type: ignore[union-attr]


def test_questions_without_answers(tmp_path: Path) -> None:
    write(tmp_path, "test-v1.1.json", json.dumps([{"id": 5, "question": "Where?", "context": ""}]))
    source = read(tmp_path, "squad1", "test")
    assert source.examples == [SpanExample("5", "Where?", "", None)]
    assert source.warnings == (
        f"1 examples have an empty text, the first at {tmp_path}/test-v1.1.json:1: question '5'",
    )
