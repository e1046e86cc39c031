"""Positions of tokens, beside the learned ones in slots.py: sinusoidal, rotary, ALiBi, and relative.

Axes: as in attention.py; C keys for each query, k max_distance.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from bertkit.base import plugins
from bertkit.base.intervals import Count, Positive
from bertkit.kernels.layout import on_device
from bertkit.kernels.linear import Embedding
from bertkit.model.bert_config import BertConfig
from bertkit.model.slots import Positions, make_pattern

LONGEST_WAVE = 10_000.0  # for sinusoidal and rotary positions (Vaswani et al. 2017, section 3.5)


def _waves(position_ids: Tensor, size: int, like: Tensor, base: float = LONGEST_WAVE) -> Tensor:
    """The sines and cosines of position / base^(2i / size) for i from 0 to size / 2 - 1: (S,) -> (2, S, size / 2).

    They are rounded once, at the end: an angle in half precision would be wrong by a radian after 250 tokens.
    """
    exponents = torch.arange(0, size, 2, dtype=torch.float64, device=like.device) / size
    angles = (position_ids[:, None] * base**-exponents).remainder(2 * math.pi)
    angles = angles.to(torch.promote_types(like.dtype, torch.float32))
    return torch.stack([angles.sin(), angles.cos()]).to(like.dtype)


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
    by_distance = query @ table.T  # (..., T, 2k + 1)
    rows = _rows(distances, table)
    return by_distance.gather(-1, rows.expand(*by_distance.shape[:-1], -1))


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
