"""The results of both implementations for the same inputs: values, the loss, and the gradient of every parameter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.interop.hugging_face.config_json import problem_type_of
from bertkit.interop.padded import PaddedBert
from bertkit.interop.parity.certificate import full_tensors
from bertkit.interop.parity.inputs import Inputs
from bertkit.model.bert_config import POOLED_HEADS, BertConfig
from bertkit.model.heads import BertWithHeads

Results = dict[
    str, Tensor
]  # of one implementation: hidden_states.0, logits.masked_lm, loss, gradient.bert.pooler.dense.bias, ...


def our_results(ours: PaddedBert, inputs: Inputs, names: Iterable[str]) -> Results:
    """Compute a batch forward and backward; `names` are the parameters with gradients, as Hugging Face names them."""
    ours.zero_grad(set_to_none=True)
    out = ours(**inputs.arguments(), output_hidden_states=True)
    pooled = None if ours.model.heads else out.pooled_output  # with a head, transformers does not return it
    values = _values(inputs, out.hidden_states, out.logits, pooled)
    if inputs.labels:
        values["loss"] = _loss(out.logits, _labels(inputs, out.last_hidden_state), ours.config, inputs.is_token)
    tensors = full_tensors(ours.model)
    return _with_gradients(values, inputs, {name: [tensors[name]] for name in names})


def their_results(theirs: Any, inputs: Inputs, model: BertWithHeads) -> Results:
    """Compute the same with `transformers`, under our names."""
    theirs.zero_grad(set_to_none=True)
    labels = _labels(inputs, next(theirs.parameters()))
    reference = theirs(**inputs.arguments(), **_their_labels(labels), output_hidden_states=True)
    states = reference.encoder_hidden_states if inputs.has_targets else reference.hidden_states
    logits = _their_logits(reference, tuple(model.heads))
    values = _values(inputs, states, logits, reference.get("pooler_output"))
    if labels:
        # the span loss of transformers counts padding as possible answers, so it is compared only without padding
        is_theirs = "span" not in labels or bool(inputs.is_token.all())
        values["loss"] = reference.loss if is_theirs else _loss(logits, labels, model.config, inputs.is_token)
    return _with_gradients(values, inputs, their_parameters(model, theirs))


def _values(inputs: Inputs, states: Any, logits: Results, pooled: Tensor | None) -> Results:
    """Collect the values of a forward pass, without padding."""
    is_token = inputs.is_token
    is_written = inputs.of_target(is_token) if inputs.has_targets else is_token
    values = {f"hidden_states.{layer}": hidden[is_token] for layer, hidden in enumerate(states)}
    for head in sorted(logits):
        values[f"logits.{head}"] = logits[head][... if head in POOLED_HEADS else is_written]
    return values if pooled is None else values | {"pooled_output": pooled}


def _with_gradients(values: Results, inputs: Inputs, parameters: Mapping[str, list[Tensor]]) -> Results:
    """Add the gradient of every parameter.

    Without a loss, or if the loss ignores a shift of all logits, so that its gradients nearly cancel, a sum of all outputs
    with random weights takes its place.
    """
    if "loss" in values and not inputs.labels.keys() & {"span", "choice"}:
        minimised = values["loss"]
    else:
        generator = torch.Generator().manual_seed(0)
        outputs = [value for what, value in values.items() if what.startswith(("logits", "pooled"))]
        outputs += [] if inputs.labels else [value for what, value in values.items() if what.startswith("hidden")][-1:]
        weights = [torch.randn(output.shape, generator=generator).to(output.dtype) for output in outputs]
        minimised = torch.stack([(a * b).mean() for a, b in zip(outputs, weights, strict=True)]).sum()
    minimised.backward()  # type: ignore[no-untyped-call]
    gradients = {
        name: torch.stack([torch.zeros_like(p) if p.grad is None else p.grad for p in shared]).sum(0)
        for name, shared in parameters.items()
    }
    return {what: value.detach() for what, value in values.items()} | {
        f"gradient.{name}": gradient for name, gradient in gradients.items()
    }


def their_parameters(model: BertWithHeads, theirs: nn.Module) -> dict[str, list[Tensor]]:
    """Return the parameters of `transformers` by our full names: two where a decoder shares the weights of its encoder.

    A pooler beside a head that does not use it exists in bertkit alone.
    """
    parameters = dict(theirs.named_parameters())
    is_bare = not any(name.startswith("bert.") for name in parameters)
    is_shared = model.config.decoder is not None and model.config.decoder.share
    result: dict[str, list[Tensor]] = {}
    for name in full_tensors(model):
        encoder = re.sub(r"^bert\.", "encoder." if "generation" in model.heads else "", name) if is_bare else name
        both = (encoder, f"decoder.{name}") if is_shared else (encoder,)
        of_theirs: list[Tensor] = [parameters[own] for own in both if own in parameters]
        assert of_theirs or name.startswith("bert.pooler."), f"transformers has no {name}"
        if of_theirs:
            result[name] = of_theirs
    return result


def _labels(inputs: Inputs, like: Tensor) -> dict[str, Tensor]:
    """Return the labels, with floating-point labels in the precision of a tensor."""
    return {head: x.to(like.dtype) if x.is_floating_point() else x for head, x in inputs.labels.items()}


def _their_labels(labels: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the labels as arguments of the `transformers` class."""
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


def _loss(logits: dict[str, Tensor], labels: dict[str, Tensor], config: BertConfig, is_token: Tensor) -> Tensor:
    """Sum the mean losses of the heads."""
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
