"""The settings of `bertkit verify`."""

from dataclasses import dataclass

from bertkit.base.typed_settings import outside, refuse
from bertkit.settings.names import SEED_RANGE


@dataclass(frozen=True)
class VerifySettings:
    """`bertkit verify`."""

    model_dir: str
    output: str | None
    overwrite: bool
    seed: int
    sequences: int

    def __post_init__(self) -> None:
        refuse(outside(self, "", seed=SEED_RANGE, sequences="[1, inf)"))
