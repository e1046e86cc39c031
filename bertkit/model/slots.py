"""What may be put into multi-head attention instead of BERT's own: another score, other positions, another pattern.

Axes: as in attention.py; n blocks of queries with b tokens each, C keys that each block is compared with.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.kernels.fast import ANYWHERE
from bertkit.kernels.layout import Group, Layout, pad
from bertkit.kernels.linear import dropout
from bertkit.model.bert_config import BertConfig
from bertkit.model.patterns import Blocks, Compression, allowed, most_in_full, plan
from bertkit.model.positions import Relative, alibi, rotate
from bertkit.model.scores import Score


class AttentionVariant(nn.Module):
    """The slots of one layer, as the group `attention` fills them.

    `dot`, `general` and `rotary` only change queries and keys, so that `attention.attend` and its fast kernels compute the
    rest. All others go through `attend` here, which can give the weights too.
    """

    fast = ANYWHERE

    def __init__(self, config: BertConfig, layer: int = 0, shared: Compression | None = None) -> None:
        super().__init__()
        self.config, self.layer, self.num_heads = config.attention, layer, config.num_attention_heads
        self.score = Score(config)
        self.relative = Relative(config) if self.config.positions == "relative" else None
        is_compressed = self.config.pattern == "linformer"
        self.compression = Compression(config) if is_compressed and shared is None else None
        compression = self.compression if shared is None else shared  # shared: the encoder's, and no part of this layer
        self.compress = None if compression is None else compression.forward
        is_product = self.score.is_scaled_dot and self.config.positions not in ("relative", "alibi")
        self.are_plain = is_product and self.config.pattern in ("full", "causal")
        self.are_causal = self.config.pattern == "causal"
        self.need_keys = self.config.score != "location"
        self.attend: Callable[..., Tensor] = self.attend_in_blocks  # replaced by `compile_layers`

    def fill(self, query: Tensor, key: Tensor | None, layout: Layout) -> tuple[Tensor, Tensor]:
        """Change queries and keys, each (S, N, H), so that their scaled dot product is the score; None where none is needed."""
        query = self.score.fold(query)
        if key is None:
            return query, query
        if self.config.positions == "rotary":
            query, key = rotate(query, layout.position_ids), rotate(key, layout.position_ids)
        return query, key

    def attend_in_blocks(
        self, query: Tensor, key: Tensor, value: Tensor, layout: Layout, dropout_prob: float = 0.0
    ) -> Tensor:
        """Let every token take the values that its pattern allows, by the softmax of any score.

        Args:
            query: (S, N, H), as `fill` gives it, as are `key` and `value`.
            key: what the queries are compared with.
            value: what is taken.
            layout: where the sequences lie.
            dropout_prob: chance that a weight is dropped.

        Returns:
            The context, (S, N, H).
        """
        groups = self._groups(layout, query.is_cuda)
        sizes = [group.num_tokens for group, _ in groups]
        of_groups = zip(groups, *(torch.split(packed, sizes) for packed in (query, key, value)), strict=True)
        contexts = []
        for (group, cuts), *packed in of_groups:
            q, k, v = map(group.padded, packed)  # (B, N, T, H)
            parts = []
            for blocks in cuts:
                if self.compress is None:
                    of_blocks = blocks.of_queries(q), blocks.of_keys(k), blocks.of_keys(v)
                else:
                    of_blocks = q[:, :, None], *(each[:, :, None] for each in self.compress(k, v))
                context, _ = self._mix(*of_blocks, blocks, dropout_prob)  # (B, N, n, b, H)
                parts.append(context.flatten(2, 3))
            contexts.append(group.packed(torch.cat(parts, 2)[:, :, : group.length]))
        return torch.cat(contexts)

    def attend_keeping(self, query: Tensor, key: Tensor, value: Tensor, layout: Layout, kept: list[Tensor]) -> Tensor:
        """Attend as above over a padded batch, which gives the weights too: for views, and as a reference.

        `kept` takes each query's shares of the keys, (B, N, T, T), T the longest; in rows and columns of padding they are 0.

        Raises:
            ValueError: keys are compressed, and no tokens.
        """
        if self.compress is not None:
            raise ValueError("output_attentions=True: attention.pattern=linformer has no weights between tokens")
        count, longest = len(layout.bounds) - 1, layout.longest
        q, k, v = (pad(packed, layout.slots, count, longest).transpose(1, 2) for packed in (query, key, value))
        with layout.bounds.device:
            is_token = torch.arange(longest) < layout.bounds.diff()[:, None]  # (B, T)
            seen = [allowed(self.config, length, self.layer).expand(count, -1, -1) for _, count, length in layout.runs]
            padded = [F.pad(each, (0, longest - each.shape[-1]) * 2) for each in seen]
            is_seen = torch.cat(padded) | ~is_token[..., None]  # (B, T, T); the softmax of padding must be a number
            blocks = Blocks(longest, 0, torch.zeros(1, 1, dtype=torch.int64), is_seen[:, None, None])
        context, weights = self._mix(q[:, :, None], k[:, :, None], v[:, :, None], blocks, 0.0)
        kept.append((weights * is_token[:, None, None, :, None])[:, :, 0])
        return context[:, :, 0].transpose(1, 2).flatten(0, 1).index_select(0, layout.slots)

    def _groups(self, layout: Layout, is_cuda: bool) -> list[tuple[Group, list[Blocks]]]:
        """Give what is computed together, with its blocks, made once for a batch.

        A CPU computes each run by itself; on CUDA, where starting a kernel costs more than padding does, all sequences that
        are cut alike are one group.
        """
        key = self.config, self.layer if self.config.pattern == "bigbird" else 0
        if key not in layout.plans:
            groups = layout.groups(self._cut if is_cuda else None)
            layout.plans[key] = [(group, self._plan(group, layout.bounds.device)) for group in groups]
        found: list[tuple[Group, list[Blocks]]] = layout.plans[key]
        return found

    def _cut(self, length: int) -> int:
        """Tell apart lengths whose blocks see one another differently."""
        num_blocks = -(-length // self.config.block_size)
        return num_blocks if self.config.pattern == "bigbird" and num_blocks > most_in_full(self.config) else 0

    def _plan(self, group: Group, device: torch.device) -> list[Blocks]:
        plans = [blocks.on(device) for blocks in plan(self.config, group.length, self.layer)]
        if group.is_token is None or self.compress is not None:  # zeros that are compressed add nothing
            return plans
        return [blocks.without_padding(group.is_token) for blocks in plans]

    def _mix(
        self, query: Tensor, key: Tensor, value: Tensor, blocks: Blocks, dropout_prob: float
    ) -> tuple[Tensor, Tensor]:
        """Queries (B, N, n, b, H) take of the values (B, N, n, C, H): the context, and the weights (B, N, n, b, C)."""
        scores = self.score(query, key, blocks.places)
        if self.relative is not None:
            scores = scores + self.relative.of_scores(query, blocks.distances)
        if self.config.positions == "alibi":
            scores = scores + alibi(blocks.distances, self.num_heads, scores)
        weights = torch.softmax(scores.masked_fill(~blocks.allowed, torch.finfo(scores.dtype).min), -1)
        dropped = dropout(weights, dropout_prob, self.fast) if dropout_prob > 0 else weights
        context = dropped @ value
        if self.relative is not None:
            context = context + self.relative.of_context(dropped, blocks.distances)
        return context, weights
