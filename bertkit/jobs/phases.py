"""The phases of pretraining, which differ in sequence length: the sampler and the micro-batches of every step.

A run has one phase, or two; the second one trains the last steps on longer sequences. Both phases share the step counter, the
schedule and the optimizer. Each phase counts its own epochs, from its first step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertkit.data.batches.sampling import DatasetExamples, ExampleSource
from bertkit.display import console
from bertkit.settings.pretrain import PretrainSettings
from bertkit.train.micro_batches import (
    AUTO_MICRO_TOKENS,
    MIN_PARTS,
    NumberedBatches,
    local_micro_batches,
    micro_batch_ranges,
)


@dataclass(frozen=True)
class Phase:
    """Consecutive steps with the same sequence length."""

    first_step: int  # the number of steps before the phase
    last_step: int  # the number of steps at the end of the phase
    max_seq_length: int  # in tokens
    sampler: ExampleSource  # samples from the training text
    held_out: ExampleSource | None  # samples from the held-out text; None if there is none
    micro_batches: list[tuple[int, int]]  # the range (start, end) of sequences of each micro-batch in a global batch

    @property
    def batch_size(self) -> int:
        """The number of sequences in a step."""
        return self.micro_batches[-1][1]

    def describe(self, steps: int) -> str:
        """Describe the epochs and the batch; if there are two phases, also the steps and the sequence length of this one."""
        own = range(self.first_step, self.last_step)
        length = self.max_seq_length if len(own) < steps else None
        return console.phase_line(own, length, self.batch_size, self.sampler.epoch_length, len(self.micro_batches))


class LengthPhases:
    """The phases of a run, in order; maps each step, counted from 0, to its examples."""

    def __init__(self, phases: list[Phase]) -> None:
        self.all = phases

    def at(self, step: int) -> Phase:
        """Return the phase of a step; after the end of the run, the last phase."""
        return next((phase for phase in self.all if step < phase.last_step), self.all[-1])

    @property
    def fewest_parts(self) -> int:
        """The smallest number of micro-batches in any step."""
        return min(len(phase.micro_batches) for phase in self.all)

    def most_tokens(self, steps: int) -> int:
        """Return the largest number of tokens that the first `steps` steps may have."""
        own = [max(0, min(steps, phase.last_step) - phase.first_step) for phase in self.all]
        return sum(done * phase.batch_size * phase.max_seq_length for done, phase in zip(own, self.all, strict=True))

    def lines(self, examples: DatasetExamples, steps: int, step: int) -> list[str]:
        """Describe the phase of a step, and warn if there is no held-out text."""
        lines = [self.at(step).describe(steps)]
        if self.all[0].held_out is None:
            lines.append(f"warning: no held-out documents, so no evaluation; {examples.why_none_held_out}")
        return lines

    def micro_batches(self, step: int, process: int, num_processes: int) -> NumberedBatches:
        """Return the micro-batches that a process takes in a step."""
        phase = self.at(step)
        mine = local_micro_batches(len(phase.micro_batches), process, num_processes)
        ranges = [phase.micro_batches[number] for number in mine]
        return list(
            zip(mine, phase.sampler.micro_batches(step - phase.first_step, phase.batch_size, ranges), strict=True)
        )

    def names(self, step: int) -> list[tuple[int, int]]:
        """Return an identifier for each example of a step: the epoch within the phase, and the number within the epoch."""
        phase = self.at(step)
        return phase.sampler.examples(step - phase.first_step, phase.batch_size)


def lengths_of(settings: PretrainSettings) -> list[int]:
    """Return the sequence length of each phase, in tokens."""
    longest = settings.final_phase.max_seq_length
    return [settings.segments.max_seq_length, *([] if longest is None else [longest])]


def choose_micro_sequences(settings: PretrainSettings, device: str, num_processes: int) -> tuple[int, ...]:
    """Choose the number of sequences in a micro-batch, for each phase: from the settings, or to suit the device.

    By default a global batch has at least two micro-batches of equal size, so that one and two processes use the same ones,
    and at least one for each process. With reproducibility=strict it has at least four.
    """
    min_micro_batches = MIN_PARTS if settings.reproducibility == "strict" else max(2, num_processes)
    return tuple(_micro_sequences(settings, length, device, min_micro_batches) for length in lengths_of(settings))


def _micro_sequences(settings: PretrainSettings, max_seq_length: int, device: str, min_micro_batches: int) -> int:
    batch = settings.batch
    if batch.micro_sequences != "auto":
        return min(batch.micro_sequences, batch.sequences)
    if batch.micro_tokens != "auto":
        return min(max(1, batch.micro_tokens // max_seq_length), batch.sequences)
    most = max(1, min(AUTO_MICRO_TOKENS[device] // max_seq_length, batch.sequences // min_micro_batches))
    return math.ceil(batch.sequences / math.ceil(batch.sequences / most))


def make_phases(
    settings: PretrainSettings,
    steps: int,
    examples: DatasetExamples,
    cache_dir: Path | None,
    micro_sequences: Sequence[int],
) -> LengthPhases:
    """Make the phases of a run of so many steps.

    `cache_dir` stores the examples of each epoch; `micro_sequences` has the sequences in a micro-batch, for each phase.
    """
    borders = sorted({0, settings.final_phase.first_step(steps), steps})
    phases = []
    for number, length in enumerate(lengths_of(settings)):
        its_examples = examples.with_length(length)
        phases.append(
            Phase(
                first_step=borders[number],
                last_step=borders[number + 1],
                max_seq_length=length,
                sampler=its_examples.source("train", settings.seed, cache_dir),
                # seed 0 always, so that all runs are evaluated with the same masks
                held_out=its_examples.source("held_out", seed=0) if "held_out" in examples.splits else None,
                micro_batches=micro_batch_ranges(settings.batch.sequences, micro_sequences[number]),
            )
        )
    return LengthPhases(phases)
