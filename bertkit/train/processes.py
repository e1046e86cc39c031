"""The device of a process, and all collectives except the sums of a step (gradient_sum.py)."""

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from bertkit.base.errors import InputError
from bertkit.base.files import write_durably

T = TypeVar("T")

SHARED_FILE_SECONDS = 10.0  # how long a network file system may take to show a new file on another host
TRUE = ("1", "true", "yes", "y", "t", "on")  # in the variables of Accelerate, in any case


def choose_device(device: str) -> torch.device:
    """Return the device for "cpu", "cuda" or "auto", which prefers CUDA, except under `accelerate launch --cpu`."""
    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        raise InputError("device=cuda: no CUDA device here; set device=cpu or device=auto")
    on_cpu = device == "cpu" or (device == "auto" and os.environ.get("ACCELERATE_USE_CPU", "").lower() in TRUE)
    return torch.device("cuda" if has_cuda and not on_cpu else "cpu")


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

    def gather(self, numbered: Iterable[tuple[int, T]], total: int) -> list[T]:
        """Gather the numbered items of all processes, each once, in the order 0 to total - 1; every process passes its own."""
        gathered = {number: item for own in self.on_every(lambda: dict(numbered)) for number, item in own.items()}
        assert sorted(gathered) == list(range(total)), f"{len(gathered)} items, expected {total}"
        return [gathered[number] for number in range(total)]

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
