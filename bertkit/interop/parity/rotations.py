"""Rotary positions of ModernBERT, EuroBERT, Nomic BERT, GTE and Jina, the norms of EuroBERT and DeBERTa, and DeBERTa's scale of the scores in float64.

`transformers` computes them in float32 even in a float64 model, so that its results differ from the exact ones by about 1e-7. For the
comparison in float64, its functions are replaced by the same computation in float64; in float32 they are its own.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

MODULE = "transformers.models.modernbert.modeling_modernbert"
DEBERTA = "transformers.models.deberta.modeling_deberta"
DEBERTA_V2 = "transformers.models.deberta_v2.modeling_deberta_v2"
EUROBERT = "transformers.models.eurobert.modeling_eurobert"
# the classes of rotary positions alone
ROTARY = {
    EUROBERT: "EuroBertRotaryEmbedding",
    "transformers.models.nomic_bert.modeling_nomic_bert": "NomicBertRotaryEmbedding",
    "transformers.models.gte.modeling_gte": "GteRotaryEmbedding",
    "transformers.models.jina_embeddings_v3.modeling_jina_embeddings_v3": "JinaEmbeddingsV3RotaryEmbedding",
}


def _angles(self: Any, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of all positions, each (1, T, H)."""
    size = self.config.hidden_size // self.config.num_attention_heads
    named = self.config.rope_parameters
    own = named if layer_type is None else named[layer_type]
    frequencies = own["rope_theta"] ** -(torch.arange(0, size, 2, dtype=x.dtype) / size) / own.get("factor", 1.0)
    angles = torch.cat([position_ids[..., None] * frequencies] * 2, -1)
    return angles.cos(), angles.sin()


def _rotated(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> list[Tensor]:
    """Rotate queries and keys, (B, N, T, H)."""
    halves = [(vectors, torch.cat([-vectors.chunk(2, -1)[1], vectors.chunk(2, -1)[0]], -1)) for vectors in (query, key)]
    return [vectors * cos.unsqueeze(1) + turned * sin.unsqueeze(1) for vectors, turned in halves]


def _scale(vectors: Tensor, num_terms: int) -> Tensor:
    """Return the square root of the size of a head times the number of terms, in the dtype of the vectors."""
    return torch.tensor(vectors.shape[-1] * num_terms, dtype=vectors.dtype).sqrt()


def _normed(self: Any, hidden_states: Tensor) -> Tensor:
    """Divide vectors by their root mean square."""
    scale = torch.rsqrt(hidden_states.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    return self.weight * (hidden_states * scale)  # type: ignore[no-any-return]


def _centred(self: Any, hidden_states: Tensor) -> Tensor:
    """Compute LayerNorm."""
    return F.layer_norm(hidden_states, self.weight.shape, self.weight, self.bias, self.variance_epsilon)


@contextlib.contextmanager
def exact_rotations() -> Iterator[None]:
    """Compute the rotary positions and the scale of `transformers` in the dtype of the model."""
    with contextlib.ExitStack() as patches:
        if MODULE in sys.modules:
            patches.enter_context(patch(f"{MODULE}.ModernBertRotaryEmbedding.forward", _angles))
            patches.enter_context(patch(f"{MODULE}.apply_rotary_pos_emb", _rotated))
        for module, name in ROTARY.items():
            if module in sys.modules:
                patches.enter_context(patch(f"{module}.{name}.forward", _angles))
        for module in (DEBERTA, DEBERTA_V2):
            if module in sys.modules:
                patches.enter_context(patch(f"{module}.scaled_size_sqrt", _scale))
        if DEBERTA in sys.modules:
            patches.enter_context(patch(f"{DEBERTA}.DebertaLayerNorm.forward", _centred))
        if EUROBERT in sys.modules:
            patches.enter_context(patch(f"{EUROBERT}.EuroBertRMSNorm.forward", _normed))
        yield
