"""Probabilities as text in a page, small enough to be sent."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.view.page import part_of_page

LEVELS = (255, 127, 63, 31, 15)  # steps from 0 to 1
# characters that probabilities may take up, for few and for many: 128 tokens of 12 layers and heads in 3 MB, 512 in 20
FEW, EACH = 2_700_000, 0.48


def packed_shares(shares: NDArray[np.float32]) -> tuple[str, int]:
    """Pack shares, which are changed, into text; give it, and the steps from 0 to 1.

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
    return base64.b64encode(compressed).decode(), levels


def drawn(view: str, facts: tuple[str, Any], shares: tuple[str, str]) -> str:
    """Give what draws a view: its facts and its packed shares, each with the id by which the script finds it, and the script."""
    data = json.dumps(facts[1], ensure_ascii=True).replace("<", "\\u003c")
    return (
        f'<script type="application/json" id="{facts[0]}">{data}</script>'
        f'<script type="application/octet-stream" id="{shares[0]}">{shares[1]}</script>\n<script>{script_of(view)}</script>'
    )


def script_of(view: str) -> str:
    """Give the script of a view, with what unpacks its shares before it."""
    return part_of_page("packing.js") + part_of_page(f"{view}.js")
