"""A learned vector for each distance, of the size of a head: relative positions as in Shaw et al. 2018.

Axes: as in attention.py; C keys for each query, k max_distance.
"""

import math
from typing import Literal

from torch import Tensor

from bertkit.base import plugins
from bertkit.base.intervals import Count
from bertkit.kernels.linear import Embedding
from bertkit.model.bert_config import BertConfig
from bertkit.model.distances.tables import products_with_rows
from bertkit.model.slots import Positions


@plugins.option("positions", "relative")
class Relative(Positions):
    """A learned vector for each distance, clipped at k, for keys and for values; shared by the heads.

        e_ij = q_i (k_j + a^K_ij) / sqrt(H),  z_i = sum_j alpha_ij (v_j + a^V_ij),  a_ij = w[clip(j - i, -k, k)]

    Source: Shaw et al. 2018, equations 3 to 5.
    """

    module_name = "relative"

    def __init__(
        self,
        config: BertConfig,
        *,
        max_distance: Count = 16,
        relative_to: tuple[Literal["keys", "values"], ...] = ("keys", "values"),
    ) -> None:
        super().__init__()
        shape = 2 * max_distance + 1, config.head_size
        self.key = Embedding(*shape) if "keys" in relative_to else None
        self.value = Embedding(*shape) if "values" in relative_to else None

    def scores(self, query: Tensor, distances: Tensor) -> Tensor | float:
        """The term q_i a^K_ij / sqrt(H) of the scores."""
        if self.key is None:
            return 0.0
        return relative_scores(query, self.key.weight, distances[:, None]) / math.sqrt(query.shape[-1])

    def context(self, weights: Tensor, distances: Tensor) -> Tensor | float:
        """The term sum_j alpha_ij a^V_ij of the context."""
        return 0.0 if self.value is None else relative_context(weights, self.value.weight, distances[:, None])


def relative_scores(query: Tensor, table: Tensor, distances: Tensor) -> Tensor:
    """q_i . a_ij: queries (..., T, H), table (2k + 1, H), distances j - i (..., T, C) -> (..., T, C).

    >>> table = torch.tensor([[1.0], [2.0], [3.0]])  # for distances -1, 0, 1 and beyond
    >>> relative_scores(torch.tensor([[[2.0]]]), table, torch.tensor([[[-5, 0, 1]]]))
    tensor([[[2., 4., 6.]]])
    """
    return products_with_rows(query, table, _rows(distances, table))


def relative_context(weights: Tensor, table: Tensor, distances: Tensor) -> Tensor:
    """sum_j alpha_ij a_ij: weights (..., T, C), table (2k + 1, H), distances j - i (..., T, C) -> (..., T, H).

    >>> table = torch.tensor([[1.0], [2.0], [3.0]])
    >>> relative_context(torch.tensor([[[0.5, 0.25, 0.25]]]), table, torch.tensor([[[-5, 0, 1]]]))
    tensor([[[1.7500]]])
    """
    rows = _rows(distances, table).expand_as(weights)
    by_distance = weights.new_zeros(*weights.shape[:-1], len(table)).scatter_add(-1, rows, weights)
    return by_distance @ table


def _rows(distances: Tensor, table: Tensor) -> Tensor:
    max_distance = len(table) // 2
    return distances.clamp(-max_distance, max_distance) + max_distance
