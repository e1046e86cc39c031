"""Positions of tokens, beside the learned ones in slots.py: sinusoidal, rotary and ALiBi; those that learn from distances are in distances/.

Axes: as in attention.py; C keys for each query.
"""

import functools
import math
from typing import Literal

import torch
from torch import Tensor

from bertkit.base import plugins
from bertkit.base.intervals import Positive
from bertkit.kernels.elementwise import TurnedHalves
from bertkit.kernels.fast import ANYWHERE
from bertkit.kernels.layout import on_device
from bertkit.kernels.linear import is_on_cpu
from bertkit.model.bert_config import BertConfig
from bertkit.model.distances import bias as bias
from bertkit.model.distances import disentangled as disentangled
from bertkit.model.distances import shaw as shaw
from bertkit.model.slots import Positions, changes_weights, class_of, make_pattern

LONGEST_WAVE = 10_000.0  # for sinusoidal and rotary positions (Vaswani et al. 2017, section 3.5)


def _waves(position_ids: Tensor, size: int, like: Tensor, base: float = LONGEST_WAVE, factor: float = 1.0) -> Tensor:
    """The sines and cosines of position / factor / base^(2i / size) for i from 0 to size / 2 - 1: (S,) -> (2, S, size / 2).

    They are rounded once, at the end: an angle in half precision would be wrong by a radian after 250 tokens.
    """
    exponents = torch.arange(0, size, 2, dtype=torch.float64, device=like.device) / size
    angles = (position_ids[:, None] * (base**-exponents / factor)).remainder(2 * math.pi)
    angles = angles.to(torch.promote_types(like.dtype, torch.float32))
    return torch.stack([angles.sin(), angles.cos()]).to(like.dtype)


@functools.lru_cache(maxsize=16)
def _table_of_waves(length: int, size: int, dtype: torch.dtype, base: float, factor: float) -> Tensor:
    """The sines and cosines of `_waves` for positions from 0 to `length` - 1, on the CPU."""
    return _waves(torch.arange(length), size, torch.empty(0, dtype=dtype), base, factor)


def turn_halves(vectors: Tensor, position_ids: Tensor, base: float, factor: float = 1.0) -> Tensor:
    """Compute `rotate_halves` on a CPU, in fewer passes over memory."""
    length = 1 << int(position_ids.max()).bit_length()  # few tables occur
    sin, cos = _table_of_waves(length, vectors.shape[-1], vectors.dtype, base, factor)[:, position_ids, None]
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


def rotate(vectors: Tensor, position_ids: Tensor, base: float = LONGEST_WAVE, factor: float = 1.0) -> Tensor:
    """Rotate each pair of neighbouring elements by an angle proportional to the position: (S, N, H) -> (S, N, H).

    The product of a rotated query and key depends on their distance alone. Positions are divided by the factor (Chen et al. 2023).

    >>> rotate(torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]), torch.tensor([0, 1])).round(decimals=4)
    tensor([[[1.0000, 0.0000]],
    <BLANKLINE>
            [[0.5403, 0.8415]]])

    Source: Su et al. 2021 (RoFormer), equation 34.
    """
    return torch.stack(_rotated(vectors[..., ::2], vectors[..., 1::2], position_ids, base, factor), -1).flatten(-2)


def rotate_halves(vectors: Tensor, position_ids: Tensor, base: float = LONGEST_WAVE, factor: float = 1.0) -> Tensor:
    """Rotate each element of the first half with one of the second, as `rotate` does: (S, N, H) -> (S, N, H).

    Source: Black et al. 2022 (GPT-NeoX), as in Llama and ModernBERT.
    """
    first, second = vectors.chunk(2, -1)
    return torch.cat(_rotated(first, second, position_ids, base, factor), -1)


def _rotated(first: Tensor, second: Tensor, position_ids: Tensor, base: float, factor: float) -> list[Tensor]:
    """Rotate pairs, both (S, N, H / 2)."""
    sin, cos = _waves(position_ids, 2 * first.shape[-1], first, base, factor)[:, :, None]  # each (S, 1, H / 2)
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
        rotary_factor: Positive = 1.0,
        rotary_pairs: Literal["neighbours", "halves"] = "neighbours",
    ) -> None:
        super().__init__()
        self.pattern, self.base, self.factor = make_pattern(config.attention), rotary_base, rotary_factor
        self.bases = {False: rotary_base, True: rotary_local_base or rotary_base}  # by whether a layer is local
        self.rotation = rotate if rotary_pairs == "neighbours" else rotate_halves

    def of_layer(self, layer: int) -> Positions:
        """Take the base of a layer."""
        self.base = self.bases[self.pattern.of_layer(layer).is_local]
        return self

    def rotate(self, vectors: Tensor, position_ids: Tensor) -> Tensor:
        """Rotate queries or keys."""
        if self.fast.few_passes and self.rotation is rotate_halves and is_on_cpu(vectors):
            return turn_halves(vectors, position_ids, self.base, self.factor)
        return self.rotation(vectors, position_ids, self.base, self.factor)


@plugins.option("positions", "alibi")
class Alibi(Positions):
    """The term `alibi` of the scores."""

    def scores(self, query: Tensor, distances: Tensor) -> Tensor:
        """Return the term."""
        return alibi(distances, query.shape[1], query)


def counts_distances(config: BertConfig) -> bool:
    """Whether it matters how many tokens are between two others: by relative positions, by a window, or by a convolution."""
    pattern, without_limit = make_pattern(config.attention), {(-1, -1), (-1, 0)}  # all tokens, and those before
    ranges = {pattern.of_layer(layer).key_range for layer in range(config.num_hidden_layers)}
    return (
        not ranges <= without_limit
        or changes_weights(class_of(config.attention.positions))
        or config.convolution is not None
    )
