"""The fast ways: other ways to compute the same, each with a name, each of which can be switched off.

A model is switched to them by `BertWithHeads.use`. The plain way is `torch.nn.functional`'s. It is taken wherever a fast way
does not apply: on other devices, in other dtypes, under autocast, while a graph is traced. Results differ from it by
rounding, those of dropout by the elements that are drawn.
"""

from __future__ import annotations

import ctypes
import functools
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class FastWays:
    """Those that a run takes; the names are in its checkpoints. `packed_attention` is for CUDA, all others for a CPU.

    Attributes:
        onednn_linear: float32 linear maps by oneDNN instead of the BLAS that torch was built with, which runs below the rate
            of processors of other makers than its own: taken on those (`choose`).
        packed_weights: the weights of a decoder that writes, once more, in the order in which they are read fastest for few
            rows: a token of each of a few texts takes as long as reading all of them, and the usual order takes twice that.
        short_dropout: dropout from 16 random bits an element instead of 64; the probability is exact to 1/65536.
        even_rows: numbers of tokens rounded up, by 1/32 at most: oneDNN makes and keeps a program for each number of rows, of
            which a run without padding meets thousands, and hundreds of megabytes of them.
        loss_in_place: the cross-entropy over a vocabulary and its gradient where the logits were: no more tensors of their
            size.
        kept_memory: freed memory stays with the process: glibc's allocator would give large blocks back, and get them anew
            from the system, page by page, in every step.
        own_attention: attention with dropout as matrix products and `short_dropout`; torch's own then leaves its fast path.
        packed_attention: attention of a whole batch by one kernel: torch's variable-length flash attention without dropout
            in half precision, else padded and masked by its memory-efficient one.
    """

    onednn_linear: bool = False
    packed_weights: bool = False
    short_dropout: bool = False
    even_rows: bool = False
    loss_in_place: bool = False
    kept_memory: bool = False
    own_attention: bool = False
    packed_attention: bool = False

    @classmethod
    def of(cls, names: Iterable[str]) -> FastWays:
        """Those of these names."""
        return cls(**dict.fromkeys(names, True))

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are taken."""
        return tuple(name for name in NAMES if getattr(self, name))


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
NAMES = tuple(field.name for field in fields(FastWays))
PLAIN, ALL = FastWays(), FastWays.of(NAMES)
# faster on every processor
ANYWHERE = FastWays.of(name for name in NAMES if name not in ("onednn_linear", "packed_weights"))


def choose(kernels: Literal["auto", "plain"]) -> FastWays:
    """Give those that suit this processor, or none: by what it is, so that every start on it chooses alike."""
    if kernels == "plain":
        return PLAIN
    return ALL if has_onednn() and not _is_intel() else ANYWHERE


def has_onednn() -> bool:
    """Whether this torch has oneDNN's linear map."""
    import torch

    return torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _is_intel() -> bool:
    """Whether MKL runs at the full rate of the processor."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True  # unknown: the plain way


def allow_compiler_cache() -> None:
    """Let torch make its folder for compiled code; the command line keeps it from that where nothing is compiled."""
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR") == os.path.abspath(tempfile.gettempdir()):
        del os.environ["TORCHINDUCTOR_CACHE_DIR"]


@functools.cache
def keep_freed_memory() -> None:
    """Let glibc map and trim nothing below a gigabyte; other C libraries have no `mallopt`."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            mallopt(parameter, 1 << 30)
