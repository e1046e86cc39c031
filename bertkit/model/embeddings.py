"""What enters the encoder: the sum of token, position and segment embeddings (Devlin et al. 2019, figure 2).

Axes: S packed tokens, D hidden_size.
"""

from __future__ import annotations

from torch import Tensor, nn

from bertkit.model.config import BertConfig
from bertkit.model.kernels import Dropout
from bertkit.model.layout import Layout


class Embeddings(nn.Module):
    """Token + position + segment embedding, LayerNorm, dropout."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.segment = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, layout: Layout) -> Tensor:
        """Embed packed tokens: (S,) -> (S, D)."""
        summed = self.token(input_ids) + self.segment(token_type_ids) + self.position(layout.position_ids)
        return self.dropout(self.norm(summed))  # type: ignore[no-any-return]
