"""Positions of tokens, beside the learned ones in slots.py: sinusoidal, rotary, ALiBi, relative, and disentangled.

Axes: as in attention.py; C keys for each query, k max_distance.
"""

import functools
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from bertkit.base import plugins
from bertkit.base.intervals import Count, Positive
from bertkit.kernels.elementwise import TurnedHalves
from bertkit.kernels.fast import ANYWHERE
from bertkit.kernels.layout import Group, on_device
from bertkit.kernels.linear import Dropout, Embedding, Linear, is_on_cpu
from bertkit.model.bert_config import BertConfig
from bertkit.model.slots import Positions, changes_weights, class_of, make_pattern

LONGEST_WAVE = 10_000.0  # for sinusoidal and rotary positions (Vaswani et al. 2017, section 3.5)


def _waves(position_ids: Tensor, size: int, like: Tensor, base: float = LONGEST_WAVE) -> Tensor:
    """The sines and cosines of position / base^(2i / size) for i from 0 to size / 2 - 1: (S,) -> (2, S, size / 2).

    They are rounded once, at the end: an angle in half precision would be wrong by a radian after 250 tokens.
    """
    exponents = torch.arange(0, size, 2, dtype=torch.float64, device=like.device) / size
    angles = (position_ids[:, None] * base**-exponents).remainder(2 * math.pi)
    angles = angles.to(torch.promote_types(like.dtype, torch.float32))
    return torch.stack([angles.sin(), angles.cos()]).to(like.dtype)


@functools.lru_cache(maxsize=16)
def _table_of_waves(length: int, size: int, dtype: torch.dtype, base: float) -> Tensor:
    """The sines and cosines of `_waves` for positions from 0 to `length` - 1, on the CPU."""
    return _waves(torch.arange(length), size, torch.empty(0, dtype=dtype), base)


def turn_halves(vectors: Tensor, position_ids: Tensor, base: float) -> Tensor:
    """Compute `rotate_halves` on a CPU, in fewer passes over memory."""
    length = 1 << int(position_ids.max()).bit_length()  # few tables occur
    sin, cos = _table_of_waves(length, vectors.shape[-1], vectors.dtype, base)[:, position_ids, None]
    return TurnedHalves.apply(vectors, sin, cos)  # type: ignore[no-any-return, no-untyped-call]


def sinusoidal(position_ids: Tensor, size: int, like: Tensor) -> Tensor:
    """Sines and cosines of geometric wavelengths, interleaved: sin, cos, sin, cos, ...: (S,) -> (S, size).

    The product of two such vectors depends on their distance alone. The result has the dtype and the device of `like`.

    >>> sinusoidal(torch.tensor([0, 1]), 4, torch.zeros(1)).round(decimals=4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 1.0000]])

    Source: Vaswani et al. 2017, section 3.5.
    """
    return _waves(position_ids, size, like).movedim(0, -1).flatten(1)


def rotate(vectors: Tensor, position_ids: Tensor, base: float = LONGEST_WAVE) -> Tensor:
    """Rotate each pair of neighbouring elements by an angle proportional to the position: (S, N, H) -> (S, N, H).

    The product of a rotated query and key depends on their distance alone.

    >>> rotate(torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]), torch.tensor([0, 1])).round(decimals=4)
    tensor([[[1.0000, 0.0000]],
    <BLANKLINE>
            [[0.5403, 0.8415]]])

    Source: Su et al. 2021 (RoFormer), equation 34.
    """
    return torch.stack(_rotated(vectors[..., ::2], vectors[..., 1::2], position_ids, base), -1).flatten(-2)


def rotate_halves(vectors: Tensor, position_ids: Tensor, base: float = LONGEST_WAVE) -> Tensor:
    """Rotate each element of the first half with one of the second, as `rotate` does: (S, N, H) -> (S, N, H).

    Source: Black et al. 2022 (GPT-NeoX), as in Llama and ModernBERT.
    """
    first, second = vectors.chunk(2, -1)
    return torch.cat(_rotated(first, second, position_ids, base), -1)


def _rotated(first: Tensor, second: Tensor, position_ids: Tensor, base: float) -> list[Tensor]:
    """Rotate pairs, both (S, N, H / 2)."""
    sin, cos = _waves(position_ids, 2 * first.shape[-1], first, base)[:, :, None]  # each (S, 1, H / 2)
    return [first * cos - second * sin, second * cos + first * sin]


def alibi(distances: Tensor, num_heads: int, like: Tensor) -> Tensor:
    """The term -m |i - j| of the scores, where m falls geometrically from head to head: (B, T, C) -> (B, N, T, C).

    >>> alibi(torch.tensor([[[0, 1, 2]]]), 2, torch.zeros(1)).tolist()
    [[[[-0.0, -0.0625, -0.125]], [[-0.0, -0.00390625, -0.0078125]]]]

    Source: Press et al. 2022, section 3, here for keys on both sides of a query; attention_with_linear_biases models.py
    `get_slopes`: if the number of heads is no power of 2, the remaining heads get every second slope of twice as many heads.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    slopes += [2 ** (-4 * head / power) for head in range(1, 2 * power, 2)]
    slope = on_device(torch.tensor(slopes[:num_heads], dtype=like.dtype), like.device)
    return -slope[:, None, None] * distances.abs()[:, None]


@plugins.option("positions", "sinusoidal")
class Sinusoidal(Positions):
    """`sinusoidal` vectors, added to scaled token embeddings (Vaswani et al. 2017, sections 3.4 and 3.5)."""

    scales_tokens = True

    def add_to_tokens(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """Add the vectors."""
        return tokens + sinusoidal(position_ids, tokens.shape[-1], tokens)


@plugins.option("positions", "rotary")
class Rotary(Positions):
    """Queries and keys are rotated, by `rotate` or `rotate_halves`; in local layers perhaps with another base."""

    fast = ANYWHERE  # replaced by `BertWithHeads.use`

    def __init__(
        self,
        config: BertConfig,
        *,
        rotary_base: Positive = LONGEST_WAVE,
        rotary_local_base: Positive | None = None,
        rotary_pairs: Literal["neighbours", "halves"] = "neighbours",
    ) -> None:
        super().__init__()
        self.pattern, self.base = make_pattern(config.attention), rotary_base
        self.bases = {False: rotary_base, True: rotary_local_base or rotary_base}  # by whether a layer is local
        self.rotation = rotate if rotary_pairs == "neighbours" else rotate_halves

    def of_layer(self, layer: int) -> Positions:
        """Take the base of a layer."""
        self.base = self.bases[self.pattern.of_layer(layer).is_local]
        return self

    def rotate(self, vectors: Tensor, position_ids: Tensor) -> Tensor:
        """Rotate queries or keys."""
        if self.fast.few_passes and self.rotation is rotate_halves and is_on_cpu(vectors):
            return turn_halves(vectors, position_ids, self.base)
        return self.rotation(vectors, position_ids, self.base)


@plugins.option("positions", "alibi")
class Alibi(Positions):
    """The term `alibi` of the scores."""

    def scores(self, query: Tensor, distances: Tensor) -> Tensor:
        """Return the term."""
        return alibi(distances, query.shape[1], query)


@plugins.option("positions", "relative")
class Relative(Positions):
    """A learned vector for each distance, clipped at k, for keys and for values; shared by the heads.

        e_ij = q_i (k_j + a^K_ij) / sqrt(H),  z_i = sum_j alpha_ij (v_j + a^V_ij),  a_ij = w[clip(j - i, -k, k)]

    Source: Shaw et al. 2018, equations 3 to 5.
    """

    module_name = "relative"

    def __init__(
        self,
        config: BertConfig,
        *,
        max_distance: Count = 16,
        relative_to: tuple[Literal["keys", "values"], ...] = ("keys", "values"),
    ) -> None:
        super().__init__()
        shape = 2 * max_distance + 1, config.head_size
        self.key = Embedding(*shape) if "keys" in relative_to else None
        self.value = Embedding(*shape) if "values" in relative_to else None

    def scores(self, query: Tensor, distances: Tensor) -> Tensor | float:
        """The term q_i a^K_ij / sqrt(H) of the scores."""
        if self.key is None:
            return 0.0
        return relative_scores(query, self.key.weight, distances[:, None]) / math.sqrt(query.shape[-1])

    def context(self, weights: Tensor, distances: Tensor) -> Tensor | float:
        """The term sum_j alpha_ij a^V_ij of the context."""
        return 0.0 if self.value is None else relative_context(weights, self.value.weight, distances[:, None])


def relative_scores(query: Tensor, table: Tensor, distances: Tensor) -> Tensor:
    """q_i . a_ij: queries (..., T, H), table (2k + 1, H), distances j - i (..., T, C) -> (..., T, C).

    >>> table = torch.tensor([[1.0], [2.0], [3.0]])  # for distances -1, 0, 1 and beyond
    >>> relative_scores(torch.tensor([[[2.0]]]), table, torch.tensor([[[-5, 0, 1]]]))
    tensor([[[2., 4., 6.]]])
    """
    return products_with_rows(query, table, _rows(distances, table))


def products_with_rows(vectors: Tensor, table: Tensor, rows: Tensor) -> Tensor:
    """Multiply each vector (..., T, H) by rows (..., T, C) of a table (..., R, H): (..., T, C)."""
    products = vectors @ table.transpose(-1, -2)  # (..., T, R)
    return products.gather(-1, rows.expand(*products.shape[:-1], -1))


def relative_context(weights: Tensor, table: Tensor, distances: Tensor) -> Tensor:
    """sum_j alpha_ij a_ij: weights (..., T, C), table (2k + 1, H), distances j - i (..., T, C) -> (..., T, H).

    >>> table = torch.tensor([[1.0], [2.0], [3.0]])
    >>> relative_context(torch.tensor([[[0.5, 0.25, 0.25]]]), table, torch.tensor([[[-5, 0, 1]]]))
    tensor([[[1.7500]]])
    """
    rows = _rows(distances, table).expand_as(weights)
    by_distance = weights.new_zeros(*weights.shape[:-1], len(table)).scatter_add(-1, rows, weights)
    return by_distance @ table


def _rows(distances: Tensor, table: Tensor) -> Tensor:
    max_distance = len(table) // 2
    return distances.clamp(-max_distance, max_distance) + max_distance


class DistanceTable(nn.Module):
    """A learned vector for each distance, perhaps with a LayerNorm; shared by the layers of an encoder."""

    def __init__(self, config: BertConfig, num_rows: int, has_norm: bool) -> None:
        super().__init__()
        self.embedding = Embedding(num_rows, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps) if has_norm else nn.Identity()

    def forward(self) -> Tensor:
        """Return all vectors, (R, D)."""
        return self.norm(self.embedding.weight)  # type: ignore[no-any-return]


@plugins.option("positions", "disentangled")
class Disentangled(Positions):
    """A vector for each distance, of the size of the hidden states, compared with queries (c2p) and with keys (p2c).

        e_ij = (q_i k_j + q_i K r_ij + k_j Q r_ij) / sqrt(3 H),  r_ij = the vector of i - j

    K and Q are the maps to keys and queries, the layer's or others for distances alone; with one of the two terms the
    scale is sqrt(2 H). All layers of an encoder share the vectors.

    Source: He et al. 2020, equations 2 and 4; with LayerNorm and shared maps as in transformers modeling_deberta_v2.py. The paper has
    Q r_ji, transformers Q r_ij.
    """

    module_name = "disentangled"

    def __init__(
        self,
        config: BertConfig,
        *,
        max_distance: Count = 16,
        distance_buckets: Count = 0,
        distance_terms: tuple[Literal["c2p", "p2c"], ...] = ("c2p", "p2c"),
        distance_maps: Literal["shared", "own"] = "shared",
        distance_norm: bool = False,
    ) -> None:
        super().__init__()
        self.max_distance, self.num_buckets, self.terms_of = max_distance, distance_buckets, distance_terms
        self.num_rows = 2 * (distance_buckets or max_distance)
        self.num_heads = config.num_attention_heads
        self.scale: float = (1 + len(distance_terms)) ** -0.5
        self.make_table = functools.partial(DistanceTable, config, self.num_rows, distance_norm)
        self.dropout = Dropout(config.hidden_dropout_prob)
        has_maps, size = distance_maps == "own", config.hidden_size
        self.key = Linear(size, size) if has_maps and "c2p" in distance_terms else None
        self.query = Linear(size, size) if has_maps and "p2c" in distance_terms else None

    def shared(self) -> nn.Module:
        """Make the vectors."""
        return self.make_table()

    def fold(self, query: Tensor) -> Tensor:
        """Divide by the square root of the number of terms."""
        return query * self.scale

    def vectors(
        self, table: Tensor | None, to_query: nn.Module, to_key: nn.Module | None, longest: int
    ) -> Sequence[Tensor]:
        """Map the vectors of distances below `longest`, (R, D), to keys and to queries, (N, R, H) for each term, scaled."""
        assert table is not None
        first, last = self.rows(longest - 1)[[0, -1]].tolist()
        table, scale = self.dropout(table[first : last + 1]), (self.num_heads / table.shape[1]) ** 0.5
        ways = {"c2p": (self.key or to_key, scale), "p2c": (self.query or to_query, scale * self.scale)}
        mapped = [way(table) * factor for way, factor in (ways[term] for term in self.terms_of)]  # type: ignore[misc]
        return [each.unflatten(1, (self.num_heads, -1)).transpose(0, 1) for each in mapped]

    def terms(self, query: Tensor, key: Tensor, group: Group, vectors: Sequence[Tensor]) -> Tensor:
        """Return q_i K r_ij + k_j Q r_ij, scaled; only the rows for distances in the group are compared."""
        num_rows = vectors[0].shape[
            1
        ]  # the middle ones of the table; keys beyond a sequence, which are masked, have none
        of_distances = (self.rows(group.reach) - self.num_rows // 2 + num_rows // 2).clamp(0, num_rows - 1)
        first, last = of_distances[[0, -1]].tolist()
        rows = on_device(of_distances - first, query.device)[group.reach - group.distances][:, None]
        of_term = {"c2p": lambda each: products_with_rows(query, each, rows)}
        of_term["p2c"] = lambda each: products_with_rows(key, each, rows.transpose(2, 3)).transpose(2, 3)
        of_terms = [of_term[term](each[:, first : last + 1]) for term, each in zip(self.terms_of, vectors, strict=True)]
        return functools.reduce(torch.add, of_terms)

    def rows(self, reach: int) -> Tensor:
        """Return the row of each distance from -reach to reach."""
        return distance_rows(reach, self.max_distance, self.num_buckets, self.num_rows)


@functools.lru_cache(maxsize=256)
def distance_rows(reach: int, max_distance: int, num_buckets: int, num_rows: int) -> Tensor:
    """The row of each distance i - j from -reach to reach, (2 reach + 1,): the distance, or its bucket, plus half of the rows.

    Distances below half of the buckets have their own; larger ones share buckets that grow geometrically up to `max_distance`.

    >>> distance_rows(4, 3, 0, 6).tolist()
    [0, 0, 1, 2, 3, 4, 5, 5, 5]
    >>> distance_rows(9, 9, 6, 12).tolist()
    [0, 1, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11, 11, 11, 11]

    Source: He et al. 2020, equation 3; transformers modeling_deberta_v2.py `make_log_bucket_position`, in float32 as there.
    """
    distances = torch.arange(-reach, reach + 1)
    if num_buckets:
        half = num_buckets // 2
        sizes = distances.abs().clamp(min=half).float()
        # the logarithms of the smallest and of the largest distance with a shared bucket are 0 and 1
        logs = torch.log(sizes / half) / torch.log(torch.tensor((max_distance - 1) / half))
        buckets = torch.ceil(logs * (half - 1)) + half
        distances = torch.where(distances.abs() <= half, distances, (buckets * distances.sign()).long())
    return (distances + num_rows // 2).clamp(0, num_rows - 1)


def counts_distances(config: BertConfig) -> bool:
    """Whether it matters how many tokens are between two others: by relative positions, by a window, or by a convolution."""
    pattern, without_limit = make_pattern(config.attention), {(-1, -1), (-1, 0)}  # all tokens, and those before
    ranges = {pattern.of_layer(layer).key_range for layer in range(config.num_hidden_layers)}
    return not ranges <= without_limit or changes_weights(class_of(config)) or config.convolution is not None
