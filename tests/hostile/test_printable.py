"""Labels of any printable text work in every command; a control character is refused before training."""

import json
from pathlib import Path

import pytest
from conftest import TINY_FINETUNE, Capsys, refused
from task_files import write

import bertkit
from bertkit.cli import run

ODD = {
    "joined emoji": "\U0001f469\u200d\U0001f4bb", "Persian": "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "soft hyphen": "so\u00adft",
    "byte order mark": "a\ufeffb", "right to left": "\u202eabc", "no-break space": "a\u00a0b", "wide space": "\u4e2d\u3000\u6587",
    "private": "a\ue000", "unassigned": "a\U000e0fff",
}  # fmt: skip
CONTROL = {"\x1b[31mred": "U+001B", "a\x07": "U+0007", "a\x85b": "U+0085", "a\u2028b": "U+2028"}


def write_texts(folder: Path, labels: list[str]) -> None:
    for name in ("train", "dev"):
        rows = [{"text": f"kan lon {number}", "label": label} for number, label in enumerate([*labels, *labels])]
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def test_printable_labels_of_texts(start: Path, tmp_path: Path) -> None:
    write_texts(tmp_path, [*ODD.values()])
    files = [f"data_dir={tmp_path}", f"model_dir={start}", f"output_dir={tmp_path}/run"]
    assert run(["finetune", *files, *TINY_FINETUNE]) == 0
    assert run(["evaluate", f"model_dir={tmp_path}/run", f"data_dir={tmp_path}"]) == 0
    assert run(["export", f"model_dir={tmp_path}/run", f"output_dir={tmp_path}/exported"]) == 0
    for model in ("run", "exported"):
        predicted = tmp_path / f"{model}.jsonl"
        assert (
            run(["predict", f"model_dir={tmp_path}/{model}", f"input={tmp_path}/dev.jsonl", f"output={predicted}"]) == 0
        )
        rows = [json.loads(line) for line in predicted.read_text(encoding="utf-8").split("\n")[:-1]]
        assert len(rows) == 2 * len(ODD)
        assert {*rows[0]["probabilities"]} == {*ODD.values()}


def test_tags_with_odd_characters_are_printed(start: Path, tmp_path: Path) -> None:
    sentence = "".join(f"kan B-{label}\nlon I-{label}\n" for label in ODD.values() if not label.isspace())
    for name in ("train", "dev"):
        (tmp_path / f"{name}.conll").write_text(f"{sentence}ten O\n\n" * 3, encoding="utf-8")
    files = [f"data_dir={tmp_path}", f"model_dir={start}", f"output_dir={tmp_path}/run"]
    assert run(["finetune", "task=tagging", *files, *TINY_FINETUNE[1:]]) == 0
    predicted = tmp_path / "tags.jsonl"
    assert run(["predict", f"model_dir={tmp_path}/run", f"input={tmp_path}/dev.conll", f"output={predicted}"]) == 0
    assert bertkit.load_predictor(tmp_path / "run").labels == (
        "O", *(f"{mark}-{label}" for label in sorted(ODD.values()) for mark in "BI")
    )  # fmt: skip


def test_printable_labels_of_an_estimator(start: Path) -> None:
    labels = [*ODD.values()]
    classifier = bertkit.BertClassifier(str(start), num_epochs=1, batch_sequences=8, max_seq_length=16)
    classifier.fit(["kan lon", "mir rur"] * len(labels), labels * 2)
    assert {*classifier.predict(["kan", "rur"])} <= {*labels}


@pytest.mark.parametrize("label", CONTROL)
def test_control_characters(label: str, start: Path, tmp_path: Path, capsys: Capsys) -> None:
    write_texts(tmp_path, ["plain", label])
    files = [f"data_dir={tmp_path}", f"model_dir={start}", f"output_dir={tmp_path}/run"]
    refused(run(["finetune", *files, *TINY_FINETUNE]), f"has the control character {CONTROL[label]}; remove it", capsys)
    tags = write(tmp_path / "tags", "train.conll", f"kan O\nlon B-{label}\n\n")
    write(tmp_path / "tags", "dev.conll", "kan O\n\n")
    tagging = ["task=tagging", f"data_dir={tmp_path}/tags", *files[1:]]
    refused(run(["finetune", *tagging]), f"{tags}:2: tag: label", capsys)
    listed = [*files, *TINY_FINETUNE, f'task.labels=[plain,"{label}"]']
    refused(run(["finetune", *listed]), f"has the control character {CONTROL[label]}; remove it", capsys)
    assert not (tmp_path / "run").exists()
    classifier = bertkit.BertClassifier(str(start), num_epochs=1)
    with pytest.raises(ValueError, match=r"y: the label .* has the control character"):
        classifier.fit(["kan", "lon"], ["plain", label])


def test_control_character_in_label_is_located(start: Path, tmp_path: Path, capsys: Capsys) -> None:
    write_texts(tmp_path, ["plain", "a\x1bb"])
    files = [f"data_dir={tmp_path}", f"model_dir={start}", f"output_dir={tmp_path}/run"]
    wrong = f"{tmp_path}/train.jsonl:2: label: label 'a\\x1bb' has the control character U+001B; remove it"
    refused(run(["finetune", *files, *TINY_FINETUNE]), wrong, capsys)
