"""What several commands accept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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


def seed_problems(seed: int) -> list[str]:
    """Say what is wrong with a seed, in a list of nothing or one line."""
    return [] if 0 <= seed < 2**63 else [f"seed={seed}: expected 0 to {2**63 - 1}"]


@dataclass(frozen=True)
class SkipConfig:
    """Steps whose batches are left out."""

    skip_steps: tuple[int, ...]

    def __post_init__(self) -> None:
        wrong = [step for step in self.skip_steps if step < 1]
        if wrong:
            raise InputError(f"data.skip_steps={list(self.skip_steps)}: no step {wrong[0]}; steps count from 1")


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
