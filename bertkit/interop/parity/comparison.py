"""The numerical comparison of a model with the reference, its class in `transformers`; the result is a certificate.

Both get the same weights and inputs. Compared are, in float64 and float32: every loaded weight, every hidden state, the pooled
output, the logits of each head, each loss, and the gradient of every parameter.

- float64 shows whether both compute the same function: they may differ by 1e-10 of the largest entry, or by a multiple of the
  reference's rounding error, if that is more.
- float32 shows whether bertkit's rounding errors are small: its difference from float64 may be the same multiple.

The rounding error is measured with the same weights (`_rounding_errors`), since it depends on them.

`transformers` is imported here, in tokenizers.py, and for the tokenizers that only its classes build.
"""

import contextlib
import importlib.metadata
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from bertkit import __version__
from bertkit.base.errors import InputError
from bertkit.base.tensor_files import write_tensors
from bertkit.base.text_files import JsonObject, read_json
from bertkit.interop.hugging_face.architecture import writer_of
from bertkit.interop.hugging_face.config_json import architecture_of, config_json, require_bert
from bertkit.interop.hugging_face.directory import tensors_of
from bertkit.interop.load import load_directory
from bertkit.interop.model_dir import hashes_of
from bertkit.interop.padded import PaddedBert
from bertkit.interop.parity.certificate import FORMAT, full_tensors, identity_of
from bertkit.interop.parity.reference import UncleanError, strictly
from bertkit.interop.parity.results import (
    ComparedBatch,
    Results,
    Rows,
    make_batches,
    our_results,
    their_parameters,
    their_results,
)
from bertkit.interop.parity.rotations import exact_rotations
from bertkit.interop.parity.tokenizers import tokenizer_fault
from bertkit.model.heads import BertWithHeads

# float64: relative to max(1, largest entry of the tensor); a gradient relative to max(its largest entry, a thousandth of the
# largest entry of all gradients), since the true value of some gradients is zero
TOLERANCE, GRADIENT_FLOOR = 1e-10, 1e-3
# the largest allowed ratio of bertkit's error to the reference's, which is the largest of three roundings. With the 200
# sets of weights in tests/interop/parity/test_verdict.py the ratio was at most 8.0; with matrices in bfloat16 it is about 60,000
ROUNDING_FACTOR, NUM_ROUNDINGS = 64, 3
SETTLED_FACTOR = 4  # a ratio below which no further rounding is computed: more of them can only lower it
TOLERANCES = {"float64": TOLERANCE, "gradient_floor": GRADIENT_FLOOR, "rounding_factor": ROUNDING_FACTOR}
NOT_FINITE = 1e308  # stands for a difference that is not finite, since JSON has no NaN
NOTES = (
    "google-research/bert divides the masked LM loss by its weights' sum + 1e-5, both implementations here by the count",
    "transformers keeps back the gradient of the embedding pad_token_id, bertkit and google-research/bert do not; here it does not either",
    "tokenizers are compared with the installed transformers, which makes of a BertTokenizer the vocabulary and the settings; version 4 took the "
    "whole tokenizer.json, and without model_input_names gave the second text of a pair token type 1",
    "weights that a decoder shares with its encoder are two in transformers; their gradients are compared as a sum",
    "the span loss of transformers counts padding as possible answers; where there is padding, both are compared without it",
)

# settings of a config.json that change how values are computed or returned, but not the values
PLAIN = {"return_dict": True, "chunk_size_feed_forward": 0}


Row = JsonObject  # a row of the certificate: the name of a compared value, and its differences


def certify(directory: Path, seed: int = 0, num_sequences: int = 5) -> JsonObject:
    """Load a model directory with bertkit and with `transformers`, compare them, and return the certificate.

    If `transformers` cannot load the directory cleanly (a TensorFlow checkpoint, unusual names), it loads a copy that bertkit
    writes, and the certificate has the reason.

    Raises:
        InputError: tokenizer and embeddings have different sizes, or the directory has code or lacks weights.
    """
    for name in ("config.json", "tokenizer_config.json"):
        path = directory / name
        match read_json(path) if path.is_file() else None:
            case {"auto_map": _}:
                raise InputError(f"{path}: 'auto_map' names code, which is never run; verify a copy without this entry")
    model, report = load_directory(directory)
    if report.new:
        raise InputError(f"{directory}: no weights for {', '.join(report.new)}; restore the directory from its source")
    require_bert(model, str(directory))
    try:
        return compare(directory, model, load_reference(directory, model), seed, num_sequences)
    except UncleanError as error:
        reason = str(error)[:300]
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch)
        (copy / "config.json").write_text(config_json(model), encoding="utf-8")
        write_tensors(copy / "model.safetensors", tensors_of(model))
        return compare(directory, model, load_reference(copy, model), seed, num_sequences, reason)


def compare(
    directory: Path,
    model: BertWithHeads,
    theirs: nn.Module,
    seed: int = 0,
    num_sequences: int = 5,
    reason: str | None = None,
) -> JsonObject:
    """Compare a model with `theirs`, its class in `transformers`; both hold the weights of a directory.

    The certificate has versions, hashes of the files and of every loaded tensor, and for each compared value the largest
    difference; `within_tolerance` is the verdict. `reason` says why `transformers` has loaded a copy of the directory.
    Afterwards both models are in evaluation mode, and their weights are in float32.
    """
    identity, cases = identity_of(model), make_batches(model, directory, seed, num_sequences)
    comparisons = _compare_all(model, theirs, cases)
    fault = None if reason else tokenizer_fault(directory)
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "torch", "tokenizers")}
    return {
        "format": FORMAT,
        "architecture": architecture_of(model),
        "rewritten_because": reason,
        "versions": {"bertkit": __version__, **versions},
        "seed": seed,
        "within_tolerance": fault is None and all(row["within_tolerance"] for row in comparisons),
        "tokenizer_fault": fault,
        "not_finite": _largest_weights(model) if any(row["max_abs"] >= NOT_FINITE for row in comparisons) else None,
        "tolerances": TOLERANCES,
        "notes": list(NOTES),
        "comparisons": comparisons,
        "file_sha256": hashes_of(directory),
        **identity,
    }


def _compare_all(model: BertWithHeads, theirs: nn.Module, cases: Mapping[str, ComparedBatch]) -> list[Row]:
    """Compare in float64, and then in float32; the results of the reference in float64 are taken as exact."""
    rows: list[Row] = []
    exact: dict[str, Results] = {}
    for dtype in (torch.float64, torch.float32):  # every float32 number is a float64 number, so none changes on the way
        ours, theirs = PaddedBert(model.to(dtype)).eval(), theirs.to(dtype)
        parameters = their_parameters(model, theirs)
        if dtype == torch.float32:
            rows.append({"case": "as loaded", **_compare_weights(full_tensors(model), parameters)})
        for case, batch in cases.items():
            with exact_rotations() if dtype == torch.float64 else contextlib.nullcontext():
                results, reference = our_results(ours, batch, parameters), their_results(theirs, batch, model)
            differences = _differences(dtype, results, reference)
            if unsettled := [row for row in differences if not row["within_tolerance"]]:
                true_values = exact.get(case, reference)
                for errors in _rounding_errors(theirs, batch, model, true_values, reference):
                    verdicts = _judge_rounding(results, true_values, errors)
                    for row in unsettled:
                        row.update(verdicts[row["what"]])
                    if all(row["error"] <= SETTLED_FACTOR * row["reference_error"] for row in unsettled):
                        break
            exact.setdefault(case, {what: value.float() for what, value in reference.items()})
            rows += [{"case": case, **row} for row in differences]
    return rows


def _differences(dtype: torch.dtype, ours: Results, theirs: Results) -> list[Row]:
    """Measure the difference of each value, absolute and relative to its largest entry; in float64, judge it by `TOLERANCE`.

    A gradient whose largest entry is below `GRADIENT_FLOOR` times that of all gradients is compared as if it had that size.
    """
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    floor = GRADIENT_FLOOR * max(_largest(value) for what, value in theirs.items() if what.startswith("gradient."))
    rows = []
    for what, value in theirs.items():
        difference, size, is_gradient = _largest(ours[what] - value), _largest(value), what.startswith("gradient.")
        within = dtype == torch.float64 and difference <= TOLERANCE * max(size, floor if is_gradient else 1.0)
        row = _row(dtype, what, difference, difference / max(size, floor if is_gradient else 0.0, 1e-300))
        rows.append(row | {"within_tolerance": within})
    return rows


def _judge_rounding(ours: Results, exact: Results, reference_errors: Mapping[str, float]) -> dict[str, Row]:
    """Check for each value that bertkit's error is at most `ROUNDING_FACTOR` times the rounding error of the reference."""
    verdicts = {}
    for what, reference_error in reference_errors.items():
        error = _largest(ours[what] - exact[what])
        within = math.isfinite(error) and error <= ROUNDING_FACTOR * reference_error
        verdicts[what] = {
            "error": _shown(error), "reference_error": _shown(reference_error), "within_tolerance": within,
        }  # fmt: skip
    return verdicts


def _rounding_errors(
    theirs: nn.Module, batch: ComparedBatch, model: BertWithHeads, exact: Results, reference: Results
) -> Iterator[dict[str, float]]:
    """Measure the rounding errors of the reference, more exactly each time: its difference from the exact results, of float64.

    The error depends on the weights. Where a sum nearly cancels, most of the result is rounding: the true gradient of a key's
    bias is zero, for example, since softmax is invariant to a shift of all scores. A single error may be small by chance, so
    the largest of several is taken: the reference computes again with its intermediate results rounded differently. An error
    is at least the rounding of the exact result.
    """
    errors = {what: torch.finfo(value.dtype).eps / 2 * _largest(value) for what, value in exact.items()}
    for seed in range(NUM_ROUNDINGS):
        with _rounded_differently(theirs, seed) if seed else contextlib.nullcontext():
            results = their_results(theirs, batch, model) if seed else reference
        errors = {what: max(error, _largest(results[what] - exact[what])) for what, error in errors.items()}
        yield errors


@contextlib.contextmanager
def _rounded_differently(model: nn.Module, seed: int) -> Iterator[None]:
    """Change the output of each module, and its gradient, at random by -1, 0 or 1 units in the last place."""
    generator = torch.Generator().manual_seed(seed)

    def moved(tensor: Tensor) -> Tensor:
        steps = torch.randint(-1, 2, tensor.shape, generator=generator, dtype=tensor.dtype)
        return tensor * (1 + torch.finfo(tensor.dtype).eps * steps)

    def hook(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        output = moved(output)
        output.register_hook(moved)  # type: ignore[no-untyped-call]
        return output

    leaves = [module for module in model.modules() if not list(module.children()) and list(module.parameters())]
    with contextlib.ExitStack() as hooks:
        for module in leaves:
            hooks.enter_context(module.register_forward_hook(hook))
        yield


def _largest_weights(model: BertWithHeads) -> str:
    """Describe the parameter with the largest weights, the likely reason for an overflow."""
    sizes = {name: float(tensor.detach().abs().max()) for name, tensor in model.named_parameters()}
    name = max(sizes, key=lambda each: sizes[each])
    return f"the largest weights, up to {sizes[name]:.1e}, are those of {writer_of(model.config, model.heads).full_name(name)}; take a sound copy"


def _compare_weights(ours: Mapping[str, Tensor], theirs: Mapping[str, list[Rows]]) -> Row:
    """Check that all loaded weights are equal to the last bit."""
    pairs = [(ours[name].detach(), other.values) for name, others in theirs.items() for other in others]
    difference = max(_largest(a - b) for a, b in pairs)
    is_same = all(torch.equal(a, b) for a, b in pairs)
    return _row(torch.float32, "weights", difference, difference) | {"within_tolerance": is_same}


def _row(dtype: torch.dtype, what: str, absolute: float, relative: float) -> Row:
    name = str(dtype).removeprefix("torch.")
    return {"dtype": name, "what": what, "max_abs": _shown(absolute), "max_rel": _shown(relative)}


def _largest(tensor: Tensor) -> float:
    low, high = map(float, tensor.aminmax())  # without a copy of the tensor
    return max(high, -low)


def _shown(number: float) -> float:
    return number if math.isfinite(number) else NOT_FINITE


def load_reference(directory: Path, model: BertWithHeads) -> nn.Module:
    """Load a directory, in float32, as the class of `transformers` for a model; UncleanError unless it has all weights of the class.

    Nothing may be logged, warned of or printed, and no tensor be missing or left over.
    """
    import transformers

    architecture, writer = architecture_of(model), writer_of(model.config, model.heads)
    with strictly(directory, f"the model as {architecture}"):
        theirs: nn.Module
        theirs, info = getattr(transformers, architecture).from_pretrained(
            directory,
            dtype=torch.float32,
            output_loading_info=True,
            local_files_only=True,
            **PLAIN,
            **writer.compared_with,
            **writer.reference_settings(model),
        )
        problems = {key: sorted(map(str, value)) for key, value in info.items() if value}
        if problems:
            raise UncleanError(
                f"{directory}: transformers does not load the model as {architecture} cleanly: {problems}"
            )
    for module in theirs.modules():
        if isinstance(module, nn.Embedding):
            module.padding_idx = None
    return theirs.eval()
