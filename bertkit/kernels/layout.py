"""Where each sequence starts and ends in a packed batch.

Axes: as in model/attention.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """Neighbouring sequences of a packed batch that are computed together, padded to the longest where they differ."""

    count: int  # B, of them
    length: int  # T, of the longest
    slots: Tensor | None  # each token's place in the padded batch, flattened; None where all are equally long
    is_token: Tensor | None  # (B, T), the same

    @property
    def num_tokens(self) -> int:
        """Of all sequences, without padding."""
        return self.count * self.length if self.slots is None else len(self.slots)

    def padded(self, packed: Tensor) -> Tensor:
        """Its tokens (S, N, H) -> (B, N, T, H)."""
        apart = (
            packed.view(self.count, self.length, *packed.shape[1:])
            if self.slots is None
            else pad(packed, self.slots, self.count, self.length)
        )
        return apart.transpose(1, 2)

    def packed(self, padded: Tensor) -> Tensor:
        """The way back: (B, N, T, H) -> (S, N, H)."""
        flat = padded.transpose(1, 2).flatten(0, 1)
        return flat if self.slots is None else flat.index_select(0, self.slots)


@dataclass(frozen=True)
class Across:
    """Sequences that look at others, in pairs: targets at themselves, or at their sources."""

    queries: Group  # B sequences
    keys: Group  # B sequences, those that they look at
    seen: Tensor | None  # whether a query sees a key, (T, C) or (B, 1, 1, C); None where each sees all


@dataclass(eq=False)  # frozen, torch.compile would look into every field, and compile for each number of runs
class Layout:
    """The shape of a packed batch."""

    starts: Tensor  # index of each sequence's first token, (B,); slack has none
    bounds: Tensor  # the same, with slack, and, at the end, S: (B + 1,), int32, as variable-length kernels want them
    position_ids: Tensor  # each token's place in its own sequence, (S,)
    slots: Tensor  # each token's place in a batch padded to the longest sequence and flattened, (S,)
    # (first token, number of sequences, their length) of neighbours of equal length
    runs: tuple[tuple[int, int, int], ...]
    # of sparse attention and attention across, made once for all layers
    plans: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def longest(self) -> int:
        """T, tokens of the longest sequence."""
        return max(length for _, _, length in self.runs)

    def groups(self, key: Callable[[int], Any] | None) -> list[Group]:
        """Cut the batch into sequences that are computed together: runs, or all neighbours whose lengths have the same key."""
        if key is None:
            return [Group(count, length, None, None) for _, count, length in self.runs]
        alike = (list(runs) for _, runs in itertools.groupby(self.runs, lambda run: key(run[2])))
        return [self._group([length for _, count, length in runs for _ in range(count)]) for runs in alike]

    def across(self, keys: Layout) -> Across:
        """Pair these sequences, of which slack is left out, with those of `keys`; with themselves they see nothing later."""
        if id(keys) not in self.plans:
            device, (queries, looked_at) = self.bounds.device, (each._of_all() for each in (self, keys))
            seen: Tensor | None
            if keys is self:  # padding is later than every token
                seen = torch.ones(queries.length, queries.length, dtype=torch.bool, device=device).tril()
            else:
                seen = None if looked_at.is_token is None else looked_at.is_token[:, None, None]  # (B, 1, 1, C)
            kept = None if keys is self else keys  # lest others come to lie where they did, under the same id
            self.plans[id(keys)] = Across(queries, looked_at, seen), kept
        found: Across = self.plans[id(keys)][0]
        return found

    def _of_all(self) -> Group:
        lengths = [length for _, count, length in self.runs for _ in range(count)]
        return self._group(lengths[: len(self.starts)])

    def _group(self, of_sequences: list[int]) -> Group:
        if len(set(of_sequences)) == 1:
            return Group(len(of_sequences), of_sequences[0], None, None)
        lengths = torch.tensor(of_sequences)
        is_token = torch.arange(int(lengths.max())) < lengths[:, None]
        slots = is_token.flatten().nonzero()[:, 0]
        return Group(*is_token.shape, *(on_device(each, self.bounds.device) for each in (slots, is_token)))

    @classmethod
    def from_lengths(
        cls,
        sequence_lengths: Tensor,
        device: torch.device | None = None,
        position_ids: Tensor | None = None,
        num_slack: int = 0,
    ) -> Layout:
        """Lay out sequences of the given lengths (B,), which lie on the CPU.

        All of it is computed there, so that no device is waited for. `position_ids` (S,) replaces 0, 1, 2, ... of each
        sequence where tokens do not stand side by side. The last `num_slack` of the tokens are slack: a run of sequences of
        one token, from which nothing is read.
        """
        num_sequences = len(sequence_lengths)
        sequence_lengths = torch.cat([sequence_lengths, sequence_lengths.new_ones(num_slack)])
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
            position_ids=on_device(places if position_ids is None else position_ids, device),
            slots=on_device(rows * max(lengths, default=0) + places, device),
            runs=tuple(runs),
        )


def on_device(tensor: Tensor, device: torch.device | None) -> Tensor:
    """Copy a tensor to a device; from the host to CUDA by way of pinned memory, the only one not waited for."""
    if device is None or device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def pad(packed: Tensor, indices: Tensor, num_sequences: int, num_columns: int) -> Tensor:
    """Put packed values (S, ...) at `indices` of a padded batch (B, T, ...), with zeros elsewhere."""
    padded = packed.new_zeros(num_sequences * num_columns, *packed.shape[1:])
    return padded.index_copy(0, indices, packed).view(num_sequences, num_columns, *packed.shape[1:])
