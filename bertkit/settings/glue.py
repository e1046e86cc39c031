"""The settings of `bertkit glue`."""

from collections.abc import Sequence
from dataclasses import dataclass

from bertkit.base.errors import nearest
from bertkit.base.intervals import Seed
from bertkit.base.typed_settings import refuse, unused
from bertkit.launch.launch_config import LaunchConfig
from bertkit.settings.command import Command, CommandSettings
from bertkit.settings.finetune import FinetuneSettings

GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax")


@dataclass(frozen=True)
class GlueSettings(CommandSettings):
    """`bertkit glue`."""

    model_dir: str | None
    data_dir: str | None
    output_dir: str | None
    tasks: tuple[str, ...]
    seeds: tuple[Seed, ...]
    together: bool  # one encoder for all tasks
    check: str | None
    runs: tuple[FinetuneSettings, ...]  # of each task; the stage sets the seed and the directory

    def __post_init__(self) -> None:
        places, lists = ("model_dir", "output_dir"), {"tasks": self.tasks, "seeds": self.seeds}
        refuse(
            self.check is None and [f"missing value: set {name}=" for name in places if not vars(self)[name]],
            unused(self, "", *((name, self.check is not None, "with check=") for name in (*places, "together"))),
            [
                f"tasks: '{task}' is not a GLUE task"
                + (nearest(task, GLUE_TASKS) or f"; expected one or more of {', '.join(GLUE_TASKS)}")
                for task in self.tasks
                if task not in GLUE_TASKS
            ],
            [
                f"{name}={list(values)}: expected at least one value, and none twice"
                for name, values in lists.items()
                if not values or len(set(values)) < len(values)
            ],
            self.together
            and len(self.trained) < 2
            and "together=true: expected two tasks or more, besides ax, which has no training data",
            [
                f"{shown}: not with together=true; leave one of them out"
                for run in (self.trained[:1] if self.together else ())
                for shown, is_set in (
                    ("calibrate=true", run.calibrate),
                    ("overwrite=true", run.overwrite),
                    (f"objective={run.objective}", run.objective != "auto"),
                )
                if is_set
            ],
            "ax" in self.tasks
            and "mnli" not in self.tasks
            and "tasks: ax is predicted with the model for mnli; add mnli, or leave ax out",
        )

    @property
    def trained(self) -> list[FinetuneSettings]:
        """The settings of the tasks that have training data."""
        return [run for run in self.runs if run.task.name != "ax"]

    @property
    def worker_launch(self) -> LaunchConfig | None:
        """How the processes of a run on all tasks are started; None where each run has processes of its own."""
        return self.trained[0].launch if self.together and self.trained else None

    @property
    def distributed(self) -> Sequence[CommandSettings]:
        """The settings of each run."""
        return self.runs


COMMAND = Command(
    "glue",
    GlueSettings,
    stage="bertkit.stages.glue",
    needs="any model and GLUE's files",
    gives="a model for each task and seed, a table, a submission",
    positions=("model_dir",),
    is_training=True,
    scores_file="glue.json",
    of_runs="finetune",
)
