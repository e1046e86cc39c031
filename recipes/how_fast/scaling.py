"""How time grows: with the length of a sequence, the batch, the corpus and the input; and memory, with the batch.

    python recipes/how_fast/scaling.py --model mini
    python recipes/how_fast/scaling.py --curves batch --model base --max-seq-length 512 --batch-sizes 2 4

A line through the logarithms gives the exponent: 1 where time grows in proportion, 2 where it grows with the square. All
sequences of a step are full, so that bertkit and Hugging Face compute the same.
"""

import argparse
import functools
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import prediction
import preparing
from common import MODEL, PRECISION, STEPS, Options, new_model, parsed, prepared_text, texts_of_lengths, write_text
from rounds import System, measure, report
from training import TOLERANCE, FullSequences, Training, bertkit, hugging_face

from bertkit.display.page import Table
from bertkit.model.bert_config import PRETRAINING_HEADS

Points = list[tuple[int, float]]
CURVES = {
    "length": "Training on a sequence, by its tokens",
    "batch": "A step, by its sequences",
    "corpus": "prepare, by megabytes of text",
    "input": "predict of a text, by its tokens",
}
SIZES: Options = {
    "--curves": {"nargs": "+", "choices": list(CURVES), "default": list(CURVES)},
    "--lengths": {
        "type": int,
        "nargs": "+",
        "default": [64, 128, 256, 512, 1024, 2048],
        "help": "tokens, for the curves length and input",
    },
    "--batch-sizes": {"type": int, "nargs": "+", "default": [2, 4, 8, 16], "help": "of --max-seq-length tokens each"},
    "--corpus-megabytes": {"type": int, "nargs": "+", "default": [2, 8, 32]},
}
Work = tuple[int, list[System], int]  # a size, its systems, and the divisor of their time


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the time at every point of the curves."""
    args = parsed(__doc__, arguments, MODEL, PRECISION, STEPS, SIZES)
    results, tables = [], []
    with tempfile.TemporaryDirectory() as folder:
        for curve in args.curves:
            points = []
            for size, systems, shares in work_of(args, curve, Path(folder)):
                rounds = measure(args, systems, f"{curve} {size}").values()
                seconds = [statistics.median(each.seconds for each in of_system) / shares for of_system in rounds]
                points.append((size, *seconds, *(max(each.megabytes for each in of_system) for of_system in rounds)))
            sizes, *columns = zip(*points, strict=True)
            powers = [exponent(list(zip(sizes, column, strict=True))) for column in columns[:2]]
            names = ("size", "hugging_face_seconds", "seconds", "hugging_face_megabytes", "megabytes")
            rows = [dict(zip(names, point, strict=True)) for point in points]
            results.append({"curve": curve, "hugging_face_exponent": powers[0], "exponent": powers[1], "points": rows})
            tables.append(table(f"{CURVES[curve]}, {args.precision}", points, powers))
    report(args, "seconds", results, tables)


def work_of(args: argparse.Namespace, curve: str, folder: Path) -> Iterator[Work]:
    """Yield every size of a curve with its systems and the divisor of their time; text and model go to a folder."""
    dataset = prepared_text(args.data_dir or next(iter(folder.glob("data")), None), folder)
    if curve == "corpus":
        for size in args.corpus_megabytes:
            yield size, preparing.systems(args, dataset.directory, write_text(None, size, folder)), 1
        return
    model_dir, tokens = folder / f"model-{curve}", args.batch_sequences * args.max_seq_length
    heads, labels = (("sequence",), prediction.LABELS) if curve == "input" else (PRETRAINING_HEADS, ("0", "1"))
    new_model(args, dataset.tokenizer, model_dir, heads, max(args.lengths), labels=labels)
    for size in args.batch_sizes if curve == "batch" else args.lengths:
        length, count = (args.max_seq_length, size) if curve == "batch" else (size, max(1, tokens // size))
        if curve == "input":
            texts = texts_of_lengths(dataset, np.full(count, length))
            longer = argparse.Namespace(**{**vars(args), "max_seq_length": length})
            theirs, *_, ours = prediction.systems(longer, model_dir, texts)
            yield size, [theirs, ours], count
            continue
        batches = FullSequences(dataset.directory, length, count)
        training = Training(batches, model_dir, "BertForPreTraining", args.device, args.steps_per_round)
        theirs = System("Hugging Face", functools.partial(hugging_face, training, args.precision, "padded"), TOLERANCE)
        ours = System("bertkit", functools.partial(bertkit, training, args.precision), TOLERANCE)
        yield size, [theirs, ours], args.steps_per_round * (count if curve == "length" else 1)


def exponent(points: Points) -> float | None:
    """Fit the p of time = c size^p, by least squares of the logarithms; None for one size."""
    sizes, times = np.log(points).T
    return None if len(points) < 2 else float(np.polyfit(sizes, times, 1)[0])


def table(title: str, points: Sequence[Sequence[float]], powers: Sequence[float | None]) -> Table:
    """Return a table of the times and the memory of both sides, with their ratios."""
    rows = [
        (
            f"{size:,}", *(f"{1000 * seconds:,.3g} ms" for seconds in (slow, fast)), f"{slow / fast:.2f}",
            *(f"{megabytes:,.0f} MB" for megabytes in (theirs, ours)), f"{ours / theirs:.2f}",
        )
        for size, slow, fast, theirs, ours in points
    ]  # fmt: skip
    last = ("exponent", *("" if power is None else f"{power:.2f}" for power in powers), "", "", "", "")
    head = ("", "Hugging Face", "bertkit", "speed", "peak memory: Hugging Face", "bertkit", "share")
    return Table(title, head, [*rows, last])


if __name__ == "__main__":
    main()
