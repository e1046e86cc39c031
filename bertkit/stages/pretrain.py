"""Stage: pretrain BERT on a prepared dataset; the result is a model that `transformers` loads.

1. Plan the run: check that data, model and settings fit together; errors up to here leave no files.
2. Train the job in its directory: a new one, or one with the same run, which resumes from its newest valid checkpoint.
"""

from bertkit.jobs.pretraining_plan import plan_pretraining
from bertkit.run.trainer import run_steps
from bertkit.settings.pretrain import PretrainSettings


def run(settings: PretrainSettings) -> None:
    """Pretrain or resume a run that is not finished; the errors are those of `run_steps`, and for bad input."""
    for _ in run_steps(plan_pretraining(settings)):
        pass
