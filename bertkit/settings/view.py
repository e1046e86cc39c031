"""The settings of `bertkit view`."""

from dataclasses import dataclass, field
from pathlib import Path

from bertkit.base.typed_settings import outside, refuse, unused
from bertkit.settings.names import VERBATIM
from bertkit.settings.predict import TextSettings

ENDINGS = (".html", ".json", ".svg", ".png")
SET_BOTH = "layer= and head=: set both, for a picture of one head, or neither"


@dataclass(frozen=True, kw_only=True)
class ViewSettings(TextSettings):
    """`bertkit view`.

    Attributes:
        row: the number of the example to show, from 1.
        target: the prediction to explain; None for the model's prediction.
        steps: number of steps for integrated gradients; None to choose it automatically, 0 for no attributions.
        layer: the layer to draw in a picture of one head, from 1.
        head: the head to draw in such a picture, from 1.
        target_text: for an encoder-decoder, the text to align with the input; None for the generated text.
    """

    row: int
    target: str | int | None
    steps: int | None
    layer: int | None
    head: int | None
    target_text: str | None = field(metadata=VERBATIM)

    @property
    def ending(self) -> str:
        """The ending of the output file, one of `ENDINGS`."""
        return Path(self.output).suffix.lower()

    def __post_init__(self) -> None:
        is_page = self.ending in (".html", ".json")
        refuse(
            self.text_problems(),
            unused(
                self,
                "",
                ("row", self.input is None, "without input=", 1),
                ("target", self.steps == 0, "with steps=0"),
                ("layer", is_page, f"on {self.ending}, which shows all heads"),
                ("head", is_page, f"on {self.ending}, which shows all heads"),
            ),
            # limited because the quadrature points are the roots of a polynomial of degree `steps`
            outside(self, "", row="[1, inf)", layer="[1, inf)", head="[1, inf)", steps="[0, 100000]"),
            self.ending not in ENDINGS and f"output={self.output}: expected a name that ends in {', '.join(ENDINGS)}",
            self.layer is None and self.head is not None and SET_BOTH,
        )
