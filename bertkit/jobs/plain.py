"""Training of a job without a directory: no file, no output, no signal handler. `run.trainer.run_steps` is the same in a directory."""

from collections.abc import Iterator

from bertkit.kernels.fast import FastWays
from bertkit.model.layers import freeze_below
from bertkit.run.job import AnyJob
from bertkit.run.reproducibility import make_sums_deterministic
from bertkit.train.loop import Learner, train
from bertkit.train.loss_scale import LossScale
from bertkit.train.optimizer import make_optimizer, parameter_groups
from bertkit.train.step_report import StepReport


def plain_steps(job: AnyJob) -> Iterator[StepReport]:
    """Train a job, and yield a report after each step."""
    accelerator, settings, model = job.accelerator, job.settings, job.start.trained
    if job.choices.is_strict:
        make_sums_deterministic(accelerator.device)
    model.use(FastWays.of(job.choices.kernels))
    model.train()
    freeze_below(job.model, job.start.frozen_depth)
    prepared = accelerator.prepare_model(model, device_placement=True)
    groups = parameter_groups(model, settings.optimizer.weight_decay, job.start.rate_scale_of)
    learner = Learner(
        accelerator,
        prepared,
        make_optimizer(groups, settings.optimizer),
        job.losses,
        LossScale.of(settings.precision, accelerator.device),
        job.choices.num_parts,
        job.objective.counts,
    )
    for report in train(learner, job.course(job.prepared)):
        report.check_skips(settings.numerics.max_skips_in_a_row)
        yield report
