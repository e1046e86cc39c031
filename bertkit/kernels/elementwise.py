"""Rotary positions and gated units on a CPU, in fewer passes over memory than by torch's gradients (`FastWays.few_passes`).

Axes: as in model/attention.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertkit.kernels.linear import Kept

ROWS_AT_ONCE = 128  # of a gated unit: with 704 intermediate elements less than a megabyte, which fits the cache


class TurnedHalves(torch.autograd.Function):
    """Each element of the first half of vectors (S, N, H) turned with one of the second, by sines and cosines (S, 1, H / 2).

    The gradient is turned back, by the negative angle.
    """

    @staticmethod
    def forward(ctx: Kept, vectors: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
        """Turn the vectors."""
        ctx.save_for_backward(sin, cos)
        turned = vectors * torch.cat([cos, cos], -1)
        first, second = vectors.chunk(2, -1)
        turned_first, turned_second = turned.chunk(2, -1)
        turned_first.addcmul_(second, sin, value=-1)
        turned_second.addcmul_(first, sin)
        return turned

    @staticmethod
    def backward(ctx: Kept, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Turn the gradient back."""
        sin, cos = ctx.saved_tensors
        return TurnedHalves.apply(gradient, -sin, cos), None, None  # type: ignore[no-untyped-call]


class GatedGelu(torch.autograd.Function):
    """GELU of the first half of vectors (S, 2F) times the second half: (S, F)."""

    @staticmethod
    def forward(ctx: Kept, vectors: Tensor) -> Tensor:
        """Multiply the halves."""
        first, gate = vectors.chunk(2, -1)
        activated = F.gelu(first)
        ctx.save_for_backward(vectors, activated)
        return activated * gate

    @staticmethod
    @once_differentiable
    def backward(ctx: Kept, gradient: Tensor) -> Tensor:
        """Of both halves, some rows at a time, written where they belong."""
        vectors, activated = ctx.saved_tensors
        result = torch.empty_like(vectors)
        tensors = gradient, activated, *vectors.chunk(2, -1), *result.chunk(2, -1)
        of_rows = zip(*(torch.split(each, ROWS_AT_ONCE) for each in tensors), strict=True)
        for some, active, first, gate, of_first, of_gate in of_rows:
            torch.mul(some, active, out=of_gate)
            torch.ops.aten.gelu_backward.grad_input(some * gate, first, grad_input=of_first)
        return result
