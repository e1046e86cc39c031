"""attention.html: all heads of a model, one head, one token in all layers, the attributions, and the alignment of a text.

The page holds its own script and data: probabilities in at most 256 steps, compressed.
"""

import base64
import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import shown
from bertkit.explain.explanation import Explanation
from bertkit.view.page import render

NUM_LISTED = 10  # attributions in the table
NUM_SAID = 5  # elements of a list in a prediction
GIVEN = ("id", "words", "question", "context")  # fields of a prediction that come from its input
LEVELS = (255, 127, 63, 31, 15)  # steps from 0 to 1
# characters for probabilities, for few and for each of many: 128 tokens of 12 layers and heads in 3 MB, 512 in 20
FEW, EACH = 2_700_000, 0.48


def attention_page(explanation: Explanation, model_name: str) -> str:
    """Write the page of a model and one input."""
    count = len(explanation.tokens)
    values = np.zeros(count) if explanation.attribution is None else explanation.attribution.values
    heads = f", {explanation.num_heads} heads" if explanation.num_heads else ""
    aligned = None if explanation.alignment is None else explanation.alignment.weights
    prediction = None if explanation.prediction is None else explanation.prediction.items()
    return render(
        "attention.html",
        name="attention",
        headline=shown(f"{model_name}: {count} tokens, {explanation.num_layers} layers{heads}"),
        look=explanation,
        prediction=prediction and {name: _in_words(value) for name, value in prediction if name not in GIVEN},
        target=shown(_short(explanation.target or "")),
        values=values.tolist(),
        most=float(np.abs(values).max(initial=0)) or 1.0,
        largest=np.argsort(-np.abs(values), kind="stable")[:NUM_LISTED].tolist(),
        alignment=None if aligned is None else packed_shares(aligned.copy()),
        weights=None if explanation.attentions is None else packed(explanation),
    )


def _in_words(value: Any) -> str:
    """Write a field of a prediction on one line, a long list cut."""
    if isinstance(value, dict):
        return _short(", ".join(f"{name} {_in_words(item)}" for name, item in value.items()))
    if isinstance(value, (list, tuple)):
        return _short("; ".join(map(_in_words, value[:NUM_SAID])) + ("; ..." if len(value) > NUM_SAID else ""))
    return _short(shown(f"{value:.4f}" if isinstance(value, float) else value))


def _short(text: str, most: int = 600) -> str:
    return text if len(text) <= most else f"{text[:most]} ..."


@dataclass(frozen=True)
class PackedShares:
    """Shares as text; `levels` is the number of steps from 0 to 1."""

    text: str
    levels: int

    def off(self, share: float) -> float:
        """The largest error of a share after rounding its root to a step."""
        return math.sqrt(share) / self.levels + 0.25 / self.levels**2


def packed(explanation: Explanation) -> PackedShares:
    """Pack attention, and rollout as one more head: (L, N + 1, T, T)."""
    attentions, rollout = explanation.attentions, explanation.rollout
    assert attentions is not None
    assert rollout is not None
    return packed_shares(np.concatenate([attentions, rollout[:, None].astype(np.float32)], 1))


def packed_shares(shares: NDArray[np.float32]) -> PackedShares:
    """Pack shares, in place.

    A byte is the root of a share times `levels`, so that the many small shares stay distinct. The bytes are compressed by
    zlib, which a browser's DecompressionStream("deflate") reads, and written in base64, with fewer levels if the text would
    be too long.
    """
    roots = np.sqrt(shares.clip(0, 1), out=shares)
    most = max(FEW, EACH * roots.size)
    for levels in LEVELS:
        packer = zlib.compressobj(
            6, strategy=zlib.Z_RLE
        )  # on such noise as small as a full search, in a tenth of the time
        compressed = packer.compress(np.rint(roots * levels).astype(np.uint8).tobytes()) + packer.flush()
        if len(compressed) * 4 / 3 <= most or levels == LEVELS[-1]:
            break
    return PackedShares(base64.b64encode(compressed).decode(), levels)
