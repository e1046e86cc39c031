"""Which keys a query sees: all of its sequence, or fewer; and keys that are compressed to fewer.

Axes: as in attention.py; K compressed_size, P max_position_embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.kernels.layout import on_device
from bertkit.model.bert_config import AttentionConfig, BertConfig


def allowed(config: AttentionConfig, length: int, layer: int = 0) -> Tensor:
    """Say whether query i sees key j, in a sequence of T tokens: (T, T).

        causal    j <= i
        window    |i - j| <= window
        bigbird   i and j lie in blocks that see each other; all is seen in a sequence of at most 5 + 2 random_blocks blocks
        linformer every compressed key, (T, K)

    >>> allowed(AttentionConfig(pattern="window", window=1), 3).int()
    tensor([[1, 1, 0],
            [1, 1, 1],
            [0, 1, 1]], dtype=torch.int32)
    >>> allowed(AttentionConfig(pattern="causal"), 2).int()
    tensor([[1, 0],
            [1, 1]], dtype=torch.int32)

    Source: Vaswani et al. 2017, section 3.2.3; Beltagy et al. 2020 (Longformer), section 3.1; Zaheer et al. 2020 (BigBird).
    """
    if config.pattern == "linformer":
        return torch.ones(length, config.compressed_size, dtype=torch.bool)
    places = torch.arange(length)
    distances = places - places[:, None]  # (T, T): j - i
    if config.pattern == "causal":
        return distances <= 0
    if config.pattern == "window":
        return distances.abs() <= config.window
    if config.pattern == "bigbird" and -(-length // config.block_size) > most_in_full(config):
        size = config.block_size
        blocks = bigbird_blocks(-(-length // size), config.random_blocks, config.random_seed, layer)
        return blocks[places // size][:, places // size]
    return torch.ones(length, length, dtype=torch.bool)


def bigbird_blocks(num_blocks: int, num_random: int, seed: int = 0, layer: int = 0) -> Tensor:
    """Say which blocks see each other: (blocks, blocks).

    The first and the last see all and are seen by all; each sees itself, its neighbours, and `num_random` others, drawn for
    each layer and number of blocks.

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
    generator = torch.Generator("cpu").manual_seed(key % 4_294_967_291)  # a prime, as torch looks at 32 bits only
    drawn = torch.rand(num_blocks, num_blocks, generator=generator, device="cpu").to(seen.device)
    order = drawn.masked_fill(seen, 2).argsort(1)
    return seen.scatter(1, order[:, :num_random], True)


@dataclass(frozen=True)
class Blocks:
    """Some neighbouring blocks of queries, and for each of them the blocks of keys that are computed with it.

    Axes: n blocks of queries, m blocks of keys for each, b tokens of a block; T <= b * (number of blocks).
    """

    size: int  # b
    first: int  # the first block of queries
    keys: Tensor  # numbers of blocks, (n, m)
    allowed: Tensor  # (n, b, C), C = m * b; of a padded batch (B, 1, n, b, C)

    @property
    def places(self) -> Tensor:
        """Of the keys within their sequence: (n, m * b)."""
        return _places(self.keys, self.size)

    @property
    def distances(self) -> Tensor:
        """Of keys from queries, j - i: (n, b, m * b)."""
        rows = torch.arange(self.first, self.first + len(self.keys), device=self.keys.device)
        return self.places[:, None] - _places(rows[:, None], self.size)[..., None]

    def of_queries(self, packed: Tensor) -> Tensor:
        """(B, N, T, H) -> (B, N, n, b, H)."""
        return _in_blocks(packed, self.size).narrow(2, self.first, len(self.keys))

    def of_keys(self, packed: Tensor) -> Tensor:
        """(B, N, T, H) -> (B, N, n, m * b, H)."""
        chosen = _in_blocks(packed, self.size).index_select(2, self.keys.flatten())
        return chosen.view(*packed.shape[:2], len(self.keys), -1, packed.shape[-1])

    def on(self, device: torch.device) -> Blocks:
        """The same on a device, which is not waited for."""
        return replace(self, keys=on_device(self.keys, device), allowed=on_device(self.allowed, device))

    def without_padding(self, is_token: Tensor) -> Blocks:
        """The same for a padded batch, whose tokens `is_token` (B, T) tells from padding, which nobody sees."""
        is_seen = self.of_keys(is_token[:, None, :, None])[:, :, :, None, :, 0]  # (B, 1, n, 1, C)
        return replace(self, allowed=self.allowed & is_seen)


def _places(blocks: Tensor, size: int) -> Tensor:
    return (blocks[..., None] * size + torch.arange(size, device=blocks.device)).flatten(1)


def _in_blocks(packed: Tensor, size: int) -> Tensor:
    padded = F.pad(packed, (0, 0, 0, -packed.shape[2] % size)) if packed.shape[2] % size else packed
    return padded.view(*padded.shape[:2], -1, size, padded.shape[-1])


def most_in_full(config: AttentionConfig) -> int:
    """The most blocks of a sequence of which none would be left out."""
    return 3 if config.pattern == "window" else 5 + 2 * config.random_blocks


def plan(config: AttentionConfig, length: int, layer: int = 0) -> list[Blocks]:
    """Cut the queries of a sequence of T tokens into blocks, so that little is computed that is not allowed.

    A window takes each block with its two neighbours, BigBird its first and its last block with all keys: time and memory
    grow with T. Where no pair of blocks would be left out, and with any other pattern, all is one block.
    """
    size = config.window if config.pattern == "window" else config.block_size
    num_blocks = -(-length // size)
    if config.pattern not in ("window", "bigbird") or num_blocks <= most_in_full(config):
        none = torch.zeros(1, 1, dtype=torch.int64)
        return [Blocks(length, 0, none, allowed(config, length, layer)[None])]
    if config.pattern == "window":
        keys = [torch.arange(num_blocks)[:, None] + torch.arange(-1, 2)]
    else:
        inner = bigbird_blocks(num_blocks, config.random_blocks, config.random_seed, layer)[1:-1]
        is_seen, order = inner.sort(dim=1, descending=True, stable=True)
        most = min(num_blocks, 5 + config.random_blocks)  # the first, the last, itself and two neighbours
        every = torch.arange(num_blocks)[None]
        keys = [every, torch.where(is_seen, order, -1)[:, :most], every]
    firsts = [0, 1, num_blocks - 1]
    window = config.window if config.pattern == "window" else length
    return [_blocks(size, length, first, each, window) for first, each in zip(firsts, keys, strict=False)]


def _blocks(size: int, length: int, first: int, keys: Tensor, window: int) -> Blocks:
    """Make blocks; numbers of keys outside of the sequence stand for none."""
    rows = _places(torch.arange(first, first + len(keys))[:, None], size)[..., None]  # (n, b, 1)
    columns = _places(keys, size)[:, None]  # (n, 1, C)
    is_allowed = (columns >= 0) & (columns < length) & ((columns - rows).abs() <= window)
    return Blocks(size, first, keys.clamp(0, -(-length // size) - 1), is_allowed)


def compress(packed: Tensor, matrix: Tensor) -> Tensor:
    """Project the tokens of a sequence to K: packed (..., T, H), matrix (K, P) or (N, K, P) -> (..., K, H).

    A sequence shorter than P takes the first T columns, as if zeros followed it.

    >>> compress(torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0, 1.0, 9.0]]))
    tensor([[3.]])

    Source: Wang et al. 2020 (Linformer), equation 7.
    """
    return matrix[..., : packed.shape[-2]] @ packed


class Compression(nn.Module):
    """E and F of a layer: the matrices that compress its keys and its values."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        attention, length = config.attention, config.max_position_embeddings
        self.num_heads = config.num_attention_heads if attention.compression_shared == "none" else 1
        size = self.num_heads * attention.compressed_size
        self.key = nn.Linear(length, size, bias=False)
        is_one = attention.compression_shared in ("key_value", "layers")
        self.value = None if is_one else nn.Linear(length, size, bias=False)

    def forward(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Each (B, N, T, H) -> (B, N, K, H)."""
        of_value = self.key if self.value is None else self.value
        return compress(key, self._matrix(self.key)), compress(value, self._matrix(of_value))

    def _matrix(self, projection: nn.Linear) -> Tensor:
        weight = projection.weight
        return weight.view(self.num_heads, -1, weight.shape[1]) if self.num_heads > 1 else weight
