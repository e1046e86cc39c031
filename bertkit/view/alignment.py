"""The alignment of a source and a text that is written of it: source across, text down, darker where more is looked at.

Theirs is white where more is looked at; on a white page the dark cells are what is seen.

Source: Bahdanau et al. 2015, section 5.2.1 and figure 3.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from bertkit.errors import shown
from bertkit.view.head import INK, MARGIN, SOFT, label, matrix, short, svg
from bertkit.view.look import Alignment, Look
from bertkit.view.packing import packed_shares, script_of

CELL = 18  # of a token
BLACK = (28, 33, 40)  # INK
LETTER, WIDEST_LINE = 7, 330  # of names, on average; what is written below
STYLE = """
.align { display: grid; grid-template-columns: max-content max-content; overflow: auto; max-height: 640px; width: fit-content; max-width: 100%;
  border: 1px solid var(--rule); border-radius: 4px; --cell: 20px }
.align bdi { display: block; overflow: hidden; white-space: nowrap; text-overflow: ellipsis; font-size: 13px; line-height: var(--cell) }
#a-corner, #a-across, #a-down { background: var(--paper); position: sticky; z-index: 1 } #a-corner { top: 0; left: 0; z-index: 2 }
#a-across { top: 0; display: flex; align-items: end } #a-across bdi { width: var(--cell); max-height: 110px; writing-mode: vertical-rl; padding: 4px 0 }
#a-down { left: 0; text-align: right } #a-down bdi { height: var(--cell); max-width: min(30vw, 140px); padding: 0 6px }
#a-frame { position: relative; cursor: crosshair } #a-cell { position: absolute; outline: 2px solid var(--c1); outline-offset: -2px; pointer-events: none }
#a-reading { min-height: 3em }
"""
_VIEW = """
<h2>What it looks at while it writes</h2>
<p class="soft">The tokens of the input across, those of the text down: the stronger, the more a token of the text takes of a token of the
input (Bahdanau et al. 2015, figure 3). Point, or use the arrow keys.</p>
<p id="a-failed"></p><p id="a-choose"><label>layer <select id="a-layer"></select></label><label>head <select id="a-head"></select></label></p>
<div class="align"><div id="a-corner"></div><div id="a-across"></div><div id="a-down"></div><div id="a-frame" tabindex="0"
role="application" aria-label="matrix of source and text; arrow keys move"><canvas id="a-matrix"></canvas><div id="a-cell"></div></div></div>
<p id="a-reading" role="status"></p>
"""


def alignment_view(look: Look, alignment: Alignment) -> str:
    """Give the part of the page that shows it, with its script and its numbers; nothing where there are no weights."""
    if alignment.weights is None:
        return ""
    text, levels = packed_shares(alignment.weights.copy())
    num_layers, num_heads = alignment.weights.shape[:2]
    about = {
        "source": [shown(token) for token in look.tokens],
        "target": [shown(token) for token in alignment.tokens],
        "layers": num_layers,
        "heads": num_heads,
        "levels": levels,
    }
    data = json.dumps(about, ensure_ascii=True).replace("<", "\\u003c")
    script = script_of("alignment")
    return (
        f'<style>{STYLE}</style>{_VIEW}<script type="application/json" id="aligned">{data}</script>'
        f'<script type="application/octet-stream" id="a-weights">{text}</script>\n<script>{script}</script>'
    )


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
