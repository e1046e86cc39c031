"""Linear maps and dropout, with their fast ways on a CPU (`bertkit.kernels.fast`).

Axes: as in model/attention.py; n, m, k are any number of rows and columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from bertkit.kernels.fast import ANYWHERE, FastWays

COLUMNS_AT_ONCE = 4096  # of a gradient; only a vocabulary has more
# rows of products with packed weights: two and three are slower than four, more than the most gain nothing
LEAST_ROWS, FEW_ROWS = 4, 256
_PACKED: Any = WeakTensorKeyDictionary()  # weights -> their version, and what is packed of them, by its kind


class Linear(nn.Linear):
    """torch's linear map, computed by `linear`."""

    fast = ANYWHERE

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, k) -> (n, m)."""
        return linear(inputs, self.weight, self.bias, self.fast)


class Dropout(nn.Module):
    """`dropout` while training."""

    fast = ANYWHERE

    def __init__(self, prob: float) -> None:
        super().__init__()
        self.prob = prob

    def forward(self, inputs: Tensor) -> Tensor:
        """Drop elements of a tensor of any shape."""
        return dropout(inputs, self.prob, self.fast) if self.training else inputs


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None, fast: FastWays) -> Tensor:
    """Map rows: inputs (n, k), weight (m, k), bias (m,) -> (n, m)."""
    is_of_few = not torch.compiler.is_compiling() and len(_PACKED) and len(inputs) <= FEW_ROWS
    is_exact = inputs.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    if is_of_few and is_exact and not torch.is_grad_enabled():
        version, kept = _PACKED.get(weight, (None, {}))
        if version == weight._version:  # else they have changed since
            return _product_of_few(inputs, weight, bias, kept)
    if (
        fast.onednn_linear
        and inputs.dtype == weight.dtype == torch.float32
        and inputs.numel()
        and is_on_cpu(inputs)
        and not torch.is_autocast_enabled("cpu")
    ):
        if torch.is_grad_enabled():
            return _OnednnLinear.apply(inputs, weight, bias)  # type: ignore[no-any-return, no-untyped-call]
        return product(inputs, weight, bias)
    return F.linear(inputs, weight, bias)


def dropout(inputs: Tensor, prob: float, fast: FastWays) -> Tensor:
    """Set each element to 0 with probability `prob`, and scale the others by 1 / (1 - prob).

    Source: Srivastava et al. 2014, in the scaling of google-research/bert modeling.py `dropout`.
    """
    if fast.short_dropout and 0 < prob < 1 and is_on_cpu(inputs):
        return _ShortDropout.apply(inputs, prob)  # type: ignore[no-any-return, no-untyped-call]
    return F.dropout(inputs, prob)


def is_on_cpu(inputs: Tensor) -> bool:
    """Whether what is computed from a tensor is computed on a CPU, now, and not traced into a graph."""
    is_traced = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return inputs.device.type == "cpu" and not is_traced


def product(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Inputs (n, k) times weight (m, k) transposed, plus bias: (n, m), by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")  # type: ignore[no-any-return]


def pack(weights: Iterable[Tensor]) -> None:
    """Let weights be laid out once for products with few rows, when they are first met; see `FastWays`."""
    for weight in weights:
        if _PACKED.get(weight, (None,))[0] != weight._version:
            _PACKED[weight] = (weight._version, {})


def forget_packed(weights: Iterable[Tensor]) -> None:
    """Free what `pack` made of weights."""
    for weight in weights:
        _PACKED.pop(weight, None)


def _product_of_few(inputs: Tensor, weight: Tensor, bias: Tensor | None, kept: dict[str, Tensor]) -> Tensor:
    """`product` of few rows, by weights that are `kept` in the order that suits their number."""
    if len(inputs) == 1:
        if weight.shape[0] < weight.shape[1]:
            return F.linear(inputs, weight, bias)
        if "turned" not in kept:
            kept["turned"] = weight.detach().t().contiguous()
        return inputs @ kept["turned"] if bias is None else torch.addmm(bias, inputs, kept["turned"])
    if "packed" not in kept:
        kept["packed"] = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), LEAST_ROWS)
    missing = LEAST_ROWS - len(inputs)
    if missing <= 0:
        return product(inputs, kept["packed"], bias)
    return product(F.pad(inputs, (0, 0, 0, missing)), kept["packed"], bias)[: len(inputs)]


def _product_of_columns(gradient: Tensor, inputs: Tensor) -> Tensor:
    """The transpose of gradient (n, m) times inputs (n, k): (m, k); oneDNN copies what is transposed, here a part at a time."""
    if gradient.shape[1] <= COLUMNS_AT_ONCE:
        return product(gradient.t(), inputs.t())
    found = inputs.new_empty(gradient.shape[1], inputs.shape[1])
    for first in range(0, len(found), COLUMNS_AT_ONCE):
        part = slice(first, first + COLUMNS_AT_ONCE)
        found[part] = product(gradient[:, part].t(), inputs.t())
    return found


class _OnednnLinear(torch.autograd.Function):
    """A linear map and its three gradients."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.has_bias = bias is not None
        return product(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        of_inputs = product(gradient, weight.t()) if ctx.needs_input_grad[0] else None
        of_weight = _product_of_columns(gradient, inputs) if ctx.needs_input_grad[1] else None
        of_bias = gradient.sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return of_inputs, of_weight, of_bias


class _ShortDropout(torch.autograd.Function):
    """Dropout with a mask of one byte an element."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, prob: float) -> Tensor:
        below = min(round(prob * 65536), 65535)  # of 65536 numbers, this many drop
        words = torch.empty(math.ceil(inputs.numel() / 4), dtype=torch.int64).random_(-(2**63), None)
        is_kept = words.view(torch.int16)[: inputs.numel()].view(inputs.shape) >= below - 32768
        ctx.save_for_backward(is_kept)
        ctx.scale = 65536 / (65536 - below)
        return _kept(inputs, is_kept, ctx.scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (is_kept,) = ctx.saved_tensors
        return _kept(gradient, is_kept, ctx.scale), None


def _kept(values: Tensor, is_kept: Tensor, scale: float) -> Tensor:
    return torch.where(is_kept, values, values.new_zeros(())).mul_(scale)


def gelu_tanh(hidden: Tensor) -> Tensor:
    """GELU by its tanh approximation (Hendrycks and Gimpel 2016, section 2)."""
    return F.gelu(hidden, approximate="tanh")


# `gelu` is the exact one, with erf, as the released weights were trained with; google-research/bert later changed its
# code to the tanh approximation, which Hugging Face calls `gelu_new`.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
}
