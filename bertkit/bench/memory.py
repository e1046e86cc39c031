"""The peak memory of a training step for several batch sizes: Hugging Face's, bertkit's, and what the plan says of bertkit's.

Each is measured in a process of its own: its largest resident set on a CPU, the most that torch allocated on CUDA. All
sequences are full, so that both sides compute the same and the plan knows it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bertkit.bench.rounds import Findings, find_data, start_config, started, write_start
from bertkit.bench.systems import BERTKIT, HUGGING_FACE, Contestant, Job
from bertkit.errors import InputError
from bertkit.model import kernels
from bertkit.model.config import PRETRAINING_HEADS
from bertkit.progress import Progress
from bertkit.run.memory import memory_here
from bertkit.run.memory_plan import StepShape, largest_micro_batch, plan_step
from bertkit.settings.schemas import BenchSettings
from bertkit.train.loop import choose_device
from bertkit.view.charts import LineChart
from bertkit.view.page import Table

ROUNDS = 2  # of two steps each; by then the allocator has found its size


def compare_memory(settings: BenchSettings) -> Findings:
    """Measure peaks, and plan them.

    Raises:
        InputError: the data cannot be used, or a batch does not fit.
    """
    device = choose_device(settings.device).type
    theirs, ours = f"Hugging Face {settings.precision}", f"bertkit {settings.precision}"
    measured: dict[str, list[float]] = {theirs: [], ours: []}
    held = 0
    with tempfile.TemporaryDirectory(prefix="bertkit-bench-") as scratch:
        data_dir = find_data(settings, Path(scratch))
        config = start_config(settings, data_dir, is_pretraining=True, longest=settings.max_seq_length)
        start = write_start(config, data_dir, Path(scratch) / "start", PRETRAINING_HEADS)
        with Progress("measuring", 2 * len(settings.batch_sizes)) as progress:
            for number, size in enumerate(settings.batch_sizes):
                for place, (name, system) in enumerate(((theirs, HUGGING_FACE), (ours, BERTKIT))):
                    job = Job(
                        "pretrain", data_dir, start, device, settings.max_seq_length, size,
                        steps_per_round=2, num_threads=settings.num_threads, is_full=True,
                    )  # fmt: skip
                    with started(job, Contestant(name, system, settings.precision)) as asked:
                        held = asked.held()
                        measured[name].append([asked.round(step).megabytes for step in range(ROUNDS)][-1])
                    progress.advance(2 * number + place + 1)
    shape = StepShape(
        config=config,
        heads=PRETRAINING_HEADS,
        max_seq_length=settings.max_seq_length,
        precision=settings.precision,
        device=device,
        kernels=kernels.choose("auto"),
    )
    plans = [plan_step(shape, size * settings.max_seq_length) for size in settings.batch_sizes]
    planned = [(held + plan.of_step) / 1e6 for plan in plans]
    rows = list(zip(settings.batch_sizes, measured[theirs], measured[ours], planned, strict=True))
    table = Table(
        f"Peak memory of a step, {settings.max_seq_length} tokens a sequence, MB",
        ("sequences", theirs, ours, "planned", "bertkit / Hugging Face", "planned / measured"),
        [
            (f"{size}", f"{a:,.0f}", f"{b:,.0f}", f"{plan:,.0f}", f"{b / a:.2f}", f"{plan / b:.2f}")
            for size, a, b, plan in rows
        ],
    )
    parts = Table(
        "What the plan says of the largest of them, MB",
        ("held before a step", "of it weights", "of it moments", "gradients", "activations", "highest point of a step"),
        [
            tuple(
                f"{value / 1e6:,.0f}"
                for plan in plans[-1:]
                for value in (held, plan.weights, plan.moments, plan.gradients, plan.activations, plan.of_step)
            )
        ],
    )
    gigabytes = _limit(settings, device)
    largest = largest_micro_batch(shape, round(gigabytes * 1e9) - held)
    fitting = Table(
        "The largest micro-batch that fits, as planned",
        ("memory", "largest micro-batch"),
        [(f"{gigabytes:.1f} GB", f"{largest} sequences")],
    )
    results = [
        {"sequences": size, "hugging_face_megabytes": a, "megabytes": b, "planned_megabytes": plan}
        for size, a, b, plan in rows
    ]
    results.append({"memory_gigabytes": gigabytes, "largest_micro_batch": largest, "held_megabytes": held / 1e6})
    lines = [
        (name, list(zip(settings.batch_sizes, values, strict=True)))
        for name, values in (*measured.items(), ("planned for bertkit", planned))
    ]
    return Findings(
        "MB", results, [table, parts, fitting], [LineChart("Peak memory, MB, by sequences of a micro-batch", lines)]
    )


def _limit(settings: BenchSettings, device: str) -> float:
    if settings.memory_gigabytes is not None:
        return settings.memory_gigabytes
    here = memory_here(device)
    if here is None:
        raise InputError("memory_gigabytes=null: this system does not say how much memory it has; set a number")
    return here.total / 1e9
