"""A model with padded (B, T) inputs and outputs, as in `transformers`.

Axes: as in model/attention.py.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.kernels.layout import Layout, pad
from bertkit.model.bert_config import BertConfig
from bertkit.model.head.head import Targets, head_of
from bertkit.model.heads import BertOutput, BertWithHeads
from bertkit.model.positions import counts_distances


class Unpadded(NamedTuple):
    """Where the tokens of a padded batch are."""

    indices: Tensor  # of the tokens in the flattened (B * T,) batch, (S,)
    layout: Layout
    num_columns: int  # T

    def padded(self, packed: Tensor) -> Tensor:
        """Put values back, with zeros in padding: (S, ...) -> (B, T, ...)."""
        return pad(packed, self.indices, len(self.layout.starts), self.num_columns)

    def columns(self) -> Tensor:
        """Return the column of each token, (B, longest); T marks "no token"."""
        columns = self.indices.new_full((len(self.layout.starts) * self.layout.longest,), self.num_columns)
        columns[self.layout.padded_indices] = self.indices.remainder(self.num_columns)
        return columns.view(-1, self.layout.longest)


class _Inputs(NamedTuple):
    """The inputs of a batch, (B, T) each."""

    ids: Tensor
    mask: Tensor
    types: Tensor


class _UnpaddedTargets(NamedTuple):
    """Target texts, and where their tokens are."""

    targets: Targets
    tokens: Unpadded


class PaddedBert(nn.Module):
    """A model that takes padded (B, T) tensors, computes with packed tokens, and pads the outputs with zeros."""

    def __init__(self, model: BertWithHeads) -> None:
        super().__init__()
        self.model = model

    @property
    def config(self) -> BertConfig:
        """The encoder's hyper-parameters."""
        return self.model.config

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
    ) -> BertOutput:
        """Encode a padded batch.

        With the choice head, inputs are (questions, choices, T), and B is questions * choices. The generation head needs
        `decoder_input_ids`.

        Args:
            input_ids: (B, T).
            attention_mask: 1 for tokens, 0 for padding, (B, T); None when all are tokens.
            token_type_ids: (B, T); None when all are 0.
            output_hidden_states: return the output of every layer.
            output_attentions: return the attention weights of every layer; in evaluation mode only, without dropout. Fast
                kernels cannot return them, so attention is then computed without fast kernels.
            decoder_input_ids: the targets, shifted right: [CLS] first, (B, T of targets).
            decoder_attention_mask: 1 for tokens of targets, 0 for padding; None when all are tokens.

        Raises:
            ValueError: the sequences are longer than the model's positions, a sequence has no token, or one that is unknown; a mask has 0
                between two tokens, and their distance counts; the inputs have other shapes; or attention weights are requested
                in training mode.
        """
        ids, mask, types = self._checked(input_ids, attention_mask, token_type_ids)
        tokens, written = (
            unpad(mask, skips_padding=self.config.skips_padding),
            self._targets(decoder_input_ids, decoder_attention_mask, len(ids)),
        )
        out = self.model(
            ids.reshape(-1)[tokens.indices],
            types.reshape(-1)[tokens.indices],
            tokens.layout,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            targets=None if written is None else written.targets,
        )
        padded = self._padded(out, tokens, len(input_ids))
        if written is None:
            return padded
        logits = padded.logits | {"generation": written.tokens.padded(out.logits["generation"])}
        return replace(padded, logits=logits, alignments=_spread(out.alignments, written.tokens, tokens))

    def _padded(self, out: BertOutput, tokens: Unpadded, num_inputs: int) -> BertOutput:
        logits = {
            name: value if head_of(name).is_pooled else tokens.padded(value)
            for name, value in out.logits.items()
            if name != "generation"
        }
        if "choice" in logits:
            logits["choice"] = logits["choice"].view(num_inputs, -1)
        hidden_states = None if out.hidden_states is None else tuple(map(tokens.padded, out.hidden_states))
        attentions = _spread(out.attentions, tokens, tokens)
        return BertOutput(tokens.padded(out.last_hidden_state), out.pooled_output, logits, hidden_states, attentions)

    def _targets(self, ids: Tensor | None, mask: Tensor | None, num_sequences: int) -> _UnpaddedTargets | None:
        """Unpad targets; None if there are none. Raises as `forward` does."""
        if ids is None:
            return None
        if "generation" not in self.model.heads:
            raise ValueError("decoder_input_ids: the model has no generation head")
        if ids.dim() != 2 or len(ids) != num_sequences or (mask is not None and mask.shape != ids.shape):
            raise ValueError(
                f"decoder_input_ids: shape {tuple(ids.shape)}, expected ({num_sequences}, tokens) as its mask"
            )
        self._check_length("decoder_input_ids", ids)
        tokens = unpad(torch.ones_like(ids) if mask is None else mask, "decoder_attention_mask")
        return _UnpaddedTargets(Targets(ids.reshape(-1)[tokens.indices], tokens.layout), tokens)

    def _checked(self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None) -> _Inputs:
        """Fill in what is None. Raises as `forward` does."""
        axes = ("questions", "choices", "tokens") if "choice" in self.model.heads else ("sequences", "tokens")
        if input_ids.dim() != len(axes):
            raise ValueError(f"input_ids: shape {tuple(input_ids.shape)}, expected ({', '.join(axes)})")
        for name, tensor in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
            if tensor is not None and tensor.shape != input_ids.shape:
                raise ValueError(f"{name}: shape {tuple(tensor.shape)}, expected {tuple(input_ids.shape)} as input_ids")
        ids = input_ids.flatten(0, -2)  # (B, T)
        mask = torch.ones_like(ids) if attention_mask is None else attention_mask.flatten(0, -2)
        types = torch.zeros_like(ids) if token_type_ids is None else token_type_ids.flatten(0, -2)
        self._check_length("input_ids", ids)
        if len(unknown := ids[mask.bool() & ((ids < 0) | (ids >= self.config.vocab_size))]):
            last = self.config.vocab_size - 1
            raise ValueError(f"input_ids: {unknown[0]}: expected 0 to {last}; use the model's own tokenizer")
        if counts_distances(self.config) and bool(_has_gap(mask).any()):
            raise ValueError(
                "attention_mask: 0 between the tokens of a text; how far two tokens are apart counts in this model, so leave "
                "the masked ones out of input_ids"
            )
        return _Inputs(ids, mask, types)

    def _check_length(self, name: str, ids: Tensor) -> None:
        limit = self.config.max_position_embeddings
        if ids.shape[1] > limit:
            raise ValueError(f"{name}: {ids.shape[1]} tokens exceed max_position_embeddings={limit}; truncate them")


def _has_gap(attention_mask: Tensor) -> Tensor:
    """Whether each sequence of a mask, (B, T), has a 0 between two ones: (B,)."""
    begins = F.pad(attention_mask.bool(), (1, 0)).int().diff(dim=1) > 0
    return begins.sum(1) > 1


def unpad(attention_mask: Tensor, name: str = "attention_mask", skips_padding: bool = False) -> Unpadded:
    """Find the tokens of a padded batch, (B, T).

    Position ids are columns of the padded batch, so padding on the left shifts the positions, except with `skips_padding`. Raises
    ValueError if a sequence has no token at all.
    """
    is_token = attention_mask.bool()  # (B, T)
    indices = is_token.reshape(-1).nonzero().squeeze(1)  # (S,)
    lengths = is_token.sum(1).cpu()  # (B,)
    if not bool((lengths > 0).all()):
        raise ValueError(f"{name}: a sequence has no token; every row needs at least one 1")
    num_columns = attention_mask.shape[1]
    columns = None if skips_padding else indices.remainder(num_columns)
    layout = Layout.from_lengths(lengths, attention_mask.device, columns)
    return Unpadded(indices, layout, num_columns)


def _spread(weights: tuple[Tensor, ...] | None, queries: Unpadded, keys: Unpadded) -> tuple[Tensor, ...] | None:
    """Pad the weights of pairs of tokens, (B, N, longest, longest), with zeros to the padded batch: (B, N, T, T)."""
    if not weights:
        return weights
    num_sequences, num_heads = weights[0].shape[:2]
    numbers = torch.arange(num_sequences, device=weights[0].device)[:, None, None]
    places = (numbers, queries.columns()[:, :, None], keys.columns()[:, None, :])
    zeros = weights[0].new_zeros(num_sequences, queries.num_columns + 1, keys.num_columns + 1, num_heads)
    padded = (zeros.index_put(places, each.permute(0, 2, 3, 1)) for each in weights)
    return tuple(each[:, :-1, :-1].permute(0, 3, 1, 2) for each in padded)
