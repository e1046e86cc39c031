"""Geometry of attention: the keys that each query is compared with, and the groups that are computed together.

Axes: as in attention.py; C keys that a query is compared with.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.kernels.layout import Layout, on_device
from bertkit.model.bert_config import AttentionConfig
from bertkit.model.patterns import IN_BLOCKS, Block, allowed, num_blocks_of, plan

FULL, CAUSAL = AttentionConfig(), AttentionConfig(pattern="causal")
SEE_ALL = ("full", "linformer")  # patterns in which a query sees all keys of its pair of sequences


@dataclass(frozen=True)
class Group:
    """B sequences, or B blocks of sequences, that are computed together: T queries with C keys each."""

    shape: tuple[int, int, int]  # B, T, C
    seen: Tensor | None  # whether a query sees a key, (B or 1, 1, T or 1, C); None: it sees all
    query_places: Tensor  # the place of each query in its sequence, (B or 1, T)
    key_places: Tensor  # the place of each key in its sequence, (B or 1, C)
    is_causal: bool = False  # no query sees a later key, and nothing is padded; `seen` says the same
    # the packed token of each query, (B, T), and of each key, (B, C); None: they follow those of the group before
    rows: Tensor | None = None
    columns: Tensor | None = None
    is_query: Tensor | None = None  # whether a query is a token and no padding, (B, T); None: all are tokens

    @property
    def distances(self) -> Tensor:
        """Key positions minus query positions, j - i: (B or 1, T, C)."""
        return self.key_places[:, None] - self.query_places[..., None]


@dataclass(eq=False)  # not frozen: torch.compile would inspect every field, and recompile for each layer
class Geometry:
    """The sequences of the queries, the sequences that they are compared with, and the pattern within a pair of them.

    Attributes:
        queries: where the sequences of the queries lie.
        keys: the same layout, or that of as many other sequences: the sources of targets, or compressed keys.
        attention: its pattern says which keys a query sees of its own sequence.
        layer: number of the layer; random blocks differ between layers.
        is_together: compute neighbours in one padded group, as lengths of pairs rarely repeat; else only equal lengths.
        is_whole: never cut sequences into blocks, so that weights exist for all pairs of tokens.
    """

    queries: Layout
    keys: Layout
    attention: AttentionConfig = FULL
    layer: int = 0
    is_together: bool = False
    is_whole: bool = False

    @property
    def is_of_self(self) -> bool:
        """Whether queries and keys share one layout, as in uncompressed self-attention."""
        return self.keys is self.queries

    @property
    def is_causal(self) -> bool:
        """Whether no query sees a later key."""
        return self.attention.pattern == "causal"

    @property
    def is_in_blocks(self) -> bool:
        """Whether sequences may be cut into blocks."""
        return self.attention.pattern in IN_BLOCKS

    def take(self, query: Tensor, key: Tensor, value: Tensor) -> Iterator[tuple[Group, Tensor, Tensor, Tensor]]:
        """Yield each group with its vectors (S, N, H): queries as (B, N, T, H), keys and values as (B, N, C, H)."""
        groups, order = self._plan
        parts = []
        for packed, axis in ((query, 1), (key, 2), (value, 2)):
            if order is not None:
                places = [group.rows if axis == 1 else group.columns for group in groups]
                parts.append([packed.index_select(0, tokens.flatten()) for tokens in places if tokens is not None])
            else:  # split, and not sliced: the gradient of a slice is as large as the whole
                sizes = [group.shape[0] * group.shape[axis] for group in groups]
                size = sum(sizes)
                parts.append(list(torch.split(packed if size == len(packed) else packed[:size], sizes)))
        for group, q, k, v in zip(groups, *parts, strict=True):
            count, num_queries, num_keys = group.shape
            yield (
                group,
                q.view(count, num_queries, *q.shape[1:]).transpose(1, 2),
                k.view(count, num_keys, *k.shape[1:]).transpose(1, 2),
                v.view(count, num_keys, *v.shape[1:]).transpose(1, 2),
            )

    def put_back(self, contexts: Sequence[Tensor], num_tokens: int) -> Tensor:
        """Pack the contexts of all groups, each (B, N, T, H), as the queries were: (S, N, H), with zeros for slack."""
        flat = [context.transpose(1, 2).flatten(0, 1) for context in contexts]
        packed, (_, order) = torch.cat(flat) if len(flat) > 1 else flat[0].contiguous(), self._plan
        packed = packed if order is None else packed.index_select(0, order)
        return packed if len(packed) == num_tokens else F.pad(packed, (0, 0, 0, 0, 0, num_tokens - len(packed)))

    def join_weights(self, weights: Sequence[Tensor]) -> Tensor:
        """Join the weights of whole sequences, (B, N, T, C) for each group: T and C the longest, zeros in padding, no slack."""
        num_queries, num_keys = (max(own.shape[axis] for own in weights) for axis in (2, 3))
        padded = []
        for group, own in zip(self._plan[0], weights, strict=True):
            own = own if group.is_query is None else own * group.is_query[:, None, :, None]
            padded.append(F.pad(own, (0, num_keys - own.shape[3], 0, num_queries - own.shape[2])))
        return torch.cat(padded)[: len(self.queries.starts)]

    @functools.cached_property
    def _plan(self) -> tuple[list[Group], Tensor | None]:
        """The groups, and the place of each query among all contexts, None if they are in order; made once for a batch."""
        layer = self.layer if self.attention.pattern == "bigbird" else 0
        key = None if self.is_of_self else self.keys, self.attention, layer, self.is_together, self.is_whole
        plans = self.queries.plans
        if key not in plans:
            plans[key] = self._make_plan()
        return plans[key]  # type: ignore[no-any-return]

    def _make_plan(self) -> tuple[list[Group], Tensor | None]:
        if self.is_of_self and not self.is_together:  # slack is a run, too
            pairs = [(length, length) for _, count, length in self.queries.runs for _ in range(count)]
        else:
            pairs = list(zip(self.queries.lengths, self.keys.lengths, strict=True))
        bunches = [list(bunch) for _, bunch in itertools.groupby(pairs, self._kind)]
        if all(len(set(bunch)) == 1 and not self._is_cut(bunch[0][0]) for bunch in bunches):
            return [self._run(len(bunch), *bunch[0]) for bunch in bunches], None
        groups: list[Group] = []
        order = torch.empty(sum(length for length, _ in pairs), dtype=torch.int64)
        num_contexts, first = 0, torch.zeros(2, dtype=torch.int64)  # the first query and the first key of the bunch
        for bunch in bunches:
            lengths = torch.tensor(bunch)  # (B, 2)
            ends = first + lengths.cumsum(0)
            for block in self._blocks(*map(max, zip(*bunch, strict=True))):
                rows, is_query = _tokens(block.queries, ends[:, 0], lengths[:, 0])
                columns, is_key = _tokens(block.keys, ends[:, 1], lengths[:, 1])
                order[rows[is_query]] = num_contexts + is_query.flatten().nonzero()[:, 0]
                num_contexts += rows.numel()
                groups.append(self._group(rows, columns, is_query, is_key, block))
            first = ends[-1]
        return groups, on_device(order, self.queries.starts.device)

    def _kind(self, pair: tuple[int, int]) -> object:
        """The property that neighbours in one group share: their lengths, or the number of their random blocks."""
        if not self.is_together:
            return pair
        return num_blocks_of(self.attention, pair[0]) if self.attention.pattern == "bigbird" else None

    def _is_cut(self, length: int) -> bool:
        return self.is_in_blocks and not self.is_whole and num_blocks_of(self.attention, length) > 1

    def _blocks(self, length: int, num_keys: int) -> list[Block]:
        if self.attention.pattern not in SEE_ALL:
            return plan(self.attention, length, self.layer)
        return [Block(torch.arange(length)[None], torch.arange(num_keys)[None], torch.ones(1, 1, 1, dtype=torch.bool))]

    def _run(self, count: int, length: int, num_keys: int) -> Group:
        """Compute sequences of one length together, as they lie in the batch."""
        device = self.queries.starts.device
        queries, keys = (torch.arange(size, device=device)[None] for size in (length, num_keys))
        seen = None
        if self.attention.pattern not in SEE_ALL:
            seen = on_device(allowed(self.attention, length, self.layer), device)[None, None]
        return Group((count, length, num_keys), seen, queries, keys, self.is_causal)

    def _group(self, rows: Tensor, columns: Tensor, is_query: Tensor, is_key: Tensor, block: Block) -> Group:
        """Compute blocks of sequences together: rows (B, n, b) with columns (B, n, C)."""
        count, device = len(rows), self.queries.starts.device
        seen = block.allowed if self.is_causal else (is_key[:, :, None] & block.allowed).flatten(0, 1)
        times = count if len(block.queries) > 1 else 1
        tensors = (
            seen[:, None], block.queries.repeat(times, 1), block.keys.repeat(times, 1), rows.flatten(0, 1),
            columns.flatten(0, 1), is_query.flatten(0, 1),
        )  # fmt: skip
        seen, queries, keys, rows, columns, is_query = (on_device(tensor, device) for tensor in tensors)
        shape = (len(rows), rows.shape[1], columns.shape[1])
        return Group(shape, seen, queries, keys, False, rows, columns, is_query)


def _tokens(places: Tensor, ends: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Find the packed tokens at places (n, b) of sequences (B,), and whether they are there: twice (B, n, b)."""
    lengths = lengths[:, None, None]
    is_token = (places >= 0) & (places < lengths)
    return ends[:, None, None] - lengths + torch.minimum(places.clamp(min=0), lengths - 1), is_token
