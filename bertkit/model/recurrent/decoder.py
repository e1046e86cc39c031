"""The recurrent decoder, which generates a text token by token.

Axes: as in model/attention.py, with S and T for target tokens; C tokens of the longest source, and R texts that are generated at
the same time (rows), W for each of the B sources, so R = B * W; K vectors in the state of all layers of a decoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bertkit.kernels.layout import Layout, pad
from bertkit.kernels.linear import Dropout, Embedding, Linear
from bertkit.model.bert_config import BertConfig
from bertkit.model.recurrent.attention import Attended, Source, SourceAttention
from bertkit.model.recurrent.cells import Recurred, make_layer, run_layer
from bertkit.model.recurrent.encoder import Steps


@dataclass
class RecurrentState:
    """The state of R texts that are being generated from B sources."""

    last: Tensor  # the state of all layers for each row, (K, R, D); the output s of the top layer comes last
    source: Source | None  # None without attention
    fed: Tensor | None = None  # with input feeding, the last attentional vector of each row, (R, D)
    position: int = 0  # of the next token

    def select(self, rows: Tensor | slice | None, sources: Tensor | slice | None) -> None:
        """Reorder, repeat or drop rows, by their indices (R',), and sources (B',); None leaves them as they are."""
        if rows is not None:
            self.last, self.fed = self.last[:, rows], None if self.fed is None else self.fed[rows]
        if sources is not None and self.source is not None:
            self.source = self.source.select(sources)


class Features(NamedTuple):
    """Of what the logits of the next tokens are computed."""

    values: Tensor  # (n, ...), or (R, ...)
    weights: Tensor | None  # of the source tokens, (n, C), or (R, C); None without attention


class RecurrentDecoder(nn.Module):
    """Recurrent layers that generate a text token by token; their first states depend on the final states of the encoder.

    With score=additive the decoder attends from its last state, and feeds the context into its next state:

        s_0 = tanh(W_s backward h_1),  c_i = attention(s_{i-1}),  s_i = GRU([E y_{i-1}; c_i], s_{i-1}),
        t_i = max of each pair of U_o s_{i-1} + V_o E y_{i-1} + C_o c_i,  logits W_o t_i.

    With other scores it attends from its new state; only the logits depend on the context, so that it runs over a text at once:

        s_0 = tanh(W_s [forward h_C; backward h_1]),  s_i = GRU(E y_{i-1}, s_{i-1}),  c_i = attention(s_i),
        t_i = tanh(W_c [c_i; s_i]),  logits W_o t_i,

    unless input feeding runs it token by token, s_i = GRU([E y_{i-1}; t_{i-1}], s_{i-1}) with t_0 = 0. With score=none it is
    t_i = tanh(W_c s_i). If the state has several vectors, for several layers or an LSTM, W_s has rows for each of them;
    Sutskever et al. 2014 copy the states of the encoder's layers instead.

    Source: Bahdanau et al. 2015, appendix A.2.2; Luong et al. 2015, equations 5 to 8 and section 3.3; Sutskever et al. 2014.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        assert config.decoder is not None
        decoder, score, size = config.decoder, config.decoder.score, config.hidden_size
        self.decoder, self.is_additive, self.feeds = decoder, score == "additive", decoder.input_feeding
        self.by_step = self.is_additive or self.feeds
        num_inputs, num_features = 2 if self.by_step else 1, {"additive": 3, "none": 1}.get(score, 2)
        num_final = size // 2 if self.is_additive and decoder.bidirectional else size
        num_states = decoder.num_layers * (2 if decoder.cell == "lstm" else 1)  # K
        self.token = Embedding(config.vocab_size, size)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.attention = None if score == "none" else SourceAttention(config, decoder)
        self.first = Linear(num_final, num_states * size)
        self.recurrence = make_layer(decoder, num_inputs * size, size, self.by_step)
        self.upper = nn.ModuleList(make_layer(decoder, size, size, self.by_step) for _ in range(1, decoder.num_layers))
        # not `Linear` if the number of rows shrinks from step to step
        self.combined = (nn.Linear if self.feeds else Linear)(num_features * size, size)
        self.vocabulary = Linear(size // 2 if self.is_additive else size, config.vocab_size)

    def forward(
        self,
        input_ids: Tensor,
        layout: Layout,
        hidden: Tensor,
        source_layout: Layout,
        attentions: list[Tensor] | None = None,
    ) -> Tensor:
        """Score the next token after each target token: (S,) -> (S, V); `hidden` are the encoder's states.

        The weights of the source tokens, (B, 1, T, C), are appended to `attentions`, unless the score is `none`.
        """
        steps, state = Steps.of(layout), self.start(hidden, source_layout)
        embedded, indices = self.dropout(self.token(input_ids))[steps.tokens], layout.padded_indices[steps.tokens]
        weights: Tensor | None = None
        if self.by_step:
            features, weights = self._by_step(embedded, steps, state)
        else:
            features = self.recur(embedded, state.last[:, steps.sequences], steps.sizes).outputs
            if self.attention is not None:
                queries = pad(features, indices, len(layout.starts), layout.longest)
                found = self.attention(queries, state.source, torch.arange(layout.longest, device=embedded.device))
                weights, contexts = (each.flatten(0, 1)[indices] for each in found)
                features = torch.cat([contexts, features], 1)
        if attentions is not None and weights is not None:
            attentions.append(pad(weights, indices, len(layout.starts), layout.longest)[:, None])
        return self.logits(steps.packed(features, len(input_ids)))

    def _by_step(self, embedded: Tensor, steps: Steps, state: RecurrentState) -> Features:
        """Return the features of all target tokens."""
        state.select(steps.sequences, steps.sequences)
        rows = []
        for token in embedded.split_with_sizes(steps.sizes.tolist()):
            if len(token) < state.last.shape[1]:  # the shortest texts have ended
                state.select(slice(len(token)), slice(len(token)))
            rows.append(self.next_features(token, state))
        return Features(*(torch.cat(column) for column in zip(*rows, strict=True)))

    def start(self, hidden: Tensor, layout: Layout) -> RecurrentState:
        """Return the state before the first token, with one row for each source (S, D)."""
        half, last = hidden.shape[1] // 2, layout.bounds[1 : len(layout.starts) + 1].long() - 1
        both = hidden[last, :half], hidden[layout.starts, half:]  # `additive` uses the second
        final = torch.cat(both[self.is_additive :], 1) if self.decoder.bidirectional else hidden[last]
        first = torch.stack(torch.split(torch.tanh(self.first(final)), hidden.shape[1], 1))
        source = None if self.attention is None else self.attention.prepare(hidden, layout)
        return RecurrentState(first, source, torch.zeros_like(first[0]) if self.feeds else None)

    def step(self, tokens: Tensor, state: RecurrentState) -> Tensor:
        """Append a token to each row, and score the next one: (R,) -> (R, V)."""
        return self.logits(self.next_features(self.dropout(self.token(tokens)), state).values)

    def next_features(self, embedded: Tensor, state: RecurrentState) -> Features:
        """Run one step: return [s_{i-1}; E y_{i-1}; c_i] for `additive`, else [c_i; s_i], or t_i with input feeding."""
        if self.is_additive:
            found = self.attend(state)
            features = torch.cat([state.last[-1], embedded, found.contexts], 1)
            state.last = self.recur(features[:, embedded.shape[1] :], state.last).state
            return Features(features, found.weights)
        inputs = embedded if state.fed is None else torch.cat([embedded, state.fed], 1)
        features, state.last = self.recur(inputs, state.last)
        if self.attention is None:
            return Features(features, None)
        found = self.attend(state)
        features = torch.cat([found.contexts, features], 1)
        if self.feeds:
            state.fed = features = torch.tanh(self.combined(features))
        state.position += 1
        return Features(features, found.weights)

    def recur(self, inputs: Tensor, last: Tensor, sizes: Tensor | None = None) -> Recurred:
        """Run all layers from the states (K, R, D), as `run_layer` does: return the outputs of the top layer, and the states of all."""
        layers, states = [self.recurrence, *self.upper], list[Tensor]()
        for layer, own in zip(layers, last.chunk(len(layers)), strict=True):
            inputs, new = run_layer(layer, self.dropout(inputs) if states else inputs, own, sizes)
            states.append(new)
        return Recurred(inputs, states[0] if len(states) == 1 else torch.cat(states))

    def attend(self, state: RecurrentState) -> Attended:
        """Attend from each row."""
        assert self.attention is not None
        assert state.source is not None
        query = state.last[-1].view(len(state.source.mask), -1, state.last.shape[2])  # (B, W, D)
        return Attended(*(each.flatten(0, 1) for each in self.attention(query, state.source, state.position)))

    def logits(self, features: Tensor) -> Tensor:
        """The logits W_o t_i."""
        combined = features if self.feeds else self.combined(features)
        if self.is_additive:
            combined = torch.maximum(combined[:, 0::2], combined[:, 1::2])
        return self.vocabulary(self.dropout(combined if self.by_step else torch.tanh(combined)))  # type: ignore[no-any-return]
