"""BERT: embeddings, encoder (LayerNorm after the residual: Vaswani et al. 2017, figure 1, left), pooler; all initial weights.

Axes, the same in every file of the model: B sequences, S packed tokens, T tokens per sequence, D hidden_size, N heads,
H head size (D = N * H), F intermediate_size, V vocab_size, M masked positions, L layers, C labels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertkit.model.attention import MultiHeadAttention
from bertkit.model.config import BertConfig
from bertkit.model.layout import Layout
from bertkit.model.linear import ACTIVATIONS, Dropout, Linear


class Embeddings(nn.Module):
    """Token + position + segment embedding (Devlin et al. 2019, figure 2), LayerNorm, dropout."""

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

    def forward(self, hidden: Tensor, layout: Layout, kept: list[Tensor] | None = None) -> Tensor:
        """(S, D) -> (S, D); `kept` takes the attention weights where they are asked for."""
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, layout, kept)))
        hidden = self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))
        return hidden


class Encoder(nn.Module):
    """L layers."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_hidden_layers))

    def forward(
        self, hidden: Tensor, layout: Layout, output_hidden_states: bool = False, kept: list[Tensor] | None = None
    ) -> list[Tensor]:
        """Give the last output, (S, D), or the input and the output of every layer, L + 1 times (S, D)."""
        hidden_states = [hidden]
        for layer in self.layers:
            output = layer(hidden_states[-1], layout, kept)
            hidden_states = [*hidden_states, output] if output_hidden_states else [output]
        return hidden_states


class Pooler(nn.Module):
    """One vector for a sequence: tanh of a linear map of its [CLS] token."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)

    def forward(self, cls: Tensor) -> Tensor:
        """(B, D) -> (B, D)."""
        return torch.tanh(self.dense(cls))


class Bert(nn.Module):
    """The encoder of Devlin et al. 2019 over packed tokens."""

    def __init__(self, config: BertConfig, with_pooler: bool = True) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.pooler = Pooler(config) if with_pooler else None

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        layout: Layout,
        output_hidden_states: bool = False,
        kept: list[Tensor] | None = None,
    ) -> tuple[list[Tensor], Tensor | None]:
        """Encode packed tokens.

        Args:
            input_ids: (S,).
            token_type_ids: 0 for the first segment, 1 for the second, (S,).
            layout: where the sequences lie.
            output_hidden_states: give the output of every layer.
            kept: takes the attention weights of every layer, L of (B, N, T, T), T the longest; None where nobody asks.

        Returns:
            The last hidden state, (S, D), or all L + 1 of them; and the pooled output (B, D), None without a pooler.
        """
        embedded = self.embeddings(input_ids, token_type_ids, layout)
        hidden_states = self.encoder(embedded, layout, output_hidden_states, kept)
        pooled = self.pooler(hidden_states[-1][layout.starts]) if self.pooler is not None else None
        return hidden_states, pooled


def init_weights(model: nn.Module, std: float, generator: torch.Generator) -> None:
    """Initialise every parameter: truncated normal weights, zero biases, LayerNorm at one and zero.

    The normal is cut at two standard deviations, as in google-research/bert modeling.py `create_initializer`;
    Hugging Face does not cut it.

    `std` is `initializer_range`; the generator is on the CPU.
    """
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std, generator=generator)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        else:
            for name, parameter in module.named_parameters(recurse=False):
                assert name == "bias", f"no rule to initialise {name} of {type(module).__name__}"
                nn.init.zeros_(parameter)
