"""Stage: any model and a task's files -> a model of the task, and its scores on the dev split.

1. Read the files, make the features, load the model; nothing is written before.
2. Open the run directory: a new one, or the same run's, to resume from its newest valid checkpoint.
3. Train; evaluate at the end of every epoch, and keep the weights of the best score.
4. Write the best model, its metrics and predictions, and the report.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.base.errors import say
from bertkit.base.typed_settings import at, to_mapping
from bertkit.interop.exports.card import finetuning_facts
from bertkit.interop.load import hashes_of, resolve_model_dir
from bertkit.launch.world import world_from_environment
from bertkit.predict.answers import answer, mean_loss, perplexity
from bertkit.predict.task_model import Predictor
from bertkit.run.compatibility import check_task
from bertkit.run.directory import identity_there, is_finished
from bertkit.run.memory_plan import MicroBatch
from bertkit.run.objective import task_losses
from bertkit.run.publishing import opened, plan, publish, report_of, reported, say_if_done, say_what_happens
from bertkit.run.rules import FINETUNE, identity_of
from bertkit.run.start import Start, build_task_model
from bertkit.run.state import TrainingState
from bertkit.run.task_data import (
    TaskData,
    choose,
    fingerprint_of,
    load_task_data,
    read_splits,
    steps_of,
    tokenizer_of,
    training_order,
    weigh_classes,
)  # fmt: skip
from bertkit.run.trainer import Recorded, Trained, TrainingPlan, fit
from bertkit.settings.finetune import BASE_HIDDEN_SIZE, FinetuneSettings
from bertkit.tasks.batching import TrainingOrder
from bertkit.tasks.scoring.baseline import Baseline
from bertkit.tasks.scoring.metrics import signatures
from bertkit.tasks.scoring.review import measured_beside
from bertkit.tasks.shapes import check_metrics, shape_of
from bertkit.train.losses import LossTerm
from bertkit.train.micro_batches import AUTO_MICRO_TOKENS
from bertkit.train.processes import choose_device, make_accelerator
from bertkit.view import console
from bertkit.view.progress import Progress
from bertkit.view.report import TASK_CHARTS, write_report

LOOKED_AT = 50  # steps, to know how large a micro-batch gets; a millisecond each


def run(settings: FinetuneSettings) -> None:
    """Fine-tune, resume, or say that it is done.

    Raises:
        InputError: settings, files or starting weights do not fit together, or the directory holds another run.
        LockedError: the run is live elsewhere.
        StorageError: a disk is full or fails, or every checkpoint is damaged.
        NumericsError: the gradient stopped being finite.
        StoppedError: a signal asked the run to stop; its checkpoint is saved.
    """
    rate = at(identity_there(Path(settings.output_dir)), "optimizer.peak_learning_rate")
    settings = settings.with_rate(rate) if isinstance(rate, float) else settings  # that the run chose when it began
    if _say_if_done(settings):
        return
    choose_device(settings.device)  # refused before all the files are read
    check_metrics(settings.task, settings.task.label_names)
    world = world_from_environment()
    source = None if settings.model_dir is None else resolve_model_dir(settings.model_dir)
    tokenizer = tokenizer_of(settings, source)
    data = load_task_data(settings, tokenizer)
    check_metrics(settings.task, data.labels)
    model, init_from = build_task_model(settings, source, tokenizer, data.labels)
    check_task(settings, model.config, any(split.coverage.has_pairs for split in (data.train, data.dev)))
    settings = settings.with_rate(settings.rate_for(model.config.hidden_size))
    weigh_classes(settings, data)
    steps = steps_of(settings, data.batches, world.size)
    if world.is_main:
        _say_start(settings, data, init_from["summary"])
    accelerator = make_accelerator(settings.device, world.size, settings.launch.hang_timeout_seconds)
    choices = choose(settings, accelerator)
    training_order(settings, data, choices, world.size)
    identity = identity_of(to_mapping(settings), FINETUNE)
    vocabulary = hashlib.sha256(tokenizer.files(0)["vocab.txt"].encode()).hexdigest()
    identity |= {"data_fingerprint": data.fingerprint, "starting_weights": init_from["sha256"]}
    identity |= {"vocabulary": vocabulary} if source is None else {}  # learned anew at every start
    facts = {
        "corpus": {"description": data.train.source.description, "has_pairs": data.train.coverage.has_pairs},
        "tokenizer_sha256": vocabulary,
        "init_from": init_from if source is not None else None,
    }
    frozen_depth = settings.frozen_depth(model.config.num_hidden_layers)
    start = Start(model, tokenizer, frozen_depth=frozen_depth, layer_decay=settings.layer_decay)
    with opened(accelerator, settings, identity, facts, FINETUNE) as record_changes:
        state = TrainingState(accelerator, settings, start, choices)
        record_changes(state.first_step)
        order = training_order(settings, data, state.choices, world.size)
        finetuning = _Finetuning(settings, state, data, order, steps)
        say_what_happens(settings, state, steps, finetuning.lines(), [finetuning.planned()])
        with (
            reported(state, {}, TASK_CHARTS),
            Progress("fine-tuning", steps, done=state.first_step, silent=not world.is_main) as progress,
            contextlib.closing(fit(settings, state, finetuning.training_plan(), progress)) as events,
        ):
            for event in events:
                if isinstance(event, Trained):
                    finetuning.measure(event)
                elif world.is_main and (event.metrics or event.is_saved):
                    finetuning.show(event, progress)
        finetuning.finish()


def _say_start(settings: FinetuneSettings, data: TaskData, summary: str) -> None:
    say(*data.train.describe(), *data.dev.describe())
    if settings.batch.sequences > len(data.batches):
        say(
            f"warning: batch.sequences={settings.batch.sequences} is more than the {len(data.batches):,} there are to "
            "train on; every step takes all of them"
        )
    say(
        f"starting from {settings.model_dir}: {summary}"
        if settings.model_dir is not None
        else f"starting with {summary}"
    )


def _say_if_done(settings: FinetuneSettings) -> bool:
    """Whether the run is finished, by its settings and then by the files that are still here; if so, say it."""
    directory, known = Path(settings.output_dir), dict[str, Any]()
    if not is_finished(directory, identity_of(to_mapping(settings), FINETUNE), FINETUNE):
        return False
    if settings.model_dir is None:
        known["starting_weights"] = None
    elif Path(settings.model_dir).expanduser().exists():
        known["starting_weights"] = hashes_of(resolve_model_dir(settings.model_dir))
    if settings.data_dir is not None and Path(settings.data_dir).expanduser().exists():
        known["data_fingerprint"] = [fingerprint_of(source.examples) for source in read_splits(settings)]
    return say_if_done(directory, known, FINETUNE)


class _Finetuning:
    """What fine-tuning says, measures and leaves."""

    def __init__(
        self, settings: FinetuneSettings, state: TrainingState, data: TaskData, order: TrainingOrder, steps: int
    ) -> None:
        self.settings, self.state, self.data, self.order, self.steps = settings, state, data, order, steps
        search = settings.task.generation
        smoothing = 0.0 if search is None else search.label_smoothing
        self.losses = functools.partial(task_losses, precision=settings.precision, label_smoothing=smoothing)
        shape, device = shape_of(settings.task), state.accelerator.device.type
        self.predictor = Predictor(
            state.model,
            shape,
            state.tokenizer,
            settings.task,
            data.labels,
            settings.precision,
            AUTO_MICRO_TOKENS[device],
        )

    @functools.cached_property
    def baseline(self) -> Baseline | None:
        """What guessing the commonest label of the training examples scores."""
        train, dev = (split.source.examples for split in (self.data.train, self.data.dev))
        return Baseline.of(self.settings.task, train, dev, self.data.labels)

    @property
    def majority(self) -> dict[str, float]:
        """The scores of the baseline, by the names of the model's."""
        return {} if self.baseline is None else self.baseline.scores

    def training_plan(self) -> TrainingPlan:
        """Give what is learned, and when the run ends."""
        return TrainingPlan(
            self.order,
            self.losses,
            self.steps,
            self.settings.warmup_of(self.steps),
            self.order.steps_per_epoch,
            self.settings.evaluation.patience,
        )

    def lines(self) -> list[str]:
        """Say what is frozen, and how long the run is."""
        settings, found = self.settings, []
        size = sum(parameter.numel() for parameter in self.state.bare_model.parameters())
        trained = sum(parameter.numel() for parameter in self.state.names)
        if trained < size:
            found.append(f"frozen: {settings.freeze}; {trained / 1e6:.1f} M parameters are trained")
        rate = f"{settings.optimizer.peak:g} after {settings.warmup_of(self.steps):g} steps"
        published, width = settings.task.recipe.peak_learning_rate, self.state.bare_model.config.hidden_size
        if settings.optimizer.peak == settings.rate_for(width) != published:
            rate += f" (the published {published:g} suits a hidden size of {BASE_HIDDEN_SIZE}; here it is {width})"
        return [
            *found,
            f"{self.order.steps_per_epoch} steps an epoch, {settings.num_epochs:g} epochs; {settings.batch.sequences} "
            f"examples a step; learning rate {rate}",
        ]

    def planned(self) -> MicroBatch:
        """Describe a micro-batch, to know what memory it needs: of tokens in examples as long as the longest one."""
        batches = self.order.batches

        def forward(num_examples: int) -> int:
            longest = np.repeat(np.argmax(batches.lengths), num_examples)
            self.losses(self.state.bare_model, batches.take(longest))
            return int(batches.lengths[longest].sum())

        return plan(
            self.settings,
            self.state,
            forward,
            self.order.largest_part(LOOKED_AT),
            int(batches.lengths.max()),
            by_sequences=self.settings.batch.micro_sequences != "auto",
        )

    def measure(self, done: Trained) -> None:
        """Measure on the dev split when it is due; the weights of the best score are kept."""
        if not done.evaluation_is_due:
            return
        metrics, _, loss = self._evaluate()
        done.must_save = self.state.saves.offer_best(done.step, metrics[self.settings.task.best_metric])
        done.metrics = metrics | {"loss": loss}
        standing = self.state.saves.standing
        standing.num_worse = 0 if done.must_save else standing.num_worse + 1

    def show(self, event: Recorded, progress: Progress) -> None:
        """Print the scores beside those of guessing, and draw the report."""
        if event.metrics:
            progress.line(f"  dev: {console.scores_line(event.metrics, self.majority)}")
        write_report(self.state.directory, {}, TASK_CHARTS)

    def finish(self) -> None:
        """Measure the best weights, and write the model, its predictions and metrics, and the report."""
        best_step = self.state.take_best()
        metrics, predictions, _ = self._evaluate()
        if not self.state.accelerator.is_main_process:
            return
        task, shape, examples = self.settings.task, self.predictor.shape, self.data.dev.source.examples
        found = shape.review(task, examples, predictions, self.data.labels)
        best_epoch = round(best_step / self.order.steps_per_epoch, 4)
        result: dict[str, Any] = {**metrics, "best_step": best_step, "best_epoch": best_epoch}
        result["num_examples"] = len(examples)
        guessed = {"majority_baseline": self.majority or None}
        facts, warnings = finetuning_facts(to_mapping(self.settings), result | guessed, metrics), []
        if shape.is_degenerate(task, examples, predictions):
            result["is_degenerate"] = True
            warnings = ["the model says the same of every example; train longer, or with another seed or learning rate"]
        if self.baseline is not None:
            error, score = self.baseline.standard_error(predictions), metrics[task.best_metric]
            warnings += self.baseline.warnings(predictions, score, error)
            result |= {"majority_baseline": self.majority, "standard_error": error}
        result["warnings"] = warnings
        signed = signatures(task.metrics)
        result |= {"signatures": signed} if signed else {}
        say(*(f"{name}: {text}" for name, text in signed.items()))
        say(*(f"warning: {warning}" for warning in warnings))
        line = f"dev: {console.scores_line(metrics, self.majority)} (step {best_step}, the best by {task.best_metric})"
        publish(
            self.state,
            self.steps,
            facts,
            {**result, **measured_beside(found)},
            files=shape.files(examples, predictions),
            line=line,
            review=report_of(self.settings, self.state, self.data, result, found | {"scores": metrics}),
        )

    def _evaluate(self) -> tuple[dict[str, float], list[Any], float]:
        """Give the scores on the dev split, the predictions, and the mean loss, in which all classes weigh alike."""
        losses: list[LossTerm] = []
        examples, accelerator = self.data.dev.source.examples, self.state.accelerator
        predictions = answer(accelerator, self.predictor, examples, self.data.dev_features, losses)
        scores = self.predictor.shape.score(self.settings.task, examples, predictions, self.data.labels)
        loss = mean_loss(accelerator, losses)
        if self.settings.task.kind == "generation":
            scores["perplexity"] = perplexity(loss)
        return scores, predictions, loss
