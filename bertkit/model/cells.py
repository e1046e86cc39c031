"""The recurrent layers of encoder and decoders: GRUs (Cho et al. 2014) and LSTMs (Hochreiter and Schmidhuber 1997), one layer each.

A GRU's state is h. An LSTM's is [c; h], with the memory c first, so that the output of a layer is always the last part of its
state. torch's z of a GRU is the papers' 1 - z.

Axes: as in recurrent.py; P parts of the state of a layer, 1 for a GRU and 2 for an LSTM.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bertkit.model.bert_config import DecoderShape


class ResetBefore(nn.GRU):
    """A GRU as in the papers: the reset gate is applied before the matrix, U (r * h), and not after it, r * (U h), as in torch's.

        r = sigmoid(W_r x + U_r h),  z = sigmoid(W_z x + U_z h),  n = tanh(W x + U (r * h)),  h' = (1 - z) n + z h

    torch and cuDNN have no kernel for it, so it loops over the tokens in Python, and is slower.

    Source: Cho et al. 2014, equations 5 to 8; Bahdanau et al. 2015, appendix A.1.1.
    """

    def forward(self, inputs: PackedSequence, first: Tensor | None = None) -> tuple[PackedSequence, Tensor]:  # type: ignore[override]
        """Run over a packed batch from the first states, (1, B, D) or zeros: return all states, and the last ones."""
        size, sizes, ways, lasts = self.hidden_size, inputs.batch_sizes.tolist(), [], []
        for way in ("l0", "l0_reverse")[: 1 + self.bidirectional]:
            of_input, of_state, input_bias, state_bias = (
                getattr(self, f"{name}_{way}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            parts = list(F.linear(inputs.data, of_input, input_bias).split_with_sizes(sizes))
            last = parts[0].new_zeros(sizes[0], size) if first is None else first[0]
            states = []
            for part in reversed(parts) if way == "l0_reverse" else parts:
                h = last[: len(part)]  # longest texts first: the others have ended, or have not begun
                of_h = F.linear(h, of_state[: 2 * size], state_bias[: 2 * size])
                r, z = torch.sigmoid(part[:, : 2 * size] + of_h).chunk(2, 1)
                new = torch.tanh(part[:, 2 * size :] + F.linear(r * h, of_state[2 * size :], state_bias[2 * size :]))
                states.append((1 - z) * new + z * h)
                last = torch.cat([states[-1], last[len(part) :]])
            ways.append(torch.cat(states[::-1] if way == "l0_reverse" else states))
            lasts.append(last)
        return PackedSequence(torch.cat(ways, 1), inputs.batch_sizes), torch.stack(lasts)


def make_layer(decoder: DecoderShape, num_inputs: int, size: int, by_step: bool = False, **more: bool) -> nn.Module:
    """Make a layer; `by_step` chooses torch's cells, which are faster for single steps."""
    if decoder.reset_gate == "before":
        return ResetBefore(num_inputs, size, **more)
    if by_step:
        return (nn.LSTMCell if decoder.cell == "lstm" else nn.GRUCell)(num_inputs, size)
    return (nn.LSTM if decoder.cell == "lstm" else nn.GRU)(num_inputs, size, **more)


def num_parts(decoder: DecoderShape) -> int:
    """P, the number of vectors of D elements in the state of a layer."""
    return 2 if decoder.cell == "lstm" else 1


def run_layer(layer: nn.Module, inputs: Tensor, state: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Run a layer from states (R, P, D): return its outputs (n, D) and the new states.

    The inputs are one token of each text, (R, ...), or, with the `sizes` of `Steps`, all tokens in its order, (n, ...).
    """
    if isinstance(layer, nn.GRUCell):
        outputs = layer(inputs, state[:, 0])
        return outputs, outputs[:, None]
    if isinstance(layer, nn.LSTMCell):
        outputs, memory = layer(inputs, (state[:, 1], state[:, 0]))
        return outputs, torch.stack([memory, outputs], 1)
    given = PackedSequence(inputs, torch.tensor([len(inputs)]) if sizes is None else sizes)
    *memory_of, h = state.transpose(0, 1).contiguous().split(1)  # (1, R, D) each
    packed, last = layer(given, (h, *memory_of) if memory_of else h)
    parts = [*reversed(last)] if isinstance(last, tuple) else [last]
    return packed.data, torch.cat(parts).transpose(0, 1)
