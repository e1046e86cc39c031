"""How much memory this machine has, and a refusal of what cannot fit into it, before anything is allocated."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

from bertkit.base.errors import InputError

CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")  # version 2


@dataclass(frozen=True)
class Memory:
    """Of this process's device."""

    held: int  # by this process now
    free: int  # what it may still take
    total: int  # of the machine or its container, or of the GPU


def memory_here(device: str) -> Memory | None:
    """Read what the device has; None where the system does not say it."""
    if device == "cuda":
        import torch

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
    for limit, _ in map(resource.getrlimit, (resource.RLIMIT_AS, resource.RLIMIT_DATA)):  # such as ulimit -v
        total = total if limit == resource.RLIM_INFINITY else min(total, limit)
    return Memory(pages * os.sysconf("SC_PAGE_SIZE"), min(free, total), total)


def processes_here(device: str) -> int:
    """Say how many processes share the memory: those of this machine on a CPU; a GPU has one."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if device == "cpu" else 1


def require_memory(what: str, num_bytes: int, way_out: str, device: str = "cpu") -> None:
    """Refuse what needs more memory than there is, whoever holds it now; `num_bytes` is what it needs at the least.

    Raises:
        InputError: with what it needs and what there is.
    """
    here = memory_here(device)
    if here is not None and num_bytes > here.total:
        raise InputError(
            f"{what} would need at least {gigabytes(num_bytes)} of memory, {gigabytes(here.total)} are here; {way_out}"
        )


def gigabytes(num_bytes: int) -> str:
    """Write a number of bytes for people."""
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes < 10**15 else f"{num_bytes // 10**9:.1e} GB"


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
