"""bertkit and Hugging Face on one GPU: tokens per second, share of the card's peak, peak memory. Start it with gpu.sh.

A row is some work with some model. Hugging Face at its default, its faster ways, and bertkit take turns, each alone in its own process
with a time limit: it loads, compiles and warms up, then repeats one round. What a system did is written at once to results.json and
results.md, and not measured again.
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
from collections.abc import Sequence
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
from rounds import Ready, Round, System, check_same, one_round, rates_table, summarise

from bertkit.base.files import write_durably
from bertkit.base.memory import memory_here
from bertkit.data.corpus.prepared import open_prepared
from bertkit.interop.load import load_tokenizer
from bertkit.model.bert_config import PRETRAINING_HEADS
from bertkit.view.page import Table

Result = dict[str, Any]
LIMIT, LIMIT_COMPILED = 120, 200  # the most seconds of a system, with loading and compiling
NUM_ROUNDS = 5  # after two that warm up
QUANTILES = {  # 0 %, 5 %, ... 100 % of the numbers of tokens, by the vocabulary of bert-base-uncased
    # the training sentences of SST-2
    "sequence": (3, 4, 4, 5, 6, 6, 7, 8, 8, 9, 10, 11, 13, 14, 16, 18, 20, 23, 27, 33, 66),
    # windows of up to 384 tokens, 128 apart, of the dev questions of SQuAD 1.1
    "span": (48, 113, 122, 129, 134, 140, 146, 152, 158, 165, 172, 179, 186, 195, 203, 215, 230, 256, 286, 337, 384),
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
    """Some work with a model, on sequences of up to `length` tokens; `batch` sequences a step, texts a round, or clients."""

    part: int
    work: str
    model: str
    length: int
    batch: int
    heads: tuple[str, ...] = PRETRAINING_HEADS
    their_class: str = ""  # of transformers; empty if the row does not train

    @property
    def name(self) -> str:
        """The name on the command line and in the results."""
        return f"{self.work}-{self.model}-{self.length}"


pretraining = functools.partial(Row, work="pretraining", their_class="BertForPreTraining")
ROWS = (
    pretraining(1, model="base", length=128, batch=128),
    pretraining(1, model="large", length=128, batch=64),
    Row(2, "finetuning", "base", 128, 32, ("sequence",), "BertForSequenceClassification"),
    Row(2, "spans", "base", 384, 32, ("span",), "BertForQuestionAnswering"),
    pretraining(2, model="base", length=512, batch=32),
    Row(3, "prediction", "base", 128, 8192, ("sequence",)),
    Row(3, "vectors", "base", 128, 8192, ()),
    Row(3, "serving", "base", 128, 64, ("sequence",)),
    pretraining(3, model="mini", length=128, batch=256),
    pretraining(4, model="mini", length=512, batch=64),
    pretraining(4, model="small", length=128, batch=256),
    pretraining(4, model="small", length=512, batch=64),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the systems without a result; return 0, or 75 if some are left for the next start."""
    started_at, args = time.monotonic(), parsed(__doc__, arguments, GPU)
    unknown = [name for name in args.rows if name not in {row.name for row in ROWS}]
    if unknown:
        raise SystemExit(f"error: no row {unknown[0]}; expected some of: {' '.join(row.name for row in ROWS)}")
    args.output_dir.mkdir(parents=True, exist_ok=True)
    results, left = opened(args), list[str]()
    args.data_dir = prepared_text(args.data_dir, args.output_dir).directory
    for row in ROWS:
        if row.name not in args.rows if args.rows else args.part not in (None, row.part):
            continue
        given, found = settings_of(row, args), results["rows"].setdefault(row.name, {"systems": {}})
        done = found["systems"]
        for name in [name for name in done if args.again and (name.startswith("bertkit") or "failed" in done[name])]:
            del done[name]
        systems = systems_of(row, given)
        missing = [system for system in systems if system.name not in done]
        if missing and not left:
            found |= made(row, given)
        for system in missing:
            limit = 200.0 if "compiled" in system.name else 120.0  # seconds, with loading and compiling
            if left or time.monotonic() - started_at + limit > args.seconds:
                left.append(f"{row.name}, {system.name}")
                continue
            done[system.name] = alone(system, done.get(systems[0].name), given, limit)
            write_durably(args.output_dir / "results.json", json.dumps(results, indent=1) + "\n")
            write_durably(args.output_dir / "results.md", markdown(results) + "\n")
            print(f"{row.name}, {system.name}: measured in {time.monotonic() - started_at:.0f} s", flush=True)
    shutil.rmtree(args.output_dir / "model", ignore_errors=True)
    print(markdown(results), *(f"left for the next start: {name}" for name in left), sep="\n")
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
    """Measure the dense peak in bfloat16, in FLOP/s: the fastest of some products of two large random matrices."""
    size = 8192 if device == "cuda" else 256
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))

    def multiply(number: int) -> float:
        for _ in range(10):
            torch.mm(left, right)
        return 10 * 2.0 * size**3

    measured = [one_round(Ready(lambda: None, multiply), number) for number in range(6)]
    return max(each.amount / each.seconds for each in measured)


def settings_of(row: Row, args: argparse.Namespace) -> argparse.Namespace:
    """Return the sizes of a row."""
    is_trial = args.device == "cpu"
    is_small = row.their_class and not is_trial and memory_here("cuda").total < 40e9
    return argparse.Namespace(
        device=args.device,
        precision="bf16",
        data_dir=args.data_dir,
        model_dir=args.output_dir / "model",
        model="tiny" if is_trial else row.model,
        vocab_size=1 if is_trial else 30522,
        max_seq_length=row.length // 8 if is_trial else row.length,
        batch_sequences=4 if is_trial else row.batch // 4 if is_small else row.batch,
        steps_per_round=2 if is_trial else 5 if row.work == "pretraining" else 20,
        num_texts=0 if row.their_class else 64 if is_trial else 8192,
        num_threads=1 if is_trial else min(8, os.cpu_count() or 1),
        num_clients=4 if is_trial else row.batch,
        round_seconds=0.2 if is_trial else 3.0,
        profile=args.output_dir / f"{row.name}.profile.txt",
    )


def made(row: Row, args: argparse.Namespace) -> Result:
    """Write a new model for a row; return the work of the row, and its FLOPs for each token."""
    shutil.rmtree(args.model_dir, ignore_errors=True)
    labels: dict[str, Any] = {"labels": prediction.LABELS} if row.heads == ("sequence",) else {}
    new_model(args, open_prepared(args.data_dir).tokenizer, args.model_dir, row.heads, **labels)
    config, num_masked = json.loads((args.model_dir / "config.json").read_text(encoding="utf-8")), 0.0
    if row.their_class:
        batches = [batches_of(row, args).of_step(step) for step in range(args.steps_per_round)]
        lengths = np.concatenate([batch.sequence_lengths for batch in batches])
        num_masked = sum(batch.loss_counts.get("mlm", 0) for batch in batches)
    else:
        lengths = np.array([len(ids) for ids in load_tokenizer(args.model_dir)(texts_of(args))["input_ids"]])
    work = f"{row.name}: {args.batch_sequences} sequences at a time, {lengths.mean():.0f} tokens on average"
    flops = (3 if row.their_class else 1) * forward_flops(config, lengths, num_masked)
    return {"work": work, "flops_per_token": flops / float(lengths.sum())}


def forward_flops(config: Result, lengths: NDArray[np.int64], num_masked: float) -> float:
    """Count the FLOPs of the matrix products of a forward pass, for both sides without padding and with masked tokens alone decoded.

    tokens L (8 D^2 + 4 D F)  +  (sum of T^2) 4 L D  +  masked tokens (2 D^2 + 2 D V)  +  sequences (2 D^2 + 4 D)
    """
    hidden, inner, layers = (config[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    of_tokens = float(lengths.sum()) * layers * (8 * hidden**2 + 4 * hidden * inner)
    of_attention = float((lengths**2).sum()) * 4 * layers * hidden
    of_masked = num_masked * (2 * hidden**2 + 2 * hidden * config["vocab_size"])
    return of_tokens + of_attention + of_masked + len(lengths) * (2 * hidden**2 + 4 * hidden)


def batches_of(row: Row, args: argparse.Namespace) -> training.Pairs:
    """Return the batches of a row that trains."""
    if row.work == "pretraining":
        return training.Pairs(args.data_dir, args.max_seq_length, args.batch_sequences)
    lengths = tuple(min(length, args.max_seq_length) for length in QUANTILES[row.heads[0]])
    return training.Texts(args.data_dir, args.max_seq_length, args.batch_sequences, lengths=lengths, head=row.heads[0])


def texts_of(args: argparse.Namespace) -> list[str]:
    """Return the texts of a row that does not train."""
    return texts_of_mixed_lengths(open_prepared(args.data_dir), args.num_texts, args.max_seq_length)


def systems_of(row: Row, args: argparse.Namespace) -> list[System]:
    """List the systems of a row: Hugging Face at its default, in float32; its faster ways; bertkit."""
    tolerance: float | tuple[float, float] = 2e-2
    shared: tuple[Any, ...] = (args, args.model_dir) if row.their_class else (args, args.model_dir, texts_of(args))
    if row.their_class:
        sizes = args.model_dir, row.their_class, args.device, args.steps_per_round
        ours = training.Training(batches_of(row, args), *sizes, is_repeated=True)
        # nearly all pairs are as long as they may be, so Hugging Face compiles for this length alone
        best = "padded to max_seq_length" if row.work == "pretraining" else "grouped by length"
        ways = (("fp32", "padded to max_seq_length"), ("bf16", "grouped by length"), ("bf16", f"{best}, compiled"))
        found: dict[str, Any] = {f"{each}, {way}": (training.hugging_face, ours, each, way) for each, way in ways}
        found["bertkit bf16"] = (training.bertkit, ours, "bf16")
        tolerance = (0.2, 0.2) if row.work == "spans" else training.TOLERANCE  # their softmax includes the padding
    elif row.work == "prediction":
        found = {
            "fp32, one text at a time": (prediction.pipeline, *shared[:2], shared[2][: args.num_texts // 32], "fp32"),
            "bf16, grouped by length": (prediction.hugging_face, *shared, "bf16", 256),
            "bf16, grouped by length, compiled": (prediction.hugging_face, *shared, "bf16", 256, True),
            "bertkit bf16": (prediction.bertkit, *shared),
        }
    elif row.work == "vectors":
        found = {
            "fp32, batches of 32": (embedding.hugging_face, *shared, "fp32", args.num_texts),
            "bf16, batches of 256": (embedding.hugging_face, *shared, "bf16", args.num_texts, 256),
            "bf16, batches of 256, compiled": (embedding.hugging_face, *shared, "bf16", args.num_texts, 256, True),
            "bertkit bf16": (embedding.bertkit, *shared, "bf16", args.num_texts),
        }
    else:
        found = {
            "fp32, a pipeline in FastAPI": (serving.ready, *shared, serving.FIRST, "fp32"),
            "bf16, padded batches in FastAPI": (serving.ready, *shared, serving.PADDED, "bf16"),
            "bertkit bf16": (serving.ready, *shared, "bertkit serve", "bf16"),
        }
    return [
        System(name if name.startswith("bertkit") else f"Hugging Face {name}", functools.partial(*load), tolerance)
        for name, load in found.items()
    ]


def alone(system: System, reference: Result | None, args: argparse.Namespace, limit: float) -> Result:
    """Measure a system in a process of its own; the peak memory is that of the measured rounds. Write a profile of bertkit."""
    started_at = time.monotonic()
    try:
        with rounds.started(system, args.num_threads, limit) as ask:
            first = np.ravel(ask(rounds.first_result))[:64].tolist()
            for number in range(2):
                ask(rounds.one_round, number)
            found: Result = {"first_result": first, "warm_up_seconds": time.monotonic() - started_at}
            ask(rounds.forget_peak)
            found["rounds"] = [asdict(ask(rounds.one_round, number)) for number in range(NUM_ROUNDS)]
            found |= ask(rounds.notes)
            if system.name.startswith("bertkit"):
                with contextlib.suppress(SystemExit):  # the result counts without it
                    args.profile.write_text(ask(rounds.profiled), encoding="utf-8")
    except SystemExit as error:
        return {"failed": str(error)}
    if reference is not None and "first_result" in reference:
        pairs = zip(found["first_result"], reference["first_result"], strict=False)  # the default may have fewer texts
        try:
            check_same(("it", "the first system"), [*zip(*pairs, strict=True)][::-1], [system.tolerance] * 2)
        except SystemExit as error:
            found["differs"] = str(error)
    return found


def markdown(results: Result) -> str:
    """Return the environment, and a table for each row."""
    environment, parts = results["environment"], []
    parts.append("\n".join(f"- {name}: {value}" for name, value in environment.items()))
    for row in (results["rows"][row.name] for row in ROWS if row.name in results["rows"]):
        systems = dict(sorted(row["systems"].items(), key=lambda item: "fp32" not in item[0]))  # the default first
        done = {
            name: [Round(**each) for each in found["rounds"]] for name, found in systems.items() if "rounds" in found
        }
        summary = summarise(done) if done else []
        table = rates_table("tokens/s", summary)
        lines = [
            (
                *line,
                f"{each['rate'] * row['flops_per_token'] / environment['peak_teraflops'] / 1e12:.1%}",
                f"{systems[each['name']]['warm_up_seconds']:.0f} s",
                "; ".join(
                    str(systems[each["name"]][note]) for note in ("latency", "differs") if note in systems[each["name"]]
                ),
            )
            for line, each in zip(table.rows, summary, strict=True)
        ]
        lines += [
            (name, "", "", "", "", "", "", found["failed"]) for name, found in systems.items() if "failed" in found
        ]
        parts.append(
            f"{row['work']}\n\n" + Table("", (*table.columns, "of the peak", "ready after", ""), lines).markdown()
        )
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
