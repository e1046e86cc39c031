"""What may be put into multi-head attention instead of BERT's own: another score, other positions, another pattern.

Axes: as in attention.py; n blocks of queries with b tokens each, C keys that each block is compared with.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.fast import ANYWHERE
from bertkit.model.config import BertConfig
from bertkit.model.layout import Layout
from bertkit.model.linear import dropout
from bertkit.model.patterns import Blocks, Compression, plan
from bertkit.model.positions import Relative, alibi, rotate
from bertkit.model.scores import Score


class Slots(nn.Module):
    """The slots of one layer, as the group `attention` fills them.

    `dot`, `general` and `rotary` only change queries and keys, so that `attention.attend` and its fast kernels compute the
    rest. All others go through `attend` here, which can give the weights too.
    """

    fast = ANYWHERE

    def __init__(self, config: BertConfig, layer: int = 0, compression: Compression | None = None) -> None:
        super().__init__()
        self.config, self.layer, self.num_heads = config.attention, layer, config.num_attention_heads
        self.score = Score(config)
        self.relative = Relative(config) if self.config.positions == "relative" else None
        self.compression = compression
        is_product = self.score.is_scaled_dot and self.config.positions not in ("relative", "alibi")
        self.are_plain = is_product and self.config.pattern in ("full", "causal")
        self.are_causal = self.config.pattern == "causal"
        self.need_keys = self.config.score != "location"
        self.attend: Callable[..., Tensor] = self.attend_in_blocks  # replaced by `compile_layers`

    def fill(self, query: Tensor, key: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Change queries and keys, each (S, N, H), so that their scaled dot product is the score."""
        query = self.score.fold(query)
        if self.config.positions == "rotary":
            query, key = rotate(query, layout.position_ids), rotate(key, layout.position_ids)
        return query, key

    def attend_in_blocks(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layout: Layout,
        dropout_prob: float = 0.0,
        kept: list[Tensor] | None = None,
    ) -> Tensor:
        """Let every token take the values that its pattern allows, by the softmax of any score.

        Args:
            query: (S, N, H), as `fill` gives it, as are `key` and `value`.
            key: what the queries are compared with.
            value: what is taken.
            layout: where the sequences lie.
            dropout_prob: chance that a weight is dropped.
            kept: takes the weights, (B, N, T, T), T the longest, with zeros in the rows and columns of padding; then nothing
                is cut into blocks.

        Returns:
            The context, (S, N, H).

        Raises:
            ValueError: weights are asked for where keys are compressed, and no tokens.
        """
        if kept is not None and self.compression is not None:
            raise ValueError("output_attentions=True: attention.pattern=linformer has no weights between tokens")
        sizes = [count * length for _, count, length in layout.runs]
        runs = zip(layout.runs, *(torch.split(packed, sizes) for packed in (query, key, value)), strict=True)
        contexts, weights = [], []
        for (_, count, length), *of_run in runs:
            q, k, v = (part.view(count, length, *part.shape[1:]).transpose(1, 2) for part in of_run)  # (B, N, T, H)
            parts = []
            for blocks in self._plan(layout, length, kept is not None):
                if self.compression is None:
                    of_blocks = blocks.of_queries(q), blocks.of_keys(k), blocks.of_keys(v)
                else:
                    of_blocks = q[:, :, None], *(each[:, :, None] for each in self.compression(k, v))
                context, shares = self._mix(*of_blocks, blocks, dropout_prob)  # (B, N, n, b, H), (B, N, n, b, C)
                parts.append(context.flatten(2, 3))
            contexts.append(torch.cat(parts, 2)[:, :, :length].transpose(1, 2).flatten(0, 1))  # (B * T, N, H)
            if kept is not None:
                weights.append(F.pad(shares[:, :, 0], (0, layout.longest - length) * 2))
        if kept is not None:
            kept.append(torch.cat(weights))
        return torch.cat(contexts)

    def _plan(self, layout: Layout, length: int, is_whole: bool) -> list[Blocks]:
        """Give the blocks of a sequence, made once for a batch."""
        key = length, self.layer if self.config.pattern == "bigbird" else 0, is_whole
        if key not in layout.plans:
            layout.plans[key] = plan(self.config, length, self.layer, layout.bounds.device, is_whole)
        found: list[Blocks] = layout.plans[key]
        return found

    def _mix(
        self, query: Tensor, key: Tensor, value: Tensor, blocks: Blocks, dropout_prob: float
    ) -> tuple[Tensor, Tensor]:
        """Queries (B, N, n, b, H) take of the values (B, N, n, C, H): the context, and the weights (B, N, n, b, C)."""
        scores = self.score(query, key, blocks.places)
        if self.relative is not None:
            scores = scores + self.relative.of_scores(query, blocks.distances)
        if self.config.positions == "alibi":
            scores = scores + alibi(blocks.distances, self.num_heads, scores)
        weights = torch.softmax(scores.masked_fill(~blocks.allowed, -torch.inf), -1)
        dropped = dropout(weights, dropout_prob, self.fast) if dropout_prob > 0 else weights
        context = dropped @ value
        if self.relative is not None:
            context = context + self.relative.of_context(dropped, blocks.distances)
        return context, weights
