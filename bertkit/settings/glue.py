"""What `bertkit glue` accepts."""

from __future__ import annotations

from dataclasses import dataclass

from bertkit.config import nearest
from bertkit.errors import InputError
from bertkit.settings.common import seed_problems
from bertkit.settings.finetune import FinetuneSettings

GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax")


@dataclass(frozen=True)
class GlueSettings:
    """`bertkit glue`.

    Attributes:
        runs: the settings of fine-tuning on each task, in the order of `tasks`; each seed puts in its own.
    """

    model_dir: str | None
    data_dir: str | None
    output_dir: str | None
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    check: str | None
    runs: tuple[FinetuneSettings, ...]

    def __post_init__(self) -> None:
        problems = []
        if self.check is None:
            problems += [
                f"missing value: set {name}=" for name in ("model_dir", "output_dir") if not getattr(self, name)
            ]
        else:
            problems += [
                f"{name}={value}: has no effect with check=; leave it out"
                for name in ("model_dir", "output_dir")
                if (value := getattr(self, name))
            ]
        for task in self.tasks:
            if task not in GLUE_TASKS:
                hint = nearest(task, GLUE_TASKS) or f"; expected some of {', '.join(GLUE_TASKS)}"
                problems.append(f"tasks: '{task}' is no task of GLUE{hint}")
        for name, values in (("tasks", self.tasks), ("seeds", self.seeds)):
            if not values or len(set(values)) < len(values):
                problems.append(f"{name}={list(values)}: expected at least one, each of them once")
        if "ax" in self.tasks and "mnli" not in self.tasks:
            problems.append("tasks: ax is answered by the model of mnli; add mnli, or leave ax out")
        for seed in self.seeds:
            problems += seed_problems(seed)
        if problems:
            raise InputError(*problems)
