"""Which examples make up a step: a function of (seed, step), reached in constant time.

The examples of an epoch are visited in the order of a keyed permutation. Every epoch is as long as the first one:
pairs are drawn anew each epoch, so their number varies a little, and a longer epoch leaves a few out, a shorter one
repeats a few. Step s then simply takes positions s * batch to (s + 1) * batch of all epochs in a row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bertkit.batch import PretrainBatch
from bertkit.data.collate import collate
from bertkit.data.config import MaskingConfig, SegmentsConfig
from bertkit.data.draws import Stream, bits, permute
from bertkit.data.instances import Instances
from bertkit.data.prepared import Split
from bertkit.data.segments import Examples, concatenate, examples_of_epoch
from bertkit.data.tokenizer import VocabFacts

PERMUTED_AT_ONCE = 4096  # so that a step costs no more than looking up
OpenEpoch = Callable[[int], Examples]


class ExampleSource(Protocol):
    """Gives the packed micro-batches of any step, from text cut and masked on the way or from stored instances."""

    @property
    def epoch_length(self) -> int:
        """The number of examples in every epoch."""

    def micro_batches(self, step: int, batch_size: int, ranges: list[tuple[int, int]]) -> list[PretrainBatch]:
        """Give parts of the global batch of a step (counted from 0), each range of it as one micro-batch."""

    def examples(self, step: int, batch_size: int) -> list[tuple[int, int]]:
        """Name the examples of the global batch of a step (counted from 0): the epoch, and the number within it."""

    def in_order(self, first: int, last: int) -> PretrainBatch:
        """Assemble examples first to last, unshuffled: for evaluation."""

    def random_next_share(self, max_sequences: int) -> float:
        """Give the share of random pairs among the first sequences of `in_order`."""


@dataclass(frozen=True)
class InstanceSampler:
    """Visits stored instances, each once an epoch; their masks stay as they are.

    Attributes:
        instances: what `prepare segments=google` stored.
        seed: of the order.
    """

    instances: Instances
    seed: int

    @property
    def epoch_length(self) -> int:
        """The number of instances."""
        return len(self.instances)

    def micro_batches(self, step: int, batch_size: int, ranges: list[tuple[int, int]]) -> list[PretrainBatch]:
        """Give parts of the global batch of a step (counted from 0), each range of it as one micro-batch."""
        return [self.take(np.arange(first, last) + step * batch_size) for first, last in ranges]

    def examples(self, step: int, batch_size: int) -> list[tuple[int, int]]:
        """Name the instances of the global batch of a step (counted from 0): the epoch, and the number within it."""
        return _named(self._chosen(np.arange(batch_size) + step * batch_size))

    def _chosen(self, positions: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
        """Give the instances at positions of the endless row of epochs, by epoch."""
        size = len(self.instances)
        return [(epoch, _shuffled(within, size, self.seed, epoch)) for epoch, within in _by_epoch(positions, size)]

    def take(self, positions: NDArray[np.int64]) -> PretrainBatch:
        """Assemble the instances at positions of the endless row of epochs into one packed batch, shortest first."""
        chosen = np.concatenate([numbers for _, numbers in self._chosen(positions)])
        return self.instances.batch(chosen[np.argsort(self.instances.lengths(chosen), kind="stable")])

    def in_order(self, first: int, last: int) -> PretrainBatch:
        """Assemble instances first to last in the order in which they are stored."""
        return self.instances.batch(np.arange(first, last))

    def random_next_share(self, max_sequences: int) -> float:
        """Give the share of random pairs among the first sequences of `in_order`."""
        return float(self.instances.is_random_next[:max_sequences].mean())


@dataclass
class Sampler:
    """Cuts and masks text on the way, anew each epoch.

    Attributes:
        split: the text to draw from.
        vocab: special ids for assembly and masking.
        seed: of pairs, order and masks.
        open_epoch: gives the examples of an epoch; the default computes them in memory.
    """

    split: Split
    vocab: VocabFacts
    segments: SegmentsConfig
    masking: MaskingConfig
    seed: int
    open_epoch: OpenEpoch | None = None
    _epochs: dict[int, Examples] = field(default_factory=dict, init=False)

    @property
    def epoch_length(self) -> int:
        """The number of examples in every epoch."""
        return len(self._epoch(0))

    def micro_batches(self, step: int, batch_size: int, ranges: list[tuple[int, int]]) -> list[PretrainBatch]:
        """Give parts of the global batch of a step (counted from 0), each range of it as one micro-batch."""
        return [self.take(np.arange(first, last) + step * batch_size) for first, last in ranges]

    def examples(self, step: int, batch_size: int) -> list[tuple[int, int]]:
        """Name the examples of the global batch of a step (counted from 0): the epoch, and the number within it."""
        return _named(self._chosen(np.arange(batch_size) + step * batch_size))

    def _chosen(self, positions: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
        """Give the examples at positions of the endless row of epochs, by epoch."""
        found = []
        for epoch, within in _by_epoch(positions, self.epoch_length):
            size = len(self._epoch(epoch))
            found.append((epoch, _shuffled(within % size, size, self.seed, epoch)))
        return found

    def take(self, positions: NDArray[np.int64]) -> PretrainBatch:
        """Assemble the examples at positions of the endless row of epochs into one packed batch, shortest first."""
        parts, keys = [], []
        for epoch, chosen in self._chosen(positions):
            parts.append(select(self._epoch(epoch), chosen))
            keys.append(bits(self.seed, Stream.MASK, epoch, chosen))
        examples, key = concatenate(parts), np.concatenate(keys)
        by_length = np.argsort(np.add.reduceat(examples.piece_length, examples.first_piece[:-1]), kind="stable")
        return collate(self.split, select(examples, by_length), key[by_length], self.masking, self.vocab)

    def in_order(self, first: int, last: int) -> PretrainBatch:
        """Assemble examples first to last of epoch 0, unshuffled: for evaluation."""
        chosen = np.arange(first, last)
        keys = bits(self.seed, Stream.MASK, 0, chosen)
        return collate(self.split, select(self._epoch(0), chosen), keys, self.masking, self.vocab)

    def random_next_share(self, max_sequences: int) -> float:
        """Give the share of random pairs among the first sequences of `in_order`."""
        labels = self._epoch(0).is_random_next
        assert labels is not None, "blocks have no pairs"
        return float(labels[:max_sequences].mean())

    def _epoch(self, epoch: int) -> Examples:
        if epoch not in self._epochs:
            for old in [known for known in self._epochs if known != 0 and known < epoch - 1]:
                del self._epochs[old]
            make = self.open_epoch or self._compute_epoch
            self._epochs[epoch] = make(epoch)
        return self._epochs[epoch]

    def _compute_epoch(self, epoch: int) -> Examples:
        split = self.split
        return concatenate(list(examples_of_epoch(split.sentences, split.documents, self.segments, self.seed, epoch)))


def _shuffled(positions: NDArray[np.int64], size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Give the examples at positions of an epoch, of which many are permuted at once."""
    found, block = np.empty_like(positions), positions // PERMUTED_AT_ONCE
    for number in np.unique(block):
        here = block == number
        found[here] = _permuted_block(int(number), size, seed, epoch)[positions[here] % PERMUTED_AT_ONCE]
    return found


@functools.lru_cache(maxsize=4)
def _permuted_block(number: int, size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    first = number * PERMUTED_AT_ONCE
    return permute(np.arange(first, min(first + PERMUTED_AT_ONCE, size)), size, seed, Stream.ORDER, epoch)


def _by_epoch(positions: NDArray[np.int64], epoch_length: int) -> list[tuple[int, NDArray[np.int64]]]:
    """Split positions of the endless row of epochs: (epoch, positions within it)."""
    epochs = positions // epoch_length
    return [(int(epoch), positions[epochs == epoch] % epoch_length) for epoch in np.unique(epochs)]


def _named(chosen: list[tuple[int, NDArray[np.int64]]]) -> list[tuple[int, int]]:
    return [(epoch, int(number)) for epoch, numbers in chosen for number in numbers]


def select(examples: Examples, chosen: NDArray[np.int64]) -> Examples:
    """Pick examples by index."""
    counts = examples.first_piece[chosen + 1] - examples.first_piece[chosen]
    first_piece = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    within = np.arange(first_piece[-1]) - np.repeat(first_piece[:-1], counts)
    pieces = np.repeat(examples.first_piece[chosen], counts) + within
    return Examples(
        first_piece=first_piece,
        piece_start=np.asarray(examples.piece_start[pieces]),
        piece_length=np.asarray(examples.piece_length[pieces]),
        is_random_next=None if examples.is_random_next is None else examples.is_random_next[chosen],
    )
