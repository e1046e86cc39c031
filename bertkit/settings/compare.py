"""The settings of `bertkit compare`."""

from dataclasses import dataclass, field

from bertkit.base.errors import InputError
from bertkit.settings.command import WORDS, Command, CommandSettings


@dataclass(frozen=True)
class CompareSettings(CommandSettings):
    """`bertkit compare`."""

    runs: tuple[str, ...] = field(metadata=WORDS)
    output: str
    overwrite: bool

    def __post_init__(self) -> None:
        if len(self.runs) < 2:
            raise InputError(f"runs={list(self.runs)}: expected at least two run directories, such as runs/a runs/b")
        if not self.output.endswith(".html"):
            raise InputError(f"output={self.output}: expected a name that ends in .html, such as compare.html")


COMMAND = Command(
    "compare",
    CompareSettings,
    stage="bertkit.stages.compare",
    needs="several runs",
    gives="scores, curves and settings side by side; for two runs, where they diverge and why",
    positions=("runs",),
    returns="scores",
)
