"""A classifier, or an encoder, in bertkit and in other engines, in float32 and in int8: texts per second, and what int8 costs.

    python recipes/how_fast/engines.py --export EXPORT --rows dev.tsv --clock processor
    python recipes/how_fast/engines.py --export EXPORT --rows dev.tsv --clock processor --vectors

EXPORT is made by `bertkit export model_dir=RUN head=task onnx=int8 output_dir=EXPORT`. The rows are a table with a header, its text in the columns
`sentence`, `sentence1`, `sentence2` or `question`, and a column `label`. All engines sort the texts by length, in batches of 32. An engine that is not installed is left out
(`pip install onnxruntime openvino ctranslate2`).
"""

import argparse
import csv
import functools
import importlib.util
import itertools
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

from bertkit.display.page import Table
from bertkit.inference.embedding import load_embedder
from bertkit.inference.predictor import load_predictor
from bertkit.kernels.fast import keep_freed_memory

BATCH, LONGEST = 32, 128
TOLERANCE = 1e-3  # of a probability or an element of a vector of length 1, in float32
ENGINES: Options = {
    "--export": {"type": Path, "required": True, "help": "an export with onnx=int8"},
    "--rows": {"type": Path, "required": True, "help": "a table with texts and labels"},
    "--vectors": {"action": "store_true", "help": "vectors (mean pooling) instead of predictions"},
    "--compiled": {"action": "store_true", "help": "also compile Hugging Face, which takes a minute"},
    "--num-texts": {"type": int, "default": 1000, "help": "at most so many rows"},
    "--device": {"default": "cpu", "choices": ["cpu"]},
}
Floats = NDArray[np.float32]
Texts = list[tuple[str, ...]]
Run = Callable[[dict[str, NDArray[np.int64]]], Floats]  # a padded batch -> logits, or last hidden states


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison and print its table."""
    args = parsed(__doc__, arguments, ENGINES, PRECISION, ROUNDS)
    texts, labels = read(args.rows, args.num_texts)
    results: list[Floats] = []

    def kept(result: Floats, reference: Floats) -> Floats:
        results.append(result)
        return np.asarray(gap(result, reference))

    with tempfile.TemporaryDirectory() as folder:
        compared = systems(args, texts, Path(folder))
        measured = measure(args, compared, differ=kept)
    table = summarise(measured)
    score = similarity if args.vectors else accuracy
    scores = [score(result, results[0], labels) for result in results]
    rows = [
        (each["name"], f"{each['rate']:.0f}", f"{each['ratio']:.2f} ({each['ratio_low']:.2f} - {each['ratio_high']:.2f})", f"{of_each:.2f}")
        for each, of_each in zip(table, scores, strict=True)
    ]  # fmt: skip
    name = "cosine to float32, lowest" if args.vectors else f"accuracy on {len(texts)} rows"
    report(args, "texts/s", table, [Table("", ("", "texts/s", "ratio (lowest - highest)", name), rows)])


def read(path: Path, most: int) -> tuple[Texts, list[str]]:
    """Read texts, or pairs of them, and labels."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(itertools.islice(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE), most))
    columns = [name for name in ("question", "sentence", "sentence1", "sentence2") if name in rows[0]]
    return [tuple(row[name] for name in columns) for row in rows], [row["label"] for row in rows]


def accuracy(result: Floats, reference: Floats, labels: list[str]) -> float:
    """Return the percentage of rows whose label has the highest probability; labels sort as their numbers do."""
    names = np.unique(labels)
    return float(100 * np.mean(names[result.argmax(1)] == np.asarray(labels)))


def similarity(result: Floats, reference: Floats, labels: list[str]) -> float:
    """Return the lowest cosine between a vector and that in float32."""
    return float((result * reference).sum(1).min())


def systems(args: argparse.Namespace, texts: Texts, folder: Path) -> list[System]:
    """List bertkit and the engines that are installed."""
    found = [System("bertkit fp32", functools.partial(bertkit, args, texts))]
    ways = [("Hugging Face", torch_run, "fp32", "torch")]
    ways += [("Hugging Face compiled", torch_run, "fp32", "torch")] if args.compiled else []
    ways += [
        (name, load, number, package)
        for name, load, package in (
            ("onnxruntime", onnx_run, "onnxruntime"),
            ("OpenVINO", openvino_run, "openvino"),
            ("CTranslate2", ctranslate_run, "ctranslate2"),
        )
        for number in ("fp32", "int8")
    ]
    for name, load, number, package in ways:
        if importlib.util.find_spec(package) is None:
            print(f"{name} {number} is left out: {package} is not installed")
            continue
        run = functools.partial(load, args, number, folder / name.lower(), "compiled" in name)
        tolerance = TOLERANCE if number == "fp32" else math.inf
        found.append(System(f"{name} {number}", functools.partial(engine, args, texts, run), tolerance))
    return found


def bertkit(args: argparse.Namespace, texts: Texts) -> Ready:
    """Predict, or embed, as the commands do."""
    settings = {"precision": args.precision, "device": "cpu", "max_seq_length": LONGEST}
    if args.vectors:
        embedder = load_embedder(args.export, "mean", True, **settings)
        firsts = [first for first, *_ in texts]
        return Ready(lambda: embedder.embed(firsts)[0], lambda number: len(embedder.embed(firsts)[0]))
    predictor = load_predictor(args.export, **settings)
    rows: list[Any] = [each if len(each) > 1 else each[0] for each in texts]

    def answer() -> Floats:
        return np.array([list(row["probabilities"].values()) for row in predictor(rows)], np.float32)

    return Ready(answer, lambda number: len(answer()))


def engine(args: argparse.Namespace, texts: Texts, load: Callable[[], Run]) -> Ready:
    """Predict, or embed, in batches that are sorted by length, with bertkit's allocator setting."""
    keep_freed_memory()
    tokenizer: Any = transformers().AutoTokenizer.from_pretrained(args.export)
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


def torch_run(args: argparse.Namespace, number: str, folder: Path, is_compiled: bool) -> Run:
    """Load the model of transformers."""
    found = transformers()
    loaded = found.AutoModel if args.vectors else found.AutoModelForSequenceClassification
    model = loaded.from_pretrained(args.export, attn_implementation="sdpa").eval()
    called = torch.compile(model, dynamic=True) if is_compiled else model

    @torch.no_grad()
    def run(batch: dict[str, NDArray[np.int64]]) -> Floats:
        out = called(**{name: torch.from_numpy(values) for name, values in batch.items()})
        return (out.last_hidden_state if args.vectors else out.logits).numpy()  # type: ignore[no-any-return]

    return run


def graph_of(args: argparse.Namespace, number: str) -> str:
    """Return the file of a number format in the export."""
    return str(args.export / "onnx" / ("model.onnx" if number == "fp32" else "model_quantized.onnx"))


def onnx_run(args: argparse.Namespace, number: str, folder: Path, is_compiled: bool) -> Run:
    """Load the export in onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.num_threads
    session = onnxruntime.InferenceSession(graph_of(args, number), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return lambda batch: session.run(None, {name: batch[name] for name in names})[0]


def openvino_run(args: argparse.Namespace, number: str, folder: Path, is_compiled: bool) -> Run:
    """Load the export in OpenVINO."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": args.num_threads, "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}
    model = openvino.Core().compile_model(graph_of(args, number), "CPU", settings)
    names = [each.any_name for each in model.inputs]
    return lambda batch: model({name: batch[name] for name in names})[0]


def ctranslate_run(args: argparse.Namespace, number: str, folder: Path, is_compiled: bool) -> Run:
    """Convert the export for CTranslate2, which pads by itself and has the encoder and the pooler; the classifier is a product here."""
    import ctranslate2

    if not folder.exists():
        ctranslate2.converters.TransformersConverter(str(args.export)).convert(str(folder))
    kind = "float32" if number == "fp32" else "int8"
    encoder = ctranslate2.Encoder(str(folder), device="cpu", compute_type=kind, intra_threads=args.num_threads)
    classifier = None
    if not args.vectors:
        found = transformers().AutoModelForSequenceClassification.from_pretrained(args.export).classifier
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
