"""Patterns of attention: which keys of its sequence a query attends to, or how Linformer compresses the keys.

Axes: as in attention.py; K compressed_size, P max_position_embeddings.
"""

from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from bertkit.base import plugins
from bertkit.base.intervals import Count, Interval, Size
from bertkit.base.typed_settings import refuse
from bertkit.kernels.layout import Layout
from bertkit.model.bert_config import BertConfig
from bertkit.model.slots import FULL, Block, Pattern


@plugins.option("pattern", "causal")
@dataclass(frozen=True)
class Causal(Pattern):
    """A query attends to no later key: j <= i (Vaswani et al. 2017, section 3.2.3).

    >>> Causal().allowed(2).int()
    tensor([[1, 0],
            [1, 1]], dtype=torch.int32)
    """

    is_causal = is_masked = True

    @property
    def key_range(self) -> tuple[int, int]:
        """All tokens before, none after."""
        return -1, 0

    def allowed(self, length: int) -> Tensor:
        """J <= i."""
        return torch.ones(length, length, dtype=torch.bool).tril()


@plugins.option("pattern", "window")
@dataclass(frozen=True, kw_only=True)
class SlidingWindow(Pattern):
    """A query attends to near keys: |i - j| <= window; blocks are compared with their two neighbours.

    >>> SlidingWindow(window=1).allowed(3).int()
    tensor([[1, 1, 0],
            [1, 1, 1],
            [0, 1, 1]], dtype=torch.int32)

    Source: Beltagy et al. 2020 (Longformer), section 3.1.
    """

    window: Size = 64
    is_local = is_masked = is_in_blocks = True

    @property
    def key_range(self) -> tuple[int, int]:
        """The window on both sides."""
        return self.window, self.window

    def allowed(self, length: int) -> Tensor:
        """|i - j| <= window."""
        places = torch.arange(length)
        return (places - places[:, None]).abs() <= self.window

    def num_blocks(self, length: int) -> int:
        """Count blocks as long as the window, if there are more than three."""
        count = -(-length // self.window)
        return count if count > 3 else 1

    def cut(self, length: int, num_blocks: int) -> list[Block]:
        """Compare each block with its two neighbours."""
        neighbours = torch.arange(num_blocks)[:, None] + torch.arange(-1, 2)
        return [_block(self.window, length, self.window, 0, neighbours)]


@plugins.option("pattern", "alternating")
@dataclass(frozen=True, kw_only=True)
class Alternating(SlidingWindow):
    """Attention is full in every third layer, from the first on, and has a window in the others (Warner et al. 2024, section 2.1.2)."""

    full_every: Size = 3

    def of_layer(self, layer: int) -> Pattern:
        """Return the pattern of a layer."""
        return SlidingWindow(window=self.window) if layer % self.full_every else FULL


@plugins.option("pattern", "bigbird")
@dataclass(frozen=True)
class BigBird(Pattern):
    """The block of a query attends to blocks: `bigbird_blocks`; with at most 5 + 2 random_blocks blocks, attention is full.

    Source: Zaheer et al. 2020.
    """

    layer: int = 0  # random blocks differ between layers
    _: KW_ONLY
    block_size: Size = 64
    random_blocks: Annotated[int, Interval(0, 1000)] = 3
    random_seed: Count = 0
    is_masked = is_in_blocks = True

    def of_layer(self, layer: int) -> Pattern:
        """Return the pattern with the random blocks of a layer."""
        return replace(self, layer=layer)

    def allowed(self, length: int) -> Tensor:
        """Whether the block of i attends to the block of j."""
        if (num_blocks := self.num_blocks(length)) == 1:
            return super().allowed(length)
        places = torch.arange(length) // self.block_size
        return self._seen(num_blocks)[places][:, places]

    def num_blocks(self, length: int) -> int:
        """Count the blocks, if there are more than 5 + 2 random_blocks."""
        count = -(-length // self.block_size)
        return count if count > 5 + 2 * self.random_blocks else 1

    def padding_key(self, length: int) -> int:
        """Return the number of blocks: the last one attends to all blocks."""
        return self.num_blocks(length)

    def cut(self, length: int, num_blocks: int) -> list[Block]:
        """Compare the first and the last block with all keys, and each other block with those that it attends to."""
        is_seen, order = self._seen(num_blocks)[1:-1].sort(dim=1, descending=True, stable=True)
        most = min(num_blocks, 5 + self.random_blocks)  # 5: the first, the last, the block itself and two neighbours
        every = torch.arange(num_blocks)[None]
        inner = torch.where(is_seen, order, -1)[:, :most]
        places = ((0, every), (1, inner), (num_blocks - 1, every))
        return [_block(self.block_size, length, length, first, numbers) for first, numbers in places]

    def _seen(self, num_blocks: int) -> Tensor:
        return bigbird_blocks(num_blocks, self.random_blocks, self.random_seed, self.layer)


@plugins.option("pattern", "linformer")
@dataclass(frozen=True, kw_only=True)
class Linformer(Pattern):
    """A query attends to keys that are compressed along the sequence (Wang et al. 2020)."""

    compressed_size: Size = 128
    compression_shared: Literal["none", "heads", "key_value", "layers"] = "layers"

    @property
    def shares_compression(self) -> bool:  # type: ignore[override]
        """Whether the layers share their matrices."""
        return self.compression_shared == "layers"

    def over(self, layout: Layout) -> Pattern:
        """Return itself; raises InputError for a causal layout."""
        refuse(
            layout.is_causal
            and "attention.pattern=linformer: compressed keys have no places, so attention cannot be causal"
        )
        return self

    def compression(self, config: BertConfig) -> "Compression":
        """Make the matrices of a layer, or of all."""
        return Compression(self, config)


CAUSAL = Causal()


def bigbird_blocks(num_blocks: int, num_random: int, seed: int = 0, layer: int = 0) -> Tensor:
    """Whether block i attends to block j: (blocks, blocks).

    The first and the last block attend to all blocks, and all blocks attend to them. Every block attends to itself, its
    neighbours, and `num_random` others, drawn for each layer and number of blocks.

    >>> bigbird_blocks(5, 0).int()
    tensor([[1, 1, 1, 1, 1],
            [1, 1, 1, 0, 1],
            [1, 1, 1, 1, 1],
            [1, 0, 1, 1, 1],
            [1, 1, 1, 1, 1]], dtype=torch.int32)

    Source: Zaheer et al. 2020, section 2, in the internal form (ITC).
    """
    numbers = torch.arange(num_blocks)
    seen = (numbers - numbers[:, None]).abs() <= 1
    seen[[0, -1]] = True
    seen[:, [0, -1]] = True
    key = (seed * 1_000_003 + layer) * 1_000_003 + num_blocks
    generator = torch.Generator().manual_seed(key % 4_294_967_291)  # a prime, as torch reads 32 bits only
    order = torch.rand(num_blocks, num_blocks, generator=generator).masked_fill(seen, 2).argsort(1)
    return seen.scatter(1, order[:, :num_random], True)


def _block(size: int, length: int, reach: int, first: int, numbers: Tensor) -> Block:
    """Combine n blocks of queries, from the block `first` on, each with m blocks of keys: `numbers` (n, m)."""

    def positions(blocks: Tensor) -> Tensor:
        return (blocks[..., None] * size + torch.arange(size)).flatten(1)

    queries, keys = positions(torch.arange(first, first + len(numbers))[:, None]), positions(numbers)
    is_key = (keys >= 0) & (keys < length)
    return Block(queries, keys, is_key[:, None] & ((keys[:, None] - queries[..., None]).abs() <= reach))


def compress(packed: Tensor, matrix: Tensor) -> Tensor:
    """Project the tokens of a sequence to K: packed (..., T, H), matrix (K, P) or (N, K, P) -> (..., K, H).

    For a sequence shorter than P, only the first T columns of the matrix are used, as if zeros followed its tokens.

    >>> compress(torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0, 1.0, 9.0]]))
    tensor([[3.]])

    Source: Wang et al. 2020 (Linformer), equation 7.
    """
    return matrix[..., : packed.shape[-2]] @ packed


class Compression(nn.Module):
    """The matrices E and F of a layer, which compress its keys and its values."""

    def __init__(self, linformer: Linformer, config: BertConfig) -> None:
        super().__init__()
        shared, length = linformer.compression_shared, config.max_position_embeddings
        self.num_heads = config.num_attention_heads if shared == "none" else 1
        size = self.num_heads * linformer.compressed_size
        self.key = nn.Linear(length, size, bias=False)
        self.value = None if shared in ("key_value", "layers") else nn.Linear(length, size, bias=False)

    def forward(self, key: Tensor, value: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Layout]:
        """Compress keys and values (S, N, H) of all sequences to (B * K, N, H), and return them with their layout."""
        count = len(layout.starts)
        matrices = self._matrix(self.key), self._matrix(self.key if self.value is None else self.value)
        compressed = []
        for packed, matrix in zip((key, value), matrices, strict=True):
            padded = layout.pad(packed).transpose(1, 2)  # the zeros of padding do not change the products
            compressed.append(compress(padded, matrix).transpose(1, 2).flatten(0, 1))
        size = len(compressed[0]) // count
        if size not in layout.compressed:
            lengths = torch.full((count,), size)
            layout.compressed[size] = Layout.from_lengths(lengths, layout.starts.device)
        return compressed[0], compressed[1], layout.compressed[size]

    def _matrix(self, projection: nn.Linear) -> Tensor:
        weight = projection.weight
        return weight.view(self.num_heads, -1, weight.shape[1]) if self.num_heads > 1 else weight
