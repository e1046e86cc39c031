"""The comparison with the Hugging Face implementation, number by number.

For the same weights and inputs, in float64 and float32: every hidden state, the pooled output, each head's logits, each
loss, and the gradient of every parameter. The only file that imports `transformers`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import io
import logging
import math
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit import __version__
from bertkit.data.tokenizer import Tokenizer
from bertkit.errors import InputError
from bertkit.interop import huggingface, names
from bertkit.model.heads import BertOutput, BertWithHeads, PaddedBert

# largest absolute difference allowed for values; for gradients, relative to max(largest entry of the tensor, a thousandth
# of the largest entry of all): the bias of a key has a true gradient of zero, so its own size says nothing
TOLERANCES = {"float64": 1e-10, "float32": 1e-5}
GRADIENT_FLOOR = 1e-3
FORMAT = "bertkit parity certificate 1"
TEXTS = (
    ("The committee will meet on Tuesday.", "It has not decided anything yet."),
    ("Sie sprach leise, aber deutlich.", "Naïve café owners paid 3.50 € for 12 eggs."),
    ("A", "B"),
    ("Every vector in this sequence is computed twice, once by each implementation, and then compared.", "So is this one."),
    ("Rain.", "The river rose slowly through the night, over the meadows, up to the first houses of the village."),
)  # fmt: skip


@dataclass(frozen=True)
class Inputs:
    """A padded batch with labels, (B, T) each but `next_sentence_label` (B,)."""

    input_ids: Tensor
    attention_mask: Tensor | None
    token_type_ids: Tensor
    labels: Tensor
    next_sentence_label: Tensor


def certificate(directory: Path, seed: int = 0, num_sequences: int = 5) -> dict[str, Any]:
    """Compare a model directory, as bertkit and as `transformers` load it.

    Returns:
        Versions, the hash of every tensor, and for each compared value the largest difference; `within_tolerance` is the
        verdict.

    Raises:
        InputError: `transformers` cannot load the directory as the same class, or says anything while it does.
    """
    model, _ = huggingface.load(directory)
    architecture = huggingface.architecture_of(model)
    comparisons = []
    for dtype in (torch.float64, torch.float32):
        ours = PaddedBert(model.to(dtype)).eval()
        theirs = load_reference(directory, architecture, dtype, model.bert.pooler is not None)
        for case, inputs in _cases(model, directory, seed, num_sequences).items():
            comparisons += [{"case": case, **row} for row in _compare(ours, theirs, inputs, dtype)]
        del theirs
    return {
        "format": FORMAT,
        "architecture": architecture,
        "versions": {
            "bertkit": __version__,
            **{name: importlib.metadata.version(name) for name in ("transformers", "torch", "tokenizers")},
        },
        "seed": seed,
        "within_tolerance": all(row["within_tolerance"] for row in comparisons),
        "tolerances": {"values": TOLERANCES, "gradient_floor": GRADIENT_FLOOR},
        "comparisons": comparisons,
        "tensor_sha256": tensor_hashes(directory),
    }


def tensor_hashes(directory: Path) -> dict[str, str]:
    """Hash every tensor of a model directory, by its full name: dtype, shape and bytes."""
    tensors, _ = huggingface.read_weights(directory)
    hashes = {}
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
        hashes[name] = digest.hexdigest()
    return hashes


def load_reference(directory: Path, architecture: str, dtype: torch.dtype, with_pooler: bool = True) -> Any:
    """Load a directory with `transformers`, strictly.

    Raises:
        InputError: a tensor is missing or left over, or loading logged or warned anything.
    """
    import transformers

    bare = {"add_pooling_layer": False} if architecture == "BertModel" and not with_pooler else {}
    with _recorded() as said:
        model, info = getattr(transformers, architecture).from_pretrained(
            directory, dtype=dtype, output_loading_info=True, local_files_only=True, **bare
        )
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
    logger.addHandler(handler)
    printed = io.StringIO()
    try:
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(printed):
            warnings.simplefilter("default")
            yield said
        said += [str(warning.message) for warning in caught if "transformers" in str(warning.filename)]
        said += [line for line in printed.getvalue().splitlines() if line.strip()]
    finally:
        logger.removeHandler(handler)
        transformers.logging.set_verbosity(verbosity)


def _cases(model: BertWithHeads, directory: Path, seed: int, num_sequences: int) -> dict[str, Inputs]:
    """Real text in pairs with padding; random ids at full length without a mask."""
    config = model.config
    generator = torch.Generator().manual_seed(seed)
    cases = {}
    length = min(config.max_position_embeddings, 64)
    if any((directory / name).is_file() for name in ("vocab.txt", "tokenizer.json")):
        from bertkit.data.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(directory)
        if tokenizer.vocab_size == config.vocab_size:
            cases["text, padded"] = _text_inputs(tokenizer, num_sequences, length, config.type_vocab_size, generator)
    lengths = torch.randint(3, length + 1, (num_sequences,), generator=generator)
    lengths[0] = length
    mask = (torch.arange(length) < lengths[:, None]).long()
    ids = torch.randint(config.vocab_size, (num_sequences, length), generator=generator)
    ids[ids == config.pad_token_id] = (config.pad_token_id + 1) % config.vocab_size
    types = torch.randint(config.type_vocab_size, ids.shape, generator=generator)
    cases["random ids, padded"] = _labelled(ids, mask, types, generator)
    cases["random ids, no mask"] = _labelled(ids[:2], None, types[:2], generator)
    return cases


def _text_inputs(
    tokenizer: Tokenizer, num_sequences: int, length: int, num_types: int, generator: torch.Generator
) -> Inputs:
    pairs = [TEXTS[index % len(TEXTS)] for index in range(num_sequences)]
    encoded = tokenizer(
        [a for a, _ in pairs], [b for _, b in pairs], padding=True, truncation=True, max_length=length, return_tensors="pt"
    )  # fmt: skip
    types = encoded["token_type_ids"].clamp(max=num_types - 1)
    return _labelled(encoded["input_ids"], encoded["attention_mask"], types, generator)


def _labelled(ids: Tensor, mask: Tensor | None, types: Tensor, generator: torch.Generator) -> Inputs:
    """Add masked LM labels at about 15 % of the tokens, at least one a sequence, and next sentence labels.

    The latter are all "random": with both labels the gradients of a pretrained model nearly cancel, and what is left in
    float32 is the rounding of either implementation.
    """
    is_token = torch.ones_like(ids).bool() if mask is None else mask.bool()
    chosen = (torch.rand(ids.shape, generator=generator) < 0.15) & is_token
    chosen[:, 1] = is_token[:, 1]
    labels = torch.where(chosen, ids, -100)
    return Inputs(ids, mask, types, labels, torch.ones(len(ids), dtype=torch.long))


def _compare(ours: PaddedBert, theirs: Any, inputs: Inputs, dtype: torch.dtype) -> list[dict[str, Any]]:
    arguments = {"input_ids": inputs.input_ids, "token_type_ids": inputs.token_type_ids}
    if inputs.attention_mask is not None:
        arguments["attention_mask"] = inputs.attention_mask
    is_token = (
        torch.ones_like(inputs.input_ids).bool() if inputs.attention_mask is None else inputs.attention_mask.bool()
    )
    ours.zero_grad(set_to_none=True)
    theirs.zero_grad(set_to_none=True)
    out = ours(**arguments, output_hidden_states=True)
    their_labels = {}
    if "masked_lm" in out.logits:
        their_labels["labels"] = inputs.labels
    if "next_sentence" in out.logits:
        their_labels["next_sentence_label"] = inputs.next_sentence_label
    reference = theirs(**arguments, **their_labels, output_hidden_states=True)
    assert out.hidden_states is not None
    pairs: dict[str, tuple[Tensor, Tensor]] = {
        f"hidden_states.{layer}": (a[is_token], b[is_token])
        for layer, (a, b) in enumerate(zip(out.hidden_states, reference.hidden_states, strict=True))
    }
    if "masked_lm" in out.logits:
        key = "prediction_logits" if "next_sentence" in out.logits else "logits"
        pairs["logits.masked_lm"] = (out.logits["masked_lm"][is_token], reference[key][is_token])
    if "next_sentence" in out.logits:
        pairs["logits.next_sentence"] = (out.logits["next_sentence"], reference.seq_relationship_logits)
    if out.pooled_output is not None and "pooler_output" in reference:
        pairs["pooled_output"] = (out.pooled_output, reference.pooler_output)
    loss = _loss(out, inputs)
    their_loss = (
        reference.loss
        if their_labels
        else _weighted_sum(reference.last_hidden_state, reference.pooler_output, is_token)
    )
    if loss is None:
        loss = _weighted_sum(out.last_hidden_state, out.pooled_output, is_token)
    pairs["loss"] = (loss, their_loss)
    name = str(dtype).removeprefix("torch.")
    rows = []
    for what, (a, b) in pairs.items():
        difference = float((a - b).detach().abs().max())
        largest = float(b.detach().abs().max())
        rows.append(_row(name, what, difference, difference / max(largest, 1e-300), difference <= TOLERANCES[name]))
    torch.autograd.backward(loss)
    torch.autograd.backward(their_loss)
    return rows + _compare_gradients(ours.model, theirs, name)


def _row(dtype: str, what: str, absolute: float, relative: float, within: bool) -> dict[str, Any]:
    sizes = [value if math.isfinite(value) else 1e308 for value in (absolute, relative)]  # JSON has no NaN
    return {"dtype": dtype, "what": what, "max_abs": sizes[0], "max_rel": sizes[1], "within_tolerance": within}


def _compare_gradients(ours: BertWithHeads, theirs: Any, dtype: str) -> list[dict[str, Any]]:
    their_parameters = dict(theirs.named_parameters())
    prefix = "bert." if not any(name.startswith("bert.") for name in their_parameters) else ""
    gradients = {}
    for name, parameter in ours.named_parameters():
        other = their_parameters[names.to_hugging_face(name).removeprefix(prefix)].grad
        zero = torch.zeros_like(parameter)
        gradients[name] = (parameter.grad if parameter.grad is not None else zero, zero if other is None else other)
    largest_of_all = max(float(b.abs().max()) for _, b in gradients.values())
    rows = []
    for name, (a, b) in gradients.items():
        difference = float((a - b).abs().max())
        relative = difference / max(float(b.abs().max()), GRADIENT_FLOOR * largest_of_all)
        rows.append(
            _row(dtype, f"gradient.{names.to_hugging_face(name)}", difference, relative, relative <= TOLERANCES[dtype])
        )
    return rows


def _loss(out: BertOutput, inputs: Inputs) -> Tensor | None:
    """The sum of the mean losses of the heads; None for a bare encoder."""
    parts = []
    if "masked_lm" in out.logits:
        parts.append(F.cross_entropy(out.logits["masked_lm"].flatten(0, 1), inputs.labels.flatten()))
    if "next_sentence" in out.logits:
        parts.append(F.cross_entropy(out.logits["next_sentence"], inputs.next_sentence_label))
    return torch.stack(parts).sum() if parts else None


def _weighted_sum(last_hidden_state: Tensor, pooled: Tensor | None, is_token: Tensor) -> Tensor:
    """A scalar that every entry of an encoder's outputs takes part in, with a random weight of its own."""
    total = last_hidden_state.new_zeros(())
    for output in (last_hidden_state[is_token], pooled):
        if output is not None:
            weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
            total = total + (output * weights.to(output.dtype)).mean()
    return total


def same_ids(directory: Path) -> None:
    """Check that `AutoTokenizer` gives the same ids as bertkit.

    Raises:
        InputError: naming the text on which they differ.
    """
    import transformers

    from bertkit.data.tokenizer import load_tokenizer

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with _recorded() as said:
        theirs = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
    if said:
        raise InputError(f"{directory}: transformers does not load the tokenizer cleanly: {said}")
    ours = load_tokenizer(directory)
    for first, second in TEXTS:
        encoded, reference = ours(first, second), theirs(first, second)
        if any(encoded[key] != list(reference[key]) for key in encoded):
            raise InputError(f"{directory}: the tokenizers differ on {first!r}, {second!r}")


def worst_failure(result: dict[str, Any], with_rounded_gradients: bool = True) -> dict[str, Any] | None:
    """Give the comparison that is furthest out of tolerance; None when all are within.

    Gradients in float32 can be left out: where they nearly cancel, both implementations keep little but rounding.
    """
    rows = [
        row
        for row in result["comparisons"]
        if not row["within_tolerance"]
        and (with_rounded_gradients or not (row["dtype"] == "float32" and row["what"].startswith("gradient.")))
    ]
    return max(rows, key=lambda row: row["max_rel"], default=None)


def in_one_screen(result: dict[str, Any]) -> str:
    """Sum a certificate up for a person."""
    lines = [f"{result['architecture']} beside transformers {result['versions']['transformers']}"]
    for dtype in TOLERANCES:
        for kind in ("hidden_states", "pooled_output", "logits", "loss", "gradient"):
            rows = [row for row in result["comparisons"] if row["dtype"] == dtype and row["what"].startswith(kind)]
            if not rows:
                continue
            key = "max_rel" if kind == "gradient" else "max_abs"
            worst = max(rows, key=lambda row: row[key])
            mark = "ok " if all(row["within_tolerance"] for row in rows) else "BAD"
            lines.append(
                f"  {mark} {dtype} {kind:<14} {len(rows):>4} compared, worst {worst[key]:.1e} ({worst['what']})"
            )
    lines.append("within tolerance" if result["within_tolerance"] else "NOT within tolerance")
    return "\n".join(lines)
