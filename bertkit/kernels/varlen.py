"""`attend` on CUDA: attention of all sequences of a packed batch by one kernel, and dropout with its exact probability.

Axes: as in model/attention.py.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bertkit.kernels.layout import Layout, pad

EXACT_DROPOUT = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]  # of torch's on CUDA; they compare floats


def attend(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, dropout_prob: float = 0.0, is_causal: bool = False
) -> Tensor:
    """Let every token attend to its own sequence: each (S, N, H) -> (S, N, H).

    With dropout the batch is padded. `varlen_attn` has none. Torch's memory-efficient kernel over packed tokens has, but
    its forward pass takes the longest key to be 0 tokens long, and so drops alike in all heads and sequences, and its
    backward pass otherwise (torch's attention.cu, where pytorch/pytorch#115590 is named, and, in torch 2.13,
    mem_eff_attention/kernel_forward.h and kernel_backward.h, `dropout_batch_head_rng_offset`). Over padded sequences it
    drops each weight by itself with the given probability.
    """
    varlen_attn = _varlen_attn(query.device)
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    is_fit = dropout_prob == 0 and is_half and query.shape[-1] % 8 == 0 and query.shape[-1] <= 256
    if varlen_attn is None or not is_fit or (is_causal and not _has_windows(varlen_attn)):
        return attend_padded(query, key, value, layout, dropout_prob, is_causal)
    longest, seen = layout.longest, {"window_size": (-1, 0)} if is_causal else {}
    return varlen_attn(query, key, value, layout.bounds, layout.bounds, longest, longest, **seen)  # type: ignore[no-any-return]


def _has_windows(varlen_attn: Callable[..., Any]) -> bool:
    return "window_size" in inspect.signature(varlen_attn).parameters  # not in its first releases


@functools.cache
def _varlen_attn(device: torch.device) -> Callable[..., Any] | None:
    """Give torch's function; None where torch is older, or the GPU older than Ampere."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    has_flash = torch.backends.cuda.is_flash_attention_available()
    return varlen_attn if has_flash and torch.cuda.get_device_capability(device) >= (8, 0) else None


def attend_padded(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, dropout_prob: float, is_causal: bool = False
) -> Tensor:
    """`attend` by way of a padded batch, on any device; nothing is padded where all lengths are equal."""
    num_sequences, longest = len(layout.bounds) - 1, layout.longest
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
        if is_causal:
            is_token, is_causal = is_token & ~later(longest, query.device), False
    with exact_dropout(query, dropout_prob):
        context = F.scaled_dot_product_attention(
            q, k, v, attn_mask=is_token, dropout_p=dropout_prob, is_causal=is_causal
        )
    context = context.transpose(1, 2).flatten(0, 1)  # (B * T, N, H)
    return context.index_select(0, layout.slots) if is_padded else context


def later(length: int, device: torch.device) -> Tensor:
    """Say whether key j comes after query i: (T, T)."""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(1)


def exact_dropout(query: Tensor, dropout_prob: float) -> AbstractContextManager[None]:
    """Keep torch's flash attention from dropping on CUDA.

    It compares 8 random bits, so that 0.1 becomes 26/256, and scales by 1/0.9 all the same (flash-attention
    flash_api.cpp, `p_dropout_in_uint8_t`).
    """
    return sdpa_kernel(EXACT_DROPOUT) if dropout_prob > 0 and query.is_cuda else nullcontext()
