"""The recurrent encoder, and the order of a recurrence.

Axes: as in model/attention.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bertkit.kernels.layout import Layout, on_device
from bertkit.kernels.linear import Dropout
from bertkit.model.bert_config import BertConfig
from bertkit.model.recurrent.cells import make_layer


@dataclass(frozen=True)
class Steps:
    """A packed batch in the order of a recurrence: all first tokens, all second ones, and so on; longest sequences first."""

    tokens: Tensor  # indices into S, (n,); without slack, the tokens that only round up the size of a batch
    sizes: Tensor  # number of sequences that have a token at each step, (T,), on the CPU, as torch expects
    sequences: Tensor  # longest first, (B,)

    @classmethod
    def of(cls, layout: Layout, is_reversed: bool = False) -> Steps:
        """Order the tokens, perhaps backwards from [SEP] to [CLS]; on the CPU, so that the host never waits for the device."""
        lengths = torch.tensor(layout.lengths)
        starts = lengths.cumsum(0) - lengths
        longest_first, sequences = lengths.sort(descending=True, stable=True)
        is_token = torch.arange(layout.longest)[:, None] < longest_first  # (T, B)
        places, rows = is_token.nonzero(as_tuple=True)
        if is_reversed:
            last = longest_first[rows] - 1
            places = torch.where((places > 0) & (places < last), last - places, places)
        tokens, device = starts[sequences[rows]] + places, layout.starts.device
        return cls(on_device(tokens, device), is_token.sum(1), on_device(sequences, device))

    def packed(self, values: Tensor, num_tokens: int) -> Tensor:
        """Put values back into the order of the batch, with zeros for slack: (n, ...) -> (S, ...)."""
        return values.new_zeros(num_tokens, *values.shape[1:]).index_copy(0, self.tokens, values)


class RecurrentLayers(nn.Module):
    """L bidirectional layers of D / 2 each way, with dropout between them: h_j = [forward h_j; backward h_j].

    Or L layers of D in one direction, which may read the text between [CLS] and [SEP] backwards: the state of a token stays at
    its place, and [SEP] has the last one.

    Source: Bahdanau et al. 2015, appendix A.2.1; Sutskever et al. 2014, sections 3.1 and 3.3.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        assert config.decoder is not None
        size, both = config.hidden_size, config.decoder.bidirectional
        self.layers = nn.ModuleList(
            make_layer(config.decoder, size, size // 2 if both else size, both=both)
            for _ in range(config.num_hidden_layers)
        )
        self.is_reversed = config.decoder.reverse_source
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        hidden: Tensor,
        layout: Layout,
        output_hidden_states: bool = False,
        attentions: list[Tensor] | None = None,
        wanted: None = None,
    ) -> list[Tensor]:
        """Return hidden states as `bert.Encoder` does, always of all tokens; `attentions` stays empty, since the layers have no attention."""
        steps = Steps.of(layout, self.is_reversed)
        states = [hidden[steps.tokens]]
        for layer in self.layers:
            inputs = states[-1] if len(states) == 1 else self.dropout(states[-1])
            states.append(layer(PackedSequence(inputs, steps.sizes))[0].data)
        packed = [hidden, *(steps.packed(state, len(hidden)) for state in states[1:])]
        return packed if output_hidden_states else packed[-1:]
