"""The settings of `bertkit view`."""

from dataclasses import dataclass, field, fields
from typing import Annotated

from bertkit.base.intervals import MAX_INT32, Interval, Size
from bertkit.base.typed_settings import refuse, unused
from bertkit.settings.command import VERBATIM, Command
from bertkit.settings.inputs import CHECK, TextSettings

ENDINGS = (".html", ".json", ".svg", ".png")
SET_BOTH = "layer= and head=: set both, for a picture of one head, or neither"


@dataclass(frozen=True, kw_only=True)
class ViewSettings(TextSettings):
    """`bertkit view`."""

    positions: bool  # show the model's positions instead of an input
    row: Size  # the number of the example to show, from 1
    # the prediction to explain; None for the model's prediction
    target: str | Annotated[int, Interval(-MAX_INT32, MAX_INT32)] | None
    # of integrated gradients; None to choose the number automatically, 0 for no attributions
    # limited because the quadrature points are the roots of a polynomial of degree `steps`
    steps: Annotated[int, Interval(0, 100_000)] | None
    layer: Size | None  # the layer to draw in a picture of one head, from 1
    head: Size | None  # the head to draw in such a picture, from 1
    target_text: str | None = field(metadata=VERBATIM)  # of an encoder-decoder; None for the generated text

    def __post_init__(self) -> None:
        is_page = self.ending in (".html", ".json") and not self.positions
        endings = ENDINGS[:2] if self.positions else ENDINGS
        own = {each.name for each in fields(self)} - {"model_dir", "output", "overwrite", "device", "positions", "row"}
        refuse(
            [] if self.positions else self.text_problems(),
            unused(
                self,
                "",
                *((name, self.positions, "with positions=true", {}) for name in sorted(own)),
                ("row", self.input is None, "without input=", 1),
                ("target", self.steps == 0, "with steps=0"),
                ("layer", is_page, f"on {self.ending}, which shows all heads"),
                ("head", is_page, f"on {self.ending}, which shows all heads"),
            ),
            self.ending not in endings and f"output={self.output}: expected a name that ends in {', '.join(endings)}",
            self.layer is None and self.head is not None and SET_BOTH,
        )


COMMAND = Command(
    "view",
    ViewSettings,
    stage="bertkit.stages.view",
    needs="any model and an input",
    gives="attention and attributions, as a page, numbers or a picture",
    positions=("model_dir", "text"),
    rows={"input": "input"},
    returns="page",
    check=CHECK,
)
