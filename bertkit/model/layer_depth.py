"""The depth of each part of BERT, to freeze lower parts, re-initialise upper parts, and scale learning rates.

The embeddings have depth 0, the layers 1 to L, the pooler and the heads L + 1.
"""

import torch
from torch import nn

from bertkit.model.bert import init_weights
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
    frozen: list[nn.Module] = [model.bert.embeddings, *layers][:depth]
    for module in [*frozen, *([model.bert.encoder] if depth > len(layers) else [])]:
        module.eval()
        module.requires_grad_(False)


def reinitialise_top(model: BertWithHeads, num_layers: int, seed: int) -> None:
    """Re-initialise the pooler and the uppermost layers, as at the start of pretraining.

    Source: Zhang et al. 2021, "Revisiting few-sample BERT fine-tuning", section 5.
    """
    generator = torch.Generator().manual_seed(seed)
    modules: list[nn.Module] = [*model.bert.encoder.layers][len(model.bert.encoder.layers) - num_layers :]
    if num_layers and model.bert.pooler is not None:
        modules.append(model.bert.pooler)
    for module in modules:
        init_weights(module, model.config.initializer_range, generator)
