"""Fine-tuning as a user meets it: the run directory, stops and resumes, frozen parts, and what it learns."""

import contextlib
import dataclasses
import io
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
import yaml
from conftest import Capsys, Page, output_of, refused, small_model, weights_of
from forks import KILL
from safetensors.torch import load_file, save_file
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression

from bertkit import commands, load_embedder, load_model, load_predictor, load_tokenizer
from bertkit.base.tensor_files import read_tensors
from bertkit.base.typed_settings import build
from bertkit.cli import run
from bertkit.commands import settings_from_words
from bertkit.interop.hugging_face import directory as huggingface
from bertkit.interop.hugging_face.names import to_hugging_face
from bertkit.interop.load import load_packed
from bertkit.model.layers import freeze_below
from bertkit.run import finished as run_finished
from bertkit.run.finished import is_finetuned
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.reading.compose import compose
from bertkit.tasks.reading import held_out, readers
from bertkit.train import checkpoint, loop
from bertkit.train.checkpoint_files import all_checkpoints, read_state, step_dir, step_of
from bertkit.train.log import read_metrics

WORDS = {"good": ("kan", "lon", "min"), "bad": ("kar", "lor", "mir")}  # of two topics of the shared made-up text
SMALL = ["task=sequence", "task.max_seq_length=24", "device=cpu", "batch.sequences=8", "log.every_steps=1", "num_epochs=2",
         "optimizer.peak_learning_rate=3e-3"]  # fmt: skip


def write_split(path: Path, num_rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = ["text\ttext_pair\tlabel"]
    for _ in range(num_rows):
        label = str(rng.choice(["good", "bad"]))
        text, pair = (" ".join(rng.choice(WORDS[label], rng.integers(1, 7))) for _ in range(2))
        rows.append(f"{text}\t{pair}\t{label}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_split(folder / "train.tsv", 53, 0)
    write_split(folder / "dev.tsv", 23, 1)
    return folder


def words_of(data: Path, start: Path, output: Path, *more: str) -> list[str]:
    return [f"data_dir={data}", f"model_dir={start}", f"output_dir={output}", *SMALL, *more]


def finetune(data: Path, start: Path, output: Path, *more: str) -> int:
    return run(["finetune", *words_of(data, start, output, *more)])


def test_the_files_are_read_once(data: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the check of the files has read, near-duplicates included, is what the run learns."""
    opened, chosen = list[str](), list[int]()
    read, choose = readers.open_file, held_out.stratified
    monkeypatch.setattr(
        readers, "open_file", lambda task, path, *more: (opened.append(path.name), read(task, path, *more))[1]
    )
    monkeypatch.setattr(
        held_out, "stratified", lambda texts, *more: (chosen.append(len(texts)), choose(texts, *more))[1]
    )
    share = ["dev_share=0.2", f"task.files.train={data / 'train.tsv'}", "num_epochs=1"]
    command = ["finetune", f"model_dir={start}", f"output_dir={tmp_path / 'run'}", *SMALL, *share]
    assert run(command) == 0
    assert (opened, len(chosen)) == (["train.tsv"], 1)


@pytest.fixture(scope="module")
def two_epochs(data: Path, start: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished run of 14 steps and its output; tests that change the run take a copy."""
    run_dir, output = tmp_path_factory.mktemp("run") / "run", io.StringIO()
    with contextlib.redirect_stdout(output):
        assert finetune(data, start, run_dir) == 0
    return run_dir, output.getvalue()


@pytest.fixture
def finished(two_epochs: tuple[Path, str]) -> Path:
    return two_epochs[0]


def result_of(run_dir: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((run_dir / "eval.json").read_text())
    return result


def predictions_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "predictions.jsonl").read_text().splitlines()]


def test_run_prints_data_start_scores_and_baseline(two_epochs: tuple[Path, str]) -> None:
    """Its data and start, and its scores beside those of the commonest training label."""
    run_dir, output = two_epochs
    for text in ("train.tsv", "53 rows; ", "truncated 0 (0.0%)", "initialised 2 new tensors (sequence)"):
        assert text in output
    result = result_of(run_dir)
    majority, rows = result["majority_baseline"]["accuracy"], predictions_of(run_dir)
    tfidf, (low, high) = result["tfidf_baseline"]["accuracy"], result["intervals"]["accuracy"]
    shares = {name: sum(row["reference"] == name for row in rows) / len(rows) for name in WORDS}
    assert majority in shares.values()
    assert output.count(f" (majority {majority:.4f}, TF-IDF {tfidf:.4f})") == 3  # after each epoch, and at the end
    assert tfidf == 1.0
    right = sum(row["reference"] == row["label"] for row in rows)
    assert (low, high) == pytest.approx(tuple(binomtest(right, len(rows)).proportion_ci(method="wilson")))
    assert f"accuracy {right / len(rows):.4f} [{low:.4f}, {high:.4f}] (majority" in output.splitlines()[-3]
    least, most = result["difference_to_majority"]
    assert least <= right / len(rows) - majority <= most


def test_what_went_wrong_quietly_is_said(data: Path, start: Path, tmp_path: Path, capsys: Capsys) -> None:
    """A learning rate that learns nothing, and truncated texts, give warnings; following the advice ends them."""
    tiny_rate = ["optimizer.peak_learning_rate=1e-9", "num_epochs=1"]
    assert finetune(data, start, tmp_path / "run", *tiny_rate, "task.max_seq_length=8") == 0
    printed = capsys.readouterr().out
    (line,) = result_of(tmp_path / "run")["warnings"]
    assert printed.count(f"warning: {line}\n") == 1
    assert result_of(tmp_path / "run")["difference_to_majority"][0] <= 0
    long = tmp_path / "long"
    long.mkdir()
    for name in ("train", "dev"):
        rows = "kan lon min kan lon min kan\tgood\nkar lor mir kar lor mir kar\tbad\n"
        (long / f"{name}.tsv").write_text("text\tlabel\n" + rows * 4)
    assert finetune(long, start, tmp_path / "cut", "task.max_seq_length=8", "num_epochs=1") == 0
    assert capsys.readouterr().out.count("8 of 8 examples were truncated by task.max_seq_length=8; raise it") == 2
    assert finetune(long, start, tmp_path / "whole", "task.max_seq_length=24", "num_epochs=1") == 0
    assert "truncated, so" not in capsys.readouterr().out


def test_a_small_encoder_has_a_rate_that_fits(
    data: Path, start: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [
        "optimizer.peak_learning_rate=auto",
        "num_epochs=auto",
        "max_train_examples=50",
        "batch.sequences=10",
        "evaluation.every_steps=99",
    ]
    assert finetune(data, start, tmp_path / "run", *arguments) == 0
    printed, width = capsys.readouterr().out, load_model(start).config.hidden_size
    rate = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["optimizer"]["peak_learning_rate"]
    assert width < 100
    assert rate == 1e-3  # the most
    assert f"learning rate {rate:g} after " in printed
    assert "5 steps an epoch, 20 epochs (the published 3 would be 15 steps, too few); up to 10 examples" in printed
    assert f"(the published 2e-05 is for a hidden size of 768; here it is {width})" in printed
    monkeypatch.setattr(commands, "import_stage", None)  # a finished run is recognised before torch is imported
    assert finetune(data, start, tmp_path / "run", *arguments) == 0
    assert capsys.readouterr().out.startswith("done already")
    words = words_of(data, start, tmp_path / "run", *arguments)
    settings = build(FinetuneSettings, compose("finetune", words))
    assert is_finetuned(settings)
    assert not is_finetuned(dataclasses.replace(settings, model_dir="another/model"))  # of the hub, known by its name
    assert is_finetuned(dataclasses.replace(settings, model_dir=str(tmp_path / "gone")))


def test_default_rate_depends_on_width() -> None:
    settings = build(FinetuneSettings, compose("finetune", ["task=rte", "model_dir=x", "output_dir=y"]))
    widths = {16: 1e-3, 128: 7e-4, 256: 2e-4, 384: 8e-5, 512: 5e-5, 768: 2e-5, 1024: 2e-5}  # by hand
    assert {width: settings.rate_for(width) for width in widths} == pytest.approx(widths)
    few = {1: 20, 64: 20, 200: 15, 1000: 4, 1100: 3, 9000: 3}  # 100 steps of 32 examples, 3 to 20 epochs
    own = build(FinetuneSettings, compose("finetune", ["task=sequence", "model_dir=x", "output_dir=y"]))
    assert {size: own.epochs_for(size) for size in few} == few
    assert settings.epochs_for(64) == 3  # a benchmark has the published number
    assert own.with_epochs(4).with_epochs(5).epochs == 4
    assert settings.with_rate(1e-4).with_rate(2e-4).optimizer.peak == 1e-4


def test_every_epoch_is_measured_and_the_best_step_is_the_result(finished: Path) -> None:
    rows, result, lines = read_metrics(finished / "metrics.jsonl"), result_of(finished), predictions_of(finished)
    assert [row["step"] for row in rows] == list(range(1, 15))
    assert {"loss", "sequence_loss", "sequence_accuracy", "epoch", "learning_rate", "grad_norm"} <= set(rows[0])
    for name in ("eval_accuracy", "eval_loss"):
        assert [row["step"] for row in rows if name in row] == [7, 14]
    assert result["accuracy"] == max(row["eval_accuracy"] for row in rows if "eval_accuracy" in row)
    assert [line["id"] for line in lines] == [str(number) for number in range(23)]
    assert np.mean([line["label"] == line["reference"] for line in lines]) == pytest.approx(result["accuracy"])
    assert set(lines[0]["probabilities"]) == {"bad", "good"}
    (best,) = (row for row in rows if row["step"] == result["best_step"])
    surprises = [-np.log(line["probabilities"][line["reference"]]) for line in lines]
    assert best["eval_loss"] == pytest.approx(np.mean(surprises), rel=1e-6)


def test_the_report_and_the_result_tell_labels_apart(finished: Path) -> None:
    result, lines = result_of(finished), predictions_of(finished)
    for label, scores in result["per_label"].items():
        output = [line["reference"] == label for line in lines if line["label"] == label]
        assert scores["precision"] == pytest.approx(np.mean(output) if output else 0)
        assert scores["support"] == sum(line["reference"] == label for line in lines)
    assert list(result["per_label"]) == ["bad", "good"]
    assert 0 <= result["calibration_error"] < 1
    text = "\n".join(Page((finished / "report.html").read_text()).text)
    commonest = max(scores["support"] for scores in result["per_label"].values()) / 23
    low, high = (f"{end:.4f}".replace("1.0000", "1") for end in result["intervals"]["accuracy"])
    scored = f"Accuracy {result['accuracy']:.4f} [{low}, {high}] on the dev split; the majority baseline scores {commonest:.4f}."
    assert scored in text.replace("Accuracy 1 ", "Accuracy 1.0000 ")
    assert "train: 0 of 53 examples; dev: 0 of 23 examples" in text
    assert "per_label" not in (finished / "model" / "README.md").read_text()


def test_a_finished_run_is_no_other_run(
    data: Path, start: Path, finished: Path, tmp_path: Path, capsys: Capsys
) -> None:
    before = weights_of(finished)
    other = shutil.copytree(start, tmp_path / "other model")
    weights = load_file(other / "model.safetensors")
    next(iter(weights.values())).add_(1)
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    fewer = shutil.copytree(data, tmp_path / "other data")
    (fewer / "train.tsv").write_text("".join((data / "train.tsv").read_text().splitlines(keepends=True)[:-1]))
    for changed in ((data, other), (fewer, start)):
        refused(finetune(*changed, finished), "holds another run", capsys)
    refused(finetune(data, start, finished, "seed=7"), "seed: 0 there, 7 here", capsys)
    assert weights_of(finished) == before


# a rate at which the score rises, falls, and rises again
PATIENT = [
    "seed=3",
    "optimizer.peak_learning_rate=3e-2",
    "num_epochs=20",
    "evaluation.patience=2",
    "checkpoint.every_steps=5",
]


class Patient(NamedTuple):
    """A run that its patience ended: for every save the best step and the checkpoints that were there."""

    run_dir: Path
    saves: list[tuple[int, list[int]]]


@pytest.fixture(scope="module")
def patient(data: Path, start: Path, tmp_path_factory: pytest.TempPathFactory) -> Patient:
    run_dir, saves = tmp_path_factory.mktemp("patient") / "run", []
    save = checkpoint.save

    def watched(directory: Path, *contents: Any, **named: Any) -> Path:
        saved = save(directory, *contents, **named)
        best = read_state(saved)["standing"]["best"] or {"step": step_of(saved)}
        saves.append((best["step"], [step_of(path) for path in all_checkpoints(run_dir)]))
        return saved

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", watched)
        assert finetune(data, start, run_dir, *PATIENT) == 0
    return Patient(run_dir, saves)


@pytest.fixture
def a_patient_run(patient: Patient, tmp_path: Path) -> Path:
    return Path(shutil.copytree(patient.run_dir, tmp_path / "run"))


def test_the_last_checkpoint_is_not_the_model_when_an_earlier_one_scores_better(patient: Patient) -> None:
    """Of equal scores the one with the lower loss is kept; patience, from the first of them, ends the run, which has learned."""
    run_dir = patient.run_dir
    result = result_of(run_dir)
    assert result["accuracy"] > 0.9
    assert result["difference_to_majority"][0] > 0
    assert result["warnings"] == []
    rows = [row for row in read_metrics(run_dir / "metrics.jsonl") if "eval_accuracy" in row]
    scores = [row["eval_accuracy"] for row in rows]
    best = max(range(len(rows)), key=lambda n: (scores[n], -rows[n]["eval_loss"]))
    assert (result_of(run_dir)["best_step"], len(scores)) == (rows[best]["step"], scores.index(max(scores)) + 3)
    assert scores.count(max(scores)) > 1
    assert len(scores) < 20
    last, kept = (read_tensors(path / "model.safetensors") for path in (all_checkpoints(run_dir)[0], run_dir / "model"))
    assert not torch.equal(last["classifier.weight"], kept["classifier.weight"])
    chosen, kept = (load_model(path).state_dict() for path in (run_dir, run_dir / "model"))
    assert all(torch.equal(chosen[name], kept[name]) for name in kept)


def test_the_best_is_one_of_the_checkpoints_until_the_end(patient: Patient) -> None:
    """The state names it, so that a kill cannot separate them; the finished run keeps it as its model."""
    assert len(patient.saves) > 4
    for best, steps in patient.saves:
        assert best in steps
        assert len(steps) == (1 if best == max(steps) else 2)
    best, (last, *_) = patient.saves[-1]
    assert result_of(patient.run_dir)["best_step"] == best < last
    assert [step_of(path) for path in all_checkpoints(patient.run_dir)] == [last]


def test_a_run_goes_on_with_the_best_it_had(data: Path, start: Path, a_patient_run: Path, capsys: Capsys) -> None:
    (last,), best = all_checkpoints(a_patient_run), result_of(a_patient_run)["best_step"]
    weights = weights_of(a_patient_run)
    assert finetune(data, start, a_patient_run, *PATIENT, "num_epochs=21", "resume.allow=[num_epochs]") == 0
    assert f"num_epochs: 20.0 up to step {step_of(last)}, 21.0 from here on" in capsys.readouterr().out
    assert result_of(a_patient_run)["best_step"] == best
    assert weights_of(a_patient_run) == weights


def test_a_damaged_best_is_not_taken(data: Path, start: Path, a_patient_run: Path, capsys: Capsys) -> None:
    """The best checkpoint of a run that only has to finish is damaged; after its removal, the last one is used."""
    best = step_dir(a_patient_run, result_of(a_patient_run)["best_step"])
    shutil.rmtree(a_patient_run / "model")
    shutil.copytree(all_checkpoints(a_patient_run)[0], best)
    (best / "model.safetensors").write_bytes(b"?")
    assert finetune(data, start, a_patient_run, *PATIENT) == 4
    assert f"{best}, the best checkpoint, is damaged: model.safetensors: size or" in capsys.readouterr().err
    shutil.rmtree(best)
    assert finetune(data, start, a_patient_run, *PATIENT) == 0
    assert "the best checkpoint, of step " in capsys.readouterr().out


def test_stopped_and_resumed_is_bit_for_bit_the_same(data: Path, start: Path, tmp_path: Path, python: Path) -> None:
    more = ["num_epochs=6", "checkpoint.every_steps=3", "evaluation.every_steps=5"]
    assert finetune(data, start, tmp_path / "whole", *more) == 0
    command = [python, "-m", "bertkit", "finetune", f"data_dir={data}", f"model_dir={start}",
               f"output_dir={tmp_path / 'stopped'}", *SMALL, *more]  # fmt: skip
    codes = []
    for number, rows in ((signal.SIGTERM, 4), (KILL, 17)):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and len(read_metrics(tmp_path / "stopped" / "metrics.jsonl")) < rows:
            time.sleep(0.02)
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
        assert errors == ""
        codes.append(process.returncode)
    assert codes == [75, -signal.SIGKILL]
    assert finetune(data, start, tmp_path / "stopped", *more) == 0
    assert weights_of(tmp_path / "stopped") == weights_of(tmp_path / "whole")
    whole, stopped = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("whole", "stopped"))
    assert [row | {"tokens_per_second": 0} for row in whole] == [row | {"tokens_per_second": 0} for row in stopped]


FROZEN = {
    "embeddings": ("bert.embeddings.",),
    "layers:2": ("bert.embeddings.", "bert.encoder.layer.0.", "bert.encoder.layer.1."),
    "encoder": ("bert.embeddings.", "bert.encoder."),
}


@pytest.mark.parametrize("freeze", FROZEN)
def test_frozen_parameters_do_not_change_and_have_no_state(
    freeze: str, data: Path, start: Path, tmp_path: Path, capsys: Capsys
) -> None:
    assert finetune(data, start, tmp_path / "run", f"freeze={freeze}", "num_epochs=1") == 0
    assert f"frozen: {freeze}" in capsys.readouterr().out
    before = read_tensors(start / "model.safetensors")
    after = read_tensors(tmp_path / "run" / "model" / "model.safetensors")
    names = [name for name in after if name in before]
    frozen = {name for name in names if name.startswith(FROZEN[freeze])}
    assert len(names) > len(frozen) > 4
    for name in names:
        assert (before[name].numpy().tobytes() == after[name].numpy().tobytes()) == (name in frozen), name
    held = read_tensors(all_checkpoints(tmp_path / "run")[0] / "optimizer.safetensors")
    model, _ = load_packed(tmp_path / "run")
    with_state = {to_hugging_face(name.rpartition(".")[0]) for name in held}
    assert with_state == set(huggingface.tensors_of(model)) - frozen


def test_frozen_modules_stay_in_evaluation_mode() -> None:
    """Not after an evaluation either, which puts every module back into the mode that it was in."""
    model = small_model(dropout=0.5).train()
    freeze_below(model, 3)
    parts = [model.bert.embeddings, *model.bert.encoder.layers, model.heads]
    with loop.evaluation_mode(model):
        assert not any(module.training for module in model.modules())
    assert [{module.training for module in part.modules()} for part in parts] == [{False}] * 3 + [{True}] * 2
    assert [{p.requires_grad for p in part.parameters()} for part in parts] == [{False}] * 3 + [{True}] * 2


def test_two_processes_train_as_one(data: Path, start: Path, tmp_path: Path, torchrun: list[str]) -> None:
    """The same micro-batches with the same dropout; only the sums are taken in another order."""
    more = ["num_epochs=1", "batch.sequences=9"]
    assert finetune(data, start, tmp_path / "one", *more) == 0
    arguments = [f"data_dir={data}", f"model_dir={start}", f"output_dir={tmp_path / 'two'}"]
    output_of([*torchrun, "finetune", *arguments, *SMALL, *more])
    losses = []
    for name in ("one", "two"):
        rows = read_metrics(tmp_path / name / "metrics.jsonl")
        losses.append([*(row["loss"] for row in rows), rows[-1]["eval_loss"]])
        assert [line["id"] for line in predictions_of(tmp_path / name)] == [str(number) for number in range(23)]
    assert len(losses[0]) == 7
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_learning_rates_by_layer(data: Path, start: Path, tmp_path: Path) -> None:
    """The first step's move of every weight is its rate: Adam's first update is the sign of the gradient."""
    more = ["num_epochs=1", "layer_decay=0.5", "schedule.warmup_steps=0", "optimizer.weight_decay=0",
            "optimizer.epsilon=1e-12", "evaluation.every_steps=1", "optimizer.peak_learning_rate=1e-3",
            "batch.sequences=64"]  # fmt: skip
    assert finetune(data, start, tmp_path / "run", *more) == 0
    before = read_tensors(start / "model.safetensors")
    after = read_tensors(tmp_path / "run" / "model" / "model.safetensors")
    layers = [f"encoder.layer.{layer}.output.dense" for layer in range(3)]
    names = [f"bert.{part}.bias" for part in ("embeddings.LayerNorm", *layers, "pooler.dense")]
    moves = [float((after[name] - before[name]).abs().max()) for name in names]
    assert moves == pytest.approx([1e-3 / 16, 1e-3 / 8, 1e-3 / 4, 1e-3 / 2, 1e-3], rel=1e-3)


def test_top_layers_can_be_drawn_anew(start: Path, data: Path, tmp_path: Path) -> None:
    more = ["num_epochs=1", "reinit_layers=1", "optimizer.peak_learning_rate=1e-9"]
    assert finetune(data, start, tmp_path / "run", *more) == 0
    before = read_tensors(start / "model.safetensors")
    after = read_tensors(tmp_path / "run" / "model" / "model.safetensors")
    changed = {
        n.split(".output")[0] for n in after if n in before and not torch.allclose(before[n], after[n], atol=1e-6)
    }
    assert {".".join(name.split(".")[:4]) for name in changed} == {"bert.encoder.layer.2", "bert.pooler.dense.weight"}


def test_starting_from_another_task(data: Path, start: Path, tmp_path: Path, capsys: Capsys) -> None:
    """The head of the same labels goes on, in the order of the new task; of other labels, a new one is made."""
    assert finetune(data, start, tmp_path / "first", "num_epochs=5", "task.labels=[good,bad]") == 0
    capsys.readouterr()
    more = ["num_epochs=1", "optimizer.peak_learning_rate=1e-9"]
    assert finetune(data, tmp_path / "first", tmp_path / "same", *more) == 0
    assert "initialised" not in capsys.readouterr().out
    first, same = (json.loads((tmp_path / name / "eval.json").read_text()) for name in ("first", "same"))
    assert same["accuracy"] == first["accuracy"] > 0.8
    assert load_model(tmp_path / "same").config.labels == ("bad", "good")
    assert finetune(data, tmp_path / "first", tmp_path / "other", *more, "task.labels=[bad,good,ugly]") == 0
    printed = capsys.readouterr().out
    assert "good; bad), initialised 2 new tensors (sequence)" in printed


def test_class_weights_are_balanced_or_given(data: Path, start: Path, tmp_path: Path, capsys: Capsys) -> None:
    from bertkit.jobs.task_data import balanced_weights

    assert balanced_weights(np.array([0, 0, 0, 2]), 3) == (4 / 9, 1.0, 4 / 3)
    assert balanced_weights(np.array([-100, 1, 1, 0]), 2) == (1.5, 0.75)
    assert finetune(data, start, tmp_path / "run", "class_weights=balanced", "num_epochs=1") == 0
    refused(finetune(data, start, tmp_path / "other", "class_weights=[1,2,3]"), "class_weights=[1.0, 2.0, 3.0]", capsys)


@pytest.mark.parametrize("kind", ["one label", "several labels"])
def test_calibrated_probabilities_are_those_of_the_weights(
    kind: str, data: Path, start: Path, tmp_path: Path, capsys: Capsys
) -> None:
    """One temperature for the logits, in the saved weights: the same training, other probabilities, everywhere."""
    metric = "task.metrics=[f1_micro] task.best_metric=f1_micro"
    more = ["seed=0", *(f"task.multi_label=true {metric}".split() if kind == "several labels" else ())]
    plain, run_dir = tmp_path / "plain", tmp_path / "run"
    assert finetune(data, start, plain, *more) == 0
    assert finetune(data, start, run_dir, *more, "calibrate=true") == 0
    result = result_of(run_dir)
    fitted = result["calibration"]
    line = (
        f"calibrated: temperature {fitted['temperature']:.4g}, fitted on the 23 rows of dev; expected calibration error"
    )
    assert f"{line} {fitted['error_before']:.4f} before, {fitted['error_after']:.4f} after" in capsys.readouterr().out
    assert line in "\n".join(Page((run_dir / "report.html").read_text()).text)
    assert result_of(plain)["calibration_error"] == pytest.approx(fitted["error_before"])
    assert result["f1_micro" if more[1:] else "accuracy"] == result_of(plain)["f1_micro" if more[1:] else "accuracy"]
    weights, others = (
        load_file(run_dir / "model" / "model.safetensors"),
        load_file(plain / "model" / "model.safetensors"),
    )
    for name, tensor in weights.items():
        factor = fitted["temperature"] if name.startswith("classifier.") else 1
        assert torch.allclose(tensor * factor, others[name], rtol=1e-6), name
    texts = [tuple(line.split("\t")[:2]) for line in (data / "dev.tsv").read_text().splitlines()[1:]]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(run_dir / "model").eval()
    own = transformers.AutoTokenizer.from_pretrained(run_dir / "model")
    with torch.no_grad():
        logits = model(**own([*map(list, texts)], padding=True, return_tensors="pt")).logits.double()
    theirs = (logits.sigmoid() if more[1:] else logits.softmax(-1)).numpy()
    of_rows = [[*row["probabilities"].values()] for row in predictions_of(run_dir)]
    of_texts = [[*row["probabilities"].values()] for row in load_predictor(run_dir, device="cpu")(texts)]
    before = np.array([[*row["probabilities"].values()] for row in predictions_of(plain)])
    odds = np.log(before) - (np.log(1 - before) if more[1:] else 0)
    tempered = torch.from_numpy(odds / fitted["temperature"])
    expected = (tempered.sigmoid() if more[1:] else tempered.softmax(-1)).numpy()
    assert abs(expected - before).max() > 0.01
    for actual in (of_rows, of_texts, theirs):
        assert np.array(actual) == pytest.approx(expected, abs=1e-6)
    assert run(["verify", f"model_dir={run_dir}"]) == 0


def test_a_finished_run_can_be_calibrated_and_back(data: Path, start: Path, finished: Path, tmp_path: Path) -> None:
    """Without training again, from the best weights."""
    run_dir = Path(shutil.copytree(finished, tmp_path / "run"))
    before = result_of(run_dir)
    assert finetune(data, start, run_dir, "calibrate=true") == 2  # another run
    for value in ("true", "false", "true"):
        assert finetune(data, start, run_dir, f"calibrate={value}", "resume.allow=[calibrate]") == 0
        temperature = result_of(run_dir).get("calibration", {}).get("temperature", 1)
        assert (temperature != 1) == (value == "true")
        weights = load_file(run_dir / "model" / "model.safetensors")["classifier.weight"] * temperature
        assert torch.allclose(weights, load_file(finished / "model" / "model.safetensors")["classifier.weight"])
        assert result_of(run_dir)["accuracy"] == before["accuracy"]


def test_few_rows_have_a_linear_head_on_frozen_vectors_as_a_baseline(
    data: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    """scikit-learn's on the vectors of an embedding model, for pairs |u - v|; not for many rows, nor on training rows."""
    model = Path(shutil.copytree(start, tmp_path / "model"))
    modules = [{"idx": n, "name": str(n), "path": f"{n}_{kind}" * n, "type": f"sentence_transformers.models.{kind}"}
               for n, kind in enumerate(("Transformer", "Pooling"))]  # fmt: skip
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text(
        '{"word_embedding_dimension": 26, "pooling_mode_mean_tokens": true}'
    )
    rows = [
        [line.split("\t") for line in (data / f"{name}.tsv").read_text().splitlines()[1:]] for name in ("train", "dev")
    ]
    embed = load_embedder(model, normalize=True, device="cpu")
    known, new = (abs(embed([row[0] for row in own]) - embed([row[1] for row in own])) for own in rows)
    labels, true = ([row[2] for row in own] for own in rows)
    expected = LogisticRegression(C=10, max_iter=200).fit(known, labels).score(new, true)
    assert finetune(data, model, tmp_path / "run", "num_epochs=1") == 0
    result = result_of(tmp_path / "run")
    assert result["linear_head_baseline"]["accuracy"] == pytest.approx(expected)
    assert result["tfidf_baseline"]["accuracy"] == 1
    line = f"a linear head on frozen vectors: accuracy {expected:.4f}; fine-tuned {result['accuracy']:.4f}"
    assert line in capsys.readouterr().out
    assert line in "\n".join(Page((tmp_path / "run" / "report.html").read_text()).text)
    assert finetune(data, model, tmp_path / "all", "num_epochs=1", "dev_share=0") == 0
    monkeypatch.setattr("bertkit.inference.frozen.MOST_ROWS", 52)
    assert finetune(data, model, tmp_path / "many", "num_epochs=1") == 0
    assert all("linear_head_baseline" not in result_of(tmp_path / name) for name in ("all", "many"))


def test_regression_learns_to_count(start: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, count in (("train", 41), ("dev", 19)):
        rows = [(" ".join(rng.choice(["kan", "lor"], 5)), "min") for _ in range(count)]
        table = [f"{text}\t{pair}\t{text.count('kan')}" for text, pair in rows]
        (tmp_path / f"{name}.tsv").write_text("text\ttext_pair\tlabel\n" + "\n".join(table) + "\n")
    more = ["task.labels=regression", "task.metrics=[pearson]", "task.best_metric=pearson", "num_epochs=8"]
    assert finetune(tmp_path, start, tmp_path / "run", *more) == 0
    assert json.loads((tmp_path / "run" / "eval.json").read_text())["pearson"] > 0.8
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert (config["problem_type"], config["id2label"]) == ("regression", {"0": "score"})
    assert "sequence_accuracy" not in read_metrics(tmp_path / "run" / "metrics.jsonl")[0]


def test_regression_learns_labels_of_any_size(start: Path, tmp_path: Path) -> None:
    """Prices: the loss has units near their spread, the model and its scores the prices' own."""
    rng = np.random.default_rng(0)
    for name, count in (("train", 61), ("dev", 19)):
        texts = [" ".join(rng.choice(["kan", "lor"], 5)) for _ in range(count)]
        lines = "".join(f"{text}\t{20_000 + 3_000 * text.count('kan')}\n" for text in texts)
        (tmp_path / f"{name}.tsv").write_text(f"text\tlabel\n{lines}")
    task = [
        "task=regression",
        f"data_dir={tmp_path}",
        "device=cpu",
        "num_epochs=8",
        "optimizer.peak_learning_rate=3e-3",
        "batch.sequences=8",
        "task.max_seq_length=24",
    ]
    words = ["finetune", *task, f"model_dir={start}", f"output_dir={tmp_path / 'run'}"]
    assert run(words) == 0
    scores = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert scores["mae"] < scores["rmse"] < 0.5 * scores["majority_baseline"]["rmse"]
    assert 1_000 < scores["majority_baseline"]["rmse"] < 6_000
    assert read_metrics(tmp_path / "run" / "metrics.jsonl")[0]["loss"] < 10
    predict = load_predictor(tmp_path / "run", device="cpu")
    classifier = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "model").eval()
    tokens = load_tokenizer(tmp_path / "run")(["kan kan lor lor lor"], return_tensors="pt")
    with torch.no_grad():
        theirs = float(classifier(**tokens).logits[0, 0])
    assert predict("kan kan lor lor lor")["label"] == pytest.approx(theirs, rel=1e-4)
    assert abs(theirs - 26_000) < 3_000
    assert run([*words, "num_epochs=9", "resume.allow=[num_epochs]"]) == 0  # continues with the same units
    assert json.loads((tmp_path / "run" / "eval.json").read_text())["rmse"] < 0.5 * scores["majority_baseline"]["rmse"]


def test_several_labels_at_once(start: Path, tmp_path: Path, capsys: Capsys) -> None:
    """Any number of words of two topics, and a label for each topic that is there."""
    rng = np.random.default_rng(0)
    for name, count in (("train", 83), ("dev", 29)):
        rows = []
        for _ in range(count):
            labels = [label for label in WORDS if rng.random() < 0.5]
            words = [word for label in labels for word in rng.choice(WORDS[label], 3)]
            rows.append({"text": " ".join(rng.permutation(["te", *words])), "labels": labels})
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = ["task=sequence", "task.max_seq_length=24", "task.multi_label=true", "task.metrics=[f1_micro,f1_macro,accuracy]",
            "task.best_metric=f1_micro", f"data_dir={tmp_path}", "device=cpu"]  # fmt: skip
    run_dir = tmp_path / "run"
    assert finetune(tmp_path, start, run_dir, *task[2:-2], "num_epochs=12") == 0
    result = json.loads((run_dir / "eval.json").read_text())
    assert result["f1_micro"] > 0.9
    lines = [json.loads(line) for line in (run_dir / "predictions.jsonl").read_text().splitlines()]
    assert np.mean([set(line["label"]) == set(line["reference"]) for line in lines]) == result["accuracy"]
    assert {len(line["reference"]) for line in lines} == {0, 1, 2}
    capsys.readouterr()
    assert run(["evaluate", f"model_dir={run_dir}", *task]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert all(scores[key] == result[key] for key in ("f1_micro", "f1_macro", "accuracy"))
    output = tmp_path / "out.jsonl"
    assert run(["predict", f"model_dir={run_dir}", f"input={tmp_path / 'dev.jsonl'}", f"output={output}"]) == 0
    predicted = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["label"] for row in predicted] == [line["label"] for line in lines]
    assert run(["export", f"checkpoint={run_dir}", "head=task", f"output_dir={tmp_path / 'exported'}"]) == 0
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "exported").eval()
    assert model.config.problem_type == "multi_label_classification"
    first = json.loads((tmp_path / "dev.jsonl").read_text().splitlines()[0])
    ids = load_tokenizer(run_dir)([first["text"]])["input_ids"]
    shares = model(torch.tensor(ids)).logits[0].sigmoid().tolist()
    assert list(predicted[0]["probabilities"].values()) == pytest.approx(shares, abs=1e-5)


def test_choice_task_learns(start: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, count in (("train", 41), ("dev", 19)):
        rows = []
        for _ in range(count):
            right = int(rng.integers(4))
            endings = [str(rng.choice(WORDS["good" if n == right else "bad"])) for n in range(4)]
            rows.append(f"min,kan,{','.join(endings)},{right}")
        header = "sent1,sent2,ending0,ending1,ending2,ending3,label\n"
        (tmp_path / f"{name}.csv").write_text(header + "\n".join(rows) + "\n")
    assert finetune(tmp_path, start, tmp_path / "run", "task=swag", "num_epochs=6") == 0
    assert json.loads((tmp_path / "run" / "eval.json").read_text())["accuracy"] > 0.9


def test_tagging_task_learns_in_windows(start: Path, tmp_path: Path) -> None:
    """Sentences of up to 40 words, in windows of 16 tokens: every word has its tag, in every file."""
    rng = np.random.default_rng(0)
    for name, count in (("train", 61), ("dev", 17)):
        sentences = []
        for _ in range(count):
            kinds = rng.choice(["good", "bad"], rng.integers(1, 41))
            tags = ["B-X" if kind == "good" else "O" for kind in kinds]
            lines = [f"{rng.choice(WORDS[kind])} {tag}\n" for kind, tag in zip(kinds, tags, strict=True)]
            sentences.append("".join(lines))
        (tmp_path / f"{name}.txt").write_text("\n".join(sentences))
    more = ["task=tagging", "task.max_seq_length=16", "num_epochs=3", "task.columns.words=0", "task.columns.tags=-1"]
    more += ["task.files.train=train.txt", "task.files.dev=dev.txt"]
    assert finetune(tmp_path, start, tmp_path / "run", *more) == 0
    assert json.loads((tmp_path / "run" / "eval.json").read_text())["overall_f1"] > 0.9
    words = [line.split()[0] for line in (tmp_path / "dev.txt").read_text().split("\n") if line]
    lines = [line.split() for line in (tmp_path / "run" / "predictions.txt").read_text().split("\n") if line]
    assert [line[0] for line in lines] == words
    assert {len(line) for line in lines} == {3}


def test_span_task_learns_in_windows(start: Path, tmp_path: Path) -> None:
    """The answer is the one word of its topic; contexts of up to 40 words, in windows of 24 tokens."""
    rng = np.random.default_rng(0)
    for name, count in (("train", 61), ("dev", 17)):
        questions = []
        for number in range(count):
            words = rng.choice(WORDS["bad"], rng.integers(2, 41)).tolist()
            place = int(rng.integers(len(words)))
            words[place] = str(rng.choice(WORDS["good"]))
            answer = {"text": words[place], "answer_start": len(" ".join(words[:place])) + (place > 0)}
            qas = [{"id": f"{name}{number}", "question": "kan lon min", "answers": [answer]}]
            questions.append({"context": " ".join(words), "qas": qas})
        content = {"version": "1.1", "data": [{"title": "made up", "paragraphs": questions}]}
        (tmp_path / f"{name}-v1.1.json").write_text(json.dumps(content))
    more = [
        "task=squad1", "task.max_seq_length=24", "task.spans.window_step=9", "task.spans.max_query_length=6",
        "num_epochs=7",
    ]  # fmt: skip
    assert finetune(tmp_path, start, tmp_path / "run", *more) == 0
    assert json.loads((tmp_path / "run" / "eval.json").read_text())["exact_match"] > 50
    for name in ("predictions", "nbest_predictions", "null_odds"):
        assert set(json.loads((tmp_path / "run" / f"{name}.json").read_text())) == {f"dev{n}" for n in range(17)}


def test_a_part_of_train_is_held_out(data: Path, start: Path, tmp_path: Path, capsys: Capsys) -> None:
    only = tmp_path / "data"
    only.mkdir()
    shutil.copy(data / "train.tsv", only)
    assert finetune(only, start, tmp_path / "run", "dev_share=0.2", "num_epochs=1") == 0
    printed = capsys.readouterr().out
    num_dev = json.loads((tmp_path / "run" / "eval.json").read_text())["num_examples"]
    assert num_dev == 11
    assert f"{only}/train.tsv (tsv): {53 - num_dev} rows" in printed
    assert f"held out of {only}/train.tsv (tsv): {num_dev} rows" in printed


def test_all_rows_are_trained_on(data: Path, start: Path, tmp_path: Path, capsys: Capsys) -> None:
    """With dev_share=0 some of them are measured, once, and the last weights are kept."""
    words = [
        "finetune",
        str(data / "train.tsv"),
        "task=sequence",
        f"model_dir={start}",
        f"output_dir={tmp_path / 'run'}",
    ]
    assert run([*words, *SMALL, "dev_share=0", "num_epochs=2"]) == 0
    scores = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert (scores["num_examples"], scores["best_epoch"]) == (16, 2)
    printed = capsys.readouterr().out
    assert "train.tsv (tsv): 53 rows" in printed
    assert "16 of 16 examples are near-duplicates of training examples" in printed
    assert printed.count("  dev: accuracy") == 1


@pytest.mark.parametrize(
    ("words", "best"),
    [
        ("task=classification task.metrics=f1_macro", "f1_macro"),
        ("task=classification task.metrics=[f1_macro,accuracy]", "accuracy"),
        ("task=ner task.metrics=[accuracy]", "accuracy"),
        ("task=ner task.metrics=seqeval_strict", "strict_f1"),
        ("task=regression task.metrics=[r2]", "r2"),
    ],
)
def test_the_metric_that_selects_follows_from_the_metrics(words: str, best: str) -> None:
    composed = settings_from_words("finetune", [*words.split(), "output_dir=o"])
    assert composed["task"]["best_metric"] == best


def test_near_duplicates_are_counted_and_an_old_run_keeps_its_split(
    start: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "data").mkdir()
    words = [
        "kan lon min run ten son karn lorn",
        "mish rush tesh sosh kad lod mid rud",
        "ted sod kam lom mim rum tem som",
    ]
    lines = [f"{words[n % 3]} {'kan ' * n}\t{'ab'[n % 2]}\n" for n in range(12)]
    lines += [f"{' '.join(reversed(line.split()[:7]))} {n}\t{'ab'[n % 2]}\n" for n, line in enumerate(lines)]
    (tmp_path / "data" / "train.tsv").write_text("text\tlabel\n" + "".join(lines))
    (tmp_path / "data" / "dev.tsv").write_text(
        "text\tlabel\n" + f"ted {words[0]}\ta\nrun kan run kan run kan run kan\tb\n"
    )
    assert finetune(tmp_path / "data", start, tmp_path / "dev", "num_epochs=1") == 0
    assert "dev.tsv: 1 of 2 examples are near-duplicates of training examples" in capsys.readouterr().out
    old_run = (tmp_path / "data", start, tmp_path / "run", "dev_share=0.5", "num_epochs=1")
    with pytest.MonkeyPatch.context() as patch:  # as version 0.2
        patch.setattr(run_finished, "held_out_by", lambda settings: held_out.TOGETHER)
        assert finetune(*old_run, "log.every_steps=1") == 0
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["identity"]["dev_split"] == held_out.TOGETHER
    capsys.readouterr()
    assert finetune(*old_run) == 0
    assert "done already" in capsys.readouterr().out
    assert finetune(*old_run, "num_epochs=2", "resume.allow=[num_epochs]") == 0
    assert "8 rows of 24 (33.3%), as in the version that began this run" in capsys.readouterr().out
    assert finetune(*old_run[:2], tmp_path / "new", *old_run[3:]) == 0
    assert re.search(
        "dev_share=0.5 of .*: [1-9][0-9]? of 12 examples are near-duplicates", capsys.readouterr().out
    )  # of groups larger than a tenth of them
    assert json.loads((tmp_path / "new" / "manifest.json").read_text())["identity"]["dev_split"].startswith(
        "stratified"
    )
    assert finetune(*old_run[:2], tmp_path / "new", *old_run[3:]) == 0
    assert "done already" in capsys.readouterr().out


def test_metrics_are_checked_when_the_labels_are_known(start: Path, tmp_path: Path, capsys: Capsys) -> None:
    for name in ("train", "dev"):
        (tmp_path / f"{name}.txt").write_text("kan NN\nlon DT\n")
    refused(finetune(tmp_path, start, tmp_path / "run", "task=tagging"), "seqeval cannot measure tags", capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_said_before_the_model_is_read(data: Path, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "none").mkdir()
    refused(finetune(data, tmp_path / "none", tmp_path / "run", "device=cuda"), "device=cuda: ", capsys)


def test_a_missing_model_or_a_wrong_place_is_said_before_the_files_are_read(
    start: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.tsv").write_text("text\tlabel\nkan\n")  # too few cells
    (tmp_path / "closed").mkdir()
    refused(finetune(tmp_path, tmp_path / "none", tmp_path / "run"), "none: no such directory", capsys, alone=True)
    for place in ("train.tsv", "train.tsv/run"):
        refused(finetune(tmp_path, start, tmp_path / place), "train.tsv is a file; ", capsys, alone=True)
    refused(finetune(tmp_path, start, tmp_path), "is not a run: it has closed, train.tsv; ", capsys, alone=True)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path / "closed" and access(path, mode))
    refused(finetune(tmp_path, start, tmp_path / "closed" / "run"), "closed is not writable; ", capsys, alone=True)
    refused(finetune(tmp_path, start, tmp_path / "run"), "too few cells", capsys)


@pytest.mark.parametrize(("setting", "line"), [
    ("freeze=layer:2", "freeze='layer:2': expected embeddings or encoder or layers:K such as layers:6 or null"),
    ("freeze=3", "freeze=3: expected embeddings or encoder or layers:K such as layers:6 or null"),
    ("freeze=layers:4", "freeze=layers:4: the model has 3 layers"),
    ("reinit_layers=4", "reinit_layers=4: the model has 3 layers"),
    ("reinit_layers=2 freeze=layers:2", "reinit_layers=2 with freeze=layers:2: a new layer would stay as it is drawn"),
    ("layer_decay=0.5 freeze=encoder", "layer_decay=0.5: has no effect with freeze=encoder; leave it out"),
    ("task.max_seq_length=64", "task.max_seq_length=64 exceeds the model's max_position_embeddings=41"),
    ("task.labels=[good,ugly]", "unknown label 'bad'"),
    ("schedule.warmup_steps=100", "schedule.warmup_steps=100 exceeds the 14 steps of the run"),
    ("task.best_metric=f1", "task.best_metric=f1: expected one of accuracy"),
    ("task.metrics=[acc]", "task.metrics: unknown acc"),
    ("task.multi_label=true task.metrics=[accuracy,f1]", "task.metrics: f1 cannot measure several labels at once"),
    ("task.metrics=[pearson] task.best_metric=pearson", "task.metrics: pearson cannot measure one of two labels"),
    ("task.files.dev=[]", "has no dev split; set task.files.dev=; finetune needs a dev split: set dev_share=0.1"),
    ("task.multi_label=true class_weights=balanced", "class_weights: has no effect with task.multi_label=true"),
    ("calibrate=true task.labels=regression task.metrics=[r2]", "calibrate=true: task=sequence is no classification"),
    ("calibrate=true task=tagging", "calibrate=true: task=tagging is no classification; leave it out"),
    ("calibrate=true task=spans", "calibrate=true: task=spans is no classification; leave it out"),
    ("calibrate=true task=translation decoder=bert", "calibrate=true: task=translation is no classification"),
    ("evaluation.patience=2 dev_share=0", "evaluation.patience=2: has no effect with dev_share=0"),
    ("calibrate=true dev_share=0", "calibrate=true: dev_share=0 leaves no held-out rows"),
    ("task=sequense", "task=sequense; did you mean 'sequence'?"),
])  # fmt: skip
def test_impossible_finetune_settings_are_refused(
    setting: str, line: str, data: Path, start: Path, tmp_path: Path, capsys: Capsys
) -> None:
    refused(finetune(data, start, tmp_path / "run", *setting.split()), line, capsys)
    assert not (tmp_path / "run").exists()


def test_labels_with_blanks_around_them_are_refused(data: Path, start: Path, tmp_path: Path, capsys: Capsys) -> None:
    """Labels in files are read without: the type `PER ` of `B-PER ` was another one than that of `I-PER`."""
    for labels, name in (('["bad ",good]', "'bad '"), ('["B-PER\u00a0","O"]', r"'B-PER\xa0'"), ('[bad,""]', "''")):
        line = f"task.labels: {name} is empty, or begins or ends with a blank; correct it"
        for task in ("sequence", "tagging"):
            refused(finetune(data, start, tmp_path / "run", f"task={task}", f"task.labels={labels}"), line, capsys)


HEADER = "sentence1\tsentence2\tlabel\n"
SPAN = '{"id": "q", "question": "kan", "context": "lon min", "answers": [{"text": "kan", "answer_start": 0}]}\n'
FAULTS = [  # task, file, its content, the error after the folder; the others are in tests/tasks/files/test_bad_files.py
    ("rte", "train.tsv", HEADER + "kan\tlon\tyes\n", "/train.tsv:2: label: unknown label 'yes'; expected 'entailment'"),
    ("sequence", "train.tsv", "text\tlabel\nkan\t1\nkan\tgood\n", "/train.tsv:3: label: mixed label types: 'good' is text, but '1' at {}/train.tsv:2 is a number"),
    ("squad1", "train-v1.1.json", SPAN, "/train-v1.1.json:1: question 'q': answer 'kan' is not in its context at answer_start=0"),
    ("tagging", "train.txt", "kan O\nlon B-\n", "/train.txt:2: invalid tag 'B-'; expected O, or B-, I-"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "name", "content", "line"), FAULTS)
def test_bad_input_is_one_line(
    task: str, name: str, content: str, line: str, start: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / name).write_text(content)
    arguments = [
        f"data_dir={tmp_path}",
        f"model_dir={start}",
        f"output_dir={tmp_path / 'run'}",
        "task.max_seq_length=40",
    ]
    more = ["task.spans.max_query_length=9"] if task == "squad1" else []
    refused(run(["finetune", f"task={task}", *arguments, *more]), f"error: {tmp_path}{line.format(tmp_path)}", capsys)
    assert not (tmp_path / "run").exists()


def test_suspicious_input_is_a_warning(start: Path, tmp_path: Path, capsys: Capsys) -> None:
    """One label alone, and texts that the tokenizer does not know."""
    rows = ["ж	ж	entailment", "kan	lon	entailment", "min	ж ж	entailment"]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text(HEADER + "\n".join(rows) + "\n", encoding="utf-8")
    arguments = [f"data_dir={tmp_path}", "task=rte", "task.max_seq_length=24", "device=cpu"]
    assert run(["finetune", *arguments, f"model_dir={start}", f"output_dir={tmp_path / 'run'}", "num_epochs=1"]) == 0
    printed = capsys.readouterr().out
    one_class = "every label is 'entailment'; nothing can be learned from a single class"
    for name in ("train", "dev"):
        assert f"warning: {tmp_path}/{name}.tsv: {one_class}\n" in printed
        assert re.search(rf"warning: {tmp_path}/{name}\.tsv \(tsv\): 2 examples .*ids 0, 2\)", printed)
    assert run(["evaluate", *arguments, f"model_dir={tmp_path / 'run'}"]) == 0
    assert re.search(rf"warning: {tmp_path}/dev\.tsv \(tsv\): 2 examples .*ids 0, 2\)", capsys.readouterr().err)


def test_one_order_of_adding_is_kept_from_the_start(data: Path, start: Path, tmp_path: Path) -> None:
    """Strict: four parts of each batch, also of the last one of an epoch, which has five examples."""
    assert finetune(data, start, tmp_path / "strict", "reproducibility=strict") == 0
    assert finetune(data, start, tmp_path / "default") == 0
    state = json.loads((all_checkpoints(tmp_path / "strict")[0] / "state.json").read_text())
    assert (state["chosen"]["num_parts"], state["chosen"]["cut"]["min_parts"]) == (4, 4)
    strict, default = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("strict", "default"))
    assert strict[0]["loss"] != default[0]["loss"]  # other micro-batches, so other dropout
    assert len(strict) == len(default) == 14
