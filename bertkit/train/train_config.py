"""Settings for the training loop."""

import importlib.util
import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from bertkit.base import plugins
from bertkit.base.annotations import OptionOf
from bertkit.base.errors import nearest
from bertkit.base.intervals import Count, NotNegative, Positive, Share, ShareBelow1, Size
from bertkit.base.typed_settings import options_of, refuse, unused


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW or LAMB, and gradient clipping."""

    name: Annotated[str, OptionOf("optimizer")]
    peak_learning_rate: Positive | Literal["auto"]
    beta1: ShareBelow1
    beta2: ShareBelow1
    epsilon: Positive
    weight_decay: NotNegative
    bias_correction: bool
    max_grad_norm: Positive
    options: dict[str, object] = field(default_factory=dict, hash=False, metadata=options_of("optimizer", "name"))

    @property
    def peak(self) -> float:
        """The peak learning rate, after `auto` is resolved."""
        assert self.peak_learning_rate != "auto", "resolved before a run begins"
        return self.peak_learning_rate


@dataclass(frozen=True)
class ScheduleConfig:
    """Learning rate schedule: linear warm-up, then decay (train/schedule.py)."""

    power: NotNegative
    decay_from: Literal["warmup_end", "start"]
    warmup_steps: Count | Literal["auto"]
    warmup_share: Share | Literal["auto"]
    decay: Annotated[str, OptionOf("schedule")] = "polynomial"
    options: dict[str, object] = field(default_factory=dict, hash=False, metadata=options_of("schedule", "decay"))

    def __post_init__(self) -> None:
        idle = [name for name in ("power", "decay_from") if not plugins.takes("schedule", self.decay, name)]
        refuse(
            unused(
                self,
                "schedule.",
                ("decay_from", self.power == 0, "with schedule.power=0", "warmup_end"),
                *((name, True, f"with schedule.decay={self.decay}", 1.0, "warmup_end") for name in idle),
            ),
            "auto" not in (self.warmup_steps, self.warmup_share)
            and "schedule.warmup_steps and schedule.warmup_share are both set; set one of them",
        )

    def warmup_of(self, steps: int) -> float:
        """Return the number of warm-up steps, not always whole; auto is 1 % of the steps (Devlin et al. 2019, A.2)."""
        if self.warmup_share != "auto":
            return self.warmup_share * steps
        return steps // 100 if self.warmup_steps == "auto" else self.warmup_steps


@dataclass(frozen=True)
class BatchConfig:
    """The size of the global batch, and of a micro-batch, which is one forward pass."""

    sequences: Size
    micro_sequences: Size | Literal["auto"]
    micro_tokens: Size | Literal["auto"]

    def __post_init__(self) -> None:
        refuse(
            "auto" not in (self.micro_sequences, self.micro_tokens)
            and "batch.micro_sequences and batch.micro_tokens are both set; set one of them",
        )


@dataclass(frozen=True)
class NumericsConfig:
    """How many steps in a row may be skipped because a loss or gradient is not finite."""

    max_skips_in_a_row: Size


@dataclass(frozen=True, kw_only=True)
class SavingConfig:
    """How checkpoints are saved."""

    keep_last: Size  # in addition to the best checkpoint
    background: bool  # whether a thread writes a copy of the tensors while training continues
    on_save_error: Literal["stop", "continue"]  # when the disk is full or fails


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(SavingConfig):
    """When to save, and what to keep."""

    every_steps: Size
    keep_best: bool


@dataclass(frozen=True)
class ResumeConfig:
    """The names of fixed settings that may change when a run is resumed."""

    allow: tuple[str, ...]


TRACKERS = ("aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "tensorboard", "trackio", "wandb")
SHORT = 5000  # steps
ROWS_PER_RUN = 100  # approximate, for log.every_steps=auto: enough for a curve, few enough to read


@dataclass(frozen=True)
class LogConfig:
    """When to write a row of metrics.jsonl, and Accelerate's trackers that get the rows."""

    every_steps: Size | Literal["auto"]
    trackers: tuple[str, ...]

    def __post_init__(self) -> None:
        refuse(
            [
                f"log.trackers: unknown {name}{nearest(name, TRACKERS)} (one of {', '.join(TRACKERS)})"
                if name not in TRACKERS
                else f"log.trackers: {name} is not installed; pip install {name}, or leave it out"
                for name in self.trackers
                if name not in TRACKERS or importlib.util.find_spec(name) is None
            ],
        )

    def every_of(self, steps: int) -> int:
        """Return the number of steps from one row to the next; auto is a round number for about ROWS_PER_RUN rows."""
        if self.every_steps != "auto":
            return self.every_steps
        power = int(10 ** math.floor(math.log10(max(1, steps / ROWS_PER_RUN))))
        return min((power, 2 * power, 5 * power, 10 * power), key=lambda every: abs(steps / every - ROWS_PER_RUN))

    def prints(self, step: int, steps: int) -> bool:
        """Return whether the row of a step is printed too: with auto, about a row in ten of a run of up to SHORT steps."""
        every = self.every_of(steps)
        if self.every_steps == "auto" and steps <= SHORT:
            every *= max(1, round(steps / 10 / every))
        return step in (1, steps) or step % every == 0


@dataclass(frozen=True)
class EvaluationConfig:
    """When to evaluate on the held-out documents, and on at most how many sequences."""

    every_steps: Size
    max_sequences: Size
