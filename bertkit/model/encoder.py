"""The Transformer encoder, LayerNorm after the residual (Vaswani et al. 2017, figure 1, left).

Axes: S packed tokens, D hidden_size, F intermediate_size, L layers.
"""

from __future__ import annotations

from torch import Tensor, nn

from bertkit.model.activations import ACTIVATIONS
from bertkit.model.attention import MultiHeadAttention
from bertkit.model.config import BertConfig
from bertkit.model.kernels import Dropout, Linear, even_rows
from bertkit.model.layout import Layout


class FeedForward(nn.Module):
    """Two linear maps with an activation between, in BERT a GELU, for each token by itself."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.intermediate = Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.output = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """(S, D) -> (S, F) -> (S, D)."""
        return self.output(self.activation(self.intermediate(hidden)))  # type: ignore[no-any-return]


class EncoderLayer(nn.Module):
    """Attention, then feed-forward, each with dropout, residual and LayerNorm."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        """(S, D) -> (S, D)."""
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, layout)))
        hidden = self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))
        return hidden


class Encoder(nn.Module):
    """L layers."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, hidden: Tensor, layout: Layout, output_hidden_states: bool = False) -> list[Tensor]:
        """Give the last output, (S, D), or the input and the output of every layer, L + 1 times (S, D)."""
        num_tokens = len(hidden)
        hidden_states = [even_rows(hidden)]
        for layer in self.layers:
            output = layer(hidden_states[-1], layout)
            hidden_states = [*hidden_states, output] if output_hidden_states else [output]
        return [each[:num_tokens] for each in hidden_states]
