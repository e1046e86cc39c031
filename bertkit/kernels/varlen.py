"""The kernels of torch for attention on CUDA: packed sequences, and dropout with its exact probability.

Axes: as in model/attention.py.
"""

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bertkit.kernels.layout import Layout

EXACT_DROPOUT = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]  # on CUDA these compare floats


def attend(query: Tensor, key: Tensor, value: Tensor, layout: Layout, is_causal: bool = False) -> Tensor:
    """Let every token attend to its own sequence with one kernel: each (S, N, H) -> (S, N, H)."""
    varlen_attn = _varlen_attn(query.device)
    assert varlen_attn is not None
    longest, window = layout.longest, {"window_size": (-1, 0)} if is_causal else {}
    return varlen_attn(query, key, value, layout.bounds, layout.bounds, longest, longest, **window)  # type: ignore[no-any-return]


def is_fit(query: Tensor, dropout_prob: float, is_causal: bool) -> bool:
    """Whether `attend` computes attention for such queries (S, N, H).

    `varlen_attn` has no dropout. Torch's memory-efficient kernel over packed tokens has, but its forward pass takes the
    longest key to be 0 tokens long, and so drops alike in all heads and sequences, and its backward pass otherwise (torch's
    attention.cu, where pytorch/pytorch#115590 is named, and, in torch 2.13, mem_eff_attention/kernel_forward.h and
    kernel_backward.h, `dropout_batch_head_rng_offset`). Over padded sequences it drops each weight by itself.
    """
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    if not query.is_cuda or dropout_prob > 0 or not is_half or query.shape[-1] % 8 or query.shape[-1] > 256:
        return False
    varlen_attn = _varlen_attn(query.device)
    # its first releases have no windows
    return varlen_attn is not None and (not is_causal or "window_size" in inspect.signature(varlen_attn).parameters)


@functools.cache
def _varlen_attn(device: torch.device) -> Callable[..., Any] | None:
    """Give torch's function; None where torch is older, or the GPU older than Ampere."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    has_flash = torch.backends.cuda.is_flash_attention_available()
    return varlen_attn if has_flash and torch.cuda.get_device_capability(device) >= (8, 0) else None


def exact_dropout(query: Tensor, dropout_prob: float) -> AbstractContextManager[None]:
    """Keep torch's flash attention from dropping on CUDA.

    It compares 8 random bits, so that 0.1 becomes 26/256, and scales by 1/0.9 all the same (flash-attention
    flash_api.cpp, `p_dropout_in_uint8_t`).
    """
    return sdpa_kernel(EXACT_DROPOUT) if dropout_prob > 0 and query.is_cuda else nullcontext()
