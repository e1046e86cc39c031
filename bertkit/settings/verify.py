"""What `bertkit verify` accepts."""

from __future__ import annotations

from dataclasses import dataclass

from bertkit.errors import InputError
from bertkit.settings.common import seed_problems


@dataclass(frozen=True)
class VerifySettings:
    """`bertkit verify`."""

    model_dir: str
    output: str | None
    overwrite: bool
    seed: int
    sequences: int

    def __post_init__(self) -> None:
        problems = seed_problems(self.seed)
        if self.sequences < 1:
            problems.append(f"sequences={self.sequences}: expected at least 1")
        if problems:
            raise InputError(*problems)
