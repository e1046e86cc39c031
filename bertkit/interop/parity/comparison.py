"""The comparison with the Hugging Face implementation, number by number, and the certificate that it gives.

For the same weights and inputs, in float64 and float32: every hidden state, the pooled output, each head's logits, each
loss, and the gradient of every parameter.
"""

from __future__ import annotations

import importlib.metadata
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit import __version__
from bertkit.data.tokenizer import Tokenizer, load_tokenizer
from bertkit.errors import InputError
from bertkit.interop.hugging_face import directory as huggingface
from bertkit.interop.parity.certificate import FORMAT, full_tensors, identity_of
from bertkit.interop.parity.reference import load_reference, same_ids
from bertkit.model.config import POOLED_HEADS, BertConfig
from bertkit.model.heads import BertWithHeads, PaddedBert
from bertkit.train.checkpoint import write_tensors

# largest difference allowed for values, relative to max(1, largest entry of the tensor); for gradients, relative to max(largest entry of the tensor, a thousandth
# of the largest entry of all): the bias of a key has a true gradient of zero, so its own size says nothing
TOLERANCES = {"float64": 1e-10, "float32": 1e-5}
GRADIENT_FLOOR = 1e-3
TEXTS = (
    ("The committee will meet on Tuesday.", "It has not decided anything yet."),
    ("Sie sprach leise, aber deutlich.", "Naïve café owners paid 3.50 € for 12 eggs."),
    ("A", "B"),
    ("Every vector in this sequence is computed twice, once by each implementation, and then compared.", "So is this one."),
    ("Rain.", "The river rose slowly through the night, over the meadows, up to the first houses of the village."),
)  # fmt: skip
NOTES = (
    "a float32 gradient beyond the tolerance counts as within it where it is at most twice as far from the float64 gradient "
    "as that of transformers: where gradients nearly cancel, both keep little but rounding",
    "google-research/bert divides the masked LM loss by its weights' sum + 1e-5, both implementations here by the count",
    "transformers keeps back the gradient of the [PAD] embedding, bertkit and google-research/bert do not; no input here has one",
    "the span loss of transformers counts padding as possible answers; where there is padding, both are compared without it",
)


@dataclass(frozen=True)
class Inputs:
    """A padded batch, (B, T) or (questions, choices, T), with the labels of each head."""

    input_ids: Tensor
    attention_mask: Tensor | None
    token_type_ids: Tensor
    labels: dict[str, Tensor]

    @property
    def is_token(self) -> Tensor:
        """Where tokens stand, (B, T)."""
        mask = torch.ones_like(self.input_ids) if self.attention_mask is None else self.attention_mask
        return mask.flatten(0, -2).bool()


Gradients = dict[str, tuple[Tensor, Tensor]]  # of each parameter by its Hugging Face name, ours and theirs


def certificate(directory: Path, seed: int = 0, num_sequences: int = 5, rewrite: bool = True) -> dict[str, Any]:
    """Compare a model directory, as bertkit and as `transformers` load it.

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
    with tempfile.TemporaryDirectory() as scratch:
        return _certificate(directory, Path(scratch), seed, num_sequences, rewrite)


def _certificate(directory: Path, scratch: Path, seed: int, num_sequences: int, rewrite: bool) -> dict[str, Any]:
    model, report = huggingface.load(directory)
    if report.new:
        raise InputError(f"{directory}: no weights for {', '.join(report.new)}; restore the directory from its source")
    identity = identity_of(model)
    architecture = huggingface.architecture_of(model)
    with_pooler = model.bert.pooler is not None
    reference, reason = directory, None
    try:
        load_reference(directory, architecture, torch.float32, with_pooler)
    except InputError as error:
        if not rewrite:
            raise
        reference, reason = scratch, str(error)[:300]
        (scratch / "config.json").write_text(huggingface.config_json(model.config, architecture), encoding="utf-8")
        write_tensors(scratch / "model.safetensors", huggingface.tensors_of(model))
    comparisons = []
    exact: dict[str, Gradients] = {}
    for dtype in (torch.float64, torch.float32):
        ours = PaddedBert(model.to(dtype)).eval()
        theirs = load_reference(reference, architecture, dtype, with_pooler)
        for case, inputs in _cases(model, directory, seed, num_sequences).items():
            rows, gradients = _compare(ours, theirs, inputs, dtype)
            rows += _compare_gradients(gradients, dtype, exact.get(case))
            comparisons += [{"case": case, **row} for row in rows]
            if dtype == torch.float64:
                exact[case] = {name: (a.float(), b.float()) for name, (a, b) in gradients.items()}
        del theirs
    tokenizer_fault = None if reason else _tokenizer_fault(directory)
    return {
        "format": FORMAT,
        "architecture": architecture,
        "rewritten_because": reason,
        "versions": {
            "bertkit": __version__,
            **{name: importlib.metadata.version(name) for name in ("transformers", "torch", "tokenizers")},
        },
        "seed": seed,
        "within_tolerance": tokenizer_fault is None and all(row["within_tolerance"] for row in comparisons),
        "tokenizer_fault": tokenizer_fault,
        "tolerances": {"values": TOLERANCES, "gradient_floor": GRADIENT_FLOOR},
        "notes": list(NOTES),
        "comparisons": comparisons,
        "file_sha256": huggingface.hashes_of(directory),
        **identity,
    }


def _tokenizer_fault(directory: Path) -> str | None:
    """Say how the tokenizer of `transformers` differs from bertkit's; None where it does not, or there is none to load."""
    if not all((directory / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    try:
        same_ids(directory, TEXTS)
    except InputError as error:
        return str(error)
    return None


def _cases(model: BertWithHeads, directory: Path, seed: int, num_sequences: int) -> dict[str, Inputs]:
    """Real text in pairs with padding; random ids with padding; random ids at all positions without a mask."""
    config, heads = model.config, tuple(model.heads)
    generator = torch.Generator().manual_seed(seed)
    cases = {}
    if "choice" in heads:
        num_sequences += num_sequences % 2
    length = min(config.max_position_embeddings, 64)
    folder = directory if directory.is_dir() else directory.parent  # of a TensorFlow checkpoint's prefix
    if any((folder / name).is_file() for name in ("vocab.txt", "tokenizer.json")):
        tokenizer = load_tokenizer(folder)
        if tokenizer.vocab_size != config.vocab_size:
            raise InputError(
                f"{directory}: the tokenizer has {tokenizer.vocab_size} tokens, the embeddings {config.vocab_size} rows; "
                "bring the tokenizer of this model, or add unused tokens to vocab.txt where the rows were padded"
            )
        ids, mask, types = _text_inputs(tokenizer, num_sequences, length)
        cases["text, padded"] = _labelled(ids, mask, types.clamp(max=config.type_vocab_size - 1), config, heads)
    lengths = torch.randint(3, length + 1, (num_sequences,), generator=generator)
    lengths[0] = length
    mask = (torch.arange(length) < lengths[:, None]).long()
    ids, types = _random_ids(config, (num_sequences, length), generator)
    cases["random ids, padded"] = _labelled(ids, mask, types, config, heads)
    ids, types = _random_ids(config, (2 if "choice" in heads else 1, config.max_position_embeddings), generator)
    cases["random ids, all positions"] = _labelled(ids, None, types, config, heads)
    return cases


def _random_ids(config: BertConfig, shape: tuple[int, int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    ids = torch.randint(config.vocab_size, shape, generator=generator)
    ids[ids == config.pad_token_id] = (config.pad_token_id + 1) % config.vocab_size
    return ids, torch.randint(config.type_vocab_size, shape, generator=generator)


def _text_inputs(tokenizer: Tokenizer, num_sequences: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    pairs = [TEXTS[index % len(TEXTS)] for index in range(num_sequences)]
    encoded = tokenizer(
        [a for a, _ in pairs], [b for _, b in pairs], padding=True, truncation=True, max_length=length, return_tensors="pt"
    )  # fmt: skip
    return encoded["input_ids"], encoded["attention_mask"], encoded["token_type_ids"]


def _labelled(ids: Tensor, mask: Tensor | None, types: Tensor, config: BertConfig, heads: tuple[str, ...]) -> Inputs:
    """Add labels for each head: masked LM at about 15 % of the tokens, at least one a sequence.

    All sequences have the same label, the last one: with different ones the gradients of a pretrained model nearly cancel,
    and what is left in float32 is the rounding of either implementation.
    """
    num_sequences = len(ids)
    is_token = torch.ones_like(ids).bool() if mask is None else mask.bool()
    labels: dict[str, Tensor] = {}
    for head in heads:
        match head:
            case "masked_lm":
                chosen = (torch.rand(ids.shape, generator=torch.Generator().manual_seed(1)) < 0.15) & is_token
                chosen[:, 1] = is_token[:, 1]
                labels[head] = torch.where(chosen, ids, -100)
            case "next_sentence":
                labels[head] = torch.ones(num_sequences, dtype=torch.long)
            case "sequence" if _problem_type(config) == "single_label_classification":
                labels[head] = torch.full((num_sequences,), len(config.labels) - 1)
            case "sequence":
                labels[head] = torch.ones(num_sequences, len(config.labels))
            case "token":
                labels[head] = torch.where(is_token, len(config.labels) - 1, -100)
            case "span":
                labels[head] = torch.tensor([1, 2]).expand(num_sequences, 2)
            case "choice":
                ids, types = (tensor.view(num_sequences // 2, 2, -1) for tensor in (ids, types))
                mask = None if mask is None else mask.view(num_sequences // 2, 2, -1)
                labels[head] = torch.ones(num_sequences // 2, dtype=torch.long)
    return Inputs(ids, mask, types, labels)


def _problem_type(config: BertConfig) -> str:
    return config.problem_type or ("regression" if len(config.labels) == 1 else "single_label_classification")


def _compare(
    ours: PaddedBert, theirs: Any, inputs: Inputs, dtype: torch.dtype
) -> tuple[list[dict[str, Any]], Gradients]:
    """Compare values; give the rows, and the gradients of both."""
    arguments = {"input_ids": inputs.input_ids, "token_type_ids": inputs.token_type_ids}
    if inputs.attention_mask is not None:
        arguments["attention_mask"] = inputs.attention_mask
    is_token = inputs.is_token
    ours.zero_grad(set_to_none=True)
    theirs.zero_grad(set_to_none=True)
    out = ours(**arguments, output_hidden_states=True)
    labels = {head: label.to(dtype) if label.is_floating_point() else label for head, label in inputs.labels.items()}
    reference = theirs(**arguments, **_their_labels(labels), output_hidden_states=True)
    assert out.hidden_states is not None
    pairs: dict[str, tuple[Tensor, Tensor]] = {
        f"hidden_states.{layer}": (a[is_token], b[is_token])
        for layer, (a, b) in enumerate(zip(out.hidden_states, reference.hidden_states, strict=True))
    }
    their_logits = _their_logits(reference, tuple(out.logits))
    for head, logits in out.logits.items():
        pair = (logits, their_logits[head])
        pairs[f"logits.{head}"] = pair if head in POOLED_HEADS else (pair[0][is_token], pair[1][is_token])
    if out.pooled_output is not None and "pooler_output" in reference:
        pairs["pooled_output"] = (out.pooled_output, reference.pooler_output)
    if labels:
        # their span loss counts the padding as possible answers, so it is theirs only where there is none
        is_theirs = "span" not in labels or bool(is_token.all())
        their_loss = reference.loss if is_theirs else _loss(their_logits, labels, ours.config, is_token)
        pairs["loss"] = (_loss(out.logits, labels, ours.config, is_token), their_loss)
    if labels and not labels.keys() & {"span", "choice"}:
        backward = pairs["loss"]
    else:
        # nothing to minimise, or a loss that a shift of all logits leaves alone, so that its gradients nearly cancel
        outputs = [pair for what, pair in pairs.items() if not what.startswith(("hidden_states", "loss"))]
        last = pairs[f"hidden_states.{len(out.hidden_states) - 1}"]
        backward = _weighted_sums([*outputs, *([] if labels else [last])])
    name = str(dtype).removeprefix("torch.")
    rows = []
    for what, (a, b) in pairs.items():
        difference = float((a - b).detach().abs().max())
        largest = float(b.detach().abs().max())
        within = difference <= TOLERANCES[name] * max(1.0, largest)
        rows.append(_row(name, what, difference, difference / max(largest, 1e-300), within))
    for scalar in backward:
        torch.autograd.backward(scalar)
    return rows, _gradients(ours.model, theirs)


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


def _row(dtype: str, what: str, absolute: float, relative: float, within: bool) -> dict[str, Any]:
    sizes = [value if math.isfinite(value) else 1e308 for value in (absolute, relative)]  # JSON has no NaN
    return {"dtype": dtype, "what": what, "max_abs": sizes[0], "max_rel": sizes[1], "within_tolerance": within}


def _gradients(ours: BertWithHeads, theirs: Any) -> Gradients:
    """Give the gradient of every parameter that both have; a pooler beside a head that does not look at it is ours alone."""
    their_parameters = dict(theirs.named_parameters())
    prefix = "bert." if not any(name.startswith("bert.") for name in their_parameters) else ""
    gradients = {}
    for name, parameter in full_tensors(ours).items():
        other = their_parameters.get(name.removeprefix(prefix))
        if other is None and name.startswith("bert.pooler."):
            continue
        assert other is not None, f"transformers has no {name}"
        zero = torch.zeros_like(parameter)
        pair = tuple(zero if side.grad is None else side.grad.clone() for side in (parameter, other))
        gradients[name] = (pair[0], pair[1])
    return gradients


def _compare_gradients(gradients: Gradients, dtype: torch.dtype, exact: Gradients | None) -> list[dict[str, Any]]:
    """Compare gradients; where they nearly cancel, ours may be as far from those of float64 as theirs are, and no further."""
    name_of_dtype = str(dtype).removeprefix("torch.")
    largest_of_all = max(float(b.abs().max()) for _, b in gradients.values())
    rows = []
    for name, (a, b) in gradients.items():
        difference = float((a - b).abs().max())
        relative = difference / max(float(b.abs().max()), GRADIENT_FLOOR * largest_of_all, 1e-300)
        within = relative <= TOLERANCES[name_of_dtype]
        if not within and exact is not None and math.isfinite(difference):
            truth = exact[name][1]
            within = float((a - truth).abs().max()) <= 2 * float((b - truth).abs().max())
        rows.append(_row(name_of_dtype, f"gradient.{name}", difference, relative, within))
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
        elif head == "sequence" and _problem_type(config) == "regression":
            parts.append(F.mse_loss(scores, label))
        elif head == "sequence" and _problem_type(config) == "multi_label_classification":
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
