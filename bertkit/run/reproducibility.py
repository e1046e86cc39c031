"""What the last bits of the weights depend on beside the settings: processes, threads, torch, device, compiled layers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from bertkit.base.errors import InputError
from bertkit.launch.world import OWN_THREADS
from bertkit.model.compiled import missing_for
from bertkit.train.processes import Accelerator

THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Platform:
    """Where a run computes."""

    num_processes: int
    num_threads: int
    torch: str
    device: str


def platform_here(accelerator: Accelerator) -> Platform:
    """Read where this start of a run computes."""
    return Platform(accelerator.num_processes, torch.get_num_threads(), torch.__version__, accelerator.device.type)


def restore_platform(
    before: Platform, here: Platform, is_strict: bool, where: object, warn: Callable[[str], None]
) -> Platform:
    """Compute as the run did until now: the number of threads and torch's version are part of every last bit.

    The run's number of threads holds with the same number of processes, and always where reproducibility is strict;
    but a number that the user asks for is not quietly changed.

    Raises:
        InputError: the last bits would differ, and reproducibility is strict.
    """
    is_asked_for = THREADS in os.environ and OWN_THREADS not in os.environ
    if not is_asked_for and (is_strict or before.num_processes == here.num_processes):
        here = dataclasses.replace(here, num_threads=before.num_threads)
    changed = []
    if before.torch != here.torch:
        changed.append((f"torch {before.torch} before, {here.torch} here", f"install torch {before.torch}"))
    if before.num_threads != here.num_threads:
        text = f"{before.num_threads} threads before, {here.num_threads} here"
        changed.append((text, f"set {THREADS}={before.num_threads}"))
    texts = "; ".join(text for text, _ in changed)
    if changed and is_strict:
        raise InputError(
            f"{where}: {texts}: reproducibility=strict goes on only as it began; "
            + " and ".join(remedy for _, remedy in changed)
        )
    if changed:
        warn(f"{texts}: the last bits of the weights may differ from those of a run that was never stopped")
    if before.device != here.device:
        warn(f"resumed with device {here.device}, begun with {before.device}: the results differ by rounding")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if here.device == "cpu" and here.num_threads * local_size > cores:
        warn(
            f"{local_size} process(es) of {here.num_threads} threads on {cores} core(s), as when the run began; this is slow. To "
            f"be free to change the number of processes, begin a run with {THREADS}=1"
        )
    return here


def compiles(setting: bool | Literal["auto"], device_type: str) -> bool:
    """Choose whether the layers are compiled; `auto` does on CUDA, where what that needs is there.

    Raises:
        InputError: they are to be, and something is missing.
    """
    missing = missing_for(device_type)
    if setting is True and missing is not None:
        raise InputError(f"compile=true needs {missing} on {device_type}; install it, or set compile=auto")
    return setting is True or (setting == "auto" and device_type == "cuda" and missing is None)


def still_compiles(
    began_compiled: bool, device_type: str, is_strict: bool, where: object, warn: Callable[[str], None]
) -> bool:
    """Whether to compile the layers, as the run did when it began.

    Raises:
        InputError: the run did, but here it cannot, and reproducibility is strict.
    """
    missing = missing_for(device_type) if began_compiled else None
    if missing is None:
        return began_compiled
    if is_strict:
        raise InputError(
            f"{where}: the run began with compiled layers, which need {missing}; install it, or begin another run with "
            "compile=false"
        )
    warn(f"the run began with compiled layers, which need {missing}; it goes on without them, and draws other dropout")
    return False


def add_in_one_order(device: torch.device) -> None:
    """Let a GPU add in the same order every time; by itself torch leaves some sums, as in attention, to chance.

    From then on torch raises an error for an operation that has no fixed order. A CPU always adds in one.
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as torch asks for; before the first product
        torch.use_deterministic_algorithms(True)
        # nothing here reads such memory, and filling it takes time
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
