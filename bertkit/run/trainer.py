"""What pretraining and fine-tuning have in common: a run from its directory's opening to its last step.

with opened(...) as record_changes:  # the run's directory, held by this run
stage = _Pretraining(...)        # resumes, or starts
stage.run(record_changes)        # steps; logs, evaluations and checkpoints on the way; the end
"""

from __future__ import annotations

import abc
import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from bertkit import signs
from bertkit.config import to_mapping
from bertkit.errors import StoppedError
from bertkit.launch.launcher import stopped_line
from bertkit.progress import Progress
from bertkit.run import directory as runs
from bertkit.run import rules as resume_rules
from bertkit.run.state import TrainingRun
from bertkit.settings.schemas import FinetuneSettings, PretrainSettings
from bertkit.train import loop
from bertkit.train.log import MetricsLog
from bertkit.train.schedule import polynomial
from bertkit.view import console

Settings = TypeVar("Settings", PretrainSettings, FinetuneSettings)


@contextlib.contextmanager
def opened(
    accelerator: loop.Accelerator,
    settings: PretrainSettings | FinetuneSettings,
    identity: dict[str, Any],
    facts: dict[str, Any],
    rules: resume_rules.Rules,
) -> Iterator[Callable[[int], None]]:
    """Hold the directory of a run, by its first process; give what writes down, at a step, what changes from there on.

    Raises:
        InputError: the directory holds another run, or something that is no run.
        LockedError: the run is live elsewhere.
    """
    directory, mapping = Path(settings.output_dir), to_mapping(settings)
    with loop.leaving_together(accelerator), contextlib.ExitStack() as stack:

        def open_run() -> list[resume_rules.Change]:
            return stack.enter_context(runs.opened(directory, mapping, identity, facts, rules, settings.resume.allow))

        changes = loop.on_main_process(accelerator, open_run)

        def record(step: int) -> None:
            lines = loop.on_main_process(accelerator, lambda: runs.record(directory, changes, step, mapping, identity))
            if accelerator.is_main_process:
                print("".join(f"warning: {line}\n" for line in lines), end="")

        yield record


class TrainingStage(abc.ABC, Generic[Settings]):
    """A run: what it holds, and its steps in order.

    Attributes:
        settings: of the command.
        accelerator: of this process.
        training: model, optimizer and checkpoints.
        steps: where the run ends.
        warmup_steps: the first of them.
        main: whether this process talks and writes.
    """

    label: str  # of the bar

    def __init__(
        self,
        settings: Settings,
        accelerator: loop.Accelerator,
        training: TrainingRun,
        *,
        steps: int,
        warmup_steps: float,
        losses: loop.Losses,
    ) -> None:
        self.settings: Settings = settings
        self.accelerator, self.training = accelerator, training
        self.directory, self.packed, self.main = training.directory, training.packed, accelerator.is_main_process
        self.steps, self.warmup_steps, self.losses = steps, warmup_steps, losses

    @abc.abstractmethod
    def introduce(self) -> None:
        """Say what is going to happen."""

    @abc.abstractmethod
    def batches(self, step: int) -> loop.Numbered:
        """Give this process's micro-batches of a step, counted from 0."""

    @abc.abstractmethod
    def examples(self, step: int) -> list[Any]:
        """Name the examples of the batch of a step, counted from 0."""

    @abc.abstractmethod
    def evaluate(self, step: int) -> tuple[dict[str, float], bool]:
        """Measure after so many steps; give the metrics, and whether these weights must be kept."""

    @abc.abstractmethod
    def show(self, step: int, metrics: dict[str, float], progress: Progress) -> None:
        """Show what was measured."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Write the model and its metrics; the metrics last, they mark the run as done."""

    def before_save(self, step: int, metrics: dict[str, float]) -> None:
        """Prepare for the checkpoint of a step, with what was measured at it, if anything was."""

    def after_step(self, step: int, progress: Progress) -> None:
        """Look back on a step that is done, and perhaps saved."""

    def is_over(self, step: int) -> bool:
        """Whether the run ends here."""
        return step >= self.steps

    def is_due(self, step: int, every_steps: int | str) -> bool:
        """Whether something that is done every so many steps is done after this one."""
        return step == self.steps or step % int(every_steps) == 0

    def run(self, record_changes: Callable[[int], None]) -> None:
        """Train to the end and finish.

        Args:
            record_changes: called with the step from which changed settings hold.
        """
        first_step = self.training.first_step
        record_changes(first_step)
        if self.main:
            self.introduce()
            if first_step:
                print(f"resumed from step {first_step} of {self.steps}", flush=True)
        log = MetricsLog(self.directory / "metrics.jsonl", first_step) if self.main else None
        progress = Progress(self.label, self.steps, done=first_step, silent=not self.main)
        with runs.stop_on_signal() as stop_requested, progress, self.training:
            if not self.is_over(first_step):
                self._train(stop_requested, log, progress)
        if log is not None:
            log.close()
        if any(self.training.ranks.each(stop_requested)):  # in the last step, which is saved
            raise StoppedError(stopped_line(self.training.last_step))
        self.finish()

    def _train(self, stop_requested: Callable[[], bool], log: MetricsLog | None, progress: Progress) -> None:
        settings = self.settings
        tokens, seconds = 0, 0.0
        for report in self._steps(stop_requested):
            step = report.step
            signs.beat(step)
            tokens, seconds = tokens + report.num_tokens, seconds + report.seconds
            metrics: dict[str, float] = {}
            is_kept = False
            if self.is_due(step, settings.evaluation.every_steps):
                metrics, is_kept = self.evaluate(step)
            if log is not None:
                for skipped in report.found:
                    self._log(log, progress, skipped, None, {})
                is_skipped = report.is_read and report.fault is not None
                if metrics or self._is_logged(step) or report.is_left_out or is_skipped:
                    self._log(log, progress, report, tokens / seconds, metrics)
                    tokens, seconds = 0, 0.0
                if metrics:
                    self.show(step, metrics, progress)
            report.check_skips(settings.numerics.max_skips_in_a_row)
            is_over = self.is_over(step)
            if is_kept or is_over or report.stop_requested or self.is_due(step, settings.checkpoint.every_steps):
                self.training.standing.skips = report.skips
                self.before_save(step, metrics)
                if log is not None:
                    log.sync()  # a power cut leaves no gap in front of the checkpoint
                self.training.save(step, is_required=report.stop_requested and not is_over)
            progress.advance(step)
            if is_over:
                return
            if report.stop_requested:
                raise StoppedError(
                    f"stopped at step {step} of {self.steps}; its checkpoint is saved, and the same command resumes"
                )
            self.after_step(step, progress)

    def _steps(self, stop_requested: Callable[[], bool]) -> Iterator[loop.StepReport]:
        settings, training = self.settings, self.training
        return loop.train(
            self.accelerator,
            training.model,
            training.optimizer,
            self.losses,
            self.batches,
            first_step=training.first_step,
            steps=self.steps,
            peak_learning_rate=settings.optimizer.peak_learning_rate,
            schedule=functools.partial(
                polynomial,
                steps=self.steps,
                warmup_steps=self.warmup_steps,
                power=settings.schedule.power,
                decay_from=settings.schedule.decay_from,
            ),
            max_grad_norm=settings.optimizer.max_grad_norm,
            seed=settings.seed,
            num_parts=training.chosen.num_parts,
            skip_steps=settings.data.skip_steps,
            skips=training.standing.skips,
            is_read=lambda step: (
                self._is_logged(step)
                or self.is_due(step, settings.evaluation.every_steps)
                or self.is_due(step, settings.checkpoint.every_steps)
            ),
            stop_requested=stop_requested,
        )

    def _is_logged(self, step: int) -> bool:
        return step == 1 or self.is_due(step, self.settings.log.every_steps)

    def row_of(self, step: int) -> dict[str, Any]:
        """Give what the row of a step says beside what was measured."""
        return {}

    def _log(
        self,
        log: MetricsLog,
        progress: Progress,
        report: loop.StepReport,
        tokens_per_second: float | None,
        metrics: dict[str, float],
    ) -> None:
        """Write the row of a step and print its line; the row of a skipped one names the examples of its batch."""
        row = metrics_row(report, tokens_per_second, metrics) | self.row_of(report.step)
        if report.fault is not None:
            row["examples"] = self.examples(report.step - 1)
        log.write(row)
        progress.line(console.step_line(row, self.steps, progress.time_left()))


def metrics_row(
    report: loop.StepReport, tokens_per_second: float | None, evaluated: dict[str, float]
) -> dict[str, Any]:
    """Give the row of metrics.jsonl that a logged step has; that of a skipped one says why instead of what it measured."""
    row: dict[str, Any] = {"step": report.step}
    if report.fault is not None:
        row["skipped"] = report.fault
    else:
        if report.losses:
            row["loss"] = sum(report.losses.values())
        row |= {f"{name}_loss": value for name, value in report.losses.items()}
        row |= {f"{name}_accuracy": value for name, value in report.accuracies.items()}
        row["grad_norm"] = report.grad_norm
    row["learning_rate"] = report.learning_rate
    if tokens_per_second is not None:
        row["tokens_per_second"] = round(tokens_per_second, 1)
    return row | {f"eval_{name}": value for name, value in evaluated.items()}
