"""The task of a training file, inferred from its format, columns and labels."""

import json
from pathlib import Path

import pytest
from conftest import real_data
from task_configs import task_config
from task_files import write

from bertkit.base.errors import InputError
from bertkit.tasks.reading.kinds import infer_task

SEVERAL = (
    "task=classification task.multi_label=true task.metrics=[f1_micro,f1_macro,accuracy] task.best_metric=f1_micro"
)
ACCURACY = "task=tagging task.metrics=[accuracy] task.best_metric=accuracy"
SQUAD = {"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "1", "question": "q", "answers": []}]}]}]}
FILES = [  # the name and content of a file; the settings
    ("a.csv", "text,label\na,good\nb,bad\nc,bad\n", "task=classification"),
    ("a.csv", "text;label\na, b;good\nb;bad\nc;bad\n", "task=classification"),
    ("a.tsv", "text\tlabel\n" + "".join(f"a\t{n % 5}\n" for n in range(31)), "task=classification"),
    ("a.csv", "text,label\na,1.5\nb,2\n", "task=regression"),
    ("a.csv", "text,label\n" + "".join(f"a,{n}\n" for n in range(31)), "task=regression"),
    ("a.csv", 'text,label\na,"joy,anger"\nb,joy\nc,\nd,"joy,fear"\ne,"anger,fear"\nf,fear\n', SEVERAL),
    ("a.jsonl", '{"text": "a", "label": ["x", "y"]}\n{"text": "b", "label": ["x"]}\n', SEVERAL),
    ("a.jsonl", '{"tokens": ["a", "b"], "ner_tags": ["B-X", "O"]}\n', "task=tagging"),
    ("a.jsonl", '{"tokens": "a b", "tags": "B-X O"}\n', "task=tagging"),
    ("a.csv", "tokens,tags\n\"['a', 'b']\",\"['B-X', 'O']\"\n", "task=tagging"),
    ("a.csv", "tokens,tags\na b,NOUN VERB\n", ACCURACY),
    ("a.jsonl", '{"tokens": ["a", "b"], "pos_tags": ["NOUN", "VERB"]}\n', ACCURACY),
    ("a.json", json.dumps(SQUAD), "task=qa"),
    ("a.txt", "Sue B-PER\nran O\n\nBob B-PER\nran O\n", "task=tagging"),
    ("a.data", "text,label\na,good\nb,bad\n", "task=classification task.format=csv"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "settings"), FILES)
def test_kind_of_task_is_inferred_from_file(tmp_path: Path, name: str, content: str, settings: str) -> None:
    path = write(tmp_path, name, content)
    assert " ".join(infer_task(task_config("sequence", f"task.files.train={path}"))[0]) == settings


@pytest.mark.parametrize(("labels", "is_told"), [("12345", True), ("01", False), ("abc", False)])
def test_stars_may_be_the_labels_of_a_regression(tmp_path: Path, labels: str, is_told: bool) -> None:
    path = write(tmp_path, "a.csv", "text,label\n" + "".join(f"a,{label}\nb,{label}\n" for label in labels))
    _, reason = infer_task(task_config("sequence", f"task.files.train={path}"))
    assert ("set task=regression" in reason) == is_told


@pytest.mark.parametrize(
    ("parts", "settings"),
    [
        (("conll2003", "eng.testa"), "task=tagging"),
        (("ud_english_ewt", "en_ewt-ud-dev.conllu"), ACCURACY),
        (("squad", "dev-v1.1.public.json"), "task=qa"),
        (("glue", "SST-2", "dev.tsv"), "task=classification"),
        (("glue", "MRPC", "dev.tsv"), "task=classification"),
    ],
)
def test_kind_of_task_is_inferred_from_real_files(parts: tuple[str, ...], settings: str) -> None:
    columns = ["task.columns.text='#1 String'", "task.columns.label=Quality"] if "MRPC" in parts else []
    task = task_config("sequence", f"task.files.train={real_data(*parts)}", *columns)
    assert " ".join(infer_task(task)[0]) == settings


@pytest.mark.parametrize(
    ("content", "words"), [("Opinion;City;Note\na, b;c;d\n", "has: 'Opinion', 'City', 'Note'"), ("text,label\na,b\nc,d\ne,f\n", "3 different labels in 3 rows"), ("text,y\na,b\n", "no column 'label'")]
)  # fmt: skip
def test_file_that_fits_no_task_is_refused(tmp_path: Path, content: str, words: str) -> None:
    path = write(tmp_path, "a.csv", content)
    with pytest.raises(InputError, match=words):
        infer_task(task_config("sequence", f"task.files.train={path}"))
