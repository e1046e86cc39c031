"""Fine-tuning: the job, planned from settings, the files of a task, and the model of `model_dir`.

What is `auto` is resolved here, before a file is written; only `run.state.TrainingState` may take over choices, such as the
micro-batches, from the checkpoint that a run resumes from.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from bertkit.base.errors import InputError, counted, say
from bertkit.base.files import sha256_file
from bertkit.base.typed_settings import to_mapping
from bertkit.display import console
from bertkit.display.page import metric_name
from bertkit.display.report import TASK_CHARTS
from bertkit.inference.forward import SplitScores, score_split
from bertkit.inference.frozen import frozen_vectors
from bertkit.inference.task_model import Predictor
from bertkit.interop.load import load_tokenizer
from bertkit.interop.model_dir import resolve_model_dir
from bertkit.jobs import task_data
from bertkit.jobs.finetuning_result import Best, results_of
from bertkit.jobs.finetuning_start import start_finetuning
from bertkit.jobs.task_data import TaskData
from bertkit.launch.world import world_from_environment
from bertkit.model.head.head import LinearHead
from bertkit.model.label_scale import LabelUnits
from bertkit.objectives.objective import Objective, make_objective
from bertkit.run import finished
from bertkit.run.choices import Choices, make_choices
from bertkit.run.directory import continued_identity
from bertkit.run.finished import continued_finetuning
from bertkit.run.fitting import check_task
from bertkit.run.job import Due, Evaluation, Job, Order
from bertkit.run.memory_plan import LargestBatch
from bertkit.run.publishing import publish
from bertkit.run.resume_rules import FINETUNE, identity_of
from bertkit.run.start import Start
from bertkit.run.state import TrainingState
from bertkit.settings.finetune import BASE_HIDDEN_SIZE, FinetuneSettings
from bertkit.tasks.batching import Cut, TrainingOrder
from bertkit.tasks.reading.training_data import TrainingData
from bertkit.tasks.scoring.baseline import Baseline
from bertkit.tasks.scoring.calibration import Calibration
from bertkit.tasks.trainable import task_of
from bertkit.train.accelerator import Accelerator, make_accelerator, ranks_in
from bertkit.train.micro_batches import AUTO_MICRO_TOKENS, MIN_PARTS, check_num_processes
from bertkit.train.processes import choose_device


class FinetuningJob(Job[FinetuneSettings]):
    """Fine-tuning of a model on the examples of a task."""

    label, charts, rules = "fine-tuning", TASK_CHARTS, FINETUNE

    def __init__(
        self,
        settings: FinetuneSettings,
        start: Start,
        objective: Objective,
        data: TaskData,
        units: LabelUnits | None = None,
    ) -> None:
        super().__init__(settings, start, objective)
        self.data, self.units = data, units  # units: in which a regression learns its labels

    @property
    def content(self) -> dict[str, object]:
        """The hashes of data and starting weights, and what was decided when the run began."""
        content: dict[str, object] = {
            "data_fingerprint": finished.fingerprint(self.data.train.source, self.data.dev.source),
            "starting_weights": self.start.weights_sha256,
        }
        method = None if self.settings.dev_share is None else self.data.method
        content |= {} if method is None else {"dev_split": method}
        content |= {} if self.units is None else {"label_scale": self.units.scale}
        is_new = self.start.init_from is None  # its tokenizer is trained again at every start
        return content | ({"vocabulary": self.tokenizer.vocabulary_sha256} if is_new else {})

    @property
    def facts(self) -> dict[str, Any]:
        """The files, the tokenizer and the starting weights."""
        source = self.data.train.source
        return {
            "corpus": {
                "description": source.description,
                "has_pairs": self.data.train.coverage.has_pairs,
                "files_sha256": [sha256_file(path) for path in source.files],
                "decimal_marks": {**source.marks, **self.data.dev.source.marks},
            },
            "tokenizer_sha256": self.tokenizer.vocabulary_sha256,
            "init_from": self.start.init_from,
        }

    @property
    def warmup_steps(self) -> float:
        """The number of steps of the warm-up."""
        return self.settings.warmup_of(self.steps)

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps in which every training example is used once."""
        return -(-len(self.data.batches) // self.settings.batch.sequences)

    @property
    def patience(self) -> int | None:
        """The number of evaluations without a better score after which the run ends."""
        return self.settings.evaluation.patience

    @property
    def _cut(self) -> Cut:
        """How a step is divided, the same for one and two processes, or, if strict, for any number of processes."""
        batch = self.settings.batch
        fewest = MIN_PARTS if self.settings.reproducibility == "strict" else self.accelerator.num_processes
        if batch.micro_sequences != "auto":
            return Cut(None, batch.micro_sequences, fewest)
        if batch.micro_tokens != "auto":
            return Cut(batch.micro_tokens, None, fewest)
        return Cut(AUTO_MICRO_TOKENS[self.accelerator.device.type], None, max(2, fewest))

    def choose(self) -> Choices:
        """Choose what is auto, such as the micro-batches."""
        choices = make_choices(
            self.settings, self.accelerator, self._cut, self._cut.fewest_parts(self.settings.batch.sequences)
        )
        self._check_num_processes(choices)
        return choices

    def order_by(self, choices: Choices) -> TrainingOrder:
        """Return the training examples of each step of the task, for some choices."""
        assert isinstance(choices.cut, Cut), "only for fine-tuning"
        return TrainingOrder(self.data.batches, self.settings.batch.sequences, self.settings.seed, choices.cut)

    @functools.cached_property
    def order(self) -> Order:
        """The training examples of each step."""
        return self.order_by(self.choices)

    def fewest_parts(self, choices: Choices) -> int:
        """Return the smallest number of micro-batches in any step."""
        return self.order_by(choices).fewest_parts

    def check_num_processes(self) -> None:
        """Check that the smallest step can be divided."""
        self._check_num_processes(self.choices)

    def _check_num_processes(self, choices: Choices) -> None:
        check_num_processes(self.fewest_parts(choices), choices.num_parts, self.accelerator.num_processes)

    def lines(self, state: TrainingState) -> list[str]:
        """Describe frozen parameters, epochs and learning rate."""
        settings, num_trained = self.settings, sum(parameter.numel() for parameter in state.names)
        rate = f"{settings.optimizer.peak:g} after {counted(self.warmup_steps, 'step')} of warm-up"
        published, width = settings.task.recipe.peak_learning_rate, self.model.config.hidden_size
        if settings.optimizer.peak == settings.rate_for(width) != published:
            rate += f" (the published {published:g} is for a hidden size of {BASE_HIDDEN_SIZE}; here it is {width})"
        published_epochs, longer = settings.task.recipe.num_epochs, ""
        if settings.epochs == settings.epochs_for(len(self.data.batches)) > published_epochs:
            few = published_epochs * self.steps_per_epoch
            longer = f" (the published {published_epochs} would be {counted(few, 'step')}, too few)"
        return [
            *filter(None, [settings.frozen_line(num_trained)]),
            f"{counted(self.steps_per_epoch, 'step')} an epoch, {counted(settings.epochs, 'epoch')}{longer}; up to "
            f"{counted(settings.batch.sequences, 'example')} a step; learning rate {rate}",
        ]

    def largest_batches(self) -> list[LargestBatch]:
        """Return the largest micro-batch, made of copies of the longest example."""
        order = self.order_by(self.choices)
        return [task_data.largest_batch(self.settings, self.model, order, self.objective)]

    def score(self, accelerator: Accelerator, model: nn.Module) -> SplitScores:
        """Predict and score the dev rows."""
        tokens, task = AUTO_MICRO_TOKENS[accelerator.device.type], self.data.task
        predictor = Predictor(model, self.tokenizer, task, self.settings.precision, tokens)  # type: ignore[arg-type]
        return score_split(
            ranks_in(accelerator), predictor, task, self.data.dev.source.examples, self.data.dev_features
        )

    def measure(self, accelerator: Accelerator, model: nn.Module) -> dict[str, float]:
        """Return the scores on the dev rows, and the loss."""
        dev = self.score(accelerator, model)
        return dev.scores | {"loss": dev.loss}

    def score_of(self, metrics: Mapping[str, float]) -> float:
        """Return the number by which the best weights are chosen."""
        return metrics[self.data.task.config.best_metric]

    def dev_lines(self, metrics: Mapping[str, float]) -> list[str]:
        """Describe what was measured."""
        best_metric = self.data.task.config.best_metric
        return [f"  dev: {console.scores_line(metrics, self.baseline.scores, best_metric)}"]

    @functools.cached_property
    def baseline(self) -> Baseline:
        """The scores of the baselines on the dev rows."""
        rows = self.data.train.source.examples
        return Baseline.of(
            self.data.task, rows, self.data.dev.source.examples, frozen_vectors(self.settings, len(rows))
        )

    def after(self, step: int, due: Due, state: TrainingState) -> Evaluation:
        """Score the dev rows if that is due, and keep the weights with the best score."""
        if not due.evaluation or (self.settings.dev_share == 0 and step < self.steps):
            return Evaluation()
        metrics, writer = self.measure(state.accelerator, state.model), state.writer
        score, before = self.score_of(metrics), writer.history.best
        is_best = writer.offer_best(step, score, metrics["loss"])
        is_better = is_best and (before is None or score > before.score)
        writer.history.num_worse = 0 if is_better else writer.history.num_worse + 1
        lines = self.dev_lines(metrics) if state.accelerator.is_main_process else ()
        return Evaluation(metrics, must_save=is_best, lines=tuple(lines))

    def publish(self, state: TrainingState) -> None:
        """Score the best weights, and write the model, its predictions and metrics, and the report."""
        best_step, fitted = state.load_best(), None
        dev = self.score(state.accelerator, state.model)
        if self.settings.calibrate:
            task = self.data.task
            head = self.model.heads[task.head]
            assert isinstance(head, LinearHead), "checked by the settings"
            fitted = Calibration.of(task.decisions(self.data.dev.source.examples, dev.predictions))
            head.cool(fitted.temperature or 1.0)
            dev = self.score(state.accelerator, state.model)
        if state.accelerator.is_main_process:
            by = metric_name(self.data.task.config.best_metric)
            best = Best(best_step, dev.scores, dev.predictions, by, fitted)
            found = results_of(self.settings, state, self.steps_per_epoch, self.data, best, self.baseline)
            publish(self, state, found.facts, found.result, files=found.files, line=found.line, review=found.review)


def plan_finetuning(given: FinetuneSettings, read: TrainingData | None = None) -> FinetuningJob:
    """Plan a run that is not finished; raises InputError if data, model and settings do not fit together.

    `read` has the examples, if a check has read them already.
    """
    settings = continued_finetuning(given)
    saved, splits_of = (
        continued_identity(settings, FINETUNE),
        functools.cache(lambda: finished.splits_of(settings, read)),
    )
    choose_device(settings.device)  # fail before reading all the files
    objective = make_objective(settings.objective, settings.objective_options)
    return in_directory(make_job(settings, splits_of, objective, is_old=bool(saved) and "label_scale" not in saved))


JobT = TypeVar("JobT", bound=FinetuningJob)


def in_directory(job: JobT) -> JobT:
    """Give a job its steps, its directory, its device and its identity."""
    settings = job.settings
    job.steps, job.directory = steps_of(job), Path(settings.output_dir)
    job.on(make_accelerator(settings.device, world_from_environment().size, settings.launch.hang_timeout_seconds))
    job.identity = identity_of(to_mapping(settings), FINETUNE) | job.content
    return job


def make_job(
    settings: FinetuneSettings, splits_of: Callable[[], TrainingData], objective: Objective, is_old: bool = False
) -> FinetuningJob:
    """Make the features of a task, and load the model with the task's head; `is_old` as in `label_units`."""
    task_of(settings.task).check_metrics()
    if settings.calibrate:
        task_of(settings.task).decisions((), ())
    source = None if settings.model_dir is None else resolve_model_dir(settings.model_dir)
    tokenizer = load_tokenizer(source) if source is not None else task_data.new_tokenizer(settings, splits_of)
    tokenizer.max_length = settings.task.max_seq_length  # saved, so that transformers truncates at the same length
    data = task_data.make_task_data(splits_of(), tokenizer)
    data.task.check_metrics()
    if world_from_environment().is_main:
        say(*tokenizer.notes, *data.describe(settings))
    units = task_data.label_units(settings, data, is_old)
    start = start_finetuning(settings, source, tokenizer, data.labels, units)
    check_task(settings, start.model.config, tokenizer, data.has_pairs)
    task_data.weigh_labels(settings, data)
    settings = settings.with_rate(settings.rate_for(start.model.config.hidden_size))
    settings = settings.with_epochs(settings.epochs_for(len(data.batches)))
    return FinetuningJob(settings, start, objective, data, units)


def steps_of(job: FinetuningJob) -> int:
    """Return the number of steps in a run; raises InputError if the warm-up or the last batch does not fit."""
    settings, num_examples, num_processes = job.settings, len(job.data.batches), world_from_environment().size
    steps = math.ceil(settings.epochs * job.steps_per_epoch)
    if settings.epochs * num_examples < 1:
        raise InputError(
            f"num_epochs={settings.epochs:g} of {num_examples:,} examples is less than one example; raise it"
        )
    if settings.warmup_of(steps) > steps:
        warmup = f"schedule.warmup_steps={settings.schedule.warmup_steps}"
        raise InputError(f"{warmup} exceeds the {steps} steps of the run; lower it")
    rest = num_examples % settings.batch.sequences or settings.batch.sequences
    if rest < num_processes:
        raise InputError(
            f"the last batch of an epoch has {counted(rest, 'example')} for {num_processes} processes; change batch.sequences"
        )
    return steps
