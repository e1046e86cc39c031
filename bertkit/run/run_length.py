"""How many steps a run takes, and how long they take on a CPU: said, and where it is left to bertkit chosen, before training.

The time is that of two trial passes, forward and back, over a few sequences of random tokens, of which the faster counts.
"""

from __future__ import annotations

import dataclasses
import math
import time

import numpy as np
import torch

from bertkit.base.batch import PretrainBatch
from bertkit.data.batches.instances import open_instances
from bertkit.data.batches.sampling import Sampler
from bertkit.data.corpus.prepared import PreparedDataset
from bertkit.data.data_config import InstancesConfig
from bertkit.kernels.fast import FastWays
from bertkit.model.heads import BertWithHeads
from bertkit.run.length_phases import LengthPhases, segments_of
from bertkit.run.objective import pretraining_losses
from bertkit.run.state import Choices
from bertkit.settings.pretrain import PretrainSettings
from bertkit.train.micro_batches import local_micro_batches, micro_batch_ranges
from bertkit.train.processes import Accelerator, on_main_process
from bertkit.view.progress import duration

MOST_EPOCHS = 40  # Devlin et al. 2019, A.2: "approximately 40 epochs"
MOST_STEPS = 1_000_000  # Devlin et al. 2019, A.2
MOST_SECONDS = 3600  # on a CPU
LARGE_TEXT = 10_000_000  # tokens, whose examples take some seconds to count
TRIAL_TOKENS = 512  # of a trial pass; larger ones take as long a token
SLOW_CPU = 2e10  # operations a second of a core at its slowest, so that runs that are surely short need no trial
MASKED_SHARE = 0.15  # Devlin et al. 2019, A.1


@dataclasses.dataclass(frozen=True)
class Pace:
    """How long the steps of a run take.

    Attributes:
        phase_seconds: of a step of each phase; None on a GPU, and where the run is surely short.
        chosen: why the run has so many steps; empty where they are set.
    """

    phase_seconds: list[float] | None
    chosen: str = ""

    def lines(self, settings: PretrainSettings, phases: LengthPhases, first_step: int) -> list[str]:
        """Say why there are so many steps, and warn of a text that is seen too often and of hours on a CPU."""
        found, steps = [self.chosen] if self.chosen else [], settings.num_steps
        epochs = sum(
            (phase.last_step - phase.first_step) * phase.batch_size / phase.sampler.epoch_length for phase in phases.all
        )
        if epochs > MOST_EPOCHS:
            found.append(
                f"warning: the text is seen {epochs:.0f} times, the paper's about {MOST_EPOCHS}; set "
                f"steps={_rounded(steps * MOST_EPOCHS / epochs)}, or prepare more text"
            )
        if self.phase_seconds is None:
            return found
        left = [
            (phase.last_step - max(first_step, phase.first_step)) * seconds
            for phase, seconds in zip(phases.all, self.phase_seconds, strict=True)
            if phase.last_step > first_step
        ]
        if sum(left) > MOST_SECONDS:
            share = MOST_SECONDS / sum(left)
            found.append(
                f"warning: about {duration(sum(left))} on this CPU, as two trial passes took; for an hour set "
                f"steps={first_step + _rounded((steps - first_step) * share)}, or take a smaller model="
            )
        return found


def settle(
    settings: PretrainSettings,
    dataset: PreparedDataset,
    model: BertWithHeads,
    accelerator: Accelerator,
    choices: Choices,
) -> tuple[PretrainSettings, Pace]:
    """Choose the steps of a run that sets none, and find out how long they take; every process takes part.

    Raises:
        InputError: a warm-up or a final phase does not fit the steps.
    """
    measured = None
    if accelerator.device.type == "cpu" and (settings.steps == "auto" or _may_be_long(settings, model)):
        here = _seconds_of_steps(settings, model, accelerator, choices)
        measured = on_main_process(accelerator, lambda: here)
    if settings.steps != "auto":
        return settings, Pace(measured)
    steps, chosen = _choose(settings, _epoch_length(settings, dataset), measured)
    return dataclasses.replace(settings, steps=steps), Pace(measured, chosen)


def _may_be_long(settings: PretrainSettings, model: BertWithHeads) -> bool:
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    longest = max(segments.max_seq_length for segments in segments_of(settings))
    operations = 6 * num_parameters * longest * settings.batch.sequences * settings.num_steps
    return operations > MOST_SECONDS * SLOW_CPU


def _choose(settings: PretrainSettings, epoch_length: float, measured: list[float] | None) -> tuple[int, str]:
    """Give the steps, and say why."""
    by_text = min(_rounded(MOST_EPOCHS * epoch_length / settings.batch.sequences), MOST_STEPS)
    text = f"{MOST_EPOCHS} epochs of the text" if by_text < MOST_STEPS else "as many as in the paper"
    if measured is None:
        return by_text, f"steps={by_text}: {text}"
    share = settings.final_phase.share if len(measured) > 1 else 0
    seconds = measured[0] * (1 - share) + measured[-1] * share
    by_time, hours = _rounded(MOST_SECONDS / seconds), duration(by_text * seconds)
    how = f"at {seconds:.2g} s a step, as two trial passes took"
    if by_text <= by_time:
        return by_text, f"steps={by_text}: {text}, about {hours} on this CPU {how}"
    return by_time, f"steps={by_time}: about an hour on this CPU {how}; steps={by_text}, {text}, would be {hours}"


def _epoch_length(settings: PretrainSettings, dataset: PreparedDataset) -> float:
    """Give the number of examples in an epoch; of a large text about that, by its tokens."""
    segments, train = settings.segments, dataset.splits["train"]
    if isinstance(segments, InstancesConfig):
        return len(open_instances(dataset))
    if train.num_tokens > LARGE_TEXT:
        return train.num_tokens / segments.max_seq_length
    return Sampler(train, dataset.tokenizer.facts, segments, settings.masking, settings.seed).epoch_length


def _seconds_of_steps(
    settings: PretrainSettings, model: BertWithHeads, accelerator: Accelerator, choices: Choices
) -> list[float]:
    """Give the seconds of a step of each phase, on the process that has most to do; the model stays as it is."""
    found = []
    model.use(FastWays.of(choices.kernels))
    assert isinstance(choices.cut, tuple), "of pretraining"
    for segments, most in zip(segments_of(settings), choices.cut, strict=True):
        length, size = segments.max_seq_length, settings.batch.sequences
        ranges = micro_batch_ranges(size, most)
        share = len(local_micro_batches(len(ranges), 0, accelerator.num_processes)) / len(ranges)
        num_sequences = max(1, min(size, TRIAL_TOKENS // length))
        seconds = min(_trial(model, num_sequences, length, settings) for _ in range(2))
        found.append(seconds * size * share / num_sequences)
    return found


def random_batch(model: BertWithHeads, num_sequences: int, length: int) -> PretrainBatch:
    """Make a batch of random tokens, all sequences of one length."""
    size, rng = num_sequences * length, np.random.default_rng(0)
    ids = rng.integers(model.config.vocab_size, size=size)
    masked = np.sort(rng.choice(size, math.ceil(MASKED_SHARE * size), replace=False))
    return PretrainBatch(
        input_ids=ids,
        token_type_ids=np.zeros_like(ids),
        sequence_lengths=np.full(num_sequences, length),
        masked_positions=masked,
        masked_labels=ids[masked],
        next_sentence_labels=np.zeros(num_sequences, np.int64),
    )


def _trial(model: BertWithHeads, num_sequences: int, length: int, settings: PretrainSettings) -> float:
    """Pass once through the model and back, over random tokens."""
    batch = random_batch(model, num_sequences, length)
    with torch.random.fork_rng(devices=[]):
        started_at = time.perf_counter()
        terms = pretraining_losses(model.train(), batch, settings.precision)
        torch.stack([term.sum for term in terms.values()]).sum().backward()  # type: ignore[no-untyped-call]
        seconds = time.perf_counter() - started_at
    model.zero_grad(set_to_none=True)
    return seconds


def _rounded(steps: float) -> int:
    """Round down to two figures, to one step at least."""
    unit = 10 ** max(0, math.floor(math.log10(max(1, steps))) - 1)
    return max(1, int(steps // unit * unit))
