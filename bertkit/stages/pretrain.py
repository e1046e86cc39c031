"""Stage: pretrain BERT on a prepared dataset; the result is a model that `transformers` loads.

1. Check that data, model and settings fit together; errors up to here leave no files.
2. Open the run directory: a new one, or one with the same run, which resumes from its newest valid checkpoint.
3. Train; log, evaluate and save checkpoints.
4. Write the final model, its metrics and the report.
"""

import dataclasses
import functools
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertkit.base.batch import PretrainBatch
from bertkit.base.errors import InputError
from bertkit.base.files import sha256_file
from bertkit.base.typed_settings import to_mapping
from bertkit.data.batches.examples import open_examples
from bertkit.data.batches.sampling import DatasetExamples
from bertkit.data.corpus.prepared import PreparedDataset, check_usable, open_prepared
from bertkit.display import console
from bertkit.display.page import Table
from bertkit.display.report import CHARTS
from bertkit.inference.forward import measure_split, with_perplexity
from bertkit.inference.generating import forget_weights, write_texts
from bertkit.inference.task_model import task_of_continuing
from bertkit.interop.exports.card import pretraining_facts
from bertkit.launch.world import world_from_environment
from bertkit.run.directory import saved_identity
from bertkit.run.length_phases import LengthPhases, Phase, choose_micro_sequences, lengths_of, make_phases
from bertkit.run.memory_plan import LargestBatch
from bertkit.run.objective import best_tokens, pretraining_losses
from bertkit.run.opening import announce, is_done, open_run
from bertkit.run.publishing import publish
from bertkit.run.resume_rules import PRETRAIN, identity_of
from bertkit.run.run_length import choose_steps, random_batch
from bertkit.run.start import start_pretraining, with_objective
from bertkit.run.state import Choices, TrainingState, make_choices
from bertkit.run.trainer import Due, Evaluation, TrainingPlan, training
from bertkit.settings.pretrain import PretrainSettings
from bertkit.tasks.batching import FeatureBatches
from bertkit.tasks.task import Feature
from bertkit.train.loop import evaluation_mode
from bertkit.train.micro_batches import check_num_processes, micro_batch_ranges
from bertkit.train.processes import Accelerator, make_accelerator

NUM_SAMPLES = 4  # texts in the report
EVALUATION_SEQUENCES = 32  # sequences in a forward pass


def run(settings: PretrainSettings) -> None:
    """Pretrain, resume, or print that the run is done; the errors are those of `training` and `open_run`, and for bad input."""
    if settings.steps == "auto":  # a resumed run keeps its number of steps
        steps = saved_identity(Path(settings.output_dir)).get("steps")
        settings = dataclasses.replace(settings, steps=steps if isinstance(steps, int) else "auto")
    identity = identity_of(to_mapping(settings), PRETRAIN)
    if settings.segments.is_fixed:  # the data's fingerprint covers their segments and masks
        identity |= {"segments": {"kind": "google"}, "masking": None}
    if is_done(settings, identity, PRETRAIN, lambda: open_prepared(Path(settings.data_dir)).fingerprint):
        return
    settings = with_objective(settings)
    dataset = open_prepared(Path(settings.data_dir))
    settings, examples = _open_examples(settings, dataset)
    check_usable(dataset)
    start = start_pretraining(settings, dataset)
    accelerator = make_accelerator(settings.device, world_from_environment().size, settings.launch.hang_timeout_seconds)
    choices = _choose(settings, accelerator)
    settings, run_length = choose_steps(settings, examples, start.model, accelerator, choices)
    content = {"data_fingerprint": dataset.fingerprint, "starting_weights": start.weights_sha256}
    identity |= {"steps": settings.num_steps, **content}
    facts = {
        "data_fingerprint": dataset.fingerprint,
        "corpus": dataset.manifest["corpus"],
        "tokenizer_sha256": sha256_file(dataset.directory / "tokenizer" / "vocab.txt"),
        "init_from": start.init_from,
    }
    with open_run(accelerator, settings, identity, facts, PRETRAIN) as record_changes:
        state, steps = TrainingState(accelerator, settings, start, choices), settings.num_steps
        if state.first_step > steps:
            raise InputError(f"steps={steps}: the run in {state.directory} has done {state.first_step}; increase it")
        phases = make_phases(settings, examples, state.directory / "cache", state.choices.micro_sequences)
        for phase in phases.all:  # the run may have begun with another number of processes
            check_num_processes(len(phase.micro_batches), state.choices.num_parts, accelerator.num_processes)
        record_changes(state.first_step)
        pretraining = _Pretraining(settings, dataset, state, phases)
        lines = [
            *phases.lines(examples, settings.num_steps, state.first_step),
            *run_length.lines(settings, phases, state.first_step),
        ]
        if dataset.tokenizer.rules == "google":
            lines.append("tokenized by Google's rules; the tokenizer of the exported model follows Hugging Face's")
        announce(settings, state, steps, lines, pretraining.largest_batches())
        with training(settings, state, pretraining.plan()) as trainer:
            for report in trainer.reports:
                trainer.finish(report, pretraining.after(report.step, trainer.due(report)))
        pretraining.publish()


def _open_examples(settings: PretrainSettings, dataset: PreparedDataset) -> tuple[PretrainSettings, DatasetExamples]:
    """Open the examples of a dataset; fixed ones replace the settings of segments and masking."""
    examples = open_examples(
        dataset,
        settings.segments,
        settings.masking,
        settings.explicit_keys,
        predicts_next_token=settings.predicts_next_token,
    )
    masking = examples.masking or settings.masking
    return dataclasses.replace(settings, segments=examples.segments, masking=masking), examples


def _choose(settings: PretrainSettings, accelerator: Accelerator) -> Choices:
    """Resolve the settings that are auto, such as the size of a micro-batch, for this device."""
    cut = choose_micro_sequences(settings, accelerator.device.type, accelerator.num_processes)
    fewest = min(len(micro_batch_ranges(settings.batch.sequences, most)) for most in cut)
    return make_choices(settings, accelerator, cut, fewest, lengths=lengths_of(settings))


@dataclass(frozen=True)
class _Pretraining:
    """The plan, evaluations and result of a pretraining run."""

    settings: PretrainSettings
    dataset: PreparedDataset
    state: TrainingState
    phases: LengthPhases

    def plan(self) -> TrainingPlan:
        """Return the plan for the training loop."""
        steps = self.settings.num_steps
        return TrainingPlan(
            label="pretraining",
            order=self.phases,
            losses=functools.partial(pretraining_losses, precision=self.settings.precision),
            steps=steps,
            warmup_steps=self.settings.schedule.warmup_of(steps),
            charts=CHARTS,
            baselines=lambda step: self._baselines(self.phases.at(step)),
        )

    def largest_batches(self) -> list[LargestBatch]:
        """Return a micro-batch of each phase, to estimate its memory."""
        model, by_sequences = self.state.bare_model, self.settings.batch.micro_tokens == "auto"

        def forward(length: int, num_sequences: int) -> int:
            pretraining_losses(model, random_batch(model, num_sequences, length), self.settings.precision)
            return num_sequences * length

        batches = []
        for phase in self.phases.all:
            length, size = phase.max_seq_length, phase.micro_batches[0][1]
            batches.append(LargestBatch(functools.partial(forward, length), size * length, length, by_sequences))
        return batches

    def after(self, step: int, due: Due) -> Evaluation:
        """Measure the losses on held-out text if it is due; the checkpoint with the lowest sum of losses is the best one."""
        phase, settings, lines = self.phases.at(step - 1), self.settings, list[str]()
        metrics = self._evaluate(phase) if due.evaluation else {}
        if console.objective_of(metrics):
            lines.append(f"  health: {console.health_line(metrics, self._baselines(phase))}")
        if step == phase.last_step < settings.num_steps:
            lines.append(self.phases.at(step).describe(settings.num_steps))
        if due.save:
            self._offer_best(step, phase, metrics)
        return Evaluation(metrics, lines=tuple(lines))

    def _offer_best(self, step: int, phase: Phase, metrics: dict[str, float]) -> None:
        history, keeps_best = self.state.writer.history, self.settings.checkpoint.keep_best
        if history.best is not None and (history.best.step <= phase.first_step or not keeps_best):
            history.best = None  # the best one of an earlier phase was measured on shorter sequences
        losses = [value for name, value in metrics.items() if name.endswith("_loss")]
        if losses and keeps_best:
            self.state.writer.offer_best(step, -sum(losses))

    def publish(self) -> None:
        """Evaluate, and write the model, its metrics and the report."""
        last, settings = self.phases.all[-1], self.settings
        metrics = self._evaluate(last)
        if not self.state.accelerator.is_main_process:
            return
        baselines = self._baselines(last)
        entropy = baselines["unigram entropy"]
        result = with_perplexity(metrics) | {"unigram_entropy": entropy, "steps": settings.num_steps}
        text = self.dataset.manifest["corpus"]["description"]
        facts = pretraining_facts(to_mapping(settings), text, result, settings.model_dir)
        line = console.health_line(metrics, baselines) if metrics else None
        publish(self.state, self.plan(), facts, result, line=line, samples=self._samples(last))

    def _samples(self, phase: Phase) -> Table | None:
        """Fill in the masks of some held-out texts, or continue their first halves, as a table for the report."""
        if phase.held_out is None:
            return None
        model, tokenizer, name = self.state.bare_model, self.state.tokenizer, self.state.tokenizer.vocab
        batch = phase.held_out.in_order(0, min(NUM_SAMPLES, phase.held_out.epoch_length))
        if batch.objective == "lm":
            return self._continued(batch)
        batch.input_ids[batch.masked_positions] = tokenizer.facts.mask
        with evaluation_mode(model):
            best, shares = best_tokens(model, batch, 3, self.settings.precision)
        ends, filled = np.cumsum(batch.sequence_lengths), []
        for truth, *pair in zip(batch.masked_labels, best, shares, strict=True):
            found = ", ".join(f"“{name[token]}” {share:.0%}" for token, share in zip(*pair, strict=True))
            filled.append(f"“{name[truth]}”: {found}")
        texts = map(tokenizer.decode, np.split(batch.input_ids, ends[:-1]))
        parts = np.split(np.array(filled), np.searchsorted(batch.masked_positions, ends[:-1]))
        rows = [(text, "; ".join(part)) for text, part in zip(texts, parts, strict=True)]
        return Table("Held-out text", ("text", "truth: predictions for each [MASK]"), rows)

    def _continued(self, batch: PretrainBatch) -> Table:
        model, decode = self.state.bare_model, self.state.tokenizer.decode
        ids = np.split(batch.input_ids, np.cumsum(batch.sequence_lengths)[:-1])
        halves = [(text[: len(text) // 2], text[len(text) // 2 : -1]) for text in ids]
        search = task_of_continuing(model, {}).generation
        assert search is not None, "of a task that generates"
        features = [Feature(n, half.tolist(), [0] * len(half), None) for n, (half, _) in enumerate(halves)]
        with evaluation_mode(model):
            texts = FeatureBatches(features, "next_token").take(np.arange(len(features)))
            written = write_texts(model, texts, search, self.settings.precision)
        forget_weights(model)
        rows = [
            (decode(before[1:]), decode(after), decode(best[0][0][: len(after)]))
            for (before, after), best in zip(halves, written, strict=True)
        ]
        return Table("Held-out text", ("text", "what follows", "what the model writes"), rows)

    def _evaluate(self, phase: Phase) -> dict[str, float]:
        if phase.held_out is None:
            return {}
        limit, state, precision = self.settings.evaluation.max_sequences, self.state, self.settings.precision
        results = measure_split(state.accelerator, state.model, phase.held_out, limit, EVALUATION_SEQUENCES, precision)
        return {name: value for name, (value, _) in results.items()}

    def _baselines(self, phase: Phase) -> dict[str, float]:
        """Return the unigram entropy, the accuracy of the more frequent next sentence label, and what chance adds to it (5 %)."""
        baselines = {"unigram entropy": self.dataset.manifest["statistics"]["unigram_entropy"]}
        if phase.held_out is not None and "next_sentence" in self.state.bare_model.heads:
            share = phase.held_out.mean_next_sentence_label(self.settings.evaluation.max_sequences)
            num_pairs = min(self.settings.evaluation.max_sequences, phase.held_out.epoch_length)
            baselines["guessing"] = guessing = max(share, 1 - share)
            baselines["chance"] = guessing + 1.645 * math.sqrt(guessing * (1 - guessing) / num_pairs)
        return baselines
