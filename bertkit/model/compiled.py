"""The repeated layer of the encoder as compiled graphs, which fuse elementwise operations.

All layers share one layer's graphs, since they differ only in their parameters. Attention is not compiled: it has its own
fast kernels, and only it reads the geometry, in plain Python. A graph therefore depends only on the number of tokens, a
symbolic dimension. Training, evaluation and frozen layers use separate graphs; each is compiled at its first step and
then reused.

Inside the graphs the fast ways of the CPU are not taken, and the compiler draws the elements that dropout sets to 0: its
probability is exact, and it follows the seed of torch. Parameters and their names stay as they are.
"""

import importlib.util
import os
import shutil

import torch
from torch import nn

from bertkit.kernels.fast import allow_compiler_cache
from bertkit.model.attention import attend
from bertkit.model.bert import Encoder, EncoderLayer


def missing_for(device_type: str) -> str | None:
    """Name the first missing requirement of torch.compile; None if nothing is missing."""
    if device_type == "cpu":
        return None if shutil.which(os.environ.get("CXX", "g++")) else "a C++ compiler"
    if importlib.util.find_spec("triton") is None:
        return "the package triton"
    if not (
        os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    ):  # triton builds its launchers with it
        return "a C compiler"
    return None if torch.cuda.get_device_capability() >= (7, 0) else "a GPU of compute capability 7.0 or later"


def compile_layers(encoder: nn.Module, backend: str = "inductor") -> None:
    """Compile the layers of a Transformer encoder when they first run; a recurrent one has kernels of its own."""
    if not isinstance(encoder, Encoder):
        return
    allow_compiler_cache()
    for layer in encoder.layers:
        assert isinstance(layer, EncoderLayer)
        layer.attention.attend = torch.compiler.disable(attend)  # type: ignore[no-untyped-call]
        layer.compile(dynamic=True, backend=backend)
