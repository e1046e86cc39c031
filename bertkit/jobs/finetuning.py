"""Fine-tuning: the job, that is the examples of a task, how a step is divided, how the model is scored, and what is left at the end."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from torch import nn

from bertkit.base.errors import counted
from bertkit.base.files import sha256_file
from bertkit.display import console
from bertkit.display.page import metric_name
from bertkit.display.report import TASK_CHARTS
from bertkit.inference.forward import SplitScores, score_split
from bertkit.inference.frozen import frozen_vectors
from bertkit.inference.task_model import Predictor
from bertkit.jobs import task_data
from bertkit.jobs.finetuning_result import BestOnDev, results_of
from bertkit.jobs.task_data import TaskData
from bertkit.model.head.head import LinearHead
from bertkit.model.label_scale import LabelUnits
from bertkit.objectives.objective import Objective
from bertkit.run import finished
from bertkit.run.choices import Choices, make_choices
from bertkit.run.job import Due, Evaluation, Job, Order
from bertkit.run.memory_plan import LargestBatch
from bertkit.run.publishing import publish
from bertkit.run.resume_rules import FINETUNE
from bertkit.run.start import Start
from bertkit.run.state import TrainingState
from bertkit.settings.finetune import BASE_HIDDEN_SIZE, FinetuneSettings
from bertkit.tasks.batching import Cut, TrainingOrder
from bertkit.tasks.scoring.baseline import Baseline
from bertkit.tasks.scoring.calibration import Calibration
from bertkit.train.accelerator import Accelerator, ranks_in
from bertkit.train.micro_batches import AUTO_MICRO_TOKENS, MIN_PARTS


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
                "has_singles": self.data.has_singles,
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
        self.check_num_processes(self.order_by(choices), choices)
        return choices

    def order_by(self, choices: Choices) -> Order:
        """Return the training examples of each step, for some choices."""
        return self.order_of_task(choices)

    def order_of_task(self, choices: Choices) -> TrainingOrder:
        """Return the training examples of each step on this task alone."""
        assert isinstance(choices.cut, Cut), "only for fine-tuning"
        return TrainingOrder(self.data.batches, self.settings.batch.sequences, self.settings.seed, choices.cut)

    @functools.cached_property
    def order(self) -> Order:
        """The training examples of each step."""
        return self.order_by(self.choices)

    def lines(self, state: TrainingState) -> list[str]:
        """Describe frozen parameters, epochs and learning rate."""
        settings = self.settings
        rate = f"{settings.optimizer.peak:g} after {counted(self.warmup_steps, 'step')} of warm-up"
        published, width = settings.task.recipe.peak_learning_rate, self.model.config.hidden_size
        if settings.optimizer.peak == settings.rate_for(width) != published:
            rate += f" (the published {published:g} is for a hidden size of {BASE_HIDDEN_SIZE}; here it is {width})"
        published_epochs, longer = settings.task.recipe.num_epochs, ""
        if settings.epochs == settings.epochs_for(len(self.data.batches)) > published_epochs:
            few = published_epochs * self.steps_per_epoch
            longer = f" (the published {published_epochs} would be {counted(few, 'step')}, too few)"
        return [
            *filter(None, [settings.frozen_line(state.num_trained)]),
            f"{counted(self.steps_per_epoch, 'step')} an epoch, {counted(settings.epochs, 'epoch')}{longer}; up to "
            f"{counted(settings.batch.sequences, 'example')} a step; learning rate {rate}",
        ]

    def largest_batches(self) -> list[LargestBatch]:
        """Return the largest micro-batch, made of copies of the longest example."""
        order = self.order_of_task(self.choices)
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
            best = BestOnDev(best_step, dev.scores, dev.predictions, by, fitted)
            found = results_of(self.settings, state, self.steps_per_epoch, self.data, best, self.baseline)
            publish(self, state, found.facts, found.result, files=found.files, line=found.line, review=found.review)
