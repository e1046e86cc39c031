"""The examples of a training step: a function of (seed, step), computed in constant time.

A prepared dataset gives its examples as a `DatasetExamples`: drawn from the text again in each epoch (`DrawnExamples`), or
stored (`instances.StoredExamples`); `examples.open_examples` opens them. Each has an `ExampleSource` for a split.

A keyed permutation orders the examples of an epoch; the epochs follow one another without end, and step s takes the positions
s * batch to (s + 1) * batch of this sequence. Pairs are drawn again in each epoch, so their number varies a little. Every
epoch still has as many examples as the first one: a few are left out, or a few are repeated.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from bertkit.base.batch import Batch
from bertkit.base.errors import StorageError
from bertkit.base.files import sha256_file
from bertkit.base.typed_settings import to_mapping
from bertkit.data.batches.collate import collate, pack_examples
from bertkit.data.batches.keyed_random import Stream, bits, permute
from bertkit.data.batches.segments import Examples, Ints, concatenate, document_pairs, examples_of_epoch, select
from bertkit.data.corpus.manifest import fingerprint
from bertkit.data.corpus.prepared import PreparedDataset, SplitTokens, map_numbers
from bertkit.data.corpus.tokenizer import VocabFacts
from bertkit.data.data_config import AnySegments, MaskingConfig, SegmentsConfig

PERMUTED_AT_ONCE = 4096  # positions permuted together and cached, for many steps
LARGE_TEXT = 10_000_000  # tokens; in a larger text the examples are estimated, since counting takes some seconds


class ExampleSource(ABC):
    """Training examples, packed into the micro-batches of any step."""

    seed: int  # for the order of the examples

    @abstractmethod
    def size_of(self, epoch: int) -> int:
        """Return the number of different examples in an epoch."""

    @abstractmethod
    def _batch(self, chosen: list[tuple[int, Ints]], *, by_length: bool) -> Batch:
        """Pack examples, given by epoch and index; with `by_length` the shortest first, else in this order."""

    @abstractmethod
    def mean_next_sentence_label(self, max_sequences: int) -> float:
        """Return the mean next sentence label of the first `max_sequences` pairs of epoch 0."""

    @abstractmethod
    def documents(self, first: int, last: int) -> Ints:
        """Return the document of the examples `first` to `last - 1` of epoch 0: equal numbers for examples of the same text."""

    @property
    def epoch_length(self) -> int:
        """The number of examples that every epoch contributes."""
        return self.size_of(0)

    def take(self, positions: Ints) -> Batch:
        """Pack the examples at positions of the sequence of epochs into one batch, the shortest first."""
        return self._batch(self._chosen(positions), by_length=True)

    def in_order(self, first: int, last: int) -> Batch:
        """Pack the examples `first` to `last - 1` of epoch 0, unshuffled, for evaluation."""
        return self._batch([(0, np.arange(first, last))], by_length=False)

    def _chosen(self, positions: Ints) -> list[tuple[int, Ints]]:
        """Return the examples at positions of the sequence of epochs, as (epoch, indices in the epoch)."""
        epochs, chosen = positions // self.epoch_length, []
        for epoch in np.unique(epochs).tolist():
            size = self.size_of(epoch)
            within = positions[epochs == epoch] % self.epoch_length % size
            chosen.append((epoch, _shuffled(within, size, self.seed, epoch)))
        return chosen

    def micro_batches(self, step: int, batch_size: int, ranges: list[tuple[int, int]]) -> list[Batch]:
        """Pack each range of a step's global batch into a micro-batch; steps are counted from 0."""
        return [self.take(np.arange(first, last) + step * batch_size) for first, last in ranges]

    def examples(self, step: int, batch_size: int) -> list[tuple[int, int]]:
        """List the examples of a step's global batch, as (epoch, index in the epoch); steps are counted from 0."""
        chosen = self._chosen(np.arange(batch_size) + step * batch_size)
        return [(epoch, int(number)) for epoch, numbers in chosen for number in numbers]


class DatasetExamples(Protocol):
    """The examples of a prepared dataset."""

    @property
    def segments(self) -> AnySegments:
        """How they are cut."""

    @property
    def masking(self) -> MaskingConfig | None:
        """How they are masked; None if next tokens are predicted."""

    @property
    def splits(self) -> Sequence[str]:
        """The splits that have examples."""

    @property
    def why_none_held_out(self) -> str:
        """Why there may be no held-out examples, or what to do about it."""

    def with_length(self, max_seq_length: int) -> DatasetExamples:
        """Return examples of another length, in tokens."""

    def source(self, split: str, seed: int, cache_dir: Path | None = None) -> ExampleSource:
        """Return the examples of a split; `cache_dir` stores those of each epoch, if they are drawn."""

    def estimated_size(self, seed: int) -> float:
        """Return the number of training examples in an epoch; for a large text, an estimate."""

    def shown(self, count: int) -> list[tuple[bool, list[int]]]:
        """Return a few training examples for a description: the next sentence label, and the token ids."""


@dataclass
class Sampler(ExampleSource):
    """Samples pairs or blocks of text, drawn and masked again in each epoch."""

    split: SplitTokens
    vocab: VocabFacts
    segments: SegmentsConfig
    masking: MaskingConfig | None  # None: predict next tokens
    seed: int  # for the pairs, their order and the masks
    open_epoch: Callable[[int], Examples] | None = None  # loads the examples of an epoch; None: compute them in memory
    _epochs: dict[int, Examples] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def size_of(self, epoch: int) -> int:
        """Return the number of pairs or blocks in an epoch."""
        return len(self._epoch(epoch))

    def _batch(self, chosen: list[tuple[int, Ints]], *, by_length: bool) -> Batch:
        examples = concatenate([select(self._epoch(epoch), numbers) for epoch, numbers in chosen])
        keys = np.concatenate([bits(self.seed, Stream.MASK, epoch, numbers) for epoch, numbers in chosen])
        if by_length:
            order = np.argsort(np.add.reduceat(examples.segment_length, examples.first_segment[:-1]), kind="stable")
            examples, keys = select(examples, order), keys[order]
        batch = collate(self.split, examples, keys, self.masking, self.vocab)
        if self.segments.predicts_next:
            return batch
        kept = {head: target for head, target in batch.targets.items() if head != "next_sentence"}
        return dataclasses.replace(batch, targets=kept)

    def mean_next_sentence_label(self, max_sequences: int) -> float:
        """Return the mean of the first labels of epoch 0."""
        labels = self._epoch(0).next_sentence_labels
        assert labels is not None, "blocks have no pairs"
        return float(labels[:max_sequences].mean())

    def documents(self, first: int, last: int) -> Ints:
        """Return the documents in which the first segments of examples begin."""
        examples = self._epoch(0)
        return self.split.document_of(examples.segment_start[examples.first_segment[first:last]])

    def _epoch(self, epoch: int) -> Examples:
        with self._lock:  # a thread may draw the next batch
            if epoch not in self._epochs:
                for old in [known for known in self._epochs if known != 0 and known < epoch - 1]:
                    del self._epochs[old]
                self._epochs[epoch] = (self.open_epoch or self._compute_epoch)(epoch)
            return self._epochs[epoch]

    def _compute_epoch(self, epoch: int) -> Examples:
        split = self.split
        return concatenate(list(examples_of_epoch(split.sentences, split.documents, self.segments, self.seed, epoch)))


@dataclass(frozen=True)
class DrawnExamples:
    """Pairs or blocks of the text of a prepared dataset, drawn and masked again in each epoch."""

    dataset: PreparedDataset
    segments: SegmentsConfig
    masking: MaskingConfig | None  # None: predict next tokens
    why_none_held_out = "prepare more documents, or with a larger held_out_prob"

    @property
    def splits(self) -> Sequence[str]:
        """The splits that have documents."""
        return tuple(name for name, split in self.dataset.splits.items() if split.num_documents)

    def with_length(self, max_seq_length: int) -> DrawnExamples:
        """Return examples of another length, in tokens."""
        segments = dataclasses.replace(self.segments, max_seq_length=max_seq_length)
        return dataclasses.replace(self, segments=segments)

    def source(self, split: str, seed: int, cache_dir: Path | None = None) -> Sampler:
        """Return the examples of a split."""
        text, facts = self.dataset.splits[split], self.dataset.tokenizer.facts
        cache = None if cache_dir is None else EpochCache(cache_dir, text, self.segments, seed).open
        return Sampler(text, facts, self.segments, self.masking, seed, cache)

    def estimated_size(self, seed: int) -> float:
        """Return the number of training examples in the first epoch; estimated for a large text, whose count takes seconds."""
        num_tokens = self.dataset.splits["train"].num_tokens
        if num_tokens > LARGE_TEXT:
            return num_tokens / self.segments.max_seq_length
        return self.source("train", seed).epoch_length

    def shown(self, count: int) -> list[tuple[bool, list[int]]]:
        """Return a few training pairs with either label, from all over the text."""
        split = self.dataset.splits[self.splits[0]]
        documents = np.unique(np.linspace(0, split.num_documents - 1, count).astype(np.int64))
        pairs = document_pairs(split.sentences, split.documents, documents, self.segments, seed=0, epoch=0)
        assert pairs.next_sentence_labels is not None
        actual_first = np.argsort(pairs.next_sentence_labels, kind="stable")
        chosen = actual_first[np.linspace(0, len(pairs) - 1, min(count, len(pairs))).astype(np.int64)]
        ids, _, lengths = pack_examples(split, select(pairs, chosen), self.dataset.tokenizer.facts)
        sequences = np.split(ids, np.cumsum(lengths)[:-1])
        return [(bool(pairs.next_sentence_labels[n]), ids.tolist()) for n, ids in zip(chosen, sequences, strict=True)]


def _shuffled(positions: Ints, size: int, seed: int, epoch: int) -> Ints:
    """Map positions of an epoch to examples, by blocks of a cached permutation."""
    shuffled, block = np.empty_like(positions), positions // PERMUTED_AT_ONCE
    for number in np.unique(block):
        here = block == number
        shuffled[here] = _permuted_block(int(number), size, seed, epoch)[positions[here] % PERMUTED_AT_ONCE]
    return shuffled


@functools.lru_cache(maxsize=4)
def _permuted_block(number: int, size: int, seed: int, epoch: int) -> Ints:
    first = number * PERMUTED_AT_ONCE
    return permute(np.arange(first, min(first + PERMUTED_AT_ONCE, size)), size, seed, Stream.ORDER, epoch)


# the files of the columns of `Examples`, in order; their names call a segment a piece
COLUMN_FILES = ("first_piece", "piece_start", "piece_length", "is_random_next")


def _hash_columns(directory: Path) -> str:
    return fingerprint([sha256_file(directory / name) for name in COLUMN_FILES])[:12]


class EpochCache:
    """The examples of epochs on disk, computed once and memory-mapped."""

    def __init__(self, directory: Path, split: SplitTokens, segments: SegmentsConfig, seed: int) -> None:
        self.directory, self.split, self.segments, self.seed = directory, split, segments, seed
        self.key = fingerprint([to_mapping(segments), seed])[:12]

    def open(self, epoch: int) -> Examples:
        """Open the examples of an epoch, computed and written first if no process has; StorageError if they changed since."""
        if not (found := self._find(epoch)):
            partial = self.directory / f"{self._name(epoch)}.{socket.gethostname()}-{os.getpid()}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            self._write(partial, epoch)
            try:
                partial.rename(self.directory / f"{self._name(epoch)}-{_hash_columns(partial)}")
            except OSError:
                if not self._find(epoch):
                    raise
                shutil.rmtree(partial)  # another process has written the same files
            for old in self._find(epoch - 2) if epoch > 2 else ():
                shutil.rmtree(old, ignore_errors=True)
            found = self._find(epoch)
        if not found[0].name.endswith(_hash_columns(found[0])):
            raise StorageError(f"{found[0]}: not as bertkit wrote it; remove this folder, and repeat the command")
        names = COLUMN_FILES if self.segments.has_pairs else COLUMN_FILES[:-1]
        return Examples(*(map_numbers(found[0] / name, np.dtype(np.int64)) for name in names))

    def _name(self, epoch: int) -> str:
        return f"epoch-{epoch:05d}-{self.key}"

    def _find(self, epoch: int) -> list[Path]:
        """Find the examples of an epoch; the name of their folder ends with a hash of its files."""
        return sorted(self.directory.glob(f"{self._name(epoch)}-*"))

    def _write(self, directory: Path, epoch: int) -> None:
        num_segments = 0
        files = [(directory / name).open("wb") for name in COLUMN_FILES]
        split = self.split
        for group in examples_of_epoch(split.sentences, split.documents, self.segments, self.seed, epoch):
            columns = (
                group.first_segment[:-1] + num_segments,
                group.segment_start,
                group.segment_length,
                group.next_sentence_labels,
            )
            for file, column in zip(files, columns, strict=True):
                file.write(b"" if column is None else column.astype(np.int64).tobytes())
            num_segments += len(group.segment_start)
        files[0].write(np.array([num_segments], np.int64).tobytes())
        for file in files:
            file.flush()
            os.fsync(file.fileno())
            file.close()
