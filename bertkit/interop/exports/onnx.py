"""ONNX: the reloaded Hugging Face model as a graph for other runtimes, compared with onnxruntime before it is kept."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertkit.errors import InputError
from bertkit.interop.parity.in_transformers import load_in_transformers

TOLERANCE = 1e-4  # float32, absolute; measured below 1e-5
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class _Outputs(nn.Module):
    """The tensors that a `transformers` model gives, without its output class."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        out = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return tuple(out.to_tuple())


def check_installed() -> None:
    """Refuse to start without the packages."""
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"onnx=true needs {', '.join(missing)}: pip install 'bertkit[onnx]'")


def write_onnx(directory: Path, architecture: str, with_pooler: bool) -> list[dict[str, Any]]:
    """Write `onnx/model.onnx` beside the weights of a Hugging Face directory; batch and length stay free.

    Returns:
        For each compared shape and output, the largest difference between onnxruntime and `transformers`.

    Raises:
        InputError: the packages are missing, or the difference is beyond the tolerance.
    """
    check_installed()
    import onnx

    model = load_in_transformers(directory, architecture, torch.float32, with_pooler)
    graph = _Outputs(model).eval()
    example = _inputs(model, (2, 8), seed=0)
    names = list(model(**dict(zip(INPUTS, example, strict=True))).keys())
    axes = {axis: torch.export.Dim.DYNAMIC for axis in range(example[0].dim())}
    with _quiet():
        program = torch.onnx.export(
            graph, example, input_names=list(INPUTS), output_names=names, dynamo=True, dynamic_shapes=(axes, axes, axes),
            verbose=False,
        )  # fmt: skip
    assert program is not None
    proto = program.model_proto
    _forget_where_it_was_made(proto)
    path = directory / "onnx" / "model.onnx"
    path.parent.mkdir()
    onnx.save(proto, path)
    rows = _compare(path, graph, names)
    worst = max(rows, key=lambda row: row["max_abs"])
    if not worst["max_abs"] <= TOLERANCE:
        raise InputError(
            f"{path.name}: not exported, for onnxruntime differs from transformers in {worst['output']} of shape "
            f"{worst['shape']} by {worst['max_abs']:.1e}; try another version of torch or onnxscript"
        )
    return rows


def _compare(path: Path, graph: _Outputs, names: list[str]) -> list[dict[str, Any]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    longest, rows = graph.model.config.max_position_embeddings, []
    for shape in ((1, 7), (3, min(64, longest)), (5, min(128, longest))):
        inputs = _inputs(graph.model, shape, seed=shape[0])
        feed = {name: tensor.numpy() for name, tensor in zip(INPUTS, inputs, strict=True)}
        for name, ours, theirs in zip(names, session.run(names, feed), graph(*inputs), strict=True):
            difference = float((torch.from_numpy(ours) - theirs).detach().abs().max())
            rows.append({"shape": list(inputs[0].shape), "output": name, "max_abs": difference})
    return rows


def _inputs(model: Any, shape: tuple[int, int], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random ids with padding; (B, T), or (B, 3, T) for a model that chooses."""
    is_choice = type(model).__name__ == "BertForMultipleChoice"
    size = (shape[0], 3, shape[1]) if is_choice else shape
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    ids = torch.randint(config.vocab_size, size, generator=generator)
    lengths = torch.randint(2, size[-1] + 1, size[:-1], generator=generator)
    mask = (torch.arange(size[-1]) < lengths[..., None]).long()
    types = torch.randint(config.type_vocab_size, size, generator=generator)
    return ids, mask, types


def _forget_where_it_was_made(proto: Any) -> None:
    """Drop the exporter's notes (file names and lines of this machine), so that the bytes depend on the model alone."""
    del proto.metadata_props[:]
    for graph in (proto.graph, *proto.functions):
        del graph.metadata_props[:]
        for part in (*graph.node, *graph.value_info, *getattr(graph, "initializer", ())):
            del part.metadata_props[:]
            part.doc_string = ""
    for value in (*proto.graph.input, *proto.graph.output):
        del value.metadata_props[:]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter logs and prints much that no user can act on."""
    logging.disable(logging.WARNING)
    nowhere = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
