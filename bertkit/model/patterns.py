"""Patterns of attention: which keys of its sequence a query attends to, or how Linformer compresses the keys.

Axes: as in attention.py; K compressed_size, P max_position_embeddings.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from bertkit.kernels.layout import Layout
from bertkit.model.bert_config import AttentionConfig, BertConfig

IN_BLOCKS = ("window", "bigbird")  # patterns that cut long sequences into blocks


def allowed(config: AttentionConfig, length: int, layer: int = 0) -> Tensor:
    """Whether query i attends to key j in a sequence of T tokens: (T, T).

        causal    j <= i
        window    |i - j| <= window
        bigbird   the block of i attends to the block of j; with at most 5 + 2 random_blocks blocks, attention is full

    >>> allowed(AttentionConfig(pattern="window", window=1), 3).int()
    tensor([[1, 1, 0],
            [1, 1, 1],
            [0, 1, 1]], dtype=torch.int32)
    >>> allowed(AttentionConfig(pattern="causal"), 2).int()
    tensor([[1, 0],
            [1, 1]], dtype=torch.int32)

    Source: Vaswani et al. 2017, section 3.2.3; Beltagy et al. 2020 (Longformer), section 3.1; Zaheer et al. 2020 (BigBird).
    """
    places = torch.arange(length)
    distances = places - places[:, None]  # (T, T): j - i
    if config.pattern == "causal":
        return distances <= 0
    if config.pattern == "window":
        return distances.abs() <= config.window
    num_blocks, size = num_blocks_of(config, length), config.block_size
    if config.pattern == "bigbird" and num_blocks > 1:
        blocks = bigbird_blocks(num_blocks, config.random_blocks, config.random_seed, layer)
        return blocks[places // size][:, places // size]
    return torch.ones(length, length, dtype=torch.bool)


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


class Block(NamedTuple):
    """Several blocks of queries with their keys, as positions in a sequence of T tokens.

    Axes: n blocks, each with b queries and C keys. Positions may be outside the sequence; such keys are masked.
    """

    queries: Tensor  # (n, b)
    keys: Tensor  # (n, C)
    allowed: Tensor  # (n, b, C)


def num_blocks_of(config: AttentionConfig, length: int) -> int:
    """Count the blocks that `window` or `bigbird` cut a sequence into; 1 if every pair of blocks is compared."""
    is_window = config.pattern == "window"
    num_blocks = -(-length // (config.window if is_window else config.block_size))
    return num_blocks if num_blocks > (3 if is_window else 5 + 2 * config.random_blocks) else 1


def plan(config: AttentionConfig, length: int, layer: int = 0) -> list[Block]:
    """Cut the queries of a sequence of T tokens into blocks, to avoid computing most masked pairs.

    A window compares each block with its two neighbours, BigBird its first and its last block with all keys: time and
    memory grow with T.
    """
    num_blocks = num_blocks_of(config, length) if config.pattern in IN_BLOCKS else 1
    if num_blocks == 1:
        places = torch.arange(length)[None]
        return [Block(places, places, allowed(config, length, layer)[None])]
    if config.pattern == "window":
        size, reach = config.window, config.window
        blocks = [torch.arange(num_blocks)[:, None] + torch.arange(-1, 2)]
    else:
        size, reach = config.block_size, length
        inner = bigbird_blocks(num_blocks, config.random_blocks, config.random_seed, layer)[1:-1]
        is_seen, order = inner.sort(dim=1, descending=True, stable=True)
        most = min(num_blocks, 5 + config.random_blocks)  # 5: the first, the last, the block itself and two neighbours
        every = torch.arange(num_blocks)[None]
        blocks = [every, torch.where(is_seen, order, -1)[:, :most], every]
    return [
        _block(size, length, reach, first, numbers)
        for first, numbers in zip((0, 1, num_blocks - 1), blocks, strict=False)
    ]


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

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        attention, length = config.attention, config.max_position_embeddings
        self.num_heads = config.num_attention_heads if attention.compression_shared == "none" else 1
        size = self.num_heads * attention.compressed_size
        self.key = nn.Linear(length, size, bias=False)
        is_one = attention.compression_shared in ("key_value", "layers")
        self.value = None if is_one else nn.Linear(length, size, bias=False)

    def forward(self, key: Tensor, value: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Layout]:
        """Compress keys and values (S, N, H) of all sequences to (B * K, N, H), and return them with their layout."""
        count = len(layout.starts)
        matrices = self._matrix(self.key), self._matrix(self.key if self.value is None else self.value)
        compressed = []
        for packed, matrix in zip((key, value), matrices, strict=True):
            padded = layout.pad(packed).transpose(1, 2)  # the zeros of padding do not change the products
            compressed.append(compress(padded, matrix).transpose(1, 2).flatten(0, 1))
        size = len(compressed[0]) // count
        if ("compressed", size) not in layout.plans:
            lengths = torch.full((count,), size)
            layout.plans["compressed", size] = Layout.from_lengths(lengths, layout.starts.device)
        return compressed[0], compressed[1], layout.plans["compressed", size]

    def _matrix(self, projection: nn.Linear) -> Tensor:
        weight = projection.weight
        return weight.view(self.num_heads, -1, weight.shape[1]) if self.num_heads > 1 else weight
