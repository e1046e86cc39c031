"""bertkit beside busy processes, by how long its threads spin while they wait for one another: tokens per second.

    python recipes/how_fast/sharing.py --num-threads 2
    python recipes/how_fast/sharing.py --num-threads 2 --work training --busy 0 2 --waits bertkit 1000 --output sharing.json

Each way of waiting has its own process, and all of them work in turn.
"""

import argparse
import contextlib
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import prediction
import serving
from common import MODEL, PRECISION, TEXTS, Options, new_model, parsed, prepared_text, texts_of_mixed_lengths
from rounds import Ready, System, one_round, report, started
from training import Pairs, Training, bertkit

from bertkit.base.processors import share_processors
from bertkit.data.corpus.prepared import PreparedDataset
from bertkit.display.page import Table
from bertkit.model.bert_config import PRETRAINING_HEADS

WORKS = ("training", "prediction", "serving")
PASSIVE, ALONE = "passive", "one thread"
Rates = dict[tuple[str, int], list[float]]  # by way of waiting and number of busy processes
SHARING: Options = {
    "--work": {"nargs": "+", "choices": WORKS, "default": list(WORKS)},
    "--busy": {"type": int, "nargs": "+", "default": [0, 1, 2, 4], "help": "numbers of busy processes"},
    "--waits": {
        "nargs": "+",
        "default": ["bertkit", "300000", "100000", "10000", "1000", "100", PASSIVE, ALONE],
        "help": f"values of GOMP_SPINCOUNT, GNU's own is 300000; '{PASSIVE}' is OMP_WAIT_POLICY; bertkit sets neither",
    },
    "--round-seconds": {"type": float, "default": 2.0},
    "--num-clients": {"type": int, "default": 16, "help": "of the server"},
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each kind of work; print a table for each, with a row for each way of waiting."""
    args = parsed(__doc__, arguments, MODEL, PRECISION, TEXTS, SHARING)
    results, tables = [], []
    with tempfile.TemporaryDirectory() as folder:
        dataset = prepared_text(args.data_dir, Path(folder))
        for work in args.work:
            heads = PRETRAINING_HEADS if work == "training" else ("sequence",)
            new_model(args, dataset.tokenizer, Path(folder) / work, heads, labels=prediction.LABELS)
            rates = measure(args, work, dataset, Path(folder) / work)
            results += [
                {"work": work, "waits": way, "busy": busy, "rates": found} for (way, busy), found in rates.items()
            ]
            rows = [(way, *(f"{statistics.median(rates[way, busy]):,.0f}" for busy in args.busy)) for way in args.waits]
            tables.append(Table(f"{work}, tokens/s", ("waits", *(f"{busy} busy" for busy in args.busy)), rows))
    report(args, "tokens/s", results, tables)


def measure(args: argparse.Namespace, work: str, dataset: PreparedDataset, model_dir: Path) -> Rates:
    """Return the tokens per second in each round; each is written to standard error as it ends."""
    rates: Rates = {(way, busy): [] for way in args.waits for busy in args.busy}
    with contextlib.ExitStack() as stack:
        asks = {}
        for way in args.waits:
            own = argparse.Namespace(**{**vars(args), "num_threads": 1 if way == ALONE else args.num_threads})
            system = System(work, functools.partial(sharing, loader(own, work, dataset, model_dir)))
            with environment_of(way):
                asks[way] = stack.enter_context(started(system, own.num_threads))
                asks[way](rate, args.round_seconds)  # a warm-up
        for number in range(args.rounds):
            for busy in args.busy:
                with beside(busy):
                    for way in args.waits if number % 2 else reversed(args.waits):
                        rates[way, busy].append(asks[way](rate, args.round_seconds))
                        print(f"{work}, {busy} busy, {way}: {rates[way, busy][-1]:.1f}", file=sys.stderr, flush=True)
    return rates


def loader(args: argparse.Namespace, work: str, dataset: PreparedDataset, model_dir: Path) -> Callable[[], Ready]:
    """Return the function that loads bertkit for a kind of work."""
    if work == "training":
        pairs = Pairs(dataset.directory, args.max_seq_length, args.batch_sequences)
        return functools.partial(
            bertkit, Training(pairs, model_dir, "BertForPreTraining", args.device, 1), args.precision
        )
    texts = texts_of_mixed_lengths(dataset, args.num_texts, args.max_seq_length)
    if work == "prediction":
        return functools.partial(prediction.bertkit, args, model_dir, texts)
    return functools.partial(serving.ready, args, model_dir, texts, "bertkit serve", args.precision)


def sharing(load: Callable[[], Ready]) -> Ready:
    """Load bertkit as its commands do: threads wait as the environment says, else by the load of the machine."""
    share_processors()
    return load()


def rate(ready: Ready, seconds: float) -> float:
    """Work for some seconds, and to the end of the last step; return the tokens per second."""
    started_at, rounds = time.perf_counter(), list[Any]()
    while time.perf_counter() < started_at + seconds:
        rounds.append(one_round(ready, len(rounds) % 8))
    return float(sum(each.amount for each in rounds) / sum(each.seconds for each in rounds))


@contextlib.contextmanager
def environment_of(way: str) -> Iterator[None]:
    """Set how the threads of a process that starts now will wait."""
    before = dict(os.environ)
    if way == PASSIVE:
        os.environ["OMP_WAIT_POLICY"] = PASSIVE
    elif way.isdigit():
        os.environ["GOMP_SPINCOUNT"] = way
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def beside(num_busy: int) -> Iterator[None]:
    """Keep some processes busy."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_busy)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
