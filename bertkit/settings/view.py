"""What `bertkit view` accepts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertkit.errors import InputError
from bertkit.settings.predict import PredictFormat
from bertkit.tasks.config import TaskConfig

ENDINGS = (".html", ".json", ".svg", ".png")
BOTH = "layer= and head=: set both, for a picture of one head, or none"
MOST_STEPS = 100_000  # more than any path was ever cut into; the points are the roots of a polynomial of this degree


@dataclass(frozen=True)
class ViewSettings:
    """`bertkit view`.

    Attributes:
        row: of the input, from 1.
        task_changes: what is set of the model's own task, where no other one is chosen.
        target: what is explained; None for what the model predicts.
        steps: of integrated gradients; None for as many as it takes, 0 for none.
        layer: of a picture of one head, from 1.
        head: of it, from 1.
        target_text: of a model that writes, the text to align with the source; None for the one that it writes.
    """

    model_dir: str
    input: str | None
    text: str | None
    text_pair: str | None
    row: int
    output: str
    overwrite: bool
    task: TaskConfig | None
    task_changes: dict[str, Any]
    format: PredictFormat | None
    target: str | int | None
    steps: int | None
    layer: int | None
    head: int | None
    target_text: str | None
    device: Literal["auto", "cpu", "cuda"]

    @property
    def ending(self) -> str:
        """What the output is: one of `ENDINGS`."""
        return Path(self.output).suffix.lower()

    def __post_init__(self) -> None:
        problems = []
        if self.input is None and self.text is None:
            problems.append("missing value: set text=, or input=")
        if self.input is not None and self.text is not None:
            problems.append("input= and text=: set one of the two")
        if self.text is None and self.text_pair is not None:
            problems.append("text_pair: has no effect without text=; leave it out, or give both in a file, by input=")
        if self.text is not None and self.format is not None:
            problems.append("format: has no effect with text=")
        if self.row != 1 and self.input is None:
            problems.append(f"row={self.row}: has no effect without input=")
        if self.row < 1:
            problems.append(f"row={self.row}: expected at least 1, the first example of the input")
        if self.ending not in ENDINGS:
            problems.append(f"output={self.output}: expected a name that ends in {', '.join(ENDINGS)}")
        elif self.output == self.input:
            problems.append(f"output={self.output} is the input; choose another file")
        if self.steps is not None and not 0 <= self.steps <= MOST_STEPS:
            problems.append(f"steps={self.steps}: expected 0 for no attributions, or 1 to {MOST_STEPS:,}")
        if self.steps == 0 and self.target is not None:
            problems.append(f"target={self.target}: has no effect with steps=0; leave one of them out")
        chosen = {"layer": self.layer, "head": self.head}
        if self.layer is None and self.head is not None:
            problems.append(BOTH)
        for name, value in chosen.items():
            if value is not None and value < 1:
                problems.append(f"{name}={value}: expected at least 1")
            if value is not None and self.ending in (".html", ".json"):
                problems.append(f"{name}={value}: has no effect on {self.ending}, which has all heads; leave it out")
        if problems:
            raise InputError(*problems)
