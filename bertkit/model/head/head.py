"""A `Head`: what stands on the encoder, as a class with all that is known of it but its loss.

    @plugins.option("model_head", "span")
    class SpanHead(Head): ...

A head has a module, whose logits have a shape; a class of `transformers` and names there; a use, which the model card shows; and what a
certificate compares. Its loss is in `objectives/losses.py`. The built-in heads are in built_in.py.

Axes: as in attention.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.base import plugins
from bertkit.kernels.layout import Layout
from bertkit.kernels.linear import ACTIVATIONS, Dropout, Linear, TiedLinear
from bertkit.model.bert import Bert, make_norm
from bertkit.model.bert_config import BertConfig
from bertkit.model.slots import checked_module


class Transform(nn.Module):
    """A linear map, an activation and a norm, with which a masked LM head begins; a task head too, in ModernBERT."""

    def __init__(self, config: BertConfig, size: int) -> None:
        """Make it with outputs of this size, that of the embeddings for a masked LM head."""
        super().__init__()
        has_bias = config.feed_forward.bias if config.head_bias is None else config.head_bias
        self.dense = Linear(config.hidden_size, size, has_bias)
        self.dense.init_scale = config.output_scale
        self.activation = ACTIVATIONS[config.head_act or config.hidden_act]
        self.norm = make_norm(config, size)

    def forward(self, hidden: Tensor) -> Tensor:
        """(n, D) -> (n, size)."""
        return self.norm(self.activation(self.dense(hidden)))  # type: ignore[no-any-return]


class MaskedLMHead(Transform):
    """Score every token of the vocabulary, as the original or the next one: `Transform`, and an output matrix tied to the token embeddings.

    With scaled outputs and BERT's norm, a layer begins by passing on its input, and so does the head if the token that it predicts
    may be shown (`is_shown`). ModernBERT's begins as in transformers.

    Source: google-research/bert run_pretraining.py `get_masked_lm_output`.
    """

    def __init__(self, config: BertConfig, *, is_shown: bool = False) -> None:
        super().__init__(config, config.embedding_width)
        passes_on = config.scale_outputs and config.norm.placement == "post"
        self.dense.begins_as_identity = is_shown and passes_on and config.embedding_width == config.hidden_size
        self.decoder = TiedLinear()
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    @torch.no_grad()
    def begin_with(self, counts: Tensor) -> None:
        """Begin with the frequencies of the tokens in a text, from their `counts`, (V,): it need not learn them."""
        self.bias.copy_((counts + 1).log() - (counts + 1).sum().log())

    def forward(self, hidden: Tensor, token_embedding: Tensor) -> Tensor:  # type: ignore[override]
        """(M, D) and the embedding matrix (V, E) -> (M, V)."""
        return self.decoder(super().forward(hidden), token_embedding, self.bias)  # type: ignore[no-any-return]


class PlainLMHead(nn.Module):
    """Score every token of the vocabulary by one linear map, as in EuroBERT."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.vocab_size, config.feed_forward.bias)

    def forward(self, hidden: Tensor, token_embedding: Tensor) -> Tensor:
        """(M, D) -> (M, V); the token embeddings are not used."""
        return self.dense(hidden)  # type: ignore[no-any-return]


class ReplacedTokenHead(nn.Module):
    """Two linear maps to the logit of each token that it was replaced.

    Source: google-research/electra run_pretraining.py `_get_discriminator_output`.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense, self.score = Linear(config.hidden_size, config.hidden_size), Linear(config.hidden_size, 1)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, hidden: Tensor) -> Tensor:
        """(S, D) -> (S, 1)."""
        return self.score(self.activation(self.dense(hidden)))  # type: ignore[no-any-return]


@plugins.option("head", "linear")
class LinearHead(nn.Module):
    """Dropout and a linear map, for the pooled [CLS] or for every token; with `task_transform` after a `Transform`."""

    is_exported = True

    def __init__(self, config: BertConfig, num_outputs: int) -> None:
        super().__init__()
        self.transform = Transform(config, config.hidden_size) if config.task_transform else nn.Identity()
        self.dropout = Dropout(config.task_dropout)
        self.dense = Linear(config.hidden_size, num_outputs)
        self.dense.init_scale = config.classifier_scale

    def forward(self, hidden: Tensor) -> Tensor:
        """(n, D) -> (n, num_outputs)."""
        return self.dense(self.dropout(self.transform(hidden)))  # type: ignore[no-any-return]

    @torch.no_grad()
    def cool(self, temperature: float) -> None:
        """Divide the logits by a temperature, once and for all: in the weights, so that every format and library has it."""
        for parameter in self.dense.parameters():
            parameter.div_(temperature)


def head_of_task(config: BertConfig, num_outputs: int) -> nn.Module:
    """Make the head `head.kind`; the logits of a plug-in are checked in every forward pass."""
    kind = config.head.kind
    head = plugins.bind("head", kind, config.head.options)(config, num_outputs)
    return checked_module("head", kind, head, lambda vectors: (len(vectors), num_outputs))


@dataclass(frozen=True)
class Targets:
    """Target texts as inputs of a generation head: for each, [CLS] and all its tokens except the last one."""

    input_ids: Tensor  # (S,)
    layout: Layout  # in the order of the sources


@dataclass(frozen=True)
class Encoded:
    """What a head may read."""

    last: Tensor  # the vectors of all tokens, (S, D), or of those that are wanted, (n, D)
    pooled: Tensor | None  # (B, D)
    layout: Layout  # of all tokens
    token_embedding: Tensor  # (V, E)
    masked_positions: Tensor | None  # (M,) of the tokens whose vocabulary is scored; None: all
    targets: Targets | None  # of a decoder
    alignments: list[Tensor] | None  # to which a decoder appends its attention to the source


class Head:
    """A head for classes of a sequence, from its pooled vector."""

    # its shape
    is_pooled: ClassVar[bool] = True  # it reads the pooled output; the other heads read every token
    is_of_vocabulary: ClassVar[bool] = False  # it scores the vocabulary, at masked positions
    labels_tokens: ClassVar[bool] = False  # the examples of its task have a label for every token
    has_dropout: ClassVar[bool] = True  # before its linear map, as in BERT's own code
    num_choices: ClassVar[int] = 1  # sequences of an example, when a certificate compares them
    # its task
    task: ClassVar[str | None] = None  # the kind of the general task for a model with it; None: it is for pretraining
    has_label_names: ClassVar[bool] = False  # its classes are `BertConfig.labels`

    @property
    def is_made_by_option(self) -> bool:
        """Whether `head.kind` chooses its module."""
        return type(self).make is Head.make

    # the model card: what uses it
    auto_class: ClassVar[str]  # of transformers
    hub_task: ClassVar[str]  # the hub's name
    code: ClassVar[str]  # predicts and prints
    # the certificate: whether the gradients are those of the loss; they nearly cancel if it is invariant to a shift of all logits
    compares_loss: ClassVar[bool] = True
    is_compared_by_loss: ClassVar[bool] = True  # False: a certificate compares the logits alone

    def num_outputs(self, config: BertConfig) -> int:
        """Return the number of logits for each vector that it reads."""
        return len(config.labels)

    def make(self, config: BertConfig, encoder: Bert) -> nn.Module:
        """Make the module, with the option `head.kind` for a task; `encoder` is the one below it."""
        return head_of_task(config, self.num_outputs(config))

    def logits(self, module: nn.Module, encoded: Encoded) -> Tensor | None:
        """Return the logits of the module; None if there is nothing to read."""
        logits: Tensor = module(encoded.pooled if self.is_pooled else encoded.last)
        return logits

    def reads_all(self, has_positions: bool) -> bool:
        """Return whether it may read vectors besides those of the first tokens and, if given, those at `masked_positions`.

        A plug-in with its own `logits` may read any.
        """
        return not self.is_pooled or type(self).logits is not Head.logits

    def code_for(self, config: BertConfig) -> str:
        """Return code that predicts and prints, with `model` and `tokenizer` of transformers."""
        return self.code

    def labels(self, ids: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return the labels with which a batch of ids (B, T) is compared.

        All sequences have the same label, the last one. With different labels, the gradients of a pretrained model nearly cancel,
        and mostly rounding errors would be compared.
        """
        return torch.ones(len(ids) // self.num_choices, dtype=torch.long)

    def reference_loss(self, logits: Tensor, labels: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return the mean loss as `transformers` defines it, of padded logits."""
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten())

    def their_labels(self, labels: Tensor) -> dict[str, Tensor]:
        """Return the labels as arguments of the `transformers` class with this head alone."""
        return {"labels": labels}

    def their_logits(self, output: Mapping[str, Tensor]) -> Tensor:
        """Return the logits from the output of this class."""
        return output["logits"]

    def is_their_loss(self, is_token: Tensor) -> bool:
        """Whether `transformers` computes the same loss."""
        return True


def head_of(name: str) -> Head:
    """Return a head by its name."""
    return _made(plugins.get("model_head", name))


@functools.cache
def _made(made: type[Head]) -> Head:
    return made()


def in_order(names: Iterable[str]) -> list[str]:
    """Sort the names of heads: those for pretraining, those of tasks, and the plug-ins."""
    chosen, known = [*names], plugins.built_in("model_head")
    return [name for name in known if name in chosen] + [name for name in chosen if name not in known]


def is_of_task(name: str) -> bool:
    """Whether a head is for a task."""
    return head_of(name).task is not None


def any_pooled(names: Iterable[str]) -> bool:
    """Whether one of some heads reads the pooled output."""
    return any(head_of(name).is_pooled for name in names)
