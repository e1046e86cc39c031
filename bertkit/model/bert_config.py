"""The hyper-parameters of BERT and of its variants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from bertkit.base import plugins
from bertkit.base.annotations import OptionOf
from bertkit.base.intervals import MAX_INT32, Count, Interval, Positive, ShareBelow1, Size
from bertkit.base.typed_settings import IF_SET, not_default, options_of, refuse, to_mapping, unused
from bertkit.model.attention_config import AttentionConfig

PRETRAINING_HEADS = ("masked_lm", "next_sentence")
FOLLOWS = ("follows", "does not follow")  # the labels of next sentence prediction
READING_FIRST = ("first", "cls")  # the poolings that read the first token of each sequence alone

Activation = Literal[
    "gelu", "gelu_new", "gelu_pytorch_tanh", "leaky_relu", "mish", "quick_gelu", "relu", "relu2", "relu6", "sigmoid", "silu", "swish", "tanh"
]  # fmt: skip
# the model type of `config.json` under which a model is written, where several have the same layers
Family = Annotated[str, OptionOf("architecture")]
ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]
Pooling = Annotated[str, OptionOf("pooler")]
LOCAL_SCORES = ("local_m", "local_p")
# the settings of a `BertConfig` in which a variant differs from a standard BERT, in the order of messages
OWN_SETTINGS = (
    "decoder", "feed_forward", "head", "head_act", "head_bias", "embedding_dropout_prob", "task_transform", "family", "pooler_dropout_probs",
    "head_dropout_probs", "skips_padding", "layer_dropout_probs", "pooler_act", "projects_first", "convolution", "task_type_vocab_size",
    "plain_lm_head", "embedding_size", "shared_layers", "encoder", "type_vocab_size", "norm", "pooling", "attention",
)  # fmt: skip


def head_problems(attention: AttentionConfig, pooling: Pooling, pooled: Sequence[str]) -> list[str]:
    """Return an error line if a head that is pooled gets a [CLS] that attends only to itself."""
    if not pooled or attention.pattern != "causal" or pooling not in READING_FIRST:
        return []
    return [
        f"pooling={pooling} with attention.pattern=causal: [CLS] attends only to itself, and the head {pooled[0]} uses only [CLS]; "
        "pretrain with pooling=mean, or in config.json set is_decoder to false if the model was trained without it"
    ]


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The head of a task: dropout and a linear map, as in BERT, or a plug-in's."""

    kind: Annotated[str, OptionOf("head")] = "linear"
    options: dict[str, object] = field(default_factory=dict, hash=False, metadata=options_of("head", "kind"))

    @property
    def is_exported(self) -> bool:
        """Whether it computes, in evaluation, what the heads of `transformers` do, with a linear map called `dense`."""
        return self.kind == "linear" or getattr(plugins.find("head", self.kind), "is_exported", False)


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig:
    """The part of a layer after attention: two linear maps, as in BERT, a gated one, or a plug-in's."""

    kind: Annotated[str, OptionOf("feed_forward")] = "mlp"
    bias: bool = field(default=True, metadata=IF_SET)
    output_bias: bool | None = field(default=None, metadata=IF_SET)  # of the last map; None for `bias`
    options: dict[str, object] = field(default_factory=dict, hash=False, metadata=options_of("feed_forward", "kind"))


@dataclass(frozen=True, kw_only=True)
class NormConfig:
    """The norms of a layer; the defaults are those of BERT, and conf/norm has the sources."""

    placement: Literal["post", "pre"] = "post"
    kind: Annotated[str, OptionOf("norm")] = "layer_norm"
    bias: bool = field(default=True, metadata=IF_SET)  # of a layer norm
    before_first: bool = field(default=True, metadata=IF_SET)  # with `pre`: whether the first attention has one, too
    of_embeddings: bool = field(default=True, metadata=IF_SET)  # whether the embeddings have one

    def __post_init__(self) -> None:
        refuse(
            not self.before_first
            and self.placement == "post"
            and "norm.before_first=false: has no effect without norm=pre; leave it out",
            not self.bias
            and self.kind != "layer_norm"
            and f"norm.bias=false: has no effect with norm.kind={self.kind}; leave it out",
        )


@dataclass(frozen=True, kw_only=True)
class ConvolutionConfig:
    """A convolution beside the first layer, as in the large models of DeBERTa v2."""

    kernel_size: Size
    groups: Size = 1
    act: Activation = "tanh"

    def __post_init__(self) -> None:
        refuse(self.kernel_size % 2 == 0 and f"convolution.kernel_size={self.kernel_size}: expected an odd number")


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """The decoder that generates a text from an encoded one; conf/decoder explains each setting, with its source."""

    # a BERT with cross-attention, the decoder of Vaswani et al. 2017, or recurrent layers
    kind: Literal["bert", "transformer", "rnn"]
    norm: Literal["post", "pre"] = "post"  # for `transformer`: the place of the norms in encoder and decoder
    # for `rnn`: the score of a source token for a decoder state; none: no attention, only the encoder's final states
    score: Literal["additive", "dot", "general", "location", "local_m", "local_p", "none"] = "additive"
    window: Size = field(default=10, metadata=IF_SET)
    input_feeding: bool = field(default=False, metadata=IF_SET)
    num_layers: Annotated[int, Interval(1, 10_000)] = field(default=1, metadata=IF_SET)
    cell: Annotated[str, OptionOf("cell")] = field(default="gru", metadata=IF_SET)
    reset_gate: Literal["after", "before"] = field(default="after", metadata=IF_SET)
    bidirectional: bool = field(default=True, metadata=IF_SET)
    reverse_source: bool = field(default=False, metadata=IF_SET)
    share: bool = False  # for `bert`: decoder and encoder share all weights except those of cross-attention

    def __post_init__(self) -> None:
        refuse(
            unused(
                self,
                "decoder.",
                ("reset_gate", self.cell == "lstm", "with decoder.cell=lstm", "after"),
                ("window", self.score not in LOCAL_SCORES, f"with decoder.score={self.score}", 10),
                ("input_feeding", self.score in ("none", "additive"), f"with decoder.score={self.score}"),
            )
        )

    @property
    def is_from_scratch(self) -> bool:
        """Whether the encoder is also trained from scratch, instead of a pretrained BERT."""
        return self.kind != "bert"


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(DecoderShape):
    """The decoder with the ids of the tokens that start and end its texts, [CLS] and [SEP]."""

    start_token_id: Count = 2  # the ids in vocabularies that bertkit learns
    end_token_id: Count = 3


@dataclass(frozen=True, kw_only=True)
class BertShape:
    """The settings `model.*` of the encoder; the vocabulary comes from the tokenizer.

    Source: Devlin et al. 2019, section 3, and google-research/bert modeling.py `BertConfig`.
    """

    hidden_size: Size
    num_hidden_layers: Annotated[int, Interval(1, 10_000)]  # a larger value is surely a typing error
    num_attention_heads: Size
    intermediate_size: Size
    hidden_act: Activation
    hidden_dropout_prob: ShareBelow1
    attention_probs_dropout_prob: ShareBelow1
    max_position_embeddings: Annotated[int, Interval(3, MAX_INT32)]  # [CLS], a token, [SEP]
    type_vocab_size: Count  # 0: no segment embeddings
    initializer_range: Positive
    layer_norm_eps: Positive
    # whether the initial output matrices of the layers are divided by sqrt(2 L); a BERT's masked LM head begins as the identity then
    scale_outputs: bool = field(default=False, metadata=IF_SET)
    # whether the biases of the masked LM's output begin as the logarithms of the tokens' frequencies in the training text
    frequency_biases: bool = field(default=False, metadata=IF_SET)
    task_transform: bool = field(default=False, metadata=IF_SET)  # task heads begin as a masked LM head does
    family: Family | None = field(default=None, metadata=IF_SET)
    # the size of the embeddings, which a linear map turns into `hidden_size`; None: the same, without a map
    embedding_size: Size | None = field(default=None, metadata=IF_SET)
    shared_layers: bool = field(default=False, metadata=IF_SET)  # all layers have the same weights
    encoder: Annotated[str, OptionOf("encoder")] = field(default="transformer", metadata=IF_SET)

    def __post_init__(self) -> None:
        size, heads = self.hidden_size, self.num_attention_heads
        of_family = self.family is None or hasattr(plugins.find("architecture", self.family), "family")
        refuse(
            not of_family and f"model.family={self.family}: its models need no family; leave it out",
            size % heads > 0
            and f"model.hidden_size={size} is not a multiple of model.num_attention_heads={heads}; change one of them",
        )

    @property
    def embedding_width(self) -> int:
        """The size of the embeddings."""
        return self.embedding_size or self.hidden_size

    @property
    def head_size(self) -> int:
        """H, the size of the vectors of a head."""
        return self.hidden_size // self.num_attention_heads

    def too_long(self, name: str, length: int, setting: str) -> list[str]:
        """Return an error line if sequences are longer than the model's positions."""
        limit = self.max_position_embeddings
        if length <= limit:
            return []
        return [f"{name}={length} exceeds the model's max_position_embeddings={limit}; lower {setting}"]

    def size_problems(self, attention: AttentionConfig) -> list[str]:
        """Return error lines if positions need an even size and it is odd, or heads cannot share keys evenly."""
        sizes = {
            "sinusoidal": (
                "model.embedding_size" if self.embedding_size else "model.hidden_size",
                self.embedding_width,
            ),
            "rotary": ("model.hidden_size / model.num_attention_heads", self.head_size),
        }
        name, size = sizes.get(attention.positions, ("", 0))
        heads, of_keys = self.num_attention_heads, attention.key_value_heads or self.num_attention_heads
        odd = f"{name}={size}: attention.positions={attention.positions} needs an even number"
        uneven = f"attention.key_value_heads={of_keys}: expected a divisor of model.num_attention_heads={heads}"
        return ([odd] if size % 2 else []) + ([uneven] if heads % of_keys else [])


@dataclass(frozen=True, kw_only=True)
class BertConfig(BertShape):
    """The encoder with its vocabulary and, for a task head, its labels."""

    vocab_size: Size
    attention: AttentionConfig = field(default=AttentionConfig())
    norm: NormConfig = NormConfig()
    feed_forward: FeedForwardConfig = field(default=FeedForwardConfig(), metadata=IF_SET)
    pooling: Pooling = "first"
    head: HeadConfig = HeadConfig()
    decoder: DecoderConfig | None = None  # for a generation head
    pad_token_id: Count = 0
    eos_token_id: Count | None = None  # for a next token head: ends a text, [SEP]
    # the names of the classes of a sequence or token head, in the order of its logits; a regression has one
    labels: tuple[str, ...] = ("LABEL_0", "LABEL_1")
    # the task of a sequence head; None: a regression if there is one label, else a single-label classification
    problem_type: ProblemType | None = None
    score_activation: Literal["sigmoid"] | None = (
        None  # from the logit of a regression to its number, as in a cross-encoder
    )
    classifier_dropout: ShareBelow1 | None = None  # dropout before a task head; None for `hidden_dropout_prob`
    embedding_dropout_prob: ShareBelow1 | None = None  # dropout of the embeddings; None for `hidden_dropout_prob`
    # of the transform with which heads begin; None for `hidden_act` and `feed_forward.bias`
    head_act: Activation | None = None
    head_bias: bool | None = field(default=None, metadata=IF_SET)
    # by head: dropout before the pooler, and before the head's last map where it is not `classifier_dropout`
    pooler_dropout_probs: dict[str, ShareBelow1] = field(default_factory=dict, hash=False, metadata=IF_SET)
    head_dropout_probs: dict[str, ShareBelow1] = field(default_factory=dict, hash=False, metadata=IF_SET)
    # whether padding, before or in a text, has no position and does not shift those of other tokens, as in RoBERTa
    skips_padding: bool = field(default=False, metadata=IF_SET)
    # by place: dropout of what a layer adds to its input, where it is not `hidden_dropout_prob`, by `attention` and `feed_forward`;
    # dropout of the `intermediate` vectors, before the last map of `feed_forward`, where there is any
    layer_dropout_probs: dict[str, ShareBelow1] = field(default_factory=dict, hash=False, metadata=IF_SET)
    pooler_act: Activation = field(default="tanh", metadata=IF_SET)
    projects_first: bool = field(default=False, metadata=IF_SET)  # the map from `embedding_size` comes before the norm
    convolution: ConvolutionConfig | None = field(default=None, metadata=IF_SET)
    task_type_vocab_size: Count = field(default=0, metadata=IF_SET)  # rows of ERNIE's task embeddings; 0: it has none
    # whether the masked LM head is one linear map, with a matrix of its own
    plain_lm_head: bool = field(default=False, metadata=IF_SET)
    # whether the masked LM head predicts a masked token one place before it, as in GPT-BERT (Charpentier and Samuel 2024, section 2.1)
    masked_next_token: bool = field(default=False, metadata=IF_SET)

    @property
    def embedding_dropout(self) -> float:
        """The dropout of the embeddings."""
        return self.hidden_dropout_prob if self.embedding_dropout_prob is None else self.embedding_dropout_prob

    @property
    def task_dropout(self) -> float:
        """The dropout before a task head."""
        return self.hidden_dropout_prob if self.classifier_dropout is None else self.classifier_dropout

    @property
    def output_scale(self) -> float:
        """The factor of the initial standard deviation of the matrices whose outputs are added to the residual (Shoeybi et al. 2019)."""
        return float((2 * self.num_hidden_layers) ** -0.5) if self.scale_outputs else 1.0

    @property
    def classifier_scale(self) -> float:
        """The factor of the initial standard deviation of a task head's last matrix: 1 / sqrt(hidden_size) after a transform, as in ModernBERT."""
        return float(self.hidden_size**-0.5 / self.initializer_range) if self.task_transform else 1.0

    @property
    def variant(self) -> dict[str, object]:
        """The settings of the parts of a model that is not a standard BERT; empty for a BERT."""
        mapping, bert, differing = to_mapping(self), to_mapping(AttentionConfig()), not_default(self)
        changed = {name: name in differing for name in OWN_SETTINGS} | {
            "decoder": self.decoder is not None and self.decoder.is_from_scratch,
            # with `task_transform`, a linear map alone is not what `transformers` computes
            "head": not self.head.is_exported or (self.task_transform and self.head.kind != "linear"),
            "type_vocab_size": self.type_vocab_size == 0,
            "attention": any(
                value != bert.get(name) and not self.attention.without_effect(name)
                for name, value in mapping["attention"].items()
            ),
        }
        if not any(changed.values()):
            return {}
        always = {"attention", "norm", "pooling"} | ({"decoder"} if self.decoder else set())
        return {name: mapping[name] for name, is_changed in changed.items() if is_changed or name in always}

    def __post_init__(self) -> None:
        super().__post_init__()
        size, limit, labels, decoder = self.hidden_size, self.vocab_size, self.labels, self.decoder
        ids = {"pad_token_id": self.pad_token_id, "eos_token_id": self.eos_token_id or 0}
        if decoder is not None:
            ids |= {"decoder.start_token_id": decoder.start_token_id, "decoder.end_token_id": decoder.end_token_id}
        groups = self.convolution.groups if self.convolution else 1
        refuse(
            self.size_problems(self.attention),
            size % groups > 0 and f"convolution.groups={groups}: hidden_size={size} is not a multiple of it",
            self.convolution is not None
            and self.shared_layers
            and "convolution with shared_layers=true: it is beside the first layer, and all layers are one; leave one out",
            decoder is not None
            and decoder.kind == "rnn"
            and size % 2 > 0
            and f"model.hidden_size={size}: decoder=rnn needs an even number",
            decoder is not None
            and decoder.is_from_scratch
            and [
                f"model.{name}={vars(self)[name]}: not with decoder={decoder.kind}, which trains another encoder; leave it out"
                for name in ("embedding_size", "shared_layers", "family", "encoder")
                if vars(self)[name] and vars(self)[name] != "transformer"
            ],
            *(f"{name}={id_}: expected an id below vocab_size={limit}" for name, id_ in ids.items() if id_ >= limit),
            (not labels or len(set(labels)) != len(labels))
            and f"labels={list(labels)}: expected at least one, without repeats",
        )


def problem_type_of(config: BertConfig) -> ProblemType:
    """The problem type of a sequence head; without a configured one, it follows from the number of labels."""
    return config.problem_type or ("regression" if len(config.labels) == 1 else "single_label_classification")
