"""Texts with entities as bertkit, spaCy, Prodigy, Label Studio and Doccano write them, read as words with tags."""

import json
from pathlib import Path
from typing import Any

import pytest
from task_configs import task_config
from task_files import tagged, write

from bertkit.base.errors import InputError
from bertkit.tasks.reading.kinds import infer_task
from bertkit.tasks.reading.readers import read_file
from bertkit.tasks.reading.rows import plain_rows
from bertkit.tasks.reading.source import SplitExamples

TEXT = "Zoe\u0308  met 💩 Al in New\nYork."  # a combining mark, two spaces, an emoji, a line feed
ENTITIES = [(0, 4, "PER"), (12, 14, "PER"), (18, 26, "LOC")]
WORDS = ("Zoe\u0308", "met", "💩", "Al", "in", "New", "York", ".")
TAGS = ("B-PER", "O", "O", "B-PER", "O", "B-LOC", "I-LOC", "O")
NAMED = [{"start": start, "end": end, "label": label} for start, end, label in ENTITIES]
UNITS = [(0, 4, "PER"), (13, 15, "PER"), (19, 27, "LOC")]  # in UTF-16, as Label Studio counted until 1.5


def regions(places: list[tuple[int, int, str]]) -> list[dict[str, Any]]:
    texts = [TEXT[start:end].replace("\n", "\\n") for start, end, _ in ENTITIES]
    return [
        {"start": start, "end": end, "text": text, "labels": [label]}
        for (start, end, label), text in zip(places, texts, strict=True)
    ]


def task_of_label_studio(places: list[tuple[int, int, str]], *more: dict[str, Any]) -> dict[str, Any]:
    result = [
        *({"type": "labels", "from_name": "label", "to_name": "text", "value": value} for value in regions(places)),
        {"type": "choices", "from_name": "mood", "to_name": "text", "value": {"choices": ["good"]}},
    ]
    done = {"result": result, "was_cancelled": False, "ground_truth": False}
    return {"id": 7, "data": {"text": TEXT}, "annotations": [done, *more], "predictions": []}


CANCELLED: dict[str, Any] = {"result": [], "was_cancelled": True}
RECORDS = [
    {"text": TEXT, "entities": NAMED},
    {"text": TEXT, "entities": [{**one, "text": TEXT[one["start"] : one["end"]], "score": 0.5} for one in NAMED]},
    [TEXT, {"entities": ENTITIES}],  # spaCy 2
    {"text": TEXT, "spans": [{**one, "token_start": 0} for one in NAMED], "tokens": [{"text": "Zoe", "id": 0}], "answer": "accept"},  # Prodigy
    {"text": TEXT, "ents": NAMED, "tokens": [{"id": 0, "start": 0, "end": 4}]},  # Doc.to_json
    task_of_label_studio(ENTITIES),
    task_of_label_studio(UNITS, CANCELLED),
    {"id": 7, "text": TEXT, "label": regions(UNITS), "annotator": 1},  # Label Studio's JSON_MIN
    {"id": 7, "text": TEXT, "label": ENTITIES, "Comments": []},  # Doccano
    {"id": 7, "text": TEXT, "entities": [{"id": 1, "label": b, "start_offset": s, "end_offset": e} for s, e, b in ENTITIES], "relations": []},
]  # fmt: skip


def read(path: Path) -> SplitExamples:
    return read_file(task_config("ner"), path, is_labelled=True)


@pytest.mark.parametrize("ending", ["jsonl", "json"])
@pytest.mark.parametrize("record", RECORDS)
def test_entities_of_other_tools(record: Any, ending: str, tmp_path: Path) -> None:
    content = json.dumps([record] * 2) if ending == "json" else f"{json.dumps(record)}\n" * 2
    path = write(tmp_path, f"train.{ending}", content)
    source = read(path)
    assert tagged(source) == [(WORDS, TAGS)] * 2
    assert source.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert infer_task(task_config("sequence", f"task.files.train={path}"))[0] == ["task=tagging"]
    (row,) = plain_rows([tuple(record) if isinstance(record, list) else record], "train")  # as spaCy's TRAIN_DATA
    path = write(tmp_path, "rows.jsonl", json.dumps(row))
    assert tagged(read(path)) == [(WORDS, TAGS)]


def of(text: str, *entities: Any, **more: Any) -> str:
    return json.dumps({"text": text, "entities": list(entities), **more}) + "\n"


def test_parts_of_words_and_what_is_skipped_are_said(tmp_path: Path) -> None:
    """Blanks at the ends of an entity are no part of a word; the same entity twice is one."""
    content = (
        of("EUR100 in Paris today", [0, 3, "CUR"], [9, 16, "LOC"], [9, 16, "LOC"])
        + of("100km", [3, 5, "UNIT"], answer="accept")
        + of("Bob", [0, 3, "PER"], answer="reject")
        + '{"text": "later", "entities": null}\n'
        + of("nothing")
    )
    source = read(write(tmp_path, "train.jsonl", content))
    path = tmp_path / "train.jsonl"
    assert tagged(source) == [
        (("EUR100", "in", "Paris", "today"), ("B-CUR", "O", "B-LOC", "O")),
        (("100km",), ("B-UNIT",)),
        (("nothing",), ("O",)),
    ]
    assert sorted(source.warnings) == [
        f"{path}: 2 of 3 entities begin or end inside a word, the first at {path}:1: 'EUR'; the whole words are tagged",
        f"{path}: skipped 1 row with the answer reject or ignore (Prodigy's), the first at {path}:3",
        f"{path}: skipped 1 row without a label, the first at {path}:4: entities",
    ]


@pytest.mark.parametrize(("line", "message"), [
    (of("New York", [0, 8, "LOC"], [4, 8, "PER"]), "'York' (PER, 4 to 8) shares a word with another, LOC; a word has one tag"),
    (of("EUR100", [0, 3, "CUR"], [3, 6, "NUM"]), "'100' (NUM, 3 to 6) shares a word with another, CUR"),
    (of("New York", [0, 9, "LOC"]), "start to end is no part of a text of 8 characters"),
    (of("New York", [4, 4, "LOC"]), "start to end is no part of a text of 8 characters"),
    (of("New York", [-4, -1, "LOC"]), "start to end is no part of a text of 8 characters"),
    (of("a  b", [1, 3, "LOC"]), "the entity '  ' (LOC, 1 to 3) has no word; remove it"),
    (of("New York", {"start": 0, "end": 3, "label": "LOC", "text": "York"}), "start to end is not 'York'; count characters from 0"),
    (of("New York", {"start": 0, "end": 3, "type": "LOC"}), "expected a start, an end and a label, such as {\"start\": 0"),
    (of("New York", {"start": "/p[1]", "end": "/p[1]", "label": "LOC"}), "expected a start, an end and a label"),
    (of("New York", {"start": 0, "end": 3, "labels": ["LOC", "PER"]}), "expected a start, an end and a label"),
    (of("New York", [0, 3, 5]), "expected a start, an end and a label"),
    (json.dumps({"text": "a", "entities": "LOC"}), "'LOC': expected a list of entities"),
    (json.dumps(task_of_label_studio(ENTITIES, {"result": []})), "2 annotations of one text; mark one of them as the ground truth"),
])  # fmt: skip
def test_wrong_entities_name_their_line(line: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, "train.jsonl", of("Al", [0, 2, "PER"]) + line)
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert message in str(caught.value)
