"""Scaled dot-product attention, and multi-head attention over a layout.

In a Transformer layer only `attend` mixes information between tokens: each query attends to the keys that the geometry
allows, and to no others. `AttentionSlots` has the score and the positions of a layer, which slots.py lets users choose.

Axes, the same in every file of the model: B sequences, S packed tokens, T tokens per sequence, D hidden_size, N heads,
H head size (D = N * H), F intermediate_size, V vocab_size, M masked positions, L layers, C labels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.kernels.fast import ANYWHERE, FastWays, exact_dropout, fits_packed, packed_attention
from bertkit.kernels.layout import Group, Plan
from bertkit.kernels.linear import Linear, dropout, is_on_cpu, is_on_cuda, linear_of_each
from bertkit.kernels.sequences import SequenceAttention
from bertkit.model.bert_config import BertConfig
from bertkit.model.geometry import Geometry, padded, without_slack
from bertkit.model.slots import (
    Positions,
    Score,
    changes_layers,
    changes_weights,
    make_pattern,
    make_positions,
    make_score,
    scaled_dot,
)


@dataclass(frozen=True)
class Shared:
    """What the layers of an encoder share: parameters of the encoder, not of its layers. None: each layer has its own, or there is none."""

    compression: nn.Module | None = None
    positions: nn.Module | None = None


ALONE = Shared()


@dataclass(frozen=True)
class AttentionVariant:
    """The two steps of attention that scores and positions may replace, for one pass through a layer."""

    score: Score
    positions: Positions
    vectors: Sequence[Tensor] = ()  # of positions

    def scores(self, query: Tensor, key: Tensor, group: Group) -> Tensor:
        """Scores of queries (B, N, T, H), after `AttentionSlots.transform`, for keys (B, N, C, H): (B, N, T, C)."""
        scores = self.score(query, key, group.key_positions)
        return scores + self.positions.terms(query, key, group, self.vectors)  # type: ignore[no-any-return]

    def context(self, weights: Tensor, value: Tensor, group: Group) -> Tensor:
        """Sum the values (B, N, C, H) by their weights (B, N, T, C): (B, N, T, H)."""
        return weights @ value + self.positions.context(weights, group.distances)


class AttentionSlots(nn.Module):
    """The score, the positions and the compression of one layer, chosen by the settings `attention.*`.

    `dot`, `general` and `rotary` only change queries and keys before attention, so that fast kernels compute the rest. Other
    scores and positions replace two steps of attention, as `variant` says.
    """

    def __init__(self, config: BertConfig, layer: int, shared: Shared = ALONE) -> None:
        super().__init__()
        self.score = make_score(config)
        positions = make_positions(config, config.attention.positions, changes_layers).of_layer(layer)
        self.place = positions.module_name
        self.add_module(self.place, positions)
        # what is shared is a parameter of the encoder only
        self.compression = make_pattern(config.attention).compression(config) if shared.compression is None else None
        self.table = positions.shared() if shared.positions is None else None
        compression, table = self.compression or shared.compression, self.table or shared.positions
        self.compress_keys = None if compression is None else compression.forward
        self.look_up = None if table is None else table.forward
        self.has_scores = not self.score.is_scaled_dot or changes_weights(type(positions))

    @property
    def positions(self) -> Positions:
        """The positions of the layer."""
        return self._modules[self.place]  # type: ignore[return-value]

    def transform(self, query: Tensor, key: Tensor | None, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Change queries and keys (S, N, H) so that their scaled dot product is the score; without keys, return queries twice."""
        query = self.positions.fold(self.score.fold(query))
        if key is None:
            return query, query
        return self.positions.rotate(query, position_ids), self.positions.rotate(key, position_ids)

    def compress(self, key: Tensor, value: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor, Geometry]:
        """Compress keys and values, each (S, N, H), to (B * K, N, H) if the pattern is `linformer`.

        Raises:
            ValueError: weights between tokens are requested, but compressed keys are no tokens.
        """
        if self.compress_keys is None:
            return key, value, geometry
        if geometry.is_whole:
            raise ValueError("output_attentions=True: attention.pattern=linformer has no weights between tokens")
        key, value, keys = self.compress_keys(key, value, geometry.queries)
        return key, value, replace(geometry, keys=keys)

    def variant(self, to_query: nn.Module, to_key: nn.Module | None, longest: int) -> AttentionVariant:
        """Return the scores and the contexts of one pass over sequences of up to `longest` tokens, given the layer's maps."""
        rows = None if self.look_up is None else self.look_up()
        vectors = self.positions.vectors(rows, to_query, to_key, longest)
        return AttentionVariant(self.score, self.positions, vectors)


@dataclass(frozen=True)
class Weighing:
    """How the values are weighted: everything but the vectors and the geometry."""

    dropout_prob: float = 0.0  # probability of dropping a weight; 0 outside training
    fast: FastWays = ANYWHERE  # the fast kernels that are on
    variant: AttentionVariant | None = None  # other scores and contexts; None for BERT's
    attentions: list[Tensor] | None = None  # gets the weights, (B, N, T, C), padded with zeros to the longest T and C

    def scores(self, query: Tensor, key: Tensor, group: Group) -> Tensor:
        """Score keys (B, N, C, H) for queries (B, N, T, H): (B, N, T, C)."""
        return scaled_dot(query, key) if self.variant is None else self.variant.scores(query, key, group)

    def context(self, weights: Tensor, value: Tensor, group: Group) -> Tensor:
        """Sum the values (B, N, C, H) by their weights (B, N, T, C): (B, N, T, H)."""
        return weights @ value if self.variant is None else self.variant.context(weights, value, group)

    def drop(self, weights: Tensor) -> Tensor:
        """Drop some of the weights in training."""
        return dropout(weights, self.dropout_prob, self.fast) if self.dropout_prob > 0 else weights


BERT = Weighing()
Kernel = Callable[[Tensor, Tensor, Tensor, Geometry, Weighing], Tensor]


def attend(query: Tensor, key: Tensor, value: Tensor, geometry: Geometry, weighing: Weighing = BERT) -> Tensor:
    """Average the values of the keys that each query attends to, weighted by the softmax of the scores: (S, N, H).

        context = softmax(query key^T / sqrt(H)) value

    Args:
        query: (S, N, H).
        key: (n, N, H), with the n tokens of the layout `geometry.keys`; in self-attention n = S.
        value: (n, N, H).
        geometry: where the sequences are in the batch, and which keys a query attends to.
        weighing: dropout, and other scores and positions.

    Source: Vaswani et al. 2017, equation 1.
    """
    plan, contexts, all_weights = _plan(query, geometry, weighing), [], []
    for group, q, k, v in plan.split(query, key, value):  # q (B, N, T, H), k and v (B, N, C, H)
        weights = torch.softmax(hide(weighing.scores(q, k, group), group.mask), -1)  # (B, N, T, C)
        contexts.append(weighing.context(weighing.drop(weights), v, group))
        all_weights.append(weights)
    if weighing.attentions is not None:
        weighing.attentions.append(plan.join_weights(all_weights, len(geometry.queries.starts)))
    return plan.join_contexts(contexts, len(query))


def kernel_for(query: Tensor, geometry: Geometry, weighing: Weighing) -> Kernel:
    """Choose how to compute `attend` for queries (S, N, H): by the equation, or as fast where BERT's own attention is computed."""
    if _may_pack(query, geometry, weighing):
        return attend_packed
    if not _is_standard(geometry, weighing):
        return attend
    is_own = weighing.dropout_prob > 0 and weighing.fast.own_attention and is_on_cpu(query)
    return attend_by_sequence if is_own else attend_by_torch


def attend_fast(query: Tensor, key: Tensor, value: Tensor, geometry: Geometry, weighing: Weighing = BERT) -> Tensor:
    """Compute `attend` by the kernel chosen for it.

    Training on a CPU computes it in float32: with up to 128 tokens torch's gradient in half precision takes twice as long there.
    """
    kernel = kernel_for(query, geometry, weighing)
    if kernel is attend or value.dtype.itemsize >= 4 or not (torch.is_grad_enabled() and is_on_cpu(value)):
        return kernel(query, key, value, geometry, weighing)
    with torch.autocast("cpu", enabled=False):  # queries and keys may be in float32 already, by their positions
        return kernel(query.float(), key.float(), value.float(), geometry, weighing).to(value.dtype)


def _may_pack(query: Tensor, geometry: Geometry, weighing: Weighing) -> bool:
    """Whether these are scaled dot products on CUDA, whose weights nobody asks for, for a range of keys around each query."""
    is_plain = weighing.variant is None and weighing.attentions is None and weighing.fast.packed_attention
    queries, keys, key_range = geometry.queries, geometry.keys, geometry.pattern.key_range
    is_range = (
        key_range is not None and (geometry.is_self_attention or key_range == (-1, -1)) and not geometry.is_padded
    )
    return (
        is_plain and is_range and len(queries.bounds) == len(keys.bounds) and is_on_cuda(query) and fits_packed(query)
    )


def _is_standard(geometry: Geometry, weighing: Weighing) -> bool:
    """Whether this is attention as in BERT: scaled dot products, whose weights nobody asks for, and sequences that are not cut."""
    return weighing.variant is None and weighing.attentions is None and not geometry.is_cut(geometry.pairs)


def _may_pad(query: Tensor, geometry: Geometry, weighing: Weighing) -> bool:
    """Whether sequences are padded on CUDA, where many small kernels take longer than padding does."""
    may = weighing.attentions is None and not geometry.is_padded and is_on_cuda(query)
    return may and (weighing.fast.packed_attention or not _is_standard(geometry, weighing))


def _plan(query: Tensor, geometry: Geometry, weighing: Weighing) -> Plan:
    return geometry.plan(query.shape[1], padded if _may_pad(query, geometry, weighing) else None)


def hide(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Set the scores of keys that a query does not attend to (False in the mask) to the lowest number: their weight is 0."""
    return scores if mask is None else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)


def attend_packed(query: Tensor, key: Tensor, value: Tensor, geometry: Geometry, weighing: Weighing) -> Tensor:
    """Compute `attend` by one kernel on CUDA."""
    assert geometry.pattern.key_range is not None
    layouts = geometry.queries, geometry.keys
    return packed_attention(query, key, value, *layouts, geometry.pattern.key_range, weighing.dropout_prob)


def attend_by_sequence(query: Tensor, key: Tensor, value: Tensor, geometry: Geometry, weighing: Weighing) -> Tensor:
    """Compute `attend` on a CPU, with dropout, by matrix products, one sequence at a time."""
    (selection,) = geometry.plan(query.shape[1], without_slack).selections
    return SequenceAttention.apply(weighing.dropout_prob, selection.groups, query, key, value)  # type: ignore[no-any-return, no-untyped-call]


def attend_by_torch(query: Tensor, key: Tensor, value: Tensor, geometry: Geometry, weighing: Weighing) -> Tensor:
    """Compute `attend` by torch's kernel; in a group of single tokens the contexts are the values, since the softmax of one score is 1."""
    plan, contexts = _plan(query, geometry, weighing), []
    has_single = not (geometry.is_padded or _may_pad(query, geometry, weighing))
    for group, q, k, v in plan.split(query, key, value):
        is_single = has_single and group.shape[1:] == (1, 1)
        contexts.append(
            v if is_single else attend_by_kernel(q, k, v, group.mask, group.is_causal, weighing.dropout_prob)
        )
    return plan.join_contexts(contexts, len(query))


def attend_by_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_prob: float = 0.0,
) -> Tensor:
    """Compute a group by torch's kernel: queries (B, N, T, H), keys and values (B, N, C, H) -> (B, N, T, H)."""
    with exact_dropout(query, dropout_prob):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=None if is_causal else mask, dropout_p=dropout_prob, is_causal=is_causal
        )


class MultiHeadAttention(nn.Module):
    """N attention heads, and a linear map of their concatenated contexts.

    Source: Vaswani et al. 2017, section 3.2.2; google-research/bert modeling.py `attention_layer`.
    """

    fast = ANYWHERE  # replaced by `BertWithHeads.use`

    def __init__(self, config: BertConfig, layer: int, shared: Shared = ALONE) -> None:
        super().__init__()
        self.num_heads, self.dropout_prob = config.num_attention_heads, config.attention_probs_dropout_prob
        self.slots = AttentionSlots(config, layer, shared)  # empty in a BERT
        self.head_size, size, bias = config.head_size, config.hidden_size, config.attention.bias
        of_keys = self.head_size * (config.attention.key_value_heads or self.num_heads)
        self.query = Linear(size, size, bias)
        self.key = Linear(size, of_keys, bias and config.attention.key_bias) if self.slots.score.needs_keys else None
        self.value = Linear(size, of_keys, bias)
        self.output = Linear(size, size, bias)
        self.output.init_scale = config.output_scale

    def forward(
        self, hidden: Tensor, geometry: Geometry, attentions: list[Tensor] | None = None, source: Tensor | None = None
    ) -> Tensor:
        """Attend from tokens (S, D) to each other or to a `source` (n, D): (S, D); weights (B, N, T, C) go to `attentions`."""
        vectors = self.vectors(hidden, hidden if source is None else source, geometry.queries.position_ids)
        return self.output(self.context(*vectors, geometry, attentions))  # type: ignore[no-any-return]

    def vectors(self, hidden: Tensor, source: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of hidden states (S, D) at these positions, keys and values of a source (n, D), each (n, N, H)."""
        of_source = [self.value] if self.key is None else [self.key, self.value]
        if hidden is source:
            vectors = linear_of_each(hidden, [self.query, *of_source])
        else:
            vectors = [self.query(hidden), *linear_of_each(source, of_source)]
        query, *key, value = (self.in_heads(each) for each in vectors)
        query, of_keys = self.slots.transform(query, key[0] if key else None, position_ids)
        return query, self.for_all_heads(of_keys), self.for_all_heads(value)

    def context(
        self, query: Tensor, key: Tensor, value: Tensor, geometry: Geometry, attentions: list[Tensor] | None
    ) -> Tensor:
        """Attend with queries (S, N, H), keys and values (n, N, H), and concatenate the contexts of the heads: (S, D)."""
        key, value, geometry = self.slots.compress(key, value, geometry)
        variant = self.variant(geometry.keys.longest) if self.slots.has_scores else None
        weighing = Weighing(self.dropout_prob if self.training else 0.0, self.fast, variant, attentions)
        context = attend_fast(query, key, value, geometry, weighing)
        # autograd does not know this as a view; a compiled graph would depend on the shape of the tensor behind a view
        return torch.ops.aten._unsafe_view(context, (len(query), -1))  # type: ignore[no-any-return]

    def variant(self, longest: int) -> AttentionVariant:
        """Return the scores and the contexts that are not BERT's, for one pass over sequences of up to `longest` tokens."""
        return self.slots.variant(self.query, self.key, longest)

    def in_heads(self, vectors: Tensor) -> Tensor:
        """(n, D) -> (n, N, H), or fewer heads of keys and values."""
        return vectors.unflatten(1, (-1, self.head_size))  # type: ignore[no-any-return, no-untyped-call]

    def for_all_heads(self, vectors: Tensor) -> Tensor:
        """Repeat keys or values that several heads of queries share (Ainslie et al. 2023, section 2.2): (n, K, H) -> (n, N, H)."""
        share = self.num_heads // vectors.shape[1]
        return vectors if share == 1 else vectors.repeat_interleave(share, 1)
