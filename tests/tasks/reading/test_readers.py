"""Where the files of a task are."""

from pathlib import Path

import pytest
from task_configs import task_config
from task_files import EXPECTED, OWN, read, rows, write

from bertkit.base.errors import InputError
from bertkit.tasks.reading.readers import read_examples


def test_a_plain_name_stands_for_the_matched_file_only_without_it(tmp_path: Path) -> None:
    write(tmp_path, "MNLI/dev.tsv", "index\tsentence1\tsentence2\tgold_label\n1\ta\tb\tneutral\n")
    assert rows(read(tmp_path, "mnli", "dev"))[0][0] == "1"
    write(tmp_path, "MNLI/dev_matched.tsv", "index\tsentence1\tsentence2\tgold_label\n2\ta\tb\tneutral\n")
    assert rows(read(tmp_path, "mnli", "dev"))[0][0] == "2"


def test_where_the_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        f"data_dir={tmp_path}/bak/train.csv is a file; set data_dir={tmp_path}/bak task.files.train=train.csv, for its folder"
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
    with pytest.raises(InputError, match="task=sequence: missing value: set data_dir="):
        read_examples(task_config("sequence"), None, "train")
