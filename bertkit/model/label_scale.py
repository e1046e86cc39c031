"""Labels of any size: a regression is trained in units near the spread of its labels, and saved in the labels' own units.

A unit is a power of two, so that multiplying and dividing weights by it changes no bit but those of the exponents.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bertkit.model.head.head import LinearHead
from bertkit.model.heads import BertWithHeads, bare

HEAD = "sequence"


@dataclass(frozen=True)
class LabelUnits:
    """The unit in which labels are learned, and their mean."""

    scale: float
    mean: float

    @classmethod
    def of(cls, labels: Tensor) -> "LabelUnits":
        """Return the power of two nearest to the standard deviation; 1 if all labels are equal."""
        deviation = float(labels.double().std(correction=0))
        scale = 2.0 ** round(math.log2(deviation)) if deviation > 0 else 1.0
        return cls(scale, float(labels.double().mean()))


class ScaledHead(nn.Module):
    """A linear head whose outputs are multiplied by a scale; its parameters have the names of the linear head's."""

    def __init__(self, head: LinearHead, scale: float) -> None:
        super().__init__()
        self.transform, self.dropout, self.dense, self.scale = head.transform, head.dropout, head.dense, scale

    def forward(self, hidden: Tensor) -> Tensor:
        """(n, D) -> (n, 1), in float32: in half precision a large mean would leave no digits for the differences."""
        with torch.autocast(hidden.device.type, enabled=False):
            return self.dense(self.dropout(self.transform(hidden.float()))) * self.scale  # type: ignore[no-any-return]


@torch.no_grad()
def learn_in_units(model: BertWithHeads, units: LabelUnits, *, is_new: bool) -> None:
    """Scale the head of a regression; a new one predicts about the mean of the labels."""
    head = ScaledHead(model.heads[HEAD], units.scale)  # type: ignore[arg-type]
    if is_new:
        head.dense.bias.fill_(units.mean / units.scale)
    else:
        _multiply(head, 1 / units.scale)
    model.heads[HEAD] = head


@contextlib.contextmanager
def in_own_units(model: BertWithHeads) -> Iterator[None]:
    """Keep the weights of a scaled head as a linear head has them, to save or to load them."""
    scaled = [head for head in model.heads.values() if isinstance(head, ScaledHead)]
    for head in scaled:
        _multiply(head, head.scale)
    try:
        yield
    finally:
        for head in scaled:
            _multiply(head, 1 / head.scale)


def label_scale(model: Any) -> float:
    """Return the unit in which a model, perhaps wrapped for data-parallel training, learns its labels."""
    head = bare(model).heads[HEAD]
    return head.scale if isinstance(head, ScaledHead) else 1.0


@torch.no_grad()
def _multiply(head: ScaledHead, factor: float) -> None:
    for parameter in head.dense.parameters():
        parameter.mul_(factor)
