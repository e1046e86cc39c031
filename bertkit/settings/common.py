"""What several commands accept."""

from __future__ import annotations

from dataclasses import dataclass

from bertkit.errors import InputError


def seed_problems(seed: int) -> list[str]:
    """Say what is wrong with a seed, in a list of nothing or one line."""
    return [] if 0 <= seed < 2**63 else [f"seed={seed}: expected 0 to {2**63 - 1}"]


@dataclass(frozen=True)
class SkipConfig:
    """Steps whose batches are left out."""

    skip_steps: tuple[int, ...]

    def __post_init__(self) -> None:
        wrong = [step for step in self.skip_steps if step < 1]
        if wrong:
            raise InputError(f"data.skip_steps={list(self.skip_steps)}: no step {wrong[0]}; steps count from 1")
