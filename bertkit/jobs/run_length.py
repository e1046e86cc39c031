"""The number of steps and the duration of a run: resolves steps=auto and num_epochs=, and estimates the time on a CPU before training.

The estimate comes from the faster of two timed forward and backward passes on a few sequences of random tokens.
"""

import dataclasses
import functools
import math
import time

import numpy as np
import torch

from bertkit.base.batch import Batch, Target
from bertkit.base.errors import counted
from bertkit.data.batches.sampling import DatasetExamples
from bertkit.display.console import duration
from bertkit.jobs.phases import LengthPhases, lengths_of
from bertkit.kernels.fast import FastWays
from bertkit.model.heads import BertWithHeads, Trained, bare, num_parameters
from bertkit.objectives.objective import Moment, Objective
from bertkit.run.choices import Choices
from bertkit.run.memory_plan import LargestBatch
from bertkit.settings.pretrain import PretrainSettings
from bertkit.train.accelerator import Accelerator, ranks_in
from bertkit.train.micro_batches import local_micro_batches, micro_batch_ranges
from bertkit.train.schedule import last_stable_step

MOST_EPOCHS = 40  # Devlin et al. 2019, A.2: "approximately 40 epochs"
MOST_STEPS = 1_000_000  # Devlin et al. 2019, A.2
MOST_SECONDS = 3600  # on a CPU
TRIAL_TOKENS = 512  # tokens in a trial pass; with more tokens, the time per token is the same
SLOW_CPU = 2e10  # floating-point operations per second on a slow core; a run that is short even there needs no trial
MASKED_SHARE = 0.15  # Devlin et al. 2019, A.1


@dataclasses.dataclass(frozen=True)
class RunLength:
    """The number of steps with its reason, and the estimated duration of a step."""

    steps: int
    phase_seconds: list[float] | None  # seconds per step, for each phase; None on a GPU, and for short runs
    reason: str = ""  # why steps=auto has this value; empty if the user set steps

    def lines(self, phases: LengthPhases, first_step: int) -> list[str]:
        """Return the reason for the number of steps, and warnings about too many epochs or hours on a CPU."""
        lines, steps = [self.reason] if self.reason else [], self.steps
        epochs = sum(
            (phase.last_step - phase.first_step) * phase.batch_size / phase.sampler.epoch_length for phase in phases.all
        )
        if epochs > MOST_EPOCHS:
            fewer = f"steps={_rounded(steps * MOST_EPOCHS / epochs)}"
            lines.append(
                f"warning: {epochs:.0f} epochs, but BERT was trained for about {MOST_EPOCHS}; set {fewer}, or prepare more text"
            )
        if self.phase_seconds is None:
            return lines
        left = sum(
            max(0, phase.last_step - max(first_step, phase.first_step)) * seconds
            for phase, seconds in zip(phases.all, self.phase_seconds, strict=True)
        )
        if left > MOST_SECONDS:
            fewer = f"steps={first_step + _rounded((steps - first_step) * MOST_SECONDS / left)}"
            lines.append(
                f"warning: about {duration(left)} on this CPU; for an hour set {fewer}, or take a smaller model="
            )
        return lines


def choose_steps(
    settings: PretrainSettings,
    examples: DatasetExamples,
    model: Trained,
    accelerator: Accelerator,
    choices: Choices,
    objective: Objective,
) -> RunLength:
    """Choose the number of steps if it is auto, and measure the duration of a step; every process calls this."""
    if settings.num_epochs is not None:
        steps = max(1, round(_steps_of(settings.num_epochs, settings, examples)))
        epochs = counted(settings.num_epochs, "epoch")
        known = choose_steps(settings.with_steps(steps), examples, model, accelerator, choices, objective)
        return dataclasses.replace(known, reason=f"steps={steps}: {epochs} of the text")
    seconds = None
    if accelerator.device.type == "cpu" and (settings.steps == "auto" or _may_be_long(settings, settings.steps, model)):
        here = _seconds_of_steps(settings, model, accelerator, choices, objective)
        seconds = ranks_in(accelerator).on_first(lambda: here)
    if settings.steps != "auto":
        return RunLength(settings.steps, seconds)
    return _choose(settings, _rounded(_steps_of(MOST_EPOCHS, settings, examples)), seconds)


def branch_step(settings: PretrainSettings, steps: int) -> int | None:
    """Return the last step that a run of `steps` steps shares with a longer one; None if its decay has no beginning of its own."""
    last = last_stable_step(settings.schedule, steps, settings.schedule.warmup_of(steps))
    return None if last is None else min(last, settings.final_phase.first_step(steps))


def _steps_of(num_epochs: float, settings: PretrainSettings, examples: DatasetExamples) -> float:
    """Convert epochs to steps, over the phases of a run."""
    share, lengths = settings.final_phase.share, lengths_of(settings)
    shares = [1 - share, share] if len(lengths) > 1 else [1.0]
    sizes = [examples.with_length(length).estimated_size(settings.seed) for length in lengths]
    epochs_per_example = sum(part / size for part, size in zip(shares, sizes, strict=True))
    return num_epochs / epochs_per_example / settings.batch.sequences


def _may_be_long(settings: PretrainSettings, steps: int, model: Trained) -> bool:
    operations = 6 * num_parameters(model.parameters()) * max(lengths_of(settings)) * settings.batch.sequences * steps
    return operations > MOST_SECONDS * SLOW_CPU


def _choose(settings: PretrainSettings, text_steps: int, phase_seconds: list[float] | None) -> RunLength:
    """Choose the number of steps for a text that is read `MOST_EPOCHS` times in `text_steps` steps."""
    by_text = min(text_steps, MOST_STEPS)
    text = f"{MOST_EPOCHS} epochs of the text" if by_text < MOST_STEPS else "as many as BERT was trained for"
    if phase_seconds is None:
        return RunLength(by_text, None, f"steps={by_text}: {text}")
    share = settings.final_phase.share if len(phase_seconds) > 1 else 0
    seconds = phase_seconds[0] * (1 - share) + phase_seconds[-1] * share
    by_time, hours = _rounded(MOST_SECONDS / seconds), duration(by_text * seconds)
    how = f"at {seconds:.2g} s a step, by two trial passes"
    if by_text <= by_time:
        return RunLength(by_text, phase_seconds, f"steps={by_text}: {text}, about {hours} on this CPU {how}")
    reason = f"steps={by_time}: about an hour on this CPU {how}; steps={by_text}, {text}, would be {hours}"
    return RunLength(by_time, phase_seconds, reason)


def _seconds_of_steps(
    settings: PretrainSettings,
    model: Trained,
    accelerator: Accelerator,
    choices: Choices,
    objective: Objective,
) -> list[float]:
    """Measure the seconds per step in each phase, for process 0; the weights are not changed."""
    phase_seconds = []
    model.use(FastWays.of(choices.kernels))
    size = settings.batch.sequences
    for length, micro_sequences in zip(lengths_of(settings), choices.micro_sequences, strict=True):
        ranges = micro_batch_ranges(size, micro_sequences)
        share = len(local_micro_batches(len(ranges), 0, accelerator.num_processes)) / len(ranges)
        num_sequences = max(1, min(size, TRIAL_TOKENS // length))
        seconds = min(_trial(settings, objective, model, num_sequences, length) for _ in range(2))
        phase_seconds.append(seconds * size * share / num_sequences)
    return phase_seconds


def largest_batches(
    settings: PretrainSettings, model: BertWithHeads, phases: LengthPhases, objective: Objective
) -> list[LargestBatch]:
    """Return a micro-batch of each phase, to estimate its memory."""

    def forward(length: int, num_sequences: int) -> int:
        objective.losses(model, _prepared(settings, objective, model, num_sequences, length), settings.precision)
        return num_sequences * length

    by_sequences, batches = settings.batch.micro_tokens == "auto", []
    for phase in phases.all:
        length, size = phase.max_seq_length, phase.micro_batches[0][1]
        batches.append(LargestBatch(functools.partial(forward, length), size * length, length, by_sequences))
    return batches


def random_batch(model: BertWithHeads, num_sequences: int, length: int, has_pairs: bool) -> Batch:
    """Make a batch of random tokens, in sequences of equal length, perhaps of pairs whose order is predicted."""
    size, rng = num_sequences * length, np.random.default_rng(0)
    ids = rng.integers(model.config.vocab_size, size=size)
    is_lm = "next_token" in model.heads
    pairs = {"next_sentence": Target(np.zeros(num_sequences, np.int64))} if has_pairs else {}
    predicted = np.sort(rng.choice(size, size if is_lm else math.ceil(MASKED_SHARE * size), replace=False))
    return Batch(
        input_ids=ids,
        token_type_ids=np.tile(np.arange(length) > length // 2, num_sequences) * int(model.config.type_vocab_size > 1),
        sequence_lengths=np.full(num_sequences, length),
        targets={"next_token" if is_lm else "masked_lm": Target(ids[predicted], predicted), **pairs},
    )


def _prepared(
    settings: PretrainSettings, objective: Objective, model: Trained, num_sequences: int, length: int
) -> Batch:
    made = random_batch(bare(model), num_sequences, length, settings.segments.predicts_next)
    return objective.prepare(made, Moment(0, 1, 0, 0))


def _trial(settings: PretrainSettings, objective: Objective, model: Trained, num_sequences: int, length: int) -> float:
    """Measure the seconds of one forward and backward pass on random tokens."""
    batch = _prepared(settings, objective, model, num_sequences, length)
    with torch.random.fork_rng(devices=[]):
        started_at = time.perf_counter()
        terms = objective.losses(model.train(), batch, settings.precision)
        torch.stack([term.sum for term in terms.values()]).sum().backward()  # type: ignore[no-untyped-call]
        seconds = time.perf_counter() - started_at
    model.zero_grad(set_to_none=True)
    return seconds


def _rounded(steps: float) -> int:
    """Round down to two significant digits, but to at least one step."""
    unit = 10 ** max(0, math.floor(math.log10(max(1, steps))) - 1)
    return max(1, int(steps // unit * unit))
