"""Other ways to compute the same, faster; each has a name here and can be switched off.

On a CPU:

    onednn_linear     float32 linear maps by oneDNN instead of the BLAS that torch was built with, which runs below the rate
                      of processors of other makers than its own: taken on those (`choose`)
    short_dropout     dropout from 16 random bits an element instead of 64; the probability is exact to 1/65536
    even_rows         numbers of tokens rounded up, by 1/32 at most: oneDNN makes and keeps a program for each number of rows,
                      of which a run without padding meets thousands, and hundreds of megabytes of them
    loss_in_place     the cross-entropy over a vocabulary and its gradient where the logits were: no more tensors of their size
    kept_memory       freed memory stays with the process: glibc's allocator would give large blocks back, and get them anew from
                      the system, page by page, in every step
    own_attention     attention with dropout as matrix products and `short_dropout`; torch's own then leaves its fast path

On CUDA:

    packed_attention  attention of a whole batch by one kernel: torch's variable-length flash attention without dropout in half
                      precision, else padded and masked by its memory-efficient one

The plain way is `torch.nn.functional`'s. It is taken wherever a kernel does not apply: on other devices, in other dtypes,
under autocast, while a graph is traced. Results differ from it by rounding, those of dropout by the elements that are drawn.

Axes: B sequences, S packed tokens, T tokens per sequence, N heads, H head size, n, m: any number of rows and columns.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from bertkit.batch import IGNORED
from bertkit.model.layout import Layout, pad

ON_CPU = ("onednn_linear", "short_dropout", "even_rows", "loss_in_place", "kept_memory", "own_attention")
ON_CUDA = ("packed_attention",)
NAMES = (*ON_CPU, *ON_CUDA)
ALWAYS_FASTER = ("short_dropout", "even_rows", "loss_in_place", "kept_memory", "own_attention", *ON_CUDA)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
COLUMNS_AT_ONCE = 4096  # of a gradient; only a vocabulary has more
ROWS_AT_ONCE = 16  # of a loss; with BERT's vocabulary two megabytes, which stay in the cache
EXACT_DROPOUT = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]  # of torch's on CUDA; they compare floats
_in_use: frozenset[str] = frozenset(ALWAYS_FASTER)


def use(names: Iterable[str]) -> None:
    """Choose the kernels of this process; those not named are computed the plain way."""
    global _in_use
    chosen = frozenset(names)
    assert chosen <= set(NAMES), f"unknown kernels among {sorted(chosen)}"
    _in_use = chosen
    if "kept_memory" in chosen:
        _keep_memory()


@functools.cache
def _keep_memory() -> None:
    """Let glibc map and trim nothing below a gigabyte; other C libraries have no `mallopt`."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            mallopt(parameter, 1 << 30)


def in_use() -> tuple[str, ...]:
    """Give the kernels of this process, in the order of `NAMES`."""
    return tuple(name for name in NAMES if name in _in_use)


def choose(kernels: Literal["auto", "plain"]) -> tuple[str, ...]:
    """Give the kernels that suit this processor, or none: by what it is, so that every start on it chooses alike."""
    if kernels == "plain":
        return ()
    return NAMES if has_onednn() and not _is_intel() else ALWAYS_FASTER


def has_onednn() -> bool:
    """Whether this torch can compute `product`."""
    return torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _is_intel() -> bool:
    """Whether MKL runs at the full rate of the processor."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True  # unknown: the plain way


def product(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Inputs (n, k) times weight (m, k) transposed, plus bias: (n, m)."""
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")  # type: ignore[no-any-return]


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


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Map rows: inputs (n, k), weight (m, k), bias (m,) -> (n, m)."""
    if (
        "onednn_linear" in _in_use
        and inputs.dtype == weight.dtype == torch.float32
        and inputs.numel()
        and _applies(inputs)
    ):
        return _OnednnLinear.apply(inputs, weight, bias)  # type: ignore[no-any-return, no-untyped-call]
    return F.linear(inputs, weight, bias)


def even_rows(rows: Tensor) -> Tensor:
    """Add rows of zeros to (n, m): as many as `rows_to_add` says.

    Who asks for them takes the first n rows of what is computed from them, so that nothing flows back from the others.
    """
    num_more = rows_to_add(len(rows), rows)
    return F.pad(rows, (0, 0, 0, num_more)) if num_more else rows


def rows_to_add(num_rows: int, like: Tensor) -> int:
    """Say how many rows to add to so many, where oneDNN computes with them, in the dtype and on the device of a tensor.

    There are 32 numbers of rows between each power of 2 and the next, so that at most a 32nd is added.
    """
    is_by_onednn = ("onednn_linear" in _in_use and like.dtype == torch.float32) or torch.is_autocast_enabled("cpu")
    if not ("even_rows" in _in_use and is_by_onednn and like.device.type == "cpu") or _is_traced():
        return 0
    return -num_rows % (1 << max(0, num_rows.bit_length() - 6))


class _LossInPlace(torch.autograd.Function):
    """Sum of the cross-entropies, and the best label of each row; the logits become exp(logit - highest), then the gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits.detach()
        is_known = labels != IGNORED
        indices = labels.where(is_known, 0)[:, None]
        dtype = torch.promote_types(logits.dtype, torch.float32)
        chosen = logits.gather(1, indices)[:, 0].to(dtype)
        highest, sums, best = torch.empty_like(chosen), torch.empty_like(chosen), torch.empty_like(labels)
        for first in range(0, len(logits), ROWS_AT_ONCE):
            part = slice(first, first + ROWS_AT_ONCE)
            rows = logits[part]
            wide = rows.to(dtype)
            highest[part], best[part] = wide.max(1)
            sums[part] = wide.sub_(highest[part, None]).exp_().sum(1)
            if wide is not rows:
                rows.copy_(wide)
        losses = highest + sums.log() - chosen
        ctx.save_for_backward(logits, indices, sums, losses, is_known)
        ctx.mark_non_differentiable(best)
        return losses.where(is_known, 0).sum(), best

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None]:
        logits, indices, sums, losses, is_known = ctx.saved_tensors
        factors = gradient * is_known
        logits.mul_((factors / sums)[:, None])
        # that of the label by itself: in half precision nothing would be left of a small difference from 1
        logits.scatter_(1, indices, (factors * torch.expm1(-losses))[:, None].to(logits.dtype))
        return logits, None


def takes_loss(logits: Tensor) -> bool:
    """Whether `loss_in_place` is to be taken for logits (n, classes)."""
    return (
        "loss_in_place" in _in_use
        and logits.device.type == "cpu"
        and logits.requires_grad
        and torch.is_grad_enabled()
        and not _is_traced()
    )


def loss_in_place(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the cross-entropy of logits (n, classes) against labels (n,), `IGNORED` ones left out, in float32 or better.

    Returns:
        The sum, and the best label of each row, (n,). What stood in the logits is gone, and there is one way back.
    """
    return _LossInPlace.apply(logits, labels)  # type: ignore[no-any-return, no-untyped-call]


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


def dropout(inputs: Tensor, prob: float) -> Tensor:
    """Set each element to 0 with probability `prob`, and scale the others by 1 / (1 - prob).

    Source: Srivastava et al. 2014, in the scaling of google-research/bert modeling.py `dropout`.
    """
    if "short_dropout" in _in_use and 0 < prob < 1 and inputs.device.type == "cpu" and not _is_traced():
        return _ShortDropout.apply(inputs, prob)  # type: ignore[no-any-return, no-untyped-call]
    return F.dropout(inputs, prob)


def attention(query: Tensor, key: Tensor, value: Tensor, dropout_prob: float, is_token: Tensor | None = None) -> Tensor:
    """softmax(query key^T / sqrt(H)) value, with dropout of the softmax: each (B, N, T, H) -> (B, N, T, H).

    Where keys are padded, `is_token` (B, 1, 1, T) says which are not, and only those are looked at.

    On CUDA torch's flash attention is not used with dropout: it compares 8 random bits, so that 0.1 becomes 26/256, and
    scales by 1/0.9 all the same (flash-attention flash_api.cpp, `p_dropout_in_uint8_t`).
    """
    is_own = "own_attention" in _in_use and query.device.type == "cpu" and not _is_traced()
    if dropout_prob > 0 and is_own and is_token is None:
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)  # (B, N, T, T)
        return dropout(torch.softmax(scores, -1), dropout_prob) @ value
    with sdpa_kernel(EXACT_DROPOUT) if dropout_prob > 0 and query.is_cuda else nullcontext():
        return F.scaled_dot_product_attention(query, key, value, attn_mask=is_token, dropout_p=dropout_prob)


def takes_packed(query: Tensor) -> bool:
    """Whether `packed_attention` is to be taken for packed queries."""
    return "packed_attention" in _in_use and query.is_cuda and not _is_traced()


def packed_attention(query: Tensor, key: Tensor, value: Tensor, layout: Layout, dropout_prob: float) -> Tensor:
    """`attention` of every sequence of a packed batch: each (S, N, H) -> (S, N, H).

    With dropout the batch is padded. `varlen_attn` has none. Torch's memory-efficient kernel over packed tokens has, but
    its forward pass takes the longest key to be 0 tokens long, and so drops alike in all heads and sequences, and its
    backward pass otherwise (torch's attention.cu, where pytorch/pytorch#115590 is named, and, in torch 2.13,
    mem_eff_attention/kernel_forward.h and kernel_backward.h, `dropout_batch_head_rng_offset`). Over padded sequences it
    drops each weight by itself with the given probability.
    """
    varlen_attn = _varlen_attn(query.device)
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    if varlen_attn is None or dropout_prob > 0 or not is_half or query.shape[-1] % 8 or query.shape[-1] > 256:
        return padded_attention(query, key, value, layout, dropout_prob)
    longest = layout.longest
    return varlen_attn(query, key, value, layout.bounds, layout.bounds, longest, longest)  # type: ignore[no-any-return]


@functools.cache
def _varlen_attn(device: torch.device) -> Callable[..., Any] | None:
    """Give torch's function; None where torch is older, or the GPU older than Ampere."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    has_flash = torch.backends.cuda.is_flash_attention_available()
    return varlen_attn if has_flash and torch.cuda.get_device_capability(device) >= (8, 0) else None


def padded_attention(query: Tensor, key: Tensor, value: Tensor, layout: Layout, dropout_prob: float) -> Tensor:
    """`packed_attention` by way of a padded batch, on any device; nothing is padded where all lengths are equal."""
    num_sequences, longest = len(layout.starts), layout.longest
    is_padded = len(layout.runs) > 1
    q, k, v = (
        pad(packed, layout.slots, num_sequences, longest).transpose(1, 2)  # (B, N, T, H)
        if is_padded
        else packed.view(num_sequences, longest, *packed.shape[1:]).transpose(1, 2)
        for packed in (query, key, value)
    )
    is_token = None
    if is_padded:
        columns = torch.arange(longest, device=query.device)
        is_token = (columns < layout.bounds.diff()[:, None])[:, None, None]  # (B, 1, 1, T): no query looks at padding
    context = attention(q, k, v, dropout_prob, is_token).transpose(1, 2).flatten(0, 1)  # (B * T, N, H)
    return context.index_select(0, layout.slots) if is_padded else context


def _applies(inputs: Tensor) -> bool:
    return inputs.device.type == "cpu" and not torch.is_autocast_enabled("cpu") and not _is_traced()


def _is_traced() -> bool:
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


class Linear(nn.Linear):
    """torch's linear map, computed by `linear`."""

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, k) -> (n, m)."""
        return linear(inputs, self.weight, self.bias)


class Dropout(nn.Module):
    """`dropout` while training."""

    def __init__(self, prob: float) -> None:
        super().__init__()
        self.prob = prob

    def forward(self, inputs: Tensor) -> Tensor:
        """Drop elements of a tensor of any shape."""
        return dropout(inputs, self.prob) if self.training else inputs
