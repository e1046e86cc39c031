"""A recurrent encoder, and recurrent decoders with attention to it: neural translation before the Transformer.

All recurrent layers are those of cells.py: by default GRUs as torch and cuDNN compute them, with the reset gate after the
matrix, and not before it as in the papers.

Axes: as in attention.py, with S and T for target tokens; C tokens of the longest source, and R texts that are generated at the
same time (rows), W for each of the B sources, so R = B * W; K vectors in the state of all layers of a decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bertkit.kernels.layout import Layout, on_device, pad
from bertkit.kernels.linear import Dropout, Linear
from bertkit.model.bert_config import LOCAL_SCORES, BertConfig
from bertkit.model.cells import make_layer, num_parts, run_layer
from bertkit.model.scores import dot, general, location


@dataclass(frozen=True)
class Steps:
    """A packed batch in the order of a recurrence: all first tokens, all second ones, and so on; longest sequences first."""

    tokens: Tensor  # indices into S, (n,); without slack, the tokens that only round up the size of a batch
    sizes: Tensor  # number of sequences that have a token at each step, (T,), on the CPU, as torch expects
    sequences: Tensor  # longest first, (B,)

    @classmethod
    def of(cls, layout: Layout, is_reversed: bool = False) -> Steps:
        """Order the tokens of a batch, `is_reversed`: backwards between the first and the last token of each sequence.

        Computed on the CPU, so that the host never waits for the device.
        """
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
            make_layer(config.decoder, size, size // 2 if both else size, bidirectional=both)
            for _ in range(config.num_hidden_layers)
        )
        self.is_reversed = config.decoder.reverse_source
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, hidden: Tensor, layout: Layout, output_hidden_states: bool = False, attentions: list[Tensor] | None = None
    ) -> list[Tensor]:
        """Return hidden states as `bert.Encoder` does; `attentions` stays empty, since the layers have no attention."""
        steps = Steps.of(layout, self.is_reversed)
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

    The scores are dot s . h, general s^T W h, location (W s)_j, and additive v^T tanh(W s + U h). Local attention looks only at
    the tokens at most D = `window` from a centre p, by the general score. Positions count from 0, [CLS] and [SEP] included.

        local_m   p = t, the position of the target token, or the last token of a shorter source
        local_p   p = C sigmoid(v_p^T tanh(W_p s)) for C source tokens;  a_j is multiplied by exp(-(j - p)^2 / (2 (D / 2)^2))

    Source: Bahdanau et al. 2015, appendix A.1.2; Luong et al. 2015, sections 3.1 and 3.2.
    """

    def __init__(self, config: BertConfig, score: str) -> None:
        super().__init__()
        assert config.decoder is not None
        self.score, self.window, size = score, config.decoder.window, config.hidden_size
        if score == "additive":
            # not `Linear`, since the number of rows shrinks from step to step
            self.of_query = nn.Linear(size, size, bias=False)
            self.of_key = Linear(size, size, bias=False)
            self.of_sum = nn.Linear(size, 1, bias=False)
        elif score != "dot":
            num_outputs = config.max_position_embeddings if score == "location" else size
            self.matrix = nn.Linear(size, num_outputs, bias=False)
        if score == "local_p":
            self.of_state = nn.Linear(size, size, bias=False)  # W_p
            self.of_centre = nn.Linear(size, 1, bias=False)  # v_p

    def prepare(self, hidden: Tensor, layout: Layout) -> Source:
        """Pad the encoder's states (S, D) and compute their keys, once for all steps."""
        values = layout.pad(hidden)
        keys = layout.pad(self.of_key(hidden)) if self.score == "additive" else values
        mask = torch.zeros_like(values[..., 0]).masked_fill(~layout.is_token, -torch.inf)
        return Source(values, keys, mask)

    def forward(self, query: Tensor, source: Source, position: Tensor | int) -> tuple[Tensor, Tensor]:
        """Attend from decoder states (B, W, D): return the weights (B, W, C) and the contexts (B, W, D).

        `position` is that of all target tokens, or of each, (W,).
        """
        match self.score:
            case "dot":
                scores = dot(query, source.keys)
            case "general" | "local_m" | "local_p":
                scores = general(query, source.keys, self.matrix.weight)
            case "location":
                places = torch.arange(source.keys.shape[1], device=query.device)
                scores = location(query, self.matrix.weight, places)
            case "additive":
                sums = self.of_query(query)[:, :, None] + source.keys[:, None]  # (B, W, C, D)
                scores = torch.tanh(sums) @ self.of_sum.weight[0]
        scores = scores + source.mask[:, None]
        if self.score not in LOCAL_SCORES:
            weights = torch.softmax(scores, -1)
            return weights, weights @ source.values
        lengths = (source.mask == 0).sum(1, keepdim=True)  # (B, 1)
        if self.score == "local_p":
            centres = lengths * torch.sigmoid(self.of_centre(torch.tanh(self.of_state(query)))[..., 0])
        else:
            centres = (lengths - 1).clamp(max=position)
        distances = torch.arange(scores.shape[2], device=query.device) - centres[..., None]  # (B, W, C)
        weights = torch.softmax(scores.masked_fill(distances.abs() > self.window, -torch.inf), -1)
        if self.score == "local_p":
            weights = weights * torch.exp(-2 * (distances / self.window) ** 2)
        return weights, weights @ source.values


@dataclass
class RecurrentState:
    """The state of R texts that are being generated from B sources."""

    last: Tensor  # the state of all layers for each row, (R, K, D); the output s of the top layer comes last
    source: Source | None  # None without attention
    fed: Tensor | None = None  # with input feeding, the last attentional vector of each row, (R, D)
    position: int = 0  # of the next token

    def select(self, rows: Tensor | slice | None, sources: Tensor | slice | None) -> None:
        """Reorder, repeat or drop rows, by their indices (R',), and sources (B',); None leaves them as they are."""
        if rows is not None:
            self.last, self.fed = self.last[rows], None if self.fed is None else self.fed[rows]
        if sources is not None and self.source is not None:
            self.source = self.source.select(sources)


class RecurrentDecoder(nn.Module):
    """Recurrent layers that generate a text token by token; their first states depend on the final states of the encoder.

    With more than one vector in these states, for several layers or an LSTM, each has its own rows of W_s; Sutskever et al. 2014
    copy the states of the encoder's layers instead. The subclasses differ in the input of the layers, and in the features from
    which the logits are computed.
    """

    final_states: Callable[..., Tensor]  # the encoder's states (S, D) -> its final states, (B, final_size)
    next_features: Callable[..., tuple[Tensor, Tensor | None]]  # for one more token in each row, see `all_features`
    logits: Callable[..., Tensor]  # features (n, ...) -> (n, V)

    def __init__(self, config: BertConfig, final_size: int, num_inputs: int, by_step: bool) -> None:
        """Build the layers that both subclasses have; `final_size` is the size of a vector of `final_states`."""
        super().__init__()
        decoder, size = config.decoder, config.hidden_size
        assert decoder is not None
        self.token = nn.Embedding(config.vocab_size, size)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.attention = None if decoder.score == "none" else SourceAttention(config, decoder.score)
        self.first = Linear(final_size, decoder.num_layers * num_parts(decoder) * size)
        self.recurrence = make_layer(decoder, num_inputs, size, by_step)
        self.upper = nn.ModuleList(make_layer(decoder, size, size, by_step) for _ in range(1, decoder.num_layers))

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

    def all_features(
        self, embedded: Tensor, _: Layout, steps: Steps, state: RecurrentState
    ) -> tuple[Tensor, Tensor | None]:
        """Run token by token: return the features of all target tokens, (n, ...), and the weights of their source tokens, (n, C)."""
        state.select(steps.sequences, steps.sequences)
        rows = []
        for token in embedded.split_with_sizes(steps.sizes.tolist()):
            if len(token) < len(state.last):  # the shortest texts have ended
                state.select(slice(len(token)), slice(len(token)))
            rows.append(self.next_features(token, state))
        features, weights = (torch.cat(column) for column in zip(*rows, strict=True))  # type: ignore[arg-type]
        return features, weights

    def start(self, hidden: Tensor, source_layout: Layout) -> RecurrentState:
        """Return the state before the first token, with one row for each source."""
        last = torch.tanh(self.first(self.final_states(hidden, source_layout)))
        source = None if self.attention is None else self.attention.prepare(hidden, source_layout)
        return RecurrentState(last.unflatten(1, (-1, self.token.embedding_dim)), source)

    def step(self, tokens: Tensor, state: RecurrentState) -> Tensor:
        """Append a token to each row, and score the next one: (R,) -> (R, V)."""
        return self.logits(self.next_features(self.dropout(self.token(tokens)), state)[0])

    def recur(self, inputs: Tensor, last: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run all layers from the states (R, K, D), as `run_layer` does: return the outputs of the top layer, and the new states."""
        layers, states = [self.recurrence, *self.upper], list[Tensor]()
        for layer, own in zip(layers, last.chunk(len(layers), 1), strict=True):
            inputs, new = run_layer(layer, self.dropout(inputs) if states else inputs, own, sizes)
            states.append(new)
        return inputs, states[0] if len(states) == 1 else torch.cat(states, 1)

    def attend(self, state: RecurrentState) -> tuple[Tensor, Tensor]:
        """Attend from each row: return the contexts (R, D) and the weights (R, C)."""
        assert self.attention is not None
        assert state.source is not None
        query = state.last[:, -1].unflatten(0, (len(state.source.mask), -1))  # (B, W, D)
        weights, contexts = self.attention(query, state.source, state.position)
        return contexts.flatten(0, 1), weights.flatten(0, 1)


class BahdanauDecoder(RecurrentDecoder):
    """A decoder that attends from its last state, and feeds the context into its next state.

        s_0 = tanh(W_s backward h_1),  c_i = attention(s_{i-1}),  s_i = GRU([E y_{i-1}; c_i], s_{i-1}),
        t_i = max of each pair of U_o s_{i-1} + V_o E y_{i-1} + C_o c_i,  logits W_o t_i.

    Source: Bahdanau et al. 2015, appendix A.2.2.
    """

    def __init__(self, config: BertConfig) -> None:
        size = config.hidden_size
        super().__init__(config, final_size=size // 2, num_inputs=2 * size, by_step=True)
        self.combined = Linear(3 * size, size)
        self.vocabulary = Linear(size // 2, config.vocab_size)

    def final_states(self, hidden: Tensor, layout: Layout) -> Tensor:
        """The final state of the backward layer, at the first token: (B, D / 2)."""
        return hidden[layout.starts, hidden.shape[1] // 2 :]

    def next_features(self, embedded: Tensor, state: RecurrentState) -> tuple[Tensor, Tensor]:
        """Run the layers for one step: return [s_{i-1}; E y_{i-1}; c_i]."""
        context, weights = self.attend(state)
        features = torch.cat([state.last[:, -1], embedded, context], 1)
        _, state.last = self.recur(features[:, embedded.shape[1] :], state.last)
        return features, weights

    def logits(self, features: Tensor) -> Tensor:
        """The logits W_o t_i."""
        combined = self.combined(features)
        return self.vocabulary(self.dropout(torch.maximum(combined[:, 0::2], combined[:, 1::2])))  # type: ignore[no-any-return]


class LuongDecoder(RecurrentDecoder):
    """A decoder that attends from its new state; only the logits depend on the context, so that it runs over a text at once.

        s_0 = tanh(W_s [forward h_C; backward h_1]),  s_i = GRU(E y_{i-1}, s_{i-1}),  c_i = attention(s_i),
        h_i = tanh(W_c [c_i; s_i]),  logits W_o h_i.

    With score=none the source affects only s_0 (Sutskever et al. 2014), and the logits are W_o tanh(W_c s_i). With input feeding
    s_i = GRU([E y_{i-1}; h_{i-1}], s_{i-1}), with h_0 = 0, token by token.

    Source: Luong et al. 2015, equations 5 to 8 and section 3.3.
    """

    def __init__(self, config: BertConfig) -> None:
        assert config.decoder is not None
        size, self.feeds = config.hidden_size, config.decoder.input_feeding
        super().__init__(config, size, num_inputs=2 * size if self.feeds else size, by_step=self.feeds)
        # not `Linear` if the number of rows shrinks from step to step
        self.combined = (nn.Linear if self.feeds else Linear)(size if self.attention is None else 2 * size, size)
        self.vocabulary = Linear(size, config.vocab_size)
        self.is_bidirectional = config.decoder.bidirectional

    def final_states(self, hidden: Tensor, layout: Layout) -> Tensor:
        """The final states: the forward one at the last token, the backward one, if any, at the first: (B, D)."""
        half, last = hidden.shape[1] // 2, layout.bounds[1 : len(layout.starts) + 1].long() - 1
        if not self.is_bidirectional:
            return hidden[last]
        return torch.cat([hidden[last, :half], hidden[layout.starts, half:]], 1)

    def start(self, hidden: Tensor, source_layout: Layout) -> RecurrentState:
        """Return the state before the first token, with one row for each source."""
        state = super().start(hidden, source_layout)
        state.fed = torch.zeros_like(state.last[:, 0]) if self.feeds else None
        return state

    def all_features(
        self, embedded: Tensor, layout: Layout, steps: Steps, state: RecurrentState
    ) -> tuple[Tensor, Tensor | None]:
        """Run over all tokens at once, unless each needs the features of the one before: return [c_i; s_i], or h_i."""
        if self.feeds:
            return super().all_features(embedded, layout, steps, state)
        features, _ = self.recur(embedded, state.last[steps.sequences], steps.sizes)
        if self.attention is None:
            return features, None
        indices, positions = layout.padded_indices[steps.tokens], torch.arange(layout.longest, device=embedded.device)
        queries = pad(features, indices, len(layout.starts), layout.longest)
        weights, contexts = self.attention(queries, state.source, positions)
        return torch.cat([contexts.flatten(0, 1)[indices], features], 1), weights.flatten(0, 1)[indices]

    def next_features(self, embedded: Tensor, state: RecurrentState) -> tuple[Tensor, Tensor | None]:
        """Run the layers for one step: return [c_i; s_i], or h_i with input feeding."""
        inputs = embedded if state.fed is None else torch.cat([embedded, state.fed], 1)
        features, state.last = self.recur(inputs, state.last)
        if self.attention is None:
            return features, None
        context, weights = self.attend(state)
        features = torch.cat([context, features], 1)
        if self.feeds:
            state.fed = features = torch.tanh(self.combined(features))
        state.position += 1
        return features, weights

    def logits(self, features: Tensor) -> Tensor:
        """The logits W_o h_i."""
        return self.vocabulary(self.dropout(features if self.feeds else torch.tanh(self.combined(features))))  # type: ignore[no-any-return]
