"""Export to ONNX: the exported Hugging Face model as a graph for other runtimes, compared with `transformers`.

onnxruntime 1.17 and later load the graph. transformers.js uses its int8 copy in a browser.
"""

import contextlib
import importlib.util
import io
import itertools
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from bertkit.base.errors import InputError, install_extra
from bertkit.base.files import to_json
from bertkit.base.text_files import read_json
from bertkit.interop.parity.results import with_types
from bertkit.model.heads import BertWithHeads

if TYPE_CHECKING:
    import onnx

TOLERANCE = 1e-4  # float32, relative to max(1, largest entry of the output); measured below 2e-5
INT8 = "model_quantized.onnx"
IR_VERSION = 9  # the newest that onnxruntime 1.17 loads; nothing in the graph needs a newer one


def check_installed() -> None:
    """Raise InputError if packages for ONNX are missing."""
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"onnx=true needs {', '.join(missing)}: {install_extra('onnx')}")


class OnnxDifference(TypedDict):
    """How an output of onnxruntime differs from that of `transformers`."""

    file: str
    shape: list[int]  # of the inputs
    output: str  # its name
    max_abs: float  # the largest difference
    largest: float  # the largest entry
    same_largest: float  # share of the vectors that have their largest element at the same index


def write_onnx(directory: Path, model: BertWithHeads, theirs: nn.Module, with_int8: bool) -> list[OnnxDifference]:
    """Write `onnx/model.onnx` to a Hugging Face directory, for batches and sequences of any size.

    `theirs` is the model in `transformers`; `with_int8` also writes `onnx/model_quantized.onnx`, with 8-bit matrices.

    Returns:
        A comparison for each file, input shape and output.

    Raises:
        InputError: the packages are missing, or the difference is beyond the tolerance.
    """
    check_installed()
    import onnx

    example = _inputs(model, (2, 8), seed=0)
    names = list(theirs(**example).keys())
    axes = dict(enumerate(("batch", "choices", "sequence") if "choice" in model.heads else ("batch", "sequence")))
    with _quiet():
        program = torch.onnx.export(
            theirs,
            kwargs=example,
            output_names=names,
            dynamo=True,
            dynamic_shapes=dict.fromkeys(example, axes),
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    proto.ir_version = IR_VERSION
    _remove_debug_information(proto)
    path = directory / "onnx" / "model.onnx"
    path.parent.mkdir()
    onnx.save(proto, path)
    expected = _expected(model, theirs)
    rows = _compare(path, expected)
    worst = max(rows, key=_relative)
    if not _relative(worst) <= TOLERANCE:
        raise InputError(
            f"{path.name}: not exported: onnxruntime differs from transformers in {worst['output']} by {worst['max_abs']:.1e}, "
            f"with inputs of shape {worst['shape']}; try another version of torch or onnxscript"
        )
    if with_int8:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        with _quiet():
            quantize_dynamic(path, path.with_name(INT8), weight_type=QuantType.QInt8)
        return rows + _compare(path.with_name(INT8), expected)
    config = read_json(directory / "config.json")
    config["transformers.js_config"] = {"dtype": "fp32"}  # without it, transformers.js looks for the int8 copy
    (directory / "config.json").write_text(to_json(config), encoding="utf-8")
    return rows


def describe(rows: Sequence[OnnxDifference]) -> Iterator[str]:
    """Yield a line about each file, from the rows that `write_onnx` returned."""
    for file, group in itertools.groupby(rows, key=lambda row: row["file"]):
        own = list(group)
        worst, same = max(row["max_abs"] for row in own), min(row["same_largest"] for row in own)
        share = "all" if same == 1 else f"at least {math.floor(1000 * same) / 10:g} % of the"
        yield (
            f"onnx/{file}: differs from transformers by up to {worst:.2g}; on random tokens {share} vectors have the same "
            "largest element"
        )


class _Expected(NamedTuple):
    """Inputs, and the outputs of `transformers` for them."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


def _expected(model: BertWithHeads, theirs: nn.Module) -> list[_Expected]:
    longest, cases = model.config.max_position_embeddings, list[_Expected]()
    for shape in ((1, 7), (3, min(61, longest)), (2, min(128, longest))):
        inputs = _inputs(model, shape, seed=shape[0])
        with torch.no_grad():
            cases.append(_Expected(inputs, dict(theirs(**inputs).items())))
    return cases


def _compare(path: Path, expected: Sequence[_Expected]) -> list[OnnxDifference]:
    import onnxruntime

    session, rows = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]), list[OnnxDifference]()
    for inputs, outputs in expected:
        names, feed = list(outputs), {name: tensor.numpy() for name, tensor in inputs.items()}
        for name, output in zip(names, session.run(names, feed), strict=True):
            is_token, ours, reference = inputs["attention_mask"].bool(), torch.from_numpy(output), outputs[name]
            if (
                reference.shape[: is_token.dim()] == is_token.shape
            ):  # padding that attends to padding alone has any value
                ours, reference = ours[is_token], reference[is_token]
            difference = (ours - reference).abs().max()
            same = (ours.argmax(-1) == reference.argmax(-1)).double().mean()
            rows.append(
                {
                    "file": path.name,
                    "shape": list(inputs["input_ids"].shape),
                    "output": name,
                    "max_abs": float(difference),
                    "largest": float(reference.abs().max()),
                    "same_largest": float(same),
                }
            )
    return rows


def _relative(row: OnnxDifference) -> float:
    """Return the difference relative to the largest entry, with which rounding errors grow."""
    return row["max_abs"] / max(1.0, row["largest"])


def _inputs(model: BertWithHeads, shape: tuple[int, int], seed: int) -> dict[str, Tensor]:
    """Random ids with padding; (B, T), or (B, 3, T) for a model that chooses."""
    size = (shape[0], 3, shape[1]) if "choice" in model.heads else shape
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    ids = torch.randint(config.vocab_size, size, generator=generator)
    lengths = torch.randint(2, size[-1] + 1, size[:-1], generator=generator)
    mask = (torch.arange(size[-1]) < lengths[..., None]).long()
    types = torch.randint(max(config.type_vocab_size, 1), size, generator=generator)
    return {"input_ids": ids, "attention_mask": mask, **with_types(config, types)}


def _remove_debug_information(proto: "onnx.ModelProto") -> None:
    """Remove file names and line numbers, so that the bytes depend only on the model, and the value_info of weights."""
    graphs = (proto.graph, *proto.functions)
    parts = [*proto.graph.initializer, *(part for graph in graphs for part in (*graph.node, *graph.value_info))]
    for part in parts:
        part.doc_string = ""
    for noted in (proto, *graphs, *parts, *proto.graph.input, *proto.graph.output):
        del noted.metadata_props[:]
    weights = {weight.name for weight in proto.graph.initializer}
    kept = [value for value in proto.graph.value_info if value.name not in weights]  # those break quantisation
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(kept)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the messages of the exporter, which do not help users."""
    logging.disable(logging.WARNING)
    nowhere = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
