"""The hyper-parameters of BERT, by the field's names."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from bertkit.errors import InputError

PRETRAINING_HEADS = ("masked_lm", "next_sentence")
TASK_HEADS = ("sequence", "token", "span", "choice")
MOST_LAYERS = 10_000  # more are a slip of the pen, and would be made for hours
HEADS = (*PRETRAINING_HEADS, *TASK_HEADS)
POOLED_HEADS = ("next_sentence", "sequence", "choice")  # they look at the pooled [CLS]

ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]


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
        problems = [
            f"model.{name}={getattr(self, name)}: expected at least 1"
            for name in (
                "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "type_vocab_size",
            )
            if getattr(self, name) < 1
        ]  # fmt: skip
        if self.num_hidden_layers > MOST_LAYERS:
            problems.append(
                f"model.num_hidden_layers={self.num_hidden_layers}: expected at most {MOST_LAYERS:,}; the deepest "
                "Transformers that were trained have a thousand (Wang et al. 2022, DeepNet)"
            )
        if self.max_position_embeddings < 3:
            problems.append(
                f"model.max_position_embeddings={self.max_position_embeddings}: expected at least 3: [CLS], a token, [SEP]"
            )
        if not problems and self.hidden_size % self.num_attention_heads:
            problems.append(
                f"model.hidden_size={self.hidden_size} is not a multiple of "
                f"model.num_attention_heads={self.num_attention_heads}; change one of them"
            )
        problems += [
            f"model.{name}={getattr(self, name)}: expected a probability from 0 to below 1"
            for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")
            if not 0 <= getattr(self, name) < 1
        ]
        problems += [
            f"model.{name}={getattr(self, name)}: expected a positive number"
            for name in ("initializer_range", "layer_norm_eps")
            if not 0 < getattr(self, name) < math.inf
        ]
        if problems:
            raise InputError(*problems)


@dataclass(frozen=True, kw_only=True)
class BertConfig(BertShape):
    """The encoder together with its vocabulary and, for a task head, its labels.

    Attributes:
        labels: the names of the classes of a sequence or token head, in the order of its logits; one for a regression.
        problem_type: what a sequence head predicts; None to leave it to the number of labels, as Hugging Face does.
        classifier_dropout: dropout before a task head; None for `hidden_dropout_prob`.
    """

    vocab_size: int
    pad_token_id: int = 0
    labels: tuple[str, ...] = ("LABEL_0", "LABEL_1")
    problem_type: ProblemType | None = None
    classifier_dropout: float | None = None

    @property
    def num_weights(self) -> int:
        """The weights of the encoder with its embeddings, without pooler and heads; any number, for nothing is made."""
        hidden, inner = self.hidden_size, self.intermediate_size
        rows = self.vocab_size + self.max_position_embeddings + self.type_vocab_size + 2  # a norm has two
        return rows * hidden + self.num_hidden_layers * (4 * hidden**2 + 2 * hidden * inner + 9 * hidden + inner)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab_size < 1:
            raise InputError(f"vocab_size={self.vocab_size}: expected at least 1")
        if not 0 <= self.pad_token_id < self.vocab_size:
            raise InputError(f"pad_token_id={self.pad_token_id}: expected an id below vocab_size={self.vocab_size}")
        if not self.labels or len(set(self.labels)) != len(self.labels):
            raise InputError(f"labels={list(self.labels)}: expected at least one, each once")
        if self.classifier_dropout is not None and not 0 <= self.classifier_dropout < 1:
            raise InputError(f"classifier_dropout={self.classifier_dropout}: expected a probability from 0 to below 1")


def too_long(what: str, length: int, limit: int, setting: str) -> list[str]:
    """Say that sequences are longer than a model's positions, in a list of one line; an empty list where they are not."""
    if length <= limit:
        return []
    return [f"{what}={length} exceeds the model's max_position_embeddings={limit}; lower {setting}"]
