"""Systems take turns at the same work, each in a process of its own: medians, ratios, a table, and a file with the figures.

Before any round the systems must agree on a first result. In each round every system works once, forwards in one round and
backwards in the next, so that whatever else the machine does slows all of them. The first round warms up and is not counted.
"""

import argparse
import contextlib
import datetime
import json
import multiprocessing
import os
import re
import resource
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertkit.view.console import Progress
from bertkit.view.page import Table


@dataclass(frozen=True)
class Ready:
    """A system that has loaded what it needs."""

    first_result: Callable[[], Any]  # what all systems must agree on, as a rule numbers
    work: Callable[[int], float]  # does the work of a round, by its number; says how much it was, such as tokens


@dataclass(frozen=True)
class System:
    """One way to do the work."""

    name: str
    load: Callable[[], Ready]  # called in the system's process: a function of a module, or a `functools.partial` of one
    tolerance: float | tuple[float, ...] = 0.0  # for its first result, beside that of the first system


@dataclass(frozen=True)
class Round:
    """What a system did in a round."""

    amount: float
    seconds: float
    megabytes: float  # peak memory so far, of the process or of the GPU


Differ = Callable[[Any, Any], Any]  # two first results -> by how much they differ


def gap(result: Any, reference: Any) -> Any:
    """Compare two first results, number by number."""
    return np.abs(np.subtract(result, reference))


def measure(
    args: argparse.Namespace, systems: Sequence[System], label: str = "measuring", differ: Differ = gap
) -> dict[str, list[Round]]:
    """Give the rounds of each system, by its name."""
    measured: dict[str, list[Round]] = {system.name: [] for system in systems}
    with contextlib.ExitStack() as stack:
        running = {system.name: stack.enter_context(started(system, args.num_threads)) for system in systems}
        results, tolerances = [ask(first_result) for ask in running.values()], [each.tolerance for each in systems]
        check_same(running, results, tolerances, differ)
        progress = stack.enter_context(Progress(label, (args.rounds + 1) * len(systems)))
        for number in range(args.rounds + 1):
            for name in measured if number % 2 else reversed(measured):
                measured[name].append(running[name](one_round, number))
                progress.advance(progress.done + 1)
    return {name: of_system[1:] for name, of_system in measured.items()}


def check_same(names: Iterable[str], results: Sequence[Any], tolerances: Sequence[Any], differ: Differ = gap) -> None:
    """Refuse to compare systems that do different work: each result beside the first one."""
    first, *_ = names = list(names)
    for name, result, tolerance in zip(names, results, tolerances, strict=True):
        found = differ(result, results[0])
        if not np.all(found <= np.asarray(tolerance)):
            raise SystemExit(
                f"error: {name} and {first} do not do the same work: their first results differ by {np.max(found):.1e}; "
                f"expected at most {tolerance}"
            )


@contextlib.contextmanager
def started(system: System, num_threads: int) -> Iterator[Callable[..., Any]]:
    """Start the process of a system; give what calls a function there, with the `Ready` system and the arguments."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(system, num_threads, theirs))
    process.start()
    theirs.close()  # only the process holds its end, so that either side notices when the other one ends

    def ask(what: Callable[..., Any], *arguments: Any) -> Any:
        try:
            ours.send((what, arguments))
            return ours.recv()
        except (EOFError, OSError):
            raise SystemExit(f"error: {system.name} failed; its own error stands above") from None

    try:
        yield ask
    finally:
        ours.close()  # ends the process, unless it is at work
        process.join(timeout=10)
        process.terminate()


def _answer(system: System, num_threads: int, pipe: Connection) -> None:
    os.environ["RAYON_NUM_THREADS"] = str(num_threads)  # threads of the tokenizers library
    torch.set_num_threads(num_threads)
    ready = system.load()
    with contextlib.suppress(EOFError):
        while True:
            what, arguments = pipe.recv()
            pipe.send(what(ready, *arguments))


def first_result(ready: Ready) -> Any:
    """Give what can be compared."""
    return ready.first_result()


def one_round(ready: Ready, number: int) -> Round:
    """Do the work of a round."""
    started_at = time.perf_counter()
    amount = ready.work(number)
    if _is_on_gpu():
        torch.cuda.synchronize()
        return Round(amount, time.perf_counter() - started_at, torch.cuda.max_memory_allocated() / 1e6)
    seconds = time.perf_counter() - started_at
    # a system that starts a command is that command; its own process only holds the clock
    kilobytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss or _kilobytes("VmHWM")
    return Round(amount, seconds, kilobytes * 1.024e-3)


def held(ready: Ready) -> float:
    """Give the megabytes that the process holds now, on the GPU where it uses one."""
    return torch.cuda.memory_allocated() / 1e6 if _is_on_gpu() else _kilobytes("VmRSS") * 1.024e-3


def _is_on_gpu() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _kilobytes(name: str) -> int:
    """Read a figure of this process alone; `ru_maxrss` would include the process that started it."""
    status = Path("/proc/self/status")
    found = re.search(rf"^{name}:\s*(\d+)", status.read_text() if status.exists() else "", re.MULTILINE)
    return int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def summarise(measured: Mapping[str, Sequence[Round]]) -> list[dict[str, Any]]:
    """Take medians of the rates and of their ratios: to the first system, and to Hugging Face's fastest, in the same round."""
    rates = {name: [each.amount / each.seconds for each in rounds] for name, rounds in measured.items()}
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
    """Lay out rates, ratios and memory."""
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
    """Print tables; write the figures where `--output` asks for them, with what they were measured on."""
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
