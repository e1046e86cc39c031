"""The heads on the encoder, for pretraining and for tasks: logits, never losses.

Axes: as in attention.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bertkit.base import plugins
from bertkit.base.errors import InputError
from bertkit.kernels.fast import ANYWHERE, FastWays, keep_freed_memory
from bertkit.kernels.layout import Layout
from bertkit.kernels.linear import ACTIVATIONS, Dropout, Linear, TiedLinear
from bertkit.model.bert import Bert, make_norm
from bertkit.model.bert_config import HEADS, POOLED_HEADS, PRETRAINING_HEADS, TOKEN_HEADS, BertConfig, head_problems
from bertkit.model.decoder import Decoder
from bertkit.model.recurrent.decoder import RecurrentDecoder
from bertkit.model.slots import checked_module


class Transform(nn.Module):
    """A linear map, an activation and a norm, with which a masked LM head begins; a task head too, in ModernBERT."""

    def __init__(self, config: BertConfig, size: int) -> None:
        """Make it with outputs of this size, that of the embeddings for a masked LM head."""
        super().__init__()
        self.dense = Linear(config.hidden_size, size, config.feed_forward.bias)
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


@plugins.option("head", "linear")
class LinearHead(nn.Module):
    """Dropout and a linear map, for the pooled [CLS] or for every token; with `task_transform` after a `Transform`."""

    is_exported = True

    def __init__(self, config: BertConfig, num_outputs: int) -> None:
        super().__init__()
        prob = config.classifier_dropout
        self.transform = Transform(config, config.hidden_size) if config.task_transform else nn.Identity()
        self.dropout = Dropout(config.hidden_dropout_prob if prob is None else prob)
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


def make_head(name: str, config: BertConfig, encoder: Bert) -> nn.Module:
    """Build one of `HEADS`.

        masked_lm       the original token at each masked position
        next_token      the token after each position
        next_sentence   whether segment B follows A (0) or not (1: B is random, or the segments are swapped)
        sequence        the class or the score of a text or a pair
        token           the label of every token
        span            the start and the end of an answer
        choice          the score of one of several endings
        generation      a new text

    A plug-in's head for sequence, token, span or choice is `head(config, num_outputs)`: (n, D) -> (n, num_outputs).

    Source: google-research/bert run_pretraining.py `get_next_sentence_output`, run_classifier.py and run_squad.py
    `create_model`; Devlin et al. 2019, figure 4 and section 4.4; for dropout transformers modeling_bert.py.
    """
    dropped = {"next_sentence": 0.0, "span": 0.0, **config.head_dropout_probs}.get(name, config.classifier_dropout)
    config = replace(config, classifier_dropout=dropped)
    match name:
        case "masked_lm" | "next_token":
            return MaskedLMHead(config, is_shown=name == "masked_lm")
        case "next_sentence":
            return LinearHead(config, 2)
        case "sequence" | "token" | "span" | "choice":
            num_outputs = {"span": 2, "choice": 1}.get(name, len(config.labels))
            return _head_of_task(config, num_outputs)
        case "generation" if config.decoder is not None:
            if config.decoder.kind == "rnn":
                return RecurrentDecoder(config)
            return Decoder(config, encoder, MaskedLMHead(config) if config.decoder.kind == "bert" else None)
    raise AssertionError(f"unknown head {name}")


def _head_of_task(config: BertConfig, num_outputs: int) -> nn.Module:
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
class BertOutput:
    """The output of a forward pass, packed from `BertWithHeads`, padded from `interop.padded`.

    The logits are by head: "masked_lm" and "next_token" (M, V), or (B, T, V); "next_sentence" (B, 2); "sequence" (B, C); "token" (S, C), or
    (B, T, C); "span" (S, 2), or (B, T, 2); "choice" (B, 1), or (questions, choices); "generation" (S, V), or (B, T, V), for
    targets. The last three attributes are None unless requested.
    """

    last_hidden_state: Tensor  # (S, D), or (B, T, D)
    pooled_output: Tensor | None  # (B, D); None without a pooler
    logits: dict[str, Tensor]
    hidden_states: tuple[Tensor, ...] | None = None  # L + 1 times (S, D), or (B, T, D)
    # L times (B, N, T, T), the weight of each key (last axis) for each query, with zeros in padding
    attentions: tuple[Tensor, ...] | None = None
    # for every layer with attention to the source, the weight of each source token for each target token, (B, N, T, C)
    alignments: tuple[Tensor, ...] | None = None


class BertWithHeads(nn.Module):
    """BERT with the heads that a run trains, over packed tokens."""

    fast = ANYWHERE
    records_passes = False  # set by `recorded.record_passes`

    def __init__(self, config: BertConfig, heads: Sequence[str] = PRETRAINING_HEADS, with_pooler: bool = True) -> None:
        """Build the encoder and some of `HEADS`; a head in `POOLED_HEADS` needs the pooler.

        Raises:
            InputError: a head needs the pooled [CLS], but with causal attention [CLS] attends only to itself.
        """
        super().__init__()
        problems = head_problems(config.attention, config.pooling, heads)
        if problems:
            raise InputError(*problems)
        assert with_pooler or not set(heads) & set(POOLED_HEADS), f"{heads} need the pooler"
        self.config = config
        dropped = [config.pooler_dropout_probs.get(head, 0.0) for head in heads]
        self.bert = Bert(config, with_pooler, max(dropped, default=0.0))
        self.heads = nn.ModuleDict({name: make_head(name, config, self.bert) for name in HEADS if name in heads})
        assert len(self.heads) == len(heads), f"unknown heads among {heads}"

    def use(self, fast: FastWays) -> None:
        """Set the fast kernels of all modules; `kept_memory` affects the whole process."""
        if fast.kept_memory:
            keep_freed_memory()
        for module in self.modules():
            module.fast = fast  # type: ignore[assignment]

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        layout: Layout,
        masked_positions: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        targets: Targets | None = None,
        only_pooled: bool = False,
    ) -> BertOutput:
        """Encode packed tokens (S,) and apply every head, the generation head only if there are targets.

        `masked_positions` (M,) are indices into S for the masked LM or next token head; None for all tokens. In attention weights T is the
        longest sequence. `only_pooled` says that only heads in `POOLED_HEADS` are of interest: the last layer may skip what the
        pooler does not read, and `last_hidden_state` is then (B, D).

        Raises:
            ValueError: attention weights are requested in training mode.
        """
        if output_attentions and self.training:
            raise ValueError("output_attentions=True: weights are computed without dropout; call model.eval() first")
        attentions: list[Tensor] | None = [] if output_attentions else None
        alignments: list[Tensor] | None = [] if output_attentions and targets is not None else None
        hidden_states, pooled = self.bert(
            input_ids, token_type_ids, layout, output_hidden_states, attentions, only_pooled
        )
        last = hidden_states[-1]
        logits: dict[str, Tensor] = {}
        for name, head in self.heads.items():
            if name in TOKEN_HEADS:
                hidden = last if masked_positions is None else last[masked_positions]  # (M, D)
                logits[name] = head(hidden, self.bert.embeddings.token.weight)
            elif name == "generation":
                if targets is not None:
                    logits[name] = head(targets.input_ids, targets.layout, last, layout, alignments)
            else:
                logits[name] = head(pooled if name in POOLED_HEADS else last)
        layers = hidden_states if output_hidden_states else None
        by_layer = (None if tensors is None else tuple(tensors) for tensors in (layers, attentions, alignments))
        return BertOutput(last, pooled, logits, *by_layer)


class Accompanied(nn.Module):
    """A model with what an objective trains beside it, such as a generator or a projection, which is no part of the model."""

    def __init__(self, model: BertWithHeads, objective: nn.Module) -> None:
        super().__init__()
        self.module, self.objective = model, objective

    def use(self, fast: FastWays) -> None:
        """Set the fast kernels of all modules."""
        self.module.use(fast)
        for module in self.objective.modules():
            module.fast = fast  # type: ignore[assignment]

    def forward(self, *inputs: Any, **more: Any) -> BertOutput:
        """Run the model."""
        return self.module(*inputs, **more)  # type: ignore[no-any-return]


Trained = BertWithHeads | Accompanied


def own_name(name: str) -> str:
    """Return the name that a parameter of `Trained` has in the model, or, beside it, in the objective: `objective.NAME`."""
    return name.removeprefix("module.")


def bare(model: Any) -> BertWithHeads:
    """Return a model without what data-parallel training, or an objective, puts around it."""
    while (inner := getattr(model, "module", None)) is not None:
        model = inner
    return model  # type: ignore[no-any-return]
