"""Vectors of texts of 4 to `--max-seq-length` tokens, compared with sentence-transformers: tokens per second.

    python recipes/how_fast/embedding.py --model-dir all-MiniLM-L6-v2 --num-texts 128

Texts come in calls of `--batch-sequences`, as in a service, and all in one call, so that both can sort them by length.
"""

import argparse
import functools
import itertools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from common import MODEL, PRECISION, TEXTS, Options, new_model, parsed, prepared_text, texts_of_mixed_lengths
from numpy.typing import NDArray
from prediction import DTYPES
from rounds import Ready, System, compare
from training import compiled, transformers

from bertkit.inference.embedding import load_embedder
from bertkit.interop.load import load_tokenizer
from bertkit.interop.model_dir import resolve_model_dir
from bertkit.kernels.fast import keep_freed_memory

TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2}  # tolerance for an element of a vector of length 1
ENCODER: Options = {"--model-dir": {"help": "an encoder with mean pooling; default: a new one"}}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison and print its table."""
    args = parsed(__doc__, arguments, MODEL, PRECISION, TEXTS, ENCODER)
    with tempfile.TemporaryDirectory() as folder:
        dataset, model_dir = prepared_text(args.data_dir, Path(folder)), Path(folder) / "model"
        if args.model_dir is None:
            new_model(args, dataset.tokenizer, model_dir, ())
        else:
            model_dir = resolve_model_dir(args.model_dir)
        texts = texts_of_mixed_lengths(dataset, args.num_texts, args.max_seq_length)
        calls = {f"{args.batch_sequences} texts a call": args.batch_sequences, "one call": len(texts)}
        theirs = itertools.product(dict.fromkeys(("fp32", args.precision)), calls)
        ours = itertools.product([args.precision], calls)
        ways = [("sentence-transformers", hugging_face, *way) for way in theirs] + [
            ("bertkit", bertkit, *way) for way in ours
        ]
        compare(args, "tokens/s", [
            System(
                f"{name} {precision}, {call}",
                functools.partial(load, args, model_dir, texts, precision, calls[call]),
                TOLERANCE[precision],
            )
            for name, load, precision, call in ways
        ])  # fmt: skip


def ready(
    args: argparse.Namespace,
    model_dir: Path,
    texts: list[str],
    size: int,
    embed: Callable[[list[str]], NDArray[np.float32]],
) -> Ready:
    """Prepare a system that embeds `size` texts per call with the given function."""
    ids = load_tokenizer(model_dir)(texts)["input_ids"]
    num_tokens = sum(min(len(each), args.max_seq_length) for each in ids)

    def answer() -> NDArray[np.float32]:
        return np.concatenate([embed(texts[start : start + size]) for start in range(0, len(texts), size)])

    return Ready(answer, lambda number: len(answer()) and num_tokens)


def bertkit(args: argparse.Namespace, model_dir: Path, texts: list[str], precision: str, size: int) -> Ready:
    """Embed with `bertkit.load_embedder`, as the command does."""
    settings = {"max_seq_length": args.max_seq_length, "device": args.device, "precision": args.precision}
    embedder = load_embedder(model_dir, "mean", True, **settings)
    return ready(args, model_dir, texts, size, lambda texts: embedder.embed(texts)[0])


def hugging_face(
    args: argparse.Namespace,
    model_dir: Path,
    texts: list[str],
    precision: str,
    size: int,
    batch_size: int = 32,
    is_compiled: bool = False,
) -> Ready:
    """Embed with `encode`, which sorts the texts of a call and takes them in batches, by default of 32; with bertkit's allocator setting."""
    keep_freed_memory()
    import sentence_transformers

    transformers()
    settings = {"dtype": DTYPES[precision]}
    model = sentence_transformers.SentenceTransformer(str(model_dir), device=args.device, model_kwargs=settings)
    model.max_seq_length = args.max_seq_length
    if is_compiled:
        encoder = model[0].auto_model
        encoder.forward = compiled(encoder.forward, args.device, is_dynamic=True)
    return ready(
        args,
        model_dir,
        texts,
        size,
        lambda texts: model.encode(texts, batch_size=batch_size, normalize_embeddings=True),
    )


if __name__ == "__main__":
    main()
