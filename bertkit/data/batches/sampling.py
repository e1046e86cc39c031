"""Which examples make up a step: a function of (seed, step), reached in constant time.

The examples of an epoch are visited in the order of a keyed permutation. Every epoch is as long as the first one:
pairs are drawn anew each epoch, so their number varies a little, and a longer epoch leaves a few out, a shorter one
repeats a few. Step s then simply takes positions s * batch to (s + 1) * batch of all epochs in a row.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertkit.base.batch import PretrainBatch
from bertkit.base.typed_settings import to_mapping
from bertkit.data.batches.collate import collate
from bertkit.data.batches.instances import Instances
from bertkit.data.batches.keyed_random import Stream, bits, permute
from bertkit.data.batches.segments import Examples, concatenate, examples_of_epoch, select
from bertkit.data.corpus.manifest import fingerprint
from bertkit.data.corpus.prepared import Split
from bertkit.data.corpus.tokenizer import VocabFacts
from bertkit.data.data_config import MaskingConfig, SegmentsConfig

PERMUTED_AT_ONCE = 4096  # so that a step costs no more than looking up


class ExampleSource(ABC):
    """Gives the packed micro-batches of any step, from text cut and masked on the way or from stored instances."""

    seed: int  # of the order

    @abstractmethod
    def size_of(self, epoch: int) -> int:
        """Count the examples that an epoch has."""

    @abstractmethod
    def take(self, positions: NDArray[np.int64]) -> PretrainBatch:
        """Assemble the examples at positions of the endless row of epochs into one packed batch, shortest first."""

    @abstractmethod
    def in_order(self, first: int, last: int) -> PretrainBatch:
        """Assemble examples first to last, unshuffled: for evaluation."""

    @abstractmethod
    def random_next_share(self, max_sequences: int) -> float:
        """Give the share of pairs whose B does not follow A among the first sequences of `in_order`."""

    @property
    def epoch_length(self) -> int:
        """The number of examples in every epoch: that of the first one."""
        return self.size_of(0)

    def _chosen(self, positions: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
        """Give the examples at positions of the endless row of epochs, by epoch."""
        epochs, found = positions // self.epoch_length, []
        for epoch in np.unique(epochs).tolist():
            size = self.size_of(epoch)
            within = positions[epochs == epoch] % self.epoch_length % size
            found.append((epoch, _shuffled(within, size, self.seed, epoch)))
        return found

    def micro_batches(self, step: int, batch_size: int, ranges: list[tuple[int, int]]) -> list[PretrainBatch]:
        """Give ranges of the global batch of a step (counted from 0), each as one micro-batch."""
        return [self.take(np.arange(first, last) + step * batch_size) for first, last in ranges]

    def examples(self, step: int, batch_size: int) -> list[tuple[int, int]]:
        """Name the examples of the global batch of a step (counted from 0): the epoch, and the number within it."""
        chosen = self._chosen(np.arange(batch_size) + step * batch_size)
        return [(epoch, int(number)) for epoch, numbers in chosen for number in numbers]


@dataclass(frozen=True)
class InstanceSampler(ExampleSource):
    """Visits stored instances, each once an epoch; their masks stay as they are."""

    instances: Instances  # what `prepare segments=google` stored
    seed: int  # of the order

    def size_of(self, epoch: int) -> int:
        """Count every instance, once."""
        return len(self.instances)

    def take(self, positions: NDArray[np.int64]) -> PretrainBatch:
        """Lay the chosen instances out, shortest first."""
        chosen = np.concatenate([numbers for _, numbers in self._chosen(positions)])
        return self.instances.batch(chosen[np.argsort(self.instances.lengths(chosen), kind="stable")])

    def in_order(self, first: int, last: int) -> PretrainBatch:
        """Lay instances first to last out, in the order in which they are stored."""
        return self.instances.batch(np.arange(first, last))

    def random_next_share(self, max_sequences: int) -> float:
        """Count the stored labels."""
        return float(self.instances.is_random_next[:max_sequences].mean())


@dataclass
class Sampler(ExampleSource):
    """Cuts and masks text on the way, anew each epoch."""

    split: Split  # the text to draw from
    vocab: VocabFacts  # special ids for assembly and masking
    segments: SegmentsConfig
    masking: MaskingConfig
    seed: int  # of pairs, order and masks
    # gives the examples of an epoch; the default computes them in memory
    open_epoch: Callable[[int], Examples] | None = None
    _epochs: dict[int, Examples] = field(default_factory=dict, init=False)

    def size_of(self, epoch: int) -> int:
        """Count the pairs or blocks that are drawn."""
        return len(self._epoch(epoch))

    def take(self, positions: NDArray[np.int64]) -> PretrainBatch:
        """Cut and mask the chosen examples, shortest first."""
        chosen = self._chosen(positions)
        examples = concatenate([select(self._epoch(epoch), numbers) for epoch, numbers in chosen])
        keys = np.concatenate([bits(self.seed, Stream.MASK, epoch, numbers) for epoch, numbers in chosen])
        by_length = np.argsort(np.add.reduceat(examples.segment_length, examples.first_segment[:-1]), kind="stable")
        return self._batch(select(examples, by_length), keys[by_length])

    def in_order(self, first: int, last: int) -> PretrainBatch:
        """Assemble examples first to last of epoch 0, unshuffled: for evaluation."""
        chosen = np.arange(first, last)
        keys = bits(self.seed, Stream.MASK, 0, chosen)
        return self._batch(select(self._epoch(0), chosen), keys)

    def _batch(self, examples: Examples, keys: NDArray[np.uint64]) -> PretrainBatch:
        batch = collate(self.split, examples, keys, self.masking, self.vocab)
        return batch if self.segments.predicts_next else dataclasses.replace(batch, next_sentence_labels=None)

    def random_next_share(self, max_sequences: int) -> float:
        """Count the labels of epoch 0."""
        labels = self._epoch(0).is_random_next
        assert labels is not None, "blocks have no pairs"
        return float(labels[:max_sequences].mean())

    def _epoch(self, epoch: int) -> Examples:
        if epoch not in self._epochs:
            for old in [known for known in self._epochs if known != 0 and known < epoch - 1]:
                del self._epochs[old]
            self._epochs[epoch] = (self.open_epoch or self._compute_epoch)(epoch)
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


FILES = ("first_piece", "piece_start", "piece_length", "is_random_next")  # of the columns of `Examples`


class EpochCache:
    """Computes the examples of an epoch into a directory, or opens them there."""

    def __init__(self, directory: Path, split: Split, segments: SegmentsConfig, seed: int) -> None:
        self.directory, self.split, self.segments, self.seed = directory, split, segments, seed
        self.key = fingerprint([to_mapping(segments), seed])[:12]

    def open(self, epoch: int) -> Examples:
        """Give the examples of an epoch; whichever process comes first writes them."""
        final = self._path(epoch)
        if not final.is_dir():
            partial = self.directory / f"{final.name}.{socket.gethostname()}-{os.getpid()}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            self._write(partial, epoch)
            try:
                partial.rename(final)
            except OSError:  # another process was faster; its files are the same
                shutil.rmtree(partial)
            if epoch > 2:
                shutil.rmtree(self._path(epoch - 2), ignore_errors=True)
        names = FILES if self.segments.has_pairs else FILES[:-1]
        return Examples(*(np.asarray(np.memmap(final / name, np.int64, "r")) for name in names))

    def _path(self, epoch: int) -> Path:
        return self.directory / f"epoch-{epoch:05d}-{self.key}"

    def _write(self, directory: Path, epoch: int) -> None:
        num_segments = 0
        files = [(directory / name).open("wb") for name in FILES]
        split = self.split
        for group in examples_of_epoch(split.sentences, split.documents, self.segments, self.seed, epoch):
            columns = [group.first_segment[:-1] + num_segments, group.segment_start, group.segment_length]
            if group.is_random_next is not None:
                columns.append(group.is_random_next)
            for file, column in zip(files, columns, strict=False):
                file.write(column.astype(np.int64).tobytes())
            num_segments += len(group.segment_start)
        files[0].write(np.array([num_segments], np.int64).tobytes())
        for file in files:
            file.flush()
            os.fsync(file.fileno())
            file.close()
