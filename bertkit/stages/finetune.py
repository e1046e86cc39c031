"""Stage: fine-tune a model on a task, and score it on the dev split.

1. Read the files, make the features and load the model; errors up to here leave no files.
2. Open the run directory: a new one, or one with the same run, which resumes from its newest valid checkpoint.
3. Train; at the end of every epoch, evaluate, and keep the weights with the best score.
4. Write the best model, its metrics and predictions, and the report.
"""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.base.errors import say
from bertkit.base.typed_settings import at, to_mapping
from bertkit.display import console
from bertkit.display.report import TASK_CHARTS
from bertkit.inference.forward import mean_loss, perplexity, predict_distributed
from bertkit.inference.task_model import Predictor
from bertkit.interop.load import resolve_model_dir
from bertkit.launch.world import world_from_environment
from bertkit.run import task_data
from bertkit.run.directory import saved_identity
from bertkit.run.memory_plan import LargestBatch
from bertkit.run.objective import task_losses
from bertkit.run.opening import announce, is_done, open_run
from bertkit.run.publishing import publish_task
from bertkit.run.resume_rules import FINETUNE, identity_of
from bertkit.run.start import check_task, start_finetuning
from bertkit.run.state import TrainingState
from bertkit.run.task_data import TaskData
from bertkit.run.trainer import Due, Evaluation, TrainingPlan, training
from bertkit.settings.finetune import FinetuneSettings
from bertkit.tasks.batching import TrainingOrder
from bertkit.tasks.scoring.baseline import Baseline
from bertkit.tasks.task import check_metrics, shape_of
from bertkit.train.losses import LossTerm
from bertkit.train.micro_batches import AUTO_MICRO_TOKENS
from bertkit.train.processes import choose_device, make_accelerator

PLANNED_STEPS = 50  # steps in which to look for the largest micro-batch; a millisecond each


def run(settings: FinetuneSettings) -> None:
    """Fine-tune, resume, or print that the run is done; the errors are those of `training` and `open_run`, and for bad input."""
    rate = at(saved_identity(Path(settings.output_dir)), "optimizer.peak_learning_rate")
    settings = settings.with_rate(rate) if isinstance(rate, float) else settings  # a resumed run keeps its rate
    identity = identity_of(to_mapping(settings), FINETUNE)
    if is_done(settings, identity, FINETUNE, lambda: task_data.fingerprint(task_data.splits_of(settings))):
        return
    choose_device(settings.device)  # fail before reading all the files
    check_metrics(settings.task, settings.task.label_names)
    world = world_from_environment()
    source = None if settings.model_dir is None else resolve_model_dir(settings.model_dir)
    tokenizer = task_data.tokenizer_of(settings, source)
    tokenizer.max_length = settings.task.max_seq_length  # saved, so that transformers truncates at the same length
    data = task_data.load_task_data(settings, tokenizer)
    check_metrics(settings.task, data.labels)
    if world.is_main:
        say(*data.describe(settings))
    start = start_finetuning(settings, source, tokenizer, data.labels)
    check_task(settings, start.model.config, data.train.coverage.has_pairs or data.dev.coverage.has_pairs)
    settings = settings.with_rate(settings.rate_for(start.model.config.hidden_size))
    task_data.weigh_classes(settings, data)
    steps = task_data.steps_of(settings, data.batches, world.size)
    accelerator = make_accelerator(settings.device, world.size, settings.launch.hang_timeout_seconds)
    choices = task_data.choose(settings, accelerator)
    task_data.training_order(settings, data, choices, world.size)
    identity = identity_of(to_mapping(settings), FINETUNE)
    vocabulary = hashlib.sha256(tokenizer.files(0)["vocab.txt"].encode()).hexdigest()
    identity["data_fingerprint"] = task_data.fingerprint((data.train.source, data.dev.source))
    identity["starting_weights"] = start.weights_sha256
    identity |= {"dev_split": "near-duplicates together"} if task_data.keeps_groups(settings) else {}
    identity |= {"vocabulary": vocabulary} if source is None else {}  # trained again at every start
    facts = {
        "corpus": {"description": data.train.source.description, "has_pairs": data.train.coverage.has_pairs},
        "tokenizer_sha256": vocabulary,
        "init_from": start.init_from,
    }
    with open_run(accelerator, settings, identity, facts, FINETUNE) as record_changes:
        state = TrainingState(accelerator, settings, start, choices)
        record_changes(state.first_step)
        order = task_data.training_order(settings, data, state.choices, world.size)
        finetuning = _Finetuning(settings, state, data, order, steps)
        lines = task_data.plan_lines(settings, state.bare_model, order.steps_per_epoch, steps)
        announce(settings, state, steps, lines, [finetuning.largest_batch()])
        with training(settings, state, finetuning.plan()) as trainer:
            for report in trainer.reports:
                trainer.finish(report, finetuning.after(report.step, trainer.due(report)))
        finetuning.publish()


@dataclass(frozen=True)
class _Finetuning:
    """The plan, evaluations and result of a fine-tuning run."""

    settings: FinetuneSettings
    state: TrainingState
    data: TaskData
    order: TrainingOrder
    steps: int

    @functools.cached_property
    def predictor(self) -> Predictor:
        """A predictor with the model in training."""
        state, settings = self.state, self.settings
        shape, micro_tokens = shape_of(settings.task), AUTO_MICRO_TOKENS[state.accelerator.device.type]
        labels, precision = self.data.labels, settings.precision
        return Predictor(state.model, shape, state.tokenizer, settings.task, labels, precision, micro_tokens)

    @functools.cached_property
    def baseline(self) -> Baseline:
        """The scores of the baselines on the dev split."""
        train, dev = (split.source.examples for split in (self.data.train, self.data.dev))
        return Baseline.of(self.settings.task, train, dev, self.data.labels)

    def plan(self) -> TrainingPlan:
        """Return the plan for the training loop."""
        generation, settings = self.settings.task.generation, self.settings
        smoothing = 0.0 if generation is None else generation.label_smoothing
        return TrainingPlan(
            label="fine-tuning",
            order=self.order,
            losses=functools.partial(task_losses, precision=settings.precision, label_smoothing=smoothing),
            steps=self.steps,
            warmup_steps=settings.warmup_of(self.steps),
            charts=TASK_CHARTS,
            baselines=lambda step: {},
            steps_per_epoch=self.order.steps_per_epoch,
            patience=settings.evaluation.patience,
        )

    def largest_batch(self) -> LargestBatch:
        """Return the largest micro-batch, made of copies of the longest example, to estimate its memory."""
        batches, losses, model = self.order.batches, self.plan().losses, self.state.bare_model

        def forward(num_examples: int) -> int:
            longest = np.repeat(np.argmax(batches.lengths), num_examples)
            losses(model, batches.take(longest))
            return int(batches.lengths[longest].sum())

        num_tokens, by_sequences = self.order.largest_part(PLANNED_STEPS), self.settings.batch.micro_sequences != "auto"
        return LargestBatch(forward, num_tokens, int(batches.lengths.max()), by_sequences)

    def after(self, step: int, due: Due) -> Evaluation:
        """Evaluate on the dev split if it is due, and keep the weights with the best score."""
        if not due.evaluation:
            return Evaluation()
        scores, _, loss = self._evaluate()
        writer, metrics = self.state.writer, scores | {"loss": loss}
        is_best = writer.offer_best(step, scores[self.settings.task.best_metric])
        writer.history.num_worse = 0 if is_best else writer.history.num_worse + 1
        lines = []
        if self.state.accelerator.is_main_process:
            lines.append(f"  dev: {console.scores_line(metrics, self.baseline.scores)}")
        return Evaluation(metrics, must_save=is_best, lines=tuple(lines))

    def publish(self) -> None:
        """Evaluate the best weights, and write the model, its predictions and metrics, and the report."""
        best_step = self.state.load_best()
        scores, predictions, _ = self._evaluate()
        if self.state.accelerator.is_main_process:
            plan, baseline = self.plan(), self.baseline
            publish_task(self.settings, self.state, plan, self.data, best_step, scores, predictions, baseline)

    def _evaluate(self) -> tuple[dict[str, float], list[Any], float]:
        """Return the scores on the dev split, the predictions, and the mean loss without class weights."""
        losses: list[LossTerm] = []
        examples, accelerator = self.data.dev.source.examples, self.state.accelerator
        predictions = predict_distributed(accelerator, self.predictor, examples, self.data.dev_features, losses)
        scores = self.predictor.shape.score(self.settings.task, examples, predictions, self.data.labels)
        loss = mean_loss(accelerator, losses)
        if self.predictor.shape.generates_text:
            scores["perplexity"] = perplexity(loss)
        return scores, predictions, loss
