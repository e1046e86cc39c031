"""What this machine has of memory, and the lines that say whether a run will fit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bertkit.run.memory_plan import StepShape, largest_micro_batch, plan_evaluation, plan_step

CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")  # version 2


@dataclass(frozen=True)
class Memory:
    """Of this process's device, in bytes.

    Attributes:
        held: by this process now.
        free: what it may still take.
        total: of the machine or its container, or of the GPU.
    """

    held: int
    free: int
    total: int


@dataclass(frozen=True)
class Planned:
    """A part of a run: steps of one shape.

    Attributes:
        shape: of a step.
        num_tokens: of its largest micro-batch.
        evaluated_tokens: of the largest batch that is evaluated; 0 for none.
        setting: the name and value of the setting that a micro-batch's size comes from.
        tokens_of_setting: that one of it stands for.
        saves_copies: whether checkpoints are written from copies, while training goes on.
    """

    shape: StepShape
    num_tokens: int
    evaluated_tokens: int
    setting: tuple[str, int]
    tokens_of_setting: int
    saves_copies: bool

    @property
    def needed(self) -> int:
        """The bytes of the part beyond what a process holds that has the model and the optimizer."""
        plan = plan_step(self.shape, self.num_tokens)
        evaluation = plan_evaluation(self.shape, self.evaluated_tokens) if self.evaluated_tokens else 0
        return max(plan.of_step, evaluation) + self.copies

    @property
    def copies(self) -> int:
        """The bytes that are copied to be saved."""
        plan = plan_step(self.shape, 0)
        return (plan.weights + plan.moments) if self.saves_copies else 0


def memory_here(device: str) -> Memory | None:
    """Read what the device has; None where the system does not say it."""
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        held = torch.cuda.memory_allocated()
        return Memory(held, free + torch.cuda.memory_reserved() - held, total)
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        kilobytes = {
            line.split(":")[0]: int(line.split()[1])
            for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        }
    except (OSError, ValueError, IndexError):
        return None
    total, free = kilobytes["MemTotal"] * 1024, kilobytes["MemAvailable"] * 1024
    for group in _cgroups():
        limit = _number_in(group / "memory.max")
        if limit is not None:
            used = (_number_in(group / "memory.current") or 0) - _cached(group)
            total, free = min(total, limit), min(free, limit - used)
    return Memory(pages * os.sysconf("SC_PAGE_SIZE"), free, total)


def processes_here(device: str) -> int:
    """Say how many processes share the memory: those of this machine on a CPU; a GPU has one."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if device == "cpu" else 1


def memory_lines(parts: Sequence[Planned], num_here: int) -> list[str]:
    """Say what the run will need at most, and warn where that is more than is free.

    Args:
        parts: of the run; the one that needs most counts.
        num_here: processes that share the memory; a GPU has one.
    """
    here = memory_here(parts[0].shape.device)
    if here is None:
        return []
    part = max(parts, key=lambda each: each.needed)
    each = "" if num_here == 1 else f" in each of {num_here} processes"
    needed, free = part.needed, here.free // num_here
    lines = [f"expected peak memory {_gigabytes(here.held + needed)}{each} of {_gigabytes(here.total)} here"]
    if needed > free:
        name, value = part.setting
        fitting = (
            largest_micro_batch(part.shape, free - part.copies) * part.shape.max_seq_length // part.tokens_of_setting
        )
        advice = f"{name}={fitting} would fit" if 0 < fitting < value else "take a smaller model or a larger machine"
        lines.append(
            f"warning: {name}={value} needs {_gigabytes(needed)} more{each}, {_gigabytes(free)} are free; {advice}"
        )
    return lines


def _number_in(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None  # not there, or "max"


def _cgroups() -> list[Path]:
    """The control groups of this process, such as a container, a Slurm job or a systemd slice: its own and those around it."""
    try:
        lines = OWN_CGROUP.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
    own = CGROUPS / next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    return [group for group in (own, *own.parents) if group.is_relative_to(CGROUPS)]


def _cached(group: Path) -> int:
    """Bytes of files that a control group's use counts, and that the system gives up when memory is needed."""
    try:
        lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
