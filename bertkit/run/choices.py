"""The automatic choices of a run: micro-batches, kernels, compiled layers. A run that is resumed keeps its own."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from bertkit.base.errors import InputError
from bertkit.kernels import fast
from bertkit.kernels.fast import NAMES
from bertkit.run.reproducibility import should_compile
from bertkit.run.resume_rules import RunSettings
from bertkit.tasks.batching import Cut
from bertkit.train.accelerator import Accelerator
from bertkit.train.micro_batches import check_num_processes, num_parts_for


@dataclass(frozen=True)
class Choices:
    """The automatic choices at the first start of a run; a later start keeps them, unless `settings` has changed."""

    cut: tuple[int, ...] | Cut  # how micro-batches are made: in pretraining the number of sequences, for each phase
    num_parts: int | None  # as in `train.loop.Course`
    kernels: tuple[Literal[NAMES], ...]  # type: ignore[valid-type]
    is_compiled: bool  # whether the layers run as compiled graphs, with different dropout
    settings: dict[str, Any]  # the settings on which the choices depend; plain values

    def __post_init__(self) -> None:
        if isinstance(self.cut, tuple) and min(self.cut, default=0) < 1:
            raise InputError(f"chosen.cut={list(self.cut)}: expected positive numbers of sequences")

    @property
    def micro_sequences(self) -> tuple[int, ...]:
        """The number of sequences in a micro-batch, for each phase of pretraining."""
        assert isinstance(self.cut, tuple), "only for pretraining"
        return self.cut

    @property
    def is_strict(self) -> bool:
        """Whether gradients are summed in a fixed order (reproducibility=strict)."""
        return self.num_parts is not None


def make_choices(
    settings: RunSettings, accelerator: Accelerator, cut: tuple[int, ...] | Cut, min_micro_batches: int, **more: object
) -> Choices:
    """Choose kernels, compilation and the parts of a batch, for steps with at least `min_micro_batches` micro-batches.

    `more` has the values, other than the batch settings, on which `cut` depends, such as `lengths`. Raises InputError if there
    are too many processes for a batch, or a tool that compile=true needs is missing.
    """
    num_parts = num_parts_for(min_micro_batches) if settings.reproducibility == "strict" else None
    check_num_processes(min_micro_batches, num_parts, accelerator.num_processes)
    return Choices(
        cut=cut,
        num_parts=num_parts,
        kernels=fast.choose(settings.kernels).names,
        is_compiled=should_compile(settings.compile, accelerator.device.type),
        settings={
            "batch": dataclasses.asdict(settings.batch),
            "kernels": settings.kernels,
            "compile": settings.compile,
            "reproducibility": settings.reproducibility,
            **more,
        },
    )
