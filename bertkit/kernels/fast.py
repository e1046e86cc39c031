"""Fast kernels: optional ways to compute the operations of `torch.nn.functional`, each with a name and a switch.

`BertWithHeads.use` sets the switches of a model. Where a fast kernel does not apply (another device or dtype, autocast, a
graph that is being traced) torch's own function is used. Results differ by rounding, and dropout drops other elements.

Axes: as in model/attention.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import tempfile
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bertkit.kernels.layout import Layout


@dataclass(frozen=True)
class FastWays:
    """Which fast kernels a run uses; saved in its checkpoints. The last four are for CUDA, all others for a CPU."""

    # float32 linear maps with oneDNN instead of MKL, which is slow on processors that are not Intel's
    onednn_linear: bool = False
    # a second copy of a decoder's weights while it generates text, in a memory layout for few rows: a step for a few texts takes
    # as long as reading all weights, and with the usual layout twice as long
    packed_weights: bool = False
    short_dropout: bool = False  # from 16 random bits an element instead of 64; the probability is exact to 1/65536
    # the number of tokens in a batch is rounded up, by 1/32 at most, since oneDNN compiles a program for each number of rows and
    # keeps it; a run without padding has thousands of different numbers: hundreds of megabytes
    even_rows: bool = False
    loss_in_place: bool = False  # cross-entropy over a vocabulary that overwrites the logits with their gradient
    # the process keeps freed memory; glibc would return large blocks, and get them back page by page in every step
    kept_memory: bool = False
    # matrix products and `short_dropout`, a sequence at a time (`kernels.sequences`), since torch's kernel is slow with dropout
    own_attention: bool = False
    # rotary positions in halves, and units gated by GELU, in fewer passes over memory (`kernels.elementwise`)
    few_passes: bool = False
    # attention of a whole batch by one kernel: variable-length flash attention in half precision, else memory-efficient
    # attention over padded sequences with a mask
    packed_attention: bool = False
    half_residuals: bool = (
        False  # in half precision a post-norm layer also returns half precision: a fifth less memory to move
    )
    even_columns: bool = (
        False  # the decoder over a vocabulary is computed with a multiple of 8 columns, as matrix units need it
    )
    # passes of training in half precision as CUDA graphs (`model.recorded`); the numbers of tokens and of masked tokens are then
    # rounded up
    recorded_passes: bool = False

    @classmethod
    def of(cls, names: Iterable[str]) -> FastWays:
        """Switch on the fast kernels with these names."""
        return cls(**dict.fromkeys(names, True))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fast kernels that are on."""
        return tuple(name for name, is_on in vars(self).items() if is_on)


EXACT_DROPOUT = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]  # on CUDA these compare floats
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
NAMES = tuple(field.name for field in fields(FastWays))
PLAIN, ALL = FastWays(), FastWays.of(NAMES)
# faster on every processor
ANYWHERE = FastWays.of(name for name in NAMES if name not in ("onednn_linear", "packed_weights"))


def choose(kernels: Literal["auto", "plain"]) -> FastWays:
    """Choose the fast kernels by the maker of this processor, so that every start makes the same choice; none for `plain`."""
    if kernels == "plain":
        return PLAIN
    return ALL if has_onednn() and not _is_intel() else ANYWHERE


def has_onednn() -> bool:
    """Whether this torch has oneDNN's linear map."""
    return torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _is_intel() -> bool:
    """Whether MKL runs at full speed on this processor."""
    with contextlib.suppress(OSError):
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    return True  # unknown, so `onednn_linear` stays off


def allow_compiler_cache() -> None:
    """Let torch create its folder for compiled code; the command line prevents that until something is compiled."""
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR") == os.path.abspath(tempfile.gettempdir()):
        del os.environ["TORCHINDUCTOR_CACHE_DIR"]


@functools.cache
def keep_freed_memory() -> None:
    """Stop glibc from mapping and trimming blocks below a gigabyte; other C libraries have no `mallopt`."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            mallopt(parameter, 1 << 30)


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    queries: Layout,
    keys: Layout,
    key_range: tuple[int, int],
    dropout_prob: float,
) -> Tensor:
    """Compute attention of all sequences with one CUDA kernel: queries (S, N, H), keys and values (n, N, H) -> (S, N, H).

    A query attends to `key_range` tokens before and after it, -1: all, as always between two layouts.

    The kernel draws 8 random bits for each weight, so it keeps a multiple of 1/256 of them: 230/256 for a `dropout_prob` of
    0.1. It is asked for 26/256 instead, which it drops, and scales by, exactly (flash-attention flash_api.cpp,
    `p_dropout_in_uint8_t`).
    """
    flash, (before, after) = torch.ops.aten._flash_attention_forward, key_range
    places = queries.bounds, keys.bounds, queries.longest, keys.longest
    windows = {"window_size_left": before, "window_size_right": after}
    return flash(query, key, value, *places, _share_dropped(dropout_prob), False, False, **windows)[0]  # type: ignore[no-any-return]


@functools.cache
def _share_dropped(dropout_prob: float) -> float:
    """Return the share of weights that flash attention drops for this probability, a multiple of 1/256."""
    kept = float(torch.tensor(1.0) - torch.tensor(dropout_prob))  # in float32, as the kernel computes it
    return 1 - (math.floor(kept * 255) + 1) / 256


def fits_packed(query: Tensor) -> bool:
    """Whether `packed_attention` supports such queries (S, N, H).

    Torch's memory-efficient kernel also computes packed tokens, but its dropout is wrong there: its forward pass takes the
    longest key to be 0 tokens long, and so drops the same weights in all heads and sequences, while its backward pass drops
    others (torch's attention.cu, which names pytorch/pytorch#115590, and, in torch 2.13,
    mem_eff_attention/kernel_forward.h and kernel_backward.h, `dropout_batch_head_rng_offset`). Over padded sequences it
    drops each weight independently.
    """
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    return (
        query.is_cuda and is_half and query.shape[-1] % 8 == 0 and query.shape[-1] <= 192 and _has_flash(query.device)
    )


@functools.cache
def _has_flash(device: torch.device) -> bool:
    """Whether torch has flash attention for this GPU, which must be Ampere or later."""
    return torch.backends.cuda.is_flash_attention_available() and torch.cuda.get_device_capability(device) >= (8, 0)


def exact_dropout(query: Tensor, dropout_prob: float) -> AbstractContextManager[None]:
    """Prevent the use of torch's flash attention with dropout on CUDA, since its probability is not exact.

    It compares 8 random bits, so that 0.1 becomes 26/256, but scales by 1/0.9 (flash-attention flash_api.cpp,
    `p_dropout_in_uint8_t`); `packed_attention` asks for a multiple of 1/256.
    """
    return sdpa_kernel(EXACT_DROPOUT) if dropout_prob > 0 and query.is_cuda else nullcontext()
