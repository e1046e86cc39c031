"""The steps of a run, for pretraining and fine-tuning: `fit`, a generator.

A stage loops over `fit(settings, state, plan)`. In the body of the loop it evaluates, if that is due. `fit` then writes the
log row and the checkpoint of the step, prints its lines and updates the report.
"""

import contextlib
import functools
import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from bertkit.base.errors import StoppedError
from bertkit.base.typed_settings import to_mapping
from bertkit.display import console
from bertkit.display.console import Progress
from bertkit.display.report import Curves, write_report
from bertkit.launch.world import SAME_REQUEST_SECONDS, STOP_SIGNALS, stopped_line, world_from_environment
from bertkit.run.length_phases import LengthPhases
from bertkit.run.resume_rules import RunSettings
from bertkit.run.state import TrainingState
from bertkit.tasks.batching import TrainingOrder
from bertkit.train.drawn_ahead import drawn_ahead
from bertkit.train.log import MetricsLog, Trackers
from bertkit.train.loop import Course, Learner, train
from bertkit.train.losses import Losses
from bertkit.train.micro_batches import NumberedBatches
from bertkit.train.schedule import learning_rate
from bertkit.train.step_report import StepReport

AHEAD = ("cuda",)  # devices for which batches are drawn ahead; on a CPU the thread would share its cores
STDOUT = 1  # a file descriptor; a signal handler must not call print, which it may have interrupted


@dataclass(frozen=True)
class TrainingPlan:
    """The examples, the losses, the length and the report of a run."""

    label: str  # shown in the progress bar
    order: LengthPhases | TrainingOrder  # the examples of each step
    losses: Losses  # takes the model and a micro-batch, returns loss terms
    steps: int  # the number of steps in the run
    warmup_steps: float
    charts: Sequence[Curves]  # the charts of the report
    baselines: Callable[[int], dict[str, float]]  # takes a step, counted from 0; returns baselines for the charts
    steps_per_epoch: int | None = None  # None if epochs are not counted
    patience: int | None = None  # the run ends after so many evaluations without a better score; None for no limit


@dataclass
class FinishedStep:
    """A step whose log row and checkpoint are not yet written; the stage evaluates if due, and sets the optional fields."""

    step: int  # counted from 1
    evaluation_is_due: bool
    save_is_due: bool
    metrics: dict[str, float] = field(default_factory=dict)  # the metrics of the evaluation
    must_save: bool = False  # requests a checkpoint although none is due
    lines: list[str] = field(default_factory=list)  # printed below the line of the step


def fit(settings: RunSettings, state: TrainingState, plan: TrainingPlan) -> Generator[FinishedStep, None, None]:
    """Train from the current step of a run to its end; yield each step. Close the generator to end early.

    Raises StoppedError after a signal, NumericsError after too many skipped steps, StorageError without a checkpoint.
    """
    is_main = state.accelerator.is_main_process
    learner = Learner(state.accelerator, state.model, state.optimizer, plan.losses, state.loss_scale)
    is_due = functools.partial(_is_due, settings, plan)
    progress = Progress(plan.label, plan.steps, done=state.first_step, silent=not is_main)
    rows = _Rows(settings, state, plan, progress)
    ahead = _batches(state, plan)
    with (
        closing(rows),
        progress,
        _charts(state, plan),
        stop_on_signal() as stop_requested,
        state.writer,
        ahead as batches,
    ):
        is_over = _is_over(state.first_step, plan, state)
        reports = train(
            learner,
            _course(settings, state, plan, batches),
            skips=state.writer.history.skips,
            should_sync=lambda step: any(is_due(step, what) for what in ("log", "evaluation", "checkpoint")),
            stop_requested=stop_requested,
        )
        # a run that has ended because of `patience` trains no further steps when it is started again
        for report in () if is_over else reports:
            step = report.step
            save_is_due = report.stop_requested or step >= plan.steps or is_due(step, "checkpoint")
            done = FinishedStep(step, is_due(step, "evaluation"), save_is_due)
            yield done
            is_over = _is_over(step, plan, state)
            progress.advance(step)
            rows.add(report, done.metrics, is_logged=is_due(step, "log"))
            report.check_skips(settings.numerics.max_skips_in_a_row)
            is_saved = save_is_due or is_over or done.must_save
            if is_saved:
                state.writer.history.skips = report.skips
                if rows.log is not None:
                    rows.log.sync()  # so that no row before the checkpoint is lost in a power cut
                state.save(step, is_required=report.stop_requested and not is_over)
            for line in done.lines if is_main else ():
                progress.line(line)
            if is_main and (done.metrics or is_saved):
                write_report(state.directory, plan.baselines(step - 1), plan.charts)
            if is_over:
                break
            if report.stop_requested:
                raise StoppedError(f"stopped at step {step} of {plan.steps}, which is saved; the same command resumes")
    if any(state.ranks.on_every(stop_requested)):  # during the last step, which is saved
        raise StoppedError(stopped_line(state.last_step))


@contextlib.contextmanager
def _charts(state: TrainingState, plan: TrainingPlan) -> Iterator[None]:
    """Draw the report when training begins, and again if it ends early, by a stop or an error."""

    def draw() -> None:
        if state.accelerator.is_main_process:
            write_report(state.directory, plan.baselines(state.first_step), plan.charts)

    draw()
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # a full disk may be the cause of the error
            draw()
        raise


@contextlib.contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Handle SIGINT, SIGTERM and SIGUSR1: the first signal requests a stop, a later one ends the process at once.

    torchrun and Slurm send a signal to all processes, and more than once, so a repetition within SAME_REQUEST_SECONDS does not
    count as a second signal.

    Yields a function that returns whether a stop was requested. Only the main thread can receive signals.
    """
    received: list[float] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def remember(number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        received.append(now)
        if now - received[0] > SAME_REQUEST_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif len(received) == 1 and world_from_environment().is_main:
            os.write(STDOUT, b"stopping after this step; a second signal ends the process at once\n")

    for number in before:
        signal.signal(number, remember)
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _batches(state: TrainingState, plan: TrainingPlan) -> AbstractContextManager[Callable[[int], NumberedBatches]]:
    """Return this process's micro-batches as a function of the step; for a GPU they are drawn a step ahead."""
    draw = functools.partial(plan.order.micro_batches, process=state.ranks.rank, num_processes=state.ranks.size)
    return drawn_ahead(draw, plan.steps) if state.accelerator.device.type in AHEAD else contextlib.nullcontext(draw)


def _course(
    settings: RunSettings, state: TrainingState, plan: TrainingPlan, batches: Callable[[int], NumberedBatches]
) -> Course:
    peak = settings.optimizer.peak
    return Course(
        batches=batches,
        learning_rate=lambda step: learning_rate(step, peak, settings.schedule, plan.steps, plan.warmup_steps),
        first_step=state.first_step,
        steps=plan.steps,
        max_grad_norm=settings.optimizer.max_grad_norm,
        seed=settings.seed,
        num_parts=state.choices.num_parts,
        skip_steps=settings.data.skip_steps,
    )


def _is_due(settings: RunSettings, plan: TrainingPlan, step: int, what: str) -> bool:
    """Return whether a log row, an evaluation or a checkpoint is due after a step; after the last step all are due."""
    every = settings.log.every_of(plan.steps) if what == "log" else getattr(settings, what).every_steps
    every = plan.steps_per_epoch or 1 if every == "epoch" else every
    return bool(step == plan.steps or step % every == 0 or (what == "log" and step == 1))


def _is_over(step: int, plan: TrainingPlan, state: TrainingState) -> bool:
    """Return whether the last step is done, or the score has not improved for `patience` evaluations."""
    num_worse = state.writer.history.num_worse
    return step >= plan.steps or (plan.patience is not None and num_worse >= plan.patience)


class _Rows:
    """Writes the rows of metrics.jsonl and their lines on the console, on process 0."""

    def __init__(self, settings: RunSettings, state: TrainingState, plan: TrainingPlan, progress: Progress) -> None:
        self.plan, self.progress = plan, progress
        self.is_printed = functools.partial(settings.log.prints, steps=plan.steps)
        is_main = state.accelerator.is_main_process
        self.log = MetricsLog(state.directory / "metrics.jsonl", state.first_step) if is_main else None
        self.trackers = Trackers(settings.log.trackers if is_main else (), state.directory, to_mapping(settings))
        self.num_tokens, self.seconds = 0, 0.0
        self.window, self.pending = state.writer.history.window, list[StepReport]()

    def add(self, report: StepReport, metrics: dict[str, float], is_logged: bool) -> None:
        """Write the row of a step if it is due for logging, or was evaluated, left out or skipped.

        Losses, accuracies and the gradient norm are means over the steps since the last row. Every process computes them.
        """
        self.pending.append(report)
        while len(self.pending) > (0 if report.is_synced else 1):  # in the same order as `train`
            self.window.add(self.pending.pop(0).measured)
        self.num_tokens, self.seconds = self.num_tokens + report.num_tokens, self.seconds + report.seconds
        for skipped in report.skipped_before:
            self._write(skipped, {}, None, {})
        is_skipped = report.is_synced and report.skip_reason is not None
        if metrics or is_logged or report.is_left_out or is_skipped:
            means = {} if report.is_left_out or is_skipped else self.window.close()
            self._write(report, means, self.num_tokens / self.seconds, metrics)
            self.num_tokens, self.seconds = 0, 0.0

    def _write(
        self, report: StepReport, means: dict[str, float], tokens_per_second: float | None, metrics: dict[str, float]
    ) -> None:
        """Write the row of a step, or, for a skipped step, the reason and its examples."""
        if self.log is None:
            return
        row: dict[str, Any] = {"step": report.step, **means}
        if report.skip_reason is not None:
            row["skipped"] = report.skip_reason
        row["learning_rate"] = report.learning_rate
        if tokens_per_second is not None:
            row["tokens_per_second"] = round(tokens_per_second, 1)
        row |= {f"eval_{name}": value for name, value in metrics.items()}
        if self.plan.steps_per_epoch is not None:
            row["epoch"] = round(report.step / self.plan.steps_per_epoch, 4)
        names = list(self.plan.order.names(report.step - 1))
        if report.skip_reason is not None:
            row["examples"] = names
        batch = hashlib.blake2b(repr(names).encode(), digest_size=4).hexdigest()  # lets `compare` detect other examples
        self.log.write({**row, "batch": batch})
        self.trackers.log(row)
        if metrics or "loss" not in row or self.is_printed(report.step):
            self.progress.line(console.step_line(row, self.plan.steps, self.progress.time_left()))

    def close(self) -> None:
        """Close metrics.jsonl and the trackers."""
        if self.log is not None:
            self.log.close()
        self.trackers.close()
