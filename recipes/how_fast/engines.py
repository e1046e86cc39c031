"""Classifiers, or an encoder, in bertkit and in other engines, in float32, in int8 and with `--precision bf16` in bfloat16: texts per second, and what that costs on each task.

    python recipes/how_fast/engines.py --exports EXPORTS --tasks sst2 mrpc --data-dir GLUE --clock processor
    python recipes/how_fast/engines.py --exports EXPORTS --tasks sst2 --data-dir GLUE --clock processor --vectors

EXPORTS has a folder for each task, named after it, from `bertkit export model_dir=RUN head=task onnx=int8 output_dir=EXPORTS/sst2` (for vectors,
head=encoder). GLUE holds the folders of the tasks; the texts are those of their dev files. All engines sort the texts by length, in batches of 32. An
engine that is not installed is left out (`pip install onnxruntime openvino ctranslate2`).
"""

import argparse
import dataclasses
import functools
import importlib.util
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import PRECISION, ROUNDS, Options, parsed
from numpy.typing import NDArray
from rounds import Ready, System, gap, measure, report, summarise
from training import transformers

from bertkit.base.typed_settings import build
from bertkit.display.page import Table
from bertkit.inference.embedding import load_embedder
from bertkit.inference.predictor import load_predictor
from bertkit.kernels.fast import keep_freed_memory
from bertkit.settings.evaluate import EvaluateSettings
from bertkit.settings.reading.compose import compose_values
from bertkit.tasks.label_kinds import OneLabel
from bertkit.tasks.reading.readers import read_examples
from bertkit.tasks.reading.source import SplitExamples

BATCH, LONGEST = 32, 128
TOLERANCE = 1e-3  # of a probability or an element of a vector of length 1, in float32
NAMES = ("Hugging Face", "onnxruntime", "OpenVINO", "CTranslate2")
ENGINES: Options = {
    "--exports": {"type": Path, "required": True, "help": "a folder with an export for each task, made with onnx=int8"},
    "--tasks": {
        "nargs": "+",
        "required": True,
        "help": "tasks of one text or a pair, and a label: sst2, mrpc, cola, qqp, ...",
    },
    "--data-dir": {"type": Path, "required": True, "help": "the folder with the folders of the tasks"},
    "--engines": {"nargs": "+", "default": NAMES, "choices": NAMES, "help": "beside bertkit; default: all"},
    "--vectors": {"action": "store_true", "help": "vectors (mean pooling) instead of predictions"},
    "--compiled": {"action": "store_true", "help": "also compile Hugging Face, which takes a minute"},
    "--num-texts": {"type": int, "default": 1000, "help": "at most so many examples of a task"},
    "--device": {"default": "cpu", "choices": ["cpu"]},
}
Floats = NDArray[np.float32]
Texts = list[tuple[str, ...]]
Run = Callable[[dict[str, NDArray[np.int64]]], Floats]  # a padded batch -> logits, or last hidden states


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison on each task and print its table."""
    args = parsed(__doc__, arguments, ENGINES, PRECISION, ROUNDS)
    results: list[dict[str, Any]] = []
    tables = []
    for task in args.tasks:
        of_task = compared(args, task)
        results += of_task
        unit = "lowest cosine to float32" if args.vectors else "score (difference to float32, its standard error)"
        rows = [
            (each["name"], f"{each['rate']:.0f}", f"{each['ratio']:.2f} ({each['ratio_low']:.2f} - {each['ratio_high']:.2f})", each["quality"])
            for each in of_task
        ]  # fmt: skip
        tables.append(Table(task, ("", "texts/s", "ratio (lowest - highest)", unit), rows))
    report(args, "texts/s", results, tables)


def compared(args: argparse.Namespace, task: str) -> list[dict[str, Any]]:
    """Measure all engines on a task; return the figures of each, `quality` among them."""
    export = args.exports / task
    split = dev_split(task, args.data_dir, args.num_texts)
    texts: Texts = [(each.text,) if each.text_pair is None else (each.text, each.text_pair) for each in split.examples]
    found: list[Floats] = []

    def kept(result: Floats, reference: Floats) -> Floats:
        found.append(result)
        return np.asarray(gap(result, reference))

    with tempfile.TemporaryDirectory() as folder:
        measured = measure(args, systems(args, export, texts, Path(folder)), task, differ=kept)
    quality = [similarity(each, found[0]) if args.vectors else scored(split, each, found[0]) for each in found]
    return [{**each, "task": task, "quality": what} for each, what in zip(summarise(measured), quality, strict=True)]


def dev_split(task: str, data_dir: Path, most: int) -> SplitExamples:
    """Read the first examples of a task's dev file, in the order of the task's labels."""
    values = {"model_dir": "-", "task": task, "data_dir": str(data_dir)}
    settings = build(EvaluateSettings, compose_values("evaluate", values))
    assert settings.task is not None
    split = read_examples(settings.task, settings.data_dir, "dev")
    return dataclasses.replace(split, examples=split.examples[:most])


def scored(split: SplitExamples, result: Floats, reference: Floats) -> str:
    """Return the task's own metric in points, its difference to the reference, and the standard error of that difference.

    The standard error is that of a bootstrap: 500 samples of the examples, the same for both.
    """
    task, examples = split.task, split.examples
    if not isinstance(task, OneLabel):
        raise SystemExit(f"error: --tasks {task.config.name}: expected tasks with one label for each text or pair")
    metric = task.config.best_metric
    ours, theirs = (
        [task.prediction(each.id, row) for each, row in zip(examples, rows, strict=True)]
        for rows in (result, reference)
    )

    def points(predictions: Sequence[Any], places: Sequence[int]) -> float:
        chosen = [[values[place] for place in places] for values in (examples, predictions)]
        return float(100 * task.score(chosen[0], chosen[1])[metric])

    every = range(len(examples))
    samples = np.random.default_rng(0).choice(len(examples), (500, len(examples)))
    errors = [points(ours, places) - points(theirs, places) for places in samples.tolist()] if ours != theirs else [0.0]
    mine, their = points(ours, every), points(theirs, every)
    return f"{metric} {mine:.1f} ({mine - their:+.1f}, {np.std(errors):.1f})"


def similarity(result: Floats, reference: Floats) -> str:
    """Return the lowest cosine between a vector and that in float32."""
    return f"{(result * reference).sum(1).min():.2f}"


def systems(args: argparse.Namespace, export: Path, texts: Texts, folder: Path) -> list[System]:
    """List bertkit and the chosen engines that are installed."""
    halves = () if args.precision == "fp32" else (args.precision,)
    found = [
        System(f"bertkit {number}", functools.partial(bertkit, args, number, export, texts), tolerance(number))
        for number in ("fp32", *halves)
    ]
    ways = [("Hugging Face", torch_run, number, "torch") for number in ("fp32", *halves)]
    ways += [("Hugging Face compiled", torch_run, "fp32", "torch")] if args.compiled else []
    ways += [
        (name, load, number, package)
        for name, load, package in (
            ("onnxruntime", onnx_run, "onnxruntime"),
            ("OpenVINO", openvino_run, "openvino"),
            ("CTranslate2", ctranslate_run, "ctranslate2"),
        )
        for number in ("fp32", *(halves if name == "OpenVINO" else ()), "int8")
    ]
    for name, load, number, package in ways:
        if not name.startswith(tuple(args.engines)):
            continue
        if importlib.util.find_spec(package) is None:
            print(f"{name} {number} is left out: {package} is not installed")
            continue
        run = functools.partial(load, args, export, number, folder / f"{name} {number}", "compiled" in name)
        found.append(System(f"{name} {number}", functools.partial(engine, args, export, texts, run), tolerance(number)))
    return found


def tolerance(number: str) -> float:
    """Return how far a result in this number format may be from float32; further, the comparison is refused."""
    return TOLERANCE if number == "fp32" else math.inf


def bertkit(args: argparse.Namespace, precision: str, export: Path, texts: Texts) -> Ready:
    """Predict, or embed, as the commands do."""
    settings: dict[str, Any] = {"precision": precision, "device": "cpu", "max_seq_length": LONGEST}
    if args.vectors:
        embedder = load_embedder(export, "mean", True, **settings)
        firsts = [first for first, *_ in texts]
        return Ready(lambda: embedder.embed(firsts)[0], lambda number: len(embedder.embed(firsts)[0]))
    predictor = load_predictor(export, **settings)
    rows: list[Any] = [each if len(each) > 1 else each[0] for each in texts]

    def answer() -> Floats:
        return np.array([list(row["probabilities"].values()) for row in predictor(rows)], np.float32)

    return Ready(answer, lambda number: len(answer()))


def engine(args: argparse.Namespace, export: Path, texts: Texts, load: Callable[[], Run]) -> Ready:
    """Predict, or embed, in batches that are sorted by length, with bertkit's allocator setting."""
    keep_freed_memory()
    tokenizer: Any = transformers().AutoTokenizer.from_pretrained(export)
    run = load()
    columns = [list(each) for each in zip(*texts, strict=True)][: 1 if args.vectors else None]

    def answer() -> Floats:
        rows = tokenizer(*columns, truncation=True, max_length=LONGEST)
        order = sorted(range(len(texts)), key=lambda place: len(rows["input_ids"][place]))
        found: list[Any] = [None] * len(texts)
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            chosen = {name: [values[place] for place in places] for name, values in rows.items()}
            batch = dict(tokenizer.pad(chosen, pad_to_multiple_of=8, return_tensors="np"))
            result = run({name: values.astype(np.int64) for name, values in batch.items()})
            if args.vectors:
                mask = batch["attention_mask"][..., None].astype(np.float32)
                pooled = (result * mask).sum(1) / mask.sum(1)
                result = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
            else:
                powers = np.exp(result - result.max(1, keepdims=True))
                result = powers / powers.sum(1, keepdims=True)
            for place, row in zip(places, result, strict=True):
                found[place] = row
        return np.array(found, np.float32)

    return Ready(answer, lambda number: len(answer()))


def torch_run(args: argparse.Namespace, export: Path, number: str, folder: Path, is_compiled: bool) -> Run:
    """Load the model of transformers."""
    found = transformers()
    loaded = found.AutoModel if args.vectors else found.AutoModelForSequenceClassification
    model = loaded.from_pretrained(export, attn_implementation="sdpa").eval()
    called = torch.compile(model, dynamic=True) if is_compiled else model

    @torch.no_grad()
    def run(batch: dict[str, NDArray[np.int64]]) -> Floats:
        with torch.autocast("cpu", torch.bfloat16, enabled=number == "bf16"):
            out = called(**{name: torch.from_numpy(values) for name, values in batch.items()})
        return (out.last_hidden_state if args.vectors else out.logits).float().numpy()  # type: ignore[no-any-return]

    return run


def graph_of(export: Path, number: str) -> str:
    """Return the file of a number format in the export."""
    return str(export / "onnx" / ("model_quantized.onnx" if number == "int8" else "model.onnx"))


def onnx_run(args: argparse.Namespace, export: Path, number: str, folder: Path, is_compiled: bool) -> Run:
    """Load the export in onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.num_threads
    session = onnxruntime.InferenceSession(graph_of(export, number), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return lambda batch: session.run(None, {name: batch[name] for name in names})[0]


def openvino_run(args: argparse.Namespace, export: Path, number: str, folder: Path, is_compiled: bool) -> Run:
    """Load the export in OpenVINO."""
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": args.num_threads,
        "INFERENCE_PRECISION_HINT": "bf16" if number == "bf16" else "f32",
        "NUM_STREAMS": 1,
    }
    model = openvino.Core().compile_model(graph_of(export, number), "CPU", settings)
    names = [each.any_name for each in model.inputs]
    return lambda batch: model({name: batch[name] for name in names})[0]


def ctranslate_run(args: argparse.Namespace, export: Path, number: str, folder: Path, is_compiled: bool) -> Run:
    """Convert the export for CTranslate2, which pads by itself and has the encoder and the pooler; the classifier is a product here."""
    import ctranslate2

    ctranslate2.converters.TransformersConverter(str(export)).convert(str(folder))
    kind = "float32" if number == "fp32" else "int8"  # its bfloat16 is for GPUs
    encoder = ctranslate2.Encoder(str(folder), device="cpu", compute_type=kind, intra_threads=args.num_threads)
    classifier = None
    if not args.vectors:
        found = transformers().AutoModelForSequenceClassification.from_pretrained(export).classifier
        classifier = found.weight.detach().numpy().T, found.bias.detach().numpy()

    def run(batch: dict[str, NDArray[np.int64]]) -> Floats:
        lengths = batch["attention_mask"].sum(1).tolist()

        def rows(name: str) -> list[list[int]]:
            return [row[:length].tolist() for row, length in zip(batch[name], lengths, strict=True)]

        out = encoder.forward_batch(rows("input_ids"), token_type_ids=rows("token_type_ids"))
        if classifier is None:  # padded to the longest, not to a multiple of 8
            hidden = np.array(out.last_hidden_state)
            return np.pad(hidden, ((0, 0), (0, batch["input_ids"].shape[1] - hidden.shape[1]), (0, 0)))
        return np.array(out.pooler_output) @ classifier[0] + classifier[1]  # type: ignore[no-any-return]

    return run


if __name__ == "__main__":
    main()
