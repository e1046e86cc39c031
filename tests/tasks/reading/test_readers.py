"""Where files are found, and datasets of the hub."""

from pathlib import Path

import pytest
from task_configs import task_config
from task_files import EXPECTED, OWN, read, rows, tagged, write

from bertkit.base.errors import InputError
from bertkit.tasks.reading.readers import read_examples


def test_a_plain_name_stands_for_the_matched_file_only_without_it(tmp_path: Path) -> None:
    write(tmp_path, "MNLI/dev.tsv", "index\tsentence1\tsentence2\tgold_label\n1\ta\tb\tneutral\n")
    assert rows(read(tmp_path, "mnli", "dev"))[0][0] == "1"
    write(tmp_path, "MNLI/dev_matched.tsv", "index\tsentence1\tsentence2\tgold_label\n2\ta\tb\tneutral\n")
    assert rows(read(tmp_path, "mnli", "dev"))[0][0] == "2"


def test_split_files_are_found_or_ambiguity_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train.csv", "train.jsonl"):
        write(tmp_path, name, OWN[name])
    several = r"several files for train \(train\.csv, train\.jsonl\); set task\.files\.train="
    with pytest.raises(InputError, match=several):
        read(tmp_path, "sequence", "train")
    write(tmp_path, "bak/train.csv", OWN["train.csv"])
    write(tmp_path, "bak/train.csv.bak", "")
    assert rows(read(tmp_path / "bak", "sequence", "train")) == EXPECTED
    with pytest.raises(InputError) as caught:
        read(tmp_path / "bak" / "train.csv", "sequence", "train")
    assert str(caught.value) == (
        f"data_dir={tmp_path}/bak/train.csv is a file; set data_dir={tmp_path}/bak task.files.train=train.csv"
    )
    with pytest.raises(InputError, match="data_dir=no/such: no such directory"):
        read(Path("no/such"), "sst2", "train")
    with pytest.raises(InputError, match="task=ax has no train split"):
        read(tmp_path, "ax", "train")
    with pytest.raises(InputError, match="split=all: expected train, dev, test"):
        read(tmp_path, "ax", "all")
    monkeypatch.chdir(tmp_path)
    assert rows(read_examples(task_config("sequence", "task.files.train=train.csv"), None, "train")) == EXPECTED
    absolute = task_config("mrpc", f"task.files.train={tmp_path}/train.csv", "task.columns.text=text", "task.labels=auto",
                           "task.labels_in_files=null", "task.columns.text_pair=null", "task.needs_pair=false", "task.columns.id=id")  # fmt: skip
    assert rows(read_examples(absolute, "/", "train")) == EXPECTED
    with pytest.raises(
        InputError, match=r"task=sequence: no train file; set task\.files\.train= to a file, or data_dir="
    ):
        read_examples(task_config("sequence"), None, "train")


# ---- datasets of the hub


def test_the_hub_without_a_network() -> None:
    with pytest.raises(InputError) as caught:
        read_examples(task_config("mrpc"), None, "dev")
    message = str(caught.value)
    assert message.startswith("task=mrpc: cannot read nyu-mll/glue/mrpc of the hub, split validation (")
    assert message.endswith("set data_dir= to the task's files, or copy a filled HF_HOME to this machine, or set task.hub.path= to another copy")  # fmt: skip
    assert "\n" not in message
    with pytest.raises(InputError, match="task=squad1: no test split on the hub"):
        read_examples(task_config("squad1"), None, "test")


def test_the_hub_by_its_own_column_names_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels come as numbers there, with the names beside them."""
    import datasets

    asked = []

    def load(path: str, name: str | None, split: str, revision: str | None) -> datasets.Dataset:
        asked.append((path, name, split, revision))
        return held

    monkeypatch.setattr(datasets, "load_dataset", load)
    features = {
        "sentence1": datasets.Value("string"),
        "sentence2": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["equivalent", "not_equivalent"]),  # another order than ours
        "idx": datasets.Value("int32"),
    }
    values = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": [0, 1], "idx": [5, 6]}
    held = datasets.Dataset.from_dict(values, features=datasets.Features(features))
    source = read_examples(task_config("mrpc"), None, "dev")
    assert rows(source) == [("5", "a", "c", "equivalent"), ("6", "b", "d", "not_equivalent")]
    held = datasets.Dataset.from_dict({**values, "label": [-1, -1]}, features=datasets.Features(features))
    assert [row[3] for row in rows(read_examples(task_config("mrpc"), None, "test"))] == [None, None]
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-PER"]))
    words = datasets.Sequence(datasets.Value("string"))
    held = datasets.Dataset.from_dict(
        {"tokens": [["Bob", "x"]], "ner_tags": [[1, 0]]},
        features=datasets.Features({"tokens": words, "ner_tags": tags}),
    )
    assert tagged(read_examples(task_config("conll2003"), None, "train")) == [(("Bob", "x"), ("B-PER", "O"))]
    assert asked == [
        ("nyu-mll/glue", "mrpc", "validation", None),
        ("nyu-mll/glue", "mrpc", "test", None),
        ("lhoestq/conll2003", None, "train", None),
    ]
