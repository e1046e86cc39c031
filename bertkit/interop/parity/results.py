"""The batches of a comparison, and the outputs, the loss and the gradients that both implementations compute for them.

The batches are pairs of real texts and random ids, with labels for every head.
"""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from bertkit.base.errors import InputError
from bertkit.base.memory import require_memory
from bertkit.interop.hugging_face.architecture import writer_of
from bertkit.interop.load import load_tokenizer
from bertkit.interop.model_dir import folder_of, has_tokenizer
from bertkit.interop.padded import PaddedBert
from bertkit.interop.parity.certificate import full_tensors
from bertkit.interop.parity.heads import their_labels, their_logits
from bertkit.model.bert_config import BertConfig
from bertkit.model.head.head import head_of
from bertkit.model.heads import BertWithHeads

MOST_POSITIONS = 1024  # of a model without position embeddings
Results = dict[str, Tensor]  # keys such as hidden_states.0, logits.masked_lm, loss, gradient.bert.pooler.dense.bias
TEXTS = (
    ("The committee will meet on Tuesday.", "It has not decided anything yet."),
    ("Sie sprach leise, aber deutlich.", "Naïve café owners paid 3.50 € for 12 eggs."),
    ("A", "B"),
    ("Every vector in this sequence is computed twice, once by each implementation, and then compared.", "So is this one."),
    ("Rain.", "The river rose slowly through the night, over the meadows, up to the first houses of the village."),
)  # fmt: skip


@dataclass(frozen=True)
class ComparedBatch:
    """A padded batch with labels for each head, or with targets for a decoder."""

    arguments: dict[
        str, Tensor
    ]  # (B, T) or (questions, choices, T) each; the names are the same in both implementations
    is_token: Tensor  # True for tokens, False for padding, (B, T)
    is_output: Tensor  # the same for the tokens with logits: with a decoder the targets'
    labels: dict[str, Tensor]  # by head

    def labels_like(self, like: Tensor) -> dict[str, Tensor]:
        """Return the labels, with floating-point labels in the dtype of `like`."""
        return {head: x.to(like.dtype) if x.is_floating_point() else x for head, x in self.labels.items()}

    def loss(self, logits: Mapping[str, Tensor], labels: Mapping[str, Tensor], config: BertConfig) -> Tensor:
        """Return the sum of the mean losses of the heads."""
        losses = [head_of(head).reference_loss(logits[head], labels[head], self.is_token, config) for head in labels]
        return torch.stack(losses).sum()


def make_batches(model: BertWithHeads, directory: Path, seed: int, num_sequences: int) -> dict[str, ComparedBatch]:
    """Make three batches: padded pairs of real texts, padded random ids, and random ids in the longest possible sequences."""
    config, num_choices = model.config, _num_choices(model)
    generator = torch.Generator().manual_seed(seed)
    num_sequences += num_sequences % num_choices
    length = min(config.max_position_embeddings, 64)
    logits, hidden_states = config.vocab_size, (config.num_hidden_layers + 1) * config.hidden_size
    numbers = length * (logits + hidden_states)
    require_memory(f"sequences={num_sequences}", 2 * 8 * numbers * num_sequences, "5 are enough to compare")
    batches = {}
    if has_tokenizer(folder_of(directory)):
        batches["text, padded"] = _text_batch(model, directory, num_sequences, length)
    lengths = torch.randint(3, length + 1, (num_sequences,), generator=generator)
    lengths[0] = length
    ids = _random_ids(config, (num_sequences, length), generator)
    ids["attention_mask"] = (torch.arange(length) < lengths[:, None]).long()
    batches["random ids, padded"] = _with_labels(ids, model)
    num_positions = config.max_position_embeddings
    if not list(model.bert.embeddings.positions.parameters()):  # there is no weight of each position to compare
        num_positions = min(num_positions, MOST_POSITIONS)
    longest = _random_ids(config, (num_choices, num_positions), generator)
    batches["random ids, all positions"] = _with_labels(longest, model)
    return batches


def _num_choices(model: BertWithHeads) -> int:
    """Return the number of sequences of an example."""
    return max((head_of(head).num_choices for head in model.heads), default=1)


def _text_batch(model: BertWithHeads, directory: Path, num_sequences: int, length: int) -> ComparedBatch:
    config, tokenizer = model.config, load_tokenizer(folder_of(directory))
    if not tokenizer.fits(config.vocab_size):
        raise InputError(
            f"{directory}: the tokenizer has {tokenizer.vocab_size} tokens, the embeddings {config.vocab_size} rows; use "
            "the tokenizer of this model"
        )
    firsts, seconds = zip(*(TEXTS[index % len(TEXTS)] for index in range(num_sequences)), strict=True)
    text = tokenizer(list(firsts), list(seconds), padding=True, truncation=True, max_length=length, return_tensors="pt")
    types = text.pop("token_type_ids").clamp(max=config.type_vocab_size - 1)
    return _with_labels(text | with_types(config, types), model)


def _random_ids(config: BertConfig, shape: tuple[int, int], generator: torch.Generator) -> dict[str, Tensor]:
    ids = torch.randint(config.vocab_size, shape, generator=generator)
    ids[ids == config.pad_token_id] = (config.pad_token_id + 1) % config.vocab_size
    return {
        "input_ids": ids,
        **with_types(config, torch.randint(max(config.type_vocab_size, 1), shape, generator=generator)),
    }


def with_types(config: BertConfig, types: Tensor) -> dict[str, Tensor]:
    """Return the token types as an argument of a model; nothing if it has none."""
    return {"token_type_ids": types} if config.type_vocab_size else {}


def _with_labels(source: dict[str, Tensor], model: BertWithHeads) -> ComparedBatch:
    """Add labels for each head, or targets: the source texts in reverse order, so that the lengths of both differ."""
    ids, num_choices = source["input_ids"], _num_choices(model)
    is_token = source.get("attention_mask", torch.ones_like(ids)).bool()
    labels = {
        head: head_of(head).labels(ids, is_token, model.config)
        for head in model.heads
        if head_of(head).is_compared_by_loss
    }
    if "generation" in model.heads:
        targets = {f"decoder_{name}": tensor.flip(0) for name, tensor in source.items() if name != "token_type_ids"}
        return ComparedBatch(source | targets, is_token, is_token.flip(0), labels)
    if num_choices > 1:
        source = {name: tensor.view(-1, num_choices, ids.shape[1]) for name, tensor in source.items()}
    return ComparedBatch(source, is_token, is_token, labels)


def our_results(ours: PaddedBert, batch: ComparedBatch, names: Iterable[str]) -> Results:
    """Compute a batch forward and backward with bertkit; return the gradients of parameters with these Hugging Face names."""
    ours.zero_grad(set_to_none=True)
    out = ours(**batch.arguments, output_hidden_states=True)
    # with a head, transformers does not return it
    is_returned = not ours.model.heads and writer_of(ours.config, ()).has_pooler(ours.model)
    pooled = out.pooled_output if is_returned else None
    values = _values(batch, out.hidden_states, out.logits, pooled)
    if batch.labels:
        values["loss"] = batch.loss(out.logits, batch.labels_like(out.last_hidden_state), ours.config)
    tensors = full_tensors(ours.model)
    return _with_gradients(values, batch, {name: [Rows(tensors[name])] for name in names})


def their_results(theirs: nn.Module, batch: ComparedBatch, model: BertWithHeads) -> Results:
    """Compute a batch forward and backward with `transformers`; the keys are those of `our_results`."""
    theirs.zero_grad(set_to_none=True)
    labels = batch.labels_like(next(theirs.parameters()))
    named = writer_of(model.config, model.heads).of_next_sentence
    reference = theirs(**batch.arguments, **their_labels(labels, named.label), output_hidden_states=True)
    states = reference.get("encoder_hidden_states", reference.get("hidden_states"))
    logits = their_logits(reference, tuple(model.heads), named.logits)
    values = _values(batch, states, logits, reference.get("pooler_output"))
    if labels:
        is_exact = reference.loss.dtype == next(theirs.parameters()).dtype  # some losses are computed in float32
        is_theirs = is_exact and all(head_of(head).is_their_loss(batch.is_token) for head in labels)
        values["loss"] = reference.loss if is_theirs else batch.loss(logits, labels, model.config)
    return _with_gradients(values, batch, their_parameters(model, theirs))


def _values(batch: ComparedBatch, states: Iterable[Tensor], logits: Results, pooled: Tensor | None) -> Results:
    """Return the outputs of a forward pass, without padding."""
    values = {f"hidden_states.{layer}": hidden[batch.is_token] for layer, hidden in enumerate(states)}
    for head in sorted(logits):
        values[f"logits.{head}"] = logits[head][... if head_of(head).is_pooled else batch.is_output]
    return values if pooled is None else values | {"pooled_output": pooled}


@dataclass(frozen=True)
class Rows:
    """A parameter, or some of its rows."""

    parameter: Tensor
    rows: slice | list[int] = field(default_factory=lambda: slice(None))  # of a matrix

    @property
    def values(self) -> Tensor:
        """The weights."""
        return self.parameter.detach()[self.rows]

    @property
    def gradient(self) -> Tensor:
        """The gradient, zeros if there is none."""
        gradient = self.parameter.grad
        return torch.zeros_like(self.values) if gradient is None else gradient[self.rows]


def _with_gradients(values: Results, batch: ComparedBatch, parameters: Mapping[str, list[Rows]]) -> Results:
    """Add the gradient of every parameter: of the loss, or else of a randomly weighted sum of all outputs."""
    if batch.labels and all(head_of(head).compares_loss for head in batch.labels):
        minimised = values["loss"]
    else:
        generator = torch.Generator().manual_seed(0)
        outputs = [value for what, value in values.items() if what.startswith(("logits", "pooled"))]
        outputs += [] if batch.labels else [value for what, value in values.items() if what.startswith("hidden")][-1:]
        weights = [torch.randn(output.shape, generator=generator).to(output.dtype) for output in outputs]
        minimised = torch.stack([(a * b).mean() for a, b in zip(outputs, weights, strict=True)]).sum()
    minimised.backward()  # type: ignore[no-untyped-call]
    return {what: value.detach() for what, value in values.items()} | {
        f"gradient.{name}": functools.reduce(torch.add, [rows.gradient for rows in each])
        for name, each in parameters.items()
    }


def their_parameters(model: BertWithHeads, theirs: nn.Module) -> dict[str, list[Rows]]:
    """Return the parameters of `transformers` by their full names: two for a weight that decoder and encoder share.

    A pooler that no head uses is left out; only bertkit has it.
    """
    parameters: dict[str, Tensor] = dict(theirs.named_parameters(remove_duplicate=False))
    architecture = writer_of(model.config, model.heads)
    places = {name: architecture.reference_weights(model, name) for name in full_tensors(model)}
    known = {
        name: [Rows(parameters[each.name], each.rows) for each in of_theirs if each.name in parameters]
        for name, of_theirs in places.items()
    }
    absent = [name for name, of_theirs in known.items() if not of_theirs]
    pooler = {architecture.full_name(name) for name, _ in model.named_parameters() if name.startswith("bert.pooler.")}
    assert pooler.issuperset(absent), f"transformers has no {absent}"
    return {name: of_theirs for name, of_theirs in known.items() if of_theirs}
