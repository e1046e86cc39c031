"""Scaled dot-product attention, and multi-head attention over a layout.

The only file that looks at the layout: tokens attend to the tokens of their own sequence and to no others.

Axes: S packed tokens, B sequences of T tokens, D hidden_size, N heads, H head size (D = N * H).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertkit.model import kernels
from bertkit.model.config import BertConfig
from bertkit.model.kernels import Linear
from bertkit.model.layout import Layout


def attend(query: Tensor, key: Tensor, value: Tensor, layout: Layout, dropout_prob: float = 0.0) -> Tensor:
    """Let every token take the values of its own sequence, by the softmax of query . key / sqrt(H).

        context = softmax(query key^T / sqrt(H)) value

    Neighbouring sequences of equal length are computed together; nothing is padded.

    Args:
        query: (S, N, H), as `key` and `value`.
        key: what the queries are compared with.
        value: what is taken.
        layout: where the sequences lie.
        dropout_prob: chance that a weight is dropped; 0 outside training.

    Returns:
        The context, (S, N, H).

    Source: Vaswani et al. 2017, equation 1.
    """
    if kernels.takes_packed(query):
        return kernels.packed_attention(query, key, value, layout, dropout_prob)
    sizes = [count * length for _, count, length in layout.runs]
    sizes.append(len(query) - sum(sizes))  # rows of no sequence, which `kernels.even_rows` added
    contexts = []
    # split, and not sliced: the gradient of a slice is as large as all of it
    for (_, count, length), *of_run in zip(
        layout.runs, *(torch.split(packed, sizes) for packed in (query, key, value)), strict=False
    ):
        q, k, v = (part.view(count, length, *part.shape[1:]).transpose(1, 2) for part in of_run)  # (B, N, T, H)
        context = kernels.attention(q, k, v, dropout_prob)
        contexts.append(context.transpose(1, 2).flatten(0, 1))  # (B * T, N, H)
    if sizes[-1]:
        contexts.append(query.new_zeros(sizes[-1], *query.shape[1:]))
    return torch.cat(contexts)


class MultiHeadAttention(nn.Module):
    """N attention heads side by side, and the projection of their contexts.

    Source: Vaswani et al. 2017, section 3.2.2; google-research/bert modeling.py `attention_layer`.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.query = Linear(config.hidden_size, config.hidden_size)
        self.key = Linear(config.hidden_size, config.hidden_size)
        self.value = Linear(config.hidden_size, config.hidden_size)
        self.output = Linear(config.hidden_size, config.hidden_size)
        self.dropout_prob = config.attention_probs_dropout_prob
        self.attend = attend

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        """Mix the tokens of each sequence: (S, D) -> (S, D)."""
        query, key, value = (
            projection(hidden).unflatten(1, (self.num_heads, -1))  # (S, N, H)
            for projection in (self.query, self.key, self.value)
        )
        context = self.attend(query, key, value, layout, self.dropout_prob if self.training else 0.0)
        return self.output(context.flatten(1))  # type: ignore[no-any-return]
