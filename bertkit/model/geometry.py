"""Which keys each query attends to, and how the sequences of a batch are grouped to compute attention.

"Slack" are tokens at the end of a batch that only round its size up; each is a sequence of its own.

Axes: as in attention.py; C keys for each query of a group, some of them masked.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.kernels.layout import Layout, on_device
from bertkit.model.bert_config import AttentionConfig
from bertkit.model.patterns import IN_BLOCKS, Block, allowed, num_blocks_of, plan

FULL, CAUSAL = AttentionConfig(), AttentionConfig(pattern="causal")
UNMASKED = ("full", "linformer")  # patterns in which a query attends to all keys of its sequence


@dataclass(frozen=True)
class Group:
    """B sequences, or B blocks of sequences, in one batched product: T queries and C keys in each."""

    shape: tuple[int, int, int]  # B, T, C
    mask: Tensor | None  # whether a query attends to a key, (B or 1, 1, T or 1, C); None: to all keys
    query_positions: Tensor  # the position of each query in its sequence, (B or 1, T)
    key_positions: Tensor  # the position of each key in its sequence, (B or 1, C)
    is_causal: bool = False  # the mask is the causal one, without padding
    is_query: Tensor | None = None  # False for a query that is padding, (B, T); None: without padding

    @property
    def distances(self) -> Tensor:
        """Key positions minus query positions, j - i: (B or 1, T, C)."""
        return self.key_positions[:, None] - self.query_positions[..., None]


class Part(NamedTuple):
    """Groups whose vectors are selected in one step, by rows of (S * N, H); None: all rows, in the order of the batch."""

    groups: list[Group]
    query_rows: Tensor | None = None  # (B, N, T) of each group, flattened and concatenated
    key_rows: Tensor | None = None  # (B, N, C) of each group, flattened and concatenated


@dataclass(eq=False)  # not frozen: torch.compile would inspect every field, and recompile for each layer
class Geometry:
    """Pairs of sequences, one with queries and one with keys, and the pattern of attention within each pair."""

    queries: Layout
    # in the order of the queries' sequences: the same in self-attention, the sources in cross-attention, or compressed keys
    keys: Layout
    attention: AttentionConfig = FULL  # its pattern determines which keys of its sequence a query attends to
    layer: int = 0  # random blocks differ between layers
    is_padded: bool = False  # pad sequences, to compute different lengths in one group; else a group has equal lengths
    group_size: int | None = None  # at most so many sequences, of similar lengths, in a padded group
    is_whole: bool = False  # do not cut sequences into blocks, so that all pairs of tokens have a weight

    @property
    def is_self_attention(self) -> bool:
        """Whether queries and keys share one layout, as in uncompressed self-attention."""
        return self.keys is self.queries

    @property
    def is_causal(self) -> bool:
        """Whether a query attends to no later key."""
        return self.attention.pattern == "causal"

    @property
    def is_in_blocks(self) -> bool:
        """Whether sequences may be cut into blocks."""
        return self.attention.pattern in IN_BLOCKS

    def split(self, query: Tensor, key: Tensor, value: Tensor) -> Iterator[tuple[Group, Tensor, Tensor, Tensor]]:
        """Yield each group with its vectors: queries (S, N, H) as (B, N, T, H), keys and values (n, N, H) as (B, N, C, H)."""
        for groups, rows, columns in self._plan(query.shape[1])[0]:
            parts = ((query, rows, 1), (key, columns, 2), (value, columns, 2))
            yield from zip(groups, *(_split(groups, *part) for part in parts), strict=True)

    def join_contexts(self, contexts: Sequence[Tensor], num_tokens: int) -> Tensor:
        """Put the contexts of all groups, each (B, N, T, H), into the order of the queries: (S, N, H), with zeros for slack."""
        num_heads = contexts[0].shape[1]
        order = self._plan(num_heads)[1]
        contexts = [x.transpose(1, 2).flatten(0, 1) if order is None else x.flatten(0, 2) for x in contexts]
        packed = torch.cat(contexts) if len(contexts) > 1 else contexts[0].contiguous()
        packed = packed if order is None else packed.index_select(0, order).view(-1, num_heads, packed.shape[1])
        return packed if len(packed) == num_tokens else F.pad(packed, (0, 0, 0, 0, 0, num_tokens - len(packed)))

    def join_weights(self, weights: Sequence[Tensor]) -> Tensor:
        """Concatenate the weights of all groups, (B, N, T, C), padded with zeros to the longest T and C, without slack."""
        num_queries, num_keys = (max(own.shape[axis] for own in weights) for axis in (2, 3))
        padded = []
        groups = [group for part in self._plan(weights[0].shape[1])[0] for group in part.groups]
        for group, own in zip(groups, weights, strict=True):
            own = own if group.is_query is None else own * group.is_query[:, None, :, None]
            padded.append(F.pad(own, (0, num_keys - own.shape[3], 0, num_queries - own.shape[2])))
        return torch.cat(padded)[: len(self.queries.starts)]

    def _plan(self, num_heads: int) -> tuple[list[Part], Tensor | None]:
        """Return the groups, and the row of each query among all contexts; None: in the order of the batch."""
        layer = self.layer if self.attention.pattern == "bigbird" else 0
        keys = None if self.is_self_attention else self.keys
        key = keys, self.attention, layer, self.is_padded, self.group_size, self.is_whole, num_heads
        plans = self.queries.plans
        if key not in plans:
            plans[key] = self._make_plan(num_heads)
        return plans[key]  # type: ignore[no-any-return]

    def _make_plan(self, num_heads: int) -> tuple[list[Part], Tensor | None]:
        if self.is_self_attention and not self.is_padded:  # with slack
            pairs = [(length, length) for _, count, length in self.queries.runs for _ in range(count)]
        else:
            pairs = list(zip(self.queries.lengths, self.keys.lengths, strict=True))
        neighbours = [list(alike) for _, alike in itertools.groupby(pairs, self._group_key)]
        may_cut = self.is_in_blocks and not self.is_whole
        is_cut = may_cut and any(num_blocks_of(self.attention, length) > 1 for length, _ in pairs)
        if not is_cut and self.group_size is None and all(len(set(alike)) == 1 for alike in neighbours):
            return [Part([self._equal_group(len(alike), *alike[0]) for alike in neighbours])], None
        alike_pairs: dict[object, list[int]] = {}
        by_length = sorted(range(len(pairs)), key=pairs.__getitem__)
        for rank, number in enumerate(by_length if self.group_size is not None else range(len(pairs))):
            key = self._group_key(pairs[number]) if self.group_size is None else rank // self.group_size
            alike_pairs.setdefault(key, []).append(number)
        all_lengths = torch.tensor(pairs)  # (B, 2)
        all_ends = all_lengths.cumsum(0)
        # by the number of a block in its sequence: groups, the rows of queries and of keys, and whether a query is a token
        found: dict[int, list[tuple[Any, ...]]] = {}
        for numbers in alike_pairs.values():
            lengths, ends = all_lengths[numbers], all_ends[numbers]
            # bmm compiles a program for each new shape in bfloat16
            longest = lengths.amax(0) if self.group_size is None else (lengths.amax(0) + 7) // 8 * 8
            for number, block in enumerate(self._blocks(*longest.tolist())):
                queries, is_query = _tokens(block.queries, ends[:, 0], lengths[:, 0])
                keys, is_key = _tokens(block.keys, ends[:, 1], lengths[:, 1])
                is_token = is_query.flatten(0, 1)[:, None].expand(-1, num_heads, -1).flatten()
                group = self._padded_group(is_query, is_key, block)
                found.setdefault(number, []).append(
                    (group, _rows(queries, num_heads), _rows(keys, num_heads), is_token)
                )
        parts, device = [], self.queries.starts.device
        for entries in found.values():
            groups, rows, columns, _ = zip(*entries, strict=True)
            parts.append(Part(list(groups), on_device(torch.cat(rows), device), on_device(torch.cat(columns), device)))
        _, all_rows, _, is_tokens = zip(*(entry for entries in found.values() for entry in entries), strict=True)
        contexts = torch.cat(is_tokens).nonzero()[:, 0]
        order = torch.empty_like(contexts)
        order[torch.cat(all_rows)[contexts]] = contexts
        return parts, on_device(order, device)

    def _group_key(self, pair: tuple[int, int]) -> object:
        """What pairs of sequences in one group have in common: both lengths, or the number of BigBird's blocks, or nothing."""
        if not self.is_padded:
            return pair
        return num_blocks_of(self.attention, pair[0]) if self.attention.pattern == "bigbird" else None

    def _blocks(self, length: int, num_keys: int) -> list[Block]:
        if self.attention.pattern not in UNMASKED:
            return plan(self.attention, length, self.layer)
        return [Block(torch.arange(length)[None], torch.arange(num_keys)[None], torch.ones(1, 1, 1, dtype=torch.bool))]

    def _equal_group(self, count: int, length: int, num_keys: int) -> Group:
        """Group neighbouring sequences of equal length, whole and in the order of the batch."""
        device = self.queries.starts.device
        queries, keys = (torch.arange(size, device=device)[None] for size in (length, num_keys))
        mask = None
        if self.attention.pattern not in UNMASKED:
            mask = on_device(allowed(self.attention, length, self.layer), device)[None, None]
        return Group((count, length, num_keys), mask, queries, keys, self.is_causal)

    def _padded_group(self, is_query: Tensor, is_key: Tensor, block: Block) -> Group:
        """Group the same blocks of B sequences; False marks padding: is_query (B, n, b), is_key (B, n, C)."""
        count, device = len(is_query), self.queries.starts.device
        mask = block.allowed if self.is_causal else (is_key[:, :, None] & block.allowed).flatten(0, 1)
        times = count if len(block.queries) > 1 else 1
        tensors = mask[:, None], block.queries.repeat(times, 1), block.keys.repeat(times, 1), is_query.flatten(0, 1)
        mask, queries, keys, is_query = (on_device(tensor, device) for tensor in tensors)
        used = None if self.group_size is not None and bool(mask.all()) else mask
        return Group((len(is_query), is_query.shape[1], keys.shape[1]), used, queries, keys, is_query=is_query)


def _tokens(positions: Tensor, ends: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of the packed tokens at positions (n, b) of sequences (B,), and whether such tokens exist; both (B, n, b)."""
    lengths = lengths[:, None, None]
    is_token = (positions >= 0) & (positions < lengths)
    return ends[:, None, None] - lengths + torch.minimum(positions.clamp(min=0), lengths - 1), is_token


def _rows(tokens: Tensor, num_heads: int) -> Tensor:
    """Rows of tokens (B, n, b) in vectors (S * N, H), in the order (B, n, N, b), flattened."""
    return (tokens.flatten(0, 1)[:, None] * num_heads + torch.arange(num_heads)[:, None]).flatten()


def _split(groups: list[Group], packed: Tensor, rows: Tensor | None, axis: int) -> list[Tensor]:
    """Select the vectors (S, N, H) of each group: (B, N, T, H) for axis 1 of its `shape`, (B, N, C, H) for axis 2."""
    num_heads, size = packed.shape[1:]
    shapes = [(group.shape[0], group.shape[axis]) for group in groups]
    lengths = [count * length for count, length in shapes]
    if rows is not None:
        packed = packed.flatten(0, 1).index_select(0, rows).view(-1, num_heads, size)
        parts = zip(torch.split(packed, lengths), shapes, strict=True)
        return [part.view(count, num_heads, length, size) for part, (count, length) in parts]
    # torch.split, since the gradient of every slice would be as large as the whole tensor
    packed = packed if sum(lengths) == len(packed) else packed[: sum(lengths)]
    parts = zip(torch.split(packed, lengths), shapes, strict=True)
    return [part.view(*shape, num_heads, size).transpose(1, 2) for part, shape in parts]
