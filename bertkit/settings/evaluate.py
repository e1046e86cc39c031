"""The settings of `bertkit evaluate`."""

from dataclasses import dataclass, field
from typing import Literal

from bertkit.base.errors import InputError
from bertkit.base.intervals import Seed, Size
from bertkit.base.text_files import JsonObject
from bertkit.base.typed_settings import refuse
from bertkit.data.data_config import AnySegments, MaskingConfig
from bertkit.launch.launch_config import LaunchConfig
from bertkit.settings.command import Command, CommandSettings
from bertkit.tasks.task_config import TaskConfig, unused_hub

PREPARED_SPLITS = ("auto", "train", "held_out", "all")
OF_ONE_FILE = ("auto", "dev", "validation")
_ONLY_PREPARED = ("segments", "masking", "seed", "max_sequences", "batch_sequences")


@dataclass(frozen=True)
class EvaluateSettings(CommandSettings):
    """`bertkit evaluate`."""

    model_dir: str
    task: TaskConfig | None
    task_changes: JsonObject  # changes to the model's own task, which is used if `task` is None
    data_dir: str | None
    split: str
    seed: Seed
    precision: Literal["fp32", "bf16", "fp16"]
    device: Literal["auto", "cpu", "cuda"]
    segments: AnySegments
    masking: MaskingConfig
    explicit_keys: tuple[str, ...] = field(metadata={"is_written": False})
    max_sequences: Size | None
    batch_sequences: Size
    launch: LaunchConfig

    def __post_init__(self) -> None:
        refuse(
            unused_hub(self.explicit_keys, self.data_dir),
            self.is_file
            and self.data_dir is None
            and self.split not in OF_ONE_FILE
            and f"split={self.split}: has no effect on a single file, of which all rows are measured; leave it out",
        )
        if self.task is not None:
            self.check_for_task(self.task)

    @property
    def is_file(self) -> bool:
        """Whether the user named a file, which is no split."""
        return "task.files.dev" in self.explicit_keys

    def check_for_task(self, task: TaskConfig) -> None:
        """Refuse settings that have no effect on the split of a task."""
        unused = [key for key in self.explicit_keys if key.split(".")[0] in _ONLY_PREPARED]
        if unused:
            raise InputError(
                f"{', '.join(unused)}: has no effect with task={task.name}; leave it out, or leave task= out to measure a "
                "prepared dataset"
            )

    def check_for_prepared(self) -> None:
        """Refuse settings that have no effect on a prepared dataset, and require `data_dir`."""
        hint = "" if self.data_dir is None else "; for the split of a task, set task="
        changed = ", ".join(f"task.{key}" for key in self.task_changes)
        refuse(
            self.data_dir is None and "missing value: set data_dir= to a prepared dataset",
            self.split not in PREPARED_SPLITS and f"split={self.split}: expected {' or '.join(PREPARED_SPLITS)}{hint}",
            changed and f"{changed}: has no effect here, since model_dir= is no fine-tuning run; set task= too",
        )


COMMAND = Command(
    "evaluate",
    EvaluateSettings,
    stage="bertkit.stages.evaluate",
    needs="model and a task's labelled split, or a prepared dataset",
    gives="metrics",
    positions=("model_dir", "data"),
    rows={"data": "task.files.dev"},
    returns="scores",
    short={
        "": "task.files.dev",
        "--text": "task.columns.text",
        "--pair": "task.columns.text_pair",
        "--label": "task.columns.label",
    },
)
