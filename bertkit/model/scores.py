"""Functions that score a key for a query, beside those in slots.py.

Axes: as in attention.py; C keys for each query, A additive_size. Any number of axes may precede T and C. The heads of a layer
share the matrices of its score.
"""

import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertkit.base import plugins
from bertkit.base.intervals import Size
from bertkit.model.bert_config import BertConfig
from bertkit.model.slots import Score, dot


def general(query: Tensor, key: Tensor, matrix: Tensor) -> Tensor:
    """The product q^T W k, with W (H, H); shapes as in `dot`.

    >>> general(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    tensor([[10.]])

    Source: Luong et al. 2015, section 3.1.
    """
    return dot(query @ matrix, key)


def additive(query: Tensor, key: Tensor, of_query: Tensor, of_key: Tensor, of_sum: Tensor) -> Tensor:
    """The sum v^T tanh(W_q q + W_k k), with W (A, H) and v (1, A), without bias; shapes as in `dot`.

    >>> one = torch.tensor([[1.0]])
    >>> additive(one, torch.tensor([[-1.0], [1.0]]), one, one, 2 * one).round(decimals=4)
    tensor([[0.0000, 1.9281]])

    Source: Bahdanau et al. 2015, appendix A.1.2; the `concat` score of Luong et al. 2015, section 3.1.
    """
    sums = (query @ of_query.T).unsqueeze(-2) + (key @ of_key.T).unsqueeze(-3)  # (..., T, C, A)
    return torch.tanh(sums) @ of_sum[0]


def location(query: Tensor, matrix: Tensor, positions: Tensor) -> Tensor:
    """The element (W q)_j for the key at position j, with W (max_position_embeddings, H) and positions (..., C): (..., T, C).

    The score depends only on the query and the key's position, not on the key vector.

    >>> matrix = torch.tensor([[1.0], [2.0], [3.0]])
    >>> location(torch.tensor([[5.0]]), matrix, torch.tensor([0, 2]))
    tensor([[ 5., 15.]])

    Source: Luong et al. 2015, equation 8.
    """
    positions = positions.clamp(max=len(matrix) - 1)  # padding may have larger positions
    return query @ matrix[positions].transpose(-1, -2)


@plugins.option("score", "dot")
class Dot(Score):
    """`dot`."""

    def fold(self, query: Tensor) -> Tensor:
        """Multiply queries by the inverse of the scale."""
        return query * math.sqrt(query.shape[-1])


@plugins.option("score", "general")
class General(Score):
    """`general`."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.matrix = nn.Linear(config.head_size, config.head_size, bias=False)

    def fold(self, query: Tensor) -> Tensor:
        """Multiply queries by the matrix, and by the inverse of the scale."""
        return query @ self.matrix.weight * math.sqrt(query.shape[-1])


@plugins.option("score", "additive")
class Additive(Score):
    """`additive`, with A = `additive_size`."""

    def __init__(self, config: BertConfig, *, additive_size: Size = 32) -> None:
        super().__init__()
        self.of_query = nn.Linear(config.head_size, additive_size, bias=False)
        self.of_key = nn.Linear(config.head_size, additive_size, bias=False)
        self.of_sum = nn.Linear(additive_size, 1, bias=False)

    def forward(self, query: Tensor, key: Tensor, positions: Tensor) -> Tensor:
        """Score head by head, since every score needs memory for A numbers."""
        weights = self.of_query.weight, self.of_key.weight, self.of_sum.weight
        scores = [
            checkpoint(additive, *head, *weights, use_reentrant=False, preserve_rng_state=False)
            for head in zip(query.unbind(1), key.unbind(1), strict=True)
        ]
        return torch.stack(scores, 1)


@plugins.option("score", "location")
class Location(Score):
    """`location`."""

    needs_keys = False

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.matrix = nn.Linear(config.head_size, config.max_position_embeddings, bias=False)

    def forward(self, query: Tensor, key: Tensor, positions: Tensor) -> Tensor:
        """Score the positions of the keys."""
        return location(query, self.matrix.weight, positions[:, None])
