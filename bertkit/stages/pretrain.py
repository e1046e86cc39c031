"""Stage: prepared dataset -> checkpoints, and at the end a model that `transformers` loads.

1. Check that data, model and settings belong together; nothing is written before.
2. Open the run directory: a new one, or the same run's, to resume from its newest valid checkpoint.
3. Train; log, evaluate and save on the way.
4. Write the final model, its metrics and the report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError, NumericsError
from bertkit.base.files import sha256_file
from bertkit.base.typed_settings import to_mapping
from bertkit.data.batches.instances import has_instances
from bertkit.data.corpus import prepared
from bertkit.data.corpus.prepared import PreparedDataset
from bertkit.data.data_config import InstancesConfig
from bertkit.interop.exports.card import pretraining_facts
from bertkit.kernels import fast
from bertkit.launch.world import world_from_environment
from bertkit.predict.measure import measure_split
from bertkit.run.compatibility import settings_of_instances
from bertkit.run.directory import identity_there
from bertkit.run.length_phases import LengthPhases, Phase, make_phases, micro_sequences_of, segments_of
from bertkit.run.memory_plan import MicroBatch
from bertkit.run.objective import pretraining_losses
from bertkit.run.publishing import opened, plan, publish, reported, say_if_done, say_what_happens
from bertkit.run.reproducibility import compiles
from bertkit.run.rules import PRETRAIN, identity_of
from bertkit.run.run_length import random_batch, settle
from bertkit.run.start import Start, build_model, known_start, starting_moments
from bertkit.run.state import Choices, TrainingState, depends_on
from bertkit.run.trainer import Recorded, Trained, TrainingPlan, fit
from bertkit.settings.pretrain import PretrainSettings
from bertkit.train.micro_batches import check_num_processes, micro_batch_ranges, num_parts_for
from bertkit.train.processes import Accelerator, make_accelerator
from bertkit.view import console
from bertkit.view.progress import Progress
from bertkit.view.report import CHARTS, write_report

EVALUATION_SEQUENCES = 32


def run(settings: PretrainSettings) -> None:
    """Pretrain, resume, or say that it is done.

    Raises:
        InputError: settings, data or starting weights do not fit together, or the directory holds another run.
        LockedError: the run is live elsewhere.
        StorageError: a disk is full or fails, or every checkpoint is damaged.
        NumericsError: the gradient stopped being finite.
        StoppedError: a signal asked the run to stop; its checkpoint is saved.
    """
    checked = _check(settings)
    if checked is None:
        return
    settings, dataset, identity = checked
    model, init_from = build_model(settings, dataset)
    start = Start(model, dataset.tokenizer, starting_moments(settings, model))
    accelerator = make_accelerator(settings.device, world_from_environment().size, settings.launch.hang_timeout_seconds)
    choices = _choose(settings, accelerator)
    settings, pace = settle(settings, dataset, model, accelerator, choices)
    identity["steps"] = settings.num_steps
    identity["starting_weights"] = None if init_from is None else init_from["sha256"]
    facts = {
        "data_fingerprint": dataset.fingerprint,
        "corpus": dataset.manifest["corpus"],
        "tokenizer_sha256": sha256_file(dataset.directory / "tokenizer" / "vocab.txt"),
        "init_from": init_from,
    }
    with opened(accelerator, settings, identity, facts, PRETRAIN) as record_changes:
        state = TrainingState(accelerator, settings, start, choices)
        steps = settings.num_steps
        if state.first_step > steps:
            raise InputError(f"steps={steps}: the run in {state.directory} has done {state.first_step}; ask for more")
        assert isinstance(state.choices.cut, tuple), "of pretraining"
        phases = make_phases(settings, dataset, state.directory / "cache", state.choices.cut)
        for phase in phases.all:  # those of a run that is resumed, with perhaps other processes than it began with
            check_num_processes(len(phase.micro_batches), state.choices.num_parts, accelerator.num_processes)
        record_changes(state.first_step)
        pretraining = _Pretraining(settings, dataset, state, phases)
        lines = [*pretraining.lines(), *pace.lines(settings, phases, state.first_step)]
        say_what_happens(settings, state, steps, lines, pretraining.planned())
        training_plan = TrainingPlan(phases, pretraining.losses, steps, settings.schedule.warmup_of(steps))
        silent = not accelerator.is_main_process
        with (
            reported(state, pretraining.baselines(phases.at(state.first_step)), CHARTS),
            Progress("pretraining", steps, done=state.first_step, silent=silent) as progress,
            contextlib.closing(fit(settings, state, training_plan, progress)) as events,
        ):
            for event in events:
                if isinstance(event, Trained):
                    pretraining.measure(event)
                elif not silent:
                    pretraining.show(event, progress)
        pretraining.finish()


def _check(settings: PretrainSettings) -> tuple[PretrainSettings, PreparedDataset, dict[str, Any]] | None:
    """Open the data; give the settings with those of stored instances, and what identifies the run. None: it is done."""
    directory = Path(settings.output_dir)
    if settings.steps == "auto":  # a run that has begun keeps what it chose
        steps = identity_there(directory).get("steps")
        settings = dataclasses.replace(settings, steps=steps if isinstance(steps, int) else "auto")
    identity = identity_of(to_mapping(settings), PRETRAIN)
    if isinstance(settings.segments, InstancesConfig):  # the data's fingerprint says how they were cut and masked
        identity |= {"segments": {"kind": "google"}, "masking": None}
    if not Path(settings.data_dir).exists() and say_if_done(directory, identity, PRETRAIN):
        return None  # a finished run needs its data no more
    dataset = prepared.open_prepared(Path(settings.data_dir))
    if isinstance(settings.segments, InstancesConfig):
        segments, masking = settings_of_instances(settings, dataset)
        settings = dataclasses.replace(settings, segments=segments, masking=masking)
    elif has_instances(dataset):
        raise InputError(
            f"data_dir={dataset.directory} holds fixed instances, segments={settings.segments.kind} is to cut text; add "
            "segments=google, or prepare the text without it"
        )
    identity["data_fingerprint"] = dataset.fingerprint
    if say_if_done(directory, identity | known_start(settings), PRETRAIN):
        return None
    prepared.check_usable(dataset)
    return settings, dataset, identity


def _choose(settings: PretrainSettings, accelerator: Accelerator) -> Choices:
    """Choose how a batch is cut, as it is set or to suit the device, and the order in which its parts are added."""
    size = accelerator.num_processes
    micro_sequences = micro_sequences_of(settings, accelerator.device.type, size)
    fewest = min(len(micro_batch_ranges(settings.batch.sequences, most)) for most in micro_sequences)
    num_parts = num_parts_for(fewest) if settings.reproducibility == "strict" else None
    check_num_processes(fewest, num_parts, size)  # before anything is written
    lengths = [segments.max_seq_length for segments in segments_of(settings)]
    return Choices(
        cut=tuple(micro_sequences),
        num_parts=num_parts,
        kernels=fast.choose(settings.kernels).names,
        is_compiled=compiles(settings.compile, accelerator.device.type),
        settings=depends_on(settings) | {"lengths": lengths},
    )


class _Pretraining:
    """What pretraining says, measures and leaves."""

    def __init__(
        self, settings: PretrainSettings, dataset: PreparedDataset, state: TrainingState, phases: LengthPhases
    ) -> None:
        self.settings, self.dataset, self.state, self.phases = settings, dataset, state, phases
        self.losses = functools.partial(pretraining_losses, precision=settings.precision)

    def lines(self) -> list[str]:
        """Say how often the text is seen, and what is not done."""
        found = [self.phases.at(self.state.first_step).describe(self.settings.num_steps)]
        if self.phases.all[0].held_out is None:
            fixed = isinstance(self.settings.segments, InstancesConfig)
            hint = (
                "fixed instances hold all of them"
                if fixed
                else "prepare more documents, or with a larger held_out_prob"
            )
            found.append(f"warning: no held-out documents, so no evaluation; {hint}")
        if self.dataset.tokenizer.rules == "google":
            found.append("tokenized by Google's rules; the tokenizer of the exported model follows Hugging Face's")
        return found

    def planned(self) -> list[MicroBatch]:
        """Describe a micro-batch of each phase, to know what memory it needs."""
        model, by_sequences = self.state.bare_model, self.settings.batch.micro_tokens == "auto"

        def forward(length: int, num_sequences: int) -> int:
            self.losses(model, random_batch(model, num_sequences, length))
            return num_sequences * length

        return [
            plan(
                self.settings,
                self.state,
                functools.partial(forward, phase.max_seq_length),
                phase.micro_batches[0][1] * phase.max_seq_length,
                phase.max_seq_length,
                by_sequences=by_sequences,
            )
            for phase in self.phases.all
        ]

    def measure(self, done: Trained) -> None:
        """Measure the losses over held-out text, and see whether a checkpoint is the best one by them."""
        phase, standing = self.phases.at(done.step - 1), self.state.saves.standing
        if done.evaluation_is_due:
            done.metrics = self._evaluate(phase)
        if not done.save_is_due:
            return  # checkpoints come when they are due, whatever the losses
        keeps_best, best = self.settings.checkpoint.keep_best, standing.best
        if best is not None and (best.step <= phase.first_step or not keeps_best):
            standing.best = None  # an earlier phase's was measured on shorter sequences
        losses = [value for name, value in done.metrics.items() if name.endswith("_loss")]
        if losses and keeps_best:
            self.state.saves.offer_best(done.step, -sum(losses))

    def show(self, event: Recorded, progress: Progress) -> None:
        """Print what the losses say of the run's health, draw its report, and announce the next phase."""
        phase = self.phases.at(event.step - 1)
        if event.metrics or event.is_saved:
            baselines = self.baselines(phase)
            if "mlm_loss" in event.metrics:
                progress.line(f"  health: {console.health_line(event.metrics, baselines)}")
            write_report(self.state.directory, baselines)
        if event.step == phase.last_step < self.settings.num_steps:
            progress.line(self.phases.at(event.step).describe(self.settings.num_steps))

    def finish(self) -> None:
        """Measure, and write the model, its metrics and the report."""
        last = self.phases.all[-1]
        metrics = self._evaluate(last)
        if not self.state.accelerator.is_main_process:
            return
        baselines, settings = self.baselines(last), self.settings
        result = {**metrics, "unigram_entropy": baselines["unigram entropy"], "steps": settings.num_steps}
        text = self.dataset.manifest["corpus"]["description"]
        facts = pretraining_facts(to_mapping(settings), text, result, settings.model_dir)
        line = console.health_line(metrics, baselines) if "mlm_loss" in metrics else None
        publish(self.state, settings.num_steps, facts, result, baselines=baselines, line=line)

    def _evaluate(self, phase: Phase) -> dict[str, float]:
        if phase.held_out is None:
            return {}
        limit, state = self.settings.evaluation.max_sequences, self.state
        results = measure_split(
            state.accelerator, state.model, phase.held_out, limit, EVALUATION_SEQUENCES, self.settings.precision
        )
        for name, (value, _) in results.items():
            if not math.isfinite(value):
                raise NumericsError(
                    f"held-out {name} is {value}: the weights are too large; lower optimizer.peak_learning_rate="
                )
        return {name: value for name, (value, _) in results.items()}

    def baselines(self, phase: Phase) -> dict[str, float]:
        """Give what a model reaches that only counts: words, and which label of next sentence prediction is commoner."""
        baselines = {"unigram entropy": self.dataset.manifest["statistics"]["unigram_entropy"]}
        if phase.held_out is not None and "next_sentence" in self.state.bare_model.heads:
            share = phase.held_out.random_next_share(self.settings.evaluation.max_sequences)
            baselines["guessing"] = max(share, 1 - share)
        return baselines
