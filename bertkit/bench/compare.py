"""bertkit and Hugging Face at the same work, in turn; which ways compete, how they are known to do the same, and the rates.

1. Prepare text and a model, where all contestants start.
2. Start a process for each contestant; check that their first results agree.
3. Rounds: one contestant at a time, in turn forwards and backwards; the first round warms up.
4. Medians, ratios to the first contestant of the same round, and their spread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bertkit.bench.rounds import (
    Findings,
    find_data,
    measure,
    sentences_of,
    start_config,
    started,
    write_start,
    write_text,
)
from bertkit.bench.systems import BERTKIT, HUGGING_FACE, Contestant, Job
from bertkit.errors import ParityError
from bertkit.model import kernels
from bertkit.model.config import PRETRAINING_HEADS
from bertkit.settings.schemas import BenchSettings
from bertkit.train.loop import choose_device
from bertkit.view.charts import BarChart
from bertkit.view.page import Table

SAME_LOSS = 1e-4  # relative; of the first batch, without dropout, in float32
NEAR_LOSS = 2e-2  # the same in bfloat16
WITHOUT_A_MODEL = {
    "prepare": ("Hugging Face: datasets, map", "bertkit prepare"),
    "batches": ("Hugging Face: masks and padding of ready pairs", "bertkit: pairs, order, masks, packing"),
}
SAME_PROBABILITY = {"fp32": 1e-6, "bf16": 1e-2}


@dataclass(frozen=True)
class Result:
    """What was measured of a contestant.

    Attributes:
        name: of the contestant.
        rate: units a second, the median of the rounds.
        ratio: to the first contestant's rate in the same round, the median.
        ratio_low: the least of the rounds.
        ratio_high: the greatest.
        peak_megabytes: of memory; of its process, or of the GPU.
        peak_share: of the device's measured matrix-multiplication rate; None where the work is not counted in them.
        ratio_to_best: to the rate, in the same round, of Hugging Face at its best, the last of its ways; the median.
    """

    name: str
    rate: float
    ratio: float
    ratio_low: float
    ratio_high: float
    peak_megabytes: float
    peak_share: float | None
    ratio_to_best: float | None = None


def compare(settings: BenchSettings) -> Findings:
    """Let all contestants do the same work, in turn.

    Raises:
        InputError: the data cannot be used.
        ParityError: two contestants did not do the same work.
    """
    device = choose_device(settings.device).type
    with tempfile.TemporaryDirectory(prefix="bertkit-bench-") as scratch:
        data_dir = find_data(settings, Path(scratch))
        is_pretraining = settings.what not in ("finetune", "predict")
        config = start_config(settings, data_dir, is_pretraining=is_pretraining, longest=settings.max_seq_length)
        heads = PRETRAINING_HEADS if is_pretraining else ("sequence",)
        job = Job(
            what=settings.what,
            data_dir=data_dir,
            model_dir=write_start(config, data_dir, Path(scratch) / "start", heads),
            device=device,
            max_seq_length=settings.max_seq_length,
            batch_sequences=settings.batch_sequences,
            steps_per_round=settings.steps_per_round,
            num_threads=settings.num_threads,
            texts=sentences_of(settings, data_dir) if settings.what == "predict" else (),
            files=(write_text(settings, settings.text_megabytes, Path(scratch)),) if settings.what == "prepare" else (),
        )
        contestants = contestants_of(settings)
        with contextlib.ExitStack() as stack:
            asked = [stack.enter_context(started(job, contestant)) for contestant in contestants]
            check_same(settings.what, contestants, [each.first_result() for each in asked])
            rounds = measure(asked, settings.rounds)
    share_of_rate = 0.0
    if settings.what == "pretrain":
        share_of_rate = _flops_a_token(settings) / _matrix_rate(device, settings.precision, settings.num_threads)
    unit = "MB/s" if settings.what == "prepare" else "tokens/s"
    speeds = [[each.amount / each.seconds for each in measured] for measured in zip(*rounds, strict=True)]
    best = max(place for place, contestant in enumerate(contestants) if contestant.system == HUGGING_FACE)
    results = []
    for place, contestant in enumerate(contestants):
        ratios, to_best = (
            [fast / slow for fast, slow in zip(speeds[place], speeds[base], strict=True)] for base in (0, best)
        )
        rate = statistics.median(speeds[place])
        is_counted = share_of_rate and contestant.precision == settings.precision
        results.append(
            Result(
                name=contestant.name,
                rate=rate / (1e6 if unit == "MB/s" else 1),
                ratio=statistics.median(ratios),
                ratio_low=min(ratios),
                ratio_high=max(ratios),
                peak_megabytes=max(measured[place].megabytes for measured in rounds),
                peak_share=rate * share_of_rate if is_counted else None,
                ratio_to_best=statistics.median(to_best) if best else None,
            )
        )
    return findings(settings, unit, results)


def contestants_of(settings: BenchSettings) -> list[Contestant]:
    """Choose who competes: Hugging Face at its default first, at its best, then bertkit."""
    precision, what = settings.precision, settings.what
    if what in WITHOUT_A_MODEL:
        theirs, ours = WITHOUT_A_MODEL[what]
        return [Contestant(theirs, HUGGING_FACE), Contestant(ours, BERTKIT)]
    default = "one at a time" if what == "predict" else "padded to max_seq_length"
    found = [
        Contestant(f"Hugging Face fp32, {default}", HUGGING_FACE),
        Contestant("Hugging Face fp32, grouped by length", HUGGING_FACE, padding="grouped"),
    ]
    if precision == "bf16":
        found.append(Contestant(f"Hugging Face bf16, {default}", HUGGING_FACE, "bf16"))
        found.append(Contestant("Hugging Face bf16, grouped by length", HUGGING_FACE, "bf16", "grouped"))
    if choose_device(settings.device).type == "cuda" and what in ("pretrain", "finetune"):
        found.append(Contestant(f"Hugging Face {precision}, compiled", HUGGING_FACE, precision, is_compiled=True))
    found.append(Contestant(f"bertkit {precision}", BERTKIT, precision))
    if settings.tricks:
        chosen = kernels.choose("auto")
        at_work = kernels.ON_CPU if choose_device(settings.device).type == "cpu" else kernels.ON_CUDA
        found += [
            Contestant(f"bertkit {precision}, without {name}", BERTKIT, precision, kernels=tuple(set(chosen) - {name}))
            for name in chosen
            if name in at_work
        ]
        found.append(Contestant(f"bertkit {precision}, plain", BERTKIT, precision, kernels=()))
    return found


def check_same(what: str, contestants: Sequence[Contestant], firsts: Sequence[Any]) -> None:
    """Refuse to compare different work.

    Raises:
        ParityError: a contestant's first result is another one.
    """
    for contestant, first in zip(contestants, firsts, strict=True):
        if what in ("pretrain", "finetune"):
            exact, near = (abs(ours / theirs - 1) for ours, theirs in zip(first, firsts[0], strict=True))
            difference, limit = (exact, SAME_LOSS) if near <= NEAR_LOSS else (near, NEAR_LOSS)
        elif what == "predict":
            rows = zip(firsts[0], first, strict=True)
            difference = max(abs(ours[label] - theirs[label]) for ours, theirs in rows for label in ours)
            limit = SAME_PROBABILITY[contestant.precision]
        else:  # numbers of tokens
            difference, limit = abs(first / firsts[0] - 1), 0.0
        if not difference <= limit:
            raise ParityError(
                f"bench: {contestant.name} and {contestants[0].name} did not do the same work: their first results differ by "
                f"{difference:.1e}, expected at most {limit:.0e}"
            )


def _matrix_rate(device: str, precision: str, num_threads: int) -> float:
    """Measure what the device does at best: FLOP a second of a product of 1024 x 1024 matrices, or larger on a GPU."""
    size = 1024 if device == "cpu" else 8192
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    first = torch.ones(size, size, dtype=dtype, device=device)
    multiply = torch.mm if device == "cuda" or not kernels.has_onednn() else kernels.product
    seconds = []
    for _ in range(12):
        if device == "cuda":
            torch.cuda.synchronize()
        started_at = time.perf_counter()
        multiply(first, first)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started_at)
    torch.set_num_threads(before)
    return 2 * size**3 / min(seconds)


def _flops_a_token(settings: BenchSettings) -> float:
    """The multiplications and additions of a training step for each token: three times those of a forward pass.

    Layers, attention, the masked LM head of the 15 % that are predicted, pooler and next sentence.
    """
    shape, length = settings.model, settings.max_seq_length
    hidden, inner = shape.hidden_size, shape.intermediate_size
    layer = 8 * hidden**2 + 4 * hidden * inner + 4 * length * hidden
    decoder = 0.15 * (2 * hidden**2 + 2 * hidden * settings.vocab_size)
    return 3 * (shape.num_hidden_layers * layer + decoder + (2 * hidden**2 + 4 * hidden) / length)


def compare_startup(settings: BenchSettings) -> Findings:
    """Start commands again and again: Hugging Face's import of a model class first."""
    commands = {  # with their exit codes
        "import transformers' BertModel": (["-c", "from transformers import BertModel"], 0),
        "python alone": (["-c", "pass"], 0),
        "bertkit --help": (["-m", "bertkit", "--help"], 0),
        "bertkit pretrain --cfg job": (["-m", "bertkit", "pretrain", "data_dir=x", "output_dir=y", "--cfg", "job"], 0),
        "a refused configuration": (["-m", "bertkit", "pretrain", "modle=tiny"], 2),
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(settings.rounds + 1):
        for name in commands if number % 2 else reversed(commands):
            started_at = time.perf_counter()
            arguments, code = commands[name]
            done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
            if done.returncode != code:
                raise ParityError(f"bench: {name} ended with {done.returncode}, expected {code}: {done.stderr.strip()}")
            if number:
                times[name].append(time.perf_counter() - started_at)
    first = next(iter(times.values()))
    results = []
    for name, seconds in times.items():
        ratios = [slow / fast for slow, fast in zip(first, seconds, strict=True)]
        results.append(
            Result(name, 1 / statistics.median(seconds), statistics.median(ratios), min(ratios), max(ratios), 0.0, None)
        )
    return findings(settings, "starts/s", results)


def findings(settings: BenchSettings, unit: str, results: Sequence[Result]) -> Findings:
    """Put results into a table, and with `tricks` a second one of what each of them gives; and into charts."""
    own = f"bertkit {settings.precision}"
    tables = [table(unit, results)]
    tricks = [each for each in results if each.name.startswith(f"{own}, ")]
    if tricks:
        whole = next(each for each in results if each.name == own)
        rows = [(each.name.removeprefix(f"{own}, "), f"{each.rate / whole.rate:.2f}") for each in tricks]
        tables.append(Table("Tricks", ("without one of them, or plain", "rate, to that with all"), rows))
    charts = [
        BarChart(
            "Ratio to the first, median of the rounds, least to greatest",
            [(each.name, each.ratio, each.ratio_low, each.ratio_high) for each in results],
        )
    ]
    if any(each.peak_megabytes for each in results):
        bars = [(each.name, each.peak_megabytes, each.peak_megabytes, each.peak_megabytes) for each in results]
        charts.append(BarChart("Peak memory, MB", bars))
    return Findings(unit, [dataclasses.asdict(each) for each in results], tables, charts)


def table(unit: str, results: Sequence[Result]) -> Table:
    """Write results for people."""
    rows = []
    for each in results:
        rate = f"{each.rate:,.0f}" if each.rate >= 100 else f"{each.rate:.2f}"
        share = "" if each.peak_share is None else f"{each.peak_share:.0%}"
        memory = f"{each.peak_megabytes:,.0f} MB" if each.peak_megabytes else ""
        ratio = f"{each.ratio:.2f} ({each.ratio_low:.2f} - {each.ratio_high:.2f})"
        to_best = "" if each.ratio_to_best is None else f"{each.ratio_to_best:.2f}"
        rows.append((each.name, rate, ratio, to_best, memory, share))
    head = ("", unit, "ratio (lowest - highest)", "to Hugging Face at its best", "peak memory", "share of peak")
    return Table("", head, rows)
