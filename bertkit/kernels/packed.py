"""A second copy of weights, in memory layouts that are faster for few rows, while a text is generated.

Axes: as in linear.py.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.kernels.linear import Linear, TiedLinear, product

# 2 or 3 rows are padded to 4, which is faster; with more than 256 rows the usual product is as fast
MIN_ROWS, MAX_ROWS = 4, 256


class Packed:
    """Copies of a weight in memory layouts for products with few rows, made when first used; see `FastWays.packed_weights`."""

    def __init__(self) -> None:
        self.weight: Tensor | None = None
        self.version = 0  # of the weight when it was copied
        self.transposed: Tensor | None = None
        self.reordered: Tensor | None = None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Leave packed weights out of a copied or pickled model: they cannot be copied, and `pack` makes them again."""
        return type(None), ()

    @property
    def is_stale(self) -> bool:
        """Whether the weight has changed since it was copied."""
        return self.weight is not None and self.weight._version != self.version

    def fits(self, inputs: Tensor, weight: Tensor) -> bool:
        """Whether packed weights can be used for these inputs (n, k): few rows, and a weight that has not changed."""
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or len(inputs) > MAX_ROWS:
            return False
        if self.weight is None:
            self.weight, self.version = weight, weight._version
        is_same = self.weight is weight and not self.is_stale
        return is_same and inputs.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")

    def product(self, inputs: Tensor, bias: Tensor | None) -> Tensor:
        """Compute the linear map of a few inputs (n, k), with the memory layout that is fastest for n: (n, m)."""
        assert self.weight is not None
        if len(inputs) == 1:
            if self.weight.shape[0] < self.weight.shape[1]:
                return F.linear(inputs, self.weight, bias)
            if self.transposed is None:
                self.transposed = self.weight.detach().t().contiguous()
            return inputs @ self.transposed if bias is None else torch.addmm(bias, inputs, self.transposed)
        if self.reordered is None:
            self.reordered = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), MIN_ROWS)
        missing = MIN_ROWS - len(inputs)
        if missing <= 0:
            return product(inputs, self.reordered, bias)
        return product(F.pad(inputs, (0, 0, 0, missing)), self.reordered, bias)[: len(inputs)]


def pack(module: nn.Module) -> None:
    """Use packed weights in all linear maps of a module; where weights have changed, pack them again."""
    for part in _maps(module):
        if part.packed is None or part.packed.is_stale:
            part.packed = Packed()


def forget_packed(module: nn.Module) -> None:
    """Free the copies of weights that `pack` caused."""
    for part in _maps(module):
        part.packed = None


def _maps(module: nn.Module) -> Iterator[Linear | TiedLinear]:
    return (part for part in module.modules() if isinstance(part, (Linear, TiedLinear)))
