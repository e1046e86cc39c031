"""What the last bits of the weights depend on: processes, threads, torch version, device, compiled layers."""

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from bertkit.base.errors import InputError, counted
from bertkit.base.processors import num_processors
from bertkit.launch.world import OWN_THREADS
from bertkit.model.layers import missing_for
from bertkit.train.accelerator import Accelerator

THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Platform:
    """The number of processes and threads, the torch version and the device of a run."""

    num_processes: int
    num_threads: int
    torch: str
    device: str


def current_platform(accelerator: Accelerator) -> Platform:
    """Return the platform of this process."""
    return Platform(accelerator.num_processes, torch.get_num_threads(), torch.__version__, accelerator.device.type)


def restore_platform(
    before: Platform, here: Platform, is_strict: bool, where: object, warn: Callable[[str], None]
) -> Platform:
    """Return the platform for a resumed run, with the number of threads it had before; warn about other differences.

    The number of threads is restored if the number of processes is the same, and always with reproducibility=strict; but a
    number that the user set in the environment has priority. Raises InputError if reproducibility is strict, but the last bits
    would differ.
    """
    is_set_by_user = THREADS in os.environ and OWN_THREADS not in os.environ
    if not is_set_by_user and (is_strict or before.num_processes == here.num_processes):
        here = dataclasses.replace(here, num_threads=before.num_threads)
    changed = []
    if before.torch != here.torch:
        changed.append((f"torch {before.torch} before, {here.torch} here", f"install torch {before.torch}"))
    if before.num_threads != here.num_threads:
        text = f"{before.num_threads} threads before, {here.num_threads} here"
        changed.append((text, f"set {THREADS}={before.num_threads}"))
    texts = "; ".join(text for text, _ in changed)
    if changed and is_strict:
        remedies = " and ".join(remedy for _, remedy in changed)
        raise InputError(f"{where}: {texts}: reproducibility=strict resumes only on the same platform; {remedies}")
    if changed:
        warn(f"{texts}: the last bits of the weights may differ from those of a run without the interruption")
    if before.device != here.device:
        warn(f"the run began on device {before.device} and resumes on {here.device}: the results differ by rounding")
    cores = num_processors()
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if here.device == "cpu" and here.num_threads * local_size > cores:
        warn(
            f"{counted(local_size, 'process')} of {counted(here.num_threads, 'thread')}, as when the run began: slow on "
            f"{counted(cores, 'core')}; start a new run with {THREADS}=1 if you want to change the number of processes"
        )
    return here


def should_compile(setting: bool | Literal["auto"], device_type: str) -> bool:
    """Return whether to compile the layers; `auto` compiles on CUDA if the tools that `true` requires are installed."""
    missing = missing_for(device_type)
    if setting is True and missing is not None:
        raise InputError(f"compile=true needs {missing} on {device_type}; install it, or set compile=auto")
    return setting is True or (setting == "auto" and device_type == "cuda" and missing is None)


def can_still_compile(device_type: str, is_strict: bool, where: object, warn: Callable[[str], None]) -> bool:
    """Return whether a resumed run, compiled before, can be compiled here; InputError if it cannot but must (strict)."""
    missing = missing_for(device_type)
    if missing is not None and is_strict:
        raise InputError(f"{where}: its compiled layers need {missing}; install it, or start a run with compile=false")
    if missing is not None:
        warn(
            f"the run began with compiled layers, which need {missing}; it resumes without them, with different dropout"
        )
    return missing is None


def make_sums_deterministic(device: torch.device) -> None:
    """Make sums on a GPU deterministic; by default some kernels add in varying order. CPUs need no change.

    torch then raises an error for operations without a deterministic implementation.
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch requires it before the first matrix product
        torch.use_deterministic_algorithms(True)
        # filling uninitialized memory takes time, and bertkit never reads it
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
