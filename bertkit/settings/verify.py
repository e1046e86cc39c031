"""The settings of `bertkit verify`."""

from dataclasses import dataclass

from bertkit.base.intervals import Seed, Size
from bertkit.settings.command import Command, CommandSettings


@dataclass(frozen=True)
class VerifySettings(CommandSettings):
    """`bertkit verify`."""

    model_dir: str
    output: str | None
    overwrite: bool
    seed: Seed
    sequences: Size


COMMAND = Command(
    "verify",
    VerifySettings,
    stage="bertkit.stages.verify",
    needs="any model",
    gives="a certificate of parity with the Hugging Face implementation",
    positions=("model_dir",),
    returns="scores",
)
