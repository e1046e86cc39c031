"""A learned vector for each distance, of the size of the hidden states: disentangled positions, as in DeBERTa.

Axes: as in attention.py; C keys for each query, R rows of the table.
"""

import functools
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from bertkit.base import plugins
from bertkit.base.intervals import Count
from bertkit.kernels.layout import Group, on_device
from bertkit.kernels.linear import Dropout, Linear
from bertkit.model.bert_config import BertConfig
from bertkit.model.distances.tables import DistanceTable, distance_rows, products_with_rows
from bertkit.model.slots import Positions


@plugins.option("positions", "disentangled")
class Disentangled(Positions):
    """A vector for each distance, of the size of the hidden states, compared with queries (c2p) and with keys (p2c).

        e_ij = (q_i k_j + q_i K r_ij + k_j Q r_ij) / sqrt(3 H),  r_ij = the vector of i - j

    K and Q are the maps to keys and queries, the layer's or others for distances alone; with one of the two terms the
    scale is sqrt(2 H). All layers of an encoder share the vectors.

    Source: He et al. 2020, equations 2 and 4; with LayerNorm and shared maps as in transformers modeling_deberta_v2.py. The paper has
    Q r_ji, transformers Q r_ij.
    """

    module_name = "disentangled"

    def __init__(
        self,
        config: BertConfig,
        *,
        max_distance: Count = 16,
        distance_buckets: Count = 0,
        distance_terms: tuple[Literal["c2p", "p2c"], ...] = ("c2p", "p2c"),
        distance_maps: Literal["shared", "own"] = "shared",
        distance_norm: bool = False,
    ) -> None:
        super().__init__()
        self.max_distance, self.num_buckets, self.terms_of = max_distance, distance_buckets, distance_terms
        self.num_rows = 2 * (distance_buckets or max_distance)
        self.num_heads = config.num_attention_heads
        self.scale: float = (1 + len(distance_terms)) ** -0.5
        size = config.hidden_size
        norm = functools.partial(nn.LayerNorm, eps=config.layer_norm_eps) if distance_norm else nn.Identity
        self.make_table = functools.partial(DistanceTable, self.num_rows, size, norm)
        self.dropout = Dropout(config.hidden_dropout_prob)
        has_maps = distance_maps == "own"
        self.key = Linear(size, size, config.attention.key_bias) if has_maps and "c2p" in distance_terms else None
        self.query = Linear(size, size) if has_maps and "p2c" in distance_terms else None

    def shared(self) -> nn.Module:
        """Make the vectors."""
        return self.make_table()

    def fold(self, query: Tensor) -> Tensor:
        """Divide by the square root of the number of terms."""
        return query * self.scale

    def vectors(
        self, table: Tensor | None, to_query: nn.Module, to_key: nn.Module | None, longest: int
    ) -> Sequence[Tensor]:
        """Map the vectors of distances below `longest`, (R, D), to keys and to queries, (N, R, H) for each term, scaled."""
        assert table is not None
        first, last = self.rows(longest - 1)[[0, -1]].tolist()
        table, scale = self.dropout(table[first : last + 1]), (self.num_heads / table.shape[1]) ** 0.5
        ways = {"c2p": (self.key or to_key, scale), "p2c": (self.query or to_query, scale * self.scale)}
        mapped = [way(table) * factor for way, factor in (ways[term] for term in self.terms_of)]  # type: ignore[misc]
        return [each.unflatten(1, (self.num_heads, -1)).transpose(0, 1) for each in mapped]

    def terms(self, query: Tensor, key: Tensor, group: Group, vectors: Sequence[Tensor]) -> Tensor:
        """Return q_i K r_ij + k_j Q r_ij, scaled; only the rows for distances in the group are compared."""
        num_rows = vectors[0].shape[
            1
        ]  # the middle ones of the table; keys beyond a sequence, which are masked, have none
        of_distances = (self.rows(group.reach) - self.num_rows // 2 + num_rows // 2).clamp(0, num_rows - 1)
        first, last = of_distances[[0, -1]].tolist()
        rows = on_device(of_distances - first, query.device)[group.reach - group.distances][:, None]
        of_term = {"c2p": lambda each: products_with_rows(query, each, rows)}
        of_term["p2c"] = lambda each: products_with_rows(key, each, rows.transpose(2, 3)).transpose(2, 3)
        of_terms = [of_term[term](each[:, first : last + 1]) for term, each in zip(self.terms_of, vectors, strict=True)]
        return functools.reduce(torch.add, of_terms)

    def rows(self, reach: int) -> Tensor:
        """Return the row of each distance from -reach to reach."""
        return distance_rows(reach, self.max_distance, self.num_buckets, self.num_rows)
