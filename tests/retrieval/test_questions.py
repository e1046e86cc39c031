"""Questions with labels, as files have them: a wrong label would be a wrong metric."""

import json
from pathlib import Path

import pytest

from bertkit.apps.retrieval.library import Hit
from bertkit.apps.retrieval.questions import Question, questions_of, read_questions
from bertkit.base.errors import InputError


def labels_of(questions: list[Question]) -> list[tuple[tuple[str, ...], str | None]]:
    return [(question.answers, question.passage) for question in questions]


@pytest.mark.parametrize("column", ["answers", "answer", "answer_text"])
def test_answers_in_a_table(tmp_path: Path, column: str) -> None:
    """A list as pandas writes it, none, a text, a plausible answer; a passage's number beside gaps."""
    path = tmp_path / "questions.csv"
    cells = ["\"['Bonn', 'in Bonn']\",,", "[],,", ",,", "[sic],,", "Rome,True,", ",,3.0"]
    path.write_text(f"question,{column},is_impossible,passage\n" + "".join(f"Where?,{cell}\n" for cell in cells))
    expected = [(("Bonn", "in Bonn"), None), ((), None), ((), None), (("[sic]",), None), ((), None), ((), "3")]
    questions = read_questions(str(path))
    assert labels_of(questions) == expected
    assert [question.is_labelled for question in questions] == [True, False, False, True, False, True]


def test_answers_in_json(tmp_path: Path) -> None:
    rows = [
        {"question": "Where?", "answers": [{"text": "Bonn", "answer_start": 3}, {"text": "Rome", "answer_start": 9}]},
        {"question": "Where?", "answers": {"text": ["Bonn"], "answer_start": [3]}},
        {"question": "Where?", "answers": ["Bonn"], "is_impossible": True},
        {"question": "Where?", "answer": "Bonn", "passage": 3},
        {"question": "Where?", "answers": None},
    ]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    expected = [(("Bonn", "Rome"), None), (("Bonn",), None), ((), None), (("Bonn",), "3"), ((), None)]
    assert labels_of(read_questions(str(path))) == labels_of(questions_of(rows)) == expected
    for wrong in ({"answers": [5]}, {"answers": [" "]}, {"answers": 5}):
        with pytest.raises(InputError, match="input: row 1: field 'answers' is not a text"):
            questions_of([{"question": "Where?", **wrong}])


@pytest.mark.parametrize(("answer", "passage"), [
    ("caf\u00e9", "The cafe\u0301 is open."), ("cafe\u0301", "The caf\u00e9 is open."), ("2020", "In \uff12\uff10\uff12\uff10."),
])  # fmt: skip
def test_a_passage_may_write_the_same_characters_in_another_way(answer: str, passage: str) -> None:
    """The search finds it: a passage with the answer counted as wrong."""
    hit = Hit(7, passage, "", "a.txt", "line 1", "a.txt#1", 1.0)
    (question,) = questions_of([{"question": "Where?", "answers": [answer], "context": passage}])
    assert question.is_right(hit)
    (other,) = questions_of([{"question": "Where?", "answers": ["cafe"]}])
    assert not other.is_right(hit)


def test_rows_of_questions_with_too_few_cells_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "questions.csv"
    path.write_text("question,answers,passage\nWhere?,Bonn,3\nWhen?\nWho?,Ada\n")
    assert [question.text for question in read_questions(str(path))] == ["Where?", "When?", "Who?"]
    warning = f"warning: 2 rows had too few cells, the first at {path}:3; the missing cells are treated as empty\n"
    assert capsys.readouterr().err == warning
