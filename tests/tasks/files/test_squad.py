"""SQuAD's files and others of its shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from task_files import check_fault, read, write

from bertkit.tasks.spans import Answer, SpanExample

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


def nested(**changes: Any) -> str:
    question = {"id": "q1", "question": "Where?", "answers": ANSWERS[:1], **changes}
    return json.dumps({"data": [{"paragraphs": [{"context": CONTEXT, "qas": [question]}]}]})


# task, file, split, its content, the error after the folder
FAULTS = [
    ("squad1", "dev-v1.1.json", "dev", nested(answers=[{"text": "France", "answer_start": 16}]), "/dev-v1.1.json:1: question 'q1': answer 'France' is not in its context at answer_start=16 (there is 'rance.'); correct it"),
    ("squad1", "dev-v1.1.json", "dev", nested(answers=[{"text": "é", "answer_start": -8}]), "/dev-v1.1.json:1: question 'q1': answer 'é' is not in its context at answer_start=-8"),
    ("squad1", "dev-v1.1.json", "dev", nested(answers=[{"text": "France", "answer_start": "15"}]), "/dev-v1.1.json:1: question 'q1': answer_start '15' of answer 'France'; expected a whole number"),
    ("squad1", "dev-v1.1.json", "dev", nested(answers=[{"text": "", "answer_start": 3}]), "/dev-v1.1.json:1: question 'q1': empty answer"),
    ("squad1", "dev-v1.1.json", "dev", nested(answers=7), "/dev-v1.1.json:1: question 'q1': field 'answers' holds no answers"),
    ("squad1", "dev-v1.1.json", "dev", nested(answers=[]), "/dev-v1.1.json:1: question 'q1': empty answers, but task=squad1 has one for every question; try task=squad2"),
    ("squad1", "dev-v1.1.json", "dev", nested(answers=None), "/dev-v1.1.json:1: question 'q1': no answers; they are expected here"),
    ("squad2", "dev-v2.0.json", "dev", json.dumps({"data": [{"paragraphs": [{"context": CONTEXT, "qas": [QAS[0], QAS[0]]}]}]}, indent=1), "/dev-v2.0.json:24: id 'q1' is there twice, first at {}/dev-v2.0.json:9"),
    ("squad2", "dev-v2.0.json", "dev", '{"data": [{"paragraphs": [{"qas": []}]}]}', "/dev-v2.0.json: data[0].paragraphs[0]: no field 'context'"),
    ("squad2", "dev-v2.0.json", "dev", '{"data": [{"paragraphs": 3}]}', "/dev-v2.0.json: data[0]: no list 'paragraphs'"),
    ("spans", "dev.jsonl", "dev", '{"question": "a", "context": "b", "answer": "c"}', "/dev.jsonl:1: question '0': answer 'c' is not in its context; correct it"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "name", "split", "text", "message"), FAULTS)
def test_faults(tmp_path: Path, task: str, name: str, split: str, text: str | bytes, message: str) -> None:
    check_fault(tmp_path, task, name, split, text, message)
