"""How time grows with the length of sequences, the batch, the corpus and the length of inputs, and memory with the batch.

A line through the logarithms gives the exponent of a time: 1 where it grows in proportion, 2 with the square. For memory all
sequences are full, so that bertkit and Hugging Face compute the same and the plan of bertkit's step knows it.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from bertkit.bench.rounds import held, measure, one_round, started
from bertkit.bench.workload import BERTKIT, HUGGING_FACE, System, Workload, make_workload, texts_of_length, write_text
from bertkit.errors import InputError
from bertkit.kernels import fast
from bertkit.memory import memory_here
from bertkit.model.config import PRETRAINING_HEADS
from bertkit.model.heads import BertWithHeads
from bertkit.run.memory import TrainingStep, largest_micro_batch, plan_step
from bertkit.settings.bench import BenchSettings
from bertkit.view.bench_page import Findings
from bertkit.view.charts import LineChart
from bertkit.view.page import Table
from bertkit.view.progress import Progress


@dataclass(frozen=True)
class Curve:
    """How a time grows along an axis."""

    title: str  # what time, by what
    axis: str
    points: Mapping[int, tuple[Workload, int]]  # for each size the work, and what its time is divided by


def compare_scaling(settings: BenchSettings) -> Findings:
    """Measure the time at every point of all curves."""
    systems = [System(library, library, settings.precision) for library in (HUGGING_FACE, BERTKIT)]
    results, tables, charts = [], [], []
    with tempfile.TemporaryDirectory(prefix="bertkit-bench-") as scratch:
        for curve in curves_of(settings, Path(scratch)):
            lines: dict[str, list[tuple[float, float]]] = {system.name: [] for system in systems}
            for size, (workload, shares) in curve.points.items():
                rounds = measure(workload, systems, settings.rounds, f"{curve.axis} {size}")
                for line, of_system in zip(lines.values(), rounds, strict=True):
                    line.append((size, statistics.median(each.seconds for each in of_system) / shares))
            exponents = [exponent(line) for line in lines.values()]
            for (name, line), power in zip(lines.items(), exponents, strict=True):
                points = [{"size": size, "seconds": seconds} for size, seconds in line]
                results.append({"curve": curve.axis, "name": name, "exponent": power, "points": points})
            rows = [
                (f"{size:,}", _seconds(slow), _seconds(fast), f"{slow / fast:.2f}")
                for (size, slow), (_, fast) in zip(*lines.values(), strict=True)
            ]
            last = ("exponent", *("" if power is None else f"{power:.2f}" for power in exponents), "")
            tables.append(Table(curve.title, (curve.axis, *lines, "ratio"), [*rows, last]))
            charts.append(LineChart(f"{curve.title}, seconds", list(lines.items()), is_log=True))
    return Findings("seconds", results, tables, charts)


def curves_of(settings: BenchSettings, scratch: Path) -> list[Curve]:
    """Lay out the work of every point, with its text and its models in `scratch`."""
    longest, steps = max(settings.lengths), settings.steps_per_round
    training = replace(make_workload(settings, "pretrain", scratch, longest), is_full=True)
    predicting = make_workload(replace(settings, data_dir=str(training.data_dir)), "predict", scratch, longest)
    tokens = settings.batch_sequences * settings.max_seq_length
    by_length, by_input = {}, {}
    for length in settings.lengths:
        count = max(1, tokens // length)
        by_length[length] = replace(training, max_seq_length=length, batch_sequences=count), steps * count
        texts = texts_of_length(training.data_dir, length, count)
        by_input[length] = replace(predicting, max_seq_length=length, texts=texts), count
    by_batch = {size: (replace(training, batch_sequences=size), steps) for size in settings.batch_sizes}
    text_files = {size: write_text(settings, size, scratch) for size in settings.corpus_megabytes}
    by_corpus = {size: (replace(training, what="prepare", text_file=file), 1) for size, file in text_files.items()}
    precision, each = settings.precision, f"{settings.max_seq_length} tokens each"
    return [
        Curve(f"Training on a sequence, by its tokens; {tokens:,} a step, {precision}", "sequence length", by_length),
        Curve(f"Step, by sequences of {each}, {precision}", "batch size", by_batch),
        Curve("prepare, by megabytes of text", "corpus size", by_corpus),
        Curve(f"predict of a text, by its tokens; {tokens:,} in all, {precision}", "input length", by_input),
    ]


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """Fit the p of time = c size^p, by least squares of the logarithms; None for one size."""
    sizes, times = np.log(points).T
    return None if len(points) < 2 else float(np.polyfit(sizes, times, 1)[0])


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def compare_memory(settings: BenchSettings) -> Findings:
    """Measure the peak of a training step for each batch size, in a process of its own, and plan it."""
    sizes, precision = settings.batch_sizes, settings.precision
    systems = [System(f"{library} {precision}", library, precision) for library in (HUGGING_FACE, BERTKIT)]
    peaks: dict[str, list[float]] = {system.name: [] for system in systems}
    progress = Progress("measuring", len(sizes) * len(systems))
    with tempfile.TemporaryDirectory(prefix="bertkit-bench-") as scratch, progress:
        workload = make_workload(settings, "pretrain", Path(scratch))
        for size in sizes:
            of_size = replace(workload, batch_sequences=size, steps_per_round=2, is_full=True)
            for system in systems:
                with started(of_size, system) as ask:
                    before = ask(held)
                    peaks[system.name].append([ask(one_round, number).megabytes for number in range(2)][-1])
                progress.advance(sum(map(len, peaks.values())))
    planned, gigabytes, largest = plan(settings, workload, before)
    lines = [(name, list(zip(sizes, values, strict=True))) for name, values in [*peaks.items(), ("planned", planned)]]
    names = ("sequences", "hugging_face_megabytes", "megabytes", "planned_megabytes")
    results = [dict(zip(names, row, strict=True)) for row in zip(sizes, *peaks.values(), planned, strict=True)]
    rows = [
        (f"{size}", f"{theirs:,.0f}", f"{ours:,.0f}", f"{plan:,.0f}", f"{ours / theirs:.2f}", f"{plan / ours:.2f}")
        for size, theirs, ours, plan in (each.values() for each in results)
    ]
    results.append({"memory_gigabytes": gigabytes, "largest_micro_batch": largest, "held_megabytes": before / 1e6})
    head = ("sequences", *peaks, "planned", "bertkit / Hugging Face", "planned / measured")
    fitting = [(f"{gigabytes:.1f} GB", f"{largest} sequences")]
    tables = [
        Table(f"Peak memory of a step, {settings.max_seq_length} tokens a sequence, MB", head, rows),
        Table("The largest micro-batch that fits, as planned", ("memory", "largest micro-batch"), fitting),
    ]
    return Findings("MB", results, tables, [LineChart("Peak memory, MB, by sequences of a micro-batch", lines)])


def plan(settings: BenchSettings, workload: Workload, before: int) -> tuple[list[float], float, int]:
    """Give the megabytes of a step of each size, with what its process holds before; how many gigabytes there are; what fits."""
    length, here = workload.max_seq_length, memory_here(workload.device)
    gigabytes = settings.memory_gigabytes or (here.total / 1e9 if here else None)
    if gigabytes is None:
        raise InputError("memory_gigabytes=null: this system does not say how much memory it has; set a number")
    with torch.device("meta"):
        model = BertWithHeads(workload.config, PRETRAINING_HEADS)
    model.use(fast.choose("auto"))
    step = TrainingStep(model=model, max_seq_length=length, precision=settings.precision, device=workload.device)
    planned = [(before + plan_step(step, size * length).of_step) / 1e6 for size in settings.batch_sizes]
    return planned, gigabytes, largest_micro_batch(step, round(gigabytes * 1e9) - before)
