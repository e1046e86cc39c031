"""Geometry of attention: the keys that each query is compared with, and the groups that are computed together.

Axes: as in attention.py; C keys that a query is compared with.
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
SEE_ALL = ("full", "linformer")  # patterns in which a query sees all keys of its pair of sequences


@dataclass(frozen=True)
class Group:
    """B sequences, or B blocks of sequences, that are computed together: T queries with C keys each."""

    shape: tuple[int, int, int]  # B, T, C
    seen: Tensor | None  # whether a query sees a key, (B or 1, 1, T or 1, C); None: it sees all
    query_places: Tensor  # the place of each query in its sequence, (B or 1, T)
    key_places: Tensor  # the place of each key in its sequence, (B or 1, C)
    is_causal: bool = False  # no query sees a later key, and nothing is padded; `seen` says the same
    is_query: Tensor | None = None  # whether a query is a token and no padding, (B, T); None: all are tokens

    @property
    def distances(self) -> Tensor:
        """Key positions minus query positions, j - i: (B or 1, T, C)."""
        return self.key_places[:, None] - self.query_places[..., None]


class Part(NamedTuple):
    """Groups whose vectors are selected from the batch by one operation; rows are rows of the vectors as (S * N, H)."""

    groups: list[Group]
    queries: Tensor | None = (
        None  # the row of each query, (B, N, T) flattened, of all groups; None: in the order of the batch
    )
    keys: Tensor | None = (
        None  # the row of each key, (B, N, C) flattened, of all groups; None: in the order of the batch
    )


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
        for groups, rows, columns in self._plan(query.shape[1])[0]:
            parts = ((query, rows, 1), (key, columns, 2), (value, columns, 2))
            yield from zip(groups, *(_split(groups, *part) for part in parts), strict=True)

    def put_back(self, contexts: Sequence[Tensor], num_tokens: int) -> Tensor:
        """Pack the contexts of all groups, each (B, N, T, H), as the queries were: (S, N, H), with zeros for slack."""
        num_heads = contexts[0].shape[1]
        order = self._plan(num_heads)[1]
        if order is None:
            contexts = [context.transpose(1, 2).flatten(0, 1) for context in contexts]
        else:
            contexts = [context.flatten(0, 2) for context in contexts]
        packed = torch.cat(contexts) if len(contexts) > 1 else contexts[0].contiguous()
        packed = packed if order is None else packed.index_select(0, order).view(-1, num_heads, packed.shape[1])
        return packed if len(packed) == num_tokens else F.pad(packed, (0, 0, 0, 0, 0, num_tokens - len(packed)))

    def join_weights(self, weights: Sequence[Tensor]) -> Tensor:
        """Join the weights of whole sequences, (B, N, T, C) for each group: T and C the longest, zeros in padding, no slack."""
        num_queries, num_keys = (max(own.shape[axis] for own in weights) for axis in (2, 3))
        padded = []
        groups = [group for part in self._plan(weights[0].shape[1])[0] for group in part.groups]
        for group, own in zip(groups, weights, strict=True):
            own = own if group.is_query is None else own * group.is_query[:, None, :, None]
            padded.append(F.pad(own, (0, num_keys - own.shape[3], 0, num_queries - own.shape[2])))
        return torch.cat(padded)[: len(self.queries.starts)]

    def _plan(self, num_heads: int) -> tuple[list[Part], Tensor | None]:
        """The groups, and the row of each query among all contexts, None if they are in order; made once for a batch."""
        layer = self.layer if self.attention.pattern == "bigbird" else 0
        key = None if self.is_of_self else self.keys, self.attention, layer, self.is_together, self.is_whole, num_heads
        plans = self.queries.plans
        if key not in plans:
            plans[key] = self._make_plan(num_heads)
        return plans[key]  # type: ignore[no-any-return]

    def _make_plan(self, num_heads: int) -> tuple[list[Part], Tensor | None]:
        if self.is_of_self and not self.is_together:  # slack is a run, too
            pairs = [(length, length) for _, count, length in self.queries.runs for _ in range(count)]
        else:
            pairs = list(zip(self.queries.lengths, self.keys.lengths, strict=True))
        bunches = [list(bunch) for _, bunch in itertools.groupby(pairs, self._kind)]
        if all(len(set(bunch)) == 1 and not self._is_cut(bunch[0][0]) for bunch in bunches):
            return [Part([self._run(len(bunch), *bunch[0]) for bunch in bunches])], None
        kinds: dict[object, list[int]] = {}
        for number, pair in enumerate(pairs):
            kinds.setdefault(self._kind(pair), []).append(number)
        all_lengths = torch.tensor(pairs)  # (B, 2)
        all_ends = all_lengths.cumsum(0)
        found: dict[int, list[tuple[Any, ...]]] = {}  # by the number of the block in its sequence
        for numbers in kinds.values():
            lengths, ends = all_lengths[numbers], all_ends[numbers]
            for number, block in enumerate(self._blocks(*lengths.amax(0).tolist())):
                queries, is_query = _tokens(block.queries, ends[:, 0], lengths[:, 0])
                keys, is_key = _tokens(block.keys, ends[:, 1], lengths[:, 1])
                is_token = is_query.flatten(0, 1)[:, None].expand(-1, num_heads, -1).flatten()
                group, rows, columns = (
                    self._group(is_query, is_key, block),
                    _rows(queries, num_heads),
                    _rows(keys, num_heads),
                )
                found.setdefault(number, []).append((group, rows, columns, is_token))
        parts, all_rows, is_context = [], [], []
        device = self.queries.starts.device
        for same_number in found.values():
            groups, *tensors = zip(*same_number, strict=True)
            rows, columns, is_token = map(torch.cat, tensors)
            parts.append(Part(list(groups), on_device(rows, device), on_device(columns, device)))
            all_rows.append(rows)
            is_context.append(is_token)
        places = torch.cat(is_context).nonzero()[:, 0]
        order = torch.empty_like(places)
        order[torch.cat(all_rows)[places]] = places
        return parts, on_device(order, device)

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

    def _group(self, is_query: Tensor, is_key: Tensor, block: Block) -> Group:
        """Compute blocks of sequences together: queries (B, n, b) with keys (B, n, C), which are tokens or padding."""
        count, device = len(is_query), self.queries.starts.device
        seen = block.allowed if self.is_causal else (is_key[:, :, None] & block.allowed).flatten(0, 1)
        times = count if len(block.queries) > 1 else 1
        tensors = seen[:, None], block.queries.repeat(times, 1), block.keys.repeat(times, 1), is_query.flatten(0, 1)
        seen, queries, keys, is_query = (on_device(tensor, device) for tensor in tensors)
        return Group((len(is_query), is_query.shape[1], keys.shape[1]), seen, queries, keys, is_query=is_query)


def _tokens(places: Tensor, ends: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Find the packed tokens at places (n, b) of sequences (B,), and whether they are there: twice (B, n, b)."""
    lengths = lengths[:, None, None]
    is_token = (places >= 0) & (places < lengths)
    return ends[:, None, None] - lengths + torch.minimum(places.clamp(min=0), lengths - 1), is_token


def _rows(tokens: Tensor, num_heads: int) -> Tensor:
    """The rows of tokens (B, n, b) in (S * N, H), head by head: (B * n * N * b,)."""
    return (tokens.flatten(0, 1)[:, None] * num_heads + torch.arange(num_heads)[:, None]).flatten()


def _split(groups: list[Group], packed: Tensor, rows: Tensor | None, axis: int) -> list[Tensor]:
    """Select the vectors (S, N, H) of each group, as many as its `shape` has on an axis: (B, N, T or C, H)."""
    num_heads, head_size = packed.shape[1:]
    shapes = [(group.shape[0], group.shape[axis]) for group in groups]
    sizes = [count * length for count, length in shapes]
    if rows is None:  # split, and not sliced: the gradient of a slice is as large as the whole
        vectors = torch.split(packed if sum(sizes) == len(packed) else packed[: sum(sizes)], sizes)
        return [
            part.view(*shape, num_heads, head_size).transpose(1, 2) for part, shape in zip(vectors, shapes, strict=True)
        ]
    vectors = torch.split(packed.flatten(0, 1).index_select(0, rows), [size * num_heads for size in sizes])
    return [part.view(shape[0], num_heads, shape[1], head_size) for part, shape in zip(vectors, shapes, strict=True)]
