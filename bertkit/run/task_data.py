"""What a fine-tuning run learns from and is measured on: the splits of its task, as features of its model.

And what the features show of the examples: how many are cut, and which of them a model sees nothing of.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.base.batch import IGNORED
from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Rules, Tokenizer, VocabFacts, train_wordpiece
from bertkit.data.corpus.tokenizer import load_tokenizer as load_tokenizer_files
from bertkit.interop.load import load_tokenizer
from bertkit.model.heads import BertWithHeads
from bertkit.run.state import Choices, make_choices
from bertkit.settings.finetune import BASE_HIDDEN_SIZE, FinetuneSettings
from bertkit.tasks.batching import Cut, FeatureBatches, TrainingOrder
from bertkit.tasks.reading import readers
from bertkit.tasks.reading.source import Source
from bertkit.tasks.shapes import make_features, shape_of
from bertkit.tasks.task import Feature
from bertkit.train.micro_batches import AUTO_MICRO_TOKENS, MIN_PARTS, check_num_processes
from bertkit.train.processes import Accelerator

CUT = (
    "{}: every example is truncated, so the model never sees how a text ends; raise task.max_seq_length, or cut the texts "
    "into parts that fit"
)

MAX_NAMED = 3  # examples that a warning names


class Coverage:
    """What share of the examples the model sees: counts features on their way; complete when all have passed.

    Attributes:
        num_features: all of them.
        num_truncated: examples of which a part is in no feature.
        has_pairs: whether any has a second segment.
        unknown: numbers of the examples of which a text, the first or the second, is nothing but [UNK].
    """

    def __init__(self, facts: VocabFacts) -> None:
        self._special, self._unknown = {facts.cls, facts.sep}, {facts.unk}
        self.num_features, self.num_truncated, self.has_pairs = 0, 0, False
        self.unknown: list[int] = []

    def passing(self, features: Iterable[Feature]) -> Iterator[Feature]:
        """Give the features on, those of an example together."""
        for example, group in itertools.groupby(features, key=lambda feature: feature.example):
            own = list(group)
            self.num_features += len(own)
            self.num_truncated += any(feature.num_cut for feature in own)
            first: set[int] = set()
            second: set[int] = set()
            for feature in own:
                border = len(feature.input_ids) - sum(feature.token_type_ids)
                first.update(feature.input_ids[:border])
                second.update(feature.input_ids[border:])
            self.has_pairs = self.has_pairs or bool(second)
            if any(pieces - self._special == self._unknown for pieces in (first, second)):
                self.unknown.append(example)
            yield from own

    def warnings(self, examples: Sequence[Any], description: str) -> list[str]:
        """Say in a line that texts are all unknown, where some are."""
        if not self.unknown:
            return []
        ids = ", ".join(examples[number].id for number in self.unknown[:MAX_NAMED])
        return [
            f"{description}: {len(self.unknown):,} examples have a text of which the tokenizer knows no word, only [UNK]; the first "
            f"with the id {ids}; check that the model is one for this language"
        ]


@dataclass(frozen=True)
class Split:
    """The examples of a split, and what the model sees of them."""

    source: Source
    coverage: Coverage

    def describe(self) -> list[str]:
        """Say what was read and how much of it does not fit, and then the warnings, a line each."""
        num_cut, num_windows = self.coverage.num_truncated, self.coverage.num_features
        num_examples = len(self.source.examples)
        windows = f"; {num_windows:,} windows" if num_windows > num_examples else ""
        cut = f"truncated {num_cut:,} ({num_cut / num_examples:.1%}){windows}"
        full = [] if num_cut < num_examples else [CUT.format(self.source.description)]
        warnings = [
            *full,
            *self.source.warnings,
            *self.coverage.warnings(self.source.examples, self.source.description),
        ]
        return [f"{self.source.describe()}; {cut}", *(f"warning: {warning}" for warning in warnings)]


@dataclass(frozen=True)
class TaskData:
    """Both splits of a run."""

    train: Split
    batches: FeatureBatches  # the training features, packed at once, since they may be many
    dev: Split
    dev_features: list[Feature]

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, in the order of their numbers."""
        return self.train.source.labels

    @property
    def fingerprint(self) -> list[str]:
        """A hash of the examples of each split."""
        return [hash_examples(split.source.examples) for split in (self.train, self.dev)]

    def describe(self, batch_sequences: int) -> list[str]:
        """Describe both splits, and warn of a batch that is larger than the training split."""
        lines = [*self.train.describe(), *self.dev.describe()]
        if batch_sequences > len(self.batches):
            lines.append(
                f"warning: batch.sequences={batch_sequences} is more than the {len(self.batches):,} training examples; every "
                "step takes all of them"
            )
        return lines


def read_splits(settings: FinetuneSettings) -> tuple[Source, Source]:
    """Read the splits to train on and to measure on.

    Raises:
        InputError: one of them is missing, or something in it is wrong.
    """
    task, data_dir = settings.task, settings.data_dir
    train = readers.read_examples(task, data_dir, "train")
    if settings.dev_share is not None:
        train, dev = train.hold_out(settings.dev_share)
    else:
        try:
            readers.find_file(task, data_dir, "dev")
        except InputError as error:
            raise InputError(
                f"{error}; finetune needs a dev split, or dev_share=0.1 to hold out a tenth of train"
            ) from None
        dev = readers.read_examples(task, data_dir, "dev", train.labels or None)
    if settings.max_train_examples is not None:
        train = train.first(settings.max_train_examples)
    return train, dev


def tokenizer_of(settings: FinetuneSettings, source: Path | None) -> Tokenizer:
    """Load the tokenizer of a model, or learn one from the texts to train on, on both sides."""
    if source is not None:
        return load_tokenizer(source)
    wanted = settings.tokenizer
    assert wanted is not None, "refused by the settings"
    rules: Rules | None = None if wanted.rules == "auto" else wanted.rules
    if wanted.path is not None:
        return load_tokenizer_files(Path(wanted.path), wanted.lowercase, rules)
    examples = read_splits(settings)[0].examples

    def texts() -> Iterator[str]:
        return (text for example in examples for text in (example.source, example.target or "") if text)

    # texts that are written keep their capitals, unless it is asked for
    return train_wordpiece(
        texts, wanted.vocab_size, wanted.lowercase is True, wanted.min_frequency, rules or "hugging_face"
    )


def load_task_data(settings: FinetuneSettings, tokenizer: Tokenizer) -> TaskData:
    """Read both splits, and make their features."""
    task, shape = settings.task, shape_of(settings.task)
    train, dev = (Split(source, Coverage(tokenizer.facts)) for source in read_splits(settings))
    labels = train.source.labels
    if len(labels) == 1 and task.label_names is None and not task.multi_label:
        raise InputError(
            f"{train.source.description}: every label is '{labels[0]}', and there is nothing to learn; give examples of "
            "another one, or list all in task.labels="
        )
    first, second = (
        split.coverage.passing(make_features(task, split.source.examples, tokenizer, labels)) for split in (train, dev)
    )
    batches = FeatureBatches(first, shape.head, shape.num_choices(train.source.examples))
    return TaskData(train, batches, dev, list(second))


def fingerprint_of(settings: FinetuneSettings) -> list[str]:
    """Read both splits, and hash their examples."""
    return [hash_examples(source.examples) for source in read_splits(settings)]


def hash_examples(examples: Sequence[Any]) -> str:
    """Hash examples, as 32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=16)
    for example in examples:
        digest.update(repr(example).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def weigh_classes(settings: FinetuneSettings, data: TaskData) -> None:
    """Give the training batches the weights of their labels, where the settings ask for them.

    Raises:
        InputError: there are more or fewer weights than labels.
    """
    weights, labels = settings.class_weights, data.labels
    if weights is None:
        return
    if weights == "balanced":
        assert data.batches.labels is not None, "training examples have labels"
        weights = balanced_weights(data.batches.labels, len(labels))
    if len(weights) != len(labels):
        raise InputError(f"class_weights={list(weights)}: expected {len(labels)}, of {', '.join(labels)}")
    data.batches.class_weights = np.array(weights)


def balanced_weights(labels: NDArray[Any], num_labels: int) -> tuple[float, ...]:
    """Weigh each label by n / (labels * its count), so that all of them count alike; a label never seen weighs 1."""
    counts = np.bincount(labels[labels != IGNORED], minlength=num_labels).tolist()
    return tuple(sum(counts) / (num_labels * count) if count else 1.0 for count in counts)


def steps_of(settings: FinetuneSettings, batches: FeatureBatches, num_processes: int) -> int:
    """Give the number of steps of a run.

    Raises:
        InputError: the warm-up is longer, or the last batch of an epoch is too small for the processes.
    """
    size = settings.batch.sequences
    steps = math.ceil(settings.num_epochs * -(-len(batches) // size))
    if settings.num_epochs * len(batches) < 1:
        raise InputError(f"num_epochs={settings.num_epochs:g}: less than one of {len(batches):,} examples; raise it")
    if settings.warmup_of(steps) > steps:
        raise InputError(
            f"schedule.warmup_steps={settings.schedule.warmup_steps} exceeds the {steps} steps of the run; lower the "
            "warm-up or train longer"
        )
    rest = len(batches) % size or size
    if rest < num_processes:
        raise InputError(
            f"the last batch of an epoch has {rest} example(s) for {num_processes} processes; change batch.sequences, or "
            "start fewer processes"
        )
    return steps


def choose(settings: FinetuneSettings, accelerator: Accelerator) -> Choices:
    """Choose how a batch is cut, as it is set or to suit the device.

    The cut is the same for one process and for two; with reproducibility=strict for any number.
    """
    batch = settings.batch
    fewest = MIN_PARTS if settings.reproducibility == "strict" else accelerator.num_processes
    if batch.micro_sequences != "auto":
        cut = Cut(None, batch.micro_sequences, fewest)
    elif batch.micro_tokens != "auto":
        cut = Cut(batch.micro_tokens, None, fewest)
    else:
        cut = Cut(AUTO_MICRO_TOKENS[accelerator.device.type], None, max(2, fewest))
    return make_choices(settings, accelerator, cut, cut.fewest_parts(batch.sequences))


def training_order(settings: FinetuneSettings, data: TaskData, choices: Choices, num_processes: int) -> TrainingOrder:
    """Lay out the training examples over the steps.

    Raises:
        InputError: a process would have nothing to do.
    """
    assert isinstance(choices.cut, Cut), "of fine-tuning"
    order = TrainingOrder(data.batches, settings.batch.sequences, settings.seed, choices.cut)
    check_num_processes(order.fewest_parts, choices.num_parts, num_processes)
    return order


def plan_lines(settings: FinetuneSettings, model: BertWithHeads, steps_per_epoch: int, steps: int) -> list[str]:
    """Describe frozen parameters, epochs and learning rate."""
    trained = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    rate = f"{settings.optimizer.peak:g} after {settings.warmup_of(steps):g} steps"
    published, width = settings.task.recipe.peak_learning_rate, model.config.hidden_size
    if settings.optimizer.peak == settings.rate_for(width) != published:
        rate += f" (the published {published:g} suits a hidden size of {BASE_HIDDEN_SIZE}; here it is {width})"
    return [
        *([f"frozen: {settings.freeze}; {sum(trained) / 1e6:.1f} M parameters are trained"] if settings.freeze else []),
        f"{steps_per_epoch} steps an epoch, {settings.num_epochs:g} epochs; {settings.batch.sequences} examples a step; "
        f"learning rate {rate}",
    ]
