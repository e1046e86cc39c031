"""Training from Python, step by step: a job and `fit`.

    data = bertkit.open_dataset("runs/quickstart/data")
    model = bertkit.new_model("modern_tiny", data.tokenizer)
    job = bertkit.Pretraining(model, data, bertkit.MaskedLM(probability=0.3), batch_sequences=16, max_seq_length=64)
    for report in bertkit.fit(job, steps=200, learning_rate=1e-3):
        print(report.step, report.measured["loss"])
    print(job.evaluate())

A job is what is trained: a model, its examples, its objective, and how it is measured. `fit` trains it: no file, no output, no signal
handler. The steps are those of the commands `pretrain` and `finetune`, which also keep checkpoints, logs and reports in a directory.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from torch import nn

from bertkit.base.errors import is_silent
from bertkit.base.hub_ids import path_of
from bertkit.base.processors import check_precision
from bertkit.base.text_files import JsonObject
from bertkit.base.typed_settings import build, refuse
from bertkit.commands import compose_settings
from bertkit.data.batches.sampling import DrawnExamples
from bertkit.data.corpus.prepared import PreparedDataset, check_usable, open_prepared
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.data.data_config import SegmentsConfig
from bertkit.functions import take_rows
from bertkit.inference.forward import score_split
from bertkit.inference.held_out import HeldOutText
from bertkit.inference.task_model import Predictor
from bertkit.interop.load import load_tokenizer
from bertkit.interop.model_dir import resolve_model_dir
from bertkit.kernels import fast
from bertkit.launch.world import world_from_environment
from bertkit.model.heads import BertWithHeads
from bertkit.objectives.objective import MaskedLM, Objective
from bertkit.run.length_phases import LengthPhases, Phase
from bertkit.run.starts.finetuning import start_finetuning
from bertkit.run.starts.fitting import check_task
from bertkit.run.starts.pretraining import config_of
from bertkit.run.starts.start import new_model as initialised
from bertkit.run.task_data import label_units, make_task_data, weigh_classes
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.pretrain import PretrainSettings
from bertkit.settings.reading.compose import compose_values
from bertkit.settings.reading.names import command_of, in_words_of
from bertkit.settings.reading.values import read_values
from bertkit.tasks.batching import Cut, TrainingOrder
from bertkit.tasks.reading.training_data import read_training_data
from bertkit.train.loop import Course, Learner, train
from bertkit.train.loss_scale import LossScale
from bertkit.train.micro_batches import AUTO_MICRO_TOKENS, NumberedBatches, micro_batch_ranges
from bertkit.train.optimizer import make_optimizer, parameter_groups
from bertkit.train.processes import Accelerator, make_accelerator
from bertkit.train.schedule import learning_rate as rates
from bertkit.train.step_report import StepReport

Precision = Literal["fp32", "bf16", "fp16"]
NOWHERE = {"data_dir": "-", "output_dir": "-"}  # settings of a command that a job does not use
MEASURED = 1024  # held-out sequences, as in `pretrain`


class Job(ABC):
    """What `fit` trains."""

    model: BertWithHeads
    tokenizer: Tokenizer
    objective: Objective
    precision: Precision
    seed: int

    @abstractmethod
    def order(self, device: str) -> LengthPhases | TrainingOrder:
        """Return the micro-batches of every step, of a size that suits the device."""

    @abstractmethod
    def measure(self, accelerator: Accelerator, model: nn.Module) -> dict[str, float]:
        """Measure the model, as the accelerator has prepared it, on held-out examples."""

    def evaluate(self) -> dict[str, float]:
        """Measure the model on held-out examples, on the device where it is."""
        device = next(self.model.parameters()).device.type
        return self.measure(make_accelerator(device, world_from_environment().size), self.model)


class Pretraining(Job):
    """Pretraining of a model on the text of a prepared dataset.

    A model with a next sentence head gets pairs of segments, others blocks of full sentences; one with the head `next_token` predicts next
    tokens. The examples, their order and their masks are a function of the seed.

    Args:
        model: the model, which is trained in place.
        data: a prepared dataset, from `open_dataset`.
        objective: what is learned; None for masked LM as in BERT. Its `masking` says how text is masked.
        batch_sequences: sequences in a step, over all processes.
        max_seq_length: the longest sequence, in tokens.
        seed: for the examples, their order, the masks and dropout.
        precision: of the matrix products.

    Raises:
        InputError: the model does not fit the dataset, or a number is out of range.
    """

    def __init__(
        self,
        model: BertWithHeads,
        data: PreparedDataset,
        objective: Objective | None = None,
        *,
        batch_sequences: int = 64,
        max_seq_length: int = 128,
        seed: int = 0,
        precision: Precision = "fp32",
    ) -> None:
        check_usable(data)
        refuse(
            batch_sequences < 1 and f"batch_sequences={batch_sequences}: expected at least 1",
            data.tokenizer.vocab_size > model.config.vocab_size
            and f"model: has {model.config.vocab_size} tokens, the dataset {data.tokenizer.vocab_size}; take a model of its vocabulary",
            model.config.too_long("max_seq_length", max_seq_length, "max_seq_length"),
        )
        self.model, self.data, self.tokenizer = model, data, data.tokenizer
        self.objective, self.seed, self.precision = objective or MaskedLM(), seed, precision
        self.batch_sequences, self.max_seq_length = batch_sequences, max_seq_length
        has_pairs = "next_sentence" in model.heads
        kind: Literal["pairs", "full_sentences"] = "pairs" if has_pairs else "full_sentences"
        segments = SegmentsConfig(kind, max_seq_length, 0.1, "nsp" if has_pairs else "none")
        masking = None if "next_token" in model.heads else self.objective.masking
        self.examples = DrawnExamples(data, segments, masking)

    def order(self, device: str) -> LengthPhases:
        """Return the micro-batches of every step."""
        micro = max(1, AUTO_MICRO_TOKENS[device] // self.max_seq_length)
        ranges = micro_batch_ranges(self.batch_sequences, micro)
        sampler = self.examples.source("train", self.seed)
        return LengthPhases([Phase(0, 1, self.max_seq_length, sampler, None, ranges)])

    def measure(self, accelerator: Accelerator, model: nn.Module) -> dict[str, float]:
        """Return the losses and accuracies on held-out text, and those of counting tokens; empty without held-out text."""
        if "held_out" not in self.examples.splits:
            return {}
        sampler = self.examples.source("held_out", seed=0)
        return HeldOutText(self.data, sampler, MEASURED, precision=self.precision).measure(accelerator, model).metrics()


class Finetuning(Job):
    """Fine-tuning of a model on the examples of a task.

    Args:
        model_dir: the model to start from, as for `bertkit finetune`.
        train: the training rows, or a file with them.
        dev: the rows to be measured on; None takes a tenth of the training rows.
        objective: what is learned; None for the loss of the task.
        settings: settings of `bertkit finetune` that concern the model, the task and the batch.

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
        with _composed(given) as mapping:
            self.settings = build(FinetuneSettings, mapping)
            read = read_training_data(self.settings)
        source = resolve_model_dir(path_of(model_dir))
        self.tokenizer = load_tokenizer(source)
        self.data = make_task_data(read, self.tokenizer)
        units = label_units(self.settings, self.data)
        token = is_silent.set(True)
        try:
            start = start_finetuning(self.settings, source, self.tokenizer, self.data.labels, units)
        finally:
            is_silent.reset(token)
        check_task(self.settings, start.model.config, self.tokenizer, self.data.has_pairs)
        weigh_classes(self.settings, self.data)
        self.model, self.objective = start.model, objective or Objective()
        self.seed, self.precision = self.settings.seed, self.settings.precision

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps in which every training example is used once."""
        return self.order("cpu").steps_per_epoch

    def order(self, device: str) -> TrainingOrder:
        """Return the micro-batches of every step."""
        cut = Cut(AUTO_MICRO_TOKENS[device], None, world_from_environment().size)
        return TrainingOrder(self.data.batches, self.settings.batch.sequences, self.seed, cut)

    def measure(self, accelerator: Accelerator, model: nn.Module) -> dict[str, float]:
        """Return the scores on the dev rows, and the loss."""
        task, dev = self.data.task, self.data.dev.source
        tokens = AUTO_MICRO_TOKENS[accelerator.device.type]
        predictor = Predictor(model, self.tokenizer, task, self.precision, tokens)  # type: ignore[arg-type]
        found = score_split(accelerator, predictor, task, dev.examples, self.data.dev_features)
        return {**found.scores, "loss": found.loss}


@contextlib.contextmanager
def _composed(settings: dict[str, object]) -> Iterator[JsonObject]:
    """Compose the configuration of `finetune`; its rows from Python are in files while the context is open."""
    with in_words_of("finetune", settings), contextlib.ExitStack() as stack:
        settings["output_dir"] = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bertkit-")), "run")
        take_rows(command_of("finetune"), settings, stack)
        yield compose_settings("finetune", read_values("finetune", settings))


def open_dataset(data_dir: str | os.PathLike[str]) -> PreparedDataset:
    """Open a prepared dataset, the output of `bertkit prepare`; raises InputError if it is none."""
    return open_prepared(Path(path_of(data_dir)))


def new_model(name: str, tokenizer: Tokenizer, *, seed: int = 0, **settings: object) -> BertWithHeads:
    """Make a model with initial weights, of one of the shapes of `bertkit pretrain model=`, for the vocabulary of a tokenizer.

    `settings` are those of `pretrain` that concern the model: `segments="pairs"` adds the next sentence head.

    Raises InputError if a setting is wrong.
    """
    own = {"model": name, "segments": "full_sentences", "segments.max_seq_length": 8, "seed": seed, **settings}
    chosen = build(PretrainSettings, compose_values("pretrain", {**NOWHERE, **own}))
    return initialised(config_of(chosen, tokenizer.facts), chosen.heads, "next_sentence" in chosen.heads, seed)


def fit(
    job: Job,
    steps: int,
    learning_rate: float,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    optimizer: Mapping[str, object] | None = None,
    schedule: str | Mapping[str, object] = "linear",
) -> Iterator[StepReport]:
    """Train the model of a job, in place; yield a report after each step. Layers are not compiled, as the commands do on a GPU.

    The model is in training mode and on the device until the iterator ends, then in evaluation mode. Under torchrun all processes
    train together. `report.measured` has the losses, accuracies and the norm of the gradient.

    Args:
        job: what is trained.
        steps: the number of steps.
        learning_rate: the peak of the schedule.
        device: "auto" uses CUDA if it is available.
        optimizer: settings of `optimizer.`, such as {"beta2": 0.98, "bias_correction": True}; the others are those of BERT.
        schedule: an option of `schedule=`, or settings of it.

    Raises:
        InputError: an argument is wrong.
        NumericsError: a loss or the gradient is not finite in five steps in a row.
    """
    own = {"steps": steps, "precision": job.precision, "device": device, "schedule": schedule}
    own |= {"optimizer": {**(optimizer or {}), "peak_learning_rate": learning_rate}}
    settings = build(PretrainSettings, compose_values("pretrain", {**NOWHERE, "model": "base", **own}))
    world = world_from_environment()
    accelerator = make_accelerator(device, world.size)
    check_precision(job.precision, accelerator.device.type)
    return _steps(job, settings, accelerator)


def _steps(job: Job, settings: PretrainSettings, accelerator: Accelerator) -> Iterator[StepReport]:
    """Train; a function of its own, so that `fit` raises its errors when it is called."""
    job.model.use(fast.choose("auto"))
    model = accelerator.prepare_model(job.model.train(), device_placement=True)
    optimizer = make_optimizer(parameter_groups(job.model, settings.optimizer.weight_decay), settings.optimizer)
    steps, order = settings.num_steps, job.order(accelerator.device.type)

    def batches(step: int) -> NumberedBatches:
        drawn = order.micro_batches(step, accelerator.process_index, accelerator.num_processes)
        return job.objective.prepared(drawn, step, steps, job.seed)

    learner = Learner(
        accelerator,
        model,
        optimizer,
        functools.partial(job.objective.losses, precision=job.precision),
        LossScale(accelerator.device) if job.precision == "fp16" else None,
        counts=job.objective.counts,
    )
    rate = rates(settings.optimizer.peak, settings.schedule, steps, settings.schedule.warmup_of(steps))
    course = Course(batches, rate, 0, steps, settings.optimizer.max_grad_norm, job.seed)
    try:
        for report in train(learner, course):
            report.check_skips(settings.numerics.max_skips_in_a_row)
            yield report
    finally:
        job.model.eval()
