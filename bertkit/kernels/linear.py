"""Linear maps and dropout, with fast kernels for a CPU (`bertkit.kernels.fast`).

Axes: as in model/attention.py; n rows of inputs (tokens), k input features, m output features.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from bertkit.kernels.fast import ANYWHERE, FastWays
from bertkit.kernels.layout import Group

MAX_COLUMNS = 4096  # columns of a gradient in one product; only logits over a vocabulary have more
# oneDNN compiles a program for every new number of rows, which takes a millisecond; a map of fewer weights (hidden sizes below 128)
# takes less for hundreds of rows: 0.06 to 0.3 ms for 64 x 64 weights and 512 to 2048 rows, on one thread
ONEDNN_WEIGHTS = 128 * 128


HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class FewRows(Protocol):
    """A faster way to compute a linear map of few rows while a text is generated (`kernels.packed`)."""

    @property
    def is_stale(self) -> bool:
        """Whether the weight has changed since it was made."""

    def fits(self, inputs: Tensor, weight: Tensor) -> bool:
        """Whether it computes a linear map of these inputs (n, k)."""

    def product(self, inputs: Tensor, bias: Tensor | None) -> Tensor:
        """Compute it: (n, m)."""


class Linear(nn.Linear):
    """torch's linear map, computed by the function `linear`."""

    fast = ANYWHERE
    packed: FewRows | None = None  # set by `packed.pack`
    init_scale = 1.0  # a factor of the standard deviation of its initial weights
    begins_as_identity = False  # whether the identity is added to them: the map begins by passing on its input

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, k) -> (n, m)."""
        return linear(inputs, self.weight, self.bias, self.fast, self.packed)


def round_weights(encoder: nn.Module, precision: str) -> None:
    """Round the weights of its linear maps to half precision, in a model that only predicts: autocast would do so in every pass."""
    if precision in HALVES:
        for module in encoder.modules():
            if isinstance(module, Linear):
                module.weight.data = module.weight.data.to(HALVES[precision])


def linear_of_each(inputs: Tensor, maps: Sequence[Linear]) -> Sequence[Tensor]:
    """Apply linear maps to the same inputs (n, k): each (n, m); in training on a GPU by one product."""
    if not (inputs.is_cuda and torch.is_grad_enabled()):  # else a decoder would join its weights for every token
        return [each(inputs) for each in maps]
    weight = torch.cat([each.weight for each in maps])
    bias = None if maps[0].bias is None else torch.cat([_bias_of(each) for each in maps])
    return torch.split(F.linear(inputs, weight, bias), [len(each.weight) for each in maps], -1)


def _bias_of(linear_map: Linear) -> Tensor:
    """Return the bias, zeros for none."""
    return linear_map.weight.new_zeros(len(linear_map.weight)) if linear_map.bias is None else linear_map.bias


class RMSNorm(nn.RMSNorm):
    """RMSNorm computed in the dtype of its weights, since torch's own is slow and warns if the inputs are narrower."""

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, D) -> (n, D)."""
        return super().forward(inputs.to(self.weight.dtype))


class Embedding(nn.Embedding):
    """torch's embedding; its values are zeros until they come from a file or `init_weights`."""

    def reset_parameters(self) -> None:
        """Draw no values: without memory, on the device meta, torch imports its compiler for that, which takes seconds."""
        nn.init.zeros_(self.weight)


class TiedLinear(nn.Module):
    """A linear map by the weight of another module, such as the table of token embeddings."""

    fast = ANYWHERE
    packed: FewRows | None = None  # set by `packed.pack`

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Inputs (n, k), weight (m, k), bias (m,) -> (n, m)."""
        num_missing = -len(weight) % 8
        if self.fast.even_columns and num_missing and is_half(inputs) and torch.is_grad_enabled():
            wide = F.pad(weight.to(torch.get_autocast_dtype("cuda")), (0, 0, 0, num_missing))
            bias = None if bias is None else F.pad(bias, (0, num_missing))
            return F.linear(inputs, wide, bias)[:, : len(weight)]
        return linear(inputs, weight, bias, self.fast, self.packed)


class Dropout(nn.Module):
    """`dropout` while training."""

    fast = ANYWHERE

    def __init__(self, prob: float) -> None:
        super().__init__()
        self.prob = prob

    def forward(self, inputs: Tensor) -> Tensor:
        """Drop elements of a tensor of any shape."""
        return dropout(inputs, self.prob, self.fast) if self.training else inputs


def linear(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, fast: FastWays, packed: FewRows | None = None
) -> Tensor:
    """Inputs (n, k) times weight (m, k) transposed, plus bias (m,): (n, m)."""
    if packed is not None and packed.fits(inputs, weight):
        return packed.product(inputs, bias)
    is_autocast = inputs.device.type == "cpu" and torch.is_autocast_enabled("cpu")
    if is_autocast and torch.get_autocast_dtype("cpu") == torch.float16:
        # float16 numbers, multiplied and added up in float32, as on a GPU; few CPUs compute in float16
        with torch.autocast("cpu", enabled=False):
            bias = None if bias is None else bias.half().float()
            return linear(inputs.half().float(), weight.half().float(), bias, fast).half()
    if (
        fast.onednn_linear
        and weight.numel() >= ONEDNN_WEIGHTS
        and inputs.dtype == weight.dtype == torch.float32
        and inputs.numel()
        and is_on_cpu(inputs)
        and not is_autocast
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
    """Whether this tensor is on the CPU, and no graph is being traced."""
    is_traced = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return inputs.device.type == "cpu" and not is_traced


def is_on_cuda(inputs: Tensor) -> bool:
    """Whether this tensor is on a GPU, and no graph is being traced."""
    return inputs.is_cuda and not torch.compiler.is_compiling()


def is_half(inputs: Tensor) -> bool:
    """Whether matrix products of this tensor, on a GPU, are computed in half precision."""
    return inputs.is_cuda and torch.is_autocast_enabled("cuda")


def halved(hidden: Tensor, fast: FastWays) -> Tensor:
    """Round hidden states on a GPU to the precision of the matrix products."""
    return hidden.to(torch.get_autocast_dtype("cuda")) if fast.half_residuals and is_half(hidden) else hidden


def product(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute a linear map with oneDNN: inputs (n, k) times weight (m, k) transposed, plus bias (m,): (n, m)."""
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")  # type: ignore[no-any-return]


def _product_of_columns(gradient: Tensor, inputs: Tensor) -> Tensor:
    """The transposed gradient (n, m) times inputs (n, k): (m, k); in parts, since oneDNN copies transposed matrices."""
    if gradient.shape[1] <= MAX_COLUMNS:
        return product(gradient.t(), inputs.t())
    result = inputs.new_empty(gradient.shape[1], inputs.shape[1])
    for first in range(0, len(result), MAX_COLUMNS):
        part = slice(first, first + MAX_COLUMNS)
        result[part] = product(gradient[:, part].t(), inputs.t())
    return result


class Kept(FunctionCtx):
    """What the forward pass of a function keeps for its gradient."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    has_bias: bool
    scale: float  # of what dropout keeps
    groups: Sequence[Group]  # of sequences


class _OnednnLinear(torch.autograd.Function):
    """A linear map and its three gradients."""

    @staticmethod
    def forward(ctx: Kept, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.has_bias = bias is not None
        return product(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Kept, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        inputs_gradient = product(gradient, weight.t()) if ctx.needs_input_grad[0] else None
        weight_gradient = _product_of_columns(gradient, inputs) if ctx.needs_input_grad[1] else None
        bias_gradient = gradient.sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return inputs_gradient, weight_gradient, bias_gradient


class _ShortDropout(torch.autograd.Function):
    """Dropout from 16 random bits an element, with a mask of one byte an element."""

    @staticmethod
    def forward(ctx: Kept, inputs: Tensor, prob: float) -> Tensor:
        is_kept, ctx.scale = random_mask(inputs.shape, prob)
        ctx.save_for_backward(is_kept)
        return (inputs * is_kept).mul_(ctx.scale)  # much faster than torch.where

    @staticmethod
    def backward(ctx: Kept, gradient: Tensor) -> tuple[Tensor, None]:
        (is_kept,) = ctx.saved_tensors
        return (gradient * is_kept).mul_(ctx.scale), None


def random_mask(shape: torch.Size, prob: float) -> tuple[Tensor, float]:
    """Draw which elements to keep, 0 with probability `prob`, else 1; return also the factor that preserves the mean.

    In numbers of one byte, since torch multiplies by them in half the time that it needs for booleans.
    """
    below = min(round(prob * 65536), 65535)  # so many of the 65536 values of 16 bits drop an element
    words = torch.empty(math.ceil(shape.numel() / 4), dtype=torch.int64).random_(-(2**63), None)
    is_kept = words.view(torch.int16)[: shape.numel()].view(shape) >= below - 32768
    return is_kept.view(torch.uint8), 65536 / (65536 - below)


GELU_TANH = functools.partial(F.gelu, approximate="tanh")  # Hendrycks and Gimpel 2016, section 2
# `gelu` is exact, with erf: the released weights were trained with it. google-research/bert later changed its code to the
# tanh approximation, which Hugging Face calls `gelu_new`.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": GELU_TANH,
    "gelu_pytorch_tanh": GELU_TANH,
    "leaky_relu": F.leaky_relu,
    "mish": F.mish,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "relu6": F.relu6,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}
