"""The settings of `bertkit verify`."""

from dataclasses import dataclass

from bertkit.base.intervals import Seed, Size


@dataclass(frozen=True)
class VerifySettings:
    """`bertkit verify`."""

    model_dir: str
    output: str | None
    overwrite: bool
    seed: Seed
    sequences: Size
