"""A recurrent encoder, and recurrent decoders with attention to it: neural translation before the Transformer.

All recurrent layers are GRUs (Cho et al. 2014) as torch and cuDNN compute them: the reset gate is applied after the matrix,
r * (U h), and not before it as in the papers, U (r * h); and torch's z is the papers' 1 - z.

Axes: as in attention.py, with S and T for target tokens; C tokens of the longest source, and R texts that are generated at the
same time (rows), W for each of the B sources, so R = B * W.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bertkit.kernels.layout import Layout, on_device, pad
from bertkit.kernels.linear import Dropout, Linear
from bertkit.model.bert_config import BertConfig
from bertkit.model.scores import dot, general, location


@dataclass(frozen=True)
class Steps:
    """A packed batch in the order of a recurrence: all first tokens, all second ones, and so on; longest sequences first."""

    tokens: Tensor  # indices into S, (n,); without slack, the tokens that only round up the size of a batch
    sizes: Tensor  # number of sequences that have a token at each step, (T,), on the CPU, as torch expects
    sequences: Tensor  # longest first, (B,)

    @classmethod
    def of(cls, layout: Layout) -> Steps:
        """Order the tokens of a batch; computed on the CPU, so that the host never waits for the device."""
        lengths = torch.tensor(layout.lengths)
        starts = lengths.cumsum(0) - lengths
        longest_first, sequences = lengths.sort(descending=True, stable=True)
        is_token = torch.arange(layout.longest)[:, None] < longest_first  # (T, B)
        places, rows = is_token.nonzero(as_tuple=True)
        tokens, device = starts[sequences[rows]] + places, layout.starts.device
        return cls(on_device(tokens, device), is_token.sum(1), on_device(sequences, device))

    def packed(self, values: Tensor, num_tokens: int) -> Tensor:
        """Put values back into the order of the batch, with zeros for slack: (n, ...) -> (S, ...)."""
        return values.new_zeros(num_tokens, *values.shape[1:]).index_copy(0, self.tokens, values)


class RecurrentLayers(nn.Module):
    """L bidirectional GRUs of D / 2 each way, with dropout between them: h_j = [forward h_j; backward h_j].

    Source: Bahdanau et al. 2015, appendix A.2.1.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.layers = nn.ModuleList(
            nn.GRU(size, size // 2, bidirectional=True) for _ in range(config.num_hidden_layers)
        )
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, hidden: Tensor, layout: Layout, output_hidden_states: bool = False, attentions: list[Tensor] | None = None
    ) -> list[Tensor]:
        """Return hidden states as `bert.Encoder` does; `attentions` stays empty, since GRUs have no attention."""
        steps = Steps.of(layout)
        states = [hidden[steps.tokens]]
        for layer in self.layers:
            inputs = states[-1] if len(states) == 1 else self.dropout(states[-1])
            states.append(layer(PackedSequence(inputs, steps.sizes))[0].data)
        packed = [hidden, *(steps.packed(state, len(hidden)) for state in states[1:])]
        return packed if output_hidden_states else packed[-1:]


@dataclass(frozen=True)
class Source:
    """Encoded source texts, padded."""

    values: Tensor  # (B, C, D)
    keys: Tensor  # (B, C, D)
    mask: Tensor  # 0 for a token, -inf in padding, (B, C)

    def select(self, sources: Tensor | slice) -> Source:
        """Select texts by their indices."""
        values = self.values[sources]
        return Source(values, values if self.keys is self.values else self.keys[sources], self.mask[sources])


class SourceAttention(nn.Module):
    """Attention of a decoder state s to its whole source: c = sum_j a_j h_j with a = softmax_j(score(s, h_j)).

    The scores are dot s . h, general s^T W h, location (W s)_j, and additive v^T tanh(W s + U h).

    Source: Bahdanau et al. 2015, appendix A.1.2; Luong et al. 2015, section 3.1.
    """

    def __init__(self, config: BertConfig, score: str) -> None:
        super().__init__()
        self.score, size = score, config.hidden_size
        if score == "additive":
            # not `Linear`, since the number of rows shrinks from step to step
            self.of_query = nn.Linear(size, size, bias=False)
            self.of_key = Linear(size, size, bias=False)
            self.of_sum = nn.Linear(size, 1, bias=False)
        elif score in ("general", "location"):
            num_outputs = size if score == "general" else config.max_position_embeddings
            self.matrix = nn.Linear(size, num_outputs, bias=False)

    def prepare(self, hidden: Tensor, layout: Layout) -> Source:
        """Pad the encoder's states (S, D) and compute their keys, once for all steps."""
        values = layout.pad(hidden)
        keys = layout.pad(self.of_key(hidden)) if self.score == "additive" else values
        mask = torch.zeros_like(values[..., 0]).masked_fill(~layout.is_token, -torch.inf)
        return Source(values, keys, mask)

    def forward(self, query: Tensor, source: Source) -> tuple[Tensor, Tensor]:
        """Attend from decoder states (B, W, D): return the weights (B, W, C) and the contexts (B, W, D)."""
        match self.score:
            case "dot":
                scores = dot(query, source.keys)
            case "general":
                scores = general(query, source.keys, self.matrix.weight)
            case "location":
                places = torch.arange(source.keys.shape[1], device=query.device)
                scores = location(query, self.matrix.weight, places)
            case "additive":
                sums = self.of_query(query)[:, :, None] + source.keys[:, None]  # (B, W, C, D)
                scores = torch.tanh(sums) @ self.of_sum.weight[0]
        weights = torch.softmax(scores + source.mask[:, None], -1)
        return weights, weights @ source.values


@dataclass
class RecurrentState:
    """The state of R texts that are being generated from B sources."""

    last: Tensor  # the GRU's state s for each row, (R, D)
    source: Source | None  # None without attention

    def select(self, rows: Tensor | slice | None, sources: Tensor | slice | None) -> None:
        """Reorder, repeat or drop rows, by their indices (R',), and sources (B',); None leaves them as they are."""
        if rows is not None:
            self.last = self.last[rows]
        if sources is not None and self.source is not None:
            self.source = self.source.select(sources)


class RecurrentDecoder(nn.Module):
    """A GRU that generates a text token by token; its first state depends on the final states of the encoder.

    The subclasses differ in the input of the GRU, and in the features from which the logits are computed.
    """

    final_states: Callable[..., Tensor]  # the encoder's states (S, D) -> its final states, (B, final_size)
    # the features of all target tokens, (n, ...), and the weights of their source tokens, (n, C)
    all_features: Callable[..., tuple[Tensor, Tensor | None]]
    next_features: Callable[..., Tensor]  # the features of one more token in each row, (R, ...)
    logits: Callable[..., Tensor]  # features (n, ...) -> (n, V)

    def __init__(self, config: BertConfig, final_size: int) -> None:
        """Build the layers that both subclasses have; `final_size` is the size of a vector of `final_states`."""
        super().__init__()
        assert config.decoder is not None
        score = config.decoder.score
        self.token = nn.Embedding(config.vocab_size, config.hidden_size)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.attention = None if score == "none" else SourceAttention(config, score)
        self.first = Linear(final_size, config.hidden_size)

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
        embedded = self.dropout(self.token(input_ids))[steps.tokens]
        features, weights = self.all_features(embedded, layout, steps, state)
        if attentions is not None and weights is not None:
            padded = pad(weights, layout.padded_indices[steps.tokens], len(layout.starts), layout.longest)
            attentions.append(padded[:, None])
        return self.logits(steps.packed(features, len(input_ids)))

    def start(self, hidden: Tensor, source_layout: Layout) -> RecurrentState:
        """Return the state before the first token, with one row for each source."""
        last = torch.tanh(self.first(self.final_states(hidden, source_layout)))
        return RecurrentState(last, None if self.attention is None else self.attention.prepare(hidden, source_layout))

    def step(self, tokens: Tensor, state: RecurrentState) -> Tensor:
        """Append a token to each row, and score the next one: (R,) -> (R, V)."""
        return self.logits(self.next_features(self.dropout(self.token(tokens)), state))

    def attend(self, state: RecurrentState) -> tuple[Tensor, Tensor]:
        """Attend from each row: return the contexts (R, D) and the weights (R, C)."""
        assert self.attention is not None
        assert state.source is not None
        query = state.last.view(len(state.source.mask), -1, state.last.shape[1])  # (B, W, D)
        weights, contexts = self.attention(query, state.source)
        return contexts.flatten(0, 1), weights.flatten(0, 1)


class BahdanauDecoder(RecurrentDecoder):
    """A decoder that attends from its last state, and feeds the context into its next state.

        s_0 = tanh(W_s backward h_1),  c_i = attention(s_{i-1}),  s_i = GRU([E y_{i-1}; c_i], s_{i-1}),
        t_i = max of each pair of U_o s_{i-1} + V_o E y_{i-1} + C_o c_i,  logits W_o t_i.

    Source: Bahdanau et al. 2015, appendix A.2.2.
    """

    def __init__(self, config: BertConfig) -> None:
        size = config.hidden_size
        super().__init__(config, final_size=size // 2)
        self.recurrence = nn.GRUCell(2 * size, size)
        self.combined = Linear(3 * size, size)
        self.vocabulary = Linear(size // 2, config.vocab_size)

    def final_states(self, hidden: Tensor, layout: Layout) -> Tensor:
        """The final state of the backward GRU, at the first token: (B, D / 2)."""
        return hidden[layout.starts, hidden.shape[1] // 2 :]

    def all_features(
        self, embedded: Tensor, layout: Layout, steps: Steps, state: RecurrentState
    ) -> tuple[Tensor, Tensor]:
        """Run the GRU step by step: return [s_{i-1}; E y_{i-1}; c_i] for each token, and the weights."""
        state.select(steps.sequences, steps.sequences)
        rows: list[tuple[Tensor, ...]] = []
        for token in embedded.split_with_sizes(steps.sizes.tolist()):
            if len(token) < len(state.last):  # the shortest texts have ended
                state.select(slice(len(token)), slice(len(token)))
            context, weights = self.attend(state)
            rows.append((state.last, context, weights))
            state.last = self.recurrence(torch.cat([token, context], 1), state.last)
        states, contexts, all_weights = (torch.cat(column) for column in zip(*rows, strict=True))
        return torch.cat([states, embedded, contexts], 1), all_weights

    def next_features(self, embedded: Tensor, state: RecurrentState) -> Tensor:
        """Run the GRU for one step: return [s_{i-1}; E y_{i-1}; c_i]."""
        context, _ = self.attend(state)
        features = torch.cat([state.last, embedded, context], 1)
        state.last = self.recurrence(features[:, state.last.shape[1] :], state.last)
        return features

    def logits(self, features: Tensor) -> Tensor:
        """The logits W_o t_i."""
        combined = self.combined(features)
        return self.vocabulary(self.dropout(torch.maximum(combined[:, 0::2], combined[:, 1::2])))  # type: ignore[no-any-return]


class LuongDecoder(RecurrentDecoder):
    """A decoder that attends from its new state to the whole source; only the logits depend on the context.

        s_0 = tanh(W_s [forward h_C; backward h_1]),  s_i = GRU(E y_{i-1}, s_{i-1}),  c_i = attention(s_i),
        logits W_o tanh(W_c [c_i; s_i]).

    With score=none the source affects only s_0 (Sutskever et al. 2014), and the logits are W_o tanh(W_c s_i).

    Source: Luong et al. 2015, equations 5 to 8, without the input feeding of their section 3.3, so that the GRU runs over a
    whole text at once.
    """

    def __init__(self, config: BertConfig) -> None:
        size = config.hidden_size
        super().__init__(config, final_size=size)
        self.recurrence = nn.GRU(size, size)
        self.combined = Linear(size if self.attention is None else 2 * size, size)
        self.vocabulary = Linear(size, config.vocab_size)

    def final_states(self, hidden: Tensor, layout: Layout) -> Tensor:
        """The final states of both GRUs: the forward one at the last token, the backward one at the first: (B, D)."""
        half, last = hidden.shape[1] // 2, layout.bounds[1 : len(layout.starts) + 1].long() - 1
        return torch.cat([hidden[last, :half], hidden[layout.starts, half:]], 1)

    def all_features(
        self, embedded: Tensor, layout: Layout, steps: Steps, state: RecurrentState
    ) -> tuple[Tensor, Tensor | None]:
        """Run the GRU over all tokens: return [c_i; s_i] for each token, and the weights."""
        features = self.recurrence(PackedSequence(embedded, steps.sizes), state.last[None, steps.sequences])[0].data
        if self.attention is None:
            return features, None
        indices = layout.padded_indices[steps.tokens]
        weights, contexts = self.attention(pad(features, indices, len(layout.starts), layout.longest), state.source)
        return torch.cat([contexts.flatten(0, 1)[indices], features], 1), weights.flatten(0, 1)[indices]

    def next_features(self, embedded: Tensor, state: RecurrentState) -> Tensor:
        """Run the GRU for one step: return [c_i; s_i]."""
        state.last = self.recurrence(embedded[None], state.last[None])[1][0]
        return state.last if self.attention is None else torch.cat([self.attend(state)[0], state.last], 1)

    def logits(self, features: Tensor) -> Tensor:
        """The logits W_o tanh(W_c [c_i; s_i])."""
        return self.vocabulary(self.dropout(torch.tanh(self.combined(features))))  # type: ignore[no-any-return]
