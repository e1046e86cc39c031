"""Stage: pretrain BERT on a prepared dataset; the result is a model that `transformers` loads.

1. Plan the run: check that data, model and settings fit together; errors up to here leave no files.
2. Open the run directory: a new one, or one with the same run, which resumes from its newest valid checkpoint.
3. Train; log, evaluate and save checkpoints.
4. Write the final model, its metrics and the report.
"""

import functools
import math
from dataclasses import dataclass

from bertkit.base.errors import InputError
from bertkit.display import console
from bertkit.display.report import CHARTS
from bertkit.inference.forward import with_perplexity
from bertkit.inference.held_out import HeldOutText
from bertkit.inference.samples import held_out_samples
from bertkit.run.length_phases import LengthPhases, Phase, make_phases
from bertkit.run.opening import announce, open_run
from bertkit.run.plans.pretraining import PretrainingPlan, plan_pretraining
from bertkit.run.publishing import publish_pretraining
from bertkit.run.run_length import branch_step, largest_batches
from bertkit.run.state import TrainingState
from bertkit.run.trainer import Due, Evaluation, TrainingPlan, training
from bertkit.settings.pretrain import PretrainSettings

POST_NORM_RATE = 2e-4  # at which small models with BERT's norm leave the loss of counting; at 1e-3 BERT-mini stays, without scale_outputs


def run(settings: PretrainSettings) -> None:
    """Pretrain or resume a run that is not finished; the errors are those of `training` and `open_run`, and for bad input."""
    plan = plan_pretraining(settings)
    with open_run(plan) as record_changes:
        state = TrainingState(plan.accelerator, plan.settings, plan.start, plan.choices, plan.most_steps)
        if state.first_step > plan.steps:
            raise InputError(
                f"steps={plan.steps}: the run in {state.directory} has done {state.first_step}; increase it"
            )
        phases = make_phases(plan.settings, plan.examples, state.directory / "cache", state.choices.micro_sequences)
        phases.check_num_processes(state.choices.num_parts, plan.accelerator.num_processes)
        record_changes(state.first_step)
        pretraining = _Pretraining(plan, state, phases)
        lines = [
            *phases.lines(plan.examples, plan.steps, state.first_step),
            *plan.length.lines(phases, state.first_step),
            *filter(None, [plan.settings.frozen_line(sum(parameter.numel() for parameter in state.names))]),
        ]
        if plan.dataset.tokenizer.rules == "google":
            lines.append("tokenized by Google's rules; the tokenizer of the exported model follows Hugging Face's")
        announce(plan, state, lines, largest_batches(plan.settings, state.bare_model, phases))
        with training(plan.settings, state, pretraining.training_plan()) as trainer:
            for report in trainer.reports:
                trainer.finish(report, pretraining.after(report.step, trainer.due(report)))
        pretraining.publish()


@dataclass(frozen=True)
class _Pretraining:
    """The evaluations and the result of a pretraining run."""

    plan: PretrainingPlan
    state: TrainingState
    phases: LengthPhases

    @functools.cached_property
    def held_out(self) -> dict[int, HeldOutText]:
        """The held-out text of each phase that has any, by the first step."""
        dataset, most, precision = self.plan.dataset, self.settings.evaluation.max_sequences, self.settings.precision
        return {
            phase.first_step: HeldOutText(dataset, phase.held_out, most, precision=precision)
            for phase in self.phases.all
            if phase.held_out is not None
        }

    @property
    def settings(self) -> PretrainSettings:
        """The settings of the plan."""
        return self.plan.settings

    def training_plan(self) -> TrainingPlan:
        """Return the plan for the training loop."""
        return TrainingPlan(
            label="pretraining",
            order=self.phases,
            objective=self.plan.objective,
            steps=self.plan.steps,
            warmup_steps=self.settings.schedule.warmup_of(self.plan.steps),
            branch_step=branch_step(self.settings, self.plan.steps),
            charts=CHARTS,
            baselines=lambda step: self._baselines(self.phases.at(step)),
        )

    def after(self, step: int, due: Due) -> Evaluation:
        """Measure the losses on held-out text if it is due; the checkpoint with the lowest sum of losses is the best one."""
        phase, lines = self.phases.at(step - 1), list[str]()
        metrics = self._evaluate(phase) if due.evaluation else {}
        if console.objective_of(metrics) and step < self.plan.steps:  # the result is printed at the end
            lines.append(f"  health: {console.health_line(metrics, self._baselines(phase))}")
            lines += self._ways_off_the_plateau(metrics)
        if step == phase.last_step < self.plan.steps:
            lines.append(self.phases.at(step).describe(self.plan.steps))
        if due.save:
            self._offer_best(step, phase, metrics)
        return Evaluation(metrics, lines=tuple(lines))

    def _ways_off_the_plateau(self, metrics: dict[str, float]) -> list[str]:
        """Say what helps small models that are not better than counting, where they can stay for thousands of steps."""
        if metrics[f"{console.objective_of(metrics)}_gain_on_counting"] > 0 or self.settings.model_dir is not None:
            return []
        config, optimizer = self.state.bare_model.config, self.settings.optimizer
        is_uneven = config.norm.placement == "post" and not config.scale_outputs
        wide = config.hidden_size**-0.5
        advice = {  # and whether the run does otherwise (recipes/quickstart, recipes/speedrun)
            "model.scale_outputs=true": is_uneven,
            f"optimizer.peak_learning_rate={POST_NORM_RATE}": is_uneven and optimizer.peak > POST_NORM_RATE,
            "attention.positions=rotary with norm=pre, as in model=modern_mini": config.attention.positions
            == "learned",
            "masking.probability=0.3 without dropout (model.hidden_dropout_prob=0 model.attention_probs_dropout_prob=0)": (
                config.hidden_dropout_prob > 0
            ),
            f"model.initializer_range={wide:.2g}, which is 1 / sqrt(hidden_size)": config.initializer_range
            < wide / 1.5,
            "optimizer.bias_correction=true": not optimizer.bias_correction,
        }
        new = "; ".join(way for way, is_new in advice.items() if is_new)
        return [f"  small models can stay at this loss for thousands of steps; try {new}"] if new else []

    def _offer_best(self, step: int, phase: Phase, metrics: dict[str, float]) -> None:
        history, keeps_best = self.state.writer.history, self.settings.checkpoint.keep_best
        if history.best is not None and (history.best.step <= phase.first_step or not keeps_best):
            history.best = None  # the best one of an earlier phase was measured on shorter sequences
        losses = [metrics[name] for name in ("mlm_loss", "lm_loss", "nsp_loss") if name in metrics]
        if losses and keeps_best:
            self.state.writer.offer_best(step, -sum(losses))

    def publish(self) -> None:
        """Evaluate, and write the model, its metrics and the report."""
        last, state = self.phases.all[-1], self.state
        metrics = self._evaluate(last)
        if not state.accelerator.is_main_process:
            return
        baselines = self._baselines(last)
        result = with_perplexity(metrics) | {"steps": self.plan.steps}
        line = console.health_line(metrics, baselines) if metrics else None
        samples = None
        if last.held_out is not None:
            samples = held_out_samples(state.bare_model, state.tokenizer, last.held_out, self.settings.precision)
        text = self.plan.dataset.manifest["corpus"]["description"]
        publish_pretraining(self.settings, state, self.training_plan(), text, result, line, samples)

    def _evaluate(self, phase: Phase) -> dict[str, float]:
        if phase.first_step not in self.held_out:
            return {}
        return self.held_out[phase.first_step].measure(self.state.accelerator, self.state.model).metrics()

    def _baselines(self, phase: Phase) -> dict[str, float]:
        """Return the accuracy of the more frequent next sentence label, and what chance adds to it (5 %)."""
        if phase.held_out is None or "next_sentence" not in self.state.bare_model.heads:
            return {}
        share = phase.held_out.mean_next_sentence_label(self.settings.evaluation.max_sequences)
        num_pairs = min(self.settings.evaluation.max_sequences, phase.held_out.epoch_length)
        guessing = max(share, 1 - share)
        return {"guessing": guessing, "chance": guessing + 1.645 * math.sqrt(guessing * (1 - guessing) / num_pairs)}
