"""The functions between two linear maps, by the names that configurations give them."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor


def gelu_tanh(hidden: Tensor) -> Tensor:
    """GELU by its tanh approximation (Hendrycks and Gimpel 2016, section 2)."""
    return F.gelu(hidden, approximate="tanh")


# `gelu` is the exact one, with erf, as the released weights were trained with; google-research/bert later changed its
# code to the tanh approximation, which Hugging Face calls `gelu_new`.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
}
