"""What stands on the encoder: the masked LM and next sentence heads; logits, never losses.

Axes: B sequences, S packed tokens, T tokens per sequence, M masked positions, D hidden_size, V vocab_size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.model.bert import Bert
from bertkit.model.config import HEADS, BertConfig
from bertkit.model.layout import Layout, pad, unpad


class MaskedLMHead(nn.Module):
    """Predict the original token: dense, GELU, LayerNorm, and a decoder tied to the token embeddings.

    Source: google-research/bert run_pretraining.py `get_masked_lm_output`.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor, token_embedding: Tensor) -> Tensor:
        """(M, D) and the embedding matrix (V, D) -> (M, V)."""
        return F.linear(self.norm(F.gelu(self.dense(hidden))), token_embedding, self.bias)


class NextSentenceHead(nn.Module):
    """Tell whether segment B follows A (label 0) or is random (label 1).

    Source: google-research/bert run_pretraining.py `get_next_sentence_output`.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, D) -> (B, 2)."""
        return self.dense(pooled)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class BertOutput:
    """What a forward pass gives; packed from `BertWithHeads`, padded from `PaddedBert`.

    Attributes:
        last_hidden_state: (S, D), or (B, T, D).
        pooled_output: (B, D); None without a pooler.
        logits: by head: "masked_lm" (M, V), or (B, T, V); "next_sentence" (B, 2).
        hidden_states: L + 1 of (S, D), or (B, T, D); None unless asked for.
    """

    last_hidden_state: Tensor
    pooled_output: Tensor | None
    logits: dict[str, Tensor]
    hidden_states: tuple[Tensor, ...] | None = None


class BertWithHeads(nn.Module):
    """BERT with the heads that a run trains, over packed tokens."""

    def __init__(self, config: BertConfig, heads: Sequence[str] = HEADS, with_pooler: bool = True) -> None:
        """Build with some of `HEADS`; the next sentence head needs the pooler."""
        super().__init__()
        assert set(heads) <= set(HEADS), f"unknown heads {heads}"
        assert with_pooler or "next_sentence" not in heads, "the next sentence head needs the pooler"
        self.config = config
        self.bert = Bert(config, with_pooler)
        self.heads = nn.ModuleDict()
        if "masked_lm" in heads:
            self.heads["masked_lm"] = MaskedLMHead(config)
        if "next_sentence" in heads:
            self.heads["next_sentence"] = NextSentenceHead(config)

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        layout: Layout,
        masked_positions: Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> BertOutput:
        """Encode packed tokens and apply every head.

        Args:
            input_ids: (S,).
            token_type_ids: (S,).
            layout: where the sequences lie.
            masked_positions: indices into S that the masked LM head looks at, (M,); None for all of them.
            output_hidden_states: give the output of every layer.
        """
        hidden_states, pooled = self.bert(input_ids, token_type_ids, layout)
        last = hidden_states[-1]
        logits: dict[str, Tensor] = {}
        if "masked_lm" in self.heads:
            looked_at = last if masked_positions is None else last[masked_positions]  # (M, D)
            logits["masked_lm"] = self.heads["masked_lm"](looked_at, self.bert.embeddings.token.weight)
        if "next_sentence" in self.heads:
            logits["next_sentence"] = self.heads["next_sentence"](pooled)
        return BertOutput(last, pooled, logits, tuple(hidden_states) if output_hidden_states else None)


class PaddedBert(nn.Module):
    """The door for padded (B, T) callers: unpads on entry, pads on exit with zeros."""

    def __init__(self, model: BertWithHeads) -> None:
        super().__init__()
        self.model = model

    @property
    def config(self) -> BertConfig:
        """The encoder's hyper-parameters."""
        return self.model.config

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> BertOutput:
        """Encode a padded batch.

        Args:
            input_ids: (B, T).
            attention_mask: 1 for tokens, 0 for padding, (B, T); None when all are tokens.
            token_type_ids: (B, T); None when all are 0.
            output_hidden_states: give the output of every layer.

        Raises:
            ValueError: the sequences are longer than the model's positions, or one has no token.
        """
        num_sequences, num_columns = input_ids.shape
        limit = self.config.max_position_embeddings
        if num_columns > limit:
            raise ValueError(
                f"input_ids: {num_columns} tokens a sequence exceed max_position_embeddings={limit}; truncate them"
            )
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        indices, layout = unpad(mask)
        out = self.model(
            input_ids.reshape(-1)[indices],
            types.reshape(-1)[indices],
            layout,
            output_hidden_states=output_hidden_states,
        )

        def padded(packed: Tensor) -> Tensor:
            return pad(packed, indices, num_sequences, num_columns)

        logits = {name: padded(value) if name == "masked_lm" else value for name, value in out.logits.items()}
        hidden_states = tuple(map(padded, out.hidden_states)) if out.hidden_states is not None else None
        return BertOutput(padded(out.last_hidden_state), out.pooled_output, logits, hidden_states)
