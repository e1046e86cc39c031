"""How time grows: with the length of sequences, the batch, the corpus and the length of inputs; bertkit and Hugging Face.

Each point is measured as `bench_compare` does it: a process each, in turn, after a round to warm up. A line through the
logarithms gives the exponent: 1 where time grows in proportion, 2 with the square.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.bench.compare import check_same
from bertkit.bench.rounds import Findings, find_data, measure, start_config, started, write_start, write_text
from bertkit.bench.systems import BERTKIT, HUGGING_FACE, Contestant, Job
from bertkit.data.prepared import open_prepared
from bertkit.model.config import PRETRAINING_HEADS
from bertkit.settings.schemas import BenchSettings
from bertkit.train.loop import choose_device
from bertkit.view.charts import LineChart
from bertkit.view.page import Table


@dataclass(frozen=True)
class Point:
    """Work of one size.

    Attributes:
        size: along the axis.
        job: what is done.
        shares: what the measured time is divided by.
    """

    size: int
    job: Job
    shares: int


@dataclass(frozen=True)
class Curve:
    """How a time grows along an axis.

    Attributes:
        title: what time, by what.
        axis: its short name.
        points: at least one.
    """

    title: str
    axis: str
    points: Sequence[Point]


def compare_scaling(settings: BenchSettings) -> Findings:
    """Measure all curves.

    Raises:
        InputError: the data cannot be used.
        ParityError: the contestants did not do the same work.
    """
    contestants = [
        Contestant("Hugging Face", HUGGING_FACE, settings.precision),
        Contestant("bertkit", BERTKIT, settings.precision),
    ]
    results: list[dict[str, Any]] = []
    tables, charts = [], []
    with tempfile.TemporaryDirectory(prefix="bertkit-bench-") as scratch:
        for curve in curves_of(settings, Path(scratch)):
            measured = [_measure(settings, contestants, curve, point) for point in curve.points]
            sizes = [point.size for point in curve.points]
            lines = []
            for place, contestant in enumerate(contestants):
                medians = [statistics.median(of_point[place]) for of_point in measured]
                lines.append((contestant.name, list(zip(sizes, medians, strict=True))))
                points = [
                    {"size": size, "seconds": median, "lowest": min(times[place]), "highest": max(times[place])}
                    for size, median, times in zip(sizes, medians, measured, strict=True)
                ]
                fitted = exponent(sizes, medians)
                results.append({"curve": curve.axis, "name": contestant.name, "exponent": fitted, "points": points})
            charts.append(LineChart(f"{curve.title}, seconds", lines, is_log=True))
            tables.append(_table(curve, lines))
    return Findings("seconds", results, tables, charts)


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float | None:
    """Fit the p of time = c size^p, by least squares of the logarithms; None for one size."""
    if len(sizes) < 2:
        return None
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def curves_of(settings: BenchSettings, scratch: Path) -> list[Curve]:
    """Lay out the work of every point, with its text and its models in `scratch`."""
    data_dir, device = find_data(settings, scratch), choose_device(settings.device).type
    longest = max(*settings.lengths, settings.max_seq_length)
    starts = {}
    for what, heads in (("pretrain", PRETRAINING_HEADS), ("predict", ("sequence",))):
        config = start_config(settings, data_dir, is_pretraining=what == "pretrain", longest=longest)
        starts[what] = write_start(config, data_dir, scratch / what, heads)
    step = Job(
        "pretrain", data_dir, starts["pretrain"], device, settings.max_seq_length, settings.batch_sequences,
        settings.steps_per_round, settings.num_threads, is_full=True,
    )  # fmt: skip
    tokens = settings.batch_sequences * settings.max_seq_length
    by_length, by_input = [], []
    for length in settings.lengths:
        count = max(1, tokens // length)
        job = dataclasses.replace(step, max_seq_length=length, batch_sequences=count)
        by_length.append(Point(length, job, settings.steps_per_round * count))
        texts = _texts(data_dir, length, count)
        job = dataclasses.replace(step, what="predict", model_dir=starts["predict"], texts=texts, max_seq_length=length)
        by_input.append(Point(length, job, len(texts)))
    by_batch = [
        Point(size, dataclasses.replace(step, batch_sequences=size), settings.steps_per_round)
        for size in settings.batch_sizes
    ]
    by_corpus = [
        Point(size, dataclasses.replace(step, what="prepare", files=(write_text(settings, size, scratch),)), 1)
        for size in settings.corpus_megabytes
    ]
    at = f"{settings.max_seq_length} tokens each"
    return [
        Curve(
            f"Training on a sequence, by its tokens; {tokens:,} a step, {settings.precision}",
            "sequence length",
            by_length,
        ),
        Curve(f"Step, by sequences of {at}, {settings.precision}", "batch size", by_batch),
        Curve("prepare, by megabytes of text", "corpus size", by_corpus),
        Curve(f"predict of a text, by its tokens; {tokens:,} in all, {settings.precision}", "input length", by_input),
    ]


def _texts(data_dir: Path, length: int, count: int) -> tuple[str, ...]:
    """Texts of about so many tokens with [CLS] and [SEP], cut from the prepared text wherever they end."""
    dataset = open_prepared(data_dir)
    split = dataset.splits["train"]
    body = max(1, length - 2)
    ids = np.resize(split.tokens(0, min(split.num_tokens, count * body)).astype(np.int64), count * body)
    return tuple(dataset.tokenizer.decode(part.tolist()) for part in np.split(ids, count))


def _measure(
    settings: BenchSettings, contestants: Sequence[Contestant], curve: Curve, point: Point
) -> list[list[float]]:
    """Give the seconds of each contestant in each round."""
    with contextlib.ExitStack() as stack:
        asked = [stack.enter_context(started(point.job, contestant)) for contestant in contestants]
        check_same(point.job.what, contestants, [each.first_result() for each in asked])
        rounds = measure(asked, settings.rounds, f"{curve.axis} {point.size}")
    return [[of_round[place].seconds / point.shares for of_round in rounds] for place in range(len(contestants))]


def _table(curve: Curve, lines: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> Table:
    (first, theirs), (second, ours) = lines
    rows = [
        (f"{point.size:,}", _seconds(slow), _seconds(fast), f"{slow / fast:.2f}")
        for point, (_, slow), (_, fast) in zip(curve.points, theirs, ours, strict=True)
    ]
    fitted = [exponent([size for size, _ in points], [time for _, time in points]) for _, points in lines]
    last = ("exponent", *("" if value is None else f"{value:.2f}" for value in fitted), "")
    return Table(curve.title, (curve.axis, first, second, "ratio"), [*rows, last])


def _seconds(seconds: float) -> str:
    """Write a time with three digits."""
    digits = max(0, 2 - math.floor(math.log10(seconds)))
    return f"{seconds:.{digits}f} s" if seconds >= 1 else f"{1000 * seconds:.{max(0, digits - 3)}f} ms"
