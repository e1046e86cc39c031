"""The processes of a run: how they find each other, and all collectives except those of gradients (gradient_sums.py)."""

import contextlib
import datetime
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator as Accelerator  # its one home; also for annotations elsewhere

from bertkit.base.errors import InputError
from bertkit.base.files import write_durably

T = TypeVar("T")

SECONDS_TO_SHOW_A_FILE = 10.0


def choose_device(device: str) -> torch.device:
    """Choose between "cpu" and "cuda"; auto takes CUDA where there is one.

    Raises:
        InputError: a CUDA device is asked for and there is none.
    """
    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        raise InputError("device=cuda: no CUDA device here; set device=cpu or device=auto")
    return torch.device("cuda" if has_cuda and device != "cpu" else "cpu")


def make_accelerator(device: str, num_processes: int, timeout_seconds: float | None = None) -> Accelerator:
    """Set up the device and, from torchrun's environment, the processes; one that waits longer for the others fails.

    Raises:
        InputError: there are too few CUDA devices, or another number of processes found each other.
    """
    chosen, is_distributed = choose_device(device).type, os.environ.get("WORLD_SIZE", "1") != "1"
    if "RANK" in os.environ and is_distributed and not dist.is_initialized():
        if chosen == "cuda":
            check_devices(os.environ, torch.cuda.device_count())
        timeout = None if timeout_seconds is None else datetime.timedelta(seconds=timeout_seconds)
        dist.init_process_group("cpu:gloo,cuda:nccl" if chosen == "cuda" else "gloo", timeout=timeout)
    accelerator = Accelerator(cpu=chosen == "cpu", gradient_accumulation_steps=1)
    if accelerator.num_processes != num_processes:
        raise InputError(
            f"{num_processes} processes were started but {accelerator.num_processes} found each other; set "
            f"launch.num_processes={num_processes}, or start them with torchrun"
        )
    return accelerator


def check_devices(variables: Mapping[str, str], num_devices: int) -> None:
    """Refuse more processes on a host than it has CUDA devices.

    Raises:
        InputError: with both numbers.
    """
    num_here = int(variables.get("LOCAL_WORLD_SIZE", int(variables["LOCAL_RANK"]) + 1))
    if "SLURM_GPUS_PER_TASK" in variables:
        return  # Slurm gave each its own
    if num_here > num_devices:
        raise InputError(
            f"{num_here} processes on this host for {num_devices} CUDA device(s); set launch.num_processes={num_devices}, "
            "start srun with --gpus-per-task=1, or set device=cpu"
        )


@contextlib.contextmanager
def leaving_together(accelerator: Accelerator) -> Iterator[None]:
    """Let no process end before the others, and close their connections, which could abort the interpreter's exit."""
    try:
        yield
        accelerator.wait_for_everyone()
    finally:
        if accelerator.num_processes > 1:
            dist.destroy_process_group()


@dataclass(frozen=True)
class Ranks:
    """The processes that write a checkpoint together, over connections of their own."""

    rank: int = 0  # of this process
    size: int = 1
    group: Any = None  # a process group for objects on the CPU; None for the default one

    def on_every(self, work: Callable[[], T]) -> list[T]:
        """Call a function on every process; all get all results, or raise the first process's error."""
        outcome: list[Any] = [None, None]
        try:
            outcome[0] = work()
        except Exception as error:
            outcome[1] = error
        outcomes = [outcome]
        if self.size > 1:
            outcomes = [[]] * self.size
            dist.all_gather_object(outcomes, outcome, group=self.group)
        for _, failure in outcomes:
            if failure is not None:
                raise failure
        return [result for result, _ in outcomes]

    def on_first(self, work: Callable[[], T]) -> T:
        """Call a function on the first process only; all get its result, or raise its error."""
        return self.on_every(lambda: work() if self.rank == 0 else None)[0]  # type: ignore[return-value]

    def check_shared(self, directory: Path) -> None:
        """Refuse a directory that is not on a disk shared by all processes.

        Raises:
            InputError: naming a process, with its host, that does not see a file of the first one.
        """
        if self.size == 1:
            return
        place = directory / ".shared"

        def write() -> tuple[str, str]:
            token = secrets.token_hex(8)
            write_durably(place, token)
            return token, socket.gethostname()

        token, host = self.on_first(write)

        def look() -> None:
            # a network file system may show a new file only after a while
            give_up_at = time.monotonic() + SECONDS_TO_SHOW_A_FILE
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
    """Connect the processes for saving, apart from training, so that both can work at once; every process calls this."""
    if accelerator.num_processes == 1:
        return ALONE
    group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout_seconds))
    return Ranks(accelerator.process_index, accelerator.num_processes, group)


def on_main_process(accelerator: Accelerator, function: Callable[[], T]) -> T:
    """Call a function on the main process only; all get its result, or raise its error."""
    return Ranks(accelerator.process_index, accelerator.num_processes).on_first(function)


def sum_over_processes(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """Sum numbers over all processes, if possible without waiting for the work of a GPU."""
    if accelerator.num_processes == 1:
        return list(values)
    device = "cpu" if "cpu:gloo" in dist.get_backend_config() else accelerator.device
    numbers = torch.tensor(values, dtype=torch.float64, device=device)
    return accelerator.reduce(numbers, "sum").tolist()  # type: ignore[no-any-return]


def gather_in_order(numbered: Iterable[tuple[int, T]], total: int) -> list[T]:
    """Collect the numbered predictions of all processes, each exactly once, in the order 0 to total - 1.

    Every process calls it with its share, which may overlap with others where a last batch was filled up.
    """
    own = dict(numbered)
    everyone: list[dict[int, T]] = [own]
    if dist.is_available() and dist.is_initialized():
        everyone = [own] * dist.get_world_size()
        dist.all_gather_object(everyone, own)
    gathered = {number: prediction for part in everyone for number, prediction in part.items()}
    assert sorted(gathered) == list(range(total)), f"predictions of {len(gathered)} examples, expected {total}"
    return [gathered[number] for number in range(total)]
