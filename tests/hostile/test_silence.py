"""What used to be taken without a word has an error, or a warning."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cases import Case, check, each
from conftest import TINY_FINETUNE, TINY_PRETRAIN, Capsys, refused

from bertkit.base.errors import InputError
from bertkit.cli import run
from bertkit.data.texts.sources import _below
from bertkit.interop.load import load_tokenizer
from bertkit.tasks.reading.writers import word_cell as _cell

TEXT = "kan lon ten.\nmir rur.\n\n" * 60
TRAIN = ["pretrain", "data_dir={shared}/data", "output_dir=o", *TINY_PRETRAIN]
PREPARE = ["prepare", "output_dir=o", "tokenizer.vocab_size=131"]
NUMBERS = ["task.labels=regression", "task.metrics=[pearson]", "task.best_metric=pearson"]
TUNE = ["finetune", *TINY_FINETUNE, "model_dir={shared}/pre", "data_dir={here}", "output_dir=o"]


def rows(*labels: object) -> dict[str, str]:
    lines = "".join(json.dumps({"text": "kan", "label": label}) + "\n" for label in labels) * 4
    return {"train.jsonl": lines, "dev.jsonl": lines}


def one_line_of_pearson(folder: Path, done: subprocess.CompletedProcess[str]) -> None:
    """A warning of Python is a line like all others, once, without a place in the code."""
    named = "warning: pearson is not defined: predictions are all the same; reported as 0"
    assert [line for line in done.stderr.splitlines() if "pearson" in line] == [named]


CASES = [
    Case("a folder without a name", [*TRAIN, "output_dir="], "missing value: set output_dir="),
    Case("data without a name", ["pretrain", "data_dir=", "output_dir=o"], "missing value: set data_dir="),
    Case("a model without a name", ["predict", "model_dir=", "input=-", "output=-"], "missing value: set model_dir="),
    Case("an output without a name", ["predict", "model_dir=m", "input=-", "output="], "missing value: set output="),
    Case("a field of plain text", [*PREPARE, "corpus.path=x.txt", "corpus.field=body"], "corpus.field=body has no effect",
        files={"x.txt": TEXT}),
    Case("a text beside another", ["predict", "model_dir=m", "text=A b", "text=C d"],
        "text= is given twice; expected one text, or input=FILE for several"),
    Case("no epoch", [*TUNE, "num_epochs=1e-9"], "num_epochs=1e-09 of 8 examples", files=rows("a", "b")),
    Case("one class", TUNE, "every label is 'a'", files=rows("a", "a")),
    Case("one number", [*TUNE, *NUMBERS], "every label is 2; add examples with other numbers", files=rows(2.0, 2)),
    Case("one number in dev", [*TUNE, *NUMBERS], code=0, files=rows(1, 2) | {"dev.jsonl": rows(2)["dev.jsonl"]}, kept=["o"],
        more=one_line_of_pearson),
    Case("NaN as a class", TUNE, r"train\.jsonl:1: label: ", files=rows(float("nan"), 1.5)),
    Case("infinity as a class", TUNE, "label.* -inf", files=rows(float("-inf"), 1.5)),
    Case("a huge number to learn", [*TUNE, *NUMBERS],
        "1e[+]?300; expected a number", files=rows(1e300, 1.5)),
    Case("text and no text in a column", TUNE, "'text' is 5; expected text",
        files={"train.jsonl": '{"text": "a", "label": "a"}\n{"text": 5, "label": "b"}\n', "dev.jsonl": "{}"}),
    Case("a dataset of the hub beside files", [*TUNE, "task.hub.path=x"], "task.hub.path: has no effect with data_dir=",
        files=rows("a", "b")),
    Case("a dataset of the hub beside files to measure", ["evaluate", "model_dir={shared}/fine", "data_dir={shared}/task",
        "task.hub.path=x"], "task.hub.path: has no effect with data_dir="),
]  # fmt: skip


@each(CASES)
def test_silent_mistakes_give_error_or_warning(case: Case, tmp_path: Path, tiny_runs: Path, python: Path) -> None:
    check(case, python, tmp_path, tiny_runs)


def test_batch_larger_than_dataset_gives_warning(tiny_runs: Path, tmp_path: Path, capsys: Capsys) -> None:
    arguments = [f"model_dir={tiny_runs / 'pre'}", f"data_dir={tiny_runs / 'task'}", f"output_dir={tmp_path / 'o'}"]
    assert run(["finetune", *TINY_FINETUNE, *arguments, "batch.sequences=1000"]) == 0
    (warning,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: batch.sequences="))
    assert warning.startswith("warning: batch.sequences=1000 is more than the 16 ")


@pytest.mark.parametrize("name", ["manifest.json", "config.yaml"])
def test_run_without_config_files_is_refused(name: str, tiny_runs: Path, tmp_path: Path, capsys: Capsys) -> None:
    copy = shutil.copytree(tiny_runs / "fine", tmp_path / "run")
    (copy / name).unlink()
    for place in (copy, copy / "model"):
        output = f"{copy}: a run without its {name}; restore it"
        refused(run(["predict", f"model_dir={place}", "text=kan", "device=cpu"]), output, capsys)
    shutil.copytree(copy / "model", tmp_path / "model")
    assert run(["predict", f"model_dir={tmp_path / 'model'}", "text=kan", "device=cpu"]) == 0


def test_a_bert_with_causal_attention(tiny_runs: Path, tmp_path: Path, capsys: Capsys) -> None:
    arguments = [f"model_dir={tiny_runs / 'pre'}", "head=masked_lm", f"output_dir={tmp_path / 'hf'}"]
    assert run(["export", *arguments]) == 0
    path = tmp_path / "hf" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"is_decoder": True}))
    capsys.readouterr()
    assert run(["predict", f"model_dir={tmp_path / 'hf'}", "text=kan [MASK]", "device=cpu"]) == 0
    assert capsys.readouterr().err.startswith(f"warning: {path}: is_decoder=true: attention is causal, ")


def test_a_vocabulary_with_fractions(tiny_runs: Path, tmp_path: Path) -> None:
    content = json.loads((tiny_runs / "data" / "tokenizer" / "tokenizer.json").read_text())
    content["model"]["vocab"]["[PAD]"] = 0.0
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"tokenizer.json: model.vocab.\[PAD\]=0.0: expected a whole number"):
        load_tokenizer(tmp_path)


def test_a_file_by_several_names_is_read_once(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text(TEXT)
    os.symlink("a.txt", tmp_path / "in" / "b.txt")
    os.link(tmp_path / "in" / "a.txt", tmp_path / "in" / "c.txt")
    os.symlink(".", tmp_path / "in" / "loop")
    counts = []
    for name, path in (("once", "a.txt"), ("links", "?.txt"), ("loop", "**/*.txt"), ("folder", "")):
        output = tmp_path / name
        arguments = [f"corpus.path='{tmp_path / 'in' / path}'", f"output_dir={output}", "tokenizer.vocab_size=131"]
        assert run(["prepare", *arguments]) == 0
        manifest = json.loads((output / "manifest.json").read_text())
        counts.append(manifest["statistics"]["words"])
        assert ("more names of the same files" in manifest["corpus"]["description"]) == (name != "once")
    assert len(set(counts)) == 1


def test_unreadable_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the system's refusal is simulated."""
    (tmp_path / "a" / "closed").mkdir(parents=True)
    real = os.scandir

    def scandir(path):  # type: ignore[no-untyped-def]
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(InputError, match=r"a/closed: Permission denied"):
        _below(tmp_path)


def test_conll_cells_have_no_whitespace() -> None:
    words = {"kan": "kan", "a\tb": "a_b", "a\n\u2028b": "a_b", " ": "_", "": "_", "x y": "x_y", "a\xa0b": "a\xa0b"}
    assert {word: _cell(word) for word in words} == words
