"""What is trained: a `Job`, that is a model, its examples, its objective, and how it is measured.

    examples -> job.order.micro_batches -> job.objective.prepare -> job.losses    what train/loop.py trains
    job.after     measures the model, if that is due
    job.publish   writes what a finished run leaves

A job opens no directory: checkpoints, log and lock are the run's (`trainer.run_steps`); `jobs/plain.py` trains a job without them.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from torch import nn

from bertkit.base.typed_settings import to_mapping
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.display.report import Curves
from bertkit.model.heads import BertWithHeads
from bertkit.objectives.objective import Moment, Objective
from bertkit.run.choices import Choices
from bertkit.run.memory_plan import LargestBatch
from bertkit.run.resume_rules import Rules, RunSettings, identity_of
from bertkit.run.start import Start
from bertkit.run.state import TrainingState
from bertkit.train.accelerator import Accelerator
from bertkit.train.loop import Course
from bertkit.train.losses import Losses
from bertkit.train.micro_batches import NumberedBatches, check_num_processes
from bertkit.train.schedule import learning_rate

SettingsT = TypeVar("SettingsT", bound=RunSettings)


class Order(Protocol):
    """The examples of every step."""

    @property
    def fewest_parts(self) -> int:
        """The smallest number of micro-batches in any step."""

    def micro_batches(self, step: int, process: int, num_processes: int) -> NumberedBatches:
        """Return the micro-batches that a process takes in a step, counted from 0, with their numbers in the global batch."""

    def names(self, step: int) -> Sequence[object]:
        """Return an identifier for each example of a step."""


@dataclass(frozen=True)
class Due:
    """What is due after a step; after the last step of the run, everything is."""

    log: bool
    evaluation: bool
    save: bool

    @property
    def is_any(self) -> bool:
        """Whether the step must be waited for."""
        return self.log or self.evaluation or self.save


@dataclass(frozen=True)
class Evaluation:
    """What a job adds to a step of a run."""

    metrics: dict[str, float] = field(default_factory=dict)  # empty if no evaluation was due
    must_save: bool = False  # requests a checkpoint although none is due
    lines: tuple[str, ...] = ()  # printed below the line of the step


class Job(ABC, Generic[SettingsT]):
    """A model, its examples, its objective, and how it is measured."""

    label: ClassVar[str]  # shown in the progress bar
    charts: ClassVar[Sequence[Curves]]  # of the report
    rules: ClassVar[Rules]  # which settings may change when a run is resumed

    # set by `on`, and before the first step
    accelerator: Accelerator
    choices: Choices  # a run that is resumed keeps those that it began with
    steps: int
    # in a directory
    directory: Path | None = None
    most_steps: int | None = None  # of the checkpoint from which a run resumes, if it was shorter before

    def __init__(self, settings: SettingsT, start: Start, objective: Objective) -> None:
        self.settings, self.start, self.objective = settings, start, objective

    def __getstate__(self) -> dict[str, object]:
        """Return what a copy begins with: nothing that is computed from the settings, since a copy has its own."""
        computed = [
            name for name in self.__dict__ if isinstance(getattr(type(self), name, None), functools.cached_property)
        ]
        return {name: value for name, value in self.__dict__.items() if name not in computed}

    @property
    def model(self) -> BertWithHeads:
        """The model that is trained, in place."""
        return self.start.model

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.start.tokenizer

    def on(self, accelerator: Accelerator) -> Self:
        """Make the automatic choices for a device and its processes, and what the objective trains beside the model.

        Raises InputError if the choices do not suit the batch.
        """
        self.accelerator = accelerator
        self.start = self.start.beginning(self.objective, self.settings.seed)
        self.choices = self.choose()
        return self

    @abstractmethod
    def choose(self) -> Choices:
        """Return the automatic choices."""

    @functools.cached_property
    @abstractmethod
    def order(self) -> Order:
        """The examples of every step, after all choices are made."""

    def work(self, steps: int) -> int:
        """Return how much of a run's work its first steps are, in any unit, to estimate the time left."""
        return steps

    @property
    def warmup_steps(self) -> float:
        """The number of steps of the warm-up, not always whole."""
        return self.settings.schedule.warmup_of(self.steps)

    @property
    def steps_per_epoch(self) -> int | None:
        """The number of steps in an epoch; None if epochs are not counted."""
        return None

    @property
    def branch_step(self) -> int | None:
        """The last step that a longer run shares with this one: it is saved and kept; None if there is none."""
        return None

    @property
    def patience(self) -> int | None:
        """The number of evaluations without a better score after which a run ends; None for no limit."""
        return None

    @functools.cached_property
    def identity(self) -> dict[str, object]:
        """The settings that are not free to change, and the hashes of data and starting weights."""
        return identity_of(to_mapping(self.settings), self.rules) | self.content

    @property
    @abstractmethod
    def content(self) -> dict[str, object]:
        """The hashes of data and starting weights, for the identity of a run."""

    @property
    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Facts about the data and the starting weights, for the manifest of a run."""

    def prepared(self, step: int) -> NumberedBatches:
        """Return this process's micro-batches of a step, as the objective prepares them."""
        drawn = self.order.micro_batches(step, self.accelerator.process_index, self.accelerator.num_processes)
        seed, prepare = self.settings.seed, self.objective.prepare
        return [(number, prepare(batch, Moment(step, self.steps, number, seed))) for number, batch in drawn]

    @property
    def losses(self) -> Losses:
        """The losses of a micro-batch, in the precision of the run."""
        return functools.partial(self.objective.losses, precision=self.settings.precision)

    def course(self, batches: Callable[[int], NumberedBatches], first_step: int = 0) -> Course:
        """Return the steps from `first_step` on."""
        settings = self.settings
        rate = learning_rate(settings.optimizer.peak, settings.schedule, self.steps, self.warmup_steps)
        clip, skipped = settings.optimizer.max_grad_norm, settings.data.skip_steps
        return Course(batches, rate, first_step, self.steps, clip, settings.seed, skipped)

    def check_num_processes(self, order: Order, choices: Choices) -> None:
        """Raise InputError if a step cannot be divided among the processes; a run may have begun with another number of them."""
        check_num_processes(order.fewest_parts, choices.num_parts, self.accelerator.num_processes)

    @abstractmethod
    def measure(self, accelerator: Accelerator, model: nn.Module) -> dict[str, float]:
        """Measure the model, as an accelerator has prepared it, on held-out examples."""

    @abstractmethod
    def lines(self, state: TrainingState) -> list[str]:
        """Describe the run before its first step."""

    @abstractmethod
    def largest_batches(self) -> list[LargestBatch]:
        """Return the largest micro-batches, to estimate the memory that they need."""

    @abstractmethod
    def after(self, step: int, due: Due, state: TrainingState) -> Evaluation:
        """Measure the model after a step, if that is due."""

    def baselines(self, step: int) -> dict[str, float]:
        """Return baselines for the charts at a step, counted from 0."""
        return {}

    @abstractmethod
    def publish(self, state: TrainingState) -> None:
        """Measure the trained model, and write the results of the run."""


AnyJob = Job[Any]
