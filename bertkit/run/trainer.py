"""One way from the first step of a run to its last, for pretraining and fine-tuning: `fit`, a generator of events.

A stage writes `for event in fit(settings, state, training_plan, progress)`, and is given for every step

    Trained     the step is done, nothing is written: the stage evaluates if that is due, and may ask for a checkpoint
    Recorded    its row and its checkpoint are written: the stage shows what it measured
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bertkit.base.errors import StoppedError
from bertkit.base.typed_settings import to_mapping
from bertkit.launch.world import stopped_line
from bertkit.run.directory import stop_on_signal
from bertkit.run.state import TrainingState
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.pretrain import PretrainSettings
from bertkit.train.log import MetricsLog
from bertkit.train.loop import Course, Learner, train
from bertkit.train.losses import Losses
from bertkit.train.micro_batches import NumberedBatches
from bertkit.train.schedule import learning_rate
from bertkit.train.step_report import StepReport
from bertkit.train.trackers import Trackers
from bertkit.view import console
from bertkit.view.progress import Progress


class Order(Protocol):
    """Which examples make up each step, counted from 0."""

    def micro_batches(self, step: int, process: int, num_processes: int) -> NumberedBatches:
        """Give a process's micro-batches of a step."""

    def names(self, step: int) -> Sequence[Any]:
        """Name the examples of a step, of all processes."""


@dataclass(frozen=True)
class TrainingPlan:
    """What a run learns, and when it ends."""

    order: Order  # of the examples
    losses: Losses  # model and micro-batch -> loss terms
    steps: int  # where the run ends
    warmup_steps: float  # the first of them
    # for rows that tell the epoch, and for what is done every epoch; None where epochs are not counted
    steps_per_epoch: int | None = None
    patience: int | None = None  # evaluations without a better score after which the run ends; None: none does


@dataclass
class Trained:
    """A step is done."""

    step: int  # steps done, this one included
    evaluation_is_due: bool  # for the stage to measure
    save_is_due: bool  # whatever it measures
    # for the stage to fill. With `TrainingPlan.patience` it also counts `standing.num_worse`.
    metrics: dict[str, float] = field(default_factory=dict)
    must_save: bool = False  # for the stage to set


@dataclass(frozen=True)
class Recorded:
    """The row of a step is written, and its checkpoint where there is one."""

    step: int
    metrics: dict[str, float]
    is_saved: bool


def fit(
    settings: PretrainSettings | FinetuneSettings, state: TrainingState, training_plan: TrainingPlan, progress: Progress
) -> Generator[Trained | Recorded, None, None]:
    """Train from where a run stands to its end; close the generator when leaving it early.

    Raises:
        StoppedError: a signal asked the run to stop; its checkpoint is saved.
        NumericsError: too many steps in a row were skipped.
        StorageError: a checkpoint could not be saved.
    """
    rows = _Rows(settings, state, training_plan, progress)
    with contextlib.closing(rows), stop_on_signal() as stop_requested, state.saves:
        course, standing = _course(settings, state, training_plan), state.saves.standing
        learner = Learner(state.accelerator, state.model, state.optimizer, training_plan.losses)
        is_due = functools.partial(_is_due, settings, training_plan)
        is_over = _is_over(state.first_step, training_plan, state)
        reports = train(
            learner,
            course,
            skips=standing.skips,
            is_read=lambda step: any(is_due(step, what) for what in ("log", "evaluation", "checkpoint")),
            stop_requested=stop_requested,
        )
        # a run that ended early, out of patience, has nothing left to train when it is started again
        for report in () if is_over else reports:
            step = report.step
            save_is_due = report.stop_requested or step >= training_plan.steps or is_due(step, "checkpoint")
            done = Trained(step, is_due(step, "evaluation"), save_is_due)
            yield done
            is_over = _is_over(step, training_plan, state)
            rows.add(report, done.metrics, is_logged=is_due(step, "log"))
            report.check_skips(settings.numerics.max_skips_in_a_row)
            is_saved = save_is_due or is_over or done.must_save
            if is_saved:
                standing.skips = report.skips
                rows.sync()  # a power cut leaves no gap in front of the checkpoint
                state.save(step, is_required=report.stop_requested and not is_over)
            progress.advance(step)
            yield Recorded(step, done.metrics, is_saved)
            if is_over:
                break
            if report.stop_requested:
                raise StoppedError(
                    f"stopped at step {step} of {training_plan.steps}; its checkpoint is saved, and the same command resumes"
                )
    if any(state.ranks.each(stop_requested)):  # in the last step, which is saved
        raise StoppedError(stopped_line(state.last_step))


def _course(settings: PretrainSettings | FinetuneSettings, state: TrainingState, training_plan: TrainingPlan) -> Course:
    accelerator, peak = state.accelerator, settings.optimizer.peak
    return Course(
        batches=lambda step: training_plan.order.micro_batches(
            step, accelerator.process_index, accelerator.num_processes
        ),
        learning_rate=lambda step: learning_rate(
            step, peak, settings.schedule, training_plan.steps, training_plan.warmup_steps
        ),
        first_step=state.first_step,
        steps=training_plan.steps,
        max_grad_norm=settings.optimizer.max_grad_norm,
        seed=settings.seed,
        num_parts=state.choices.num_parts,
        skip_steps=settings.data.skip_steps,
    )


def _is_due(settings: PretrainSettings | FinetuneSettings, training_plan: TrainingPlan, step: int, what: str) -> bool:
    """Whether something that is done every so many steps, or every epoch, is done after this one."""
    if what == "log":
        every: int | str = settings.log.every_of(training_plan.steps)
    else:
        every = getattr(settings, what).every_steps
    every = training_plan.steps_per_epoch or 1 if every == "epoch" else int(every)
    return bool(step == training_plan.steps or step % every == 0 or (what == "log" and step == 1))


def _is_over(step: int, training_plan: TrainingPlan, state: TrainingState) -> bool:
    """Whether the last step is done, or the score has not improved for too long."""
    return step >= training_plan.steps or (
        training_plan.patience is not None and state.saves.standing.num_worse >= training_plan.patience
    )


class _Rows:
    """The rows of metrics.jsonl and their lines on the console, by the first process."""

    def __init__(
        self,
        settings: PretrainSettings | FinetuneSettings,
        state: TrainingState,
        training_plan: TrainingPlan,
        progress: Progress,
    ) -> None:
        self.training_plan, self.progress = training_plan, progress
        is_main = state.accelerator.is_main_process
        self.log = MetricsLog(state.directory / "metrics.jsonl", state.first_step) if is_main else None
        self.trackers = Trackers(settings.log.trackers if is_main else (), state.directory, to_mapping(settings))
        self.num_tokens, self.seconds = 0, 0.0
        self.window, self.unread = state.saves.standing.window, list[StepReport]()

    def add(self, report: StepReport, metrics: dict[str, float], is_logged: bool) -> None:
        """Write the row of a step, if it is due, or tells of an evaluation or of a step left out or skipped.

        Losses, accuracies and the gradient's norm are means over the steps since the last row; every process takes them.
        """
        self.unread.append(report)
        while len(self.unread) > (0 if report.is_read else 1):  # as `train` reads them
            self.window.add(self.unread.pop(0).measured)
        self.num_tokens, self.seconds = self.num_tokens + report.num_tokens, self.seconds + report.seconds
        for skipped in report.found:
            self._write(metrics_row(skipped, {}, None, {}), skipped)
        is_skipped = report.is_read and report.fault is not None
        if metrics or is_logged or report.is_left_out or is_skipped:
            means = {} if report.is_left_out or is_skipped else self.window.close()
            self._write(metrics_row(report, means, self.num_tokens / self.seconds, metrics), report)
            self.num_tokens, self.seconds = 0, 0.0

    def _write(self, row: dict[str, Any], report: StepReport) -> None:
        if self.log is None:
            return
        training_plan = self.training_plan
        if training_plan.steps_per_epoch is not None:
            row["epoch"] = round(report.step / training_plan.steps_per_epoch, 4)
        names = list(training_plan.order.names(report.step - 1))
        if report.fault is not None:
            row["examples"] = names
        which = hashlib.blake2b(
            repr(names).encode(), digest_size=4
        ).hexdigest()  # by which `compare` tells orders apart
        self.log.write({**row, "batch": which})
        self.trackers.log(row)
        self.progress.line(console.step_line(row, training_plan.steps, self.progress.time_left()))

    def sync(self) -> None:
        """Flush the rows to the disk."""
        if self.log is not None:
            self.log.sync()

    def close(self) -> None:
        """Flush the rows to the disk, close the file, and let the trackers end."""
        if self.log is not None:
            self.log.close()
        self.trackers.close()


def metrics_row(
    report: StepReport, means: dict[str, float], tokens_per_second: float | None, evaluated: dict[str, float]
) -> dict[str, Any]:
    """Give the row of metrics.jsonl that a logged step has; that of a skipped one says why instead of what it measured.

    Args:
        report: of the step.
        means: of what was measured since the row before.
        tokens_per_second: since then.
        evaluated: on held-out text.
    """
    row: dict[str, Any] = {"step": report.step, **means}
    if report.fault is not None:
        row["skipped"] = report.fault
    row["learning_rate"] = report.learning_rate
    if tokens_per_second is not None:
        row["tokens_per_second"] = round(tokens_per_second, 1)
    return row | {f"eval_{name}": value for name, value in evaluated.items()}
