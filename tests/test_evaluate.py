"""Evaluation on a prepared dataset: fixed, split by split, and refused where nothing fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import small_model

from bertkit import export_model, load_tokenizer
from bertkit.cli import run


def evaluate(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["evaluate", *map(str, arguments), "segments.max_seq_length=40"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.fixture
def model_dir(prepared_dir: Path, tmp_path: Path) -> Path:
    tokenizer = load_tokenizer(prepared_dir)
    return export_model(small_model(tokenizer.vocab_size), tokenizer, tmp_path / "model")


def test_the_numbers_are_fixed_and_do_not_depend_on_the_batch(
    prepared_dir: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (f"model_dir={model_dir}", f"data_dir={prepared_dir}")
    first, second = evaluate(capsys, *given), evaluate(capsys, *given, "batch_sequences=7")
    assert {"mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"} <= set(first)
    assert first.pop("split") == second.pop("split") == "train+held_out"
    assert first == pytest.approx(second, rel=1e-5)
    assert evaluate(capsys, *given, "seed=1")["mlm_loss"] != first["mlm_loss"]


def test_all_is_the_weighted_mean_of_both_splits(
    prepared_dir: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (f"model_dir={model_dir}", f"data_dir={prepared_dir}")
    train, held_out, both = (evaluate(capsys, *given, f"split={name}") for name in ("train", "held_out", "all"))
    assert evaluate(capsys, *given) == both
    low, high = sorted((train["mlm_loss"], held_out["mlm_loss"]))
    assert low < both["mlm_loss"] < high


def test_a_model_is_measured_on_what_it_was_not_trained_on(
    prepared_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["model=tiny", "model.hidden_size=32", "segments.max_seq_length=40", "steps=2", "device=cpu"]
    assert run(["pretrain", f"data_dir={prepared_dir}", f"output_dir={tmp_path / 'run'}", *small]) == 0
    checkpoint = "run/checkpoints/step-00000002"
    results = [
        evaluate(capsys, f"model_dir={tmp_path / name}", f"data_dir={prepared_dir}")
        for name in ("run", "run/model", checkpoint)
    ]
    assert results[0] == results[1] == results[2]
    result = results[0]
    assert result["split"] == "held_out"
    final = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert result["mlm_loss"] == pytest.approx(final["mlm_loss"], rel=1e-5)
