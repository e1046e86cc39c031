"""The short form of finetune, predict and embed: words and options for files and columns; what is inferred from the file."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import Capsys, headed_model, refused
from task_files import write

from bertkit import export_model
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.settings.reading.hints import option_of
from bertkit.settings.reading.words import to_words

CSV = "review,stars\n" + "".join(f"kan lon {word},{n}\n" for word in ("min", "kar", "lor") for n in (1, 2, 5))
MISSING = "no/such/model"


def test_short_words_become_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "a b.csv", CSV)
    options = [
        ("--text", "a,b"),
        ("--label", "-1"),
        ("--pair", "c"),
        ("--dev", "d.csv"),
        ("--test", "e"),
        ("--output", "o"),
    ]
    assert to_words("finetune", ["seed=1", "a b.csv"], options) == [
        f"task.files.train='{tmp_path}/a b.csv'", "text='a,b'", "label=-1",
        "pair=c", f"task.files.dev={tmp_path}/d.csv", f"task.files.test={tmp_path}/e",
        "output_dir=o", "seed=1",
    ]  # fmt: skip
    assert to_words("predict", ["a b.csv"], [("--text", "x")]) == [
        "input='a b.csv'",
        "task.columns.text=x",
    ]
    assert to_words("embed", ["a b.csv"], [("--text", "x")]) == [
        "input='a b.csv'",
        "text_column=x",
    ]
    assert to_words("compare", ["a b.csv"], []) == ["a b.csv"]
    assert to_words("predict", ["-"], []) == ["input='-'"]
    (tmp_path / "minilm").mkdir()
    named = {value: option_of("finetune", "--model", value)[0] for value in ("minilm", "org/bert", "mini")}
    assert named == {"minilm": "model_dir", "org/bert": "model_dir", "mini": "model"}


@pytest.mark.parametrize(
    ("more", "task", "dev_share"),
    [
        ([], "classification", 0.1),
        (["task=regression"], "regression", 0.1),
        (["--dev", "dev.csv"], "classification", None),
    ],
)
def test_what_is_inferred_is_composed_and_said(
    more: list[str], task: str, dev_share: float | None, tmp_path: Path, capsys: Capsys
) -> None:
    arguments = [
        "finetune",
        str(write(tmp_path, "r.csv", CSV)),
        "--text",
        "review",
        "--label",
        "stars",
        *more,
        "--cfg",
        "job",
    ]
    assert run([*arguments, f"model_dir={MISSING}", "--output=o"]) == 0
    printed = capsys.readouterr()
    composed = yaml.safe_load(printed.out)
    assert (composed["task"]["name"], composed["dev_share"], composed["output_dir"]) == (task, dev_share, "o")
    assert composed["task"]["columns"]["text"] == "review"
    assert printed.err.count("\n") == 1
    assert ("task=classification" in printed.err) == (task == "classification")
    assert ("dev_share=0.1" in printed.err) == (dev_share is not None)


def test_run_without_a_model_takes_the_default_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    """Without it, the error names the models that are at hand."""
    default = "sentence-transformers/all-MiniLM-L6-v2"
    snapshot = tmp_path / "hub" / f"models--{default.replace('/', '--')}" / "snapshots" / "1"
    model = tmp_path / "runs" / "tiny" / "model"
    for directory in (snapshot, model):
        directory.mkdir(parents=True)
        (directory / "config.json").write_text("{}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    words = ["finetune", str(write(tmp_path, "r.csv", CSV)), "--text", "review", "--label", "stars", "--output", "o"]
    assert run([*words, "--cfg", "job"]) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out)["model_dir"] == default
    assert f"model_dir={default}, the default (at hand: runs/tiny, {default})\n" in printed.err
    shutil.rmtree(tmp_path / "hub")
    refused(run(words), "error: missing value: set model_dir= (at hand: runs/tiny)", capsys)
    shutil.rmtree(tmp_path / "runs")
    refused(run(words), f"error: missing value: set model_dir= to a BERT, such as {default} on the hub", capsys)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("word", ["r.csv", "data_dir=r.csv", "--data-dir=r.csv"])
def test_file_in_place_of_a_folder_is_the_training_file(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, "r.csv", CSV)
    words = ["finetune", word, "text=review", "label=stars", f"model_dir={MISSING}", "output_dir=o"]
    assert run([*words, "--cfg", "job"]) == 0
    composed = yaml.safe_load(capsys.readouterr().out)
    assert (composed["task"]["files"]["train"], composed["data_dir"]) == (str(path), None)


def test_second_file_needs_dev_option(tmp_path: Path, capsys: Capsys) -> None:
    one, two = (str(write(tmp_path, name, CSV)) for name in ("a.csv", "b.csv"))
    refused(run(["finetune", one, two]), f"--dev {two}", capsys, alone=True)


@pytest.mark.parametrize("command", ["finetune", "evaluate"])
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--text", "review", "--label", "stars"], ["text", "label"]),
        (["text=review", "label=stars", "--pair=other"], ["text", "pair", "label"]),
        (["task.columns.text=review", "label=stars"], ["task.columns.text", "label"]),
    ],
)
def test_all_wrong_columns_are_named_as_typed(
    command: str, words: list[str], names: list[str], tmp_path: Path, tokenizer: Tokenizer, capsys: Capsys
) -> None:
    """With the columns of the file, the most similar one first."""
    path = write(tmp_path, "r.csv", "Stars,Review Text\n5,kan\n1,lon\n")
    model = export_model(headed_model(tokenizer, "sequence"), tokenizer, tmp_path / "model")
    more = f"output_dir={tmp_path / 'run'}" if command == "finetune" else "task=classification"
    assert run([command, str(path), f"model_dir={model}", *words, more, "task.max_seq_length=9"]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    wrong = {"text": "review", "pair": "other", "label": "stars"}
    there = {"text": "'Review Text', 'Stars'", "pair": "'Stars', 'Review Text'", "label": "'Stars', 'Review Text'"}
    for line, name in zip(lines, names, strict=True):
        short = name.rpartition(".")[2]
        assert line.startswith(f"error: {path}:1: no column '{wrong[short]}' (it has: {there[short]})")
        assert line.removesuffix(" (only a test file may have no labels)").endswith(f"; set {name}=")


FAULTS = [  # the content of a training file; more words; the place and value that the error names
    (CSV, ["--label", "star"], ":1: no column 'star'"),
    (
        CSV.replace("min", "m\xefn").encode("cp1252"),
        [],
        ":2: not UTF-8 (byte 0xef at column 10); convert it: iconv -f ",
    ),
    (CSV, ["task=classification", "task.labels=[1,2]"], ":4: stars: unknown label '5'"),
    (CSV.replace("kar,2", "kar"), [], ":6: too few cells"),
    (b"PK\x03\x04" + CSV.encode(), [], ": an Excel file"),
    (CSV, ["--dev", "no.csv"], "/no.csv: no such file"),
]


def test_wrong_files_are_refused_before_torch_is_imported(tmp_path: Path) -> None:
    commands = []
    for number, (content, more, _) in enumerate(FAULTS):
        words = [str(write(tmp_path, f"{number}.csv", content)), "--text", "review", "--label", "stars", *more]
        commands.append(["finetune", *words, f"model_dir={tmp_path}", "--output=o"])
    code = (
        "import json, sys; from bertkit.cli import run\n"
        "codes = [run(words) for words in json.loads(sys.argv[1])]\n"
        "sys.exit('torch' in sys.modules or set(codes) != {2})"
    )
    done = subprocess.run([sys.executable, "-c", code, json.dumps(commands)], capture_output=True, text=True)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 0, done.stderr
    wrong = [line for line, (_, _, words) in zip(errors, FAULTS, strict=True) if words not in line]
    assert wrong == []


def test_predict_and_embed_take_the_same_words(tmp_path: Path, tokenizer: Tokenizer) -> None:
    model = export_model(headed_model(tokenizer, "sequence"), tokenizer, tmp_path / "model")
    arguments = [str(write(tmp_path, "new.csv", CSV)), "--text", "review", f"model_dir={model}", "device=cpu"]
    assert run(["predict", *arguments, "--output", str(tmp_path / "out.jsonl")]) == 0
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 9
    assert run(["embed", *arguments, "--output", str(tmp_path / "out.npy")]) == 0
    assert np.load(tmp_path / "out.npy").shape[0] == 9
