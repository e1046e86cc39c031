"""What `bertkit finetune` accepts."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Literal

from bertkit.errors import InputError
from bertkit.launch.config import LaunchConfig
from bertkit.settings.common import SkipConfig, seed_problems
from bertkit.tasks.config import TaskConfig
from bertkit.train.config import (
    BatchConfig,
    LogConfig,
    NumericsConfig,
    OptimizerConfig,
    ResumeConfig,
    SavingConfig,
    ScheduleConfig,
)

BASE_HIDDEN_SIZE = 768  # of the encoders that the published learning rates are for
MOST_RATE = 1e-3
FROZEN_LAYERS = re.compile(r"layers:(\d+)")


@dataclass(frozen=True, kw_only=True)
class EpochCheckpointConfig(SavingConfig):
    """When to save, and how many checkpoints to keep besides the best, which is always kept."""

    every_steps: int | Literal["epoch"]

    def __post_init__(self) -> None:
        _require_steps("checkpoint", self.every_steps)
        if self.keep_last < 1:
            raise InputError(f"checkpoint.keep_last={self.keep_last}: expected at least 1")


@dataclass(frozen=True)
class DevEvaluationConfig:
    """When to evaluate on the dev split, and after how many evaluations without a better score to stop."""

    every_steps: int | Literal["epoch"]
    patience: int | None

    def __post_init__(self) -> None:
        _require_steps("evaluation", self.every_steps)
        if self.patience is not None and self.patience < 1:
            raise InputError(f"evaluation.patience={self.patience}: expected null or at least 1")


def _require_steps(group: str, every_steps: int | str) -> None:
    if every_steps != "epoch" and int(every_steps) < 1:
        raise InputError(f"{group}.every_steps={every_steps}: expected epoch or at least 1")


@dataclass(frozen=True)
class FinetuneSettings:
    """`bertkit finetune`."""

    task: TaskConfig
    model_dir: str
    data_dir: str | None
    output_dir: str
    num_epochs: float
    seed: int
    precision: Literal["fp32", "bf16"]
    kernels: Literal["auto", "plain"]
    compile: bool | Literal["auto"]
    device: Literal["auto", "cpu", "cuda"]
    reproducibility: Literal["default", "strict"]
    freeze: str | None
    reinit_layers: int
    layer_decay: float
    class_weights: Literal["balanced"] | tuple[float, ...] | None
    max_train_examples: int | None
    dev_share: float | None
    batch: BatchConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    checkpoint: EpochCheckpointConfig
    evaluation: DevEvaluationConfig
    log: LogConfig
    numerics: NumericsConfig
    data: SkipConfig
    resume: ResumeConfig
    launch: LaunchConfig

    def __post_init__(self) -> None:
        problems = seed_problems(self.seed)
        if not self.num_epochs > 0:
            problems.append(f"num_epochs={self.num_epochs}: expected a positive number")
        if self.freeze not in (None, "embeddings", "encoder") and not FROZEN_LAYERS.fullmatch(self.freeze or ""):
            problems.append(f"freeze={self.freeze}: expected null, embeddings, encoder, or layers:K such as layers:6")
        if self.reinit_layers < 0:
            problems.append(f"reinit_layers={self.reinit_layers}: expected 0 or more")
        if not 0 < self.layer_decay <= 1:
            problems.append(f"layer_decay={self.layer_decay}: expected a number above 0 and up to 1")
        if self.max_train_examples is not None and self.max_train_examples < 1:
            problems.append(f"max_train_examples={self.max_train_examples}: expected null or at least 1")
        if self.dev_share is not None and not 0 < self.dev_share < 1:
            problems.append(f"dev_share={self.dev_share:g}: expected null or a number between 0 and 1")
        problems += self._class_weight_problems()
        if problems:
            raise InputError(*problems)

    def _class_weight_problems(self) -> list[str]:
        weights = self.class_weights
        if weights is None:
            return []
        if self.task.labels is None or self.task.is_regression:
            return [f"class_weights has no effect without labels by name, as in task={self.task.name}; leave it out"]
        if self.task.multi_label:
            return ["class_weights has no effect with task.multi_label=true; leave it out"]
        if weights != "balanced" and not all(isinstance(weight, float) and weight > 0 for weight in weights):
            return [f"class_weights={list(weights)}: expected balanced, or a positive number for each label"]
        return []

    def frozen_depth(self, num_layers: int) -> int:
        """Give how many of the embeddings (1) and layers (1 each) are frozen, from below.

        Raises:
            InputError: more layers than there are.
        """
        match = FROZEN_LAYERS.fullmatch(self.freeze or "")
        if match is None:
            return {None: 0, "embeddings": 1, "encoder": num_layers + 1}[self.freeze]
        if int(match.group(1)) > num_layers:
            raise InputError(
                f"freeze={self.freeze}: the model has {num_layers} layers; freeze at most layers:{num_layers}"
            )
        return int(match.group(1)) + 1

    def rate_for(self, hidden_size: int) -> float:
        """Give the peak learning rate that auto stands for; conf/finetune.yaml says why."""
        published = self.task.recipe.peak_learning_rate
        if hidden_size >= BASE_HIDDEN_SIZE:
            return published
        return min(MOST_RATE, float(f"{published * (BASE_HIDDEN_SIZE / hidden_size) ** 2:.1g}"))

    def with_rate(self, rate: float) -> FinetuneSettings:
        """Take a peak learning rate where it is auto."""
        if self.optimizer.peak_learning_rate != "auto":
            return self
        return dataclasses.replace(self, optimizer=dataclasses.replace(self.optimizer, peak_learning_rate=rate))

    def warmup_of(self, steps: int) -> float:
        """Give the warm-up of a run of `steps` steps; left to itself the task's share of them, in whole steps."""
        if self.schedule.warmup_steps == self.schedule.warmup_share == "auto":
            return int(self.task.recipe.warmup_share * steps)
        return self.schedule.warmup_of(steps)
