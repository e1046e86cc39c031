"""The decoder of a Transformer: it writes a text token by token, and attends to the text so far and to a source.

    hidden = norm(hidden + attention(hidden))                 causal
    hidden = norm(hidden + cross_attention(hidden, source))
    hidden = norm(hidden + feed_forward(hidden))

With the embeddings and the head of BERT it is a BERT with the line in the middle; with scaled embeddings and sinusoids it is
the decoder of Vaswani et al. 2017.

Axes: as in attention.py; S target tokens, C source tokens, R rows, which are written at the same time, a token in each step.

Source: Vaswani et al. 2017, section 3.1 and figure 1, right; Rothe et al. 2020, section 2; transformers modeling_bert.py
`BertLayer` with cross-attention.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bertkit.kernels.layout import Layout
from bertkit.kernels.linear import Dropout, TiedLinear
from bertkit.model.attention import MultiHeadAttention, attend_by_kernel
from bertkit.model.bert import Bert, Embeddings, EncoderLayer, make_norm
from bertkit.model.bert_config import BertConfig
from bertkit.model.geometry import CAUSAL, Geometry


@dataclass
class Memory:
    """The keys and values of one layer: of the targets so far, (R, N, t, H), and of the sources, (B, N, C, H)."""

    key: Tensor
    value: Tensor
    source_key: Tensor
    source_value: Tensor


@dataclass
class Past:
    """The state of texts that are being written; R = B * W, and the W rows of a source are neighbours."""

    layers: list[Memory]
    is_source: Tensor  # whether a source token is no padding, (B, 1, 1, C)
    place: int  # position of the next token

    def select(self, rows: Tensor | None, sources: Tensor | None) -> None:
        """Reorder, repeat or drop rows, by their indices (R',), and sources (B',); None leaves them as they are."""
        for layer in self.layers:
            if rows is not None:
                layer.key, layer.value = layer.key.index_select(0, rows), layer.value.index_select(0, rows)
            if sources is not None:
                layer.source_key = layer.source_key.index_select(0, sources)
                layer.source_value = layer.source_value.index_select(0, sources)
        if sources is not None:
            self.is_source = self.is_source.index_select(0, sources)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention and feed-forward, all with dropout, residual and norm."""

    def __init__(self, config: BertConfig, shared: EncoderLayer | None = None) -> None:
        """`shared` is the encoder layer that lends its weights; only cross-attention has its own."""
        super().__init__()
        own = EncoderLayer(config) if shared is None else shared
        self.attention, self.attention_norm = own.attention, own.attention_norm
        self.cross_attention, self.cross_attention_norm = MultiHeadAttention(config), make_norm(config)
        self.feed_forward, self.feed_forward_norm = own.feed_forward, own.feed_forward_norm
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.is_pre_norm = config.norm.placement == "pre"

    def forward(
        self, hidden: Tensor, back: Geometry, source: Tensor, across: Geometry, kept: list[Tensor] | None = None
    ) -> Tensor:
        """Targets (S, D), sources (C, D) -> (S, D); `kept` takes the weights of the source tokens, (B, N, T, C)."""
        return self._sublayers(
            hidden,
            lambda target: self.attention(target, back),
            lambda target: self.cross_attention(target, across, kept, source),
        )

    def step(self, hidden: Tensor, past: Past, memory: Memory) -> Tensor:
        """Compute the next token of each row: (R, D) -> (R, D)."""

        def look_back(target: Tensor) -> Tensor:
            key, value = self.attention.keys_and_values(target)
            memory.key = torch.cat([memory.key, key[:, :, None]], 2)
            memory.value = torch.cat([memory.value, value[:, :, None]], 2)
            query = self.attention.in_heads(self.attention.query, target)[:, :, None]  # (R, N, 1, H)
            context = attend_by_kernel(query, memory.key, memory.value)
            return self.attention.output(context.flatten(1))  # type: ignore[no-any-return]

        def look_across(target: Tensor) -> Tensor:
            query = self.cross_attention.in_heads(self.cross_attention.query, target)
            query = query.view(len(past.is_source), -1, *query.shape[1:]).transpose(1, 2)  # (B, N, W, H)
            context = attend_by_kernel(query, memory.source_key, memory.source_value, past.is_source)
            return self.cross_attention.output(context.transpose(1, 2).reshape(len(target), -1))  # type: ignore[no-any-return]

        return self._sublayers(hidden, look_back, look_across)

    def _sublayers(
        self, hidden: Tensor, look_back: Callable[[Tensor], Tensor], look_across: Callable[[Tensor], Tensor]
    ) -> Tensor:
        if self.is_pre_norm:
            hidden = hidden + self.dropout(look_back(self.attention_norm(hidden)))
            hidden = hidden + self.dropout(look_across(self.cross_attention_norm(hidden)))
            return hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))  # type: ignore[no-any-return]
        hidden = self.attention_norm(hidden + self.dropout(look_back(hidden)))
        hidden = self.cross_attention_norm(hidden + self.dropout(look_across(hidden)))
        return self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))  # type: ignore[no-any-return]

    def remember(self, source: Tensor, source_layout: Layout) -> Memory:
        """Start with the keys and values of sources (C, D), and with no targets."""
        tensors = self.cross_attention.keys_and_values(source[: sum(source_layout.lengths)])
        key, value = (source_layout.pad(packed).transpose(1, 2) for packed in tensors)  # (B, N, C, H)
        empty = key[:, :, :0]
        return Memory(empty, empty, key, value)


class Decoder(nn.Module):
    """Embeddings, L decoder layers, and the scores of the next token.

    With kind `bert` it has its own weights, or shares all but cross-attention with the encoder; with kind `transformer` it
    shares the embeddings, which also score the next token (Vaswani et al. 2017, section 3.4).
    """

    def __init__(self, config: BertConfig, encoder: Bert, score: nn.Module | None) -> None:
        """`score` is a masked LM head, (S, D) and (V, D) -> (S, V); None for the product with the embeddings."""
        super().__init__()
        assert config.decoder is not None, "which decoder"
        is_shared = config.decoder.share
        self.embeddings = encoder.embeddings if is_shared or score is None else Embeddings(config)
        self.layers = nn.ModuleList(
            DecoderLayer(config, layer if is_shared and isinstance(layer, EncoderLayer) else None)
            for layer in encoder.encoder.layers
        )
        self.norm = make_norm(config) if config.norm.placement == "pre" else None
        self.score = TiedLinear() if score is None else score

    def forward(
        self,
        input_ids: Tensor,
        layout: Layout,
        source: Tensor,
        source_layout: Layout,
        kept: list[Tensor] | None = None,
    ) -> Tensor:
        """Score the next token after each target token.

        Args:
            input_ids: [CLS], then all target tokens but the last, (S,).
            layout: where the targets lie.
            source: the output of the encoder, (C, D).
            source_layout: where the sources lie, in the order of the targets.
            kept: takes the cross-attention weights of every layer, L times (B, N, T, C); None to keep none.

        Returns:
            Logits, (S, V).
        """
        hidden = self.embeddings(input_ids, torch.zeros_like(input_ids), layout.position_ids)
        back = Geometry(layout, layout, CAUSAL, is_together=True)
        across = Geometry(layout, source_layout, is_together=True)
        for layer in self.layers:
            hidden = layer(hidden, back, source, across, kept)
        return self._scored(hidden)

    def start(self, source: Tensor, source_layout: Layout) -> Past:
        """Start writing, with a row for each source."""
        layers = [layer.remember(source, source_layout) for layer in self._each()]
        return Past(layers, source_layout.is_token[:, None, None], place=0)

    def step(self, tokens: Tensor, past: Past) -> Tensor:
        """Add a token to each row, and score the next one: (R,) -> (R, V)."""
        hidden = self.embeddings(tokens, torch.zeros_like(tokens), torch.full_like(tokens, past.place))
        for layer, memory in zip(self._each(), past.layers, strict=True):
            hidden = layer.step(hidden, past, memory)
        past.place += 1
        return self._scored(hidden)

    def _each(self) -> Iterator[DecoderLayer]:
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            yield layer

    def _scored(self, hidden: Tensor) -> Tensor:
        hidden = hidden if self.norm is None else self.norm(hidden)
        return self.score(hidden, self.embeddings.token.weight)  # type: ignore[no-any-return]
