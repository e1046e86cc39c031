"""Where the processes of a run find each other, and how long they wait for one another."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping

import torch
import torch.distributed as dist

from bertkit import signs
from bertkit.errors import InputError

STORE = "BERTKIT_STORE_FD"  # set by the launcher: rank 0's is a socket that listens already, the others' is empty
SIGNS = "bertkit/signs"  # in the store: the number of all processes' signs of life
PATIENCE = datetime.timedelta(days=14)  # longer than any work; torch keeps milliseconds in 32 bits, which are 24 days


def patience() -> datetime.timedelta | None:
    """Give the timeout of a process group; None for torch's own.

    Where a launcher or a watch ends what hangs, after `launch.hang_timeout_seconds` and by name, torch must not come
    first: it ends the processes that wait, after 10 or 30 minutes, also for one that is at work and says so.
    """
    return PATIENCE if signs.is_heard() else None


def join(device_type: str) -> None:
    """Make the process group, where there are several processes: over the launcher's own socket, or as torchrun has it.

    By itself torch listens on every address of the host, and anyone who reaches the port may take part. The launcher's
    socket listens on one address: 127.0.0.1, or host 0's.

    Raises:
        InputError: there are more processes on this host than CUDA devices.
    """
    listener = os.environ.pop(STORE, None)
    if "RANK" not in os.environ or os.environ.get("WORLD_SIZE") in (None, "1") or dist.is_initialized():
        return
    if device_type == "cuda":
        check_devices(os.environ, torch.cuda.device_count())
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
    if listener is None:
        dist.init_process_group(backend, timeout=patience())
        counter = dist.TCPStore(*address, is_master=False, wait_for_workers=False)  # type: ignore[attr-defined]
        signs.share(lambda more: int(counter.add(SIGNS, more)))
        return
    store = dist.TCPStore(  # type: ignore[attr-defined]
        *address,
        size,
        is_master=bool(listener),
        timeout=PATIENCE,
        master_listen_fd=int(listener) if listener else None,
    )
    prefixed = dist.PrefixStore("bertkit", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=prefixed, rank=rank, world_size=size, timeout=patience())


def check_devices(variables: Mapping[str, str], num_devices: int) -> None:
    """Refuse more processes on a host than it has CUDA devices, in each of them.

    Raises:
        InputError: there are more.
    """
    num_here = int(variables.get("LOCAL_WORLD_SIZE", int(variables["LOCAL_RANK"]) + 1))
    if "SLURM_GPUS_PER_TASK" in variables:
        return  # Slurm gave each its own
    if num_here > num_devices:
        raise InputError(
            f"{num_here} processes on this host for {num_devices} CUDA device(s); start at most one for each device that all of "
            f"them see (launch.num_processes={num_devices}; under srun --gpus-per-task=1 gives each its own), or set device=cpu"
        )
