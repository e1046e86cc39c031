"""The door for callers with padded (B, T) tensors, such as those of `transformers`: unpads on entry, pads on exit.

Axes: as in model/attention.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertkit.kernels.layout import Layout, pad
from bertkit.model.config import POOLED_HEADS, BertConfig
from bertkit.model.heads import BertOutput, BertWithHeads


class PaddedBert(nn.Module):
    """The door for padded (B, T) callers: unpads on entry, pads on exit with zeros."""

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
    ) -> BertOutput:
        """Encode a padded batch.

        With the choice head, inputs are (questions, choices, T), and B is their product.

        Args:
            input_ids: (B, T).
            attention_mask: 1 for tokens, 0 for padding, (B, T); None when all are tokens.
            token_type_ids: (B, T); None when all are 0.
            output_hidden_states: give the output of every layer.
            output_attentions: give the attention weights of every layer; in evaluation mode only, without dropout. The
                fast kernels do not keep them, so attention is then computed in the plain way.

        Raises:
            ValueError: the sequences are longer than the model's positions, one has no token, the inputs have other
                shapes, or attention weights are asked for in training mode.
        """
        ids, mask, types = self._checked(input_ids, attention_mask, token_type_ids)
        num_sequences, num_columns = ids.shape
        indices, layout = unpad(mask)
        out = self.model(
            ids.reshape(-1)[indices],
            types.reshape(-1)[indices],
            layout,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )

        def padded(packed: Tensor) -> Tensor:
            return pad(packed, indices, num_sequences, num_columns)

        logits = {name: value if name in POOLED_HEADS else padded(value) for name, value in out.logits.items()}
        if "choice" in logits:
            logits["choice"] = logits["choice"].view(len(input_ids), -1)
        hidden_states = tuple(map(padded, out.hidden_states)) if out.hidden_states is not None else None
        attentions = None
        if out.attentions is not None:
            attentions = tuple(pad_both(each, layout, indices, num_columns) for each in out.attentions)
        return BertOutput(padded(out.last_hidden_state), out.pooled_output, logits, hidden_states, attentions)

    def _checked(
        self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Give the ids, the mask and the segments as (B, T); ValueError as of `forward`."""
        axes = ("questions", "choices", "tokens") if "choice" in self.model.heads else ("sequences", "tokens")
        if input_ids.dim() != len(axes):
            raise ValueError(f"input_ids: shape {tuple(input_ids.shape)}, expected ({', '.join(axes)})")
        for name, given in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
            if given is not None and given.shape != input_ids.shape:
                raise ValueError(f"{name}: shape {tuple(given.shape)}, expected {tuple(input_ids.shape)} as input_ids")
        ids = input_ids.flatten(0, -2)  # (B, T)
        mask = torch.ones_like(ids) if attention_mask is None else attention_mask.flatten(0, -2)
        types = torch.zeros_like(ids) if token_type_ids is None else token_type_ids.flatten(0, -2)
        limit = self.config.max_position_embeddings
        if ids.shape[1] > limit:
            raise ValueError(
                f"input_ids: {ids.shape[1]} tokens a sequence exceed max_position_embeddings={limit}; truncate them"
            )
        return ids, mask, types


def unpad(attention_mask: Tensor) -> tuple[Tensor, Layout]:
    """Find the tokens of a padded batch: their indices into the flattened (B * T,) batch, (S,), and their layout.

    Positions are columns, so a sequence padded on the left keeps the positions that it has in the padded batch.

    Raises:
        ValueError: a sequence has no token at all.
    """
    is_token = attention_mask.bool()  # (B, T)
    indices = is_token.reshape(-1).nonzero().squeeze(1)  # (S,)
    lengths = is_token.sum(1).cpu()  # (B,)
    if not bool((lengths > 0).all()):
        raise ValueError("attention_mask: a sequence has no token; every row needs at least one 1")
    columns = indices.remainder(attention_mask.shape[1])
    return indices, Layout.from_lengths(lengths, attention_mask.device, columns)


def pad_both(packed: Tensor, layout: Layout, indices: Tensor, num_columns: int) -> Tensor:
    """Put weights between the tokens of each sequence, (B, N, longest, longest), at their columns: (B, N, T, T), else zeros."""
    num_sequences, num_heads = packed.shape[:2]
    columns = indices.new_full(
        (num_sequences * layout.longest,), num_columns
    )  # padding goes to a column that is cut off
    columns[layout.slots] = indices.remainder(num_columns)
    columns = columns.view(num_sequences, layout.longest)
    padded = packed.new_zeros(num_sequences, num_columns + 1, num_columns + 1, num_heads)
    rows = torch.arange(num_sequences, device=indices.device)[:, None, None]
    places = (rows, columns[:, :, None], columns[:, None, :])
    return padded.index_put(places, packed.permute(0, 2, 3, 1))[:, :-1, :-1].permute(0, 3, 1, 2)
