"""The examples that a task is trained and evaluated on, read once: what checks them before a run hands them on to it."""

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import Protocol

from bertkit.base.errors import InputError, refusing
from bertkit.tasks.reading.held_out import STRATIFIED
from bertkit.tasks.reading.readers import find_file, read_examples
from bertkit.tasks.reading.source import SplitExamples, check_same_texts, common_marks
from bertkit.tasks.task_config import TaskConfig

NUM_MEASURED = 16  # training rows that are measured, once, where none is held out


class DataSettings(Protocol):
    """The settings of `finetune` that choose its examples."""

    @property
    def task(self) -> TaskConfig:
        """The task."""

    @property
    def data_dir(self) -> str | None:
        """The folder of the task's files; None for the hub."""

    @property
    def dev_share(self) -> float | None:
        """The share of the training examples that is held out; None for a dev file."""

    @property
    def seed(self) -> int:
        """Chooses the examples that are held out."""

    @property
    def max_train_examples(self) -> int | None:
        """How many training examples to use; None for all."""


@dataclass(frozen=True)
class TrainingData:
    """The examples of both splits."""

    train: SplitExamples
    dev: SplitExamples
    method: str | None  # how `dev_share` chose examples, one of `held_out`


def read_training_data(settings: DataSettings, method: str | None = STRATIFIED) -> TrainingData:
    """Read the splits for training and for evaluation.

    `dev_share` chooses examples by a method of `held_out`. Raises InputError if a split is missing or has errors, all training
    examples have the same label or number, or only one of the splits has pairs of texts.
    """
    task, data_dir = settings.task, settings.data_dir
    train = read_examples(task, data_dir, "train")
    if len(train.labels) == 1 and not task.label_names and not task.multi_label:
        every = f"{train.description}: every label is '{train.labels[0]}'"
        raise InputError(f"{every}; add examples, or list all labels in task.labels=")
    numbers = {number for one in train.examples for number in train.task.labels_of(one)}
    if task.is_regression and len(numbers) == 1:
        every = f"{train.description}: every label is {str(numbers.pop()).removesuffix('.0')}"
        raise InputError(f"{every}; add examples with other numbers")
    train = train.with_rare_labels()
    if settings.dev_share == 0:
        dev = dataclasses.replace(train.first(NUM_MEASURED), file_warnings=())
    elif settings.dev_share is not None:
        train, dev = train.hold_out(settings.dev_share, settings.seed, method)
        with contextlib.suppress(InputError):  # there is no dev split
            if unused := find_file(task, data_dir, "dev"):
                dev = dataclasses.replace(dev, description=f"{dev.description}, instead of {unused}")
    else:
        way = "finetune needs a dev split: set dev_share=0.1 to take it from train"
        with refusing(InputError, lambda error: f"{error}; {way}"):
            find_file(task, data_dir, "dev")
        dev = read_examples(task, data_dir, "dev", train.labels)
        common_marks([train, dev])
        check_same_texts(task, train, dev)
    most = settings.max_train_examples
    return TrainingData(train if most is None else train.first(most), dev, method)
