"""Settings of the training loop."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bertkit.config import nearest
from bertkit.errors import InputError


def _require_positive(group: str, config: object, *names: str, other_problems: Sequence[str] = ()) -> None:
    problems = [
        f"{group}.{name}={getattr(config, name)}: expected a positive number"
        for name in names
        if not getattr(config, name) > 0
    ]
    problems += other_problems
    if problems:
        raise InputError(*problems)


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW or LAMB, and gradient clipping."""

    name: Literal["adamw", "lamb"]
    peak_learning_rate: float | Literal["auto"]
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    bias_correction: bool
    max_grad_norm: float

    def __post_init__(self) -> None:
        problems = [
            f"optimizer.{name}={getattr(self, name)}: expected a number from 0 to below 1"
            for name in ("beta1", "beta2")
            if not 0 <= getattr(self, name) < 1
        ]
        if not self.weight_decay >= 0:
            problems.append(f"optimizer.weight_decay={self.weight_decay}: expected 0 or more")
        if self.peak_learning_rate != "auto" and not self.peak_learning_rate > 0:
            problems.append(f"optimizer.peak_learning_rate={self.peak_learning_rate}: expected a positive number")
        _require_positive("optimizer", self, "epsilon", "max_grad_norm", other_problems=problems)

    @property
    def peak(self) -> float:
        """The peak learning rate of a run that has begun."""
        assert self.peak_learning_rate != "auto", "chosen before a run begins"
        return self.peak_learning_rate


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over the steps: a linear warm-up, then a decay.

    By a power of the steps that are left, or, `inverse`, of warm-up / step: that of Vaswani et al. 2017 has no end.
    """

    power: float
    decay_from: Literal["warmup_end", "start"]
    warmup_steps: int | Literal["auto"]
    warmup_share: float | Literal["auto"]
    decay: Literal["polynomial", "inverse"] = "polynomial"

    def __post_init__(self) -> None:
        problems = []
        if not 0 <= self.power < math.inf:
            problems.append(
                f"schedule.power={self.power}: expected 0 (constant), 1 (linear) or another positive number"
            )
        if self.power == 0 and self.decay_from == "start":
            problems.append("schedule.decay_from=start has no effect with schedule.power=0; leave it at warmup_end")
        if self.decay == "inverse" and self.decay_from == "start":
            problems.append(
                "schedule.decay_from=start has no effect with schedule.decay=inverse; leave it at warmup_end"
            )
        if self.warmup_steps != "auto" and self.warmup_steps < 0:
            problems.append(f"schedule.warmup_steps={self.warmup_steps}: expected auto or 0 or more")
        if self.warmup_share != "auto" and not 0 <= self.warmup_share <= 1:
            problems.append(f"schedule.warmup_share={self.warmup_share}: expected auto or a share of the steps, 0 to 1")
        if "auto" not in (self.warmup_steps, self.warmup_share):
            problems.append("schedule.warmup_steps and schedule.warmup_share are both set; set one of them")
        if problems:
            raise InputError(*problems)

    def warmup_of(self, steps: int) -> float:
        """Give the warm-up of a run of `steps` steps, in steps, a fraction where it is set as a share.

        Left to itself it is a hundredth (Devlin et al. 2019, A.2), in whole steps.
        """
        if self.warmup_share != "auto":
            return self.warmup_share * steps
        return steps // 100 if self.warmup_steps == "auto" else self.warmup_steps


@dataclass(frozen=True)
class BatchConfig:
    """The global batch, and how much of it one forward pass takes."""

    sequences: int
    micro_sequences: int | Literal["auto"]
    micro_tokens: int | Literal["auto"]

    def __post_init__(self) -> None:
        _require_positive("batch", self, "sequences")
        sizes = [size for size in (self.micro_sequences, self.micro_tokens) if size != "auto"]
        if len(sizes) == 2:
            raise InputError("batch.micro_sequences and batch.micro_tokens are both set; set one of them")
        if any(size < 1 for size in sizes):
            raise InputError("batch.micro_sequences and batch.micro_tokens: expected auto or at least 1")


@dataclass(frozen=True)
class NumericsConfig:
    """How many steps in a row may be skipped for a loss or gradient that is not finite."""

    max_skips_in_a_row: int

    def __post_init__(self) -> None:
        _require_positive("numerics", self, "max_skips_in_a_row")


@dataclass(frozen=True, kw_only=True)
class SavingConfig:
    """How checkpoints are saved."""

    keep_last: int  # how many are kept, besides the best
    background: bool  # a thread writes a copy of the tensors while training goes on
    on_save_error: Literal["stop", "continue"]  # what to do when the disk is full or fails


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(SavingConfig):
    """When to save, and what to keep."""

    every_steps: int
    keep_best: bool

    def __post_init__(self) -> None:
        _require_positive("checkpoint", self, "every_steps", "keep_last")


@dataclass(frozen=True)
class ResumeConfig:
    """Which fixed settings may change when a run is resumed, by name."""

    allow: tuple[str, ...]


TRACKERS = ("aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "tensorboard", "trackio", "wandb")
LINES_A_RUN = 100  # about so many: enough for a curve, few enough to read


@dataclass(frozen=True)
class LogConfig:
    """When to write a line, and who gets it beside the file: some of Accelerate's trackers."""

    every_steps: int | Literal["auto"]
    trackers: tuple[str, ...]

    def __post_init__(self) -> None:
        problems = []
        if self.every_steps != "auto" and self.every_steps < 1:
            problems.append(f"log.every_steps={self.every_steps}: expected auto or at least 1")
        for name in self.trackers:
            if name not in TRACKERS:
                problems.append(f"log.trackers: unknown {name}{nearest(name, TRACKERS)} (one of {', '.join(TRACKERS)})")
            elif importlib.util.find_spec(name) is None:
                problems.append(f"log.trackers: {name} is not installed; pip install {name}, or leave it out")
        if problems:
            raise InputError(*problems)

    def every_of(self, steps: int) -> int:
        """Give the steps from one line to the next in a run of `steps`; auto is the round number that suits it best."""
        if self.every_steps != "auto":
            return self.every_steps
        power = int(10 ** math.floor(math.log10(max(1, steps / LINES_A_RUN))))
        return min((power, 2 * power, 5 * power, 10 * power), key=lambda every: abs(steps / every - LINES_A_RUN))


@dataclass(frozen=True)
class EvaluationConfig:
    """When to evaluate on the held-out documents, and on how many sequences at most."""

    every_steps: int
    max_sequences: int

    def __post_init__(self) -> None:
        _require_positive("evaluation", self, "every_steps", "max_sequences")
