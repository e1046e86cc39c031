"""Predictions of a classifier, compared with the pipeline of transformers and with a loop over sorted batches: tokens per second.

python recipes/how_fast/prediction.py --precision bf16
"""

import argparse
import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from common import MODEL, PRECISION, TEXTS, new_model, parsed, prepared_text, sentences
from rounds import Ready, System, compare
from training import compiled, transformers

from bertkit.inference.predictor import load_predictor
from bertkit.interop.load import load_tokenizer
from bertkit.kernels.fast import keep_freed_memory

LABELS = ("follows", "random")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TOLERANCE = {"fp32": 1e-6, "bf16": 1e-2}  # tolerance for a probability


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison and print its table."""
    args = parsed(__doc__, arguments, MODEL, PRECISION, TEXTS)
    with tempfile.TemporaryDirectory() as folder:
        dataset, model_dir = prepared_text(args.data_dir, Path(folder)), Path(folder) / "model"
        new_model(args, dataset.tokenizer, model_dir, ("sequence",), labels=LABELS)
        compare(args, "tokens/s", systems(args, model_dir, sentences(dataset, args.num_texts)))


def systems(args: argparse.Namespace, model_dir: Path, texts: list[str]) -> list[System]:
    """List the compared systems: the pipeline with one text at a time, batches grouped by length, bertkit."""
    found = [
        System(f"Hugging Face {each}, {way}", functools.partial(load, args, model_dir, texts, each), TOLERANCE[each])
        for each in dict.fromkeys(("fp32", args.precision))
        for way, load in (("one at a time", pipeline), ("grouped by length", hugging_face))
    ]
    ours = functools.partial(bertkit, args, model_dir, texts)
    return [*found, System(f"bertkit {args.precision}", ours, TOLERANCE[args.precision])]


def bertkit(args: argparse.Namespace, model_dir: Path, texts: list[str]) -> Ready:
    """Predict with `bertkit.load_predictor`."""
    settings = {"precision": args.precision, "device": args.device}
    predictor = load_predictor(model_dir, max_seq_length=args.max_seq_length, **settings)
    num_tokens = sum(min(len(ids), args.max_seq_length) for ids in load_tokenizer(model_dir)(texts)["input_ids"])

    def answer() -> list[list[float]]:
        return [[row["probabilities"][label] for label in LABELS] for row in predictor(texts)]

    return Ready(answer, lambda number: len(answer()) and num_tokens)


def pipeline(args: argparse.Namespace, model_dir: Path, texts: list[str], precision: str) -> Ready:
    """Predict with the pipeline, one text at a time, which is its default."""
    settings = {"model": str(model_dir), "dtype": DTYPES[precision], "device": args.device, "top_k": None}
    classify = transformers().pipeline("text-classification", **settings)
    cut = {"truncation": True, "max_length": args.max_seq_length}
    num_tokens = sum(map(len, classify.tokenizer(texts, **cut)["input_ids"]))

    def answer() -> list[list[float]]:
        rows = [{each["label"]: each["score"] for each in row} for row in classify(texts, **cut)]
        return [[row[label] for label in LABELS] for row in rows]

    return Ready(answer, lambda number: len(answer()) and num_tokens)


def hugging_face(
    args: argparse.Namespace,
    model_dir: Path,
    texts: list[str],
    precision: str,
    batch_size: int = 32,
    is_compiled: bool = False,
) -> Ready:
    """Predict in a plain loop over batches that are sorted by length, with bertkit's allocator setting."""
    keep_freed_memory()
    found: Any = transformers()
    tokenizer = found.AutoTokenizer.from_pretrained(model_dir)
    dtype = DTYPES[precision]
    model = found.AutoModelForSequenceClassification.from_pretrained(model_dir, dtype=dtype).to(args.device).eval()
    called = compiled(model, args.device, is_dynamic=True) if is_compiled else model

    @torch.no_grad()
    def answer() -> tuple[list[list[float]], int]:
        ids = tokenizer(texts, truncation=True, max_length=args.max_seq_length)["input_ids"]
        order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
        logits = []  # stay on the device, so that nothing waits for it
        for start in range(0, len(order), batch_size):
            chosen = {"input_ids": [ids[place] for place in order[start : start + batch_size]]}
            batch = tokenizer.pad(chosen, pad_to_multiple_of=8, return_tensors="pt")
            logits.append(called(**batch.to(args.device)).logits.float())
        shares = dict(zip(order, torch.cat(logits).softmax(-1).tolist(), strict=True))
        return [shares[place] for place in range(len(ids))], sum(map(len, ids))

    return Ready(lambda: answer()[0], lambda number: answer()[1])


if __name__ == "__main__":
    main()
