"""Several tasks of GLUE on one encoder: the order of the steps, the losses, a killed run, two processes, the models and files of each task."""

import dataclasses
import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Capsys, real_data, refused, small_model, strike
from safetensors.torch import load_file
from stages.test_glue import LAYOUT, kill_half_way, state_of, write_table

from bertkit import export_model
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import load_tokenizer
from bertkit.jobs.together import TogetherJob, plan_together
from bertkit.objectives.objective import Objective
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.glue import GlueSettings
from bertkit.tasks.batching import TogetherOrder

NUM_ROWS = {"MRPC": 29, "CoLA": 43, "MNLI": 19}
SMALL = ["device=cpu", "num_epochs=2", "task.max_seq_length=24", "batch.sequences=8", "log.every_steps=1", "optimizer.peak_learning_rate=1e-2"]  # fmt: skip
TASKS = ("mrpc", "cola", "mnli", "stsb")  # two labels, three labels, and a number
STATE = ("model.safetensors", "objective.safetensors", "optimizer.safetensors")


@pytest.fixture(scope="module")
def glue_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first rows of real files, and an STS-B in its format."""
    folder = tmp_path_factory.mktemp("glue")
    for name, num_rows in NUM_ROWS.items():
        for split, size in (("train", num_rows), ("dev", 17), ("test", 5)):
            path = real_data("glue", name) / f"{split}.tsv"
            if path.exists():
                (folder / name).mkdir(exist_ok=True)
                lines = path.read_text(encoding="utf-8").split("\n")[: size + (name != "CoLA" or split == "test")]
                place = "dev_matched" if (name, split) == ("MNLI", "dev") else split
                (folder / name / f"{place}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    shutil.copy(folder / "MNLI" / "dev_matched.tsv", folder / "MNLI" / "dev_mismatched.tsv")
    _, columns, test_columns, labels = LAYOUT["stsb"]
    for split, size in (("train", 13), ("dev", 7), ("test", 5)):
        path = folder / "STS-B" / f"{split}.tsv"
        write_table(path, test_columns if split == "test" else columns, size, labels, np.random.default_rng(0))
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with BERT's vocabulary, and dropout."""
    tokenizer = load_tokenizer(real_data("vocab", "bert-base-uncased") / "vocab.txt")
    model = small_model(tokenizer.vocab_size, dropout=0.1)
    return export_model(model, tokenizer, tmp_path_factory.mktemp("small") / "model")


def words_of(glue_dir: Path, model: Path, output: Path, *more: str) -> list[str]:
    own = [f"tasks=[{','.join(TASKS)}]", "together=true", "seeds=[3]", *SMALL, *more]
    return ["glue", f"model_dir={model}", f"data_dir={glue_dir}", f"output_dir={output}", *own]


@pytest.fixture(scope="module")
def finished(glue_dir: Path, small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs") / "together"
    assert run(words_of(glue_dir, small, output)) == 0
    return output


def settings_of(glue_dir: Path, model: Path, output: Path, *more: str) -> list[FinetuneSettings]:
    from bertkit.commands import build_settings, settings_from_words

    settings = build_settings("glue", settings_from_words("glue", words_of(glue_dir, model, output, *more)[1:]))
    assert isinstance(settings, GlueSettings)
    return [
        dataclasses.replace(own, seed=3, output_dir=str(output / own.task.name / "seed-3")) for own in settings.trained
    ]


@pytest.fixture
def job(glue_dir: Path, small: Path, tmp_path: Path) -> TogetherJob:
    return plan_together(settings_of(glue_dir, small, tmp_path), tmp_path / "together")


def test_an_epoch_has_every_batch_of_every_task_once(job: TogetherJob) -> None:
    order = job.order
    assert isinstance(order, TogetherOrder)
    sizes = {"mrpc": 4, "cola": 6, "mnli": 3, "stsb": 2}
    assert {task: own.steps_per_epoch for task, own in order.orders.items()} == sizes
    assert job.steps == 2 * job.steps_per_epoch == 2 * 15
    steps = [order.of(step) for step in range(30)]
    epochs = [steps[:15], steps[15:]]
    for number, epoch in enumerate(epochs):
        for task, size in sizes.items():
            assert sorted(own for name, own in epoch if name == task) == [*range(number * size, (number + 1) * size)]
    assert [task for task, _ in epochs[0]] != [task for task, _ in epochs[1]]
    assert any(first != second for first, second in pairwise(task for task, _ in epochs[0]))
    other = dataclasses.replace(order, seed=4)
    assert [other.of(step)[0] for step in range(15)] != [task for task, _ in epochs[0]]
    for step, (task, own) in enumerate(steps):
        (drawn, *_), names = order.micro_batches(step, 0, 1), order.names(step)
        assert [*drawn[1].targets] == [task]
        assert names == [f"{task} {item}" for item in order.orders[task].names(own)]


def test_a_batch_has_the_loss_of_its_task_alone(job: TogetherJob) -> None:
    """As the task's own job computes it; the heads of the other tasks get zeros, and the encoder is one for all."""
    model, trained = job.model.eval(), job.start.trained.eval()
    steps = {job.order.of(step)[0]: step for step in range(15)}
    assert {*steps} == {*TASKS}
    for task, own in job.members.items():
        assert own.model.bert is model.bert
        ((_, batch), *_) = job.prepared(steps[task])
        trained.zero_grad()
        (term,) = job.objective.losses(trained, batch).values()
        term.sum.backward()
        alone = dataclasses.replace(batch, targets={"sequence": batch.targets[task]})
        (expected,) = Objective().losses(own.model.eval(), alone).values()
        assert term.sum.item() == pytest.approx(expected.sum.item(), rel=1e-6)
        assert term.count == expected.count == len(batch.sequence_lengths)
        for name, other in job.members.items():
            gradient = other.model.heads["sequence"].dense.weight.grad
            assert gradient is not None
            assert bool(gradient.any()) == (name == task)


def test_every_task_has_a_model_and_files_as_before(
    finished: Path, glue_dir: Path, tmp_path: Path, capsys: Capsys
) -> None:
    """One encoder in all of them; each is evaluated, predicts and is exported; scores are those of the best row of the log."""
    models = {task: load_file(finished / task / "seed-3" / "model" / "model.safetensors") for task in TASKS}
    encoders = [{key: one for key, one in model.items() if key.startswith("bert.")} for model in models.values()]
    assert len(encoders[0]) > 30
    for other in encoders[1:]:
        assert all(torch.equal(encoders[0][key], one) for key, one in other.items())
    assert [len(model["classifier.bias"]) for model in models.values()] == [2, 2, 3, 1]
    means = json.loads((finished / "together" / "seed-3" / "eval.json").read_text())
    log = (finished / "together" / "seed-3" / "metrics.jsonl").read_text().splitlines()
    rows = {row["step"]: row for row in map(json.loads, log)}
    assert len(rows) == 30
    measured = {step: row["eval_score"] for step, row in rows.items() if "eval_score" in row}
    assert [*measured] == [15, 30]
    assert measured[means["best_step"]] == max(measured.values()) == pytest.approx(means["score"])
    for place in ("stsb", "together"):
        manifest = json.loads((finished / place / "seed-3" / "manifest.json").read_text())
        assert [*manifest["corpus"]["decimal_marks"]] == ["."]
    best_metrics = {"mrpc": "f1", "cola": "matthews_correlation", "mnli": "accuracy", "stsb": "spearmanr"}
    summary = json.loads((finished / "glue.json").read_text())
    assert {*summary["tasks"]} == {*TASKS}
    scores = []
    for task, metric in best_metrics.items():
        own = json.loads((finished / task / "seed-3" / "eval.json").read_text())
        scores.append(own[metric])
        assert own[metric] == pytest.approx(rows[means["best_step"]][f"eval_{task}_{metric}"], abs=1e-6)
        assert (own["best_step"], own["num_examples"]) == (means["best_step"], 7 if task == "stsb" else 17)
        capsys.readouterr()
        assert run(["evaluate", f"model_dir={finished / task / 'seed-3'}", f"data_dir={glue_dir}"]) == 0
        printed = capsys.readouterr().out
        again = json.loads(printed[printed.index("{") :])
        for name in (metric, "calibration_error", "pearson"):
            assert again.get(name) == pytest.approx(own.get(name), abs=1e-6)
        assert len((finished / task / "seed-3" / "predictions.jsonl").read_text().splitlines()) == own["num_examples"]
    assert means["score"] == pytest.approx(np.mean(scores))
    sheets = {path.name for path in finished.glob("*/seed-3/*.tsv")}
    assert sheets <= {"MRPC.tsv", "CoLA.tsv", "STS-B.tsv"}
    assert run(["export", f"model_dir={finished / 'mnli' / 'seed-3'}", f"output_dir={tmp_path / 'exported'}"]) == 0
    assert json.loads((tmp_path / "exported" / "parity.json").read_text())["within_tolerance"]


def last_checkpoint(output: Path) -> Path:
    return max((output / "together" / "seed-3" / "checkpoints").iterdir())


def test_a_killed_run_resumes_to_the_same_bytes(
    finished: Path, glue_dir: Path, small: Path, tmp_path: Path, python: Path, capsys: Capsys
) -> None:
    """It is killed after the first epoch; a finished one stays as it is."""
    output = tmp_path / "runs"
    command = words_of(glue_dir, small, output, "checkpoint.every_steps=7")
    kill_half_way([python, "-m", "bertkit", *command], output / "together" / "seed-3" / "checkpoints" / "step-00000014")
    assert not (output / "mrpc").exists()
    assert run(command) == 0
    assert "resumed from step" in capsys.readouterr().out
    for name in STATE:
        assert (last_checkpoint(output) / name).read_bytes() == (last_checkpoint(finished) / name).read_bytes()
    for task in TASKS:
        for name in ("model/model.safetensors", "eval.json", "predictions.jsonl"):
            assert (output / task / "seed-3" / name).read_bytes() == (finished / task / "seed-3" / name).read_bytes()
    files = {name: state for name, state in state_of(output).items() if "/" in name}
    assert run(command) == 0
    assert "done already" in capsys.readouterr().out
    assert {name: state for name, state in state_of(output).items() if "/" in name} == files
    shutil.rmtree(output / "cola")  # it is written again, from the best weights
    assert run(command) == 0
    for name in ("model/model.safetensors", "eval.json"):
        assert (output / "cola" / "seed-3" / name).read_bytes() == (finished / "cola" / "seed-3" / name).read_bytes()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("reproducibility", ["strict", pytest.param("default", marks=pytest.mark.slow)])
def test_two_processes_train_what_one_does(glue_dir: Path, small: Path, tmp_path: Path, reproducibility: str) -> None:
    """With strict sums the same bytes."""
    states, scores = [], []
    for number in (1, 2):
        more = (f"reproducibility={reproducibility}", "num_epochs=0.6", f"launch.num_processes={number}")
        output = tmp_path / str(number)
        assert run(words_of(glue_dir, small, output, *more)) == 0
        assert json.loads((output / "together" / "seed-3" / "manifest.json").read_text())["world_size"] == number
        states.append([load_file(last_checkpoint(output) / name) for name in STATE[:2]])
        scores.append(json.loads((output / "together" / "seed-3" / "eval.json").read_text()))
    assert [len(tensors) > 5 for tensors in states[0]] == [True, True]
    for one, two in zip(*states, strict=True):
        for name, tensor in one.items():
            is_equal = torch.equal if reproducibility == "strict" else torch.allclose
            assert is_equal(tensor, two[name]), name
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


def test_what_it_cannot_do_is_refused(
    finished: Path, glue_dir: Path, small: Path, tmp_path: Path, capsys: Capsys
) -> None:
    def refuses(message: str, *more: str, output: Path = tmp_path / "runs") -> None:
        refused(run(words_of(glue_dir, small, output, *more)), message, capsys)
        assert not (tmp_path / "runs").exists()

    refuses("together=true: expected two tasks or more, besides ax", "tasks=[mnli,ax]")
    refuses("calibrate=true: not with together=true", "calibrate=true")
    refuses("overwrite=true: not with together=true", "overwrite=true")
    refuses("objective=next_token: not with together=true", "objective=next_token")
    refuses("holds another run (objective: 'together' there, 'auto' here", "together=false", output=finished)
    refuses("holds another run (objective_options.tasks", "tasks=[mrpc,cola]", output=finished)
    assert run(words_of(glue_dir, small, tmp_path / "alone", "together=false", "tasks=[mrpc]")) == 0
    refuses("mrpc/seed-3 holds another run (objective: 'auto' there, 'together' here", output=tmp_path / "alone")
    assert not (tmp_path / "alone" / "together").exists()


def test_numbers_that_are_not_finite_fail_all_tasks(
    glue_dir: Path, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strike(monkeypatch, range(2, 9))
    assert run(words_of(glue_dir, small, tmp_path / "runs")) == 0
    summary = json.loads((tmp_path / "runs" / "glue.json").read_text())
    faults = [task["runs"][0]["fault"] for task in summary["tasks"].values()]
    assert len(faults) == 4
    assert all("not finite" in fault for fault in faults)
