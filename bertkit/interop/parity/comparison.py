"""The comparison with the Hugging Face implementation, number by number, and the certificate that it gives.

For the same weights and inputs, in float64 and float32: every hidden state, the pooled output, each head's logits, each
loss, and the gradient of every parameter. The only file that imports `transformers`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import logging
import math
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit import __version__
from bertkit.data.tokenizer import load_tokenizer
from bertkit.errors import InputError
from bertkit.files import write_tensors
from bertkit.interop.hugging_face.config import architecture_of, config_json, problem_type_of, require_bert
from bertkit.interop.hugging_face.directory import tensors_of
from bertkit.interop.hugging_face.names import to_hugging_face
from bertkit.interop.load import hashes_of, load_directory
from bertkit.interop.padded import PaddedBert
from bertkit.interop.parity.certificate import FORMAT, full_tensors, identity_of
from bertkit.interop.parity.inputs import TEXTS, Inputs, make_inputs
from bertkit.lines import read_json
from bertkit.model.config import POOLED_HEADS, BertConfig
from bertkit.model.heads import BertWithHeads

# largest difference allowed for values, relative to max(1, largest entry of the tensor); for gradients, relative to max(largest entry of the tensor, a thousandth
# of the largest entry of all): the bias of a key has a true gradient of zero, so its own size says nothing
TOLERANCES = {"float64": 1e-10, "float32": 1e-5}
GRADIENT_FLOOR = 1e-3
NOT_FINITE = 1e308  # stands for a difference that is not finite, since JSON has no NaN
# settings of a config.json that change how it computes or answers, and not what
PLAIN = {"attn_implementation": "sdpa", "return_dict": True, "chunk_size_feed_forward": 0}
NOTES = (
    "a float32 gradient beyond the tolerance counts as within it where it is at most twice as far from the float64 gradient "
    "as that of transformers: where gradients nearly cancel, both keep little but rounding",
    "google-research/bert divides the masked LM loss by its weights' sum + 1e-5, both implementations here by the count",
    "transformers keeps back the gradient of the [PAD] embedding, bertkit and google-research/bert do not; no input here has one",
    "weights that a decoder shares with its encoder are two in transformers; their gradients are compared as a sum",
    "the span loss of transformers counts padding as possible answers; where there is padding, both are compared without it",
)


Row = dict[str, Any]  # of the certificate: what was compared, and how far it is apart
Gradients = dict[str, tuple[Tensor, Tensor]]  # of each parameter by its Hugging Face name, ours and theirs


def certify(directory: Path, seed: int = 0, num_sequences: int = 5, rewrite: bool = True) -> dict[str, Any]:
    """Compare a model directory, as bertkit and as `transformers` load it, and give its certificate.

    Args:
        directory: the model.
        seed: of the random inputs.
        num_sequences: in a batch.
        rewrite: where `transformers` cannot load the directory cleanly (a TensorFlow checkpoint, names of another
            program), let it load a copy that bertkit writes, and say so; else that is an error.

    Returns:
        Versions, hashes of the files and of every tensor as it was loaded, and for each compared value the largest
        difference; `within_tolerance` is the verdict.

    Raises:
        InputError: the tokenizer is of another size than the embeddings, or `transformers` cannot load the directory as
            the same class, or says anything while it does.
    """
    for name in ("config.json", "tokenizer_config.json"):
        path = directory / name
        content = read_json(path) if path.is_file() else None
        if isinstance(content, dict) and "auto_map" in content:
            raise InputError(
                f"{path}: 'auto_map' names code, of which nothing is run; verify a copy without this entry"
            )
    model, report = load_directory(directory)
    if report.new:
        raise InputError(f"{directory}: no weights for {', '.join(report.new)}; restore the directory from its source")
    require_bert(model.config, str(directory))
    identity, architecture = identity_of(model), architecture_of(model)
    with tempfile.TemporaryDirectory() as scratch:
        loadable, reason = directory, None
        try:
            load_in_transformers(directory, architecture, torch.float32, model.bert.pooler is not None)
        except InputError as error:
            if not rewrite:
                raise
            loadable, reason = Path(scratch), str(error)[:300]
            (loadable / "config.json").write_text(config_json(model.config, architecture), encoding="utf-8")
            write_tensors(loadable / "model.safetensors", tensors_of(model))
        cases = make_inputs(model, directory, seed, num_sequences)
        comparisons = _compare_all(model, loadable, cases)
    tokenizer_fault = None if reason else _tokenizer_fault(directory)
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "torch", "tokenizers")}
    return {
        "format": FORMAT,
        "architecture": architecture,
        "rewritten_because": reason,
        "versions": {"bertkit": __version__, **versions},
        "seed": seed,
        "within_tolerance": tokenizer_fault is None and all(row["within_tolerance"] for row in comparisons),
        "tokenizer_fault": tokenizer_fault,
        "not_finite": _largest_weights(model) if any(row["max_abs"] >= NOT_FINITE for row in comparisons) else None,
        "tolerances": {"values": TOLERANCES, "gradient_floor": GRADIENT_FLOOR},
        "notes": list(NOTES),
        "comparisons": comparisons,
        "file_sha256": hashes_of(directory),
        **identity,
    }


def _compare_all(model: BertWithHeads, directory: Path, cases: Mapping[str, Inputs]) -> list[Row]:
    """Compare in float64, and then in float32 with the gradients of float64 as the truth."""
    comparisons: list[Row] = []
    exact: dict[str, Gradients] = {}
    for dtype in (torch.float64, torch.float32):
        ours = PaddedBert(model.to(dtype)).eval()
        theirs = load_in_transformers(directory, architecture_of(model), dtype, model.bert.pooler is not None)
        for case, inputs in cases.items():
            rows, gradients = _compare(ours, theirs, inputs, dtype)
            rows += _compare_gradients(gradients, dtype, exact.get(case))
            comparisons += [{"case": case, **row} for row in rows]
            exact.setdefault(case, {name: (a.float(), b.float()) for name, (a, b) in gradients.items()})
    return comparisons


def _tokenizer_fault(directory: Path) -> str | None:
    """Say how the tokenizer of `transformers` differs from bertkit's; None where it does not, or there is none to load."""
    if not all((directory / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    try:
        same_ids(directory, TEXTS)
    except InputError as error:
        return str(error)
    return None


def _compare(ours: PaddedBert, theirs: Any, inputs: Inputs, dtype: torch.dtype) -> tuple[list[Row], Gradients]:
    """Compare values; give the rows, and the gradients of both."""
    is_token = inputs.is_token
    ours.zero_grad(set_to_none=True)
    theirs.zero_grad(set_to_none=True)
    out = ours(**inputs.arguments(), output_hidden_states=True)
    labels = {head: label.to(dtype) if label.is_floating_point() else label for head, label in inputs.labels.items()}
    reference = theirs(**inputs.arguments(), **_their_labels(labels), output_hidden_states=True)
    assert out.hidden_states is not None
    their_states = reference.encoder_hidden_states if inputs.has_targets else reference.hidden_states
    hidden = [(a[is_token], b[is_token]) for a, b in zip(out.hidden_states, their_states, strict=True)]
    outputs = {}
    their_logits = _their_logits(reference, tuple(out.logits))
    for head, logits in out.logits.items():
        where = ... if head in POOLED_HEADS else inputs.of_target(is_token) if inputs.has_targets else is_token
        outputs[f"logits.{head}"] = (logits[where], their_logits[head][where])
    if out.pooled_output is not None and "pooler_output" in reference:
        outputs["pooled_output"] = (out.pooled_output, reference.pooler_output)
    pairs = {**{f"hidden_states.{layer}": pair for layer, pair in enumerate(hidden)}, **outputs}
    if labels:
        # their span loss counts the padding as possible answers, so it is theirs only where there is none
        is_theirs = "span" not in labels or bool(is_token.all())
        their_loss = reference.loss if is_theirs else _loss(their_logits, labels, ours.config, is_token)
        pairs["loss"] = (_loss(out.logits, labels, ours.config, is_token), their_loss)
    if labels and not labels.keys() & {"span", "choice"}:
        minimised = pairs["loss"]
    else:
        # nothing to minimise, or a loss that a shift of all logits leaves alone, so that its gradients nearly cancel
        minimised = _weighted_sums([*outputs.values(), *([] if labels else hidden[-1:])])
    rows = []
    for what, (a, b) in pairs.items():
        difference, largest = float((a - b).detach().abs().max()), float(b.detach().abs().max())
        within = difference <= TOLERANCES[_name(dtype)] * max(1.0, largest)
        rows.append(_row(dtype, what, difference, difference / max(largest, 1e-300), within))
    for scalar in minimised:
        torch.autograd.backward(scalar)
    return rows, _gradients(ours.model, theirs)


def _largest_weights(model: BertWithHeads) -> str:
    """Name what makes a model overflow, as far as it can be told."""
    sizes = {name: float(tensor.detach().abs().max()) for name, tensor in model.named_parameters()}
    name = max(sizes, key=lambda each: sizes[each])
    return f"the largest weights, up to {sizes[name]:.1e}, are those of {to_hugging_face(name)}; take a sound copy"


def _their_labels(labels: dict[str, Tensor]) -> dict[str, Tensor]:
    """The labels as the arguments of the `transformers` class."""
    if "span" in labels:
        return {"start_positions": labels["span"][:, 0], "end_positions": labels["span"][:, 1]}
    if len(labels) == 2:
        return {"labels": labels["masked_lm"], "next_sentence_label": labels["next_sentence"]}
    return {"labels": next(iter(labels.values()))} if labels else {}


def _their_logits(reference: Any, heads: tuple[str, ...]) -> dict[str, Tensor]:
    if heads == ("span",):
        return {"span": torch.stack([reference.start_logits, reference.end_logits], -1)}
    if len(heads) == 2:
        return {"masked_lm": reference.prediction_logits, "next_sentence": reference.seq_relationship_logits}
    return {head: reference.logits for head in heads}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _row(dtype: torch.dtype, what: str, absolute: float, relative: float, within: bool) -> Row:
    sizes = [value if math.isfinite(value) else NOT_FINITE for value in (absolute, relative)]
    return {"dtype": _name(dtype), "what": what, "max_abs": sizes[0], "max_rel": sizes[1], "within_tolerance": within}


def _gradients(ours: BertWithHeads, theirs: Any) -> Gradients:
    """Give the gradient of every parameter that both have; a pooler beside a head that does not look at it is ours alone."""
    their_parameters = dict(theirs.named_parameters())
    is_bare = not any(name.startswith("bert.") for name in their_parameters)
    is_shared = ours.config.decoder is not None and ours.config.decoder.share
    gradients = {}
    for name, parameter in full_tensors(ours).items():
        encoder = re.sub(r"^bert\.", "encoder." if "generation" in ours.heads else "", name) if is_bare else name
        both = (encoder, f"decoder.{name}") if is_shared else (encoder,)  # of a decoder, which has no pooler
        others = [their_parameters[each] for each in both if each in their_parameters]
        if not others and name.startswith("bert.pooler."):
            continue
        assert others, f"transformers has no {name}"
        zero = torch.zeros_like(parameter)
        own, *of_others = (zero if each.grad is None else each.grad.clone() for each in (parameter, *others))
        gradients[name] = (own, torch.stack(of_others).sum(0))
    return gradients


def _compare_gradients(gradients: Gradients, dtype: torch.dtype, exact: Gradients | None) -> list[Row]:
    """Compare gradients; where they nearly cancel, ours may be as far from those of float64 as theirs are, and no further."""
    largest_of_all = max(float(b.abs().max()) for _, b in gradients.values())
    rows = []
    for name, (a, b) in gradients.items():
        difference = float((a - b).abs().max())
        relative = difference / max(float(b.abs().max()), GRADIENT_FLOOR * largest_of_all, 1e-300)
        within = relative <= TOLERANCES[_name(dtype)]
        if not within and exact is not None and math.isfinite(difference):
            truth = exact[name][1]
            within = float((a - truth).abs().max()) <= 2 * float((b - truth).abs().max())
        rows.append(_row(dtype, f"gradient.{name}", difference, relative, within))
    return rows


def _loss(logits: dict[str, Tensor], labels: dict[str, Tensor], config: BertConfig, is_token: Tensor) -> Tensor:
    """The sum of the mean losses of the heads."""
    parts = []
    for head, label in labels.items():
        scores = logits[head]
        if head == "span":
            scores = scores.masked_fill(~is_token[..., None], float("-inf"))  # (B, T, 2)
            parts.append(
                (F.cross_entropy(scores[..., 0], label[:, 0]) + F.cross_entropy(scores[..., 1], label[:, 1])) / 2
            )
        elif head == "sequence" and problem_type_of(config) == "regression":
            parts.append(F.mse_loss(scores, label))
        elif head == "sequence" and problem_type_of(config) == "multi_label_classification":
            parts.append(F.binary_cross_entropy_with_logits(scores, label))
        else:
            parts.append(F.cross_entropy(scores.flatten(0, -2), label.flatten()))
    return torch.stack(parts).sum()


def _weighted_sums(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A scalar of each side that every entry of its outputs takes part in, with a random weight of its own."""
    generator = torch.Generator().manual_seed(0)
    sums: list[tuple[Tensor, Tensor]] = []
    for ours, theirs in pairs:
        weights = torch.randn(ours.shape, generator=generator, dtype=torch.float32).to(ours.dtype)
        sums.append(((ours * weights).mean(), (theirs * weights).mean()))
    return torch.stack([a for a, _ in sums]).sum(), torch.stack([b for _, b in sums]).sum()


def load_in_transformers(directory: Path, architecture: str, dtype: torch.dtype, with_pooler: bool = True) -> Any:
    """Load a directory with `transformers`, strictly.

    Raises:
        InputError: a tensor is missing or left over, or loading logged or warned anything.
    """
    import transformers

    bare = {"add_pooling_layer": False} if architecture == "BertModel" and not with_pooler else {}
    with _recorded() as said:
        try:
            model, info = getattr(transformers, architecture).from_pretrained(
                directory, dtype=dtype, output_loading_info=True, local_files_only=True, **PLAIN, **bare
            )
        except Exception as error:  # whatever it dislikes about a directory
            raise InputError(f"{directory}: transformers does not load it: {' '.join(str(error).split())}") from None
    left = {key: sorted(map(str, value)) for key, value in info.items() if value}
    if left or said:
        raise InputError(f"{directory}: transformers does not load it cleanly as {architecture}: {left or said}")
    return model.eval()


@contextlib.contextmanager
def _recorded() -> Iterator[list[str]]:
    """Collect everything that is logged, warned or printed meanwhile."""
    import transformers

    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_warning()
    transformers.logging.disable_progress_bar()
    handlers, logger.handlers = logger.handlers, [handler]  # recorded, and not printed
    printed = io.StringIO()
    try:
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(printed):
            warnings.simplefilter("default")
            yield said
        said += [str(warning.message) for warning in caught if "transformers" in str(warning.filename)]
        said += [line for line in printed.getvalue().splitlines() if line.strip()]
    finally:
        logger.handlers = handlers
        transformers.logging.set_verbosity(verbosity)


def same_ids(directory: Path, texts: Sequence[tuple[str, str]]) -> None:
    """Check that `AutoTokenizer` gives the same ids as bertkit."""
    import transformers

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with _recorded() as said:
        try:
            theirs = transformers.AutoTokenizer.from_pretrained(
                directory, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # whatever it dislikes about a directory
            reason = " ".join(str(error).split())
            raise InputError(f"{directory}: transformers does not load the tokenizer: {reason}") from None
    if said:
        raise InputError(f"{directory}: transformers does not load the tokenizer cleanly: {said}")
    ours = load_tokenizer(directory)
    for first, second in texts:
        encoded, reference = ours(first, second), theirs(first, second)
        if any(encoded[key] != list(reference[key]) for key in encoded):
            raise InputError(f"{directory}: the tokenizers differ on {first!r}, {second!r}")
