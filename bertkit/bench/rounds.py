"""Systems take turns, forwards and backwards, a process each, once it is known that they do the same work."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertkit.bench import bertkit_way, hugging_face
from bertkit.bench.workload import BERTKIT, Ready, System, Workload
from bertkit.errors import InputError, ParityError
from bertkit.launch.world import end_with_parent
from bertkit.view.progress import Progress

TRAINING = ("pretrain", "finetune", "translate")  # steps of it
SAME_LOSS = 1e-4  # relative; of the first batch, without dropout, in float32
NEAR_LOSS = 2e-2  # the same in bfloat16
SAME_VECTOR = {"fp32": 1e-5, "bf16": 1e-2}  # of length 1
SAME_PROBABILITY = {"fp32": 1e-6, "bf16": 1e-2}
SHARE_OF_TIES = 0.02  # of texts that may differ, where two tokens are as probable but for rounding


@dataclass(frozen=True)
class Round:
    """How many tokens a system got through in a round, in how long; and the highest point of its memory so far."""

    num_tokens: int
    seconds: float
    megabytes: float


def measure(workload: Workload, systems: Sequence[System], rounds: int, label: str = "measuring") -> list[list[Round]]:
    """Give the rounds of each system; a first one warms up and is not counted."""
    measured: list[list[Round]] = [[] for _ in systems]
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(started(workload, system)) for system in systems]
        check_same(workload.what, systems, [ask(first_result) for ask in running])
        progress = stack.enter_context(Progress(label, (rounds + 1) * len(systems)))
        for number in range(rounds + 1):
            turns = list(zip(running, measured, strict=True))
            for done, (ask, of_system) in enumerate(turns if number % 2 else reversed(turns), 1):
                of_system.append(ask(one_round, number))
                progress.advance(number * len(systems) + done)
    return [of_system[1:] for of_system in measured]


def check_same(what: str, systems: Sequence[System], firsts: Sequence[Any]) -> None:
    """Refuse to compare different work."""
    for system, first in zip(systems, firsts, strict=True):
        if what in TRAINING:
            exact, near = (abs(ours / theirs - 1) for ours, theirs in zip(first, firsts[0], strict=True))
            difference, limit = (exact, SAME_LOSS) if near <= NEAR_LOSS else (near, NEAR_LOSS)
        elif what == "predict":
            rows = zip(firsts[0], first, strict=True)
            difference = max(abs(ours[label] - theirs[label]) for ours, theirs in rows for label in ours)
            limit = SAME_PROBABILITY[system.precision]
        elif what == "embed":
            difference, limit = float(np.abs(first - firsts[0]).max()), SAME_VECTOR[system.precision]
        elif what == "generate":
            pairs = zip(firsts[0], first, strict=True)
            difference, limit = sum(ours != theirs for ours, theirs in pairs) / len(first), SHARE_OF_TIES
        else:  # numbers of tokens
            difference, limit = abs(first / firsts[0] - 1), 0.0
        if not difference <= limit:
            raise ParityError(
                f"bench: {system.name} and {systems[0].name} did not do the same work: their first results differ by "
                f"{difference:.1e}, expected at most {limit:.0e}"
            )


@contextlib.contextmanager
def started(workload: Workload, system: System) -> Iterator[Callable[..., Any]]:
    """Start a system in a process of its own, and end it; give what runs one of the functions below there."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _start, (workload, system)) as process:
        process.submit(held)  # starts it; the first question waits until it is ready

        def ask(what: Callable[..., Any], *arguments: Any) -> Any:
            try:
                return process.submit(what, *arguments).result()
            except Exception as error:
                traceback.print_exception(error)
                raise InputError(f"bench: {system.name} failed; its error stands above") from None

        yield ask


_ready: Ready  # the system of this process, and its device
_device: str


def _start(workload: Workload, system: System) -> None:
    global _ready, _device
    end_with_parent()
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it ended while this process was importing
        os._exit(1)
    _device = workload.device
    os.environ["RAYON_NUM_THREADS"] = str(workload.num_threads)  # of the tokenizers library
    torch.set_num_threads(workload.num_threads)
    library = bertkit_way if system.library == BERTKIT else hugging_face
    _ready = getattr(library, "train" if workload.what in TRAINING else workload.what)(workload, system)


def first_result() -> Any:
    """Give what can be compared, before any round."""
    return _ready.first_result()


def one_round(number: int) -> Round:
    """Do the work of a round."""
    started_at = time.perf_counter()
    num_tokens = _ready.work(number)
    if _device == "cuda":
        torch.cuda.synchronize()
        return Round(num_tokens, time.perf_counter() - started_at, torch.cuda.max_memory_allocated() / 1e6)
    seconds = time.perf_counter() - started_at
    # a process that only starts a command is no more than its clock
    kilobytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss or _kilobytes("VmHWM:")
    return Round(num_tokens, seconds, kilobytes * 1.024e-3)


def held() -> int:
    """Give the bytes that this process holds now, of its device."""
    return torch.cuda.memory_allocated() if _device == "cuda" else 1024 * _kilobytes("VmRSS:")


def _kilobytes(name: str) -> int:
    """Read a figure of this process alone; `ru_maxrss` would start from that of the process that started it."""
    status = Path("/proc/self/status")
    lines = status.read_text(errors="replace").splitlines() if status.exists() else []
    found = [int(line.split()[1]) for line in lines if line.startswith(name)]
    return found[0] if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
