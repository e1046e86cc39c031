"""Training from Python, step by step: a job and `fit`.

    data = bertkit.open_dataset("runs/quickstart/data")
    model = bertkit.new_model("modern_tiny", data.tokenizer)
    job = bertkit.Pretraining(model, data, bertkit.MaskedLM(probability=0.3), batch_sequences=16, max_seq_length=64)
    for report in bertkit.fit(job, steps=200, learning_rate=1e-3):
        print(report.step, report.measured["loss"])
    print(job.evaluate())
    run = bertkit.fit(job, steps=200, learning_rate=1e-3, directory="runs/mine").run()

A job is what is trained: a model, its examples, its objective, and how it is measured. `fit` trains it: no file, no output, no signal
handler. With a directory it is a run, as those of the commands: checkpoints, a log and a report; the same call resumes it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from bertkit.base.errors import is_silent, named
from bertkit.base.hub_ids import path_of
from bertkit.base.processors import check_precision
from bertkit.base.typed_settings import build, refuse, unused
from bertkit.commands import compose_settings
from bertkit.data.batches.sampling import DrawnExamples
from bertkit.data.corpus.prepared import PreparedDataset, check_usable, open_prepared
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.data.data_config import SegmentsConfig
from bertkit.functions import Run, take_rows
from bertkit.interop.hugging_face.directory import packed
from bertkit.interop.padded import PaddedBert
from bertkit.jobs.finetuning import FinetuningJob
from bertkit.jobs.finetuning_plan import make_job
from bertkit.jobs.plain import plain_steps
from bertkit.jobs.pretraining import PretrainingJob
from bertkit.jobs.pretraining_plan import config_of
from bertkit.launch.world import newest_checkpoint, world_from_environment
from bertkit.model.bert_config import BertShape
from bertkit.model.heads import BertWithHeads
from bertkit.objectives.objective import MaskedLM, Objective, checked, name_of, options_of
from bertkit.run.directory import read_scores, saved_identity
from bertkit.run.fitting import check_dataset
from bertkit.run.job import AnyJob, SettingsT
from bertkit.run.opening import check
from bertkit.run.start import Start, sha256_of
from bertkit.run.start import new_model as initialised
from bertkit.run.trainer import run_steps
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.pretrain import PretrainSettings
from bertkit.settings.reading.compose import compose_values
from bertkit.settings.reading.names import command_of, in_words_of
from bertkit.settings.reading.values import read_values
from bertkit.tasks.reading.training_data import read_training_data
from bertkit.train.accelerator import make_accelerator
from bertkit.train.step_report import StepReport

Precision = Literal["fp32", "bf16", "fp16"]
NOWHERE = {"data_dir": "-", "output_dir": "-"}  # settings of a command that a job without a directory does not use
# settings of a command that a job has from elsewhere: `fit`, its objective, or its other arguments
OF_FIT = {
    "fit": ("steps", "num_epochs", "optimizer", "schedule", "device", "output_dir"),
    "the objective (its attribute masking, the arguments of its class)": ("masking", "objective_options"),
}
OF_JOB = {"a job": ("data_dir", "batch", "precision", "checkpoint", "evaluation", "log", "launch")}
OF_MODEL = ("model", "model_dir", "init_moments", "freeze", "attention", "norm", "feed_forward", "pooling")
OF_DATA = {"data": ("data_dir",), "max_seq_length": ("segments",), "batch_sequences": ("batch.sequences",)}


class _FromPython:
    """What a job from Python can do beyond a job of the commands."""

    start: Start

    def evaluate(self: AnyJob) -> dict[str, float]:  # type: ignore[misc]
        """Measure the model on held-out examples, on the device where it is."""
        device = next(self.model.parameters()).device.type
        return self.measure(make_accelerator(device, world_from_environment().size), self.model)

    @functools.cached_property
    def _began(self) -> dict[Path, str]:
        """The hashes of the weights with which this job has begun the runs in directories."""
        return {}

    def begun_in(self, directory: Path) -> Start:
        """Return the start of a run: with the weights of now, which `fit` may have trained, unless this job has begun it already."""
        now, place = sha256_of(self.start.model), directory.resolve()
        if newest_checkpoint(str(place)) is not None:
            now = self._began.get(place, now)  # those of the checkpoint will replace the weights of now
        self._began[place] = now
        is_loaded = self.start.init_from is not None and now == self.start.made_sha256
        return dataclasses.replace(self.start, made_sha256=None if is_loaded else now)


class Pretraining(_FromPython, PretrainingJob):
    """Pretraining of a model on the text of a prepared dataset.

    A model with a next sentence head gets pairs of segments, others blocks of full sentences; one with the head `next_token` predicts next
    tokens. The examples, their order and their masks are a function of the seed.

    Args:
        model: the model, from `new_model` or `load_model`, which is trained in place.
        data: a prepared dataset, from `open_dataset`.
        objective: what is learned; None for masked LM as in BERT. Its `masking` says how text is masked.
        batch_sequences: sequences in a step, over all processes.
        max_seq_length: the longest sequence, in tokens.
        seed: for the examples, their order, the masks and dropout.
        precision: of the matrix products.
        settings: other settings of `bertkit pretrain`, such as checkpoint={"every_steps": 100}.

    Raises:
        InputError: the model does not fit the dataset, or a number is out of range.
    """

    def __init__(
        self,
        model: BertWithHeads | PaddedBert,
        data: PreparedDataset,
        objective: Objective | None = None,
        *,
        batch_sequences: int = 64,
        max_seq_length: int = 128,
        seed: int = 0,
        precision: Precision = "fp32",
        **settings: object,
    ) -> None:
        check_usable(data)
        model = packed(model)
        config, objective = model.config, objective or MaskedLM()
        heads = model.heads.keys() if objective.heads is None else objective.heads
        refuse(
            {*heads} != {*model.heads}
            and f"model: has the heads {named(model.heads) or 'none'}, the objective trains {named(heads) or 'none'}; make a model with "
            "them by new_model(..., objective=)",
            batch_sequences < 1 and f"batch_sequences={batch_sequences}: expected at least 1",
            config.too_long("max_seq_length", max_seq_length, "max_seq_length"),
        )
        own = {"model": "base", "seed": seed, "precision": precision, "data_dir": data.directory, "output_dir": "-"}
        own |= {"batch.sequences": batch_sequences, "segments.max_seq_length": max_seq_length}
        own |= {"model.max_position_embeddings": config.max_position_embeddings}
        with in_words_of("pretrain", settings):
            chosen = build(PretrainSettings, compose_values("pretrain", {**settings, **own}))
        has_pairs = "next_sentence" in model.heads or objective.takes_pairs
        typed = {*chosen.explicit_keys} - own.keys() | {*settings}
        _refuse_set_elsewhere(OF_FIT | OF_DATA | {"the model": OF_MODEL}, typed)
        kind: Literal["pairs", "full_sentences"] = "pairs" if has_pairs else "full_sentences"
        is_next, name = "next_token" in model.heads, name_of(objective)
        segments = SegmentsConfig(kind, max_seq_length, 0.1, "nsp" if has_pairs else "none")
        check_dataset(config, data, segments, model.source)
        described = dataclasses.replace(
            chosen,
            model=BertShape(**{field.name: getattr(config, field.name) for field in dataclasses.fields(BertShape)}),
            attention=config.attention,
            norm=config.norm,
            feed_forward=config.feed_forward,
            pooling=config.pooling,
            segments=segments,
            masking=objective.masking,
            objective="next_token" if is_next and name == "auto" else name,
            objective_options=options_of(objective),
            explicit_keys=(),
        )
        examples = DrawnExamples(data, segments, None if is_next else objective.masking)
        start = Start(model, data.tokenizer, init_from=None)
        super().__init__(described, start, checked(objective, name), data, examples)

    def with_course(self, steps: int, chosen: PretrainSettings, directory: Path | None) -> Self:
        """Return this job with the steps, the optimizer and the schedule of a `fit`."""
        made = copy.copy(self)
        made.settings, made.steps = _with_course(self.settings, chosen, directory).with_steps(steps), steps
        made.resume_after({} if directory is None else saved_identity(directory))
        return made


class Finetuning(_FromPython, FinetuningJob):
    """Fine-tuning of a model on the examples of a task.

    Args:
        model_dir: the model to start from, as for `bertkit finetune`.
        train: the training rows, or a file with them.
        dev: the rows to be measured on; None takes a tenth of the training rows.
        objective: what is learned; None for the loss of the task.
        settings: other settings of `bertkit finetune`, such as batch={"sequences": 8}.

    Raises:
        InputError: a setting, a row or the model is wrong.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str],
        train: object,
        dev: object = None,
        *,
        objective: Objective | None = None,
        **settings: object,
    ) -> None:
        given: dict[str, object] = {"model_dir": path_of(model_dir), "train": train, "dev": dev, **settings}
        self.files = tempfile.TemporaryDirectory(prefix="bertkit-")  # with the rows, as long as the job is there
        self.rows = Path(self.files.name, "rows")
        token = is_silent.set(True)
        try:
            with in_words_of("finetune", given), contextlib.ExitStack() as stack:
                given["output_dir"] = Path(self.files.name)
                take_rows(command_of("finetune"), given, stack)
                chosen = build(FinetuneSettings, compose_settings("finetune", read_values("finetune", given)))
                read = read_training_data(chosen)
                _refuse_set_elsewhere(OF_FIT, {*chosen.explicit_keys} - {"output_dir"} | {*settings})
                own = objective or Objective()
                made = make_job(chosen, lambda: read, checked(own, name_of(own)))
        finally:
            is_silent.reset(token)
        settings_ = dataclasses.replace(made.settings, objective=name_of(own), objective_options=options_of(own))
        start = dataclasses.replace(made.start, made_sha256=sha256_of(made.start.model))
        super().__init__(settings_, start, made.objective, made.data, made.units)

    def with_course(self, steps: int, chosen: PretrainSettings, directory: Path | None) -> Self:
        """Return this job with the steps, the optimizer and the schedule of a `fit`; its rows are in the directory."""
        made = copy.copy(self)
        made.settings = _with_course(self.settings, chosen, directory)
        made.settings, made.steps = dataclasses.replace(made.settings, num_epochs=steps / self.steps_per_epoch), steps
        if directory is not None and self.settings.data_dir == str(self.rows):
            made.settings = dataclasses.replace(made.settings, data_dir=str(directory / "rows"))
        return made


def _refuse_set_elsewhere(places: Mapping[str, Sequence[str]], keys: Collection[str]) -> None:
    """Raise InputError for settings of a command that a job has from its model, its objective, its data or `fit`."""
    names = [(name, place) for place in places for name in places[place]]
    chosen = [one for one in names if any(f"{key}.".startswith(f"{one[0]}.") for key in keys)]
    refuse(f"{name}: {place} sets it; leave it out" for name, place in chosen)


def _with_course(settings: SettingsT, chosen: PretrainSettings, directory: Path | None) -> SettingsT:
    """Return the settings of a job with those of a `fit`."""
    place = "-" if directory is None else str(directory)
    return dataclasses.replace(
        settings, optimizer=chosen.optimizer, schedule=chosen.schedule, device=chosen.device, output_dir=place
    )


def open_dataset(data_dir: str | os.PathLike[str]) -> PreparedDataset:
    """Open a prepared dataset, the output of `bertkit prepare`; raises InputError if it is none."""
    return open_prepared(Path(path_of(data_dir)))


def new_model(
    name: str, tokenizer: Tokenizer, *, objective: Objective | None = None, seed: int = 0, **settings: object
) -> BertWithHeads:
    """Make a model with initial weights, of one of the shapes of `bertkit pretrain model=`, for the vocabulary of a tokenizer.

    `settings` are those of `pretrain` that concern the model: `segments="pairs"` adds the next sentence head. An `objective` with heads of
    its own has them. For `model.frequency_biases`, which needs a text, call `model.heads["masked_lm"].begin_with`.

    Raises InputError if a setting is wrong.
    """
    _refuse_set_elsewhere({**OF_FIT, **OF_JOB}, settings.keys())
    own = {"model": name, "segments": "full_sentences", "segments.max_seq_length": 8, "seed": seed, **settings}
    chosen = build(PretrainSettings, compose_values("pretrain", {**NOWHERE, **own}))
    heads = chosen.heads if objective is None or objective.heads is None else objective.heads
    return initialised(config_of(chosen, tokenizer.facts), heads, "next_sentence" in heads, seed)


class Fit(Iterator[StepReport]):
    """The steps of a training: an iterator of their reports."""

    def __init__(self, job: AnyJob, reports: Iterator[StepReport]) -> None:
        self.job, self._reports = job, reports

    def __next__(self) -> StepReport:
        """Train a step, and return its report."""
        try:
            return next(self._reports)
        except BaseException:
            self.job.start.trained.eval()
            raise

    def run(self) -> Run:
        """Train to the end; return the directory, its model and the final metrics."""
        for _ in self:
            pass
        place = self.job.directory
        return Run(None, None, {}) if place is None else Run(place, place / "model", read_scores(place))


def fit(
    job: Pretraining | Finetuning,
    steps: int,
    learning_rate: float,
    *,
    directory: str | os.PathLike[str] | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    optimizer: Mapping[str, object] | None = None,
    schedule: str | Mapping[str, object] = "linear",
) -> Fit:
    """Train the model of a job, in place, and yield a report after each step; `.run()` goes through to the end.

    Without a directory it is training, nothing else. With one it is a run: what `bertkit pretrain` and `bertkit finetune` write is there
    at the end, the same call with the same job resumes it after a stop, and its progress is printed.

    The model is in training mode and on the device until the iterator ends, then in evaluation mode. Under torchrun all processes
    train together. `report.measured` has the losses, accuracies and the norm of the gradient.

    Args:
        job: what is trained.
        steps: the number of steps.
        learning_rate: the peak of the schedule.
        directory: of the run; None to write nothing.
        device: "auto" uses CUDA if it is available.
        optimizer: settings of `optimizer.`, such as {"beta2": 0.98, "bias_correction": True}; the others are those of BERT.
        schedule: an option of `schedule=`, or settings of it.

    Raises:
        InputError: an argument is wrong, or the directory holds another run.
        NumericsError: a loss or the gradient is not finite in five steps in a row.
        StoppedError: a signal stopped the run in a directory.
    """
    own = {"model": "base", "steps": steps, "precision": job.settings.precision, "device": device, "schedule": schedule}
    own |= {"optimizer": {**(optimizer or {}), "peak_learning_rate": learning_rate}}
    chosen = build(PretrainSettings, compose_values("pretrain", {**NOWHERE, **own}))
    world, place = world_from_environment(), None if directory is None else Path(path_of(directory, "directory"))
    usual = {"compile": "auto", "recompute": "none"}
    rows = [(name, place is None, "without directory=", default) for name, default in usual.items()]
    refuse(unused(job.settings, "", *rows))
    accelerator = make_accelerator(device, world.size)
    check_precision(job.settings.precision, accelerator.device.type)
    made = job.with_course(steps, chosen, place)
    made.directory = place
    made.start = job.start if place is None else job.begun_in(place)
    made.on(accelerator)
    if place is None:
        return Fit(made, plain_steps(made))
    check(place, made.identity, made.rules, made.settings.resume.allow)
    if world.is_main and isinstance(job, Finetuning) and job.rows.is_dir():
        shutil.copytree(job.rows, place / "rows", dirs_exist_ok=True)
    return Fit(made, run_steps(made))
