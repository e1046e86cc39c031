"""Pack features into micro-batches: which items each training step has, and how a step is divided into micro-batches.

An item is a feature, or all features of an example in multiple choice. An epoch visits each item once, in the order of a
permutation keyed by (seed, epoch); the last batch of an epoch may be smaller. The items of a step are sorted by length (for
generation: by source length, then by target length) and divided into micro-batches with about the same number of tokens,
which bounds the cost of a forward pass. The micro-batches depend only on the step and on `Cut`: any number of processes
trains on the same micro-batches.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertkit.base.batch import IGNORED, Batch, Target
from bertkit.data.batches.keyed_random import Stream, permute
from bertkit.model.head.head import head_of
from bertkit.tasks.feature import Feature, Label


@dataclass(frozen=True)
class Cut:
    """The rule that divides a batch into micro-batches."""

    micro_tokens: int | None  # the most tokens of a micro-batch; a single item may have more
    micro_items: int | None  # the most items of a micro-batch
    min_parts: int  # the fewest micro-batches, one for each process, as far as there are items

    def parts(self, lengths: NDArray[np.int64]) -> list[range]:
        """Divide items, whose lengths in tokens are given, into consecutive parts; no part is empty."""
        ends = np.cumsum(lengths)
        for num_parts in range(min(self.min_parts, len(lengths)), len(lengths) + 1):
            # a part ends with the item that completes its equal share of all tokens; each part has an item
            borders = np.searchsorted(ends, ends[-1] * np.arange(1, num_parts) / num_parts) + 1
            borders = np.maximum.accumulate(borders - np.arange(1, num_parts)) + np.arange(1, num_parts)
            borders = np.minimum(borders, len(lengths) - np.arange(num_parts - 1, 0, -1))
            parts = [range(a, b) for a, b in zip([0, *borders], [*borders, len(lengths)], strict=True)]
            if all(self._fits(part, ends) for part in parts):
                return parts
        return [range(item, item + 1) for item in range(len(lengths))]

    def fewest_parts(self, num_items: int) -> int:
        """Return the least possible number of parts for `num_items` items of any length."""
        by_size = 1 if self.micro_items is None else -(-num_items // self.micro_items)
        return max(by_size, min(self.min_parts, num_items))

    def _fits(self, part: range, ends: NDArray[np.int64]) -> bool:
        num_tokens = ends[part[-1]] - (ends[part[0] - 1] if part[0] else 0)
        return (self.micro_tokens is None or num_tokens <= self.micro_tokens) and (
            self.micro_items is None or len(part) <= self.micro_items
        )


class Ragged:
    """Token sequences of different lengths, concatenated."""

    def __init__(self, lengths: array[int], tokens: array[int]) -> None:
        self.lengths: NDArray[np.int64] = np.array(lengths, np.int64)
        self._first = np.concatenate([[0], np.cumsum(self.lengths)])
        self._tokens = np.array(tokens, np.int32)

    def indices(self, sequences: NDArray[np.int64], num_left_out: int = 0) -> NDArray[np.int64]:
        """Return the indices of the tokens of some sequences, without the last `num_left_out` tokens of each sequence."""
        sizes = self.lengths[sequences] - num_left_out
        starts = np.repeat(self._first[sequences] - np.cumsum(sizes) + sizes, sizes)
        return np.asarray(starts + np.arange(len(starts)))

    def at(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens at these indices."""
        return self._tokens[indices].astype(np.int64)


class FeatureBatches:
    """The features of a split, stored as arrays, from which batches are packed."""

    def __init__(self, features: Iterable[Feature], head: str, num_choices: int = 1) -> None:
        """Copy at least one feature. All have labels or none has, except sentences without words.

        `head` is the model's head that the labels are for; `num_choices` consecutive features form an item.
        """
        self.head, self.num_choices, self.labels_tokens = head, num_choices, head_of(head).labels_tokens
        self.class_weights: NDArray[np.float64] | None = None  # of each label in the loss, (C,); None for equal weights
        self.label_smoothing = 0.0  # in the loss of generated texts
        sizes, input_ids, token_type_ids, token_labels = (array(code) for code in "qibq")
        target_sizes, target_ids = array("q"), array("i")
        labels: list[Label] = []
        num_tagged = 0
        for feature in features:
            sizes.append(len(feature.input_ids))
            input_ids.extend(feature.input_ids)
            token_type_ids.extend(feature.token_type_ids)
            if self.labels_tokens:
                token_labels.extend(feature.token_labels or [IGNORED] * len(feature.input_ids))
                num_tagged += feature.token_labels is not None  # a sentence without words may have none
            if feature.target_ids is not None:
                target_sizes.append(len(feature.target_ids))
                target_ids.extend(feature.target_ids)
            if feature.label is not None:
                labels.append(feature.label)
        self._inputs = Ragged(sizes, input_ids)
        self._token_type_ids = np.array(token_type_ids, np.int8)
        self._targets = Ragged(target_sizes, target_ids) if target_sizes else None
        # of all features (tagging: of all tokens); None if unknown, and for generation
        self.labels: NDArray[np.int64] | NDArray[np.float64] | None = None
        if num_tagged:
            self.labels = np.array(token_labels, np.int64)
        elif labels:
            self.labels = np.array(labels)
        # the tokens of each item, including the decoder's input
        self.lengths: NDArray[np.int64] = self._inputs.lengths.reshape(-1, num_choices).sum(1)
        if self._targets is not None:
            self.lengths += self._targets.lengths - 1

    def __len__(self) -> int:
        """The number of items."""
        return len(self.lengths)

    def shortest_first(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sort items by length; for generation by source length, then by target length."""
        if self._targets is None:
            return items[np.argsort(self.lengths[items], kind="stable")]
        return items[np.lexsort((self._targets.lengths[items], self._inputs.lengths[items]))]

    def take(self, items: NDArray[np.int64]) -> Batch:
        """Pack items, in this order, into one batch."""
        chosen = (items[:, None] * self.num_choices + np.arange(self.num_choices)).reshape(-1)
        tokens = self._inputs.indices(chosen)
        labels, targets, decoder_ids, decoder_lengths = self.labels, self._targets, None, None
        if labels is not None:
            labels = labels[tokens if self.labels_tokens else chosen[:: self.num_choices]]
        if targets is not None:  # the decoder reads all tokens but the last, and predicts all but the first
            inputs = targets.indices(items, num_left_out=1)
            decoder_ids, decoder_lengths = targets.at(inputs), targets.lengths[items] - 1
            labels = targets.at(inputs + 1)
        target = None if labels is None else Target(labels, None, self.class_weights, self.label_smoothing)
        return Batch(
            input_ids=self._inputs.at(tokens),
            token_type_ids=self._token_type_ids[tokens].astype(np.int64),
            sequence_lengths=self._inputs.lengths[chosen],
            targets={} if target is None else {self.head: target},
            decoder_ids=decoder_ids,
            decoder_lengths=decoder_lengths,
        )

    def batches_of(
        self, micro_tokens: int, process: int, num_processes: int, micro_items: int | None = None
    ) -> Iterator[tuple[NDArray[np.int64], Batch]]:
        """Yield the batches of a process, with the numbers of their items; all items together are sorted by length."""
        order = self.shortest_first(np.arange(len(self)))
        parts = Cut(micro_tokens, micro_items, 1).parts(self.lengths[order]) if len(order) else []
        for part in parts[process::num_processes]:
            items = order[part.start : part.stop]
            yield items, self.take(items)


@dataclass(frozen=True)
class TrainingOrder:
    """The items of each training step."""

    batches: FeatureBatches  # the features of the training split
    batch_size: int  # items per step
    seed: int  # changes the order
    cut: Cut

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch; the last one may be smaller."""
        return -(-len(self.batches) // self.batch_size)

    @property
    def fewest_parts(self) -> int:
        """The smallest number of micro-batches in any step."""
        rest = len(self.batches) % self.batch_size or self.batch_size
        sizes = (min(self.batch_size, len(self.batches)), rest)
        return min(self.cut.fewest_parts(size) for size in sizes)

    def items(self, step: int) -> NDArray[np.int64]:
        """Return the items of a step; steps count from 0."""
        epoch, number = divmod(step, self.steps_per_epoch)
        places = np.arange(number * self.batch_size, min((number + 1) * self.batch_size, len(self.batches)))
        return permute(places, len(self.batches), self.seed, Stream.ORDER, epoch)

    def names(self, step: int) -> list[int]:
        """Return the items of a step as a list, for messages; steps count from 0."""
        numbers: list[int] = self.items(step).tolist()
        return numbers

    def largest_part(self, num_steps: int) -> int:
        """Return the number of tokens of the largest micro-batch in the first `num_steps` steps."""
        steps = range(min(num_steps, self.steps_per_epoch))
        return max((int(self.batches.lengths[part].sum()) for step in steps for part in self._parts(step)), default=0)

    def _parts(self, step: int) -> list[NDArray[np.int64]]:
        """Return the items of each micro-batch of a step."""
        items = self.batches.shortest_first(self.items(step))
        return [items[part.start : part.stop] for part in self.cut.parts(self.batches.lengths[items])]

    def micro_batches(self, step: int, process: int, num_processes: int) -> list[tuple[int, Batch]]:
        """Return the consecutive micro-batches of a process in a step, with their numbers in the step."""
        parts = self._parts(step)
        own = range(len(parts) * process // num_processes, len(parts) * (process + 1) // num_processes)
        return [(number, self.batches.take(parts[number])) for number in own]


@dataclass(frozen=True)
class TogetherOrder:
    """The items of each training step on several tasks, of which a step has one.

    An epoch visits every batch of every task once, in the order of a permutation keyed by (seed, epoch), so that the steps of a task
    are in proportion to its data.

    Source: Liu et al. 2019 (MT-DNN), algorithm 1.
    """

    orders: Mapping[str, TrainingOrder]  # by the name of the task
    seed: int

    @property
    def fewest_parts(self) -> int:
        """The smallest number of micro-batches in any step."""
        return min(order.fewest_parts for order in self.orders.values())

    @functools.cached_property
    def batches(self) -> list[tuple[str, int]]:
        """The batches of an epoch, before they are permuted: the task of each, and its number in the task."""
        return [(task, number) for task, order in self.orders.items() for number in range(order.steps_per_epoch)]

    def of(self, step: int) -> tuple[str, int]:
        """Return the task of a step, and which of the task's steps it is; steps count from 0."""
        epoch, place = divmod(step, len(self.batches))
        (drawn,) = permute(np.array([place]), len(self.batches), self.seed, Stream.TASK, epoch)
        task, number = self.batches[drawn]
        return task, epoch * self.orders[task].steps_per_epoch + number

    def names(self, step: int) -> list[str]:
        """Return the task and the item of each example of a step, for messages."""
        task, step_of_task = self.of(step)
        return [f"{task} {item}" for item in self.orders[task].names(step_of_task)]

    def micro_batches(self, step: int, process: int, num_processes: int) -> list[tuple[int, Batch]]:
        """Return the consecutive micro-batches of a process in a step, with their numbers in the step."""
        task, step_of_task = self.of(step)
        return self.orders[task].micro_batches(step_of_task, process, num_processes)
