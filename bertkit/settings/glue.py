"""The settings of `bertkit glue`."""

from collections.abc import Sequence
from dataclasses import dataclass

from bertkit.base.errors import nearest
from bertkit.base.intervals import Seed
from bertkit.base.typed_settings import refuse, unused
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
    check: str | None
    runs: tuple[FinetuneSettings, ...]  # of each task; the stage sets the seed and the directory

    def __post_init__(self) -> None:
        places, lists = ("model_dir", "output_dir"), {"tasks": self.tasks, "seeds": self.seeds}
        refuse(
            self.check is None and [f"missing value: set {name}=" for name in places if not vars(self)[name]],
            unused(self, "", *((name, self.check is not None, "with check=") for name in places)),
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
            "ax" in self.tasks
            and "mnli" not in self.tasks
            and "tasks: ax is predicted with the model for mnli; add mnli, or leave ax out",
        )

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
