"""What every bench measures with: text, a model to start from, and processes that do what they are asked."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bertkit.bench.systems import HELD, Contestant, Job, serve
from bertkit.data.config import CorpusConfig
from bertkit.data.corpus import Corpus
from bertkit.data.prepared import open_prepared
from bertkit.data.tokenizer import Tokenizer
from bertkit.errors import InputError
from bertkit.interop.load import write_model
from bertkit.model.bert import init_weights
from bertkit.model.config import BertConfig
from bertkit.model.heads import BertWithHeads
from bertkit.progress import Progress
from bertkit.settings.schemas import BenchSettings
from bertkit.view.charts import BarChart, LineChart
from bertkit.view.page import Table

LABELS = ("follows", "random")


@dataclass(frozen=True)
class Findings:
    """What a bench found.

    Attributes:
        unit: of its rates.
        results: plain values, for JSON.
        tables: for the terminal, and for the page.
        charts: for the page.
    """

    unit: str
    results: Sequence[dict[str, Any]]
    tables: Sequence[Table]
    charts: Sequence[LineChart | BarChart]


@dataclass(frozen=True)
class Round:
    """What a contestant did in a round.

    Attributes:
        amount: tokens, or bytes.
        seconds: that it took.
        megabytes: of memory at the highest point so far.
    """

    amount: int
    seconds: float
    megabytes: float


class Asked:
    """A contestant's process, and the line to it."""

    def __init__(self, job: Job, contestant: Contestant) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = contestant.name
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, job, contestant), daemon=False)
        self.process.start()
        theirs.close()

    def first_result(self) -> Any:
        """Give what can be compared, before any round."""
        return self._ask(None)

    def held(self) -> int:
        """Give the bytes that it holds now."""
        held: int = self._ask(HELD)
        return held

    def round(self, number: int) -> Round:
        """Let it do the work of a round."""
        return Round(*self._ask(number))

    def _ask(self, what: int | str | None) -> Any:
        try:
            self.connection.send(what)
            return self.connection.recv()
        except (EOFError, OSError):
            raise InputError(f"bench: {self.name} failed; its error stands above") from None


@contextlib.contextmanager
def started(job: Job, contestant: Contestant) -> Iterator[Asked]:
    """Start a contestant's process, and end it."""
    asked = Asked(job, contestant)
    try:
        yield asked
    finally:
        asked.connection.close()
        asked.process.join(10)
        if asked.process.is_alive():
            asked.process.kill()


def measure(asked: Sequence[Asked], num_rounds: int, what: str = "measuring") -> list[list[Round]]:
    """Measure: for each round after the first, what each contestant did; they take turns, forwards and backwards."""
    measured: list[list[Round]] = []
    total = (num_rounds + 1) * len(asked)
    with Progress(what, total) as progress:
        for number in range(num_rounds + 1):
            order = range(len(asked)) if number % 2 else reversed(range(len(asked)))
            found = {}
            for done, place in enumerate(order, 1):
                found[place] = asked[place].round(number)
                progress.advance(number * len(asked) + done)
            measured.append([found[place] for place in range(len(asked))])
    return measured[1:]


def find_data(settings: BenchSettings, scratch: Path) -> Path:
    """Give the prepared text: the user's, or that of Python's documentation, made here."""
    if settings.data_dir is not None:
        open_prepared(Path(settings.data_dir))
        return Path(settings.data_dir)
    command = [sys.executable, "-m", "bertkit", "prepare", "corpus=python_docs", "tokenizer.vocab_size=8192"]
    done = subprocess.run([*command, f"output_dir={scratch / 'data'}"], capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"bench: preparing Python's documentation failed: {done.stderr.strip()}")
    return scratch / "data"


def start_config(settings: BenchSettings, data_dir: Path, *, is_pretraining: bool, longest: int) -> BertConfig:
    """Give the shape of the model that all contestants load, with a vocabulary filled up to `vocab_size`.

    Args:
        settings: of the bench.
        data_dir: the prepared text.
        is_pretraining: whether it has no labels.
        longest: sequence of the bench; the model has as many positions at least.
    """
    tokenizer = open_prepared(data_dir).tokenizer
    shape = dataclasses.asdict(settings.model)
    shape["max_position_embeddings"] = max(shape["max_position_embeddings"], longest)
    labels: dict[str, Any] = {} if is_pretraining else {"labels": LABELS}
    vocab_size = max(settings.vocab_size, tokenizer.vocab_size)
    return BertConfig(**shape, vocab_size=vocab_size, pad_token_id=tokenizer.facts.pad, **labels)


def write_start(config: BertConfig, data_dir: Path, target: Path, heads: Sequence[str]) -> Path:
    """Write a new model, with the tokenizer of the text."""
    tokenizer = open_prepared(data_dir).tokenizer
    fillers = [f"[unused{number}]" for number in range(tokenizer.vocab_size, config.vocab_size)]
    if fillers:
        vocab = {token: number for number, token in enumerate([*tokenizer.vocab, *fillers])}
        tokenizer = Tokenizer(vocab, tokenizer.lowercase, tokenizer.strip_accents, tokenizer.rules)
    model = BertWithHeads(config, heads)
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(0))
    target.mkdir()
    write_model(model, tokenizer, target)
    return target


def sentences_of(settings: BenchSettings, data_dir: Path) -> tuple[str, ...]:
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


def write_text(settings: BenchSettings, megabytes: int, scratch: Path) -> Path:
    """Write text as sentences, one a line: the user's, or the documentation of Python, again and again up to the wanted size."""
    path, wanted = scratch / f"text-{megabytes}.txt", megabytes * 1_000_000
    corpus = Corpus(
        CorpusConfig(
            "python_docs" if settings.text is None else "files",
            settings.text, "auto", "text", "auto", "utf-8", None, "train",
        )
    )  # fmt: skip
    with path.open("w", encoding="utf-8") as file:
        written = 0
        while written < wanted:
            before = written
            for document in corpus:
                written += len("\n".join([*document, "", ""]).encode())
                file.write("\n".join([*document, "", ""]))
                if written >= wanted:
                    break
            if written == before:
                raise InputError(f"text={settings.text}: no text in it")
    return path
