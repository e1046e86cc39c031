"""Compare systems that do the same work in turn, each in its own process: medians, ratios, a table, and a file with the figures.

Before the first round, the systems must agree on a first result. In each round every system works once, and the order is reversed
from round to round, so that other load on the machine slows all systems. The first round is a warm-up and is not counted.
"""

import argparse
import contextlib
import datetime
import json
import math
import multiprocessing
import os
import re
import resource
import shlex
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from bertkit.display.console import Progress
from bertkit.display.page import Table
from bertkit.launch.world import handle_signals


@dataclass(frozen=True)
class Ready:
    """A loaded system."""

    first_result: Callable[[], Any]  # the result that all systems must agree on, usually numbers
    work: Callable[[int], float]  # runs the round with this number; returns the amount of work, such as tokens
    megabytes: Callable[[], float] | None = None  # of a server's memory; None: the peak of the process or of the GPU
    notes: Callable[[], list[str]] = list  # on all rounds


@dataclass(frozen=True)
class System:
    """One of the compared systems."""

    name: str
    load: Callable[[], Ready]  # called in the system's process: a function of a module, or its `functools.partial`
    tolerance: float | tuple[float, ...] = 0.0  # largest difference from the result of the first system


@dataclass(frozen=True)
class Round:
    """The result of a system in one round."""

    amount: float
    seconds: float
    megabytes: float  # peak memory so far, of the process or of the GPU


Differ = Callable[[Any, Any], Any]  # the difference between two first results


def gap(result: Any, reference: Any) -> Any:
    """Return the differences between two first results, number by number."""
    return np.abs(np.subtract(result, reference))


def measure(
    args: argparse.Namespace, systems: Sequence[System], label: str = "measuring", differ: Differ = gap
) -> dict[str, list[Round]]:
    """Return the rounds of each system by its name."""
    measured: dict[str, list[Round]] = {system.name: [] for system in systems}
    with contextlib.ExitStack() as stack:
        running = {system.name: stack.enter_context(started(system, args.num_threads)) for system in systems}
        results, tolerances = [ask(first_result) for ask in running.values()], [each.tolerance for each in systems]
        check_same(running, results, tolerances, differ)
        progress = stack.enter_context(Progress(label, (args.rounds + 1) * len(systems)))
        for number in range(args.rounds + 1):
            for name in measured if number % 2 else reversed(measured):
                measured[name].append(running[name](one_round, number, args.clock == "processor"))
                progress.advance(progress.done + 1)
    return {name: of_system[1:] for name, of_system in measured.items()}


def check_same(names: Iterable[str], results: Sequence[Any], tolerances: Sequence[Any], differ: Differ = gap) -> None:
    """Refuse systems that do different work: compare each first result with that of the first system."""
    first, *_ = names = list(names)
    for name, result, tolerance in zip(names, results, tolerances, strict=True):
        found = differ(result, results[0])
        if not np.all(found <= np.asarray(tolerance)):
            raise SystemExit(
                f"error: {name} and {first} do not do the same work: their first results differ by {np.max(found):.1e}; "
                f"expected at most {tolerance}"
            )


@contextlib.contextmanager
def started(system: System, num_threads: int, seconds: float | None = None) -> Iterator[Callable[..., Any]]:
    """Start the process of a system; return a function that calls another function there, with the `Ready` system and arguments.

    After an error there, or without an answer within `seconds` after the start, the call raises SystemExit.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(system, num_threads, theirs))
    with handle_signals([signal.SIGINT], signal.SIG_IGN):  # after Ctrl-C this process ends the others
        process.start()
    theirs.close()  # only that process keeps its end open, so each side notices when the other ends
    until = math.inf if seconds is None else time.monotonic() + seconds

    def ask(what: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with contextlib.suppress(OSError):  # if it has ended, its last words are still in the pipe
                ours.send((what, arguments))
            if not ours.poll(None if seconds is None else max(0.0, until - time.monotonic())):
                raise SystemExit(f"error: {system.name} failed; it did not answer within {seconds:.0f} seconds")
            answer = ours.recv()
        except (EOFError, OSError):
            process.join(timeout=10)
            answer = SystemExit(f"its process ended with exit code {process.exitcode}")
        if isinstance(answer, SystemExit):
            raise SystemExit(f"error: {system.name} failed; {answer}")
        return answer

    try:
        yield ask
    except KeyboardInterrupt:
        process.terminate()
        raise
    finally:
        helpers = []  # servers and compilers
        with contextlib.suppress(psutil.NoSuchProcess):
            helpers = psutil.Process(process.pid).children(recursive=True)
        ours.close()  # ends the process if it is idle
        process.join(timeout=10 if time.monotonic() < until else 0)
        for each in (*helpers, process):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.join()


def _answer(system: System, num_threads: int, pipe: Connection) -> None:
    os.environ["RAYON_NUM_THREADS"] = str(num_threads)  # threads of the tokenizers library
    torch.set_num_threads(num_threads)
    try:
        ready = system.load()
        while True:
            try:
                what, arguments = pipe.recv()
            except EOFError:
                return
            pipe.send(what(ready, *arguments))
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        is_full = isinstance(error, torch.OutOfMemoryError)
        pipe.send(SystemExit("out of memory" if is_full else f"{type(error).__name__}: {error}".split("\n")[0][:150]))


def first_result(ready: Ready) -> Any:
    """Return the result that all systems must agree on."""
    return ready.first_result()


def one_round(ready: Ready, number: int, counts_processor: bool = False) -> Round:
    """Run and measure one round, in seconds, or in seconds of processor time."""
    clock = processor_seconds if counts_processor else time.perf_counter
    started_at = clock()
    amount = ready.work(number)
    if ready.megabytes is not None:
        return Round(amount, clock() - started_at, ready.megabytes())
    if _is_on_gpu():
        torch.cuda.synchronize()
        return Round(amount, clock() - started_at, torch.cuda.max_memory_allocated() / 1e6)
    seconds = clock() - started_at
    # if a system starts a command, measure the command: the process itself only waits
    kilobytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss or _kilobytes("VmHWM")
    return Round(amount, seconds, kilobytes * 1.024e-3)


def processor_seconds() -> float:
    """Return the processor time of this process, and of its child processes that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def held(ready: Ready) -> float:
    """Return the megabytes that the process uses now; on a GPU, those of the GPU."""
    return torch.cuda.memory_allocated() / 1e6 if _is_on_gpu() else _kilobytes("VmRSS") * 1.024e-3


def forget_peak(ready: Ready) -> None:
    """Begin to measure the peak of the GPU's memory anew."""
    if _is_on_gpu():
        torch.cuda.reset_peak_memory_stats()


def notes(ready: Ready) -> list[str]:
    """Return a system's notes on all rounds."""
    return ready.notes()


def profiled(ready: Ready) -> str:
    """Return a table of the operations that take most time in a round."""
    with torch.profiler.profile() as profile:
        one_round(ready, 0)
    by = "self_device_time_total" if _is_on_gpu() else "self_cpu_time_total"
    return str(profile.key_averages().table(sort_by=by, row_limit=40))


def _is_on_gpu() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _kilobytes(name: str) -> int:
    """Return a memory figure of this process alone; `ru_maxrss` would include the parent process."""
    status = Path("/proc/self/status")
    found = re.search(rf"^{name}:\s*(\d+)", status.read_text() if status.exists() else "", re.MULTILINE)
    return int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def summarise(measured: Mapping[str, Sequence[Round]]) -> list[dict[str, Any]]:
    """Return medians of the rates, and of their ratios to the first system and to Hugging Face's fastest, within the same round."""
    rates = {name: [each.amount / each.seconds for each in rounds] for name, rounds in measured.items()}
    if not rates:
        return []
    first, *others = rates
    theirs = [first, *(name for name in others if not name.startswith("bertkit"))]
    best = max(theirs, key=lambda name: statistics.median(rates[name]))
    results = []
    for name, rounds in measured.items():
        to_first, to_best = ([a / b for a, b in zip(rates[name], rates[base], strict=True)] for base in (first, best))
        results.append({
            "name": name,
            "rate": statistics.median(rates[name]),
            "ratio": statistics.median(to_first),
            "ratio_low": min(to_first),
            "ratio_high": max(to_first),
            "ratio_to_best": statistics.median(to_best),
            "peak_megabytes": max(each.megabytes for each in rounds),
        })  # fmt: skip
    return results


def rates_table(unit: str, results: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of rates, ratios and memory."""
    rows = [
        (
            each["name"],
            f"{each['rate']:,.0f}" if each["rate"] >= 100 else f"{each['rate']:.2f}",
            f"{each['ratio']:.2f} ({each['ratio_low']:.2f} - {each['ratio_high']:.2f})",
            f"{each['ratio_to_best']:.2f}",
            f"{each['peak_megabytes']:,.0f} MB",
        )
        for each in results
    ]
    return Table("", ("", unit, "ratio (lowest - highest)", "to Hugging Face at its best", "peak memory"), rows)


def compare(args: argparse.Namespace, unit: str, systems: Sequence[System]) -> None:
    """Measure systems and report their rates."""
    results = summarise(measure(args, systems))
    report(args, unit, results, [rates_table(unit, results)])


def report(args: argparse.Namespace, unit: str, results: Sequence[Mapping[str, Any]], tables: Sequence[Table]) -> None:
    """Print tables; write the figures and the description of the machine to the file `--output`."""
    for number, table in enumerate(tables):
        print(*[""] * bool(number), *([table.title, ""] if table.title else []), table.markdown(), sep="\n")
    if args.output is None:
        return
    info = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*:\s*(.+)", info.read_text() if info.exists() else "", re.MULTILINE)
    facts = {
        "date": datetime.date.today().isoformat(),
        "processor": named[1] if named else "unknown",
        "gpu": torch.cuda.get_device_name() if vars(args).get("device") == "cuda" else None,
        "torch": torch.__version__,
        "command": shlex.join(["python", *sys.argv]),
        "arguments": vars(args),
        "unit": unit,
        "results": results,
    }
    args.output.write_text(json.dumps(facts, indent=2, default=str) + "\n", encoding="utf-8")
