"""The steps of a job from Python: `fit`.

    data = bertkit.open_dataset("runs/quickstart/data")
    model = bertkit.new_model("modern_tiny", data.tokenizer)
    job = bertkit.Pretraining(model, data, bertkit.MaskedLM(probability=0.3), batch_sequences=16, max_seq_length=64)
    for report in bertkit.fit(job, steps=200, learning_rate=1e-3):
        print(report.step, report.loss)
    print(job.evaluate())
    run = bertkit.fit(job, steps=200, learning_rate=1e-3, directory="runs/mine").run()

The last line makes it a run, which the same call resumes after a stop.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from bertkit.base.hub_ids import path_of
from bertkit.base.processors import check_precision
from bertkit.base.typed_settings import build, refuse, unused
from bertkit.functions import Run
from bertkit.jobs.plain import plain_steps
from bertkit.launch.world import world_from_environment
from bertkit.run.directory import read_scores
from bertkit.run.job import AnyJob
from bertkit.run.opening import check
from bertkit.run.trainer import run_steps
from bertkit.settings.pretrain import PretrainSettings
from bertkit.settings.reading.compose import compose_values
from bertkit.train.accelerator import make_accelerator
from bertkit.train.step_report import StepReport
from bertkit.training.finetuning import Finetuning
from bertkit.training.from_python import NOWHERE
from bertkit.training.pretraining import Pretraining


class Fit(Iterator[StepReport]):
    """The steps of a training: an iterator of their reports."""

    def __init__(self, job: AnyJob, reports: Iterator[StepReport]) -> None:
        self.job, self._reports = job, reports

    def __next__(self) -> StepReport:
        """Train a step, and return its report."""
        try:
            return next(self._reports)
        except BaseException:
            self.job.start.trained.eval()
            raise

    def run(self) -> Run:
        """Train to the end; return the directory, its model and the final metrics."""
        for _ in self:
            pass
        place = self.job.directory
        return Run(None, None, {}) if place is None else Run(place, place / "model", read_scores(place))


def fit(
    job: Pretraining | Finetuning,
    steps: int,
    learning_rate: float,
    *,
    directory: str | os.PathLike[str] | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    optimizer: Mapping[str, object] | None = None,
    schedule: str | Mapping[str, object] = "linear",
) -> Fit:
    """Train the model of a job, in place, and yield a report after each step; `.run()` goes through to the end.

    Without a directory it is training, nothing else. With one it is a run: what `bertkit pretrain` and `bertkit finetune` write is there
    at the end, the same call with the same job resumes it after a stop, and its progress is printed.

    The model is in training mode and on the device until the iterator ends, then in evaluation mode. Under torchrun all processes
    train together. `report.measured` has the losses, accuracies and the norm of the gradient.

    Args:
        job: what is trained.
        steps: the number of steps.
        learning_rate: the peak of the schedule.
        directory: of the run; None to write nothing.
        device: "auto" uses CUDA if it is available.
        optimizer: settings of `optimizer.`, such as {"beta2": 0.98, "bias_correction": True}; the others are those of BERT.
        schedule: an option of `schedule=`, or settings of it.

    Raises:
        InputError: an argument is wrong, or the directory holds another run.
        NumericsError: a loss or the gradient is not finite in five steps in a row.
        StoppedError: a signal stopped the run in a directory.
    """
    own = {"model": "base", "steps": steps, "precision": job.settings.precision, "device": device, "schedule": schedule}
    own |= {"optimizer": {**(optimizer or {}), "peak_learning_rate": learning_rate}}
    chosen = build(PretrainSettings, compose_values("pretrain", {**NOWHERE, **own}))
    world, place = world_from_environment(), None if directory is None else Path(path_of(directory, "directory"))
    usual = {"compile": "auto", "recompute": "none"}
    rows = [(name, place is None, "without directory=", default) for name, default in usual.items()]
    refuse(unused(job.settings, "", *rows))
    accelerator = make_accelerator(device, world.size)
    check_precision(job.settings.precision, accelerator.device.type)
    made = job.with_course(steps, chosen, place)
    made.directory = place
    made.start = job.start if place is None else job.begun_in(place)
    made.on(accelerator)
    if place is None:
        return Fit(made, plain_steps(made))
    check(place, made.identity, made.rules, made.settings.resume.allow)
    if world.is_main:
        job.keep_in(place)
    return Fit(made, run_steps(made))
