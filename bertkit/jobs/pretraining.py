"""Pretraining: the job. Its phases, masks and labels are those of the dataset's examples."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from torch import nn

from bertkit.base.typed_settings import to_mapping
from bertkit.data.batches.sampling import DatasetExamples, ExampleSource
from bertkit.data.corpus.prepared import PreparedDataset
from bertkit.display import console
from bertkit.display.report import CHARTS
from bertkit.inference.forward import with_perplexity
from bertkit.inference.held_out_losses import HeldOut, held_out_of
from bertkit.inference.samples import held_out_samples
from bertkit.interop.exports.card import pretraining_facts
from bertkit.jobs.phases import LengthPhases, Phase, choose_micro_sequences, lengths_of, make_phases
from bertkit.jobs.run_length import RunLength, branch_step, largest_batches
from bertkit.objectives.objective import Objective
from bertkit.run.choices import Choices, make_choices
from bertkit.run.job import Due, Evaluation, Job
from bertkit.run.memory_plan import LargestBatch
from bertkit.run.publishing import publish
from bertkit.run.resume_rules import PRETRAIN
from bertkit.run.start import Start
from bertkit.run.state import TrainingState
from bertkit.settings.pretrain import PretrainSettings
from bertkit.train.accelerator import Accelerator, ranks_in
from bertkit.train.checkpoint_writer import CheckpointWriter
from bertkit.train.micro_batches import micro_batch_ranges

POST_NORM_RATE = 2e-4  # at which small models with BERT's norm leave the loss of counting; at 1e-3 BERT-mini stays, without scale_outputs


class PretrainingJob(Job[PretrainSettings]):
    """Pretraining of a model on the text of a prepared dataset."""

    label, charts, rules = "pretraining", CHARTS, PRETRAIN

    def __init__(
        self,
        settings: PretrainSettings,
        start: Start,
        objective: Objective,
        dataset: PreparedDataset,
        examples: DatasetExamples,
    ) -> None:
        super().__init__(settings, start, objective)
        self.dataset, self.examples = dataset, examples
        self.length: RunLength | None = None  # why the run has so many steps, and how long they take

    @property
    def branch_step(self) -> int | None:
        """The last step that a longer run shares with this one, if the schedule's decay has a beginning of its own."""
        return branch_step(self.settings, self.steps)

    def resume_after(self, saved: Mapping[str, object]) -> None:
        """Resume at the last step that this run shares with the one in its directory, if that was to be shorter."""
        before = saved.get("steps")
        if isinstance(before, int) and before < self.steps:
            self.most_steps = branch_step(self.settings, before)

    @property
    def content(self) -> dict[str, object]:
        """The hashes of data and starting weights."""
        return {"data_fingerprint": self.dataset.fingerprint, "starting_weights": self.start.weights_sha256}

    @property
    def facts(self) -> dict[str, Any]:
        """The text with its tokenizer, and the starting weights."""
        return {
            "data_fingerprint": self.dataset.fingerprint,
            "corpus": self.dataset.manifest["corpus"],
            "tokenizer_sha256": self.dataset.tokenizer.vocabulary_sha256,
            "init_from": self.start.init_from,
        }

    def choose(self) -> Choices:
        """Choose what is auto, such as the size of a micro-batch."""
        settings, accelerator = self.settings, self.accelerator
        cut = choose_micro_sequences(settings, accelerator.device.type, accelerator.num_processes)
        fewest = min(len(micro_batch_ranges(settings.batch.sequences, most)) for most in cut)
        return make_choices(settings, accelerator, cut, fewest, lengths=lengths_of(settings))

    @functools.cached_property
    def order(self) -> LengthPhases:
        """The phases, which differ in sequence length."""
        cache = None if self.directory is None else self.directory / "cache"
        return make_phases(self.settings, self.steps, self.examples, cache, self.choices.micro_sequences)

    def work(self, steps: int) -> int:
        """Return the tokens of the first steps, since those of the final phase are longer."""
        return self.order.most_tokens(steps)

    def lines(self, state: TrainingState) -> list[str]:
        """Describe the phase and the length of the run, and what is frozen."""
        lines = self.order.lines(self.examples, self.steps, state.first_step)
        lines += [] if self.length is None else self.length.lines(self.order, state.first_step)
        if frozen := self.settings.frozen_line(state.num_trained):
            lines.append(frozen)
        if self.tokenizer.rules == "google":
            lines.append("tokenized by Google's rules; the tokenizer of the exported model follows Hugging Face's")
        return lines

    def largest_batches(self) -> list[LargestBatch]:
        """Return a micro-batch of each phase."""
        return largest_batches(self.settings, self.model, self.order, self.objective)

    def measure(self, accelerator: Accelerator, model: nn.Module) -> dict[str, float]:
        """Return the losses and accuracies on held-out text, for masked or next tokens those of counting too; empty without held-out text."""
        if "held_out" not in self.examples.splits:
            return {}
        return self._on_held_out(self.examples.source("held_out", seed=0)).metrics_of(ranks_in(accelerator), model)

    def _on_held_out(self, examples: ExampleSource) -> HeldOut:
        settings = self.settings
        return held_out_of(
            self.objective, self.dataset, examples, settings.evaluation.max_sequences, settings.precision
        )

    @functools.cached_property
    def held_out(self) -> dict[int, HeldOut]:
        """The held-out text of each phase that has any, by the first step."""
        parts = [(phase.first_step, phase.held_out) for phase in self.order.all]
        return {first: self._on_held_out(held_out) for first, held_out in parts if held_out is not None}

    def _measure_phase(self, phase: Phase, state: TrainingState) -> dict[str, float]:
        text = self.held_out.get(phase.first_step)
        return {} if text is None else text.metrics_of(state.ranks, state.model)

    def after(self, step: int, due: Due, state: TrainingState) -> Evaluation:
        """Measure the losses on held-out text if it is due; the checkpoint with the lowest sum of losses is the best one."""
        phase, lines = self.order.at(step - 1), list[str]()
        metrics = self._measure_phase(phase, state) if due.evaluation else {}
        if console.has_controls(metrics) and step < self.steps:  # the result is printed at the end
            lines.append(f"  health: {console.health_line(metrics, self.baselines(step - 1))}")
            lines += self._ways_off_the_plateau(metrics)
        if step == phase.last_step < self.steps:
            lines.append(self.order.at(step).describe(self.steps))
        if due.save:
            self._offer_best(step, phase, metrics, state.writer)
        return Evaluation(metrics, lines=tuple(lines))

    def _ways_off_the_plateau(self, metrics: dict[str, float]) -> list[str]:
        """Say what helps small models that are not better than counting, where they can stay for thousands of steps."""
        if metrics[f"{console.objective_of(metrics)}_gain_on_counting"] > 0 or self.settings.model_dir is not None:
            return []
        config, optimizer = self.model.config, self.settings.optimizer
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

    def _offer_best(self, step: int, phase: Phase, metrics: dict[str, float], writer: CheckpointWriter) -> None:
        history, keeps_best = writer.history, self.settings.checkpoint.keep_best
        if history.best is not None and (history.best.step <= phase.first_step or not keeps_best):
            history.best = None  # the best one of an earlier phase was measured on shorter sequences
        losses = [value for name, value in metrics.items() if name.endswith("_loss")]
        if losses and keeps_best:
            writer.offer_best(step, -sum(losses))

    def baselines(self, step: int) -> dict[str, float]:
        """Return the accuracy of the more frequent next sentence label, and what chance adds to it (5 %)."""
        held_out, most = self.order.at(step).held_out, self.settings.evaluation.max_sequences
        if held_out is None or "next_sentence" not in self.model.heads:
            return {}
        share = held_out.mean_next_sentence_label(most)
        guessing, num_pairs = max(share, 1 - share), min(most, held_out.epoch_length)
        return {"guessing": guessing, "chance": guessing + 1.645 * math.sqrt(guessing * (1 - guessing) / num_pairs)}

    def publish(self, state: TrainingState) -> None:
        """Measure the last phase, and write the model, its metrics and the report."""
        last = self.order.all[-1]
        metrics = self._measure_phase(last, state)
        if not state.accelerator.is_main_process:
            return
        samples, is_of_tokens = None, console.has_controls(metrics)
        if last.held_out is not None and is_of_tokens:
            samples = held_out_samples(self.model, self.tokenizer, last.held_out, self.settings.precision)
        result = with_perplexity(metrics) | {"steps": self.steps}
        line = console.losses_line(metrics)
        if is_of_tokens:
            line = console.health_line(metrics, self.baselines(self.steps))
        text = self.dataset.manifest["corpus"]["description"]
        facts = pretraining_facts(to_mapping(self.settings), text, result, self.settings.model_dir)
        publish(self, state, facts, result, line=line, samples=samples)
