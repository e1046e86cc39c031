"""Learning-rate schedules: step -> multiplier of the peak. Pure functions; steps count from 0."""

from __future__ import annotations

from collections.abc import Callable

Schedule = Callable[[int], float]


def linear(step: int, steps: int, warmup_steps: int) -> float:
    """Rise linearly from 0 to 1 over the warm-up, then fall linearly to 0 at `steps`.

    As in BERT, step 0 of a warm-up has multiplier 0.

    Source: transformers `get_linear_schedule_with_warmup`. google-research/bert decays over all the steps, the
    warm-up included, and so jumps down at its end.
    """
    if step < warmup_steps:
        return step / warmup_steps
    return (steps - step) / max(1, steps - warmup_steps)


def constant(step: int, steps: int, warmup_steps: int) -> float:
    """Rise linearly from 0 to 1 over the warm-up, then stay."""
    return step / warmup_steps if step < warmup_steps else 1.0


SCHEDULES = {"linear": linear, "constant": constant}
