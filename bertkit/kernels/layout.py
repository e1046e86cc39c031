"""Where each sequence starts and ends in a packed batch, and groups of sequences as the operands of batched products.

A fast kernel may need a batch size that is rounded up: "slack" are the additional tokens at the end of a batch, in
sequences of their own, whose results are not used.

Axes: as in model/attention.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """B sequences, or B blocks of sequences, in one batched product: T queries and C keys in each."""

    shape: tuple[int, int, int]  # B, T, C
    mask: Tensor | None  # whether a query attends to a key, (B or 1, 1, T or 1, C); None: to all keys
    query_positions: Tensor  # the position of each query in its sequence, (B or 1, T)
    key_positions: Tensor  # the position of each key in its sequence, (B or 1, C)
    reach: int  # no query is further away from a key of its sequence or block
    is_causal: bool = False  # the mask is the causal one, without padding
    is_query: Tensor | None = None  # False for a query that is padding, (B, T); None: without padding

    @property
    def distances(self) -> Tensor:
        """Key positions minus query positions, j - i: (B or 1, T, C)."""
        return self.key_positions[:, None] - self.query_positions[..., None]

    def without_needless_mask(self) -> Group:
        """Return the group without its mask if every query attends to all keys."""
        return replace(self, mask=None) if self.mask is not None and bool(self.mask.all()) else self


class Selection(NamedTuple):
    """Groups whose vectors are selected in one step, by rows of (S * N, H); None: all rows, in the order of the batch."""

    groups: list[Group]
    query_rows: Tensor | None = None  # (B, N, T) of each group, flattened and concatenated
    key_rows: Tensor | None = None  # (B, N, C) of each group, flattened and concatenated


@dataclass(frozen=True)
class Plan:
    """The groups of a batch."""

    selections: list[Selection]
    order: Tensor | None = None  # the row of each query among all contexts; None: in the order of the batch

    def split(self, query: Tensor, key: Tensor, value: Tensor) -> Iterator[tuple[Group, Tensor, Tensor, Tensor]]:
        """Yield each group with its vectors: queries (S, N, H) as (B, N, T, H), keys and values (n, N, H) as (B, N, C, H)."""
        for groups, rows, columns in self.selections:
            parts = ((query, rows, 1), (key, columns, 2), (value, columns, 2))
            yield from zip(groups, *(_split(groups, *part) for part in parts), strict=True)

    def join_contexts(self, contexts: Sequence[Tensor], num_tokens: int) -> Tensor:
        """Put the contexts of all groups, each (B, N, T, H), into the order of the queries: (S, N, H), with zeros for slack."""
        num_heads, order = contexts[0].shape[1], self.order
        contexts = [x.transpose(1, 2).flatten(0, 1) if order is None else x.flatten(0, 2) for x in contexts]
        packed = torch.cat(contexts) if len(contexts) > 1 else contexts[0].contiguous()
        packed = packed if order is None else packed.index_select(0, order).view(-1, num_heads, packed.shape[1])
        return packed if len(packed) == num_tokens else F.pad(packed, (0, 0, 0, 0, 0, num_tokens - len(packed)))

    def join_weights(self, weights: Sequence[Tensor], num_sequences: int) -> Tensor:
        """Concatenate the weights of all groups, (B, N, T, C), padded with zeros to the longest T and C, without slack."""
        num_queries, num_keys = (max(own.shape[axis] for own in weights) for axis in (2, 3))
        padded = []
        groups = [group for selection in self.selections for group in selection.groups]
        for group, own in zip(groups, weights, strict=True):
            own = own if group.is_query is None else own * group.is_query[:, None, :, None]
            padded.append(F.pad(own, (0, num_keys - own.shape[3], 0, num_queries - own.shape[2])))
        return torch.cat(padded)[:num_sequences]


@dataclass(eq=False)  # not frozen: torch.compile would inspect every field, and recompile for each number of runs
class Layout:
    """The shape of a packed batch."""

    starts: Tensor  # index of the first token of each sequence, (B,), without slack
    bounds: Tensor  # the same with slack, and S at the end, int32, as variable-length kernels expect
    position_ids: Tensor  # position of each token in its sequence, (S,)
    padded_indices: Tensor  # index of each token in a batch padded to the longest sequence and flattened, (S,)
    # runs of neighbouring sequences of equal length: (first token, number of sequences, their length)
    runs: tuple[tuple[int, int, int], ...]
    is_causal: bool = False  # in self-attention, no token attends to a later one, whatever the pattern of the model is
    # `model.geometry` keeps here how attention is computed over this batch, for all layers
    plans: dict[Hashable, Plan] = field(default_factory=dict, compare=False, repr=False)
    compressed: dict[int, Layout] = field(
        default_factory=dict, compare=False, repr=False
    )  # by the number of compressed keys

    @property
    def longest(self) -> int:
        """T, tokens of the longest sequence."""
        return max(length for _, _, length in self.runs)

    @property
    def lengths(self) -> list[int]:
        """The number of tokens in each sequence, without slack, (B,)."""
        return [length for _, count, length in self.runs for _ in range(count)][: len(self.starts)]

    def pad(self, packed: Tensor) -> Tensor:
        """Pad packed values (S, ...) with zeros to (B, T, ...); slack is left out."""
        padded_indices = self.padded_indices[: sum(self.lengths)]
        return pad(packed[: len(padded_indices)], padded_indices, len(self.starts), self.longest)

    @property
    def is_token(self) -> Tensor:
        """The attention mask of the padded batch: True for tokens, False for padding, (B, T)."""
        return self.pad(torch.ones_like(self.padded_indices, dtype=torch.bool))

    @classmethod
    def from_lengths(
        cls,
        sequence_lengths: Tensor,
        device: torch.device | None = None,
        position_ids: Tensor | None = None,
        num_slack: int = 0,
        slack_length: int = 1,
    ) -> Layout:
        """Make the layout of sequences with these lengths, a tensor (B,) on the CPU.

        Everything is computed on the CPU, so the host never waits for the device. `position_ids` (S,) replaces 0, 1, 2, ...
        in each sequence, for sequences with gaps. The last `num_slack` tokens are slack, in
        sequences of up to `slack_length` tokens, all at position 0.
        """
        num_sequences, num_tokens = len(sequence_lengths), int(sequence_lengths.sum())
        slack = sequence_lengths.new_full((-(-num_slack // slack_length),), slack_length)
        slack[-1:] -= -num_slack % slack_length
        sequence_lengths = torch.cat([sequence_lengths, slack])
        lengths: list[int] = sequence_lengths.tolist()
        ends = sequence_lengths.cumsum(0)
        starts = ends - sequence_lengths
        places = torch.arange(sum(lengths)) - starts.repeat_interleave(sequence_lengths)
        rows = torch.arange(len(lengths)).repeat_interleave(sequence_lengths)
        runs: list[tuple[int, int, int]] = []
        for start, length in zip(starts.tolist(), lengths, strict=True):
            if runs and runs[-1][2] == length:
                first, count, _ = runs[-1]
                runs[-1] = (first, count + 1, length)
            else:
                runs.append((start, 1, length))
        return cls(
            starts=on_device(starts[:num_sequences], device),
            bounds=on_device(torch.cat([starts[:1], ends]).int(), device),
            position_ids=on_device(
                F.pad(places[:num_tokens], (0, num_slack)) if position_ids is None else position_ids, device
            ),
            padded_indices=on_device(rows * max(lengths, default=0) + places, device),
            runs=tuple(runs),
        )


@dataclass(frozen=True)
class Wanted:
    """The tokens whose last vectors somebody reads: [CLS] of every sequence, and perhaps others."""

    rows: Tensor  # their indices into S, in order, and slack, (n,)
    layout: Layout  # of these tokens
    are_first: bool  # whether they are the first ones alone


def on_device(tensor: Tensor, device: torch.device | None) -> Tensor:
    """Copy a tensor to a device; to CUDA through pinned memory, so that the host does not wait."""
    if device is None or device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def pad(packed: Tensor, indices: Tensor, num_sequences: int, num_columns: int) -> Tensor:
    """Put packed values (S, ...) at `indices` of a padded batch (B, T, ...), with zeros elsewhere."""
    padded = packed.new_zeros(num_sequences * num_columns, *packed.shape[1:])
    return padded.index_copy(0, indices, packed).view(num_sequences, num_columns, *packed.shape[1:])


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
