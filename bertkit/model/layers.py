"""Operations on single layers of a model: freeze lower ones, compile all, compute them twice.

The depth of a part of BERT is 0 for the embeddings, 1 to L for the layers, and L + 1 for the pooler and the heads.

A compiled layer is two graphs, before attention and after it, and all layers of one kind share them. Attention is not compiled: it has its
own fast kernels, and its plain Python code reads the geometry of the batch. A graph therefore depends only on the number of
tokens, which is a symbolic dimension. Training, evaluation and frozen layers use separate graphs, each compiled when it is
first needed. In a graph the compiler's own dropout replaces the fast kernels for the CPU: its probability is exact, and it
follows the seed of torch.
"""

import functools
import importlib.util
import os
import shutil

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bertkit.base.errors import InputError
from bertkit.kernels.fast import allow_compiler_cache
from bertkit.model.bert import Encoder, EncoderLayer
from bertkit.model.decoder import Decoder
from bertkit.model.heads import BertWithHeads


def depth_of(name: str, num_layers: int) -> int:
    """Return the depth of a parameter of `BertWithHeads` by its name."""
    parts = name.split(".")
    if parts[:2] == ["bert", "embeddings"]:
        return 0
    if parts[:3] == ["bert", "encoder", "layers"]:
        return int(parts[3]) + 1
    return num_layers + 1


def freeze_below(model: BertWithHeads, depth: int) -> None:
    """Freeze all parts below a depth: no gradients, and evaluation mode, so no dropout.

    Call it after `model.train()`; with depth 1 the embeddings are frozen, with L + 1 the whole encoder.
    """
    layers = model.bert.encoder.layers
    if model.config.shared_layers and 1 < depth <= len(layers):
        raise InputError(
            f"freeze=layers:{depth - 1}: all layers of this model have the same weights; set freeze=embeddings or encoder"
        )
    frozen: list[nn.Module] = [model.bert.embeddings, *layers][:depth]
    for module in [*frozen, *([model.bert.encoder] if depth > len(layers) else [])]:
        module.eval()
        module.requires_grad_(False)


def missing_for(device_type: str) -> str | None:
    """Return the first missing requirement of torch.compile; None if nothing is missing."""
    if device_type == "cpu":
        return None if shutil.which(os.environ.get("CXX", "g++")) else "a C++ compiler"
    if importlib.util.find_spec("triton") is None:
        return "the package triton"
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "a C compiler"  # triton builds its launchers with it
    return None if torch.cuda.get_device_capability() >= (7, 0) else "a GPU of compute capability 7.0 or later"


def compile_layers(encoder: nn.Module, backend: str = "inductor") -> None:
    """Compile the layers of a Transformer encoder when they first run; a recurrent encoder uses torch's own GRU kernels."""
    if not isinstance(encoder, Encoder):
        return
    allow_compiler_cache()
    # ModernBERT has three kinds of layers, the first, local ones and others, each while it trains, is evaluated, or is frozen
    torch._dynamo.config.recompile_limit = 16
    for layer in dict.fromkeys(encoder.layers):
        assert isinstance(layer, EncoderLayer)
        is_whole = not layer.has_plugin  # whose Python code may break a graph
        compiled = functools.partial(torch.compile, fullgraph=is_whole, dynamic=True, backend=backend)
        layer.before_attention = compiled(layer.before_attention)  # type: ignore[method-assign]
        layer.after_attention = compiled(layer.after_attention)  # type: ignore[method-assign]


def recompute_layers(model: BertWithHeads) -> None:
    """Keep only the inputs of the layers for the backward pass, which computes each layer again, with the same dropout.

    The backward pass begins with the last layer of a stack, so that layer is kept whole: computing it again would save nothing
    of the memory that the others need one after another.

    Source: Chen et al. 2016, "Training deep nets with sublinear memory cost", section 4.
    """
    if not isinstance(model.bert.encoder, Encoder):
        raise InputError("recompute=layers: has no effect with a recurrent model; leave it out")
    for stack in model.modules():
        for layer in dict.fromkeys(stack.layers[:-1]) if isinstance(stack, (Encoder, Decoder)) else ():
            layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
