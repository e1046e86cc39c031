"""The alignment of a source and a text that is written of it: source across, text down, darker where more is looked at.

Theirs is white where more is looked at; on a white page the dark cells are what is seen.

Source: Bahdanau et al. 2015, section 5.2.1 and figure 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bertkit.explain.head_picture import INK, MARGIN, SOFT, label, matrix, short, svg
from bertkit.explain.look import Look

CELL = 18  # of a token
BLACK = (28, 33, 40)  # INK
LETTER, WIDEST_LINE = 7, 330  # of names, on average; what is written below


def alignment_picture(look: Look, layer: int | None = None, head: int | None = None) -> str:
    """Draw a head, both numbers from 1; without one the mean of a layer's heads, without both that of every layer."""
    assert look.alignment is not None
    weights = look.alignment.weights
    assert weights is not None
    source, target = ([short(token) for token in tokens] for tokens in (look.tokens, look.alignment.tokens))
    side, above = (LETTER * max(map(len, names)) + 10 for names in (target, source))
    left, size = MARGIN + side, (len(source) * CELL, len(target) * CELL)
    parts: list[str] = []
    top = float(MARGIN)
    for number in range(1, len(weights) + 1) if layer is None else (layer,):
        of_layer = weights[number - 1]
        shares = of_layer.mean(0) if head is None else of_layer[head - 1]
        if weights.shape[:2] != (1, 1):
            what = f"Layer {number}, {'mean of the heads' if head is None else f'head {head}'}"
            parts.append(label(MARGIN, top, what, weight=' font-weight="600"'))
        top += above + CELL
        parts += _names(source, target, left, top)
        parts.append(matrix(left, top, size, shares.clip(0, 1), BLACK))
        top += size[1] + 2 * MARGIN
    parts.append(label(MARGIN, top - MARGIN, "input (across), text (down); white 0, black 1", color=SOFT))
    width = max(left + size[0] + above / 2 + MARGIN, WIDEST_LINE)
    return svg(width, top, parts, "Alignment of input and text")


def _names(source: Sequence[str], target: Sequence[str], left: float, top: float) -> Iterator[str]:
    """Write tokens at the edges of a matrix."""
    for place, name in enumerate(target):
        yield label(left - 5, top + (place + 0.5) * CELL + 4, name, "end")
    for place, name in enumerate(source):
        x = left + (place + 0.5) * CELL
        yield label(x, top - 5, name, "start", INK, 12.0, f' transform="rotate(-60 {x:.1f} {top - 5:.1f})"')
