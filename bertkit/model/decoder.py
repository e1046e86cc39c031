"""The decoder of a Transformer: it generates a target text token by token, and attends to that text and to a source text.

    hidden = norm(hidden + attention(hidden))                 causal
    hidden = norm(hidden + cross_attention(hidden, source))
    hidden = norm(hidden + feed_forward(hidden))

With kind `bert` the embeddings and the head are BERT's, and only the second line is new. With kind `transformer` it is the
decoder of Vaswani et al. 2017, with scaled embeddings and sinusoids; self-attention has the scores and positions of the encoder.

Axes: as in attention.py; S target tokens, C source tokens, R texts that are generated at the same time (rows), W for each of
the B sources, so R = B * W.

Source: Vaswani et al. 2017, section 3.1 and figure 1, right; Rothe et al. 2020, section 2; transformers modeling_bert.py
`BertLayer` with cross-attention.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bertkit.kernels.layout import Group, Layout
from bertkit.kernels.linear import Dropout, TiedLinear
from bertkit.model.attention import MultiHeadAttention, attend_by_kernel
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert import Bert, Embeddings, EncoderLayer, make_final_norm, make_norm
from bertkit.model.bert_config import BertConfig
from bertkit.model.geometry import Geometry
from bertkit.model.patterns import CAUSAL


@dataclass
class DecoderState:
    """The state of R texts that are being generated; the W rows of a source are neighbours."""

    targets: list[list[Tensor]]  # for each layer, keys and values of the t target tokens so far, (R, N, t, H)
    sources: list[list[Tensor]]  # and of the source tokens, (B, N, C, H)
    source_mask: Tensor  # False for padding, (B, 1, 1, C)
    position: int  # of the next token

    def select(self, rows: Tensor | None, sources: Tensor | None) -> None:
        """Reorder, repeat or drop rows, by their indices (R',), and sources (B',); None leaves them as they are."""
        if rows is not None:
            self.targets = [[tensor.index_select(0, rows) for tensor in layer] for layer in self.targets]
        if sources is not None:
            self.sources = [[tensor.index_select(0, sources) for tensor in layer] for layer in self.sources]
            self.source_mask = self.source_mask.index_select(0, sources)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention and feed-forward, all with dropout, a residual connection and a norm."""

    def __init__(self, config: BertConfig, layer: int, shared: EncoderLayer | None = None) -> None:
        """Use the weights of the encoder layer `shared`, if given, for everything except cross-attention."""
        super().__init__()
        own = EncoderLayer(config, layer) if shared is None else shared
        self.attention, self.attention_norm = own.attention, own.attention_norm
        # the positions of two texts have no distance
        self.cross_attention = MultiHeadAttention(replace(config, attention=AttentionConfig()), layer)
        self.cross_attention_norm = make_norm(config)
        self.feed_forward, self.feed_forward_norm = own.feed_forward, own.feed_forward_norm
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.is_pre_norm = config.norm.placement == "pre"

    def forward(
        self, hidden: Tensor, within: Geometry, source: Tensor, across: Geometry, attentions: list[Tensor] | None = None
    ) -> Tensor:
        """Targets (S, D), sources (C, D) -> (S, D); the weights of the source tokens, (B, N, T, C), go to `attentions`."""
        return self._add(
            hidden,
            lambda target: self.attention(target, within),
            lambda target: self.cross_attention(target, across, attentions, source),
            self.feed_forward,
        )

    def step(
        self, hidden: Tensor, position_ids: Tensor, targets: list[Tensor], sources: list[Tensor], source_mask: Tensor
    ) -> Tensor:
        """The hidden state of the next token of each row, (R, D) -> (R, D), at one position, (R,); it is added to `targets`."""

        def attend_to_self(target: Tensor) -> Tensor:
            vectors = self.attention.vectors(target, target, position_ids)
            query, *newest = (each[:, :, None] for each in vectors)  # (R, N, 1, H)
            key, value = targets[:] = [torch.cat(both, 2) for both in zip(targets, newest, strict=True)]
            if self.attention.slots.has_scores:
                variant = self.attention.variant(key.shape[2])
                places = torch.arange(key.shape[2], device=target.device)[None]
                group = Group((len(target), 1, places.shape[1]), None, places[:, -1:], places, places.shape[1] - 1)
                context = variant.context(torch.softmax(variant.scores(query, key, group), -1), value, group)
            else:
                context = attend_by_kernel(query, key, value)
            return self.attention.output(context.flatten(1))  # type: ignore[no-any-return]

        def attend_to_source(target: Tensor) -> Tensor:
            query = self.cross_attention.in_heads(self.cross_attention.query(target))
            query = query.view(len(source_mask), -1, *query.shape[1:]).transpose(1, 2)  # (B, N, W, H)
            context = attend_by_kernel(query, sources[0], sources[1], source_mask)
            return self.cross_attention.output(context.transpose(1, 2).reshape(len(target), -1))  # type: ignore[no-any-return]

        return self._add(hidden, attend_to_self, attend_to_source, self.feed_forward)

    def _add(self, hidden: Tensor, *sublayers: Callable[[Tensor], Tensor]) -> Tensor:
        norms = self.attention_norm, self.cross_attention_norm, self.feed_forward_norm
        for sublayer, norm in zip(sublayers, norms, strict=True):
            output = self.dropout(sublayer(norm(hidden) if self.is_pre_norm else hidden))
            hidden = hidden + output if self.is_pre_norm else norm(hidden + output)
        return hidden

    def cached(self, source: Tensor, source_layout: Layout) -> list[Tensor]:
        """Keys and values of the sources (C, D), each (B, N, C, H)."""
        _, *tensors = self.cross_attention.vectors(source[:1], source, source_layout.position_ids[:1])
        return [source_layout.pad(packed).transpose(1, 2) for packed in tensors]


class Decoder(nn.Module):
    """Embeddings, L decoder layers, and the scores of the next token.

    With kind `bert` it has its own weights, or, if `share` is set, the encoder's for everything except cross-attention. With
    kind `transformer` it uses the encoder's embeddings, which also score the next token (Vaswani et al. 2017, section 3.4).
    """

    def __init__(self, config: BertConfig, encoder: Bert, score: nn.Module | None) -> None:
        """Score with a masked LM head, (S, D) and (V, D) -> (S, V); with None, by the product with the embeddings."""
        super().__init__()
        assert config.decoder is not None
        is_shared = config.decoder.share
        self.embeddings = encoder.embeddings if is_shared or score is None else Embeddings(config)
        self.layers: Any = nn.ModuleList(
            DecoderLayer(config, number, layer if is_shared and isinstance(layer, EncoderLayer) else None)
            for number, layer in enumerate(encoder.encoder.layers)
        )
        self.norm = make_final_norm(config)
        self.score = TiedLinear() if score is None else score

    def forward(
        self,
        input_ids: Tensor,
        layout: Layout,
        source: Tensor,
        source_layout: Layout,
        attentions: list[Tensor] | None = None,
    ) -> Tensor:
        """Score the next token after each target token: (S,) -> (S, V).

        The inputs are, for each target, [CLS] and all its tokens except the last one. The source is the output of the encoder,
        (C, D), in the order of the targets. The cross-attention weights of every layer, L times (B, N, T, C), are appended to
        `attentions`.
        """
        hidden = self.embeddings(input_ids, torch.zeros_like(input_ids), layout.position_ids)
        within = Geometry(layout, layout, CAUSAL, is_padded=True)
        across = Geometry(layout, source_layout, is_padded=True)
        for layer in self.layers:
            hidden = layer(hidden, within, source, across, attentions)
        return self._logits(hidden)

    def start(self, source: Tensor, source_layout: Layout) -> DecoderState:
        """Return the state before the first token, with one row for each source."""
        sources = [layer.cached(source, source_layout) for layer in self.layers]
        targets = [[tensor[:, :, :0] for tensor in layer] for layer in sources]
        return DecoderState(targets, sources, source_layout.is_token[:, None, None], position=0)

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Append a token to each row, and score the next one: (R,) -> (R, V)."""
        position_ids = torch.full_like(tokens, state.position)
        hidden = self.embeddings(tokens, torch.zeros_like(tokens), position_ids)
        for layer, *cache in zip(self.layers, state.targets, state.sources, strict=True):
            hidden = layer.step(hidden, position_ids, *cache, state.source_mask)
        state.position += 1
        return self._logits(hidden)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.score(self.norm(hidden), self.embeddings.token.weight)  # type: ignore[no-any-return]
