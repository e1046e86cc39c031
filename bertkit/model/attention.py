"""Scaled dot-product attention, and multi-head attention over a layout.

In a Transformer layer only `attend` mixes information between tokens: each query attends to the keys that the geometry
allows, and to no others. slots.py adds the scores, positions and patterns that BERT does not have.

Axes, the same in every file of the model: B sequences, S packed tokens, T tokens per sequence, D hidden_size, N heads,
H head size (D = N * H), F intermediate_size, V vocab_size, M masked positions, L layers, C labels.
"""

import itertools
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.kernels.fast import ANYWHERE, FastWays, exact_dropout, fits_packed, packed_attention
from bertkit.kernels.grouped import GROUP_SIZE, GroupedAttention
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
    attentions: list[Tensor] | None = None,
) -> Tensor:
    """Average the values of the keys that each query attends to, weighted by the softmax of the scores: (S, N, H).

        context = softmax(query key^T / sqrt(H)) value

    Args:
        query: (S, N, H).
        key: (n, N, H), with the n tokens of the layout `geometry.keys`; in self-attention n = S.
        value: (n, N, H).
        geometry: where the sequences are in the batch, and which keys a query attends to.
        dropout_prob: probability of dropping a weight; 0 outside training.
        fast: the fast kernels that are on.
        variant: other scores and positions, and compressed keys; None for BERT's.
        attentions: list to which the weights are appended, (B, N, T, C), padded with zeros to the longest T and C.

    Raises:
        ValueError: `attentions` is given, but the keys are compressed.

    Source: Vaswani et al. 2017, equation 1.
    """
    if variant is not None:
        key, value, geometry = variant.compress(key, value, geometry)
        variant = variant if variant.has_scores else None
    is_standard = variant is None and attentions is None and not geometry.is_in_blocks
    may_pad = attentions is None and not geometry.is_padded
    if query.is_cuda and may_pad and (fast.packed_attention or not is_standard) and not torch.compiler.is_compiling():
        if is_standard and geometry.is_self_attention and fits_packed(query, dropout_prob, geometry.is_causal):
            return packed_attention(query, key, value, geometry.queries, geometry.is_causal)
        geometry = replace(geometry, is_padded=True)  # many small kernels take longer than padding does
    if is_standard and dropout_prob > 0 and fast.grouped_attention and is_on_cpu(query):
        return attend_in_groups(query, key, value, geometry, dropout_prob)
    has_kernel = is_standard and not (dropout_prob > 0 and fast.own_attention and is_on_cpu(query))
    contexts, weights_of_groups = [], []
    for group, q, k, v in geometry.split(query, key, value):  # q (B, N, T, H), k and v (B, N, C, H)
        if is_standard and group.shape[1:] == (1, 1) and not geometry.is_padded:
            context = v  # a sequence of one token: the softmax of one score is 1
        elif has_kernel:
            context = attend_by_kernel(q, k, v, group.mask, group.is_causal, dropout_prob)
        else:
            if is_standard:
                scores = dot(q * q.shape[-1] ** -0.5, k)  # as `scaled_dot`, with fewer elements to scale
            else:
                scores = scaled_dot(q, k) if variant is None else variant.scores(q, k, group)  # (B, N, T, C)
            weights = torch.softmax(hide(scores, group.mask), -1)
            dropped = dropout(weights, dropout_prob, fast) if dropout_prob > 0 else weights
            context = dropped @ v if variant is None else variant.context(dropped, v, group)
            weights_of_groups.append(weights)
        contexts.append(context)
    if attentions is not None:
        attentions.append(geometry.join_weights(weights_of_groups))
    return geometry.join_contexts(contexts, len(query))


def hide(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Set the scores of keys that a query does not attend to (False in the mask) to the lowest number: their weight is 0."""
    return scores if mask is None else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)


def attend_by_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_prob: float = 0.0,
) -> Tensor:
    """Compute the equation of `attend` by torch's kernel: queries (B, N, T, H), keys and values (B, N, C, H) -> (B, N, T, H)."""
    with exact_dropout(query, dropout_prob):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=None if is_causal else mask, dropout_p=dropout_prob, is_causal=is_causal
        )


def attend_in_groups(query: Tensor, key: Tensor, value: Tensor, geometry: Geometry, dropout_prob: float) -> Tensor:
    """Compute the equation of `attend` on a CPU, with dropout, for a few sequences of similar lengths at a time."""
    geometry = replace(geometry, is_padded=True, group_size=GROUP_SIZE)
    groups, *vectors = zip(*geometry.split(query, key, value), strict=True)
    masks = [group.mask for group in groups]
    contexts = GroupedAttention.apply(dropout_prob, masks, *itertools.chain(*vectors))  # type: ignore[no-untyped-call]
    return geometry.join_contexts(contexts, len(query))


class MultiHeadAttention(nn.Module):
    """N attention heads, and a linear map of their concatenated contexts.

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

    def forward(
        self, hidden: Tensor, geometry: Geometry, attentions: list[Tensor] | None = None, source: Tensor | None = None
    ) -> Tensor:
        """Attend from tokens (S, D) to each other or to a `source` (n, D): (S, D); weights (B, N, T, C) go to `attentions`."""
        vectors = self.vectors(hidden, hidden if source is None else source, geometry.queries.position_ids)
        return self.output(self.context(*vectors, geometry, attentions))  # type: ignore[no-any-return]

    def vectors(self, hidden: Tensor, source: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of hidden states (S, D) at these positions, keys and values of a source (n, D), each (n, N, H)."""
        query = self.in_heads(self.query, hidden)
        key = None if self.key is None else self.in_heads(self.key, source)
        query, key = self.slots.transform(query, key, position_ids)
        return query, key, self.in_heads(self.value, source)

    def context(
        self, query: Tensor, key: Tensor, value: Tensor, geometry: Geometry, attentions: list[Tensor] | None
    ) -> Tensor:
        """Attend with queries (S, N, H), keys and values (n, N, H), and concatenate the contexts of the heads: (S, D)."""
        dropout_prob = self.dropout_prob if self.training else 0.0
        context = attend(query, key, value, geometry, dropout_prob, self.fast, self.slots, attentions)
        # autograd does not know this as a view; a compiled graph would depend on the shape of the tensor behind a view
        return torch.ops.aten._unsafe_view(context, (len(query), -1))  # type: ignore[no-any-return]

    def in_heads(self, projection: Linear, hidden: Tensor) -> Tensor:
        """(n, D) -> (n, N, H)."""
        return projection(hidden).unflatten(1, (self.num_heads, -1))  # type: ignore[no-any-return]
