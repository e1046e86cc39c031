"""Measures the memory of this machine, and refuses allocations that cannot fit; the search for garbage."""

import contextlib
import gc
import os
import resource
from dataclasses import dataclass
from pathlib import Path

from bertkit.base.errors import InputError

OUT_OF_MEMORY = (
    "the memory of the GPU, or of this machine, is full; compute fewer tokens at once (batch.micro_tokens= in training, else "
    "batch_tokens= or batch_sequences=), set precision=bf16, or train with recompute=layers"
)
CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")  # control groups, version 2


@dataclass(frozen=True)
class Memory:
    """The memory of a device, in bytes."""

    held: int  # in use by this process
    free: int  # available to this process
    total: int  # in the machine, the container, or the GPU


def collect_garbage() -> None:
    """Look for garbage from now on, but never among what was imported or read before, not even at the end of the process."""
    gc.freeze()
    gc.enable()


def memory_here(device: str) -> Memory:
    """Measure a device's memory."""
    if device == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info()
        held = torch.cuda.memory_allocated()
        return Memory(held, free + torch.cuda.memory_reserved() - held, total)
    import psutil

    machine = psutil.virtual_memory()
    total, free = machine.total, machine.available
    for group in cgroups():
        limit = _number_in(group / "memory.max")
        if limit is not None:
            used = (_number_in(group / "memory.current") or 0) - _cached(group)
            total, free = min(total, limit), min(free, limit - used)
    for limit, _ in map(resource.getrlimit, (resource.RLIMIT_AS, resource.RLIMIT_DATA)):  # set by `ulimit -v`
        total = total if limit == resource.RLIM_INFINITY else min(total, limit)
    return Memory(psutil.Process().memory_info().rss, min(free, total), total)


def processes_here(device: str) -> int:
    """Return the number of processes that share the memory: on a CPU all processes of this machine, on a GPU one."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if device == "cpu" else 1


def require_memory(what: str, num_bytes: int, advice: str, device: str = "cpu") -> None:
    """Raise InputError, which ends with `advice`, if `what` needs `num_bytes`, more than the total memory."""
    here = memory_here(device)
    if num_bytes > here.total:
        raise InputError(
            f"{what} would need at least {gigabytes(num_bytes)} of memory, this machine has {gigabytes(here.total)}; {advice}"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, in Python or in torch, whose errors differ between CPU, GPU and the GPU's libraries."""
    signs = ("out of memory", "ALLOC_FAILED", "can't allocate memory")
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in signs)


def gigabytes(num_bytes: int) -> str:
    """Format a number of bytes in GB."""
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes < 10**15 else f"{num_bytes // 10**9:.1e} GB"


def system_text(path: Path) -> str:
    """Read a file of the system; "" where it has none of this name."""
    with contextlib.suppress(OSError):
        return path.read_text(encoding="ascii", errors="replace")
    return ""


def _number_in(path: Path) -> int | None:
    text = system_text(path).strip()
    return int(text) if text.isdecimal() else None  # no such file, or "max"


def cgroups() -> list[Path]:
    """Return the control groups of this process, innermost first; they limit containers, Slurm jobs and systemd slices."""
    lines = system_text(OWN_CGROUP).splitlines()
    if not lines:
        return []
    own = CGROUPS / next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    return [group for group in (own, *own.parents) if group.is_relative_to(CGROUPS)]


def _cached(group: Path) -> int:
    """Return the bytes of file cache in the memory usage of a control group; the system frees them when needed."""
    lines = system_text(group / "memory.stat").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
