"""Texts longer than `task.max_seq_length`: everybody cuts them at the same place, or they are read in windows."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import yaml
from conftest import Capsys, headed_model, refused

from bertkit import export_model, load_model, load_predictor, load_tokenizer
from bertkit.apps.server.bodies import describe_model
from bertkit.apps.server.models import open_models
from bertkit.base.errors import InputError
from bertkit.base.typed_settings import build
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.settings.reading.compose import compose
from bertkit.settings.serve import ServeSettings

RNG = np.random.default_rng(3)
WORDS = [a + b for a in ("ka", "lo", "mi", "ru", "te", "so") for b in ("n", "r", "sh", "d", "m")]
TEXTS = [" ".join(RNG.choice(WORDS, count)) for count in (20, 100, 126, 131, 300, 600)]
CUT = [False, False, False, True, True, True]
POSITIONS = 523


@pytest.fixture(scope="module")
def tuned(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose predictions depend on all of a text, with the default length of 128 tokens."""
    folder = tmp_path_factory.mktemp("long")
    model = headed_model(tokenizer, "sequence", scale=3, max_position_embeddings=POSITIONS)
    export_model(model, tokenizer, folder / "start")
    for name in ("train", "dev"):
        (folder / f"{name}.csv").write_text("text,label\n" + "kan,bad\nlon,good\nmin,ugly\n" * 3)
    arguments = [f"model_dir={folder / 'start'}", f"data_dir={folder}", f"output_dir={folder / 'run'}", "device=cpu"]
    assert run(["finetune", "task=sequence", "num_epochs=1", *arguments]) == 0
    return folder / "run"


def shares(rows: list[dict[str, Any]]) -> np.ndarray:
    return np.array([[row["probabilities"][name] for name in ("bad", "good", "ugly")] for row in rows])


def by_transformers(directory: Path) -> np.ndarray:
    predict = transformers.pipeline("text-classification", str(directory), device="cpu")
    assert predict.tokenizer.model_max_length == 128
    result = [{each["label"]: each["score"] for each in row} for row in predict(TEXTS, truncation=True, top_k=None)]
    return shares([{"probabilities": row} for row in result])


def test_transformers_cuts_where_bertkit_does(tuned: Path, tmp_path: Path) -> None:
    """Also after an export, from a run of an earlier version, and without the run."""
    ours = shares(load_predictor(tuned, device="cpu")(TEXTS))
    assert len(np.unique(ours.round(4), axis=0)) == len(TEXTS)
    assert np.abs(by_transformers(tuned / "model") - ours).max() < 1e-5
    old = tmp_path / "old"
    shutil.copytree(tuned, old)
    written = old / "model" / "tokenizer_config.json"
    written.write_text(written.read_text().replace('"model_max_length": 128', f'"model_max_length": {POSITIONS}'))
    assert run(["export", f"model_dir={old}", "head=task", f"output_dir={tmp_path / 'hf'}"]) == 0
    assert np.abs(by_transformers(tmp_path / "hf") - ours).max() < 1e-5
    assert np.abs(shares(load_predictor(tmp_path / "hf", device="cpu")(TEXTS)) - ours).max() < 1e-6
    assert "truncation=True" in (tmp_path / "hf" / "README.md").read_text()
    start = json.loads((tuned.parent / "start" / "tokenizer_config.json").read_text())
    assert start["model_max_length"] == POSITIONS


def test_a_published_model_that_names_no_length_reads_texts_up_to_its_own(tuned: Path, tmp_path: Path) -> None:
    """As transformers does; not up to the length with which a task is trained."""
    shutil.copytree(tuned.parent / "start", tmp_path / "start")
    written = tmp_path / "start" / "tokenizer_config.json"
    settings = json.loads(written.read_text())
    assert settings.pop("model_max_length") == POSITIONS
    written.write_text(json.dumps(settings))
    predict = transformers.pipeline("text-classification", str(tmp_path / "start"), device="cpu")
    expected = [{each["label"]: each["score"] for each in row} for row in predict(TEXTS[:5], top_k=None)]
    rows = load_predictor(tmp_path / "start", device="cpu")(TEXTS[:5])
    assert [row["probabilities"] for row in rows] == [pytest.approx(each, abs=1e-5) for each in expected]
    assert not any(row["truncated"] for row in rows)


def test_rows_are_marked_truncated(tuned: Path, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "in.csv").write_text("text,truncated\n" + "".join(f"{text},mine\n" for text in TEXTS))

    def predict(ending: str, *more: str) -> tuple[Path, list[str]]:
        output = tmp_path / f"out{ending}"
        arguments = [f"model_dir={tuned}", f"input={tmp_path / 'in.csv'}", f"output={output}", "overwrite=true"]
        assert run(["predict", *arguments, "carry_input=true", *more]) == 0
        return output, [line for line in capsys.readouterr().err.splitlines() if "were truncated" in line]

    path, warnings = predict(".jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["truncated"] for line in lines] == CUT
    assert {line["input_truncated"] for line in lines} == {"mine"}
    (warning,) = warnings
    for words in ("3 of 6 ", "task.max_seq_length=128;", "task.long_texts=mean"):
        assert words in warning
    with predict(".csv")[0].open() as file:
        assert [row["truncated"] for row in csv.DictReader(file)] == [json.dumps(cut) for cut in CUT]
    path, warnings = predict(".jsonl", f"task.max_seq_length={POSITIONS}")
    assert [json.loads(line)["truncated"] for line in path.read_text().splitlines()] == [*[False] * 5, True]
    assert "task.long_texts=mean" in warnings[0]
    path, warnings = predict(".jsonl", "task.long_texts=mean")
    assert not any(json.loads(line)["truncated"] for line in path.read_text().splitlines())
    assert warnings == []


@pytest.mark.parametrize("how", ["mean", "max"])
def test_long_texts_in_windows(how: str, tuned: Path, tmp_path: Path, capsys: Capsys) -> None:
    """Windows of 126 pieces, each of which begins 63 after the one before it; the last one ends with the text."""
    predictor = load_predictor(tuned, device="cpu", **{"task.long_texts": how})
    model, tokenizer = load_model(tuned), load_tokenizer(tuned)
    expected = []
    for text in TEXTS:
        cls, *pieces, sep = tokenizer(text)["input_ids"]
        starts = sorted({*range(0, max(len(pieces) - 126, 0), 63), max(len(pieces) - 126, 0)})
        with torch.no_grad():
            windows = [torch.tensor([[cls, *pieces[start : start + 126], sep]]) for start in starts]
            logits = torch.cat([model(window).logits["sequence"] for window in windows])
        expected.append((logits.mean(0) if how == "mean" else logits.amax(0)).numpy())
    assert np.abs(predictor.logits(TEXTS) - np.array(expected)).max() < 1e-4
    powers = np.exp(np.array(expected))
    assert np.abs(shares(predictor(TEXTS)) - powers / powers.sum(1, keepdims=True)).max() < 1e-5
    options = {"model_dir": [str(tuned)], "device": "cpu", "task.long_texts": how}
    (served,) = open_models(build(ServeSettings, compose("serve", [f"{k}={v}" for k, v in options.items()]))).values()
    (rows,) = served.predict_requests([TEXTS], 10**6).results
    assert np.abs(shares(rows) - shares(predictor(TEXTS))).max() < 1e-6
    assert not any(row["truncated"] for row in rows)
    with pytest.raises(InputError, match=r"row 1: \('kan', 'lon'\): this model takes single texts \(text\)"):
        predictor([("kan", "lon")])
    pairs = trained_on_pairs(tuned, tmp_path / "pairs")
    refused(run(["predict", f"model_dir={pairs}", "text=kan", "text_pair=lon", f"task.long_texts={how}"]),
            f"task.long_texts={how}: only for classification and regression of single texts", capsys)  # fmt: skip
    published = shutil.copytree(tuned / "model", tmp_path / "published")  # which may take pairs
    with pytest.raises(InputError, match=f"task.long_texts={how}: inputs has pairs of texts"):
        load_predictor(published, device="cpu", **{"task.long_texts": how})([("kan", "lon")])


def trained_on_pairs(tuned: Path, directory: Path) -> Path:
    """A copy of a run that says that its rows were pairs."""
    shutil.copytree(tuned, directory)
    manifest = directory / "manifest.json"
    content = manifest.read_text().replace('"has_pairs": false', '"has_pairs": true')
    manifest.write_text(content.replace('"has_singles": true', '"has_singles": false'))
    return directory


def test_the_server_says_what_was_cut_and_shows_one_field(tuned: Path, tmp_path: Path) -> None:
    settings = build(ServeSettings, compose("serve", [f"model_dir=[{tuned}]", "device=cpu"]))
    (served,) = open_models(settings).values()
    (rows, one) = served.predict_requests([TEXTS, [TEXTS[0]]], 10**6).results
    assert [row["truncated"] for row in rows] == CUT
    assert [row["truncated"] for row in one] == [False]
    assert describe_model(served)["columns"] == ["text"]
    trained_on_pairs(tuned, tmp_path / "pairs")
    settings = build(ServeSettings, compose("serve", [f"model_dir=[{tmp_path / 'pairs'}]", "device=cpu"]))
    (served,) = open_models(settings).values()
    assert describe_model(served)["columns"] == ["text", "text_pair"]


def test_windows_in_training_and_evaluation(tuned: Path, tmp_path: Path, capsys: Capsys) -> None:
    for name in ("train", "dev"):
        rows = "".join(f"{text},{'bad' if number % 2 else 'good'}\n" for number, text in enumerate(TEXTS))
        (tmp_path / f"{name}.csv").write_text(f"text,label\n{rows}")
    arguments = [f"data_dir={tmp_path}", f"output_dir={tmp_path / 'run'}", f"model_dir={tuned}", "device=cpu"]
    assert run(["finetune", "task=sequence", "num_epochs=1", "task.long_texts=mean", *arguments]) == 0
    assert "truncated 0 (0.0%); 18 windows" in capsys.readouterr().out
    settings = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert settings["task"]["long_texts"] == "mean"
    lines = (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()
    again = load_predictor(tmp_path / "run", device="cpu")(TEXTS)
    for line, row in zip(map(json.loads, lines), again, strict=True):
        assert line["probabilities"] == pytest.approx(row["probabilities"], abs=1e-5)
    assert run(["evaluate", f"model_dir={tmp_path / 'run'}", f"data_dir={tmp_path}"]) == 0
    assert json.loads(capsys.readouterr().out)["num_examples"] == len(TEXTS)


@pytest.mark.parametrize(("more", "line"), [
    (["task=tagging", "task.long_texts=mean"], "task.long_texts"),
    (["task=sequence", "task.long_texts=mean", "task.needs_pair=true"], "only for classification and regression of single"),
    (["task=sequence", "task.long_texts=sum"], "task.long_texts='sum'"),
])  # fmt: skip
def test_windows_are_refused_where_they_have_no_effect(more: list[str], line: str, capsys: Capsys) -> None:
    refused(run(["finetune", "model_dir=x", "data_dir=y", "output_dir=z", *more]), line, capsys)
