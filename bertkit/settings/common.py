"""What several commands accept."""

from __future__ import annotations

from dataclasses import dataclass


def seed_problems(seed: int) -> list[str]:
    """Say what is wrong with a seed, in a list of nothing or one line."""
    return [] if 0 <= seed < 2**63 else [f"seed={seed}: expected 0 to {2**63 - 1}"]


@dataclass(frozen=True)
class SkipConfig:
    """Steps whose batches are left out."""

    skip_steps: tuple[int, ...]
