"""Predictions of a classifier, compared with the pipeline of transformers: tokens per second.

python recipes/how_fast/prediction.py --precision bf16
"""

import argparse
import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from common import MODEL, PRECISION, TEXTS, new_model, parsed, prepared_text, sentences
from rounds import Ready, System, compare
from training import transformers

from bertkit.kernels import fast
from bertkit.predict.inference import predict_local
from bertkit.predict.task_model import open_task_model
from bertkit.tasks.sequence import SequenceExample
from bertkit.tasks.task import make_features
from bertkit.train.micro_batches import AUTO_MICRO_TOKENS

LABELS = ("follows", "random")
TOLERANCE = {"fp32": 1e-6, "bf16": 1e-2}  # tolerance for a probability


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison and print its table."""
    args = parsed(__doc__, arguments, MODEL, PRECISION, TEXTS)
    with tempfile.TemporaryDirectory() as folder:
        dataset, model_dir = prepared_text(args.data_dir, Path(folder)), Path(folder) / "model"
        new_model(args, dataset.tokenizer, model_dir, ("sequence",), labels=LABELS)
        compare(args, "tokens/s", systems(args, model_dir, sentences(dataset, args.num_texts)))


def systems(args: argparse.Namespace, model_dir: Path, texts: list[str]) -> list[System]:
    """List the compared systems: the pipeline with one text at a time, the pipeline grouped by length, bertkit."""
    found = [
        System(
            f"Hugging Face {each}, {way}",
            functools.partial(hugging_face, args, model_dir, texts, each, size),
            TOLERANCE[each],
        )
        for each in dict.fromkeys(("fp32", args.precision))
        for way, size in (("one at a time", 1), ("grouped by length", 32))
    ]
    ours = functools.partial(bertkit, args, model_dir, texts)
    return [*found, System(f"bertkit {args.precision}", ours, TOLERANCE[args.precision])]


def bertkit(args: argparse.Namespace, model_dir: Path, texts: list[str]) -> Ready:
    """Predict with the code of the command."""
    opened = open_task_model(str(model_dir), None, {"max_seq_length": args.max_seq_length})
    opened.model.use(fast.choose("auto"))
    predictor = opened.predictor(args.precision, AUTO_MICRO_TOKENS[args.device], opened.model.to(args.device))

    def answer() -> tuple[list[list[float]], int]:
        examples = [SequenceExample(str(number), text, None, None) for number, text in enumerate(texts)]
        features = list(make_features(opened.task, examples, opened.tokenizer, ()))
        found = predict_local(predictor, examples, features)
        shares = [[each.probabilities[label] for label in LABELS] for each in found]
        return shares, sum(len(each.input_ids) for each in features)

    return Ready(lambda: answer()[0], lambda number: answer()[1])


def hugging_face(args: argparse.Namespace, model_dir: Path, texts: list[str], precision: str, batch_size: int) -> Ready:
    """Predict with the pipeline; larger batches are sorted by length."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    settings = {"model": str(model_dir), "dtype": dtype, "device": args.device, "top_k": None}
    pipeline = transformers().pipeline("text-classification", **settings)
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]) if batch_size > 1 else 0)
    cut = {"truncation": True, "max_length": args.max_seq_length}
    num_tokens = sum(map(len, pipeline.tokenizer(texts, **cut)["input_ids"]))

    def answer() -> list[list[float]]:
        found = pipeline([texts[place] for place in order], batch_size=batch_size, **cut)
        rows = [{each["label"]: each["score"] for each in row} for row in found]
        return [
            [row[label] for label in LABELS] for _, row in sorted(zip(order, rows, strict=True), key=lambda x: x[0])
        ]

    return Ready(answer, lambda number: len(answer()) and num_tokens)


if __name__ == "__main__":
    main()
