"""Stage: fine-tune a model on a task, and score it on the dev split.

1. Plan the run: read the files, make the features and load the model; errors up to here leave no files.
2. Open the run directory: a new one, or one with the same run, which resumes from its newest valid checkpoint.
3. Train; at the end of every epoch, evaluate, and keep the weights with the best score.
4. With `calibrate`, fit a temperature on the dev split, and divide the weights of the head by it.
5. Write the best model, its metrics and predictions, and the report.
"""

import functools
from dataclasses import dataclass

from bertkit.display import console
from bertkit.display.report import TASK_CHARTS
from bertkit.inference.forward import SplitScores, score_split
from bertkit.inference.frozen import frozen_vectors
from bertkit.inference.task_model import Predictor
from bertkit.model.heads import LinearHead
from bertkit.run.opening import announce, open_run
from bertkit.run.plans.finetuning import FinetuningPlan, plan_finetuning
from bertkit.run.publishing import Best, publish_task
from bertkit.run.state import TrainingState
from bertkit.run.task_data import largest_batch, plan_lines
from bertkit.run.trainer import Due, Evaluation, TrainingPlan, training
from bertkit.settings.finetune import FinetuneSettings
from bertkit.tasks.reading.training_data import TrainingData
from bertkit.tasks.scoring.baseline import Baseline
from bertkit.tasks.scoring.calibration import Calibration


def run(settings: FinetuneSettings, read: TrainingData | None = None) -> None:
    """Fine-tune or resume a run that is not finished; the errors are those of `training` and `open_run`, and for bad input.

    `read` has the examples, if a check has read them already.
    """
    plan = plan_finetuning(settings, read)
    with open_run(plan) as record_changes:
        state = TrainingState(plan.accelerator, plan.settings, plan.start, plan.choices)
        record_changes(state.first_step)
        plan = plan.resumed_with(state.choices)
        finetuning = _Finetuning(plan, state)
        training_plan = finetuning.training_plan()
        largest = largest_batch(plan.settings, state.bare_model, plan.order, plan.objective)
        announce(plan, state, plan_lines(plan.settings, state.bare_model, plan.order, plan.steps), [largest])
        with training(plan.settings, state, training_plan) as trainer:
            for report in trainer.reports:
                trainer.finish(report, finetuning.after(report.step, trainer.due(report)))
        finetuning.publish()


@dataclass(frozen=True)
class _Finetuning:
    """The evaluations and the result of a fine-tuning run."""

    plan: FinetuningPlan
    state: TrainingState

    @property
    def settings(self) -> FinetuneSettings:
        """The settings of the plan."""
        return self.plan.settings

    @functools.cached_property
    def predictor(self) -> Predictor:
        """A predictor with the model in training."""
        state, plan = self.state, self.plan
        return Predictor(state.model, state.tokenizer, plan.data.task, self.settings.precision, plan.evaluation_tokens)

    @functools.cached_property
    def baseline(self) -> Baseline:
        """The scores of the baselines on the dev split."""
        data, rows = self.plan.data, self.plan.data.train.source.examples
        embed = frozen_vectors(self.settings, len(rows))
        return Baseline.of(data.task, rows, data.dev.source.examples, embed)

    def training_plan(self) -> TrainingPlan:
        """Return the plan for the training loop."""
        settings = self.settings
        return TrainingPlan(
            label="fine-tuning",
            order=self.plan.order,
            objective=self.plan.objective,
            steps=self.plan.steps,
            warmup_steps=settings.warmup_of(self.plan.steps),
            charts=TASK_CHARTS,
            baselines=lambda step: {},
            steps_per_epoch=self.plan.order.steps_per_epoch,
            patience=settings.evaluation.patience,
        )

    def after(self, step: int, due: Due) -> Evaluation:
        """Evaluate on the dev split if it is due, and keep the weights with the best score."""
        if not due.evaluation or (self.settings.dev_share == 0 and step < self.plan.steps):
            return Evaluation()
        dev, writer = self._evaluate(), self.state.writer
        metrics = dev.scores | {"loss": dev.loss}
        score, before = dev.scores[self.settings.task.best_metric], writer.history.best
        is_best = writer.offer_best(step, score, dev.loss)
        is_better = is_best and (before is None or score > before.score)
        writer.history.num_worse = 0 if is_better else writer.history.num_worse + 1
        lines = []
        if self.state.accelerator.is_main_process:
            lines.append(f"  dev: {console.scores_line(metrics, self.baseline.scores, self.settings.task.best_metric)}")
        return Evaluation(metrics, must_save=is_best, lines=tuple(lines))

    def publish(self) -> None:
        """Evaluate the best weights, and write the model, its predictions and metrics, and the report."""
        best_step = self.state.load_best()
        dev, fitted = self._evaluate(), None
        if self.settings.calibrate:
            task = self.plan.data.task
            head = self.state.bare_model.heads[task.head]
            assert isinstance(head, LinearHead), "checked by the settings"
            fitted = Calibration.of(task.decisions(self.plan.data.dev.source.examples, dev.predictions))
            head.cool(fitted.temperature or 1.0)
            dev = self._evaluate()
        if self.state.accelerator.is_main_process:
            best = Best(best_step, dev.scores, dev.predictions, fitted)
            publish_task(self.settings, self.state, self.training_plan(), self.plan.data, best, self.baseline)

    def _evaluate(self) -> SplitScores:
        data = self.plan.data
        return score_split(
            self.state.accelerator, self.predictor, data.task, data.dev.source.examples, data.dev_features
        )
