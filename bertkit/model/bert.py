"""BERT: embeddings, layers, encoder and pooler. What users may choose instead of BERT's pooler is in poolers.py.

The encoder is that of Vaswani et al. 2017, figure 1, left: a LayerNorm follows each residual connection.

Axes: as in attention.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.base import plugins
from bertkit.kernels.elementwise import GatedGelu
from bertkit.kernels.fast import ANYWHERE
from bertkit.kernels.layout import Layout, Wanted
from bertkit.kernels.linear import ACTIVATIONS, Dropout, Embedding, Linear, RMSNorm, halved, is_on_cpu, linear_of_each
from bertkit.model import slots
from bertkit.model.attention import ALONE, MultiHeadAttention, Shared
from bertkit.model.bert_config import READING_FIRST, BertConfig
from bertkit.model.geometry import Geometry
from bertkit.model.recurrent.encoder import RecurrentLayers


@plugins.option("norm", "layer_norm")
def layer_norm(size: int, eps: float, *, bias: bool = True) -> nn.LayerNorm:
    """Make a LayerNorm (Ba et al. 2016)."""
    return nn.LayerNorm(size, eps, bias=bias)


@plugins.option("norm", "rms")
def rms_norm(size: int, eps: float) -> RMSNorm:
    """Make an RMSNorm (Zhang and Sennrich 2019, equation 4)."""
    return RMSNorm(size, eps)


def make_norm(config: BertConfig, size: int | None = None) -> nn.Module:
    """Make a norm of a model, of vectors of `hidden_size` or another size."""
    make = plugins.bind("norm", config.norm.kind, vars(config.norm))
    return make(size or config.hidden_size, config.layer_norm_eps)  # type: ignore[no-any-return]


def make_final_norm(config: BertConfig) -> nn.Module:
    """Make the norm after the last layer, which norms before the sublayers need."""
    return make_norm(config) if config.norm.placement == "pre" else nn.Identity()


class Embeddings(nn.Module):
    """Token + position + segment embedding (Devlin et al. 2019, figure 2), LayerNorm, dropout.

    Encoder-decoders trained from scratch use neither segment embeddings nor a norm: a Transformer adds sinusoids to the
    token embeddings (Vaswani et al. 2017, sections 3.4 and 3.5), and a recurrent model uses token embeddings only.

    With `embedding_size` all this has that size E, and a linear map to D follows (Lan et al. 2020, section 3.1); with
    `projects_first` the map, without a bias, comes before the norm (He et al. 2020's code).
    """

    fast = ANYWHERE  # replaced by `BertWithHeads.use`

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        is_bert = config.decoder is None or not config.decoder.is_from_scratch
        positions = slots.make_positions(config, config.attention.of_embeddings, slots.changes_embeddings)
        is_scaled, size = config.decoder is not None and config.decoder.kind == "transformer", config.embedding_width
        self.scale = size**0.5 if is_scaled or positions.scales_tokens else None
        self.token = Embedding(config.vocab_size, size)
        self.place = positions.module_name
        self.add_module(self.place, positions)
        self.segment = Embedding(config.type_vocab_size, size) if is_bert and config.type_vocab_size > 0 else None
        self.task = Embedding(config.task_type_vocab_size, size) if config.task_type_vocab_size else None
        has_map, is_first = config.embedding_size is not None, config.projects_first
        self.first_projection = Linear(size, config.hidden_size, bias=False) if has_map and is_first else nn.Identity()
        has_norm = is_bert and config.norm.of_embeddings
        self.norm = make_norm(config, config.hidden_size if is_first else size) if has_norm else nn.Identity()
        self.is_post_norm = is_bert and config.norm.placement == "post"
        self.dropout = Dropout(config.embedding_dropout)
        self.projection = Linear(size, config.hidden_size) if has_map and not is_first else nn.Identity()

    @property
    def positions(self) -> slots.Positions:
        """The positions of the embeddings."""
        return self._modules[self.place]  # type: ignore[return-value]

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Embed packed tokens: (S,) -> (S, D).

        With sinusoids, and in the Transformer, token embeddings are multiplied by sqrt(D) (Vaswani et al. 2017, section 3.4).
        """
        hidden: Tensor = self.token(input_ids)
        position_ids = self.positions.number(position_ids, input_ids)
        hidden = hidden if self.scale is None else hidden * self.scale
        hidden = self.positions.add_to_tokens(hidden, position_ids)
        if self.segment is not None:
            hidden = hidden + self.segment(token_type_ids)
        hidden = self.positions.embed(hidden, position_ids)
        if self.task is not None:
            hidden = hidden + self.task.weight[0]  # a task's number is 0 (Sun et al. 2020, ERNIE 2.0, section 3.3)
        hidden = self.projection(self.dropout(self.norm(self.first_projection(hidden))))
        return halved(hidden, self.fast) if self.is_post_norm else hidden


@plugins.option("feed_forward", "mlp")
class FeedForward(nn.Module):
    """Two linear maps with an activation between them, GELU in BERT, applied to each token."""

    num_parts = 1  # of the intermediate vectors

    def __init__(self, config: BertConfig, *, bias: bool = True, output_bias: bool | None = None) -> None:
        super().__init__()
        self.intermediate = Linear(config.hidden_size, self.num_parts * config.intermediate_size, bias)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dropout = Dropout(config.layer_dropout_probs.get("intermediate", 0.0))
        self.output = Linear(config.intermediate_size, config.hidden_size, bias if output_bias is None else output_bias)
        self.output.init_scale = config.output_scale

    def forward(self, hidden: Tensor) -> Tensor:
        """(S, D) -> (S, F) -> (S, D)."""
        return self.output(self.dropout(self.activation(self.intermediate(hidden))))  # type: ignore[no-any-return]


@plugins.option("feed_forward", "glu")
class GatedFeedForward(FeedForward):
    """A gated linear unit, output(activation(W x) * V x): the activation of one linear map is multiplied by another one.

    Source: Shazeer 2020, equation 6, with GELU as in ModernBERT, or SiLU.
    """

    num_parts = 2
    fast = ANYWHERE  # replaced by `BertWithHeads.use`

    def forward(self, hidden: Tensor) -> Tensor:
        """(S, D) -> two of (S, F) -> (S, D)."""
        intermediate = self.intermediate(hidden)
        if self.fast.few_passes and self.activation is F.gelu and is_on_cpu(hidden):
            return self.output(self.dropout(GatedGelu.apply(intermediate)))  # type: ignore[no-any-return, no-untyped-call]
        activated, gate = intermediate.chunk(2, -1)
        return self.output(self.dropout(self.activation(activated) * gate))  # type: ignore[no-any-return]


@plugins.option("feed_forward", "two_map_glu")
class TwoMapGatedFeedForward(FeedForward):
    """The same with a matrix for each of the two linear maps, as Llama and EuroBERT store them."""

    def __init__(self, config: BertConfig, *, bias: bool = True, output_bias: bool | None = None) -> None:
        super().__init__(config, bias=bias, output_bias=output_bias)
        self.gate = Linear(config.hidden_size, config.intermediate_size, bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(S, D) -> two of (S, F) -> (S, D)."""
        activated, gate = linear_of_each(hidden, [self.intermediate, self.gate])
        return self.output(self.dropout(self.activation(activated) * gate))  # type: ignore[no-any-return]


def make_feed_forward(config: BertConfig) -> nn.Module:
    """Make the feed-forward part of a layer, (S, D) -> (S, D)."""
    kind = config.feed_forward.kind
    made = plugins.bind("feed_forward", kind, vars(config.feed_forward), config.feed_forward.options)(config)
    return slots.checked_module("feed_forward", kind, made, lambda hidden: hidden.shape)


class EncoderLayer(nn.Module):
    """Attention and feed-forward, both with dropout, a residual connection, and a norm after it (`post`) or before (`pre`)."""

    fast = ANYWHERE  # replaced by `BertWithHeads.use`

    def __init__(self, config: BertConfig, layer: int, shared: Shared = ALONE) -> None:
        """Make the layer with this number, counted from 0."""
        super().__init__()
        self.attention = MultiHeadAttention(config, layer, shared)
        is_bare = layer == 0 and not config.norm.before_first
        self.attention_norm = nn.Identity() if is_bare else make_norm(config)
        self.feed_forward = make_feed_forward(config)
        self.feed_forward_norm = make_norm(config)
        probs = dict.fromkeys(("attention", "feed_forward"), config.hidden_dropout_prob) | config.layer_dropout_probs
        self.attention_dropout, self.dropout = Dropout(probs["attention"]), Dropout(probs["feed_forward"])
        self.is_pre_norm = config.norm.placement == "pre"
        chosen = {"feed_forward": config.feed_forward.kind, "norm": config.norm.kind, "score": config.attention.score}
        chosen |= {"positions": config.attention.positions, "encoder": config.encoder}
        self.has_plugin = any(plugins.is_plugin(*option) for option in chosen.items())

    def forward(
        self, hidden: Tensor, geometry: Geometry, attentions: list[Tensor] | None = None, rows: Tensor | None = None
    ) -> Tensor:
        """(S, D) -> (S, D), or (n, D) with queries of some rows alone; weights, (B, N, T, T), are appended to `attentions`."""
        query, key, value = self.before_attention(hidden, geometry.keys.position_ids)
        if rows is not None:
            hidden, query = hidden.index_select(0, rows), query.index_select(0, rows)
        return self.after_attention(hidden, self.attention.context(query, key, value, geometry, attentions))

    def before_attention(self, hidden: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(S, D) -> queries, keys and values, each (S, N, H)."""
        hidden = self.attention_norm(hidden) if self.is_pre_norm else hidden
        return self.attention.vectors(hidden, hidden, position_ids)

    def after_attention(self, hidden: Tensor, context: Tensor) -> Tensor:
        """The input of the layer and the contexts of its heads, both (S, D) -> (S, D)."""
        hidden = hidden + self.attention_dropout(self.attention.output(context))
        if self.is_pre_norm:
            return hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))  # type: ignore[no-any-return]
        hidden = halved(self.attention_norm(hidden), self.fast)
        return halved(self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden))), self.fast)


class ConvolvedLayer(EncoderLayer):
    """A layer whose output is added to a convolution of its input along each sequence: norm(layer(x) + act(conv(x))).

    Source: transformers modeling_deberta_v2.py `ConvLayer`; He et al. 2020's code, version 2.
    """

    def __init__(self, config: BertConfig, layer: int, shared: Shared = ALONE) -> None:
        super().__init__(config, layer, shared)
        assert config.convolution is not None
        size, width, groups = config.hidden_size, config.convolution.kernel_size, config.convolution.groups
        self.convolution = nn.Conv1d(size, size, width, padding=width // 2, groups=groups)
        self.convolution_activation = ACTIVATIONS[config.convolution.act]
        self.convolution_dropout = Dropout(config.hidden_dropout_prob)
        self.convolution_norm = make_norm(config)

    def forward(
        self, hidden: Tensor, geometry: Geometry, attentions: list[Tensor] | None = None, rows: Tensor | None = None
    ) -> Tensor:
        """As a layer's, with the convolution."""
        output, convolved = super().forward(hidden, geometry, attentions, rows), self.convolve(hidden, geometry.keys)
        convolved = convolved if rows is None else convolved.index_select(0, rows)
        return self.convolution_norm(output + self.convolution_activation(self.convolution_dropout(convolved)))  # type: ignore[no-any-return]

    def convolve(self, hidden: Tensor, layout: Layout) -> Tensor:
        """(S, D) -> (S, D), with zeros before and after each sequence; a run of equal lengths at a time."""
        sizes, convolved = [count * length for _, count, length in layout.runs], []
        for (_, count, length), part in zip(layout.runs, torch.split(hidden, sizes), strict=True):
            tokens = part.view(count, length, -1).transpose(1, 2)  # (B, D, T)
            convolved.append(self.convolution(tokens).transpose(1, 2).flatten(0, 1))
        return torch.cat(convolved)


@plugins.option("encoder", "transformer")
class Encoder(nn.Module):
    """L layers; with `pre` norms also a final norm (Xiong et al. 2020, section 3.1)."""

    layer_class: type[EncoderLayer] = EncoderLayer

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        pattern, numbers = slots.make_pattern(config.attention), range(config.num_hidden_layers)
        self.patterns = [pattern.of_layer(number) for number in numbers]
        self.compression = pattern.compression(config) if pattern.shares_compression else None
        self.positions = slots.make_positions(config, config.attention.positions, slots.changes_layers).shared()
        shared = Shared(self.compression, self.positions)
        own = numbers[:1] if config.shared_layers else numbers  # one layer L times, or L layers
        first = self.layer_class if config.convolution is None else ConvolvedLayer
        layers = [(self.layer_class if number else first)(config, number, shared) for number in own]
        self.layers = nn.ModuleList(layers * (len(numbers) // len(own)))
        self.norm = make_final_norm(config)

    def forward(
        self,
        hidden: Tensor,
        layout: Layout,
        output_hidden_states: bool = False,
        attentions: list[Tensor] | None = None,
        wanted: Wanted | None = None,
    ) -> list[Tensor]:
        """Return the last output, (S, D), or that of wanted tokens alone, (n, D); or the input and all outputs, L + 1 times (S, D)."""
        hidden_states = [hidden]
        for number, (layer, pattern) in enumerate(zip(self.layers, self.patterns, strict=True), 1):
            queries, rows = layout, None
            if wanted is not None and number == len(self.layers):
                queries, rows = wanted.layout, wanted.rows
            geometry = Geometry(queries, layout, pattern.over(layout), is_whole=attentions is not None)
            output = layer(hidden_states[-1], geometry, attentions, rows)
            hidden_states = [*hidden_states, output] if output_hidden_states else [output]
        hidden_states[-1] = self.norm(hidden_states[-1])
        return hidden_states


def make_encoder(config: BertConfig) -> Encoder:
    """Make the encoder of a model, a subclass of `Encoder`."""
    made = plugins.bind("encoder", config.encoder)(config)
    return plugins.returned("encoder", config.encoder, made, Encoder, "a subclass of bertkit.model.bert.Encoder")


@plugins.option("pooler", "first")
class Pooler(nn.Module):
    """One vector for a sequence: tanh, or another activation, of a linear map of what `pool` returns, here its [CLS] vector."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.pooler_act]

    def pool(self, hidden: Tensor, layout: Layout) -> Tensor:
        """(S, D) -> (B, D)."""
        return hidden[layout.starts]

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        """(S, D) -> (B, D)."""
        return self.activation(self.dense(self.pool(hidden, layout)))


def make_pooler(config: BertConfig) -> nn.Module:
    """Make the pooler of a model, (S, D) and a layout -> (B, D)."""
    made, size = plugins.bind("pooler", config.pooling)(config), config.hidden_size
    return slots.checked_module("pooler", config.pooling, made, lambda hidden, layout: (len(layout.starts), size))


class Bert(nn.Module):
    """The encoder of Devlin et al. 2019 over packed tokens; with a recurrent decoder, the encoder of Bahdanau et al. 2015."""

    def __init__(self, config: BertConfig, with_pooler: bool = True, pooler_dropout_prob: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        is_recurrent = config.decoder is not None and config.decoder.kind == "rnn"
        self.encoder = RecurrentLayers(config) if is_recurrent else make_encoder(config)
        self.pooler = make_pooler(config) if with_pooler else None
        self.pooler_dropout = Dropout(pooler_dropout_prob)
        # whether the last layer may compute the wanted tokens alone: neither the pooler nor a plug-in reads others
        last_pattern = slots.make_pattern(config.attention).of_layer(config.num_hidden_layers - 1)
        is_plain = isinstance(self.encoder, Encoder) and not self.encoder.layers[-1].has_plugin
        self.may_skip = is_plain and last_pattern == slots.FULL and config.pooling in READING_FIRST
        self.weighs_places = slots.changes_weights(slots.class_of(config.attention.positions))  # lost but for [CLS]

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        layout: Layout,
        output_hidden_states: bool = False,
        attentions: list[Tensor] | None = None,
        wanted: Wanted | None = None,
    ) -> tuple[list[Tensor], Tensor | None]:
        """Encode packed tokens (S,), with token type 0 for the first segment and 1 for the second.

        The attention weights of every layer, L times (B, N, T, T) with T of the longest sequence, are appended to `attentions`.

        Returns:
            The last hidden state, (S, D), or that of wanted tokens alone, (n, D), or all L + 1 hidden states; and the pooled output
            (B, D), None without a pooler.
        """
        embedded = self.embeddings(input_ids, token_type_ids, layout.position_ids)
        has_places = wanted is None or wanted.are_first or not self.weighs_places
        only = wanted if self.may_skip and has_places and not layout.is_causal else None
        hidden_states = self.encoder(embedded, layout, output_hidden_states, attentions, only)
        layout = layout if only is None else only.layout
        pooled = None if self.pooler is None else self.pooler(self.pooler_dropout(hidden_states[-1]), layout)
        if wanted is not None and only is None:
            hidden_states[-1] = hidden_states[-1].index_select(0, wanted.rows)
        return hidden_states, pooled
