"""Variants of multi-head attention: scores, positions and compressed keys that BERT does not have.

Axes: as in attention.py; C keys for each query.
"""

from dataclasses import replace

from torch import Tensor, nn

from bertkit.model.bert_config import BertConfig
from bertkit.model.geometry import Geometry, Group
from bertkit.model.patterns import Compression
from bertkit.model.positions import Relative, alibi, make_positions, rotate
from bertkit.model.scores import Score


class AttentionVariant(nn.Module):
    """The score, the positions and the compression of one layer, chosen by the settings `attention.*`.

    `dot`, `general` and `rotary` only change queries and keys before attention, so that fast kernels compute the rest. Other
    scores and positions replace two steps of attention: `scores` and `context`.
    """

    def __init__(self, config: BertConfig, shared: Compression | None = None) -> None:
        super().__init__()
        self.positions, self.num_heads = config.attention.positions, config.num_attention_heads
        self.score = Score(config)
        self.relative = Relative(config) if self.positions == "relative" else None
        is_compressed = config.attention.pattern == "linformer"
        self.compression = Compression(config) if is_compressed and shared is None else None
        compression = self.compression if shared is None else shared  # a shared one is a parameter of the encoder only
        self.linformer = None if compression is None else compression.forward
        self.need_keys = config.attention.score != "location"
        self.plugin = make_positions(config)
        self.has_scores = not self.score.is_scaled_dot or self.positions in ("relative", "alibi")
        self.has_scores |= hasattr(self.plugin, "scores")

    def transform(self, query: Tensor, key: Tensor | None, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Change queries and keys (S, N, H) so that their scaled dot product is the score; without keys, return queries twice."""
        query = self.score.fold(query)
        if key is None:
            return query, query
        if self.positions == "rotary":
            query, key = rotate(query, position_ids), rotate(key, position_ids)
        if hasattr(self.plugin, "rotate"):
            query, key = (self.plugin.rotate(vectors, position_ids) for vectors in (query, key))
        return query, key

    def compress(self, key: Tensor, value: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor, Geometry]:
        """Compress keys and values, each (S, N, H), to (B * K, N, H) if the pattern is `linformer`.

        Raises:
            ValueError: weights between tokens are requested, but compressed keys are no tokens.
        """
        if self.linformer is None:
            return key, value, geometry
        if geometry.is_whole:
            raise ValueError("output_attentions=True: attention.pattern=linformer has no weights between tokens")
        key, value, keys = self.linformer(key, value, geometry.queries)
        return key, value, replace(geometry, keys=keys)

    def scores(self, query: Tensor, key: Tensor, group: Group) -> Tensor:
        """Scores of queries (B, N, T, H), after `transform`, for keys (B, N, C, H): (B, N, T, C)."""
        scores = self.score(query, key, group.key_positions)
        if self.relative is not None:
            scores = scores + self.relative.of_scores(query, group.distances)
        if self.positions == "alibi":
            scores = scores + alibi(group.distances, self.num_heads, scores)
        if hasattr(self.plugin, "scores"):
            scores = scores + self.plugin.scores(query, group.distances)
        return scores  # type: ignore[no-any-return]

    def context(self, weights: Tensor, value: Tensor, group: Group) -> Tensor:
        """Sum the values (B, N, C, H) by their weights (B, N, T, C): (B, N, T, H)."""
        context = weights @ value
        return context if self.relative is None else context + self.relative.of_context(weights, group.distances)
