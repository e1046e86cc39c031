"""Tables with a row for each distance between two tokens, or for each bucket of distances.

Axes: as in attention.py; C keys for each query, R rows.
"""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bertkit.kernels.linear import Embedding


class DistanceTable(nn.Module):
    """A learned row for each distance, perhaps with a norm; shared by the layers of an encoder."""

    def __init__(self, num_rows: int, size: int, norm: Callable[[int], nn.Module] = nn.Identity) -> None:
        super().__init__()
        self.embedding = Embedding(num_rows, size)
        self.norm = norm(size)

    def forward(self) -> Tensor:
        """Return all rows, (R, size)."""
        return self.norm(self.embedding.weight)  # type: ignore[no-any-return]


def products_with_rows(vectors: Tensor, table: Tensor, rows: Tensor) -> Tensor:
    """Multiply each vector (..., T, H) by rows (..., T, C) of a table (..., R, H): (..., T, C)."""
    products = vectors @ table.transpose(-1, -2)  # (..., T, R)
    return products.gather(-1, rows.expand(*products.shape[:-1], -1))


@functools.lru_cache(maxsize=256)
def distance_rows(reach: int, max_distance: int, num_buckets: int, num_rows: int) -> Tensor:
    """The row of each distance i - j from -reach to reach, (2 reach + 1,): the distance, or its bucket, plus half of the rows.

    Distances below half of the buckets have their own; larger ones share buckets that grow geometrically up to `max_distance`.

    >>> distance_rows(4, 3, 0, 6).tolist()
    [0, 0, 1, 2, 3, 4, 5, 5, 5]
    >>> distance_rows(9, 9, 6, 12).tolist()
    [0, 1, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11, 11, 11, 11]

    Source: He et al. 2020, equation 3; transformers modeling_deberta_v2.py `make_log_bucket_position`, in float32 as there.
    """
    distances = torch.arange(-reach, reach + 1)
    if num_buckets:
        half = num_buckets // 2
        sizes = distances.abs().clamp(min=half).float()
        # the logarithms of the smallest and of the largest distance with a shared bucket are 0 and 1
        logs = torch.log(sizes / half) / torch.log(torch.tensor((max_distance - 1) / half))
        buckets = torch.ceil(logs * (half - 1)) + half
        distances = torch.where(distances.abs() <= half, distances, (buckets * distances.sign()).long())
    return (distances + num_rows // 2).clamp(0, num_rows - 1)


@functools.lru_cache(maxsize=256)
def bucket_rows(reach: int, max_distance: int, num_buckets: int) -> Tensor:
    """Return the row of the table for each distance j - i from -reach to reach, (2 reach + 1,): its bucket; later keys have the second half of the rows.

    Distances below half of the buckets have their own; larger ones share buckets that grow geometrically up to `max_distance`.
    With 0 buckets each distance below `max_distance` has its own.

    >>> bucket_rows(4, 3, 0).tolist()
    [2, 2, 2, 1, 0, 4, 5, 5, 5]
    >>> bucket_rows(9, 8, 4).tolist()
    [3, 3, 3, 3, 3, 3, 2, 2, 1, 0, 5, 6, 6, 7, 7, 7, 7, 7, 7]

    Source: Raffel et al. 2020, section 2.1; transformers modeling_mpnet.py `relative_position_bucket`, in float32 as there.
    """
    distances = torch.arange(-reach, reach + 1)
    sizes, num_rows = distances.abs(), num_buckets or max_distance
    if num_buckets:
        half = num_buckets // 2
        # the logarithms of the smallest and of the largest distance with a shared bucket are 0 and 1
        logs = torch.log(sizes.clamp(min=half).float() / half) / math.log(max_distance / half)
        sizes = torch.where(sizes < half, sizes, half + (logs * (num_buckets - half)).long())
    return sizes.clamp(max=num_rows - 1) + num_rows * (distances > 0)
