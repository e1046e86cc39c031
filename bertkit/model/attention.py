"""Scaled dot-product attention, and multi-head attention over a layout.

Only this file and varlen.py know which tokens see each other: those of a sequence, and no others. BERT needs `attend` alone;
other scores, positions and patterns plug into slots.py.

Axes, the same in every file of the model: B sequences, S packed tokens, T tokens per sequence, D hidden_size, N heads,
H head size (D = N * H), F intermediate_size, V vocab_size, M masked positions, L layers, C labels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.kernels import varlen
from bertkit.kernels.fast import ANYWHERE, FastWays
from bertkit.kernels.layout import Across, Layout
from bertkit.kernels.linear import Linear, dropout, is_on_cpu
from bertkit.model.bert_config import BertConfig
from bertkit.model.patterns import Compression
from bertkit.model.slots import AttentionVariant


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    dropout_prob: float = 0.0,
    fast: FastWays = ANYWHERE,
    is_causal: bool = False,
) -> Tensor:
    """Let every token take the values of its own sequence, by the softmax of query . key / sqrt(H).

        context = softmax(query key^T / sqrt(H)) value

    Neighbouring sequences of equal length are computed together; nothing is padded.

    Args:
        query: (S, N, H), as `key` and `value`.
        key: what the queries are compared with.
        value: what is taken.
        layout: where the sequences lie.
        dropout_prob: chance that a weight is dropped; 0 outside training.
        fast: the fast ways to take.
        is_causal: no token looks at a later one.

    Returns:
        The context, (S, N, H).

    Source: Vaswani et al. 2017, equation 1.
    """
    if fast.packed_attention and query.is_cuda and not torch.compiler.is_compiling():
        return varlen.attend(query, key, value, layout, dropout_prob, is_causal)
    sizes = [count * length for _, count, length in layout.runs]
    # split, and not sliced: the gradient of a slice is as large as all of it
    runs = zip(layout.runs, *(torch.split(packed, sizes) for packed in (query, key, value)), strict=True)
    contexts = []
    for (_, count, length), *of_run in runs:
        if length == 1:  # slack, as no text is so short: the softmax of one score is 1
            contexts.append(of_run[2])
            continue
        q, k, v = (part.view(count, length, *part.shape[1:]).transpose(1, 2) for part in of_run)  # (B, N, T, H)
        if dropout_prob > 0 and fast.own_attention and is_on_cpu(query):
            scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)  # (B, N, T, T)
            if is_causal:
                scores = scores.masked_fill(varlen.later(length, q.device), -torch.inf)
            weights = dropout(torch.softmax(scores, -1), dropout_prob, fast)
            context = weights @ v  # (B, N, T, H)
        else:  # torch's kernel, which computes the same
            with varlen.exact_dropout(q, dropout_prob):
                context = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_prob, is_causal=is_causal)
        contexts.append(context.transpose(1, 2).flatten(0, 1))  # (B * T, N, H)
    return torch.cat(contexts)


def attend_across(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    across: Across,
    dropout_prob: float = 0.0,
    fast: FastWays = ANYWHERE,
    kept: list[Tensor] | None = None,
) -> Tensor:
    """`attend` of targets (S, N, H) to what they are paired with, themselves or their sources; slack gets zeros.

    As the lengths of pairs rarely repeat, all are one padded batch here. `kept` takes the weights, (B, N, T, C).
    """
    queries, keys, seen = across.queries, across.keys, across.seen
    q = queries.padded(query[: queries.num_tokens])  # (B, N, T, H)
    k, v = (keys.padded(each[: keys.num_tokens]) for each in (key, value))  # (B, N, C, H)
    if kept is not None or (dropout_prob > 0 and fast.own_attention and is_on_cpu(query)):
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)  # (B, N, T, C)
        weights = torch.softmax(scores if seen is None else scores.masked_fill(~seen, -torch.inf), -1)
        if kept is not None:
            kept.append(weights if queries.is_token is None else weights * queries.is_token[:, None, :, None])
        padded = (dropout(weights, dropout_prob, fast) if dropout_prob > 0 else weights) @ v
    else:
        with varlen.exact_dropout(q, dropout_prob):
            padded = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout_prob)
    context = queries.packed(padded)
    return F.pad(context, (0, 0, 0, 0, 0, len(query) - len(context))) if len(query) > len(context) else context


class MultiHeadAttention(nn.Module):
    """N attention heads side by side, and the projection of their contexts.

    Source: Vaswani et al. 2017, section 3.2.2; google-research/bert modeling.py `attention_layer`.
    """

    fast = ANYWHERE  # replaced by `BertWithHeads.use`

    def __init__(self, config: BertConfig, layer: int = 0, shared: Compression | None = None) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.slots = AttentionVariant(config, layer, shared)  # in a BERT they are empty
        self.query = Linear(config.hidden_size, config.hidden_size)
        self.key = Linear(config.hidden_size, config.hidden_size) if self.slots.need_keys else None
        self.value = Linear(config.hidden_size, config.hidden_size)
        self.output = Linear(config.hidden_size, config.hidden_size)
        self.dropout_prob = config.attention_probs_dropout_prob
        self.attend = attend  # replaced by `compile_layers`

    def forward(self, hidden: Tensor, layout: Layout, kept: list[Tensor] | None = None) -> Tensor:
        """Mix the tokens of each sequence: (S, D) -> (S, D).

        `kept` takes the weights, (B, N, T, T), where they are asked for: without dropout, and not in the fastest way.
        """
        query = self.in_heads(self.query, hidden)
        key = None if self.key is None else self.in_heads(self.key, hidden)
        query, key = self.slots.fill(query, key, layout)
        value = self.in_heads(self.value, hidden)
        dropout_prob = self.dropout_prob if self.training else 0.0
        if kept is not None:
            context = self.slots.attend_keeping(query, key, value, layout, kept)
        elif self.slots.are_plain:
            context = self.attend(query, key, value, layout, dropout_prob, self.fast, self.slots.are_causal)
        else:
            context = self.slots.attend(query, key, value, layout, dropout_prob)
        return self.output(context.flatten(1))  # type: ignore[no-any-return]

    def across(self, hidden: Tensor, source: Tensor, pairs: Across, kept: list[Tensor] | None = None) -> Tensor:
        """Let targets (S, D) look at what they are paired with, `source`: themselves or other tokens: -> (S, D)."""
        query = self.in_heads(self.query, hidden)
        key, value = self.keys_and_values(source)
        context = attend_across(query, key, value, pairs, self.dropout_prob if self.training else 0.0, self.fast, kept)
        return self.output(context.flatten(1))  # type: ignore[no-any-return]

    def keys_and_values(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(n, D) -> twice (n, N, H)."""
        assert self.key is not None, "a location score is for encoders"
        return self.in_heads(self.key, hidden), self.in_heads(self.value, hidden)

    def in_heads(self, projection: Linear, hidden: Tensor) -> Tensor:
        """(n, D) -> (n, N, H)."""
        return projection(hidden).unflatten(1, (self.num_heads, -1))  # type: ignore[no-any-return]
