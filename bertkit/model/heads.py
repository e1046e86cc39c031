"""The heads on the encoder, for pretraining and for tasks: logits, never losses.

Axes: as in attention.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bertkit.base.errors import InputError
from bertkit.kernels.fast import ANYWHERE, FastWays, keep_freed_memory
from bertkit.kernels.layout import Layout, Wanted
from bertkit.model.bert import Bert
from bertkit.model.bert_config import PRETRAINING_HEADS, BertConfig, head_problems
from bertkit.model.head.head import Encoded, Targets, head_of, in_order


@dataclass(frozen=True)
class BertOutput:
    """The output of a forward pass, packed from `BertWithHeads`, padded from `interop.padded`.

    The logits are by head: "masked_lm" and "next_token" (M, V), or (B, T, V); "next_sentence" (B, 2); "replaced_token" (S, 1), or (B, T, 1);
    "sequence" (B, C); "token" (S, C), or (B, T, C); "span" (S, 2), or (B, T, 2); "choice" (B, 1), or (questions, choices); "generation"
    (S, V), or (B, T, V), for targets. The last three attributes are None unless requested.
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
    source: Path | None = None  # the directory that it was loaded from
    tokenizer: object = None  # for which a model from Python was made

    def __init__(self, config: BertConfig, heads: Sequence[str] = PRETRAINING_HEADS, with_pooler: bool = True) -> None:
        """Build the encoder and some heads; one that is pooled needs the pooler.

        Raises:
            InputError: a head needs the pooled [CLS], but with causal attention [CLS] attends only to itself.
        """
        super().__init__()
        self.kinds = {name: head_of(name) for name in in_order(heads)}
        pooled = [name for name, head in self.kinds.items() if head.is_pooled]
        problems = head_problems(config.attention, config.pooling, pooled)
        if problems:
            raise InputError(*problems)
        assert with_pooler or not pooled, f"{pooled} need the pooler"
        self.config = config
        dropped = [config.pooler_dropout_probs.get(head, 0.0) for head in heads]
        self.bert = Bert(config, with_pooler, max(dropped, default=0.0))
        self.heads = nn.ModuleDict({name: self._make_head(name) for name in self.kinds})

    def _make_head(self, name: str) -> nn.Module:
        head, config = self.kinds[name], self.config
        prob = config.head_dropout_probs.get(name, config.classifier_dropout if head.has_dropout else 0.0)
        return head.make(replace(config, classifier_dropout=prob), self.bert)

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
        wanted: Wanted | None = None,
    ) -> BertOutput:
        """Encode packed tokens (S,) and apply every head, the generation head only if there are targets.

        `masked_positions` (M,) are rows of the last hidden state for the masked LM or next token head; None for all. In attention weights T
        is the longest sequence. With `wanted` tokens, n of the S, the last hidden state has theirs alone, (n, D), and the last layer
        may skip the others.

        Raises:
            ValueError: attention weights are requested in training mode.
        """
        if output_attentions and self.training:
            raise ValueError("output_attentions=True: weights are computed without dropout; call model.eval() first")
        attentions: list[Tensor] | None = [] if output_attentions else None
        alignments: list[Tensor] | None = [] if output_attentions and targets is not None else None
        hidden_states, pooled = self.bert(input_ids, token_type_ids, layout, output_hidden_states, attentions, wanted)
        last, embedding = hidden_states[-1], self.bert.embeddings.token.weight
        encoded = Encoded(last, pooled, layout, embedding, masked_positions, targets, alignments)
        found = {name: self.kinds[name].logits(module, encoded) for name, module in self.heads.items()}
        logits = {name: rows for name, rows in found.items() if rows is not None}
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


def num_parameters(parameters: Iterable[Tensor]) -> int:
    """Return how many numbers some parameters hold."""
    return sum(parameter.numel() for parameter in parameters)


def own_name(name: str) -> str:
    """Return the name that a parameter of `Trained` has in the model, or, beside it, in the objective: `objective.NAME`."""
    return name.removeprefix("module.")


def bare(model: Any) -> BertWithHeads:
    """Return a model without what data-parallel training, or an objective, puts around it."""
    while (inner := getattr(model, "module", None)) is not None:
        model = inner
    return model  # type: ignore[no-any-return]
