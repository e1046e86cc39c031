"""Which keys each query attends to, and how the sequences of a batch are grouped to compute attention.

"Slack" are tokens at the end of a batch that only round its size up; each is a sequence of its own.

Axes: as in attention.py; C keys for each query of a group, some of them masked.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from bertkit.kernels.layout import Group, Layout, Plan, Selection, on_device
from bertkit.model.slots import FULL, Block, Pattern


@dataclass(eq=False)  # not frozen: torch.compile would inspect every field, and recompile for each layer
class Geometry:
    """Pairs of sequences, one with queries and one with keys, and the pattern of attention within each pair."""

    queries: Layout
    # in the order of the queries' sequences: the same in self-attention, the sources in cross-attention, or compressed keys
    keys: Layout
    pattern: Pattern = FULL  # which keys of its sequence a query attends to
    is_padded: bool = False  # pad sequences, to compute different lengths in one group; else a group has equal lengths
    is_whole: bool = False  # do not cut sequences into blocks, so that all pairs of tokens have a weight

    @property
    def is_self_attention(self) -> bool:
        """Whether queries and keys share one layout, as in uncompressed self-attention."""
        return self.keys is self.queries

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The numbers of queries and keys of each pair of sequences, without slack."""
        return list(zip(self.queries.lengths, self.keys.lengths, strict=True))

    def is_cut(self, pairs: Iterable[tuple[int, int]]) -> bool:
        """Whether a sequence is cut into blocks."""
        may_cut = self.pattern.is_in_blocks and not self.is_whole
        return may_cut and any(self.pattern.num_blocks(length) > 1 for length, _ in pairs)

    def plan(self, num_heads: int, planner: Planner | None = None) -> Plan:
        """Return the groups, as a planner makes them; by default `padded` or `equal_lengths`. It is made once for a batch."""
        planner = planner or (padded if self.is_padded else equal_lengths)
        keys = None if self.is_self_attention else self.keys
        key = planner, keys, self.pattern, self.is_whole, num_heads
        if key not in self.queries.plans:
            self.queries.plans[key] = planner(self, num_heads)
        return self.queries.plans[key]


Planner = Callable[[Geometry, int], Plan]


def equal_lengths(geometry: Geometry, num_heads: int) -> Plan:
    """Group sequences of equal lengths: neighbours, in the order of the batch, or, if they are cut into blocks, all of them."""
    pairs = geometry.pairs
    if geometry.is_self_attention:  # with slack
        pairs = [(length, length) for _, count, length in geometry.queries.runs for _ in range(count)]
    return _group_by(lambda pair: pair, geometry, num_heads, pairs)


def without_slack(geometry: Geometry, num_heads: int) -> Plan:
    """Group neighbouring sequences of equal lengths, in the order of the batch; masks that hide nothing are left out."""
    plan = _group_by(lambda pair: pair, geometry, num_heads, geometry.pairs)
    for selection in plan.selections:
        selection.groups[:] = [group.without_needless_mask() for group in selection.groups]
    return plan


def padded(geometry: Geometry, num_heads: int) -> Plan:
    """Group sequences of all lengths, padded to the longest; those that a pattern cuts into several blocks by their number."""
    return _group_by(lambda pair: geometry.pattern.padding_key(pair[0]), geometry, num_heads, geometry.pairs)


def _group_by(
    key: Callable[[tuple[int, int]], Hashable], geometry: Geometry, num_heads: int, pairs: list[tuple[int, int]]
) -> Plan:
    """Group pairs of sequences with the same key; if nothing is cut or padded, neighbours in the order of the batch."""
    runs = [list(run) for _, run in itertools.groupby(pairs, key)]
    if not geometry.is_cut(pairs) and all(len(set(run)) == 1 for run in runs):
        return Plan([Selection([_equal_group(geometry, len(run), *run[0]) for run in runs])])
    alike: dict[Hashable, list[int]] = {}
    for number, pair in enumerate(pairs):
        alike.setdefault(key(pair), []).append(number)
    return _gather(geometry, num_heads, pairs, alike.values())


@dataclass(frozen=True)
class _Gathered:
    """A group with the rows of (S * N, H) that it consists of."""

    group: Group
    query_rows: Tensor
    key_rows: Tensor
    is_token: Tensor  # False for a query that is padding


def _gather(
    geometry: Geometry,
    num_heads: int,
    pairs: list[tuple[int, int]],
    groups: Iterable[list[int]],
) -> Plan:
    """Group pairs of sequences by their numbers, padded to the longest; sequences that are cut make a group for each block."""
    all_lengths = torch.tensor(pairs)  # (B, 2)
    all_ends = all_lengths.cumsum(0)
    gathered: dict[int, list[_Gathered]] = {}  # by the number of a block in its sequence
    for numbers in groups:
        lengths, ends = all_lengths[numbers], all_ends[numbers]
        for number, block in enumerate(_blocks(geometry, *lengths.amax(0).tolist())):
            queries, is_query = _tokens(block.queries, ends[:, 0], lengths[:, 0])
            keys, is_key = _tokens(block.keys, ends[:, 1], lengths[:, 1])
            is_token = is_query.flatten(0, 1)[:, None].expand(-1, num_heads, -1).flatten()
            group = _padded_group(geometry, is_query, is_key, block)
            one = _Gathered(group, _rows(queries, num_heads), _rows(keys, num_heads), is_token)
            gathered.setdefault(number, []).append(one)
    device = geometry.queries.starts.device
    selections = [
        Selection(
            [one.group for one in alike],
            on_device(torch.cat([one.query_rows for one in alike]), device),
            on_device(torch.cat([one.key_rows for one in alike]), device),
        )
        for alike in gathered.values()
    ]
    in_order = [one for alike in gathered.values() for one in alike]
    contexts = torch.cat([one.is_token for one in in_order]).nonzero()[:, 0]
    order = torch.empty_like(contexts)
    order[torch.cat([one.query_rows for one in in_order])[contexts]] = contexts
    return Plan(selections, on_device(order, device))


def _blocks(geometry: Geometry, length: int, num_keys: int) -> list[Block]:
    if geometry.pattern.is_masked:
        return geometry.pattern.blocks(length)
    return [Block(torch.arange(length)[None], torch.arange(num_keys)[None], torch.ones(1, 1, 1, dtype=torch.bool))]


def _equal_group(geometry: Geometry, count: int, length: int, num_keys: int) -> Group:
    """Group neighbouring sequences of equal length, whole and in the order of the batch."""
    device, pattern = geometry.queries.starts.device, geometry.pattern
    queries, keys = (torch.arange(size, device=device)[None] for size in (length, num_keys))
    mask = on_device(pattern.allowed(length), device)[None, None] if pattern.is_masked else None
    return Group((count, length, num_keys), mask, queries, keys, max(length, num_keys) - 1, pattern.is_causal)


def _padded_group(geometry: Geometry, is_query: Tensor, is_key: Tensor, block: Block) -> Group:
    """Group the same blocks of B sequences; False marks padding: is_query (B, n, b), is_key (B, n, C)."""
    count, device = len(is_query), geometry.queries.starts.device
    # a token attends to no later token, and so to no padding
    mask = block.allowed if geometry.pattern.is_causal else (is_key[:, :, None] & block.allowed).flatten(0, 1)
    times = count if len(block.queries) > 1 else 1
    (first_query, last_query), (first_key, last_key) = block.queries.aminmax(dim=1), block.keys.aminmax(dim=1)
    reach = int(torch.maximum(last_query - first_key, last_key - first_query).max())
    tensors = mask[:, None], block.queries.repeat(times, 1), block.keys.repeat(times, 1), is_query.flatten(0, 1)
    mask, queries, keys, is_query = (on_device(tensor, device) for tensor in tensors)
    return Group((len(is_query), is_query.shape[1], keys.shape[1]), mask, queries, keys, reach, is_query=is_query)


def _tokens(positions: Tensor, ends: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of the packed tokens at positions (n, b) of sequences (B,), and whether such tokens exist; both (B, n, b)."""
    lengths = lengths[:, None, None]
    is_token = (positions >= 0) & (positions < lengths)
    return ends[:, None, None] - lengths + torch.minimum(positions.clamp(min=0), lengths - 1), is_token


def _rows(tokens: Tensor, num_heads: int) -> Tensor:
    """Rows of tokens (B, n, b) in vectors (S * N, H), in the order (B, n, N, b), flattened."""
    return (tokens.flatten(0, 1)[:, None] * num_heads + torch.arange(num_heads)[:, None]).flatten()
