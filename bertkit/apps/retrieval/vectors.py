"""The vectors of passages: numbers of 32 or 8 bits with a scale for each vector, and their products with the vector of a question."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Numbers = Literal["float32", "int8"]
Records = NDArray[np.void]  # (n,) of `record_type`
BLOCK = 1 << 15  # vectors that are multiplied together, so that few are there as float32


def record_type(dimension: int, numbers: Numbers) -> np.dtype[np.void]:
    """Return the type of a stored vector: its scale, and its numbers in units of the scale."""
    return np.dtype([("scale", "<f4"), ("numbers", np.dtype(numbers).newbyteorder("<"), (dimension,))])


def records_of(vectors: NDArray[np.float32], numbers: Numbers) -> Records:
    """Turn vectors, (n, D), into records; int8 has the largest number of each vector as 127."""
    records = np.empty(len(vectors), record_type(vectors.shape[1], numbers))
    records["scale"] = 1.0
    if numbers == "int8":
        largest = np.abs(vectors).max(axis=1)
        records["scale"] = np.where(largest > 0, largest, 1) / 127
        vectors = np.rint(vectors / records["scale"][:, None])
    records["numbers"] = vectors
    return records


def products(records: Records, query: NDArray[np.float32]) -> NDArray[np.float32]:
    """Multiply every vector with `query`, (D,); return (n,)."""
    blocks = (records[start : start + BLOCK] for start in range(0, len(records), BLOCK))
    return np.concatenate(
        [block["scale"] * (block["numbers"].astype(np.float32, copy=False) @ query) for block in blocks]
    )
