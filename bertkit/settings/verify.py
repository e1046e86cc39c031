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

    @property
    def output_file(self) -> str | None:
        """The certificate."""
        return self.output

    @property
    def models(self) -> tuple[str, ...]:
        """The model."""
        return (self.model_dir,)


COMMAND = Command(
    "verify",
    VerifySettings,
    stage="bertkit.stages.verify",
    needs="any model",
    gives="a certificate of parity with the Hugging Face implementation",
    returns="scores",
)
