"""Settings that several commands share, and how to find those of a command."""

import importlib
from dataclasses import dataclass
from typing import Any, Literal

from bertkit.base.errors import InputError
from bertkit.launch.launch_config import LaunchConfig
from bertkit.train.train_config import (
    BatchConfig,
    LogConfig,
    NumericsConfig,
    OptimizerConfig,
    ResumeConfig,
    ScheduleConfig,
)

SEED_RANGE = f"[0, {2**63})"
VERBATIM = {"is_verbatim": True}  # metadata of a setting whose text is passed on verbatim, bypassing Hydra
WORDS = {"is_words": True}  # metadata of a setting that takes the words without a key, as in `compare runs/a runs/b`


def schema_of(command: str) -> Any:
    """Import the dataclass of a command's settings, such as `PretrainSettings` from `bertkit.settings.pretrain`."""
    return getattr(importlib.import_module(f"bertkit.settings.{command}"), f"{command.capitalize()}Settings")


@dataclass(frozen=True)
class SkipConfig:
    """Steps whose batches are left out."""

    skip_steps: tuple[int, ...]

    def __post_init__(self) -> None:
        first = min(self.skip_steps, default=1)
        if first < 1:
            raise InputError(f"data.skip_steps={list(self.skip_steps)}: no step {first}; steps count from 1")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """What pretraining and fine-tuning share."""

    model_dir: str | None
    output_dir: str
    seed: int
    precision: Literal["fp32", "bf16"]
    kernels: Literal["auto", "plain"]
    compile: bool | Literal["auto"]
    device: Literal["auto", "cpu", "cuda"]
    reproducibility: Literal["default", "strict"]
    batch: BatchConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    log: LogConfig
    numerics: NumericsConfig
    data: SkipConfig
    resume: ResumeConfig
    launch: LaunchConfig
    plugins: tuple[str, ...]  # modules


@dataclass(frozen=True, kw_only=True)
class InputSettings:
    """What the commands share that read inputs for a model.

    Attributes:
        input: a file, or - for standard input.
        output: a file, or - for standard output.
    """

    model_dir: str | None
    input: str | None
    output: str
    overwrite: bool
    device: Literal["auto", "cpu", "cuda"]

    def input_problems(self, alternative: str | None = None) -> list[str]:
        """Say what is wrong with the input and the output; the setting `alternative` can replace the input."""
        problems = []
        if alternative is not None:
            is_set = getattr(self, alternative) is not None
            if self.input is None and not is_set:
                problems.append(f"missing value: set {alternative}=, or input=")
            if self.input is not None and is_set:
                problems.append(f"input= and {alternative}=: set one of the two")
        if self.output != "-" and self.output == self.input:
            problems.append(f"output={self.output} is the input; choose another file")
        return problems
