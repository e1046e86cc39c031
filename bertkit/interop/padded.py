"""A model with padded (B, T) inputs and outputs, as in `transformers`.

Axes: as in model/attention.py.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from bertkit.kernels.layout import Layout, pad
from bertkit.model.bert_config import POOLED_HEADS, BertConfig
from bertkit.model.heads import BertOutput, BertWithHeads, Targets


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
            ValueError: the sequences are longer than the model's positions, a sequence has no token, the inputs have other
                shapes, or attention weights are requested in training mode.
        """
        ids, mask, types = self._checked(input_ids, attention_mask, token_type_ids)
        indices, layout = unpad(mask)
        targets, places = self._targets(decoder_input_ids, decoder_attention_mask, len(ids))
        out = self.model(
            ids.reshape(-1)[indices],
            types.reshape(-1)[indices],
            layout,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            targets=targets,
        )
        columns = columns_of(layout, indices, ids.shape[1])
        padded = self._padded(out, lambda packed: pad(packed, indices, *ids.shape), columns, len(input_ids))
        if targets is None or decoder_input_ids is None:
            return padded
        rows = columns_of(targets.layout, places, decoder_input_ids.shape[1])
        logits = padded.logits | {"generation": pad(out.logits["generation"], places, *decoder_input_ids.shape)}
        return replace(padded, logits=logits, alignments=_spread(out.alignments, rows, columns))

    def _padded(
        self, out: BertOutput, padded: Callable[[Tensor], Tensor], columns: tuple[Tensor, int], num_inputs: int
    ) -> BertOutput:
        logits = {
            name: value if name in POOLED_HEADS else padded(value)
            for name, value in out.logits.items()
            if name != "generation"
        }
        if "choice" in logits:
            logits["choice"] = logits["choice"].view(num_inputs, -1)
        hidden_states = tuple(map(padded, out.hidden_states)) if out.hidden_states is not None else None
        attentions = _spread(out.attentions, columns, columns)
        return BertOutput(padded(out.last_hidden_state), out.pooled_output, logits, hidden_states, attentions)

    def _targets(self, ids: Tensor | None, mask: Tensor | None, num_sequences: int) -> tuple[Targets | None, Tensor]:
        """Unpad targets; return them and the indices of their tokens in the padded batch. Raises as `forward` does."""
        if ids is None:
            return None, torch.empty(0)
        if "generation" not in self.model.heads:
            raise ValueError("decoder_input_ids: the model has no generation head")
        if ids.dim() != 2 or len(ids) != num_sequences or (mask is not None and mask.shape != ids.shape):
            raise ValueError(
                f"decoder_input_ids: shape {tuple(ids.shape)}, expected ({num_sequences}, tokens) as its mask"
            )
        self._check_length("decoder_input_ids", ids)
        places, layout = unpad(torch.ones_like(ids) if mask is None else mask, "decoder_attention_mask")
        return Targets(ids.reshape(-1)[places], layout), places

    def _checked(
        self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the ids, the mask and the segments as (B, T). Raises as `forward` does."""
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
        return ids, mask, types

    def _check_length(self, name: str, ids: Tensor) -> None:
        limit = self.config.max_position_embeddings
        if ids.shape[1] > limit:
            raise ValueError(f"{name}: {ids.shape[1]} tokens exceed max_position_embeddings={limit}; truncate them")


def unpad(attention_mask: Tensor, name: str = "attention_mask") -> tuple[Tensor, Layout]:
    """Return the indices of all tokens in the flattened (B * T,) batch, (S,), and their layout.

    Position ids are columns of the padded batch, so padding on the left shifts the positions. Raises ValueError if a sequence
    has no token at all.
    """
    is_token = attention_mask.bool()  # (B, T)
    indices = is_token.reshape(-1).nonzero().squeeze(1)  # (S,)
    lengths = is_token.sum(1).cpu()  # (B,)
    if not bool((lengths > 0).all()):
        raise ValueError(f"{name}: a sequence has no token; every row needs at least one 1")
    columns = indices.remainder(attention_mask.shape[1])
    return indices, Layout.from_lengths(lengths, attention_mask.device, columns)


def columns_of(layout: Layout, indices: Tensor, num_columns: int) -> tuple[Tensor, int]:
    """Return the column of each token in the padded batch, (B, longest), and the number of columns, which marks "no token"."""
    columns = indices.new_full((len(layout.starts) * layout.longest,), num_columns)
    columns[layout.padded_indices] = indices.remainder(num_columns)
    return columns.view(-1, layout.longest), num_columns


def _spread(
    weights: tuple[Tensor, ...] | None, rows: tuple[Tensor, int], columns: tuple[Tensor, int]
) -> tuple[Tensor, ...] | None:
    """Pad the weights of pairs of tokens, (B, N, longest, longest), with zeros to the padded batch: (B, N, T, T)."""
    if not weights:
        return weights
    num_sequences, num_heads = weights[0].shape[:2]
    numbers = torch.arange(num_sequences, device=weights[0].device)[:, None, None]
    places = (numbers, rows[0][:, :, None], columns[0][:, None, :])
    zeros = weights[0].new_zeros(num_sequences, rows[1] + 1, columns[1] + 1, num_heads)
    padded = (zeros.index_put(places, each.permute(0, 2, 3, 1)) for each in weights)
    return tuple(each[:, :-1, :-1].permute(0, 3, 1, 2) for each in padded)
