"""The examples of a step: a function of (seed, step), computed in constant time.

A keyed permutation orders the examples of an epoch. Every epoch is as long as the first one: pairs are drawn anew each
epoch, so their number varies a little; a longer epoch leaves a few out, a shorter one repeats a few. Step s takes positions
s * batch to (s + 1) * batch of the endless sequence of epochs.
"""

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

from bertkit.base.batch import PretrainBatch
from bertkit.base.typed_settings import to_mapping
from bertkit.data.batches.collate import collate
from bertkit.data.batches.instances import Instances
from bertkit.data.batches.keyed_random import Stream, bits, permute
from bertkit.data.batches.segments import Examples, Ids, concatenate, examples_of_epoch, select
from bertkit.data.corpus.manifest import fingerprint
from bertkit.data.corpus.prepared import Split
from bertkit.data.corpus.tokenizer import VocabFacts
from bertkit.data.data_config import MaskingConfig, SegmentsConfig

PERMUTED_AT_ONCE = 4096  # positions, so that most steps only look them up


class ExampleSource(ABC):
    """The packed micro-batches of any step."""

    seed: int  # of the order

    @abstractmethod
    def size_of(self, epoch: int) -> int:
        """Count the examples of an epoch."""

    @abstractmethod
    def _batch(self, chosen: list[tuple[int, Ids]], *, by_length: bool) -> PretrainBatch:
        """Pack examples, numbered by epoch; shortest first, or in this order."""

    @abstractmethod
    def random_next_share(self, max_sequences: int) -> float:
        """Return the fraction of the first `max_sequences` pairs of epoch 0 whose B does not follow A."""

    @property
    def epoch_length(self) -> int:
        """The number of examples in every epoch: that of the first one."""
        return self.size_of(0)

    def take(self, positions: Ids) -> PretrainBatch:
        """Pack the examples at positions of the endless sequence of epochs into one batch, shortest first."""
        return self._batch(self._chosen(positions), by_length=True)

    def in_order(self, first: int, last: int) -> PretrainBatch:
        """Pack examples first to last of epoch 0, unshuffled: for evaluation."""
        return self._batch([(0, np.arange(first, last))], by_length=False)

    def _chosen(self, positions: Ids) -> list[tuple[int, Ids]]:
        """Give the examples at positions of the endless sequence of epochs, by epoch."""
        epochs, chosen = positions // self.epoch_length, []
        for epoch in np.unique(epochs).tolist():
            size = self.size_of(epoch)
            within = positions[epochs == epoch] % self.epoch_length % size
            chosen.append((epoch, _shuffled(within, size, self.seed, epoch)))
        return chosen

    def micro_batches(self, step: int, batch_size: int, ranges: list[tuple[int, int]]) -> list[PretrainBatch]:
        """Pack each range of the global batch of a step (counted from 0) into a micro-batch."""
        return [self.take(np.arange(first, last) + step * batch_size) for first, last in ranges]

    def examples(self, step: int, batch_size: int) -> list[tuple[int, int]]:
        """List the examples of the global batch of a step (counted from 0): the epoch, and the number within it."""
        chosen = self._chosen(np.arange(batch_size) + step * batch_size)
        return [(epoch, int(number)) for epoch, numbers in chosen for number in numbers]


@dataclass(frozen=True)
class InstanceSampler(ExampleSource):
    """Visits stored instances, each once per epoch, with fixed masks."""

    instances: Instances  # stored by `prepare segments=google`
    seed: int  # of the order

    def size_of(self, epoch: int) -> int:
        """Count the instances."""
        return len(self.instances)

    def _batch(self, chosen: list[tuple[int, Ids]], *, by_length: bool) -> PretrainBatch:
        numbers = np.concatenate([numbers for _, numbers in chosen])
        if by_length:
            numbers = numbers[np.argsort(self.instances.lengths(numbers), kind="stable")]
        return self.instances.batch(numbers)

    def random_next_share(self, max_sequences: int) -> float:
        """Average the stored labels."""
        return float(self.instances.is_random_next[:max_sequences].mean())


@dataclass
class Sampler(ExampleSource):
    """Cuts and masks text, anew each epoch."""

    split: Split  # the text
    vocab: VocabFacts
    segments: SegmentsConfig
    masking: MaskingConfig
    seed: int  # of pairs, order and masks
    open_epoch: Callable[[int], Examples] | None = None  # loads the examples of an epoch; None computes them in memory
    _epochs: dict[int, Examples] = field(default_factory=dict, init=False)

    def size_of(self, epoch: int) -> int:
        """Count the pairs or blocks of an epoch."""
        return len(self._epoch(epoch))

    def _batch(self, chosen: list[tuple[int, Ids]], *, by_length: bool) -> PretrainBatch:
        examples = concatenate([select(self._epoch(epoch), numbers) for epoch, numbers in chosen])
        keys = np.concatenate([bits(self.seed, Stream.MASK, epoch, numbers) for epoch, numbers in chosen])
        if by_length:
            order = np.argsort(np.add.reduceat(examples.segment_length, examples.first_segment[:-1]), kind="stable")
            examples, keys = select(examples, order), keys[order]
        batch = collate(self.split, examples, keys, self.masking, self.vocab)
        return batch if self.segments.predicts_next else dataclasses.replace(batch, next_sentence_labels=None)

    def random_next_share(self, max_sequences: int) -> float:
        """Average the labels of epoch 0."""
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


def _shuffled(positions: Ids, size: int, seed: int, epoch: int) -> Ids:
    """Permute positions of an epoch, in cached blocks."""
    shuffled, block = np.empty_like(positions), positions // PERMUTED_AT_ONCE
    for number in np.unique(block):
        here = block == number
        shuffled[here] = _permuted_block(int(number), size, seed, epoch)[positions[here] % PERMUTED_AT_ONCE]
    return shuffled


@functools.lru_cache(maxsize=4)
def _permuted_block(number: int, size: int, seed: int, epoch: int) -> Ids:
    first = number * PERMUTED_AT_ONCE
    return permute(np.arange(first, min(first + PERMUTED_AT_ONCE, size)), size, seed, Stream.ORDER, epoch)


FILES = ("first_piece", "piece_start", "piece_length", "is_random_next")  # for the columns of `Examples`


class EpochCache:
    """Examples of epochs in a directory, computed once and memory-mapped."""

    def __init__(self, directory: Path, split: Split, segments: SegmentsConfig, seed: int) -> None:
        self.directory, self.split, self.segments, self.seed = directory, split, segments, seed
        self.key = fingerprint([to_mapping(segments), seed])[:12]

    def open(self, epoch: int) -> Examples:
        """Open the examples of an epoch; the first process writes them."""
        final = self._path(epoch)
        if not final.is_dir():
            partial = self.directory / f"{final.name}.{socket.gethostname()}-{os.getpid()}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            self._write(partial, epoch)
            try:
                partial.rename(final)
            except OSError:  # another process was faster; its files are equal
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
            columns = (
                group.first_segment[:-1] + num_segments,
                group.segment_start,
                group.segment_length,
                group.is_random_next,
            )
            for file, column in zip(files, columns, strict=True):
                file.write(b"" if column is None else column.astype(np.int64).tobytes())
            num_segments += len(group.segment_start)
        files[0].write(np.array([num_segments], np.int64).tobytes())
        for file in files:
            file.flush()
            os.fsync(file.fileno())
            file.close()
