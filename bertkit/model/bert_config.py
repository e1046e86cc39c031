"""The hyper-parameters of BERT, by the field's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bertkit.base.typed_settings import outside, refuse

PRETRAINING_HEADS = ("masked_lm", "next_sentence")
TASK_HEADS = ("sequence", "token", "span", "choice", "generation")
MAX_INT32 = 2**31 - 1  # of what is counted in attention
HEADS = (*PRETRAINING_HEADS, *TASK_HEADS)
POOLED_HEADS = ("next_sentence", "sequence", "choice")  # they look at the pooled [CLS]

ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]
Pooling = Literal["first", "mean", "feed_forward"]

# options of attention that have no meaning together, and why
CLASHES = (
    ("positions", ("relative", "rotary"), "score", "location", "a location score looks at no key"),
    (
        "positions",
        ("relative", "rotary"),
        "score",
        "additive",
        "these positions are made for products of query and key",
    ),
    ("score", ("location",), "pattern", "linformer", "compressed keys have no places"),
    ("positions", ("relative", "rotary", "alibi"), "pattern", "linformer", "compressed keys have no places"),
)
# settings of attention that one option alone looks at
ONLY_WITH = {
    "additive_size": ("score", "additive"),
    **dict.fromkeys(("max_distance", "relative_to"), ("positions", "relative")),
    "window": ("pattern", "window"),
    **dict.fromkeys(("block_size", "random_blocks", "random_seed"), ("pattern", "bigbird")),
    **dict.fromkeys(("compressed_size", "compression_shared"), ("pattern", "linformer")),
}


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """How tokens look at each other. The values here are BERT's; conf/attention/bert.yaml says what each is, and its source."""

    score: Literal["scaled_dot", "dot", "general", "additive", "location"] = "scaled_dot"
    additive_size: int = 32
    positions: Literal["learned", "sinusoidal", "relative", "rotary", "alibi", "none"] = "learned"
    max_distance: int = 16
    relative_to: tuple[Literal["keys", "values"], ...] = ("keys", "values")
    pattern: Literal["full", "causal", "window", "bigbird", "linformer"] = "full"
    window: int = 64
    block_size: int = 64
    random_blocks: int = 3
    random_seed: int = 0
    compressed_size: int = 128
    compression_shared: Literal["none", "heads", "key_value", "layers"] = "layers"

    def __post_init__(self) -> None:
        names = ("additive_size", "window", "block_size", "compressed_size")
        problems = outside(self, "attention.", **dict.fromkeys(names, f"[1, {MAX_INT32}]"))
        others = ("max_distance", "random_blocks", "random_seed")
        problems += outside(self, "attention.", **dict.fromkeys(others, f"[0, {MAX_INT32}]"))
        problems += [
            f"attention.{one}={getattr(self, one)} with attention.{other}={option}: {why}; change one of them"
            for one, options, other, option, why in CLASHES
            if getattr(self, one) in options and getattr(self, other) == option
        ]
        if not self.relative_to or len(set(self.relative_to)) != len(self.relative_to):
            given = ",".join(self.relative_to)
            problems.append(f"attention.relative_to=[{given}]: expected keys, values or both, each once")
        refuse(problems)

    def without_effect(self, name: str) -> list[str]:
        """Say that a setting does nothing here, in a list of one line; an empty list where it does something."""
        of, option = ONLY_WITH.get(name, ("score", self.score))
        is_used = getattr(self, of) == option
        return [] if is_used else [f"attention.{name}: has no effect without attention.{of}={option}; leave it out"]


@dataclass(frozen=True, kw_only=True)
class NormConfig:
    """Where a layer normalises, and by what; the values here are BERT's, and conf/norm has their sources."""

    placement: Literal["post", "pre"] = "post"
    kind: Literal["layer_norm", "rms"] = "layer_norm"


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """What writes a text from an encoded one; conf/decoder says what each is, and its source."""

    # a BERT with attention to the source, the decoder of Vaswani et al. 2017, or a GRU
    kind: Literal["bert", "transformer", "rnn"]
    norm: Literal["post", "pre"] = "post"  # where the layers of encoder and decoder normalise; of `transformer` alone
    # of a target's state for a source token, or none, where the last state of the source is all; of `rnn` alone
    score: Literal["additive", "dot", "general", "location", "none"] = "additive"
    share: bool = False  # the decoder's layers are the encoder's, but for attention to the source; of `bert` alone

    @property
    def is_from_scratch(self) -> bool:
        """Whether the encoder is made with it, instead of a BERT's that was trained before."""
        return self.kind != "bert"


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(DecoderShape):
    """The decoder together with what its texts begin and end with, [CLS] and [SEP]."""

    start_token_id: int = 2  # of vocabularies that bertkit learns
    end_token_id: int = 3


@dataclass(frozen=True, kw_only=True)
class BertShape:
    """What a configuration file says of the encoder; the vocabulary comes from the tokenizer.

    Source: Devlin et al. 2019, section 3, and google-research/bert modeling.py `BertConfig`.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish"]
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    max_position_embeddings: int
    type_vocab_size: int
    initializer_range: float
    layer_norm_eps: float

    def __post_init__(self) -> None:
        heads = self.num_attention_heads
        refuse(
            outside(
                self, "model.", hidden_size="[1, inf)", num_attention_heads="[1, inf)", intermediate_size="[1, inf)"
            ),
            outside(
                self, "model.", type_vocab_size="[1, inf)", num_hidden_layers="[1, 10000]"
            ),  # deeper ones are slips
            outside(self, "model.", hidden_dropout_prob="[0, 1)", attention_probs_dropout_prob="[0, 1)"),
            outside(self, "model.", initializer_range="(0, inf)", layer_norm_eps="(0, inf)"),
            self.max_position_embeddings < 3
            and f"model.max_position_embeddings={self.max_position_embeddings}: expected at least 3: [CLS], a token, [SEP]",
            heads > 0
            and self.hidden_size % heads
            and f"model.hidden_size={self.hidden_size} is not a multiple of model.num_attention_heads={heads}; change one of them",
        )


@dataclass(frozen=True, kw_only=True)
class BertConfig(BertShape):
    """The encoder together with its vocabulary and, for a task head, its labels."""

    vocab_size: int
    attention: AttentionConfig = AttentionConfig()
    norm: NormConfig = NormConfig()
    pooling: Pooling = "first"
    decoder: DecoderConfig | None = None  # of a generation head
    pad_token_id: int = 0
    # the names of the classes of a sequence or token head, in the order of its logits; one for a regression
    labels: tuple[str, ...] = ("LABEL_0", "LABEL_1")
    # what a sequence head predicts; None to leave it to the number of labels, as Hugging Face does
    problem_type: ProblemType | None = None
    classifier_dropout: float | None = None  # dropout before a task head; None for `hidden_dropout_prob`

    @property
    def variant(self) -> dict[str, Any]:
        """The groups that make this another model than BERT, attention, norm, pooling and the decoder; nothing where none does."""
        attention, bert = asdict(self.attention), asdict(AttentionConfig())
        in_effect = {name for name in attention if not self.attention.without_effect(name)}
        own = self.decoder is not None and self.decoder.is_from_scratch
        is_bert = self.norm == NormConfig() and self.pooling == "first" and not own
        if is_bert and all(attention[name] == bert[name] for name in in_effect):
            return {}
        attention["relative_to"] = list(self.attention.relative_to)  # as JSON has it
        decoder = {} if self.decoder is None else {"decoder": asdict(self.decoder)}
        return {"attention": attention, "norm": asdict(self.norm), "pooling": self.pooling, **decoder}

    @property
    def num_weights(self) -> int:
        """The weights of a BERT's encoder with its embeddings, without pooler and heads; any number, for nothing is made."""
        hidden, inner = self.hidden_size, self.intermediate_size
        places = self.max_position_embeddings if self.attention.positions == "learned" else 0
        rows = self.vocab_size + places + self.type_vocab_size + 2  # a norm has two
        attention, head_size, layers = self.attention, hidden // self.num_attention_heads, self.num_hidden_layers
        variant = {
            "additive": 2 * layers * head_size * attention.additive_size,
            "location": layers * head_size * self.max_position_embeddings,
            "relative": 2 * layers * head_size * attention.max_distance,
            "linformer": attention.compressed_size * self.max_position_embeddings,
        }
        more = sum(variant.get(each, 0) for each in (attention.score, attention.positions, attention.pattern))
        return more + rows * hidden + layers * (4 * hidden**2 + 2 * hidden * inner + 9 * hidden + inner)

    def __post_init__(self) -> None:
        super().__post_init__()
        ids = {"pad_token_id": self.pad_token_id}
        if self.decoder is not None:
            ids |= {f"decoder.{name}": getattr(self.decoder, name) for name in ("start_token_id", "end_token_id")}
        refuse(
            size_problems(self, self.attention),
            self.decoder is not None
            and self.decoder.kind == "rnn"
            and self.hidden_size % 2
            and f"model.hidden_size={self.hidden_size}: decoder=rnn needs an even number, a half for each direction",
            outside(self, "", vocab_size="[1, inf)", classifier_dropout="[0, 1)"),
            [
                f"{name}={number}: expected an id below vocab_size={self.vocab_size}"
                for name, number in ids.items()
                if not 0 <= number < self.vocab_size
            ],
            (not self.labels or len(set(self.labels)) != len(self.labels))
            and f"labels={list(self.labels)}: expected at least one, each once",
        )


def size_problems(shape: BertShape, attention: AttentionConfig) -> list[str]:
    """Say that positions cannot be those of a model's sizes, as pairs of elements of an odd number."""
    sizes = {
        "sinusoidal": ("model.hidden_size", shape.hidden_size),
        "rotary": ("model.hidden_size / model.num_attention_heads", shape.hidden_size // shape.num_attention_heads),
    }
    what, size = sizes.get(attention.positions, ("", 0))
    return [f"{what}={size}: attention.positions={attention.positions} needs an even number"] if size % 2 else []


def head_problems(attention: AttentionConfig, pooling: Pooling, heads: Sequence[str]) -> list[str]:
    """Say that a head looks at a pooled [CLS] which has seen no token but itself."""
    blind = [head for head in heads if head in POOLED_HEADS]
    if not blind or attention.pattern != "causal" or pooling != "first":
        return []
    return [
        f"pooling=first with attention.pattern=causal: [CLS] sees only itself, and the head {blind[0]} would see nothing else; "
        "pretrain with pooling=mean"
    ]


def too_long(what: str, length: int, limit: int, setting: str) -> list[str]:
    """Say that sequences are longer than a model's positions, in a list of one line; an empty list where they are not."""
    if length <= limit:
        return []
    return [f"{what}={length} exceeds the model's max_position_embeddings={limit}; lower {setting}"]
