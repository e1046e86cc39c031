"""The settings of `bertkit compare`."""

from dataclasses import dataclass, field

from bertkit.base.errors import InputError
from bertkit.settings.names import WORDS


@dataclass(frozen=True)
class CompareSettings:
    """`bertkit compare`."""

    runs: tuple[str, ...] = field(metadata=WORDS)
    output: str
    overwrite: bool

    def __post_init__(self) -> None:
        if len(self.runs) < 2:
            raise InputError(f"runs={list(self.runs)}: expected at least two run directories, such as runs/a runs/b")
        if not self.output.endswith(".html"):
            raise InputError(f"output={self.output}: expected a name that ends in .html, such as compare.html")
