"""n-grams, sentence order and pairs without a label, by the commands: trained, resumed, measured, continued."""

import json
import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Capsys, refused, weights_of

from bertkit.base.errors import InputError
from bertkit.base.typed_settings import build
from bertkit.cli import run
from bertkit.settings.pretrain import PretrainSettings
from bertkit.settings.reading.compose import compose
from bertkit.train.checkpoint_files import all_checkpoints
from bertkit.train.log import read_metrics

SMALL = [
    "device=cpu", "model=medium", "model.num_hidden_layers=2", "model.num_attention_heads=2", "model.hidden_size=32", "model.intermediate_size=64", "model.max_position_embeddings=48",
    "segments.max_seq_length=24", "batch.sequences=8", "batch.micro_sequences=2", "log.every_steps=1", "steps=4",
    "checkpoint.every_steps=1", "checkpoint.keep_last=4", "reproducibility=strict", "schedule.warmup_steps=0",
]  # fmt: skip
ALBERT = ["masking=ngram", "next_sentence=sop"]


def command(data: Path, output: Path, *more: str) -> list[str]:
    return ["pretrain", f"data_dir={data}", f"output_dir={output}", *SMALL, *more]


def scores(run_dir: Path) -> dict[str, float]:
    results: dict[str, Any] = json.loads((run_dir / "eval.json").read_text())
    return {name: value for name, value in results.items() if name.startswith(("mlm_", "nsp_"))}


def measured(capsys: Capsys, model: Path, data: Path, *more: str) -> tuple[dict[str, float], str]:
    capsys.readouterr()
    assert run(["evaluate", f"model_dir={model}", f"data_dir={data}", "segments.max_seq_length=24", *more]) == 0
    printed = capsys.readouterr()
    only_here = ("split", "pseudo_perplexity", "pseudo_perplexity_tokens")  # a run does not measure them
    return {name: value for name, value in json.loads(printed.out).items() if name not in only_here}, printed.err


@pytest.fixture(scope="module")
def albert(prepared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with n-grams and sentence order, in one process; tests do not change it."""
    run_dir = tmp_path_factory.mktemp("albert") / "run"
    assert run(command(prepared_dir, run_dir, *ALBERT)) == 0
    return run_dir


@pytest.fixture(scope="module")
def unlabelled(prepared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on pairs without next sentence prediction; tests do not change it."""
    run_dir = tmp_path_factory.mktemp("unlabelled") / "run"
    assert run(command(prepared_dir, run_dir, "next_sentence=none")) == 0
    return run_dir


def test_sentence_order_has_the_head_and_the_names_of_next_sentence_prediction(
    prepared_dir: Path, albert: Path, tmp_path: Path, capsys: Capsys
) -> None:
    config = json.loads((albert / "model" / "config.json").read_text())
    assert config["architectures"] == ["BertForPreTraining"]
    assert all("nsp_loss" in row for row in read_metrics(albert / "metrics.jsonl"))
    settings = yaml.safe_load((albert / "config.yaml").read_text())
    assert (settings["segments"]["next_sentence"], settings["masking"]["options"]) == ("sop", {"max_ngram": 3})
    assert "sop: label 1 means that A and B are swapped" in (albert / "model" / "README.md").read_text()
    # the same seed begins with the same weights; what is hidden and what follows A differ
    assert run(command(prepared_dir, tmp_path / "bert", "steps=1")) == 0
    first, other = (read_metrics(run_dir / "metrics.jsonl")[0] for run_dir in (albert, tmp_path / "bert"))
    assert first["mlm_loss"] != other["mlm_loss"]
    assert first["nsp_loss"] != other["nsp_loss"]


def test_evaluate_draws_pairs_as_the_run_did(prepared_dir: Path, albert: Path, capsys: Capsys) -> None:
    """So that the label that is measured is the one that was learned; the command line may ask for another."""
    actual, printed = measured(capsys, albert, prepared_dir, "masking=ngram")
    assert actual == pytest.approx(scores(albert), rel=1e-5)
    assert "next_sentence=sop" in printed
    assert str(albert) in printed
    checkpoint, _ = measured(capsys, all_checkpoints(albert)[0], prepared_dir, "masking=ngram", "next_sentence=sop")
    assert checkpoint == actual
    nsp, printed = measured(capsys, albert, prepared_dir, "masking=ngram", "next_sentence=nsp")
    assert nsp["nsp_loss"] != actual["nsp_loss"]
    assert "next_sentence" not in printed
    # a directory that is no run says nothing of what its head was trained for
    shutil.copytree(albert / "model", albert.parent / "elsewhere")
    assert measured(capsys, albert.parent / "elsewhere", prepared_dir, "masking=ngram", "split=held_out")[0] == nsp


def test_resumed_bit_for_bit(prepared_dir: Path, albert: Path, tmp_path: Path, capsys: Capsys) -> None:
    shutil.copytree(albert, tmp_path / "run")
    (tmp_path / "run" / "eval.json").unlink()
    for gone in (tmp_path / "run" / "model", *all_checkpoints(tmp_path / "run")[:2]):
        shutil.rmtree(gone)
    shutil.rmtree(tmp_path / "run" / "cache", ignore_errors=True)
    capsys.readouterr()
    assert run(command(prepared_dir, tmp_path / "run", *ALBERT)) == 0
    line = [line for line in capsys.readouterr().out.splitlines() if "guessing" in line][-1]
    assert f"NSP accuracy {scores(albert)['nsp_accuracy']:.3f}, guessing 0." in line  # among the labels of sop
    assert weights_of(tmp_path / "run") == weights_of(albert)
    rows = [
        [{**row, "tokens_per_second": 0} for row in read_metrics(path / "metrics.jsonl")]
        for path in (albert, tmp_path / "run")
    ]
    assert rows[0] == rows[1]


def losses_in(metrics: dict[str, float]) -> set[str]:
    """The names without those of the controls."""
    return {name for name in metrics if re.fullmatch("[a-z]+_(loss|accuracy)", name)}


def test_pairs_without_a_label_train_a_masked_lm_alone(prepared_dir: Path, unlabelled: Path, capsys: Capsys) -> None:
    config = json.loads((unlabelled / "model" / "config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"]
    assert not any(name.startswith("nsp") for row in read_metrics(unlabelled / "metrics.jsonl") for name in row)
    actual, printed = measured(capsys, unlabelled, prepared_dir)
    assert losses_in(actual) == {"mlm_loss", "mlm_accuracy"}
    assert actual == pytest.approx(scores(unlabelled), rel=1e-5)
    assert "next_sentence=none" in printed
    others, _ = measured(
        capsys, unlabelled, prepared_dir, "next_sentence=nsp"
    )  # other pairs, and no head to tell of them
    assert set(others) == set(actual)
    assert others["mlm_loss"] != actual["mlm_loss"]


def test_continued_with_another_objective(
    prepared_dir: Path, albert: Path, unlabelled: Path, tmp_path: Path, capsys: Capsys
) -> None:
    """A missing head is created, an unneeded one is dropped; both lengths have the objective of the run."""
    more = ["final_phase.max_seq_length=40", "final_phase.share=0.5"]
    assert run(command(prepared_dir, tmp_path / "sop", f"model_dir={unlabelled}", *ALBERT, *more)) == 0
    assert losses_in(scores(tmp_path / "sop")) == {"mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"}
    assert run(command(prepared_dir, tmp_path / "none", f"model_dir={albert}", "next_sentence=none", *more)) == 0
    assert losses_in(scores(tmp_path / "none")) == {"mlm_loss", "mlm_accuracy"}
    moments = [f"model_dir={albert}", "init_moments=true"]
    assert run(command(prepared_dir, tmp_path / "other", *moments, "next_sentence=none")) == 2
    assert "moments of other parameters" in capsys.readouterr().err


def test_a_run_keeps_its_objective(prepared_dir: Path, albert: Path, tmp_path: Path, capsys: Capsys) -> None:
    allow = "resume.allow=[segments,masking]"
    assert run(command(prepared_dir, albert, "masking=ngram", allow)) == 2
    printed = capsys.readouterr().err
    assert "segments.next_sentence: 'sop' there, 'nsp' here" in printed
    assert "restore the original value of segments.next_sentence" in printed
    refused(run(command(prepared_dir, albert, "next_sentence=sop")), "masking.kind: 'ngram' there, 'bert' here", capsys)


def test_changed_objective_is_refused_on_resume(
    prepared_dir: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir = Path("run")  # a short name, since a message is at most 400 characters long
    assert run(command(prepared_dir, run_dir, "steps=2")) == 0
    capsys.readouterr()
    assert run(command(prepared_dir, run_dir, "steps=2", *ALBERT)) == 2
    printed = capsys.readouterr().err
    assert all(text in printed for text in ("next_sentence: 'nsp' there, 'sop' here", "{'max_ngram': 3} here"))
    assert run(command(prepared_dir, run_dir, "steps=3")) == 0
    assert "steps: 2 up to step 2, 3 from here on" in capsys.readouterr().out
    assert measured(capsys, run_dir, prepared_dir)[0] == pytest.approx(scores(run_dir), rel=1e-5)


@pytest.mark.parametrize(("next_sentence", "refused"), [("sop", True), ("none", False)])
def test_a_blind_cls_matters_to_a_next_sentence_head_alone(next_sentence: str, refused: bool) -> None:
    arguments = ["data_dir=x", "output_dir=y", "attention.pattern=causal", f"next_sentence={next_sentence}"]
    with pytest.raises(InputError, match="next_sentence") if refused else nullcontext():
        segments = build(PretrainSettings, compose("pretrain", arguments)).segments
        assert (segments.has_pairs, segments.predicts_next) == (True, False)
