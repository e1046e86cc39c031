"""Devices, process groups, and all collectives except the sums of a step (gradient_sum.py)."""

import contextlib
import datetime
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator as Accelerator  # other files import it from here
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin, parse_flag_from_env

from bertkit.base.errors import InputError, counted
from bertkit.base.files import write_durably

T = TypeVar("T")

SHARED_FILE_SECONDS = 10.0  # how long a network file system may take to show a new file on another host


def choose_device(device: str) -> torch.device:
    """Return the device for "cpu", "cuda" or "auto", which prefers CUDA, except under `accelerate launch --cpu`."""
    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        raise InputError("device=cuda: no CUDA device here; set device=cpu or device=auto")
    on_cpu = device == "cpu" or (device == "auto" and parse_flag_from_env("ACCELERATE_USE_CPU"))
    return torch.device("cuda" if has_cuda and not on_cpu else "cpu")


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


@dataclass(frozen=True)
class Ranks:
    """The processes of a run, with collectives for Python objects; checkpoints have a process group of their own."""

    rank: int = 0  # of this process
    size: int = 1
    group: dist.ProcessGroup | None = None  # a process group for objects on the CPU; None for the default one

    def on_every(self, work: Callable[[], T]) -> list[T]:
        """Call a function on every process; return all results everywhere, or raise the first error everywhere."""
        outcome: tuple[T | None, Exception | None]
        try:
            outcome = work(), None
        except Exception as error:
            outcome = None, error
        outcomes = [outcome] * self.size
        if self.size > 1:
            dist.all_gather_object(outcomes, outcome, group=self.group)
        for _, failure in outcomes:
            if failure is not None:
                raise failure
        return [result for result, _ in outcomes]  # type: ignore[misc]

    def on_first(self, work: Callable[[], T]) -> T:
        """Call a function on process 0 only; return its result, or raise its error, on every process."""
        return self.on_every(lambda: work() if self.rank == 0 else None)[0]  # type: ignore[return-value]

    def check_shared(self, directory: Path) -> None:
        """Raise InputError unless a directory is on a disk that all processes share."""
        if self.size == 1:
            return
        place = directory / ".shared"

        def write() -> tuple[str, str]:
            token = secrets.token_hex(8)
            write_durably(place, token)
            return token, socket.gethostname()

        token, host = self.on_first(write)

        def look() -> None:
            give_up_at = time.monotonic() + SHARED_FILE_SECONDS
            while not (place.is_file() and place.read_text() == token):
                if time.monotonic() > give_up_at:
                    raise InputError(
                        f"output_dir={directory}: process {self.rank} on {socket.gethostname()} does not see what process 0 on "
                        f"{host} wrote there; choose a directory on a disk that all hosts share"
                    )
                time.sleep(0.1)

        try:
            self.on_every(look)
        finally:
            if self.rank == 0:
                place.unlink(missing_ok=True)


ALONE = Ranks()


def ranks_of(accelerator: Accelerator, timeout_seconds: float) -> Ranks:
    """Make a process group for saving, so that saving can overlap with training; every process calls this."""
    if accelerator.num_processes == 1:
        return ALONE
    group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout_seconds))
    return Ranks(accelerator.process_index, accelerator.num_processes, group)


def on_main_process(accelerator: Accelerator, function: Callable[[], T]) -> T:
    """Call a function on process 0 only; return its result, or raise its error, on every process."""
    return Ranks(accelerator.process_index, accelerator.num_processes).on_first(function)


def gather_in_order(numbered: Iterable[tuple[int, T]], total: int) -> list[T]:
    """Gather the numbered items of all processes, each once, in the order 0 to total - 1.

    Every process passes its own items. An item may come from several processes, because the last batch may be padded.
    """
    own = dict(numbered)
    everyone: list[dict[int, T]] = [own]
    if dist.is_available() and dist.is_initialized():
        everyone = [own] * dist.get_world_size()
        dist.all_gather_object(everyone, own)
    gathered = {number: prediction for part in everyone for number, prediction in part.items()}
    assert sorted(gathered) == list(range(total)), f"predictions of {len(gathered)} examples, expected {total}"
    return [gathered[number] for number in range(total)]
