"""Where each sequence starts and ends in a packed batch.

Axes: as in model/attention.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(eq=False)  # not frozen: torch.compile would inspect every field, and recompile for each number of runs
class Layout:
    """The shape of a packed batch."""

    starts: Tensor  # index of the first token of each sequence, (B,), without slack
    bounds: Tensor  # the same with slack, and S at the end: (B + 1,), int32, as variable-length kernels expect
    position_ids: Tensor  # the place of each token in its own sequence, (S,)
    slots: Tensor  # the place of each token in a batch padded to the longest sequence and flattened, (S,)
    # (first token, number of sequences, their length) for each run of neighbours of equal length
    runs: tuple[tuple[int, int, int], ...]
    # how attention is computed over this batch, made once for all layers (`model.geometry`)
    plans: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def longest(self) -> int:
        """T, tokens of the longest sequence."""
        return max(length for _, _, length in self.runs)

    @property
    def lengths(self) -> list[int]:
        """The number of tokens in each sequence, without slack, (B,)."""
        return [length for _, count, length in self.runs for _ in range(count)][: len(self.starts)]

    def pad(self, packed: Tensor) -> Tensor:
        """Put packed values (S, ...) into a batch padded with zeros, (B, T, ...); slack is left out."""
        slots = self.slots[: sum(self.lengths)]
        return pad(packed[: len(slots)], slots, len(self.starts), self.longest)

    @property
    def is_token(self) -> Tensor:
        """Whether a place of the padded batch holds a token, (B, T)."""
        return self.pad(torch.ones_like(self.slots, dtype=torch.bool))

    @classmethod
    def from_lengths(
        cls,
        sequence_lengths: Tensor,
        device: torch.device | None = None,
        position_ids: Tensor | None = None,
        num_slack: int = 0,
    ) -> Layout:
        """Lay out sequences with these lengths (B,), which lie on the CPU.

        Everything is computed on the CPU, so the host never waits for the device. `position_ids` (S,) replaces 0, 1, 2, ...
        in each sequence where tokens do not stand side by side. The last `num_slack` tokens are slack: a run of sequences of
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
    """Copy a tensor to a device; to CUDA by way of pinned memory, so that the host does not wait."""
    if device is None or device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def pad(packed: Tensor, indices: Tensor, num_sequences: int, num_columns: int) -> Tensor:
    """Put packed values (S, ...) at `indices` of a padded batch (B, T, ...), with zeros elsewhere."""
    padded = packed.new_zeros(num_sequences * num_columns, *packed.shape[1:])
    return padded.index_copy(0, indices, packed).view(num_sequences, num_columns, *packed.shape[1:])
