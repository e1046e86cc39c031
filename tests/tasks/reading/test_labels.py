"""Labels and ids as files hold them."""

import json
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from task_configs import task_config
from task_files import read, rows, write

from bertkit.base.errors import InputError
from bertkit.tasks.reading.readers import read_file
from bertkit.tasks.reading.training_data import read_training_data
from bertkit.tasks.task_config import TaskConfig


@pytest.mark.parametrize(("values", "labels"), [
    (["10", "9", "9"], ("9", "10")),
    (["b", "a", "B"], ("B", "a", "b")),
    ([True, False], ("false", "true")),
    ([1.0, 0.0, -2.0], ("-2", "0", "1")),
])  # fmt: skip
def test_the_order_of_labels_that_are_not_listed(tmp_path: Path, values: list[Any], labels: tuple[str, ...]) -> None:
    write(tmp_path, "train.jsonl", "".join(json.dumps({"text": "x", "label": value}) + "\n" for value in values))
    assert read(tmp_path, "sequence", "train").labels == labels


def test_labels_of_another_file_hold(tmp_path: Path) -> None:
    write(tmp_path, "dev.tsv", "text\tlabel\nx\tb\ny\tc\n")
    source = read(tmp_path, "sequence", "dev", labels=("c", "b", "a"))
    assert source.labels == ("c", "b", "a")
    assert source.warnings == (f"{tmp_path}/dev.tsv: labels without an example: a",)
    with pytest.raises(InputError, match=r"dev\.tsv:3: label: unknown label 'c'"):
        read(tmp_path, "sequence", "dev", labels=("b", "a"))


def test_a_regression_of_ones_own(tmp_path: Path) -> None:
    write(tmp_path, "train.csv", "text,label\na,-1e3\nb,7\n")
    source = read(tmp_path, "sequence", "train", "labels=regression")
    assert [row[3] for row in rows(source)] == [-1000.0, 7.0]
    assert source.labels == ()
    assert source.describe().endswith("2 rows; labels -1000 to 7, mean -496.50")


@pytest.mark.parametrize("label", ["inf", "many", "nan", "1_000"])
def test_a_label_that_is_no_number(tmp_path: Path, label: str) -> None:
    write(tmp_path, "train.csv", f"text,label\na,1\nb,{label}\n")
    with pytest.raises(InputError, match=rf"train\.csv:3: label: label '{label}'"):
        read(tmp_path, "sequence", "train", "labels=regression")


@pytest.mark.parametrize("label", ["true", "NaN", "Infinity", "[1]", "1" + 400 * "0"])
def test_a_label_of_json_that_is_no_number(tmp_path: Path, label: str) -> None:
    write(tmp_path, "train.jsonl", f'{{"text": "a", "label": 1}}\n{{"text": "b", "label": {label}}}\n')
    with pytest.raises(InputError, match=r"train\.jsonl:2: label: (mixed )?label "):
        read(tmp_path, "sequence", "train", "labels=regression")


def test_a_class_that_may_be_a_missing_label_is_named(tmp_path: Path) -> None:
    write(tmp_path, "train.csv", "text,label\na,good\nb,nan\nc,NA\nd,bad\ne,NA\nf,good\n")
    source = read(tmp_path, "sequence", "train")
    start = f"{tmp_path}/train.csv: 'NA' and 'nan' may stand for missing labels, but count as classes; "
    (warning,) = source.warnings
    assert warning.startswith(start)
    (setting,) = shlex.split(warning.removeprefix(start).removesuffix(" skips these rows"))
    skipped = read(tmp_path, "sequence", "train", setting.removeprefix("task."))
    assert [row[1] for row in rows(skipped)] == ["a", "d", "f"]
    assert read(tmp_path, "sequence", "train", "labels=[good,'nan','NA',bad]").warnings == ()


def test_decimal_commas_of_a_regression(tmp_path: Path) -> None:
    """Read where they can be nothing else; a thousands separator is not taken for one, in either direction."""
    write(tmp_path, "train.csv", "text;label\na;180,02\nb;-3\nc;0,125\nd;12,5\n")
    source = read(tmp_path, "sequence", "train", "labels=regression")
    assert [row[3] for row in rows(source)] == [180.02, -3.0, 0.125, 12.5]
    for cells, words in (
        ("1,234", "label '1,234'; expected a number, as in 1234.5"),
        ("180,02\nb;1.500", "'1.500' at .*train.csv:3 has a decimal point, '180,02' at .*train.csv:2 a decimal comma"),
        ("1.500\nb;180,02", "'1.500' at .*train.csv:2 has a decimal point, '180,02' at .*train.csv:3 a decimal comma"),
    ):
        write(tmp_path, "train.csv", f"text;label\na;{cells}\n")
        with pytest.raises(InputError, match=words):
            read(tmp_path, "sequence", "train", "labels=regression")


class Chosen(NamedTuple):
    """The settings of `finetune` that choose its examples."""

    task: TaskConfig
    data_dir: str
    dev_share: float | None = None
    seed: int = 0
    max_train_examples: int | None = None


def test_both_splits_have_the_same_decimal_mark(tmp_path: Path) -> None:
    write(tmp_path, "train.csv", "text;label\na;1000,5\nb;3\n")
    write(tmp_path, "dev.csv", "text;label\na;2\nb;1.500\n")
    settings = Chosen(task_config("sequence", "task.labels=regression"), str(tmp_path))
    with pytest.raises(
        InputError, match=r"'1.500' at .*dev.csv:3 has a decimal point, '1000,5' at .*train.csv:2 a dec"
    ):
        read_training_data(settings)
    write(tmp_path, "dev.csv", "text;label\na;2\nb;1,5\n")
    assert [example.label for example in read_training_data(settings).dev.examples] == [2.0, 1.5]


def test_quotes_around_labels_are_told(tmp_path: Path) -> None:
    """A blank before a quote makes the quote a part of the cell."""
    write(tmp_path, "train.csv", "text,label\na, \"x\"\nb,y\nc,'y'\nd,it's\n")
    (line,) = (line for line in read(tmp_path, "sequence", "train").warnings if "quotes" in line)
    assert line.startswith(f"{tmp_path}/train.csv: the labels '\"x\"', \"'y'\" have quotes around them; ")
    write(tmp_path, "train.csv", 'text,label\na,"x"\nb,y\n')
    assert read(tmp_path, "sequence", "train").warnings == ()


def test_blanks_around_tags_are_no_part_of_them(tmp_path: Path) -> None:
    write(
        tmp_path,
        "train.jsonl",
        '{"words": ["a", "b"], "tags": ["O", "B-PER "]}\n{"words": ["c"], "tags": [" B-PER"]}\n',
    )
    source = read(tmp_path, "tagging", "train")
    assert source.labels == ("O", "B-PER", "I-PER")
    assert [example.tags for example in source.examples] == [("O", "B-PER"), ("B-PER",)]


def test_two_names_of_a_column_are_told(tmp_path: Path) -> None:
    write(tmp_path, "train.csv", "text,sentence1,sentence2,label\na,b,c,x\nd,e,f,y\n")
    source = read(tmp_path, "sequence", "train")
    assert (source.examples[0].text, source.examples[0].text_pair) == ("a", "c")
    line = f"{tmp_path}/train.csv: the column of text may be 'text' or 'sentence1'; 'text' is taken, unless task.columns.text= names another"
    assert source.warnings == (line,)
    assert read(tmp_path, "sequence", "train", "columns.text=sentence1").warnings == ()


def test_two_columns_of_labels_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "train.csv", "text,label,label\na,x,y\n")
    with pytest.raises(InputError, match=r"train\.csv:1: two columns 'label'; rename one of them$"):
        read(tmp_path, "sequence", "train")


def test_a_label_that_unicode_writes_otherwise_is_shown_by_its_codes(tmp_path: Path) -> None:
    write(tmp_path, "dev.csv", "text,label\na,cafe\u0301\n")
    with pytest.raises(InputError, match=r"unknown label 'cafe\\u0301'; expected 'bar' or 'caf\u00e9'; "):
        read(tmp_path, "sequence", "dev", labels=("bar", "caf\u00e9"))


def test_both_splits_have_pairs_of_texts_or_none(tmp_path: Path) -> None:
    single, pairs, renamed = (
        "text,label\na,x\nb,y\n",
        "text,text_pair,label\na,b,x\nb,c,y\n",
        "text,pair,label\na,b,x\nb,c,y\n",
    )
    for train, dev, has_pairs in ((pairs, pairs, "both"), (single, single, "none"), (single, renamed, "none")):
        write(tmp_path, "train.csv", train)
        write(tmp_path, "dev.csv", dev)
        read_split = read_training_data(Chosen(task_config("sequence"), str(tmp_path))).dev
        assert {example.text_pair is not None for example in read_split.examples} == {has_pairs == "both"}
    for train, dev, lacking, having in ((pairs, renamed, "dev", "train"), (single, pairs, "train", "dev")):
        write(tmp_path, "train.csv", train)
        write(tmp_path, "dev.csv", dev)
        words = f"{lacking}.csv: no column 'text_pair' or 'sentence2', but .*{having}.csv has 'text_pair'"
        with pytest.raises(InputError, match=words):
            read_training_data(Chosen(task_config("sequence"), str(tmp_path)))
        alone = task_config("sequence", "task.columns.text_pair=null")
        assert read_training_data(Chosen(alone, str(tmp_path))).dev.examples[0].text_pair is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("dev.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": -1}\n{"text": "c", "label": 0}\n'),
        ("dev.csv", "text,label\na,1.0\nb,-1.0\nc,0.0\n"),
    ],
)
def test_rows_are_skipped_by_a_number_whatever_its_type(tmp_path: Path, name: str, content: str) -> None:
    write(tmp_path, name, content)
    source = read(tmp_path, "sequence", "dev", "skip_labels=['-1']")
    assert (source.labels, [example.text for example in source.examples]) == (("0", "1"), ["a", "c"])
    assert source.warnings == (f"{tmp_path}/{name}: skipped 1 row with the label '-1'",)


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

        labels = {"a": ["joy", "fear"], "b": [], "c": ["fear"]}
        records = [{"text": text, "label": label} for text, label in labels.items()]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / name)
    else:
        write(tmp_path, name, SEVERAL[name])
    source = read(tmp_path, "sequence", "train", "multi_label=true")
    assert [row[3] for row in rows(source)] == [("joy", "fear"), (), ("fear",)]
    assert (source.labels, source.warnings) == (("fear", "joy"), ())
    assert source.describe().endswith("3 rows; fear 2 (66.7%), joy 1 (33.3%), (none) 1 (33.3%)")


def test_several_labels_at_once_as_files_have_them(tmp_path: Path) -> None:
    """Parted by what the setting says, numbered by what the files hold, in a test file where they are known."""
    arguments = ("multi_label=true", "label_separator='|'", "labels=[joy,fear]", "labels_in_files=['0','1']")
    write(tmp_path, "train.tsv", "text\tlabel\na\t1|0\nb\t1|0\n")
    source = read(tmp_path, "sequence", "train", *arguments)
    assert [row[3] for row in rows(source)] == [("fear", "joy"), ("fear", "joy")]
    assert source.warnings == (
        f"{tmp_path}/train.tsv: every label is 'fear, joy'; nothing can be learned from a single class",
    )
    write(tmp_path, "test.tsv", "text\tlabel\na\t1\nb\t\n")
    assert [row[3] for row in rows(read(tmp_path, "sequence", "test", *arguments))] == [("fear",), None]
    for value, message in (("1|2", "unknown label '2'"), ("1||0", "empty label")):
        write(tmp_path, "dev.tsv", f"text\tlabel\na\t1\nb\t{value}\n")
        with pytest.raises(InputError) as caught:
            read(tmp_path, "sequence", "dev", *arguments)
        assert str(caught.value).startswith(f"{tmp_path}/dev.tsv:3: label: {message}")
    write(tmp_path, "dev.jsonl", '{"text": "a", "label": null}')
    with pytest.raises(InputError, match=r"dev\.jsonl:1: label: empty label"):
        read(tmp_path, "sequence", "dev", *arguments, "files.dev=dev.jsonl")


def test_another_separator_of_labels_is_named(tmp_path: Path) -> None:
    """Each combination would be a class of its own; a single label may hold the mark."""
    for mark in ";|":
        write(tmp_path, "train.csv", f"text,label\na,joy{mark}fear\nb,joy\nc,fear{mark} anger\nd,anger\ne,fear\n")
        wrong = rf"train\.csv:2: label: 'joy\{mark}fear' looks like several labels of other rows, but no cell has ','; set \"task\.label_"
        with pytest.raises(InputError, match=wrong):
            read(tmp_path, "sequence", "train", "multi_label=true")
        way = ("multi_label=true", f"label_separator='{mark}'")
        assert read(tmp_path, "sequence", "train", *way).labels == ("anger", "fear", "joy")
        assert len(read(tmp_path, "sequence", "train").labels) == 5
        write(tmp_path, "train.csv", f"text,label\na,joy{mark}fear\nb,joy{mark}anger\n")
        with pytest.raises(InputError, match="looks like several labels of other rows"):
            read(tmp_path, "sequence", "train", "multi_label=true")
        write(tmp_path, "train.csv", f"text,label\na,joy{mark}fear\nb,anger\n")  # nothing tells
        assert read(tmp_path, "sequence", "train", "multi_label=true").labels == ("anger", f"joy{mark}fear")
    for content in ('{"text": "a", "label": ["a|b"]}\n{"text": "a", "label": ["a"]}\n{"text": "a", "label": ["b"]}\n',
                    '{"text": "a", "label": "a|b"}\n{"text": "a", "label": "a,c"}\n{"text": "a", "label": "b"}\n'):  # fmt: skip
        write(tmp_path, "train.jsonl", content)
        assert "a|b" in read(tmp_path, "sequence", "train", "multi_label=true", "files.train=train.jsonl").labels


def test_labels_may_be_left_unread(tmp_path: Path) -> None:
    path = write(tmp_path, "x.csv", "text,label\na,nobody knows\nb,\n")
    task = task_config("sst2", "task.columns.text=text")
    assert rows(read_file(task, path, is_labelled=False)) == [("0", "a", None, None), ("1", "b", None, None)]
    assert read_file(task, path, is_labelled=False).describe().endswith("2 rows; no labels")
