"""A run: a job in a directory, with a lock, an identity, checkpoints, a log and a report.

    for report in run_steps(job):
        ...

Each report is that of `train.loop.train`. After its step the job measures the model, if that is due; then the `Trainer` writes the
log row and the checkpoint, prints its lines and updates the report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from types import FrameType
from typing import Literal

from bertkit.base.errors import InputError, StoppedError
from bertkit.base.typed_settings import to_mapping
from bertkit.display import console
from bertkit.display.console import Progress
from bertkit.display.report import write_report
from bertkit.launch.world import SAME_REQUEST_SECONDS, STOP_SIGNALS, stopped_line, world_from_environment
from bertkit.model.recorded import forget_passes, record_passes
from bertkit.objectives.objective import Objective
from bertkit.run.job import AnyJob, Due, Evaluation
from bertkit.run.opening import announce, open_run
from bertkit.run.state import TrainingState
from bertkit.train.drawn_ahead import AHEAD, drawn_ahead
from bertkit.train.log import MetricsLog, Trackers
from bertkit.train.loop import train
from bertkit.train.micro_batches import NumberedBatches
from bertkit.train.step_report import StepReport

STDOUT = 1  # a file descriptor; a signal handler must not call print, which it may have interrupted


def run_steps(job: AnyJob) -> Iterator[StepReport]:
    """Train a job in its directory, from where it stands to the end, and yield a report after each step; then write the results.

    Raises StoppedError after a signal, NumericsError after too many skipped steps, StorageError without a checkpoint, InputError if
    the directory holds another run.
    """
    with open_run(job) as record_changes:
        state = TrainingState(job.accelerator, job.settings, job.start, job.choices, job.most_steps)
        if state.first_step > job.steps:
            raise InputError(
                f"steps={job.steps}: the run in {state.directory} has done {state.first_step}; increase it"
            )
        job.choices = state.choices
        job.check_num_processes(job.order, job.choices)
        record_changes(state.first_step)
        announce(job, state)
        with training(job, state) as trainer:
            for report in trainer.reports:
                trainer.finish(report, job.after(report.step, trainer.due(report), state))
                yield report
        job.publish(state)


@contextlib.contextmanager
def training(job: AnyJob, state: TrainingState) -> Iterator[Trainer]:
    """Open what the steps of a run need, from its current step to its end."""
    is_main = state.accelerator.is_main_process
    done, total = job.work(state.first_step), job.work(job.steps)
    progress = Progress(job.label, total, done=done, silent=not is_main, has_lines=True)
    rows = (_WrittenRows if is_main else _Rows)(state, job, progress)
    with (
        closing(rows),
        progress,
        _charts(state, job),
        _recorded(state, job),
        stop_on_signal() as stop_requested,
        state.writer,
        _batches(state, job) as batches,
    ):
        yield Trainer(job, state, rows, batches, stop_requested)
    if any(state.ranks.on_every(stop_requested)):  # during the last step, which is saved
        raise StoppedError(stopped_line(state.last_step))


class Trainer:
    """The steps of a run: `reports`, each to be finished before the next one."""

    def __init__(
        self,
        job: AnyJob,
        state: TrainingState,
        rows: _Rows,
        batches: Callable[[int], NumberedBatches],
        stop_requested: Callable[[], bool],
    ) -> None:
        self.job, self.settings, self.state, self.rows = job, job.settings, state, rows
        state.writer.branch_step = job.branch_step
        self.reports: Iterator[StepReport] = train(
            state.learner(job.losses, job.objective.counts),
            job.course(batches, state.first_step),
            skips=state.writer.history.skips,
            should_sync=lambda step: self._due(step).is_any,
            stop_requested=stop_requested,
            is_over=lambda: self.is_over,
        )

    @property
    def is_over(self) -> bool:
        """Whether the score has not improved for `patience` evaluations; then a run trains no further, even if started again."""
        return self.job.patience is not None and self.state.writer.history.num_worse >= self.job.patience

    def due(self, report: StepReport) -> Due:
        """Return what is due after a step; before a stop it is saved."""
        due = self._due(report.step)
        return dataclasses.replace(due, save=due.save or report.stop_requested)

    def _due(self, step: int) -> Due:
        settings, is_last = self.settings, step == self.job.steps
        every = settings.log.every_of(self.job.steps)
        return Due(
            log=is_last or step == 1 or step % every == 0,
            evaluation=is_last or step % self._steps_of(settings.evaluation.every_steps) == 0,
            save=is_last or step == self.job.branch_step or step % self._steps_of(settings.checkpoint.every_steps) == 0,
        )

    def _steps_of(self, every: int | Literal["epoch"]) -> int:
        return self.job.steps_per_epoch or 1 if every == "epoch" else every

    def finish(self, report: StepReport, evaluation: Evaluation) -> None:
        """Write the log row of a step, and its checkpoint if one is due or asked for; print its lines; stop after a signal."""
        state, job, step, due = self.state, self.job, report.step, self.due(report)
        self.rows.add(report, evaluation.metrics, is_logged=due.log)
        report.check_skips(self.settings.numerics.max_skips_in_a_row)
        is_over = step == job.steps or self.is_over
        is_saved = due.save or is_over or evaluation.must_save
        if is_saved:
            state.writer.history.skips = report.skips
            self.rows.sync()  # so that no row before the checkpoint is lost in a power cut
            state.save(step, is_required=report.stop_requested and not is_over)
        self.rows.print(evaluation.lines)
        if state.accelerator.is_main_process and (evaluation.metrics or is_saved):
            write_report(state.directory, job.baselines(step - 1), job.charts)
        if report.stop_requested and not is_over:
            raise StoppedError(f"stopped at step {step} of {job.steps}, which is saved; the same command resumes")


@contextlib.contextmanager
def _recorded(state: TrainingState, job: AnyJob) -> Iterator[None]:
    """Record the passes of a single process on a GPU until training ends; recomputed layers and the passes of plug-ins cannot be recorded."""
    is_alone = state.accelerator.device.type == "cuda" and state.accelerator.num_processes == 1
    if is_alone and job.settings.recompute == "none" and type(job.objective).losses is Objective.losses:
        record_passes(state.bare_model)
    try:
        yield
    finally:
        forget_passes(state.bare_model)


@contextlib.contextmanager
def _charts(state: TrainingState, job: AnyJob) -> Iterator[None]:
    """Draw the report when training begins, and again if it ends early, by a stop or an error."""

    def draw() -> None:
        if state.accelerator.is_main_process:
            write_report(state.directory, job.baselines(state.first_step), job.charts)

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


def _batches(state: TrainingState, job: AnyJob) -> AbstractContextManager[Callable[[int], NumberedBatches]]:
    """Return this process's prepared micro-batches as a function of the step; for a GPU they are drawn a step ahead."""
    is_ahead = state.accelerator.device.type in AHEAD
    return drawn_ahead(job.prepared, job.steps) if is_ahead else contextlib.nullcontext(job.prepared)


class _Rows:
    """Tokens, seconds and means from one row of metrics.jsonl to the next, in every process; `_WrittenRows` also writes the rows."""

    def __init__(self, state: TrainingState, job: AnyJob, progress: Progress) -> None:
        self.job, self.progress, self.window = job, progress, state.writer.history.window
        self.num_tokens, self.seconds = 0, 0.0

    def add(self, report: StepReport, metrics: dict[str, float], is_logged: bool) -> None:
        """Write the row of a step if it is due for logging, or was evaluated, left out or skipped.

        Losses, accuracies and the gradient norm are means over the steps since the last row.
        """
        self.progress.advance(self.job.work(report.step))
        self.num_tokens, self.seconds = self.num_tokens + report.num_tokens, self.seconds + report.seconds
        for finished in report.now_read:
            self.window.add(finished.measured)
            if finished.skip_reason is not None and finished.step != report.step:
                self.write(finished, {}, None, {})
        is_skipped = report.is_synced and report.skip_reason is not None
        if metrics or is_logged or report.is_left_out or is_skipped:
            means = {} if report.is_left_out or is_skipped else self.window.close()
            self.write(report, means, self.num_tokens / self.seconds, metrics)
            self.num_tokens, self.seconds = 0, 0.0

    def write(
        self, report: StepReport, means: dict[str, float], tokens_per_second: float | None, metrics: dict[str, float]
    ) -> None:
        """Write the row of a step, or, for a skipped step, the reason and its examples."""

    def print(self, lines: Sequence[str]) -> None:
        """Print lines below those of the step."""

    def sync(self) -> None:
        """Flush the rows to disk."""

    def close(self) -> None:
        """Close metrics.jsonl and the trackers."""


class _WrittenRows(_Rows):
    """The rows of process 0, with their lines on the console."""

    def __init__(self, state: TrainingState, job: AnyJob, progress: Progress) -> None:
        super().__init__(state, job, progress)
        self.is_printed = functools.partial(job.settings.log.prints, steps=job.steps)
        self.log = MetricsLog(state.directory / "metrics.jsonl", state.first_step)
        self.trackers = Trackers(job.settings.log.trackers, state.directory, to_mapping(job.settings))

    def write(
        self, report: StepReport, means: dict[str, float], tokens_per_second: float | None, metrics: dict[str, float]
    ) -> None:
        """Write a row to metrics.jsonl and the trackers, and perhaps its line."""
        row: dict[str, object] = {"step": report.step, **means}
        if report.skip_reason is not None:
            row["skipped"] = report.skip_reason
        row["learning_rate"] = report.learning_rate
        if tokens_per_second is not None:
            row["tokens_per_second"] = round(tokens_per_second, 1)
        row |= {f"eval_{name}": value for name, value in metrics.items()}
        if self.job.steps_per_epoch is not None:
            row["epoch"] = round(report.step / self.job.steps_per_epoch, 4)
        names = list(self.job.order.names(report.step - 1))
        if report.skip_reason is not None:
            row["examples"] = names
        batch = hashlib.blake2b(repr(names).encode(), digest_size=4).hexdigest()  # lets `compare` detect other examples
        self.log.write({**row, "batch": batch})
        self.trackers.log(row)
        if metrics or "loss" not in row or self.is_printed(report.step) or self.progress.is_overdue:
            self.progress.line(console.step_line(row, self.job.steps, self.progress.time_left()))

    def print(self, lines: Sequence[str]) -> None:
        """Print lines."""
        for line in lines:
            self.progress.line(line)

    def sync(self) -> None:
        """Flush metrics.jsonl."""
        self.log.sync()

    def close(self) -> None:
        """Close metrics.jsonl and the trackers."""
        self.log.close()
        self.trackers.close()
