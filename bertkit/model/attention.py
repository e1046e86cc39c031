"""Scaled dot-product attention, and multi-head attention over a layout.

In a Transformer layer only `attend` mixes information between tokens: a query attends to exactly the keys that the
geometry allows. Scores, positions and patterns other than BERT's plug into slots.py.

Axes, the same in every file of the model: B sequences, S packed tokens, T tokens per sequence, D hidden_size, N heads,
H head size (D = N * H), F intermediate_size, V vocab_size, M masked positions, L layers, C labels.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.kernels.fast import ANYWHERE, FastWays, exact_dropout, fits_packed_attention, packed_attention
from bertkit.kernels.linear import Linear, dropout, is_on_cpu
from bertkit.model.bert_config import BertConfig
from bertkit.model.geometry import Geometry
from bertkit.model.patterns import Compression
from bertkit.model.scores import dot, scaled_dot
from bertkit.model.slots import AttentionVariant


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    geometry: Geometry,
    dropout_prob: float = 0.0,
    fast: FastWays = ANYWHERE,
    variant: AttentionVariant | None = None,
    kept: list[Tensor] | None = None,
) -> Tensor:
    """Average the values of the visible keys, weighted by the softmax of query . key / sqrt(H): (S, N, H).

        context = softmax(query key^T / sqrt(H)) value

    Args:
        query: (S, N, H).
        key: the queries are compared with it, (S, N, H); as many tokens as the layout `geometry.keys` has.
        value: as `key`.
        geometry: where the sequences lie, and which keys a query sees.
        dropout_prob: chance that a weight is dropped; 0 outside training.
        fast: the fast ways to take.
        variant: other scores and positions, and compressed keys.
        kept: list to which the weights are appended, (B, N, T, C), padded with zeros to the longest T and C.

    Raises:
        ValueError: weights are requested, and the keys are compressed.

    Source: Vaswani et al. 2017, equation 1.
    """
    if variant is not None:
        key, value, geometry = variant.shorten(key, value, geometry)
        variant = variant if variant.has_scores else None
    is_usual = variant is None and kept is None and not geometry.is_in_blocks
    is_apart = kept is None and not geometry.is_together  # runs of equal lengths, so far
    if query.is_cuda and is_apart and (fast.packed_attention or not is_usual) and not torch.compiler.is_compiling():
        if is_usual and geometry.is_of_self and fits_packed_attention(query, dropout_prob, geometry.is_causal):
            return packed_attention(query, key, value, geometry.queries, geometry.is_causal)
        geometry = replace(geometry, is_together=True)  # starting a kernel costs more than padding does
    has_kernel = is_usual and not (dropout_prob > 0 and fast.own_attention and is_on_cpu(query))
    contexts, weights_of_groups = [], []
    for group, q, k, v in geometry.take(query, key, value):  # (B, N, T, H), and twice (B, N, C, H)
        if is_usual and group.shape[1:] == (1, 1) and not geometry.is_together:
            context = v  # a single token, such as slack: the softmax of one score is 1
        elif has_kernel:
            context = attend_by_kernel(q, k, v, group.seen, group.is_causal, dropout_prob)
        else:
            if is_usual:
                scores = dot(q * q.shape[-1] ** -0.5, k)  # `scaled_dot`; there are fewer queries than scores to scale
            else:
                scores = scaled_dot(q, k) if variant is None else variant.scores(q, k, group)  # (B, N, T, C)
            weights = torch.softmax(hide(scores, group.seen), -1)
            dropped = dropout(weights, dropout_prob, fast) if dropout_prob > 0 else weights
            context = dropped @ v if variant is None else variant.context(dropped, v, group)
            weights_of_groups.append(weights)
        contexts.append(context)
    if kept is not None:
        kept.append(geometry.join_weights(weights_of_groups))
    return geometry.put_back(contexts, len(query))


def hide(scores: Tensor, seen: Tensor | None) -> Tensor:
    """Give the lowest score to keys that a query does not see, so that their weight is 0; None: it sees all."""
    return scores if seen is None else scores.masked_fill(~seen, torch.finfo(scores.dtype).min)


def attend_by_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Tensor | None = None,
    is_causal: bool = False,
    dropout_prob: float = 0.0,
) -> Tensor:
    """The equation of `attend` by torch's kernel: queries (B, N, T, H), keys and values (B, N, C, H) -> (B, N, T, H)."""
    with exact_dropout(query, dropout_prob):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=None if is_causal else seen, dropout_p=dropout_prob, is_causal=is_causal
        )


class MultiHeadAttention(nn.Module):
    """N attention heads side by side, and the projection of their contexts.

    Source: Vaswani et al. 2017, section 3.2.2; google-research/bert modeling.py `attention_layer`.
    """

    fast = ANYWHERE  # replaced by `BertWithHeads.use`

    def __init__(self, config: BertConfig, shared: Compression | None = None) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.slots = AttentionVariant(config, shared)  # empty in a BERT
        self.query = Linear(config.hidden_size, config.hidden_size)
        self.key = Linear(config.hidden_size, config.hidden_size) if self.slots.need_keys else None
        self.value = Linear(config.hidden_size, config.hidden_size)
        self.output = Linear(config.hidden_size, config.hidden_size)
        self.dropout_prob = config.attention_probs_dropout_prob
        self.attend = attend  # replaced by `compile_layers`

    def forward(
        self, hidden: Tensor, geometry: Geometry, kept: list[Tensor] | None = None, source: Tensor | None = None
    ) -> Tensor:
        """Let tokens (S, D) attend to themselves, or to a `source` (n, D): -> (S, D); `kept` takes the weights, (B, N, T, C)."""
        source = hidden if source is None else source
        query = self.in_heads(self.query, hidden)
        key = None if self.key is None else self.in_heads(self.key, source)
        query, key = self.slots.fill(query, key, geometry.queries)
        value = self.in_heads(self.value, source)
        dropout_prob = self.dropout_prob if self.training else 0.0
        context = self.attend(query, key, value, geometry, dropout_prob, self.fast, self.slots, kept)
        return self.output(context.flatten(1))  # type: ignore[no-any-return]

    def keys_and_values(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(n, D) -> twice (n, N, H)."""
        assert self.key is not None, "a location score is for encoders"
        return self.in_heads(self.key, hidden), self.in_heads(self.value, hidden)

    def in_heads(self, projection: Linear, hidden: Tensor) -> Tensor:
        """(n, D) -> (n, N, H)."""
        return projection(hidden).unflatten(1, (self.num_heads, -1))  # type: ignore[no-any-return]
