"""Stage: fine-tune a model on a task, and score it on the dev split.

1. Plan the run: read the files, make the features and load the model; errors up to here leave no files.
2. Train the job in its directory; at the end of every epoch it scores the dev rows, and the weights with the best score are kept.
"""

from bertkit.jobs.finetuning_plan import plan_finetuning
from bertkit.run.trainer import run_steps
from bertkit.settings.finetune import FinetuneSettings
from bertkit.tasks.reading.training_data import TrainingData


def run(settings: FinetuneSettings, read: TrainingData | None = None) -> None:
    """Fine-tune or resume a run that is not finished; the errors are those of `run_steps`, and for bad input.

    `read` has the examples, if a check has read them already.
    """
    for _ in run_steps(plan_finetuning(settings, read)):
        pass
