"""Probabilities as text in a page, small enough to be sent."""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVELS = (255, 127, 63, 31, 15)  # steps from 0 to 1
# characters that probabilities may take up, for few and for many: 128 tokens of 12 layers and heads in 3 MB, 512 in 20
FEW, EACH = 2_700_000, 0.48


@dataclass(frozen=True)
class PackedShares:
    """Shares as text; `levels` is the number of steps from 0 to 1."""

    text: str
    levels: int

    def off(self, share: float) -> float:
        """How far from a share the nearest step can be: half a step of its root, and back."""
        return math.sqrt(share) / self.levels + 0.25 / self.levels**2


def packed_shares(shares: NDArray[np.float32]) -> PackedShares:
    """Pack shares, which are changed.

    A byte is the root of a share times `levels`, so that the many small shares keep their differences. Bytes are
    compressed as zlib has it, which a browser's DecompressionStream("deflate") reads, and written in base64. There
    are fewer levels where that would be too long.
    """
    roots = np.sqrt(shares.clip(0, 1), out=shares)
    most = max(FEW, EACH * roots.size)
    for levels in LEVELS:
        packer = zlib.compressobj(
            6, strategy=zlib.Z_RLE
        )  # of such noise, as small as by a search, in a tenth of the time
        compressed = packer.compress(np.rint(roots * levels).astype(np.uint8).tobytes()) + packer.flush()
        if len(compressed) * 4 / 3 <= most or levels == LEVELS[-1]:
            break
    return PackedShares(base64.b64encode(compressed).decode(), levels)
