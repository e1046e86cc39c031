"""The fixed instances of `google_instances.py` on disk: masked once, stored in the original's order, and memory-mapped.

    instances/token_starts.bin       index of the first token of each instance, and the number of tokens; 8 bytes each
    instances/tokens.bin             token ids after masking; 2 bytes each for up to 65,536 tokens in the vocabulary, else 4
    instances/b_starts.bin           position of B's first token within its instance; 2 bytes each
    instances/is_random_next.bin     0: B follows A, 1: B is random; 1 byte each
    instances/prediction_starts.bin  index of the first prediction of each instance, and the number of predictions; 8 bytes each
    instances/positions.bin          position of each prediction within its instance; 2 bytes each
    instances/labels.bin             original token id of each prediction; the same size as in tokens.bin

Numbers are little-endian.
"""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.base.batch import Batch, Target
from bertkit.base.errors import InputError
from bertkit.base.files import require_space
from bertkit.base.typed_settings import differences, to_mapping
from bertkit.data.batches.google_instances import Instance, SplitDocuments, shuffled_order, training_instances
from bertkit.data.batches.sampling import ExampleSource
from bertkit.data.corpus.prepared import PreparedDataset, SplitTokens, check_offsets, map_numbers, token_dtype
from bertkit.data.corpus.tokenizer import VocabFacts
from bertkit.data.data_config import AnySegments, InstancesConfig, MaskingConfig, StoredMasking

Ints = NDArray[np.int64]
INSTANCES_AT_ONCE = 4096


def _dtypes(vocab_size: int) -> dict[str, np.dtype[Any]]:
    """Return the columns of the stored instances, each in its own file, and the type of their numbers."""
    offset, position, token = np.dtype("<i8"), np.dtype("<u2"), token_dtype(vocab_size)
    return {
        "token_starts": offset,
        "tokens": token,
        "b_starts": position,
        "is_random_next": np.dtype("u1"),
        "prediction_starts": offset,
        "positions": position,
        "labels": token,
    }


class Instances:
    """The stored instances, memory-mapped."""

    token_starts: Ints
    tokens: Ints
    b_starts: Ints
    is_random_next: Ints
    prediction_starts: Ints
    positions: Ints
    labels: Ints

    def __init__(self, directory: Path, vocab_size: int) -> None:
        """Open the files in a directory."""
        for name, dtype in _dtypes(vocab_size).items():
            setattr(self, name, map_numbers(directory / f"{name}.bin", dtype))

    def __len__(self) -> int:
        return len(self.b_starts)

    def lengths(self, chosen: Ints) -> Ints:
        """Return the lengths of instances in tokens, (B,)."""
        return self.token_starts[chosen + 1] - self.token_starts[chosen]

    def batch(self, chosen: Ints) -> Batch:
        """Pack instances into a batch."""
        sequence_lengths = self.lengths(chosen)  # (B,)
        starts = np.cumsum(sequence_lengths) - sequence_lengths  # (B,) within the batch
        from_b = starts + self.b_starts[chosen]
        num_predictions = self.prediction_starts[chosen + 1] - self.prediction_starts[chosen]
        sequence, within = _items(sequence_lengths)  # (S,)
        predicting, nth = _items(num_predictions)  # (M,)
        predictions = self.prediction_starts[chosen][predicting] + nth
        return Batch(
            input_ids=self.tokens[self.token_starts[chosen][sequence] + within].astype(np.int64),
            token_type_ids=(starts[sequence] + within >= from_b[sequence]).astype(np.int64),
            sequence_lengths=sequence_lengths,
            targets={
                "masked_lm": Target(
                    self.labels[predictions].astype(np.int64), starts[predicting] + self.positions[predictions]
                ),
                "next_sentence": Target(self.is_random_next[chosen].astype(np.int64)),
            },
        )


def has_instances(dataset: PreparedDataset) -> bool:
    """Whether a prepared dataset holds fixed instances."""
    return "instances" in dataset.manifest


def open_instances(dataset: PreparedDataset) -> Instances:
    """Open the fixed instances of a dataset that has them."""
    directory = dataset.directory / "instances"
    stored = Instances(directory, dataset.tokenizer.vocab_size)
    check_offsets(stored.token_starts, len(stored.tokens), directory / "token_starts.bin")
    check_offsets(stored.prediction_starts, len(stored.labels), directory / "prediction_starts.bin", is_strict=False)
    return stored


@dataclasses.dataclass(frozen=True)
class InstanceSampler(ExampleSource):
    """Samples Google's stored instances, each once per epoch, with the same masks in every epoch."""

    instances: Instances
    seed: int

    def size_of(self, epoch: int) -> int:
        """Return the number of instances."""
        return len(self.instances)

    def _batch(self, chosen: list[tuple[int, Ints]], *, by_length: bool) -> Batch:
        numbers = np.concatenate([numbers for _, numbers in chosen])
        if by_length:
            numbers = numbers[np.argsort(self.instances.lengths(numbers), kind="stable")]
        return self.instances.batch(numbers)

    def mean_next_sentence_label(self, max_sequences: int) -> float:
        """Return the mean of the stored labels."""
        return float(self.instances.is_random_next[:max_sequences].mean())

    def documents(self, first: int, last: int) -> Ints:
        """Return the numbers of the instances: their documents are not stored."""
        return np.arange(first, last)


@dataclasses.dataclass(frozen=True)
class StoredExamples:
    """The fixed instances of a prepared dataset, each once per epoch; none is held out."""

    instances: Instances
    segments: InstancesConfig  # with which they were made
    masking: MaskingConfig
    splits = ("train",)
    why_none_held_out = "a dataset of fixed instances has none"

    def with_length(self, max_seq_length: int) -> StoredExamples:
        """Return the same instances, whose length is fixed."""
        assert max_seq_length == self.segments.max_seq_length, "the settings refuse another length"
        return self

    def source(self, split: str, seed: int, cache_dir: Path | None = None) -> InstanceSampler:
        """Return the instances."""
        return InstanceSampler(self.instances, seed)

    def estimated_size(self, seed: int) -> float:
        """Return the number of instances."""
        return len(self.instances)

    def shown(self, count: int) -> list[tuple[bool, list[int]]]:
        """Return the first instances, masked."""
        chosen, instances = np.arange(min(count, len(self.instances))), self.instances
        return [(bool(instances.is_random_next[n]), instances.batch(np.array([n])).input_ids.tolist()) for n in chosen]


def open_stored(dataset: PreparedDataset) -> StoredExamples:
    """Open the fixed instances of a dataset that has them, with the settings from which they were made."""
    made_with = dataset.manifest["instances"]
    segments, stored = InstancesConfig(**made_with["segments"]), StoredMasking(**made_with["masking"])
    kind = "whole_word" if stored.whole_word else "bert"
    masking = MaskingConfig(stored.probability, stored.mask_prob, stored.random_prob, kind)
    return StoredExamples(open_instances(dataset), segments, masking)


def check_stored(
    dataset: PreparedDataset,
    stored: StoredExamples,
    segments: AnySegments,
    masking: MaskingConfig,
    explicit_keys: Sequence[str],
) -> None:
    """Raise InputError if the user set other settings than those from which the instances were made."""
    theirs = {"segments": to_mapping(stored.segments), "masking": to_mapping(stored.masking)}
    ours = {"segments": to_mapping(segments), "masking": to_mapping(masking)}
    changed = [
        f"{key}={new!r} here, {old!r} there"
        for key, old, new in differences(theirs, ours)
        if key in explicit_keys or (key.startswith("masking.") and "masking" in explicit_keys)
    ]
    if changed:
        raise InputError(
            f"data_dir={dataset.directory} holds fixed instances, already cut and masked ({'; '.join(changed)}); leave these "
            "settings out or set them to the same values, or prepare another dataset with them"
        )


def stored_masking(masking: MaskingConfig) -> dict[str, Any]:
    """Return the masking settings for the manifest."""
    is_whole = masking.has("by_words")
    return to_mapping(StoredMasking(masking.probability, is_whole, masking.mask_prob, masking.random_prob))


class _Items(NamedTuple):
    """The items of several rows, one row after another."""

    row: Ints  # of each item
    place: Ints  # of each item within its row


def _items(counts: Ints) -> _Items:
    """Return the items of rows with these numbers of items."""
    row = np.repeat(np.arange(len(counts)), counts)
    return _Items(row, np.arange(len(row)) - (np.cumsum(counts) - counts)[row])


def make_instances(
    directory: Path, split: SplitTokens, config: InstancesConfig, masking: MaskingConfig, vocab: VocabFacts, seed: int
) -> Iterator[int]:
    """Draw the instances of a split and write them; yields the same numbers as `write_instances`."""
    rng = random.Random(seed)
    size = token_dtype(vocab.size).itemsize * split.num_tokens * config.dupe_factor
    require_space(directory.parent, 2 * size)  # the instances are written twice
    drawn = training_instances(SplitDocuments(split), config, masking, vocab, rng)
    return write_instances(directory, drawn, rng, vocab.size)


def write_instances(
    directory: Path, instances: Iterable[Instance], rng: random.Random, vocab_size: int
) -> Iterator[int]:
    """Write instances as they are drawn, then read them and write them in shuffled order; memory holds only their offsets.

    Yields:
        The number of tokens so far, after each instance.

    Raises:
        InputError: no instance has a token to predict.
    """
    unshuffled = directory / "unshuffled"
    unshuffled.mkdir(parents=True)
    with _Writer(unshuffled, vocab_size) as writer:
        for instance in instances:
            writer.write(
                num_tokens=np.array([len(instance.input_ids)]),
                num_predictions=np.array([len(instance.masked_labels)]),
                b_starts=np.array([instance.b_start]),
                is_random_next=np.array([instance.is_random_next]),
                tokens=np.array(instance.input_ids),
                positions=np.array(instance.masked_positions),
                labels=np.array(instance.masked_labels),
            )
            yield writer.total_tokens
    if not any(writer.num_predictions):  # only possible with whole words
        raise InputError(
            f"masking=whole_word: none of the {len(writer.num_tokens)} instances has a token to predict, since every word "
            "has more pieces than an instance has predictions; raise segments.max_predictions_per_seq or "
            "masking.probability, or set masking=bert"
        )
    drawn = Instances(unshuffled, vocab_size)
    order = np.array(shuffled_order(len(drawn), rng), np.int64)
    with _Writer(directory, vocab_size) as writer:
        for first in range(0, len(order), INSTANCES_AT_ONCE):
            chosen = order[first : first + INSTANCES_AT_ONCE]
            batch = drawn.batch(chosen)
            within = _items(batch.sequence_lengths).place
            writer.write(
                num_tokens=batch.sequence_lengths,
                num_predictions=drawn.prediction_starts[chosen + 1] - drawn.prediction_starts[chosen],
                b_starts=drawn.b_starts[chosen],
                is_random_next=drawn.is_random_next[chosen],
                tokens=batch.input_ids,
                positions=within[batch.masked_positions],
                labels=batch.masked_labels,
            )
    shutil.rmtree(unshuffled)


class _Writer:
    """Appends instances to the files of a directory."""

    def __init__(self, directory: Path, vocab_size: int) -> None:
        self._dtypes = _dtypes(vocab_size)
        self._files = {name: (directory / f"{name}.bin").open("wb") for name in self._dtypes}
        self.num_tokens, self.num_predictions = array("q"), array("q")  # an entry for each instance
        self.total_tokens = 0

    def write(self, num_tokens: Ints, num_predictions: Ints, **columns: NDArray[Any]) -> None:
        """Append instances; their tokens, positions and labels are concatenated."""
        self.num_tokens.extend(num_tokens.tolist())
        self.num_predictions.extend(num_predictions.tolist())
        self.total_tokens += int(num_tokens.sum())
        for name, column in columns.items():
            self._files[name].write(column.astype(self._dtypes[name]).tobytes())

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        for name, counts in (("token_starts", self.num_tokens), ("prediction_starts", self.num_predictions)):
            self._files[name].write(np.append(0, np.cumsum(np.array(counts))).astype(self._dtypes[name]).tobytes())
        for file in self._files.values():
            file.close()


def json_rows(instances: Instances, vocab: list[str]) -> Iterator[str]:
    """Yield a line of JSON for each instance, with tokens as text and the field names of the original."""
    for first in range(0, len(instances), INSTANCES_AT_ONCE):
        batch = instances.batch(np.arange(first, min(first + INSTANCES_AT_ONCE, len(instances))))
        ends = np.cumsum(batch.sequence_lengths)
        starts = ends - batch.sequence_lengths
        columns = (starts.tolist(), ends.tolist(), batch.targets["next_sentence"].labels.tolist())
        for start, end, is_random in zip(*columns, strict=True):
            inside = slice(*np.searchsorted(batch.masked_positions, [start, end]))
            row = {
                "tokens": [vocab[token] for token in batch.input_ids[start:end].tolist()],
                "segment_ids": batch.token_type_ids[start:end].tolist(),
                "is_random_next": bool(is_random),
                "masked_lm_positions": (batch.masked_positions[inside] - start).tolist(),
                "masked_lm_labels": [vocab[token] for token in batch.masked_labels[inside].tolist()],
            }
            yield json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n"
