"""What `bertkit view` accepts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertkit.base.typed_settings import outside, refuse, unused
from bertkit.settings.predict import PredictFormat
from bertkit.tasks.task_config import TaskConfig

ENDINGS = (".html", ".json", ".svg", ".png")
BOTH = "layer= and head=: set both, for a picture of one head, or none"


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
        is_page = self.ending in (".html", ".json")
        refuse(
            self.input is None and self.text is None and "missing value: set text=, or input=",
            self.input is not None and self.text is not None and "input= and text=: set one of the two",
            unused(
                self,
                "",
                ("text_pair", self.text is None, "without text=; give both in a file, by input="),
                ("format", self.text is not None, "with text="),
                ("row", self.input is None, "without input=", 1),
                ("target", self.steps == 0, "with steps=0"),
                ("layer", is_page, f"on {self.ending}, which has all heads"),
                ("head", is_page, f"on {self.ending}, which has all heads"),
            ),
            # more steps than any path was ever cut into: the points are the roots of a polynomial of this degree
            outside(self, "", row="[1, inf)", layer="[1, inf)", head="[1, inf)", steps="[0, 100000]"),
            self.ending not in ENDINGS and f"output={self.output}: expected a name that ends in {', '.join(ENDINGS)}",
            self.output == self.input and f"output={self.output} is the input; choose another file",
            self.layer is None and self.head is not None and BOTH,
        )
