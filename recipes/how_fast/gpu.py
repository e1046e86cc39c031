"""bertkit and Hugging Face on one GPU: tokens per second, share of the card's peak, peak memory. Start it with gpu.sh.

A row is some work with some model. Its systems are Hugging Face at its default, its faster ways, and bertkit, each in its own process.
As many as fit on the card load, compile and warm up together; then each repeats one round, while the others wait. Its result is
written at once, to results.json and results.md, and it is not measured again.
"""

import argparse
import contextlib
import datetime
import functools
import importlib.metadata
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import embedding
import numpy as np
import prediction
import rounds
import serving
import torch
import training
from common import Options, new_model, parsed, prepared_text, texts_of_mixed_lengths
from numpy.typing import NDArray
from rounds import Ready, Round, System

from bertkit.base.files import write_durably
from bertkit.base.memory import memory_here
from bertkit.data.corpus.prepared import open_prepared
from bertkit.display.page import Table
from bertkit.interop.load import load_tokenizer
from bertkit.model.bert_config import PRETRAINING_HEADS

Result = dict[str, Any]
NUM_ROUNDS = 5  # after two that warm up
BYTES = 12e9  # of the card's memory for each system that is loaded
LIMIT = 300.0  # seconds for systems that are loaded together
QUANTILES = {  # 0 %, 5 %, ... 100 % of the numbers of tokens, by the vocabulary of bert-base-uncased
    # the training sentences of SST-2
    "finetuning": (3, 4, 4, 5, 6, 6, 7, 8, 8, 9, 10, 11, 13, 14, 16, 18, 20, 23, 27, 33, 66),
    # windows of up to 384 tokens, 128 apart, of the dev questions of SQuAD 1.1
    "spans": (48, 113, 122, 129, 134, 140, 146, 152, 158, 165, 172, 179, 186, 195, 203, 215, 230, 256, 286, 337, 384),
}
GPU: Options = {
    "rows": {"nargs": "*", "metavar": "ROW", "help": "rows to measure, such as pretraining-base-128; default: all"},
    "--part": {"type": int, "choices": range(1, 5), "help": "only the rows of this part"},
    "--seconds": {"type": float, "default": math.inf, "help": "start no system whose time limit ends later"},
    "--again": {"action": "store_true", "help": "measure bertkit, and the systems that failed, once more"},
    "--device": {"default": "cuda", "choices": ["cuda", "cpu"], "help": "cpu: a trial with tiny models"},
    "--data-dir": {"type": Path, "help": "a prepared dataset; default: Python's documentation"},
    "--output-dir": {"type": Path, "default": Path("runs/gpu")},
}


@dataclass(frozen=True)
class Row:
    """Some work with a model, on `batch` sequences, or clients, of up to `length` tokens."""

    part: int
    work: str
    model: str
    length: int
    batch: int
    heads: tuple[str, ...] = PRETRAINING_HEADS
    their_class: str = "BertForPreTraining"  # of transformers; empty if the row does not train

    @property
    def name(self) -> str:
        """The name on the command line and in the results."""
        return f"{self.work}-{self.model}-{self.length}"


ROWS = (
    Row(1, "pretraining", "base", 128, 128),
    Row(1, "pretraining", "large", 128, 64),
    Row(2, "pretraining", "base", 512, 32),
    Row(2, "finetuning", "base", 128, 32, ("sequence",), "BertForSequenceClassification"),
    Row(2, "spans", "base", 384, 32, ("span",), "BertForQuestionAnswering"),
    Row(3, "prediction", "base", 128, 8192, ("sequence",), ""),
    Row(3, "vectors", "base", 128, 8192, (), ""),
    Row(3, "serving", "base", 128, 64, ("sequence",), ""),
    Row(3, "pretraining", "mini", 128, 256),
    Row(4, "pretraining", "mini", 512, 64),
    Row(4, "pretraining", "small", 128, 256),
    Row(4, "pretraining", "small", 512, 64),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the systems without a result; return 0, or 75 if some are left for the next start."""
    started_at, args = time.monotonic(), parsed(__doc__, arguments, GPU)
    for name in set(args.rows) - {row.name for row in ROWS}:
        raise SystemExit(f"error: no row {name}; expected some of {', '.join(row.name for row in ROWS)}")
    args.output_dir.mkdir(parents=True, exist_ok=True)
    results, missing = opened(args), list[tuple[Row, System, argparse.Namespace]]()
    args.data_dir = prepared_text(args.data_dir, args.output_dir).directory
    for row in ROWS:
        if row.name not in args.rows if args.rows else args.part not in (None, row.part):
            continue
        given, found = settings_of(row, args), results["rows"].setdefault(row.name, {"systems": {}})
        done = found["systems"]
        for name in list(done) if args.again else ():
            if name.startswith("bertkit") or "failed" in done[name]:
                del done[name]
        if to_measure := [system for system in systems_of(row, given) if system.name not in done]:
            found |= made(row, given)
            missing += [(row, system, given) for system in to_measure]
    size = max(1, int(results["environment"]["memory_gigabytes"] * 1e9 / BYTES))
    while missing and time.monotonic() - started_at + LIMIT < args.seconds:
        for row, system, found in measured(missing[:size]):
            systems = results["rows"][row.name]["systems"]
            compare_first(found, system, list(systems.values()))
            systems[system.name] = found
            write_durably(args.output_dir / "results.json", json.dumps(results, indent=1) + "\n")
            write_durably(args.output_dir / "results.md", markdown(results) + "\n")
            print(f"{row.name}, {system.name}: measured after {time.monotonic() - started_at:.0f} s", flush=True)
        missing = missing[size:]
    shutil.rmtree(args.output_dir / "models", ignore_errors=True)
    left = [f"left for the next start: {row.name}, {system.name}" for row, system, _ in missing]
    print(markdown(results), *left, sep="\n")
    return 75 if left else 0


def opened(args: argparse.Namespace) -> Result:
    """Return the results so far; refuse those of another card or another torch."""
    is_trial, path = args.device == "cpu", args.output_dir / "results.json"
    here = {
        "card": "none: a trial on the CPU" if is_trial else torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    if path.exists():
        results: Result = json.loads(path.read_text(encoding="utf-8"))
        was = {name: results["environment"][name] for name in here}
        if was != here:
            raise SystemExit(f"error: {path} holds results of {was}, and here is {here}; set another RUN_DIR=")
        return results
    here |= {name: importlib.metadata.version(name) for name in ("transformers", "sentence-transformers")}
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    here["driver"] = "none" if is_trial else subprocess.run(query, capture_output=True, text=True).stdout.strip()
    here |= {"cuda": str(torch.version.cuda), "date": datetime.date.today().isoformat()}
    numbers = {"memory_gigabytes": memory_here(args.device).total / 1e9, "peak_teraflops": peak(args.device) / 1e12}
    return {"environment": here | numbers, "rows": {}}


def peak(device: str) -> float:
    """Measure the dense peak in bfloat16, in FLOP/s: the fastest of some products of two random matrices."""
    size = 8192 if device == "cuda" else 256
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))

    def multiply(number: int) -> float:
        for _ in range(10):
            torch.mm(left, right)
        return 10 * 2.0 * size**3

    measured = [rounds.one_round(Ready(lambda: None, multiply), number) for number in range(6)]
    return max(each.amount / each.seconds for each in measured)


def settings_of(row: Row, args: argparse.Namespace) -> argparse.Namespace:
    """Return the sizes of a row; on a card of less than 40 GB training has a quarter of the batch."""
    is_small = row.their_class and memory_here(args.device).total < 40e9
    sizes = {
        "model": row.model, "vocab_size": 30522, "max_seq_length": row.length, "num_clients": row.batch,
        "batch_sequences": row.batch // 4 if is_small else row.batch, "num_texts": 0 if row.their_class else 8192,
        "steps_per_round": 5 if row.work == "pretraining" else 20, "round_seconds": 3.0,
        "num_threads": min(8, os.cpu_count() or 1), "model_dir": args.output_dir / "models" / row.name, "precision": "bf16",
        "profile": args.output_dir / f"{row.name}.profile.txt",
    }  # fmt: skip
    trial = {
        "model": "tiny", "vocab_size": 1, "max_seq_length": row.length // 8, "num_clients": 4, "batch_sequences": 4,
        "num_texts": 0 if row.their_class else 32, "steps_per_round": 2, "round_seconds": 0.2, "num_threads": 1,
    }  # fmt: skip
    return argparse.Namespace(**(vars(args) | sizes | (trial if args.device == "cpu" else {})))


def made(row: Row, args: argparse.Namespace) -> Result:
    """Write a new model for a row; return the title of the row, and its FLOPs for each token."""
    shutil.rmtree(args.model_dir, ignore_errors=True)
    args.model_dir.parent.mkdir(exist_ok=True)
    labels: dict[str, Any] = {"labels": prediction.LABELS} if row.heads == ("sequence",) else {}
    new_model(args, open_prepared(args.data_dir).tokenizer, args.model_dir, row.heads, **labels)
    config, num_masked = json.loads((args.model_dir / "config.json").read_text(encoding="utf-8")), 0.0
    if row.their_class:
        batches = [batches_of(row, args).of_step(step) for step in range(args.steps_per_round)]
        lengths = np.concatenate([batch.sequence_lengths for batch in batches])
        num_masked = sum(batch.loss_counts.get("mlm", 0) for batch in batches)
    else:
        lengths = np.array([len(ids) for ids in load_tokenizer(args.model_dir)(texts_of(args))["input_ids"]])
    flops = (3 if row.their_class else 1) * forward_flops(config, lengths, num_masked) / float(lengths.sum())
    title = f"{row.name}: {args.batch_sequences} at a time, {lengths.mean():.0f} tokens on average"
    return {"title": f"{title}, {flops / 1e6:.0f} MFLOP for each", "flops_per_token": flops}


def forward_flops(config: Result, lengths: NDArray[np.int64], num_masked: float) -> float:
    """Count the FLOPs of the matrix products of a forward pass without padding, with the decoder at masked tokens alone.

    tokens L (8 D^2 + 4 D F)  +  (sum of T^2) 4 L D  +  masked tokens (2 D^2 + 2 D V)  +  sequences (2 D^2 + 4 D)
    """
    hidden, inner, layers = (float(config[name]) for name in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    of_tokens = lengths.sum() * layers * (8 * hidden**2 + 4 * hidden * inner)
    of_attention = (lengths**2).sum() * 4 * layers * hidden
    of_masked = num_masked * (2 * hidden**2 + 2 * hidden * config["vocab_size"])
    return float(of_tokens + of_attention + of_masked + len(lengths) * (2 * hidden**2 + 4 * hidden))


def batches_of(row: Row, args: argparse.Namespace) -> training.Pairs:
    """Return the batches of a row that trains."""
    if row.work == "pretraining":
        return training.Pairs(args.data_dir, args.max_seq_length, args.batch_sequences)
    lengths = tuple(min(length, args.max_seq_length) for length in QUANTILES[row.work])
    return training.Texts(args.data_dir, args.max_seq_length, args.batch_sequences, True, lengths, row.heads[0])


def texts_of(args: argparse.Namespace) -> list[str]:
    """Return the texts of a row that does not train."""
    return texts_of_mixed_lengths(open_prepared(args.data_dir), args.num_texts, args.max_seq_length)


def systems_of(row: Row, args: argparse.Namespace) -> list[System]:
    """List the systems of a row: Hugging Face at its default, in float32; its faster ways; bertkit."""
    tolerance: float | tuple[float, ...] = 2e-2
    found: dict[str, Any]
    if row.their_class:
        sizes = args.model_dir, row.their_class, args.device, args.steps_per_round
        ours = training.Training(batches_of(row, args), *sizes, is_repeated=True)
        # nearly all pairs are as long as they may be, so compiled code for this length alone is faster
        ways = ["padded to max_seq_length, compiled"]
        if row.work != "pretraining":
            ways = ["grouped by length", "grouped by length, compiled"]
        found = {f"Hugging Face bf16, {way}": (training.hugging_face, ours, "bf16", way) for way in ways}
        default = "padded to max_seq_length"
        found = {f"Hugging Face fp32, {default}": (training.hugging_face, ours, "fp32", default), **found}
        found["bertkit bf16"] = (training.bertkit, ours, "bf16")
        tolerance = (0.2, 0.2) if row.work == "spans" else training.TOLERANCE  # their softmax includes the padding
    else:
        texts, size = texts_of(args), args.num_texts
        few, many = ((args, args.model_dir, each) for each in (texts[: size // 32], texts))
        by_work: dict[str, dict[str, Any]] = {
            "prediction": {
                "Hugging Face fp32, one text at a time": (prediction.pipeline, *few, "fp32"),
                "Hugging Face bf16, grouped by length": (prediction.hugging_face, *many, "bf16", 256),
                "Hugging Face bf16, grouped by length, compiled": (prediction.hugging_face, *many, "bf16", 256, True),
                "bertkit bf16": (prediction.bertkit, *many),
            },
            "vectors": {
                "sentence-transformers fp32, batches of 32": (embedding.hugging_face, *many, "fp32", size),
                "sentence-transformers bf16, batches of 256": (embedding.hugging_face, *many, "bf16", size, 256),
                "the same, compiled": (embedding.hugging_face, *many, "bf16", size, 256, True),
                "bertkit bf16": (embedding.bertkit, *many, "bf16", size),
            },
            "serving": {
                "FastAPI and a pipeline, fp32": (serving.ready, *many, serving.FIRST, "fp32"),
                "FastAPI and padded batches, bf16": (serving.ready, *many, serving.PADDED, "bf16"),
                "bertkit serve, bf16": (serving.ready, *many, "bertkit serve", "bf16"),
            },
        }
        found = by_work[row.work]
    return [System(name, functools.partial(*load), tolerance) for name, load in found.items()]


def measured(
    chosen: Sequence[tuple[Row, System, argparse.Namespace]],
) -> Iterator[tuple[Row, System, Result]]:
    """Load systems together, then measure one after another; write profiles of bertkit to the folder of the results."""

    def ready(place: int) -> Result:
        try:
            found: Result = {"first": np.ravel(ask[place](rounds.first_result))[:64].tolist()}
            for number in range(2):
                ask[place](rounds.one_round, number)
        except SystemExit as error:
            return {"failed": str(error)}
        return {**found, "warm_up_seconds": time.monotonic() - started_at}

    started_at = time.monotonic()
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(len(chosen)) as pool:
        ask = [stack.enter_context(rounds.started(system, args.num_threads, LIMIT)) for _, system, args in chosen]
        for (row, system, args), found, each in zip(chosen, [*pool.map(ready, range(len(chosen)))], ask, strict=True):
            if "failed" not in found:
                try:
                    each(rounds.forget_peak)
                    found["rounds"] = [asdict(each(rounds.one_round, number)) for number in range(NUM_ROUNDS)]
                    found["notes"] = each(rounds.notes)
                    if system.name == "bertkit bf16":
                        with contextlib.suppress(SystemExit):  # the result counts without it
                            args.profile.write_text(each(rounds.profiled), encoding="utf-8")
                except SystemExit as error:
                    found = {"failed": str(error)}
            yield row, system, found


def compare_first(found: Result, system: System, references: Sequence[Result]) -> None:
    """Note it if a system's first result is not that of the row's first system."""
    for reference in [each["first"] for each in references if "first" in each][:1] if "first" in found else ():
        pairs = list(zip(found["first"], reference, strict=False))  # the default may have fewer texts
        differences = np.array([rounds.gap(*pair) for pair in pairs])
        if not np.all(differences <= np.asarray(system.tolerance)):
            found["notes"].append(f"not the same work: first results differ by {differences.max():.1e}")


def markdown(results: Result) -> str:
    """Return the environment, and a table for each row."""
    environment = results["environment"]
    parts = ["\n".join(f"- {name}: {value}" for name, value in environment.items())]
    for row in (results["rows"][row.name] for row in ROWS if row.name in results["rows"]):
        systems = sorted(row["systems"].items(), key=lambda item: "fp32" not in item[0])  # the default first
        done = {name: each for name, each in systems if "rounds" in each}
        if not systems:
            continue
        summary = rounds.summarise({name: [Round(**one) for one in each["rounds"]] for name, each in done.items()})
        table, share = (
            rounds.rates_table("tokens/s", summary),
            row["flops_per_token"] / environment["peak_teraflops"] / 1e12,
        )
        lines = [
            (*line, f"{each['rate'] * share:.1%}", f"{found['warm_up_seconds']:.0f} s", "; ".join(found["notes"]))
            for line, each, found in zip(table.rows, summary, done.values(), strict=True)
        ]
        lines += [(name, *[""] * 6, each["failed"]) for name, each in systems if "failed" in each]
        columns = (*table.columns, "of the peak", "ready after", "notes")
        parts.append(f"{row['title']}\n\n{Table('', columns, lines).markdown()}")
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
