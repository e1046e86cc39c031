"""The phases of a pretraining run: the sequence length, the sampler and the micro-batches of every step.

A run has one phase, or two, the second with longer sequences for the last steps. Both share the step counter, the
schedule and the optimizer; each counts its own epochs, from its first step.
"""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

from bertkit.data.batches.instances import open_instances
from bertkit.data.batches.sampling import EpochCache, ExampleSource, InstanceSampler, Sampler
from bertkit.data.corpus.prepared import PreparedDataset
from bertkit.data.data_config import InstancesConfig, SegmentsConfig
from bertkit.settings.pretrain import PretrainSettings
from bertkit.train.micro_batches import (
    AUTO_MICRO_TOKENS,
    MIN_PARTS,
    NumberedBatches,
    local_micro_batches,
    micro_batch_ranges,
)
from bertkit.view import console


@dataclass(frozen=True)
class Phase:
    """Steps with sequences of one length."""

    first_step: int  # steps done before the phase
    last_step: int  # steps done at its end
    max_seq_length: int  # of its sequences, in tokens
    sampler: ExampleSource  # over the text to train on
    held_out: ExampleSource | None  # over the text to evaluate on; None where there is none
    micro_batches: list[tuple[int, int]]  # of a global batch, (first, last) sequence of each

    @property
    def batch_size(self) -> int:
        """Sequences of a step."""
        return self.micro_batches[-1][1]

    def describe(self, steps: int) -> str:
        """Write the epochs, the batch, and the steps and length of a phase that has not all `steps`."""
        own = range(self.first_step, self.last_step)
        length = self.max_seq_length if len(own) < steps else None
        return console.phase_line(own, length, self.batch_size, self.sampler.epoch_length, len(self.micro_batches))


class LengthPhases:
    """The phases of a run, in order: the examples of every step, counted from 0."""

    def __init__(self, phases: list[Phase]) -> None:
        self.all = phases

    def at(self, step: int) -> Phase:
        """Give the phase of a step; beyond the end it is the last one."""
        return next((phase for phase in self.all if step < phase.last_step), self.all[-1])

    def lines(self, settings: PretrainSettings, step: int) -> list[str]:
        """Describe the phase of a step, and warn of missing held-out text."""
        lines = [self.at(step).describe(settings.num_steps)]
        if self.all[0].held_out is None:
            hint = "prepare more documents, or with a larger held_out_prob"
            if isinstance(settings.segments, InstancesConfig):
                hint = "fixed instances hold all of them"
            lines.append(f"warning: no held-out documents, so no evaluation; {hint}")
        return lines

    def micro_batches(self, step: int, process: int, num_processes: int) -> NumberedBatches:
        """Give a process's micro-batches of a step."""
        phase = self.at(step)
        mine = local_micro_batches(len(phase.micro_batches), process, num_processes)
        ranges = [phase.micro_batches[number] for number in mine]
        return list(
            zip(mine, phase.sampler.micro_batches(step - phase.first_step, phase.batch_size, ranges), strict=True)
        )

    def names(self, step: int) -> list[tuple[int, int]]:
        """Name the examples of a step: the phase's epoch, and the number within it."""
        phase = self.at(step)
        return phase.sampler.examples(step - phase.first_step, phase.batch_size)


def segments_of(settings: PretrainSettings) -> list[SegmentsConfig | InstancesConfig]:
    """Give the segments of each phase: the same ones but for their length."""
    longest = settings.final_phase.max_seq_length
    final = [] if longest is None else [dataclasses.replace(settings.segments, max_seq_length=longest)]
    return [settings.segments, *final]


def choose_micro_sequences(settings: PretrainSettings, device: str, num_processes: int) -> tuple[int, ...]:
    """Choose the sequences of a micro-batch in each phase: a setting, or a number that suits the device.

    By default a global batch has two or more micro-batches of equal size, the same for one process and for two, and at
    least one for each process; with reproducibility=strict four or more, for any number of processes.
    """
    fewest = MIN_PARTS if settings.reproducibility == "strict" else max(2, num_processes)
    lengths = [segments.max_seq_length for segments in segments_of(settings)]
    return tuple(_micro_sequences(settings, length, device, fewest) for length in lengths)


def _micro_sequences(settings: PretrainSettings, longest: int, device: str, fewest: int) -> int:
    batch = settings.batch
    if batch.micro_sequences != "auto":
        return min(batch.micro_sequences, batch.sequences)
    if batch.micro_tokens != "auto":
        return min(max(1, batch.micro_tokens // longest), batch.sequences)
    most = max(1, min(AUTO_MICRO_TOKENS[device] // longest, batch.sequences // fewest))
    return math.ceil(batch.sequences / math.ceil(batch.sequences / most))


def make_phases(
    settings: PretrainSettings, dataset: PreparedDataset, cache_dir: Path, micro_sequences: tuple[int, ...]
) -> LengthPhases:
    """Lay out the phases of a run.

    `cache_dir` keeps the examples of each epoch, by length and seed; `micro_sequences` were chosen when the run began.
    """
    border = settings.final_phase.first_step(settings.num_steps)
    borders = sorted({0, border, settings.num_steps})
    phases = []
    for number, segments in enumerate(segments_of(settings)):
        sampler, held_out = _samplers(settings, segments, dataset, cache_dir)
        phases.append(
            Phase(
                first_step=borders[number],
                last_step=borders[number + 1],
                max_seq_length=segments.max_seq_length,
                sampler=sampler,
                held_out=held_out,
                micro_batches=micro_batch_ranges(settings.batch.sequences, micro_sequences[number]),
            )
        )
    return LengthPhases(phases)


def _samplers(
    settings: PretrainSettings, segments: SegmentsConfig | InstancesConfig, dataset: PreparedDataset, cache_dir: Path
) -> tuple[ExampleSource, ExampleSource | None]:
    """Give the samplers for training and for evaluation, None where nothing is held out."""
    if isinstance(segments, InstancesConfig):
        return InstanceSampler(open_instances(dataset), settings.seed), None
    train, held_out = dataset.splits["train"], dataset.splits["held_out"]
    cache = EpochCache(cache_dir, train, segments, settings.seed)
    sampler = Sampler(train, dataset.tokenizer.facts, segments, settings.masking, settings.seed, cache.open)
    if not held_out.num_documents:
        return sampler, None
    return sampler, Sampler(held_out, sampler.vocab, segments, settings.masking, seed=0)  # as evaluation always has it
