"""Labels and ids as files hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from task_configs import task_config
from task_files import SWAG_HEADER, check_fault, read, rows, write

from bertkit.errors import InputError
from bertkit.tasks.files.readers import read_file


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (["10", "9", "9"], ("9", "10")),
        (["b", "a", "B"], ("B", "a", "b")),
        ([True, False], ("false", "true")),
        ([1.0, 0.0, -2.0], ("-2", "0", "1")),
    ],
)
def test_the_order_of_labels_that_are_not_listed(tmp_path: Path, values: list[Any], labels: tuple[str, ...]) -> None:
    write(tmp_path, "train.jsonl", "".join(json.dumps({"text": "x", "label": value}) + "\n" for value in values))
    assert read(tmp_path, "sequence", "train").labels == labels


def test_labels_of_another_file_hold(tmp_path: Path) -> None:
    write(tmp_path, "dev.tsv", "text\tlabel\nx\tb\ny\tc\n")
    source = read(tmp_path, "sequence", "dev", labels=("c", "b", "a"))
    assert source.labels == ("c", "b", "a")
    assert source.warnings == (f"{tmp_path}/dev.tsv: labels that never come: a",)
    with pytest.raises(InputError, match=r"dev\.tsv:3: label: unknown label 'c'; expected 'b' or 'a'"):
        read(tmp_path, "sequence", "dev", labels=("b", "a"))


def test_a_regression_of_ones_own(tmp_path: Path) -> None:
    write(tmp_path, "train.csv", "text,label\na,-1e3\nb,7\n")
    source = read(tmp_path, "sequence", "train", "labels=regression")
    assert [row[3] for row in rows(source)] == [-1000.0, 7.0]
    assert source.labels == ()
    assert source.describe().endswith("2 rows; labels -1000 to 7, mean -496.50")


@pytest.mark.parametrize("label", ["inf", "many", "nan"])
def test_a_label_that_is_no_number(tmp_path: Path, label: str) -> None:
    write(tmp_path, "train.csv", f"text,label\na,1\nb,{label}\n")
    with pytest.raises(InputError, match=rf"train\.csv:3: label: label '{label}'; expected a number$"):
        read(tmp_path, "sequence", "train", "labels=regression")


SEVERAL = {
    "train.csv": 'text,labels\na,"joy, fear"\nb,\nc,fear\n',
    "train.tsv": "text\tlabel\na\tjoy,fear,joy\nb\t \nc\tfear\n",
    "train.jsonl": '{"text": "a", "labels": ["joy", "fear"]}\n{"text": "b", "labels": []}\n{"text": "c", "labels": "fear"}\n',
    "train.parquet": "",
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_labels_at_once(tmp_path: Path, name: str) -> None:
    if name.endswith("parquet"):
        import pyarrow
        import pyarrow.parquet

        records = [
            {"text": "a", "label": ["joy", "fear"]},
            {"text": "b", "label": []},
            {"text": "c", "label": ["fear"]},
        ]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / name)
    else:
        write(tmp_path, name, SEVERAL[name])
    source = read(tmp_path, "sequence", "train", "multi_label=true")
    assert [row[3] for row in rows(source)] == [("joy", "fear"), (), ("fear",)]
    assert (source.labels, source.warnings) == (("fear", "joy"), ())
    assert source.describe().endswith("3 rows; fear 2 (66.7%), joy 1 (33.3%), (none) 1 (33.3%)")


def test_several_labels_at_once_as_files_have_them(tmp_path: Path) -> None:
    """Parted by what the setting says, numbered by what the files hold, in a test file where they are known."""
    given = ("multi_label=true", "label_separator='|'", "labels=[joy,fear]", "labels_in_files=['0','1']")
    write(tmp_path, "train.tsv", "text\tlabel\na\t1|0\nb\t1|0\n")
    source = read(tmp_path, "sequence", "train", *given)
    assert [row[3] for row in rows(source)] == [("fear", "joy"), ("fear", "joy")]
    assert source.warnings == (
        f"{tmp_path}/train.tsv: every label is 'fear, joy'; nothing can be learned or measured from one class",
    )
    write(tmp_path, "test.tsv", "text\tlabel\na\t1\nb\t\n")
    assert [row[3] for row in rows(read(tmp_path, "sequence", "test", *given))] == [("fear",), None]
    for value, message in (("1|2", "unknown label '2'; expected 'joy' or"), ("1||0", "empty label; expected 'joy'")):
        write(tmp_path, "dev.tsv", f"text\tlabel\na\t1\nb\t{value}\n")
        with pytest.raises(InputError) as caught:
            read(tmp_path, "sequence", "dev", *given)
        assert str(caught.value).startswith(f"{tmp_path}/dev.tsv:3: label: {message}")
    write(tmp_path, "dev.jsonl", '{"text": "a", "label": null}')
    with pytest.raises(InputError, match=r"dev\.jsonl:1: label: empty label"):
        read(tmp_path, "sequence", "dev", *given, "files.dev=dev.jsonl")


def test_labels_may_be_left_unread(tmp_path: Path) -> None:
    path = write(tmp_path, "x.csv", "text,label\na,nobody knows\nb,\n")
    task = task_config("sst2", "task.columns.text=text")
    assert rows(read_file(task, path, is_labelled=False)) == [("0", "a", None, None), ("1", "b", None, None)]
    assert read_file(task, path, is_labelled=False).describe().endswith("2 rows; no labels")


SST = "sentence\tlabel\n"
PAIR = "index\tsentence1\tsentence2\tlabel\n"


# task, file, split, its content, the error after the folder
FAULTS = [
    ("sst2", "dev.tsv", "dev", SST + "a\t0\nb\t2\n", "/dev.tsv:3: label: unknown label '2'; expected 'negative' or 'positive' or '0' or '1'; correct it"),
    ("rte", "dev.tsv", "dev", PAIR + "0\ta\tb\tEntailment\n", "/dev.tsv:2: label: unknown label 'Entailment'; expected 'entailment' or"),
    ("stsb", "dev.tsv", "dev", "sentence1\tsentence2\tscore\na\tb\t5.1\n", "/dev.tsv:2: score: label '5.1'; expected a number from 0 to 5"),
    ("stsb", "dev.tsv", "dev", "sentence1\tsentence2\tscore\na\tb\tnan\n", "/dev.tsv:2: score: label 'nan'; expected a number from 0 to 5"),
    ("sequence", "dev.tsv", "dev", "text\tlabel\na\t1\nb\tgood\n", "/dev.tsv:3: label: mixed label types: 'good' is text, but '1' at {}/dev.tsv:2 is a number; write all alike, or set task.labels="),
    ("sequence", "dev.jsonl", "dev", '{"text": "a", "label": 1}\n\n{"text": "b", "label": "1"}\n', "/dev.jsonl:3: label: mixed label types: '1' is text, but 1 at {}/dev.jsonl:1 is a number"),
    ("sequence", "dev.json", "dev", '[{"text": "a", "label": 1},\n {"text": "b", "label": true}]', "/dev.json:2: label: mixed label types: True is true or false, but 1"),
    ("sequence", "dev.jsonl", "dev", '{"text": "a", "label": ["x"]}\n', "/dev.jsonl:1: label: the label is list"),
    ("swag", "val.csv", "dev", SWAG_HEADER + "0,a,1,x,s,S,gold,a,b,c,d,4\n", "/val.csv:2: label '4'; expected the number of the right ending, 0 to 3"),
    ("swag", "val.csv", "dev", SWAG_HEADER + "0,a,1,x,s,S,gold,a,b,c,d,\n", "/val.csv:2: label ''; expected the number"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "name", "split", "text", "message"), FAULTS)
def test_faults(tmp_path: Path, task: str, name: str, split: str, text: str | bytes, message: str) -> None:
    check_fault(tmp_path, task, name, split, text, message)
