"""Where each sequence starts and ends in a packed batch.

A fast kernel may need a batch size that is rounded up: "slack" are the additional tokens at the end of a batch, each a
sequence of its own, whose results are not used.

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
    bounds: Tensor  # the same with slack, and S at the end, int32, as variable-length kernels expect
    position_ids: Tensor  # position of each token in its sequence, (S,)
    padded_indices: Tensor  # index of each token in a batch padded to the longest sequence and flattened, (S,)
    # runs of neighbouring sequences of equal length: (first token, number of sequences, their length)
    runs: tuple[tuple[int, int, int], ...]
    # `model.geometry` keeps here how attention is computed over this batch, for all layers
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
    ) -> Layout:
        """Make the layout of sequences with these lengths, a tensor (B,) on the CPU.

        Everything is computed on the CPU, so the host never waits for the device. `position_ids` (S,) replaces 0, 1, 2, ...
        in each sequence, for sequences with gaps. The last `num_slack` tokens are slack.
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
            padded_indices=on_device(rows * max(lengths, default=0) + places, device),
            runs=tuple(runs),
        )


def on_device(tensor: Tensor, device: torch.device | None) -> Tensor:
    """Copy a tensor to a device; to CUDA through pinned memory, so that the host does not wait."""
    if device is None or device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def pad(packed: Tensor, indices: Tensor, num_sequences: int, num_columns: int) -> Tensor:
    """Put packed values (S, ...) at `indices` of a padded batch (B, T, ...), with zeros elsewhere."""
    padded = packed.new_zeros(num_sequences * num_columns, *packed.shape[1:])
    return padded.index_copy(0, indices, packed).view(num_sequences, num_columns, *packed.shape[1:])
