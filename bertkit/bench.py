"""Stage: bertkit beside the Hugging Face way, on the same work -> a table, JSON, a page.

1. Prepare text and a model, where all contestants start.
2. Start a process for each contestant; check that their first results agree.
3. Rounds: one contestant at a time, in turn forwards and backwards; the first round warms up.
4. Medians, ratios to the first contestant of the same round, and their spread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import multiprocessing
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bertkit.config import to_mapping
from bertkit.contestants import BERTKIT, HUGGING_FACE, Contestant, Job, serve
from bertkit.data.prepared import open_prepared
from bertkit.data.tokenizer import Tokenizer
from bertkit.errors import InputError, ParityError
from bertkit.files import to_json, write_durably
from bertkit.interop.load import write_model
from bertkit.model import kernels
from bertkit.model.bert import init_weights
from bertkit.model.config import BertConfig
from bertkit.model.heads import BertWithHeads
from bertkit.progress import Progress
from bertkit.settings import BenchSettings
from bertkit.train.loop import choose_device

SAME_LOSS = {"fp32": 1e-4, "bf16": 2e-2}  # relative; of the first batch, without dropout
SAME_PROBABILITY = {"fp32": 1e-5, "bf16": 1e-2}
LABELS = ("follows", "random")


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
    """

    name: str
    rate: float
    ratio: float
    ratio_low: float
    ratio_high: float
    peak_megabytes: float
    peak_share: float | None


def run(settings: BenchSettings) -> None:
    """Measure, print the table, and write it where asked.

    Raises:
        InputError: the data cannot be used.
        ParityError: two contestants did not do the same work.
    """
    if settings.what == "startup":
        unit, results = "starts/s", _startup(settings)
    else:
        unit, results = _compete(settings)
    facts = {
        "what": settings.what,
        "processor": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "settings": to_mapping(settings),
        "unit": unit,
    }
    print(table(unit, results))
    if settings.output is not None:
        write_durably(
            Path(settings.output), to_json({**facts, "results": [dataclasses.asdict(each) for each in results]})
        )


def _compete(settings: BenchSettings) -> tuple[str, list[Result]]:
    device = choose_device(settings.device).type
    with tempfile.TemporaryDirectory(prefix="bertkit-bench-") as scratch:
        data_dir = _data(settings, Path(scratch))
        job = Job(
            what=settings.what,
            data_dir=data_dir,
            model_dir=_start(settings, data_dir, Path(scratch) / "start"),
            device=device,
            max_seq_length=settings.max_seq_length,
            batch_sequences=settings.batch_sequences,
            steps_per_round=settings.steps_per_round,
            num_threads=settings.num_threads,
            texts=_texts(settings, data_dir) if settings.what == "predict" else (),
            files=_files(settings, data_dir, Path(scratch)) if settings.what == "prepare" else (),
        )
        contestants = contestants_of(settings)
        with contextlib.ExitStack() as stack:
            asked = [stack.enter_context(_started(job, contestant)) for contestant in contestants]
            _check_same(settings, contestants, [each.first_result() for each in asked])
            rounds = _rounds(settings, contestants, asked)
    peak = _matrix_rate(device, settings.precision, settings.num_threads)
    flops = _flops_a_token(settings) if settings.what == "pretrain" else None
    unit = "MB/s" if settings.what == "prepare" else "tokens/s"
    results = []
    for number, contestant in enumerate(contestants):
        rates = [measured[number][0] / (1e6 if unit == "MB/s" else 1) for measured in rounds]
        ratios = [measured[number][0] / measured[0][0] for measured in rounds]
        rate = statistics.median(rates)
        share = None if flops is None or contestant.precision != settings.precision else rate * flops / peak
        memory = max(measured[number][1] for measured in rounds)
        results.append(
            Result(contestant.name, rate, statistics.median(ratios), min(ratios), max(ratios), memory, share)
        )
    return unit, results


def contestants_of(settings: BenchSettings) -> list[Contestant]:
    """Choose who competes: Hugging Face at its default first, at its best, then bertkit."""
    precision, what = settings.precision, settings.what
    if what == "prepare":
        return [Contestant("Hugging Face: datasets, map", HUGGING_FACE), Contestant("bertkit prepare", BERTKIT)]
    best = "one at a time" if what == "predict" else "padded to max_seq_length"
    found = [
        Contestant(f"Hugging Face fp32, {best}", HUGGING_FACE),
        Contestant("Hugging Face fp32, grouped by length", HUGGING_FACE, padding="grouped"),
    ]
    if precision == "bf16":
        found.append(Contestant("Hugging Face bf16, grouped by length", HUGGING_FACE, "bf16", "grouped"))
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


class _Asked:
    """A contestant's process, and the line to it."""

    def __init__(self, job: Job, contestant: Contestant) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = contestant.name
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, job, contestant), daemon=False)
        self.process.start()
        theirs.close()

    def first_result(self) -> Any:
        return self._ask(None)

    def round(self, number: int) -> tuple[float, float]:
        """Give the rate, in units a second, and the peak memory so far, in MB."""
        amount, seconds, megabytes = self._ask(number)
        return amount / seconds, megabytes

    def _ask(self, what: int | None) -> Any:
        try:
            self.connection.send(what)
            return self.connection.recv()
        except (EOFError, OSError):
            raise InputError(f"bench: {self.name} failed; its error stands above") from None


@contextlib.contextmanager
def _started(job: Job, contestant: Contestant) -> Iterator[_Asked]:
    asked = _Asked(job, contestant)
    try:
        yield asked
    finally:
        asked.connection.close()
        asked.process.join(10)
        if asked.process.is_alive():
            asked.process.kill()


def _rounds(
    settings: BenchSettings, contestants: Sequence[Contestant], asked: Sequence[_Asked]
) -> list[list[tuple[float, float]]]:
    """Measure: for each round after the first, the rate and memory of each contestant."""
    measured: list[list[tuple[float, float]]] = []
    total = (settings.rounds + 1) * len(contestants)
    with Progress("measuring", total) as progress:
        for number in range(settings.rounds + 1):
            order = range(len(asked)) if number % 2 else reversed(range(len(asked)))
            found = {}
            for done, place in enumerate(order, 1):
                found[place] = asked[place].round(number)
                progress.advance(number * len(asked) + done)
            measured.append([found[place] for place in range(len(asked))])
    return measured[1:]


def _check_same(settings: BenchSettings, contestants: Sequence[Contestant], firsts: Sequence[Any]) -> None:
    """Refuse to compare different work.

    Raises:
        ParityError: a contestant's first result is another one.
    """
    for contestant, first in zip(contestants, firsts, strict=True):
        if settings.what in ("pretrain", "finetune"):
            difference, limit = abs(first / firsts[0] - 1), SAME_LOSS[contestant.precision]
        elif settings.what == "predict":
            rows = zip(firsts[0], first, strict=True)
            difference = max(abs(ours[label] - theirs[label]) for ours, theirs in rows for label in ours)
            limit = SAME_PROBABILITY[contestant.precision]
        else:
            return
        if not difference <= limit:
            raise ParityError(
                f"bench: {contestant.name} and {contestants[0].name} did not do the same work: their first results differ by "
                f"{difference:.1e}, expected at most {limit:.0e}"
            )


def _data(settings: BenchSettings, scratch: Path) -> Path:
    if settings.data_dir is not None:
        open_prepared(Path(settings.data_dir))
        return Path(settings.data_dir)
    command = [sys.executable, "-m", "bertkit", "prepare", "corpus=python_docs", "tokenizer.vocab_size=8192"]
    done = subprocess.run([*command, f"output_dir={scratch / 'data'}"], capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"bench: preparing Python's documentation failed: {done.stderr.strip()}")
    return scratch / "data"


def _start(settings: BenchSettings, data_dir: Path, target: Path) -> Path:
    """Write the model that all contestants load."""
    tokenizer = open_prepared(data_dir).tokenizer
    is_pretraining = settings.what == "pretrain"
    if is_pretraining:  # the decoder is as large as BERT's, whatever the vocabulary of the text
        fillers = [f"[unused{number}]" for number in range(tokenizer.vocab_size, settings.vocab_size)]
        vocab = {token: number for number, token in enumerate([*tokenizer.vocab, *fillers])}
        tokenizer = Tokenizer(vocab, tokenizer.lowercase, tokenizer.strip_accents, tokenizer.rules)
    labels: dict[str, Any] = {} if is_pretraining else {"labels": LABELS}
    shape = dataclasses.asdict(settings.model)
    if shape["max_position_embeddings"] < settings.max_seq_length:
        shape["max_position_embeddings"] = settings.max_seq_length
    config = BertConfig(**shape, vocab_size=tokenizer.vocab_size, pad_token_id=tokenizer.facts.pad, **labels)
    model = BertWithHeads(config, ("masked_lm", "next_sentence") if is_pretraining else ("sequence",))
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(0))
    target.mkdir()
    write_model(model, tokenizer, target)
    return target


def _texts(settings: BenchSettings, data_dir: Path) -> tuple[str, ...]:
    """Sentences of the prepared text, decoded."""
    dataset = open_prepared(data_dir)
    split = dataset.splits["train"]
    starts = split.sentences
    count = min(settings.num_texts, len(starts) - 1)
    places = torch.linspace(0, len(starts) - 2, count).long().tolist()
    return tuple(
        dataset.tokenizer.decode(split.tokens(int(starts[place]), int(starts[place + 1] - starts[place])).tolist())
        for place in places
    )


def _files(settings: BenchSettings, data_dir: Path, scratch: Path) -> tuple[Path, ...]:
    """Write the prepared text as sentences, one a line, again and again up to the wanted size."""
    dataset = open_prepared(data_dir)
    split = dataset.splits["train"]
    path = scratch / "text.txt"
    wanted, size = settings.text_megabytes * 1_000_000, 0
    documents: list[str] = []
    for number in range(split.num_documents):
        first, last = int(split.documents[number]), int(split.documents[number + 1])
        borders = split.sentences[first : last + 1].tolist()
        lines = [dataset.tokenizer.decode(split.tokens(a, b - a).tolist()) for a, b in itertools.pairwise(borders)]
        documents.append("\n".join(lines) + "\n\n")
        size += len(documents[-1])
        if size >= wanted:
            break
    with path.open("w", encoding="utf-8") as file:
        written = 0
        while written < wanted:
            for document in documents:
                written += file.write(document)
    return (path,)


def _matrix_rate(device: str, precision: str, num_threads: int) -> float:
    """Measure what the device does at best: FLOP a second of a product of 1024 x 1024 matrices, or larger on a GPU."""
    size = 1024 if device == "cpu" else 8192
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    first = torch.ones(size, size, dtype=dtype, device=device)
    multiply = torch.mm if device == "cuda" else kernels.product
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


def _startup(settings: BenchSettings) -> list[Result]:
    """Start commands again and again: Hugging Face's import of a model class first."""
    commands = {
        "import transformers' BertModel": ["-c", "from transformers import BertModel"],
        "python alone": ["-c", "pass"],
        "bertkit --help": ["-m", "bertkit", "--help"],
        "bertkit pretrain --cfg job": ["-m", "bertkit", "pretrain", "data_dir=x", "output_dir=y", "--cfg", "job"],
        "a refused configuration": ["-m", "bertkit", "pretrain", "modle=tiny"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(settings.rounds + 1):
        for name in commands if number % 2 else reversed(commands):
            started_at = time.perf_counter()
            subprocess.run([sys.executable, *commands[name]], capture_output=True)
            if number:
                times[name].append(time.perf_counter() - started_at)
    first = next(iter(times.values()))
    results = []
    for name, seconds in times.items():
        ratios = [slow / fast for slow, fast in zip(first, seconds, strict=True)]
        results.append(
            Result(name, 1 / statistics.median(seconds), statistics.median(ratios), min(ratios), max(ratios), 0.0, None)
        )
    return results


def table(unit: str, results: Sequence[Result]) -> str:
    """Write results for people, in Markdown."""
    rows = [f"| | {unit} | ratio (lowest - highest) | peak memory | share of peak |", "|---|---|---|---|---|"]
    for each in results:
        rate = f"{each.rate:,.0f}" if each.rate >= 100 else f"{each.rate:.2f}"
        share = "" if each.peak_share is None else f"{each.peak_share:.0%}"
        memory = f"{each.peak_megabytes:,.0f} MB" if each.peak_megabytes else ""
        rows.append(
            f"| {each.name} | {rate} | {each.ratio:.2f} ({each.ratio_low:.2f} - {each.ratio_high:.2f}) | {memory} | {share} |"
        )
    return "\n".join(rows)
