"""BERT: embeddings, encoder, pooler; and all weight initialisation.

Axes: B sequences, S packed tokens, D hidden_size, L layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertkit.model.config import BertConfig
from bertkit.model.embeddings import Embeddings
from bertkit.model.encoder import Encoder
from bertkit.model.kernels import Linear
from bertkit.model.layout import Layout


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
        self, input_ids: Tensor, token_type_ids: Tensor, layout: Layout, output_hidden_states: bool = False
    ) -> tuple[list[Tensor], Tensor | None]:
        """Encode packed tokens.

        Args:
            input_ids: (S,).
            token_type_ids: 0 for the first segment, 1 for the second, (S,).
            layout: where the sequences lie.
            output_hidden_states: give the output of every layer.

        Returns:
            The last hidden state, (S, D), or all L + 1 of them; and the pooled output (B, D), None without a pooler.
        """
        embedded = self.embeddings(input_ids, token_type_ids, layout)
        hidden_states = self.encoder(embedded, layout, output_hidden_states)
        pooled = self.pooler(hidden_states[-1][layout.starts]) if self.pooler is not None else None
        return hidden_states, pooled


def init_weights(model: nn.Module, std: float, generator: torch.Generator) -> None:
    """Initialise every parameter: truncated normal weights, zero biases, LayerNorm at one and zero.

    The normal is cut at two standard deviations, as in google-research/bert modeling.py `create_initializer`;
    Hugging Face does not cut it.

    Args:
        model: any module of bertkit.
        std: `initializer_range`.
        generator: the source of randomness, on the CPU.
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
