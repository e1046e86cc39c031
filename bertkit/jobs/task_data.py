"""The data of fine-tuning: the train and dev splits of a task, as features; truncation, class weights, number of steps."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.base.batch import IGNORED
from bertkit.base.errors import InputError, counted
from bertkit.data.corpus.tokenizer import Rules, Tokenizer, VocabFacts, load_tokenizer, train_tokenizer
from bertkit.interop.hugging_face.tokenizer_classes import built_by_class
from bertkit.interop.model_dir import resolve_tokenizer
from bertkit.model.heads import BertWithHeads
from bertkit.model.label_scale import LabelUnits
from bertkit.objectives.objective import Moment, Objective
from bertkit.run.memory_plan import LargestBatch
from bertkit.settings.finetune import FinetuneSettings
from bertkit.tasks.batching import FeatureBatches, TrainingOrder
from bertkit.tasks.feature import Feature
from bertkit.tasks.reading.source import SplitExamples
from bertkit.tasks.reading.training_data import TrainingData
from bertkit.tasks.task import Example
from bertkit.tasks.trainable import AnyTrainable

MIN_UNKNOWN = 0.05  # of the tokens: fewer unknown ones change little
MIN_TRUNCATED = 0.1  # of the examples: fewer that are cut change little
MAX_NAMED = 3  # examples that a warning names
PLANNED_STEPS = 50  # steps in which to look for the largest micro-batch; a millisecond each


class Coverage:
    """Counts truncated examples and unknown words while features are made."""

    def __init__(self, facts: VocabFacts) -> None:
        self._special, self._unknown = {facts.cls, facts.sep}, {facts.unk}
        self.num_features, self.has_pairs, self.has_singles = 0, False, False
        self.num_truncated = 0  # examples with a part that is in no feature
        self.num_targets = 0  # examples with a truncated target
        self.num_tokens = self.num_unknown = 0  # of all features, without special tokens
        self.unknown: list[int] = []  # the numbers of examples in which the first or second text has only [UNK] tokens

    @property
    def unknown_share(self) -> float:
        """The share of the tokens that are unknown."""
        return self.num_unknown / max(1, self.num_tokens)

    def counted(self, features: Iterable[Feature]) -> Iterator[Feature]:
        """Count features, and yield them unchanged; the features of an example must be adjacent."""
        for example, group in itertools.groupby(features, key=lambda feature: feature.example):
            own = list(group)
            self.num_features += len(own)
            self.num_truncated += any(feature.num_cut for feature in own)
            self.num_targets += any(feature.num_target_cut for feature in own)
            first: set[int] = set()
            second: set[int] = set()
            for feature in own:
                self.num_unknown += sum(map(feature.input_ids.count, self._unknown))
                self.num_tokens += len(feature.input_ids) - sum(map(feature.input_ids.count, self._special))
                first.update(feature.input_ids[: feature.num_first])
                second.update([] if feature.num_first is None else feature.input_ids[feature.num_first :])
            self.has_pairs |= bool(second)
            self.has_singles |= not second
            if any(pieces - self._special == self._unknown for pieces in (first, second)):
                self.unknown.append(example)
            yield from own

    def warnings(self, examples: Sequence[Example], description: str) -> list[str]:
        """Return a warning about many unknown tokens, and one about texts without any known word."""
        share, lines = self.unknown_share, list[str]()
        if share >= MIN_UNKNOWN:
            better = "choose a model for their language, or a multilingual one such as jhu-clsp/mmBERT-small"
            lines.append(f"{description}: {share:.0%} of the tokens are unknown, [UNK]; {better}")
        if not self.unknown:
            return lines
        ids = ", ".join(examples[number].id for number in self.unknown[:MAX_NAMED])
        return [
            *lines,
            f"{description}: {counted(len(self.unknown), 'example')} with a text in which every word is unknown, [UNK] (ids {ids}); choose a "
            "model for their language",
        ]


@dataclass(frozen=True)
class TaskSplit:
    """The examples of a split, and how many of them are truncated."""

    source: SplitExamples
    coverage: Coverage

    def describe(self) -> list[str]:
        """Return a line about the examples and their truncation, followed by warnings."""
        source, num_truncated, num_windows = self.source, self.coverage.num_truncated, self.coverage.num_features
        num_examples = len(source.examples)
        windows = f"; {num_windows:,} windows" if num_windows > num_examples else ""
        line = f"{source.describe()}; truncated {num_truncated:,} ({num_truncated / num_examples:.1%}){windows}"
        warnings = [*source.warnings, *self.coverage.warnings(source.examples, source.description)]
        if num_truncated >= MIN_TRUNCATED * num_examples:
            cut = source.task.truncated(num_truncated, num_examples, self.coverage.num_targets)
            warnings.insert(0, f"{source.description}: {cut}")
        return [line, *(f"warning: {warning}" for warning in warnings)]


@dataclass(frozen=True)
class TaskData:
    """The train and dev splits of a run."""

    train: TaskSplit
    batches: FeatureBatches  # the training features, in compact arrays, since there may be many
    dev: TaskSplit
    dev_features: list[Feature]
    method: str | None  # by which `dev_share` chooses examples

    @property
    def task(self) -> AnyTrainable:
        """The task, with the labels of the training split."""
        return self.train.source.task

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, in the order of their numbers."""
        return self.train.source.labels

    @property
    def has_pairs(self) -> bool:
        """Whether an example has two texts."""
        return self.train.coverage.has_pairs or self.dev.coverage.has_pairs

    @property
    def has_singles(self) -> bool:
        """Whether an example has no second text."""
        return self.train.coverage.has_singles or self.dev.coverage.has_singles

    def describe(self, settings: FinetuneSettings) -> list[str]:
        """Describe both splits; warn about near-duplicates in both, and about a batch larger than the training split."""
        lines, dev = [*self.train.describe(), *self.dev.describe()], self.dev.source
        if num_near := dev.num_near(self.train.source):
            near = f"{num_near:,} of {len(dev.examples):,} examples are near-duplicates of training examples"
            lines.append(f"warning: {dev.name}: {near}; scores will be lower on new texts")
        if settings.batch.sequences > len(self.batches):
            examples = f"{len(self.batches):,} training examples, so every step uses all of them"
            lines.append(f"warning: batch.sequences={settings.batch.sequences} is more than the {examples}")
        return lines


def new_tokenizer(settings: FinetuneSettings, splits: Callable[[], TrainingData]) -> Tokenizer:
    """Load or train the tokenizer of a new model, from the training texts."""
    config = settings.tokenizer
    assert config is not None, "checked by the settings"
    rules: Rules | None = None if config.rules == "auto" else config.rules
    if config.path is not None:
        path = resolve_tokenizer(config.path)
        return load_tokenizer(path, config.lowercase, rules, config.strip_accents, built_by_class)
    examples = splits().train.examples

    def texts() -> Iterator[str]:
        return (text for example in examples for text in (example.source, example.target or "") if text)

    is_lowercase = config.lowercase is True  # auto means False, so that generated texts have capital letters
    return train_tokenizer(config, texts, is_lowercase, rules or "hugging_face")


def make_task_data(splits: TrainingData, tokenizer: Tokenizer) -> TaskData:
    """Make the features of both splits."""
    train, dev = (TaskSplit(source, Coverage(tokenizer.facts)) for source in (splits.train, splits.dev))
    task = train.source.task
    first, second = (
        split.coverage.counted(task.each_feature(split.source.examples, tokenizer)) for split in (train, dev)
    )
    batches = FeatureBatches(first, task.head, task.num_choices(train.source.examples))
    return TaskData(train, batches, dev, list(second), splits.method)


def label_units(settings: FinetuneSettings, data: TaskData, is_old: bool = False) -> LabelUnits | None:
    """Return the units in which a regression learns its labels, or None.

    A task with a stated range, such as STS-B, learns the labels as they are, as published; so do runs that earlier versions
    began (`is_old`), and heads of plug-ins, whose outputs cannot be scaled by their weights.
    """
    task = settings.task
    if not task.is_regression or task.label_range is not None or settings.head.kind != "linear" or is_old:
        return None
    assert data.batches.labels is not None, "training examples have labels"
    return LabelUnits.of(torch.from_numpy(data.batches.labels))


def weigh_labels(settings: FinetuneSettings, data: TaskData) -> None:
    """Set class weights and label smoothing of the training batches; raise InputError if the numbers of weights and labels differ."""
    data.batches.label_smoothing = settings.task.label_smoothing
    weights, labels = settings.class_weights, data.labels
    if weights is None:
        return
    if weights == "balanced":
        assert data.batches.labels is not None, "training examples have labels"
        weights = balanced_weights(data.batches.labels, len(labels))
    if len(weights) != len(labels):
        raise InputError(f"class_weights={list(weights)}: expected {len(labels)} weights, for {', '.join(labels)}")
    data.batches.class_weights = np.array(weights)


def balanced_weights(labels: NDArray[Any], num_labels: int) -> tuple[float, ...]:
    """Return n / (num_labels * count) for each label, so that all have the same total weight; without examples 1."""
    counts = np.bincount(labels[labels != IGNORED], minlength=num_labels).tolist()
    return tuple(sum(counts) / (num_labels * count) if count else 1.0 for count in counts)


def largest_batch(
    settings: FinetuneSettings, model: BertWithHeads, order: TrainingOrder, objective: Objective
) -> LargestBatch:
    """Return the largest micro-batch, made of copies of the longest example, to estimate its memory."""
    batches = order.batches

    def forward(num_examples: int) -> int:
        longest = np.repeat(np.argmax(batches.lengths), num_examples)
        batch = objective.prepare(batches.take(longest), Moment(0, PLANNED_STEPS, 0, settings.seed))
        objective.losses(model, batch, settings.precision)
        return int(batches.lengths[longest].sum())

    num_tokens, by_sequences = order.largest_part(PLANNED_STEPS), settings.batch.micro_sequences != "auto"
    return LargestBatch(forward, num_tokens, int(batches.lengths.max()), by_sequences)
