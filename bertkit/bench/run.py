"""The command `bench`: bertkit beside Hugging Face, on the same work -> tables, JSON, a page.

How fast, and with how much memory: rates, and their ratios to those of Hugging Face in the same rounds.
"""

from __future__ import annotations

import datetime
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from bertkit.bench.attention import compare_attention
from bertkit.bench.bertkit_way import fast_ways
from bertkit.bench.rounds import Round, measure
from bertkit.bench.scaling import compare_memory, compare_scaling
from bertkit.bench.serving import compare_serving
from bertkit.bench.workload import BERTKIT, HUGGING_FACE, System, make_workload
from bertkit.bench.writing import make_writing_workload
from bertkit.config import to_mapping
from bertkit.errors import ParityError, say
from bertkit.files import to_json
from bertkit.launch.world import own_command
from bertkit.run.outputs import check_output, write_output
from bertkit.settings.bench import BenchSettings
from bertkit.train.processes import choose_device
from bertkit.view.bench_page import HEAD, Findings, Result, bench_page, rates_found
from bertkit.view.page import Table

WITHOUT_A_MODEL = {
    "prepare": ("Hugging Face: datasets, map", "bertkit prepare"),
    "batches": ("Hugging Face: masks and padding of ready pairs", "bertkit: pairs, order, masks, packing"),
}


def run(settings: BenchSettings) -> None:
    """Measure, print the tables, and write them where asked.

    Raises:
        InputError: the data cannot be used.
        ParityError: two systems did not do the same work.
    """
    if settings.output is not None:
        check_output(settings.output, settings.overwrite)
    others = {
        "startup": compare_startup,
        "memory": compare_memory,
        "scaling": compare_scaling,
        "attention": compare_attention,
        "serve": compare_serving,
        "generate": compare_generating,
    }
    found = others.get(settings.what, compare)(settings)
    for number, table in enumerate(found.tables):
        say(*[""] * bool(number), *([table.title, ""] if table.title else []), *table.markdown().split("\n"))
    if settings.output is None:
        return
    facts: dict[str, Any] = {
        "what": settings.what,
        "date": datetime.date.today().isoformat(),
        "processor": _processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() and settings.device != "cpu" else None,
        "torch": torch.__version__,
        "command": shlex.join(["bertkit", *sys.argv[1:]]),
    }
    if settings.output.endswith(".html"):
        text = bench_page(facts, found, yaml.safe_dump(to_mapping(settings), sort_keys=False))
    else:
        text = to_json({**facts, "settings": to_mapping(settings), "unit": found.unit, "results": list(found.results)})
    write_output(settings.output, text)


def compare(settings: BenchSettings) -> Findings:
    """Let all systems do the same work, in turn."""
    systems = systems_of(settings)
    names = [system.name for system in systems]
    with tempfile.TemporaryDirectory(prefix="bertkit-bench-") as scratch:
        if settings.what == "translate":
            workload = make_writing_workload(settings, Path(scratch))
        else:
            workload = make_workload(settings, settings.what, Path(scratch))
        rounds = measure(workload, systems, settings.rounds)
        text = 0.0 if workload.text_file is None else workload.text_file.stat().st_size / 1e6
    rates = [[(text or each.num_tokens) / each.seconds for each in of_system] for of_system in rounds]
    peaks = [_peak(of_system) for of_system in rounds]
    ways_of_theirs = sum(system.library == HUGGING_FACE for system in systems)
    results = results_of(dict(zip(names, rates, strict=True)), peaks, names[ways_of_theirs - 1])
    return rates_found("MB/s" if text else "tokens/s", results)


def compare_generating(settings: BenchSettings) -> Findings:
    """Let both libraries write the same texts, by each search, one a call and several; in turn, two at a time."""
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="bertkit-bench-") as scratch:
        workload = make_writing_workload(settings, Path(scratch))
        for systems in systems_that_write(settings):
            rounds = measure(workload, systems, settings.rounds, systems[0].name.partition(", ")[2])
            rates = {
                system.name: [each.num_tokens / each.seconds for each in of_system]
                for system, of_system in zip(systems, rounds, strict=True)
            }
            results += results_of(rates, [_peak(of_system) for of_system in rounds], systems[0].name)
    found = rates_found("tokens/s", results)
    (table,), (speed, *others) = found.tables, found.charts
    best = table.columns.index(HEAD[1])  # each way of Hugging Face's is the only one of its kind
    cut = [tuple(cell for place, cell in enumerate(row) if place != best) for row in (table.columns, *table.rows)]
    title = (
        "Speed beside Hugging Face's of the same search and call: median of the rounds, from the lowest to the highest"
    )
    return replace(found, tables=[Table("", cut[0], cut[1:])], charts=[replace(speed, title=title), *others])


def systems_that_write(settings: BenchSettings) -> list[list[System]]:
    """Choose what is compared with what: a way of Hugging Face, and bertkit's."""
    searches = {"greedy": 1, f"{settings.num_beams} beams": settings.num_beams}
    calls = {"one text a call": False, f"{settings.batch_sequences} texts a call": True}
    return [
        [
            System(f"{library}, {search}, {call}", library, is_grouped=is_grouped, num_beams=num_beams)
            for library in (HUGGING_FACE, BERTKIT)
        ]
        for search, num_beams in searches.items()
        if search == "greedy" or num_beams > 1
        for call, is_grouped in calls.items()
    ]


def _peak(rounds: Sequence[Round]) -> float:
    return max(each.megabytes for each in rounds)


def systems_of(settings: BenchSettings) -> list[System]:
    """Choose what is compared: Hugging Face at its default first, at its best last, then bertkit."""
    precision, what, device = settings.precision, settings.what, choose_device(settings.device).type
    if what in WITHOUT_A_MODEL:
        theirs, ours = WITHOUT_A_MODEL[what]
        return [System(theirs, HUGGING_FACE), System(ours, BERTKIT)]
    if what == "embed":
        return _systems_that_embed(settings, fast_ways(device))
    default = {"predict": "one at a time", "translate": "padded to the longest"}.get(what, "padded to max_seq_length")
    found = []
    for each in dict.fromkeys(("fp32", precision)):
        found.append(System(f"Hugging Face {each}, {default}", HUGGING_FACE, each))
        found.append(System(f"Hugging Face {each}, grouped by length", HUGGING_FACE, each, is_grouped=True))
    if device == "cuda" and what != "predict":
        found.append(System(f"Hugging Face {precision}, compiled", HUGGING_FACE, precision, is_compiled=True))
    found.append(System(f"bertkit {precision}", BERTKIT, precision))
    return found + (_without_each(found[-1], fast_ways(device)) if settings.tricks else [])


def _without_each(system: System, names: Sequence[str]) -> list[System]:
    """Give a system without each of its fast ways, one at a time, and without all of them."""
    left_out = [*((f"without {name}", (name,)) for name in names), ("plain", tuple(names))]
    return [replace(system, name=f"{system.name}, {label}", without=without) for label, without in left_out]


def _systems_that_embed(settings: BenchSettings, fast: Sequence[str]) -> list[System]:
    calls, precision = {f"{settings.batch_sequences} texts a call": False, "one call": True}, settings.precision
    found = [
        System(f"{name} {each}, {label}", library, each, is_grouped)
        for library, name in ((HUGGING_FACE, "sentence-transformers"), (BERTKIT, "bertkit"))
        for each in dict.fromkeys(("fp32", precision))
        for label, is_grouped in calls.items()
        if library == HUGGING_FACE or each == precision
    ]
    return found + (_without_each(found[-1], fast) if settings.tricks else [])


def results_of(rates: Mapping[str, Sequence[float]], peaks: Sequence[float], best: str) -> list[Result]:
    """Summarise the rates of every round; the first system is what the others are compared with, and then the best."""

    def ratios(name: str, base: str) -> list[float]:
        return [fast / slow for fast, slow in zip(rates[name], rates[base], strict=True)]

    results, first = [], next(iter(rates))
    for name, peak in zip(rates, peaks, strict=True):
        to_first, to_best = ratios(name, first), statistics.median(ratios(name, best)) if best != first else None
        middle, low, high = statistics.median(to_first), min(to_first), max(to_first)
        results.append(Result(name, statistics.median(rates[name]), middle, low, high, peak, to_best))
    return results


def compare_startup(settings: BenchSettings) -> Findings:
    """Start commands again and again: Hugging Face's import of a model class first."""
    commands = {  # with their exit codes
        "import transformers' BertModel": ([sys.executable, "-P", "-c", "from transformers import BertModel"], 0),
        "bertkit --help": (own_command("--help"), 0),
        "a refused configuration": (own_command("pretrain", "modle=tiny"), 2),
    }
    rates: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(settings.rounds + 1):
        for name in commands if number % 2 else reversed(commands):
            command, code = commands[name]
            started_at = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != code:
                raise ParityError(f"bench: {name} ended with {done.returncode}, expected {code}: {done.stderr.strip()}")
            if number:  # the first round warms up
                rates[name].append(1 / (time.perf_counter() - started_at))
    return rates_found("starts/s", results_of(rates, [0.0] * len(rates), next(iter(rates))))


def _processor() -> str:
    """Name the processor, and how many of its threads there are."""
    info = Path("/proc/cpuinfo")
    named = re.search(
        r"^model name\s*:\s*(.+)", info.read_text(errors="replace") if info.exists() else "", re.MULTILINE
    )
    return f"{named[1] if named else 'unknown processor'}, {torch.get_num_threads()} threads by default"
