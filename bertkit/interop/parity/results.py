"""The batches of a comparison, and the outputs, the loss and the gradients that both implementations compute for them.

The batches are pairs of real texts and random ids, with labels for every head.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.base.errors import InputError
from bertkit.base.memory import require_memory
from bertkit.data.corpus.tokenizer import load_tokenizer
from bertkit.interop.hugging_face.config_json import problem_type_of
from bertkit.interop.padded import PaddedBert
from bertkit.interop.parity.certificate import full_tensors
from bertkit.model.bert_config import POOLED_HEADS, BertConfig
from bertkit.model.heads import BertWithHeads

Results = dict[str, Tensor]  # keys such as hidden_states.0, logits.masked_lm, loss, gradient.bert.pooler.dense.bias
TEXTS = (
    ("The committee will meet on Tuesday.", "It has not decided anything yet."),
    ("Sie sprach leise, aber deutlich.", "Naïve café owners paid 3.50 € for 12 eggs."),
    ("A", "B"),
    ("Every vector in this sequence is computed twice, once by each implementation, and then compared.", "So is this one."),
    ("Rain.", "The river rose slowly through the night, over the meadows, up to the first houses of the village."),
)  # fmt: skip


@dataclass(frozen=True)
class Inputs:
    """A padded batch, (B, T) or (questions, choices, T), with labels for each head, or with targets for a decoder."""

    input_ids: Tensor
    attention_mask: Tensor | None
    token_type_ids: Tensor
    labels: dict[str, Tensor]
    has_targets: bool = False

    @property
    def is_token(self) -> Tensor:
        """True for tokens, False for padding, (B, T)."""
        mask = torch.ones_like(self.input_ids) if self.attention_mask is None else self.attention_mask
        return mask.flatten(0, -2).bool()

    def arguments(self) -> dict[str, Tensor]:
        """Return the tensors as keyword arguments, whose names are the same in both implementations."""
        mask = {} if self.attention_mask is None else {"attention_mask": self.attention_mask}
        source = {"input_ids": self.input_ids, "token_type_ids": self.token_type_ids, **mask}
        if not self.has_targets:
            return source
        # the targets are the source texts in reverse order, so that the lengths of source and target differ
        targets = {name: tensor.flip(0) for name, tensor in source.items() if name != "token_type_ids"}
        return source | {f"decoder_{name}": tensor for name, tensor in targets.items()}


def make_inputs(model: BertWithHeads, directory: Path, seed: int, num_sequences: int) -> dict[str, Inputs]:
    """Make three batches: padded pairs of real texts, padded random ids, and random ids in the longest possible sequences."""
    config, heads = model.config, tuple(model.heads)
    generator = torch.Generator().manual_seed(seed)
    if "choice" in heads:
        num_sequences += num_sequences % 2
    length = min(config.max_position_embeddings, 64)
    logits, hidden_states = config.vocab_size, (config.num_hidden_layers + 1) * config.hidden_size
    numbers = length * (logits + hidden_states)
    require_memory(f"sequences={num_sequences}", 2 * 8 * numbers * num_sequences, "5 are enough to compare")
    cases = {}
    folder = directory if directory.is_dir() else directory.parent  # of a TensorFlow checkpoint's prefix
    if any((folder / name).is_file() for name in ("vocab.txt", "tokenizer.json")):
        tokenizer = load_tokenizer(folder)
        if tokenizer.vocab_size != config.vocab_size:
            raise InputError(
                f"{directory}: the tokenizer has {tokenizer.vocab_size} tokens, the embeddings {config.vocab_size} rows; use "
                "the tokenizer of this model, or add unused tokens to vocab.txt if the embeddings were padded"
            )
        firsts, seconds = zip(*(TEXTS[index % len(TEXTS)] for index in range(num_sequences)), strict=True)
        text = tokenizer(
            list(firsts), list(seconds), padding=True, truncation=True, max_length=length, return_tensors="pt"
        )
        types = text["token_type_ids"].clamp(max=config.type_vocab_size - 1)
        cases["text, padded"] = _with_labels(text["input_ids"], text["attention_mask"], types, config, heads)
    lengths = torch.randint(3, length + 1, (num_sequences,), generator=generator)
    lengths[0] = length
    mask = (torch.arange(length) < lengths[:, None]).long()
    ids, types = _random_ids(config, (num_sequences, length), generator)
    cases["random ids, padded"] = _with_labels(ids, mask, types, config, heads)
    ids, types = _random_ids(config, (2 if "choice" in heads else 1, config.max_position_embeddings), generator)
    cases["random ids, all positions"] = _with_labels(ids, None, types, config, heads)
    return cases


def _random_ids(config: BertConfig, shape: tuple[int, int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    ids = torch.randint(config.vocab_size, shape, generator=generator)
    ids[ids == config.pad_token_id] = (config.pad_token_id + 1) % config.vocab_size
    return ids, torch.randint(config.type_vocab_size, shape, generator=generator)


def _with_labels(ids: Tensor, mask: Tensor | None, types: Tensor, config: BertConfig, heads: tuple[str, ...]) -> Inputs:
    """Add labels for each head; for masked LM at about 15 % of the tokens, at least one in each sequence.

    All sequences have the same label, the last one. With different labels, the gradients of a pretrained model nearly cancel,
    and mostly rounding errors would be compared.
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
            case "next_token":
                labels[head] = torch.where(is_token, ids, -100)
            case "next_sentence":
                labels[head] = torch.ones(num_sequences, dtype=torch.long)
            case "sequence" if problem_type_of(config) == "single_label_classification":
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
    return Inputs(ids, mask, types, labels, "generation" in heads)


def our_results(ours: PaddedBert, inputs: Inputs, names: Iterable[str]) -> Results:
    """Compute a batch forward and backward with bertkit; return the gradients of parameters with these Hugging Face names."""
    ours.zero_grad(set_to_none=True)
    out = ours(**inputs.arguments(), output_hidden_states=True)
    pooled = None if ours.model.heads else out.pooled_output  # with a head, transformers does not return it
    values = _values(inputs, out.hidden_states, out.logits, pooled)
    if inputs.labels:
        values["loss"] = _loss(out.logits, _labels(inputs, out.last_hidden_state), ours.config, inputs.is_token)
    tensors = full_tensors(ours.model)
    return _with_gradients(values, inputs, {name: [tensors[name]] for name in names})


def their_results(theirs: Any, inputs: Inputs, model: BertWithHeads) -> Results:
    """Compute a batch forward and backward with `transformers`; the keys are those of `our_results`."""
    theirs.zero_grad(set_to_none=True)
    labels = _labels(inputs, next(theirs.parameters()))
    reference = theirs(**inputs.arguments(), **_their_labels(labels), output_hidden_states=True)
    states = reference.encoder_hidden_states if inputs.has_targets else reference.hidden_states
    logits = _their_logits(reference, tuple(model.heads))
    values = _values(inputs, states, logits, reference.get("pooler_output"))
    if labels:
        # the span loss of transformers counts padding as possible answers, and that of next tokens is always float32
        is_theirs = "next_token" not in labels and ("span" not in labels or bool(inputs.is_token.all()))
        values["loss"] = reference.loss if is_theirs else _loss(logits, labels, model.config, inputs.is_token)
    return _with_gradients(values, inputs, their_parameters(model, theirs))


def _values(inputs: Inputs, states: Any, logits: Results, pooled: Tensor | None) -> Results:
    """Return the outputs of a forward pass, without padding."""
    is_token = inputs.is_token
    is_output = is_token.flip(0) if inputs.has_targets else is_token
    values = {f"hidden_states.{layer}": hidden[is_token] for layer, hidden in enumerate(states)}
    for head in sorted(logits):
        values[f"logits.{head}"] = logits[head][... if head in POOLED_HEADS else is_output]
    return values if pooled is None else values | {"pooled_output": pooled}


def _with_gradients(values: Results, inputs: Inputs, parameters: Mapping[str, list[Tensor]]) -> Results:
    """Add the gradient of every parameter.

    It is the gradient of the loss, or of a randomly weighted sum of all outputs: if there is no loss, or if the loss is
    invariant to a shift of all logits, so that its gradients nearly cancel.
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
        name: [torch.zeros_like(p) if p.grad is None else p.grad for p in each] for name, each in parameters.items()
    }
    return {what: value.detach() for what, value in values.items()} | {
        f"gradient.{name}": torch.stack(each).sum(0) for name, each in gradients.items()
    }


def their_parameters(model: BertWithHeads, theirs: nn.Module) -> dict[str, list[Tensor]]:
    """Return the parameters of `transformers` by their full names: two for a weight that decoder and encoder share.

    A pooler that no head uses is left out; only bertkit has it.
    """
    parameters = dict(theirs.named_parameters())
    is_bare = not any(name.startswith("bert.") for name in parameters)
    is_shared = model.config.decoder is not None and model.config.decoder.share
    parameters_of: dict[str, list[Tensor]] = {}
    for name in full_tensors(model):
        encoder = re.sub(r"^bert\.", "encoder." if "generation" in model.heads else "", name) if is_bare else name
        both = (encoder, f"decoder.{name}") if is_shared else (encoder,)
        of_theirs: list[Tensor] = [parameters[each] for each in both if each in parameters]
        assert of_theirs or name.startswith("bert.pooler."), f"transformers has no {name}"
        if of_theirs:
            parameters_of[name] = of_theirs
    return parameters_of


def _labels(inputs: Inputs, like: Tensor) -> dict[str, Tensor]:
    """Return the labels, with floating-point labels in the dtype of `like`."""
    return {head: x.to(like.dtype) if x.is_floating_point() else x for head, x in inputs.labels.items()}


def _their_labels(labels: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the labels as keyword arguments of the `transformers` class."""
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
    """Return the sum of the mean losses of the heads."""
    parts = []
    for head, label in labels.items():
        scores = logits[head]
        if head == "next_token":
            scores, label = scores[:, :-1], label[:, 1:]
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
