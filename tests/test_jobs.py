"""Training from Python without a directory, and objectives: built in, of the guide, and wrong ones."""

import dataclasses
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY_FINETUNE, TINY_PRETRAIN, Capsys, options_so_far, refused
from house import ROOT
from house import modules as modules_of
from safetensors.torch import load_file

import bertkit
from bertkit.base import plugins
from bertkit.base.errors import InputError
from bertkit.base.files import sha256_file
from bertkit.cli import run
from bertkit.objectives.objective import Moment
from bertkit.tasks.task_config import KINDS

GUIDE = Path(__file__).resolve().parents[1] / "recipes" / "extend"
ROWS = [{"text": f"{'kam' if n % 2 else 'rum'} tem", "label": "yes" if n % 2 else "no"} for n in range(40)]
TINY: dict[str, Any] = {
    name: int(size) for name, _, size in (one.partition("=") for one in TINY_PRETRAIN) if name.startswith("model.")
}
WRONG = """
import dataclasses
import bertkit, torch


@bertkit.objective("nothing")
def nothing():
    return 3


class Base(bertkit.Objective):
    def losses(self, model, batch, precision):
        return super().losses(model, batch, precision)


@bertkit.objective("no_counts")
class NoCounts(Base):
    def counts(self, batch):
        return {}


@bertkit.objective("other_terms")
class OtherTerms(Base):
    def counts(self, batch):
        return {**batch.loss_counts, "more": 1}


@bertkit.objective("no_batch")
class NoBatch(Base):
    def prepare(self, batch, moment):
        return None


@bertkit.objective("no_module")
class NoModule(Base):
    def begin(self, model):
        return 3


@bertkit.objective("other_heads")
class OtherHeads(Base):
    heads = ("sequence",)


@bertkit.objective("no_target")
class NoTarget(Base):
    def prepare(self, batch, moment):
        return dataclasses.replace(batch, targets={**batch.targets, "more": batch.input_ids})


@bertkit.objective("other_count")
class OtherCount(Base):
    def losses(self, model, batch, precision):
        terms = super().losses(model, batch, precision)
        return {name: dataclasses.replace(term, count=2 * term.count) for name, term in terms.items()}


@bertkit.objective("detached")
class Detached(Base):
    def losses(self, model, batch, precision):
        terms = super().losses(model, batch, precision)
        return {name: dataclasses.replace(term, sum=term.sum.detach()) for name, term in terms.items()}


@bertkit.objective("no_precision")
class NoPrecision(Base):
    def losses(self, model, batch):
        return super().losses(model, batch)


@bertkit.objective("tokens_alone")
class TokensAlone(Base):
    heads = ("masked_lm",)


@bertkit.objective("same")
class Same(Base):
    pass
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with the guide's module and a wrong one, as a user's working directory."""
    shutil.copy(GUIDE / "my_objectives.py", tmp_path)
    (tmp_path / "wrong_objectives.py").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    for module in KINDS.values():  # lest they register in the copy alone
        importlib.import_module(module)
    built_in = {key: made for key, made in options_so_far().items() if not plugins.is_plugin(*key)}
    for name, empty in (("_options", built_in), ("_modules", set()), ("_used", {})):
        monkeypatch.setattr(plugins, name, empty)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setenv(plugins.MODULES, "")
    yield
    for name in ("my_objectives", "wrong_objectives", "count_masks"):
        sys.modules.pop(name, None)


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_fit_is_the_training_of_the_command_without_a_directory(prepared_dir: Path, tmp_path: Path) -> None:
    """The same losses to the last digit, and no file, thread or line."""
    chosen = (*TINY_PRETRAIN, "segments=full_sentences", "masking.probability=0.3")
    rate = "optimizer.peak_learning_rate=1e-3"
    assert run(["pretrain", *chosen, rate, "log.every_steps=1", f"data_dir={prepared_dir}", "output_dir=run"]) == 0
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]

    data = bertkit.open_dataset(prepared_dir)
    model = bertkit.new_model("medium", data.tokenizer, **TINY)  # as in TINY_SHAPE
    files = sorted(tmp_path.iterdir())
    objective = bertkit.MaskedLM(probability=0.3)
    job = bertkit.Pretraining(model, data, objective, batch_sequences=4, max_seq_length=32)
    reports = list(bertkit.fit(job, steps=2, learning_rate=1e-3, schedule={"warmup_steps": 1}))
    assert [report.measured["mlm_loss"] for report in reports] == [row["mlm_loss"] for row in rows]
    assert not model.training
    trained = load_file("run/model/model.safetensors")
    assert torch.equal(trained["bert.embeddings.word_embeddings.weight"], model.bert.embeddings.token.weight)
    measured = json.loads(Path("run/eval.json").read_text())
    assert job.evaluate()["mlm_loss"] == pytest.approx(measured["mlm_loss"], abs=1e-9)
    assert sorted(tmp_path.iterdir()) == files


def test_fit_in_a_directory_is_a_run_that_is_resumed(prepared_dir: Path, capsys: Capsys) -> None:
    """Broken off after its third step, it ends with the bytes of a run that was not; the model is there, and other settings are refused."""
    data, steps = bertkit.open_dataset(prepared_dir), []

    def job(**settings: object) -> Any:
        model = bertkit.new_model("tiny", data.tokenizer, **TINY)
        return bertkit.Pretraining(model, data, bertkit.MaskedLM(0.3), batch_sequences=4, max_seq_length=32, **settings)

    whole = bertkit.fit(job(), 5, 1e-3, directory="whole").run()
    assert whole.model_dir is not None
    assert set(whole.scores) >= {"mlm_loss", "mlm_accuracy", "steps"}
    saving = {"checkpoint": {"every_steps": 2}}
    for report in bertkit.fit(job(**saving), 5, 1e-3, directory="broken"):
        steps.append(report.step)
        if report.step == 3:
            break
    mine = job(**saving)
    next(bertkit.fit(mine, 5, 1e-3, directory="broken"))  # of a job that has begun a run, the weights are those of then
    again = bertkit.fit(mine, 5, 1e-3, directory="broken")
    steps += [report.step for report in again]
    assert steps == [1, 2, 3, 3, 4, 5]
    assert not mine.model.training
    assert "resumed from step 2 of 5" in capsys.readouterr().out
    assert sha256_file(Path("broken/model/model.safetensors")) == sha256_file(Path("whole/model/model.safetensors"))
    plain = job()
    list(bertkit.fit(plain, 5, 1e-3))
    assert all(torch.equal(value, weights(plain.model)[name]) for name, value in weights(mine.model).items())
    with pytest.raises(InputError, match=r"holds another run .*peak_learning_rate: 0\.001 there, 0\.01 here"):
        bertkit.fit(job(), 5, 1e-2, directory="whole").run()
    with pytest.raises(InputError, match=r"holds another run .*starting_weights"):  # `plain` has been trained since
        bertkit.fit(plain, 5, 1e-3, directory="whole").run()
    trained = bertkit.Pretraining(mine.model, data, bertkit.MaskedLM(0.3), batch_sequences=4, max_seq_length=32)
    with pytest.raises(InputError, match=r"holds another run .*starting_weights"):
        bertkit.fit(trained, 5, 1e-3, directory="whole").run()


def test_a_task_in_a_directory(start: Path) -> None:
    """Its rows are kept there; the command that its settings name goes on with it, and finds it done."""
    job = bertkit.Finetuning(start, train=ROWS, dev=ROWS[:10], batch={"sequences": 8}, **{"task.max_seq_length": 16})
    run_ = bertkit.fit(job, steps=7, learning_rate=1e-3, directory="task").run()
    assert run_.scores["num_examples"] == 10
    assert len(list(Path("task/rows").iterdir())) == 2
    assert bertkit.load_predictor(model_dir="task")(["kam tem"])
    files = json.loads(Path("task/manifest.json").read_text())["identity"]["starting_weights"]
    assert files["model.safetensors"] == sha256_file(start / "model.safetensors")
    bertkit.fit(job, steps=7, learning_rate=1e-3, directory="later").run()  # from the weights that it has trained
    assert set(json.loads(Path("later/manifest.json").read_text())["identity"]["starting_weights"]) == {"model"}


def test_the_job_of_a_fit_has_the_order_and_the_identity_of_its_next_fit(start: Path) -> None:
    job = bertkit.Finetuning(start, train=ROWS, dev=ROWS[:4], batch={"sequences": 2}, **{"task.max_seq_length": 16})
    first = bertkit.fit(job, 2, 1e-3, directory="first")
    first.run()
    second = bertkit.fit(first.job, 5, 1e-3, directory="second")
    assert [report.step for report in second] == [*range(1, 6)]
    assert second.job.identity["num_epochs"] == 5 / 20


def test_the_command_takes_the_steps_of_a_fit(start: Path) -> None:
    """Also a number that rounding makes a part of a step more: 25 / 11 epochs of 11 steps."""
    job = bertkit.Finetuning(
        start, train=ROWS[:22], dev=ROWS[:4], batch={"sequences": 2}, **{"task.max_seq_length": 16}
    )
    bertkit.fit(job, 25, 1e-3, directory="odd").run()
    assert run(["finetune", "--config", "odd/config.yaml", "output_dir=again"]) == 0
    for directory in ("odd", "again"):
        assert json.loads(Path(directory, "metrics.jsonl").read_text().splitlines()[-1])["step"] == 25


def test_what_an_objective_trains_beside_the_model_is_trained_in_a_directory_too(prepared_dir: Path) -> None:
    """And in evaluation mode at the end, as the model; it ends with the numbers that it has without a directory."""
    data, values = bertkit.open_dataset(prepared_dir), []

    class Scaled(bertkit.Objective):
        def begin(self, model: torch.nn.Module) -> torch.nn.Module:
            self.scale = torch.nn.Linear(1, 1)
            return self.scale

        def losses(self, model: torch.nn.Module, batch: Any, precision: str = "fp32") -> Any:
            terms = super().losses(model, batch, precision)
            factor = 1 + self.scale(torch.ones(1)).sum() ** 2
            return {name: dataclasses.replace(term, sum=term.sum * factor) for name, term in terms.items()}

    for place in (None, "run"):
        objective = Scaled()
        model = bertkit.new_model("tiny", data.tokenizer, **TINY)
        job = bertkit.Pretraining(model, data, objective, batch_sequences=4, max_seq_length=32)
        bertkit.fit(job, 3, 1e-2, directory=place).run()
        assert not objective.scale.training
        values.append(objective.scale.weight.item())
    assert values[0] == values[1]
    saved = load_file(next(iter(sorted(Path("run/checkpoints").iterdir()))) / "objective.safetensors")
    assert saved["objective.weight"].item() == values[0]


def test_what_is_frozen_is_frozen_without_a_directory(start: Path) -> None:
    words: dict[str, Any] = {"batch": {"sequences": 8}, "task.max_seq_length": 16}
    job = bertkit.Finetuning(start, train=ROWS, dev=ROWS[:10], freeze="encoder", **words)
    before = weights(job.model)
    list(bertkit.fit(job, steps=2, learning_rate=1e-2))
    changed = {name.split(".")[0] for name, value in weights(job.model).items() if not torch.equal(value, before[name])}
    assert changed == {"bert", "heads"}
    assert torch.equal(before["bert.embeddings.token.weight"], job.model.bert.embeddings.token.weight)
    with pytest.raises(InputError, match=r"optimizer: fit sets it; leave it out"):
        bertkit.Finetuning(start, train=ROWS, dev=ROWS[:10], optimizer={"beta2": 0.98}, **words)
    with pytest.raises(InputError, match=r"compile=true: has no effect without directory="):
        bertkit.fit(bertkit.Finetuning(start, train=ROWS, dev=ROWS[:10], compile=True, **words), 2, 1e-2)


def test_a_job_whose_first_steps_are_lost_does_not_pass_for_another_run(prepared_dir: Path) -> None:
    """Left before its first checkpoint, it has trained its model: these are other starting weights."""
    data = bertkit.open_dataset(prepared_dir)
    model = bertkit.new_model("tiny", data.tokenizer, **TINY)
    job = bertkit.Pretraining(model, data, batch_sequences=4, max_seq_length=32)
    next(bertkit.fit(job, 3, 1e-3, directory="left"))
    with pytest.raises(InputError, match=r"holds another run .*starting_weights"):
        bertkit.fit(job, 3, 1e-3, directory="left").run()


def test_a_loaded_model_is_pretrained_in_place(prepared_dir: Path) -> None:
    """Also next tokens, where an objective of one's own is another run than the loss of the head."""
    data = bertkit.open_dataset(prepared_dir)

    class Own(bertkit.Objective):
        pass

    words: dict[str, Any] = {"attention.pattern": "causal", **TINY}
    new = bertkit.new_model("tiny", data.tokenizer, **words)
    loaded = bertkit.load_model(bertkit.export_model(new, data.tokenizer, "causal"))
    before = loaded.model.bert.embeddings.token.weight.clone()
    for made, place in ((Own(), "own"), (None, "plain")):
        job = bertkit.Pretraining(loaded, data, made, batch_sequences=4, max_seq_length=32)
        assert {*next(bertkit.fit(job, 1, 1e-3, directory=place)).losses} == {"lm"}
    assert not torch.equal(before, loaded.model.bert.embeddings.token.weight)
    names = [
        json.loads(Path(place, "manifest.json").read_text())["identity"]["objective"] for place in ("own", "plain")
    ]
    assert names == ["Own", "next_token"]


def test_a_loaded_model_of_another_vocabulary_of_the_same_size_is_refused(prepared_dir: Path, tmp_path: Path) -> None:
    data = bertkit.open_dataset(prepared_dir)
    *others, last, first = data.tokenizer.vocab
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("".join(f"{token}\n" for token in [*others, first, last]))
    model = bertkit.new_model("tiny", data.tokenizer)
    loaded = bertkit.load_model(bertkit.export_model(model, bertkit.load_tokenizer(vocab), tmp_path / "model"))
    with pytest.raises(
        InputError, match=f"token {len(others)} is {re.escape(repr(first))} and {re.escape(repr(last))}"
    ):
        bertkit.Pretraining(loaded, data)


def test_a_job_that_learns_numbers_writes_its_model_in_their_units(start: Path) -> None:
    rows = [{"text": row["text"], "label": 1500.0 if row["label"] == "yes" else 2500.0} for row in ROWS]
    words: dict[str, Any] = {"task": "regression", "batch": {"sequences": 8}, "task.max_seq_length": 16}
    job = bertkit.Finetuning(start, train=rows, dev=rows[:10], **words)
    list(bertkit.fit(job, steps=3, learning_rate=1e-3))
    before, directory = weights(job.model), bertkit.export_model(job.model, job.tokenizer, "numbers")
    assert all(torch.equal(value, before[name]) for name, value in weights(job.model).items())
    predictor = bertkit.load_predictor(directory)
    assert predictor.logits([]).shape == (0, 1)
    predicted = predictor([row["text"] for row in rows[:10]])
    errors = [row["label"] - one["label"] for row, one in zip(rows, predicted, strict=False)]
    assert job.evaluate()["rmse"] == pytest.approx(float(np.sqrt(np.mean(np.square(errors)))), rel=1e-5)


def test_a_translator_from_python_has_the_smoothing_of_its_settings(start: Path) -> None:
    rows = [{"source": row["text"], "target": row["label"]} for row in ROWS[:8]]
    words: dict[str, Any] = {"task": "translation", "decoder": "bert", "task.max_seq_length": 16}
    words |= {"task.generation.max_target_length": 8}
    smoothed, plain = (
        next(
            bertkit.fit(bertkit.Finetuning(start, train=rows, dev=rows, **words, **more), steps=1, learning_rate=1e-3)
        ).losses
        for more in ({}, {"task.generation.label_smoothing": 0.0})
    )
    assert smoothed["generation"] != plain["generation"]


def test_a_longer_run_goes_on_before_the_decay_of_the_shorter_one(prepared_dir: Path) -> None:
    data = bertkit.open_dataset(prepared_dir)
    for steps in (6, 12):
        model = bertkit.new_model("tiny", data.tokenizer, **TINY)
        job = bertkit.Pretraining(model, data, batch_sequences=4, max_seq_length=32)
        schedule = {"name": "wsd", "warmup_steps": 0, "options": {"decay_share": 0.5}}
        reports = [report.step for report in bertkit.fit(job, steps, 1e-3, directory="longer", schedule=schedule)]
    assert reports == [*range(5, 13)]  # the decay of the shorter one began after step 4


def test_the_library_stands_without_the_apps(prepared_dir: Path, tmp_path: Path) -> None:
    """Only the stages of search and view import them, and training does without the folder."""
    package = Path(bertkit.__file__).parent
    ignored = shutil.ignore_patterns("apps", "__pycache__")
    shutil.copytree(package, tmp_path / "alone" / "bertkit", ignore=ignored)
    shutil.copytree(package.parent / "conf", tmp_path / "alone" / "conf")
    words = ["pretrain", *TINY_PRETRAIN, f"data_dir={prepared_dir}", "output_dir=run"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "alone")}
    done = subprocess.run([sys.executable, "-m", "bertkit", *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model").is_dir()
    users = {module for module, path in modules_of(ROOT).items() if "bertkit.apps" in path.read_text(encoding="utf-8")}
    assert {name for name in users if not name.startswith("bertkit.apps.")} == {
        "bertkit.base.plugins", "bertkit.settings.serve", "bertkit.stages.index", "bertkit.stages.search", "bertkit.stages.view",
    }  # fmt: skip  # the first two name a module that is imported when it is asked for


def test_a_task_is_trained_on_rows(start: Path, capsys: Capsys) -> None:
    job = bertkit.Finetuning(start, train=ROWS, dev=ROWS[:10], batch={"sequences": 8}, **{"task.max_seq_length": 16})
    assert job.steps_per_epoch == 5
    before = weights(job.model)
    first, *_, last = bertkit.fit(job, steps=40, learning_rate=1e-2, optimizer={"beta2": 0.98}, schedule="cosine")
    assert last.losses["sequence"] < first.losses["sequence"] - 0.2
    assert any(not torch.equal(value, before[name]) for name, value in weights(job.model).items())
    assert job.evaluate()["accuracy"] > 0.8
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda data, model: bertkit.MaskedLM(probability=1.5), "masking.probability=1.5"),
        (lambda data, model: bertkit.Pretraining(model, data, batch_sequences=0), "batch_sequences=0: expected at least 1"),
        (lambda data, model: bertkit.Pretraining(model, data, max_seq_length=10**6), "max_seq_length=1000000"),
        (lambda data, model: bertkit.fit(bertkit.Pretraining(model, data), 0, 1e-3), "steps=0: expected at least 1"),
        (lambda data, model: bertkit.fit(bertkit.Pretraining(model, data), 5, -1.0), "peak_learning_rate=-1"),
        (lambda data, model: bertkit.new_model("tin", data.tokenizer), "did you mean 'tiny'?"),
        (lambda data, model: bertkit.new_model("tiny", data.tokenizer, steps=5), "steps: fit sets it; leave it out"),
        (lambda data, model: bertkit.Pretraining("tiny", data), "model: str: expected what load_model returns"),
        (lambda data, model: bertkit.Pretraining(model, data, steps=7), "steps: fit sets it; leave it out"),
        (lambda data, model: bertkit.Pretraining(model, data, masking={"probability": 0.5}), "masking: the objective (its attribute masking, the arguments of its class) sets it"),
        (lambda data, model: bertkit.Pretraining(model, data, freeze="encoder", model_dir="x"), "freeze: the model sets it"),
        (lambda data, model: bertkit.open_dataset("nowhere"), "nowhere"),
        (lambda data, model: bertkit.Finetuning(GUIDE, train=ROWS), "extend"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named_at_once(prepared_dir: Path, call: Any, message: str) -> None:
    data = bertkit.open_dataset(prepared_dir)
    model = bertkit.new_model("tiny", data.tokenizer)
    with pytest.raises(InputError, match=re.escape(message)):
        call(data, model)


def test_masks_fall(prepared_dir: Path) -> None:
    import my_objectives

    data = bertkit.open_dataset(prepared_dir)
    job = bertkit.Pretraining(bertkit.new_model("tiny", data.tokenizer), data, my_objectives.FallingMasks(last=0.25))
    (batch,) = job.examples.source("train", 0).micro_batches(0, 64, [(0, 64)])
    sizes = []
    for step in (0, 50, 99):
        made = job.objective.prepare(batch, Moment(step, 100, 0, seed=1))
        again = job.objective.prepare(batch, Moment(step, 100, 0, seed=1))
        assert np.array_equal(made.input_ids, again.input_ids)
        restored = made.input_ids.copy()
        restored[made.masked_positions] = made.masked_labels
        whole = batch.input_ids.copy()
        whole[batch.masked_positions] = batch.masked_labels
        assert np.array_equal(restored, whole)
        sizes.append(len(made.masked_positions) / len(batch.masked_positions))
    assert sizes[0] == 1
    assert sizes[1] == pytest.approx(0.625, abs=0.1)
    assert sizes[2] == pytest.approx(0.2575, abs=0.1)


def finetune(start: Path, target: str, *words: str) -> list[str]:
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    common = (
        "task=classification",
        "task.files.train=rows.jsonl",
        "task.files.dev=rows.jsonl",
        f"model_dir={start}",
        f"output_dir={target}",
    )
    return ["finetune", *TINY_FINETUNE, *common, *words]


def finetuned(start: Path, target: str, *words: str) -> dict[str, torch.Tensor]:
    assert run(finetune(start, target, *words)) == 0
    return load_file(f"{target}/model/model.safetensors")


def test_an_objective_of_a_task_resumes_to_the_same_bytes(start: Path, tmp_path: Path) -> None:
    chosen = ("plugins=[my_objectives]", "objective=r_drop", "objective_options.weight=0.5", "checkpoint.every_steps=2")
    whole = finetuned(start, "whole", *chosen)
    saved = Path("whole/config.yaml").read_text()
    assert "objective: r_drop\nobjective_options:\n  weight: 0.5\n" in saved
    rows = [json.loads(line) for line in Path("whole/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["difference_loss"] > 0
    last = sorted(Path("whole/checkpoints").iterdir())
    shutil.copytree("whole", "cut")
    (tmp_path / "cut" / "eval.json").unlink()
    shutil.rmtree(tmp_path / "cut" / "model")
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / last[-1].name)
    resumed = finetuned(start, "cut", *chosen)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    plain = finetuned(start, "plain")
    assert any(not torch.equal(whole[name], plain[name]) for name in whole)


def test_an_objective_that_adds_nothing_changes_no_bit_and_is_another_run(start: Path, capsys: Capsys) -> None:
    plain = finetuned(start, "plain")
    same = finetuned(start, "same", "plugins=[wrong_objectives]", "objective=same")
    assert all(torch.equal(plain[name], same[name]) for name in plain)
    for target, words in (
        ("plain", ("plugins=[wrong_objectives]", "objective=same")),
        ("same", ()),
        ("plain", ("calibrate=true",)),
    ):
        manifest = Path(target, "manifest.json")
        saved = json.loads(manifest.read_text())
        saved["identity"].pop("calibrate", None)  # as in a run of an earlier version
        manifest.write_text(json.dumps(saved))
        refused(run(finetune(start, target, *words)), "calibrate" if "calibrate=true" in words else "objective", capsys)
    assert run(finetune(start, "plain")) == 0
    assert "done already" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("objective=tokens_alone",), ("objective=falling_masks", "model=modern_tiny")])
def test_a_model_without_next_sentences_is_trained_on_pairs_and_without(
    prepared_dir: Path, capsys: Capsys, words: Sequence[str]
) -> None:
    """The heads of the objective, or of the model, decide what is counted, also in the estimate of the memory."""
    chosen = [*TINY_PRETRAIN, f"data_dir={prepared_dir}", "steps=2", "plugins=[wrong_objectives,my_objectives]", *words]
    if words[-1] == "model=modern_tiny":
        chosen = [word for word in chosen if not word.startswith("model.")]
        chosen += ["model.num_hidden_layers=2", "model.hidden_size=64", "model.max_position_embeddings=64"]
    assert run(["pretrain", *chosen, "output_dir=run"]) == 0
    last = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert [name for name in last if name.endswith("_loss") and not name.startswith("eval_")] == ["mlm_loss"]


def test_the_example_of_the_guide_is_trained(prepared_dir: Path, capsys: Capsys) -> None:
    """It hides half of the masks at first; its own loss is in the log and on the console, and resumes to the same bytes."""
    (code,) = re.findall(r"```python\n(import dataclasses\n.*?)```", (GUIDE / "README.md").read_text(), re.DOTALL)
    Path("count_masks.py").write_text(code)
    words = ["pretrain", *TINY_PRETRAIN, f"data_dir={prepared_dir}", "steps=4", "checkpoint.every_steps=2"]
    words += ["plugins=[count_masks]", "objective=count_masks", "masking.probability=0.4", "log.every_steps=1"]
    words += ["evaluation.every_steps=2"]
    assert run([*words, "output_dir=whole"]) == 0
    assert re.search(r"step 4/4  loss \S+  mlm \S+  nsp acc \S+  hidden \S+  lr", capsys.readouterr().out)
    rows = [json.loads(line) for line in Path("whole/metrics.jsonl").read_text().splitlines()]
    assert all(row["hidden_loss"] > 0 for row in rows)
    shutil.copytree("whole", "cut")
    Path("cut/eval.json").unlink()
    shutil.rmtree("cut/model")
    shutil.rmtree("cut/checkpoints/step-00000004")
    assert run([*words, "output_dir=cut"]) == 0
    for file in ("model.safetensors", "objective.safetensors"):
        last = Path("checkpoints/step-00000004", file)
        assert (Path("whole") / last).read_bytes() == (Path("cut") / last).read_bytes()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "wrong_objectives.py:6) returned 3; expected an object of a class derived from bertkit.Objective"),
        ("no_counts", "returned {}; expected the count of each loss by its name, from counts"),
        ("other_terms", ") has the losses mlm, nsp, but the counts mlm, nsp, more; expected the same names"),
        ("no_target", "as targets['more']"),
        ("other_count", "as the count of mlm the divisor that counts gives it"),
        ("detached", "has losses without a gradient"),
        ("no_precision", "has losses that take no (model, batch, precision): too many positional arguments"),
        ("no_batch", "returned None; expected a Batch, from prepare"),
        ("no_module", "returned 3; expected a torch.nn.Module or None, from begin"),
        ("other_heads", "returned ('sequence',); expected None, or a tuple of"),
        ("nowhere", "objective='nowhere': expected auto or masked_lm or next_token"),
    ],
)
def test_a_wrong_objective_is_named(prepared_dir: Path, capsys: Capsys, name: str, message: str) -> None:
    words = ["pretrain", *TINY_PRETRAIN, f"data_dir={prepared_dir}", "output_dir=run", "plugins=[wrong_objectives]"]
    refused(run([*words, f"objective={name}"]), message, capsys)


class Doubled(bertkit.Objective):
    """Its count is not that of `counts`."""

    def losses(self, model: Any, batch: Any, precision: str) -> Any:
        terms = super().losses(model, batch, precision)
        return {name: dataclasses.replace(term, count=2 * term.count) for name, term in terms.items()}


class Sometimes(bertkit.Objective):
    """A loss that only some micro-batches have."""

    def prepare(self, batch: Any, moment: Any) -> Any:
        more = {"odd": bertkit.Target(np.ones(len(batch.sequence_lengths)))} if moment.number % 2 else {}
        return dataclasses.replace(batch, targets={**batch.targets, **more})

    def losses(self, model: Any, batch: Any, precision: str) -> Any:
        terms = super().losses(model, batch, precision)
        if "odd" in batch.targets:
            vectors = bertkit.outputs(model, batch, precision).last_hidden_state
            terms["odd"] = bertkit.LossTerm(vectors.square().sum(), batch.targets["odd"].count, None)
        return terms


def test_an_objective_from_python_is_checked_as_a_plug_in_is(start: Path) -> None:
    """What it returns, and that every micro-batch has the same losses."""
    for objective, message in (
        (Doubled(), "as the count of sequence the divisor"),
        (Sometimes(), "have different losses: "),
    ):
        job = bertkit.Finetuning(
            start,
            train=ROWS,
            dev=ROWS[:4],
            objective=objective,
            batch={"sequences": 8, "micro_sequences": 2},
            **{"task.max_seq_length": 16},
        )
        with pytest.raises(InputError, match=message):
            list(bertkit.fit(job, steps=1, learning_rate=1e-3))


@pytest.mark.parametrize("name", ["my_objectives.RDrop", "adversarial.Smart"])
def test_the_change_of_a_tagger_is_divided_by_its_tokens(name: str) -> None:
    """As its loss is, of which the tokens without a label are no part."""
    shutil.copy(GUIDE / "adversarial.py", ".")
    module, _, kind = name.partition(".")
    made = getattr(importlib.import_module(module), kind)()
    lengths, tags = np.array([3, 4]), np.array([-100, 1, -100, -100, 0, 1, -100])
    batch = bertkit.Batch(tags + 100, 0 * tags, lengths, {"token": bertkit.Target(tags)})
    assert sorted(made.counts(batch).values()) == [3, 7]
    sys.modules.pop("adversarial", None)
