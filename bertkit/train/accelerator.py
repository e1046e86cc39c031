"""Accelerate's object for the processes of a run; a prediction in one process does without it, and without its import."""

import contextlib
import datetime
import os
import time
from collections.abc import Iterator, Mapping
from typing import TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator as Accelerator  # other files import it from here
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin

from bertkit.base.errors import InputError, counted
from bertkit.train.processes import ALONE, Ranks, choose_device

T = TypeVar("T")


def make_accelerator(device: str, num_processes: int, timeout_seconds: float | None = None) -> Accelerator:
    """Set up the device and, from torchrun's environment variables, the process group with its timeout.

    Raises:
        InputError: there are too few CUDA devices, or the process group has another number of processes.
    """
    chosen, is_distributed = choose_device(device).type, os.environ.get("WORLD_SIZE", "1") != "1"
    if "RANK" in os.environ and is_distributed and not dist.is_initialized():
        if chosen == "cuda":
            check_devices(os.environ, torch.cuda.device_count())
        timeout = None if timeout_seconds is None else datetime.timedelta(seconds=timeout_seconds)
        dist.init_process_group("cpu:gloo,cuda:nccl" if chosen == "cuda" else "gloo", timeout=timeout)
    # the precision, the parts of a batch and compilation are bertkit's own work, whatever Accelerate's variables ask for
    once = GradientAccumulationPlugin(num_steps=1)
    views = DistributedDataParallelKwargs(gradient_as_bucket_view=True)  # gradients are exchanged where they lie
    accelerator = Accelerator(
        cpu=chosen == "cpu", mixed_precision="no", gradient_accumulation_plugin=once, kwargs_handlers=[views]
    )
    if accelerator.num_processes != num_processes:
        raise InputError(
            f"{num_processes} processes were started, but {accelerator.num_processes} connected; set "
            f"launch.num_processes={num_processes}, or start them with torchrun"
        )
    return accelerator


def check_devices(variables: Mapping[str, str], num_devices: int) -> None:
    """Raise InputError unless this host has a CUDA device for each of its processes."""
    num_here = int(variables.get("LOCAL_WORLD_SIZE", int(variables["LOCAL_RANK"]) + 1))
    if "SLURM_GPUS_PER_TASK" in variables:
        return  # Slurm has assigned separate devices to each process
    if num_here > num_devices:
        raise InputError(
            f"{num_here} processes on this host for {counted(num_devices, 'CUDA device')}; set launch.num_processes={num_devices}, "
            "start srun with --gpus-per-task=1, or set device=cpu"
        )


@contextlib.contextmanager
def ending_together(accelerator: Accelerator) -> Iterator[None]:
    """Wait at the end for all processes, then close the process group, which could otherwise crash Python at exit."""
    try:
        yield
        accelerator.wait_for_everyone()
    finally:
        if accelerator.num_processes > 1:
            # gloo's threads need Python's lock to end their work, and torch may hold it while it waits for them
            time.sleep(0.1)
            dist.destroy_process_group()


def saving_ranks(accelerator: Accelerator, timeout_seconds: float) -> Ranks:
    """Make a process group for saving, so that saving can overlap with training; every process calls this."""
    if accelerator.num_processes == 1:
        return ALONE
    group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout_seconds))
    return Ranks(accelerator.process_index, accelerator.num_processes, group)


def ranks_in(accelerator: Accelerator) -> Ranks:
    """Return the processes, with their default process group."""
    return Ranks(accelerator.process_index, accelerator.num_processes)
