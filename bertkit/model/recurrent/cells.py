"""One recurrent layer: a GRU (Cho et al. 2014) or an LSTM (Hochreiter and Schmidhuber 1997), token by token or all at once.

The state of a layer is [h], or for an LSTM [c; h], with its memory c. torch's z of a GRU is the papers' 1 - z.

Axes: as in decoder.py; P vectors in the state of a layer.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bertkit.base import plugins
from bertkit.model.bert_config import DecoderShape


class ResetBefore(nn.GRU):
    """A GRU with the reset gate before the matrix, U (r * h), as in the papers, and not after it, r * (U h), as in torch.

    torch has no kernel for it: it loops over the tokens in Python, which takes the same time on a CPU, and more where cuDNN could be used.

    Source: Cho et al. 2014, equations 5 to 8; Bahdanau et al. 2015, appendix A.1.1.
    """

    def forward(self, inputs: PackedSequence, first: Tensor | None = None) -> tuple[PackedSequence, Tensor]:  # type: ignore[override]
        """Run over a packed batch from the first states (1, B, D), or zeros: return all states, and the last ones."""
        size, sizes, ways = self.hidden_size, inputs.batch_sizes.tolist(), []
        for way, order in (("l0", 1), ("l0_reverse", -1))[: 1 + self.bidirectional]:
            *of_input, matrix, bias = (
                getattr(self, f"{x}_{way}") for x in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")
            )
            parts, states = F.linear(inputs.data, *of_input).split_with_sizes(sizes), list[Tensor]()
            last = parts[0].new_zeros(sizes[0], size) if first is None else first[0]
            for part in parts[::order]:
                h = last[: len(part)]  # longest texts first: the others have ended, or have not begun
                gates = torch.sigmoid(part[:, : 2 * size] + F.linear(h, matrix[: 2 * size], bias[: 2 * size]))
                r, z = gates.chunk(2, 1)
                new = torch.tanh(part[:, 2 * size :] + F.linear(r * h, matrix[2 * size :], bias[2 * size :]))
                states.append((1 - z) * new + z * h)
                last = torch.cat([states[-1], last[len(part) :]])
            ways.append(torch.cat(states[::order]))
        return PackedSequence(torch.cat(ways, 1), inputs.batch_sizes), last[None]


def make_layer(
    decoder: DecoderShape, num_inputs: int, size: int, by_step: bool = False, both: bool = False
) -> nn.Module:
    """Make a layer, for `both` directions or one; `by_step` chooses torch's cells, which are faster for single steps."""
    layer: nn.Module = plugins.bind("cell", decoder.cell, vars(decoder))(num_inputs, size, by_step, both)
    return layer


@plugins.option("cell", "gru")
def gru(
    num_inputs: int, size: int, by_step: bool, both: bool, *, reset_gate: Literal["after", "before"] = "after"
) -> nn.Module:
    """Make a GRU; with the reset gate before the matrix it has no kernel."""
    if reset_gate == "before":
        return ResetBefore(num_inputs, size, bidirectional=both)
    return nn.GRUCell(num_inputs, size) if by_step else nn.GRU(num_inputs, size, bidirectional=both)


@plugins.option("cell", "lstm")
def lstm(num_inputs: int, size: int, by_step: bool, both: bool) -> nn.Module:
    """Make an LSTM."""
    return nn.LSTMCell(num_inputs, size) if by_step else nn.LSTM(num_inputs, size, bidirectional=both)


class Recurred(NamedTuple):
    """What a layer computes."""

    outputs: Tensor  # (n, D)
    state: Tensor  # after the last token of each text, (P, R, D)


def run_layer(layer: nn.Module, inputs: Tensor, state: Tensor, sizes: Tensor | None = None) -> Recurred:
    """Run a layer from states (P, R, D).

    The inputs are one token of each text, (R, ...), or, with the `sizes` of `Steps`, all tokens in its order, (n, ...).
    """
    is_cell = isinstance(layer, nn.RNNCellBase)
    *memory, h = state.unbind() if is_cell else torch.split(state, 1)
    given = inputs if is_cell else PackedSequence(inputs, torch.tensor([len(inputs)]) if sizes is None else sizes)
    found = layer(given, (h, *memory) if memory else h)
    if is_cell:
        return Recurred(found[0], torch.stack(found[::-1])) if memory else Recurred(found, found[None])
    return Recurred(found[0].data, torch.cat(found[1][::-1]) if memory else found[1])
