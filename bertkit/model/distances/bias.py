"""A learned number for each head and bucket of distances, added to the scores: relative positions as in T5 and MPNet.

Axes: as in attention.py; C keys for each query, R rows of the table.
"""

import functools
from collections.abc import Sequence

from torch import Tensor, nn

from bertkit.base import plugins
from bertkit.base.intervals import Count
from bertkit.kernels.layout import Group, on_device
from bertkit.model.bert_config import BertConfig
from bertkit.model.distances.tables import DistanceTable, bucket_rows
from bertkit.model.slots import Positions


def relative_bias(distances: Tensor, table: Tensor, rows: Tensor) -> Tensor:
    """The term b[bucket(j - i)] of the scores: distances (B, T, C), table (R, N) -> (B, N, T, C).

    `rows` has the row of each distance from -reach to reach, (2 reach + 1,), as `bucket_rows` returns them.

    >>> table = torch.tensor([[0.5, 1.0], [2.0, 3.0], [7.0, 9.0]])  # two heads
    >>> relative_bias(torch.tensor([[[0, 1], [-1, 0]]]), table, torch.tensor([1, 0, 2])).tolist()
    [[[[0.5, 7.0], [2.0, 0.5]], [[1.0, 9.0], [3.0, 1.0]]]]

    Source: Raffel et al. 2020, section 2.1.
    """
    (count, length, _), num_heads = distances.shape, table.shape[1]
    of_pairs = rows[distances + len(rows) // 2][:, None].expand(-1, num_heads, -1, -1)
    return table.T[:, None].expand(count, -1, length, -1).gather(-1, of_pairs)  # whose gradient takes one pass


@plugins.option("positions", "relative_bias")
class RelativeBias(Positions):
    """The term `relative_bias` of the scores; all layers of an encoder share the table.

        e_ij = q_i k_j / sqrt(H) + b[bucket(j - i)]

    Source: Raffel et al. 2020, section 2.1 (T5), where nothing else has positions; Song et al. 2020 (MPNet), beside learned ones.
    """

    module_name = "relative_bias"

    def __init__(self, config: BertConfig, *, max_distance: Count = 16, distance_buckets: Count = 0) -> None:
        super().__init__()
        self.rows = functools.partial(bucket_rows, max_distance=max_distance, num_buckets=distance_buckets)
        num_rows = 2 * (distance_buckets or max_distance)
        self.make_table = functools.partial(DistanceTable, num_rows, config.num_attention_heads)

    def shared(self) -> nn.Module:
        """Make the table, (R, N)."""
        return self.make_table()

    def vectors(
        self, table: Tensor | None, to_query: nn.Module, to_key: nn.Module | None, longest: int
    ) -> Sequence[Tensor]:
        """Return the table."""
        assert table is not None
        return (table,)

    def terms(self, query: Tensor, key: Tensor, group: Group, vectors: Sequence[Tensor]) -> Tensor:
        """Return the term, in the dtype of the queries."""
        rows = on_device(self.rows(group.reach), query.device)
        return relative_bias(group.distances, vectors[0].to(query.dtype), rows)
