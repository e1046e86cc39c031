"""The repeated layer of the encoder as compiled graphs: fused elementwise work, where that is what a device waits for.

All layers share the graphs of one, since they differ in their parameters alone. Attention stays outside of them, for it
has fast ways of its own, and only it looks at the layout, in plain Python; so a graph depends on the number of
tokens alone, which is a symbol in it. There are graphs of training and of evaluation, and where parts are frozen also of
those, whatever the lengths and the numbers of sequences: after the first step of each nothing is compiled.

Inside of the graphs the fast ways of the CPU are not taken, and dropout is the compiler's: its probability is exact, and it
follows torch's seed, but it draws other elements. Parameters and their names stay as they are.
"""

from __future__ import annotations

import importlib.util
import os
import shutil

import torch
from torch import nn

from bertkit.kernels.fast import allow_compiler_cache
from bertkit.model.attention import attend
from bertkit.model.bert import Encoder, EncoderLayer


def missing_for(device_type: str) -> str | None:
    """Say what torch.compile would need here and does not find: it builds its kernels with other programs."""
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
    """Compile the layers of an encoder, when each of them first runs; those of a recurrent one are the device's own."""
    if not isinstance(encoder, Encoder):
        return
    allow_compiler_cache()
    for layer in encoder.layers:
        assert isinstance(layer, EncoderLayer)
        layer.attention.attend = torch.compiler.disable(attend)  # type: ignore[no-untyped-call]
        layer.compile(dynamic=True, backend=backend)
