"""attention.html: all heads of a model, one of them, one token in all layers, and what the prediction rests on.

The page holds its own script, and what it shows: probabilities in at most 256 steps, compressed.
"""

from __future__ import annotations

import html
import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import shown
from bertkit.view.alignment import alignment_view
from bertkit.view.look import Attribution, Look
from bertkit.view.packing import packed_shares, script_of
from bertkit.view.page import Table, facts_table, page

NUM_LISTED = 10  # attributions that are given as numbers
FAINT = 0.05  # of the largest attribution: what takes less from the score is not marked
NUM_SAID = 5  # of a list in a prediction
GIVEN = ("id", "words", "question", "context")  # what a prediction has from its input, which is shown as tokens
STYLE = """
:root { --ink-of-heads: 31 111 235 } @media (prefers-color-scheme: dark) { :root { --ink-of-heads: 88 166 255 } }
.soft { color: var(--soft) } #failed { color: var(--bad) }
bdi.t { display: inline-block; padding: 0 .25em; margin: 1px 0; border-radius: 3px; border-bottom: 2px solid transparent;
  max-width: 100%; overflow-wrap: anywhere; background: color-mix(in srgb, var(--hue, var(--c0)) calc(var(--a, 0) * 60%), transparent) }
.tokens { line-height: 1.9 } .minus { --hue: var(--c1); text-decoration: underline dashed; text-underline-offset: 3px }
bdi.s1 { border-bottom-color: var(--c3) } .marked { outline: 2px solid var(--c2); outline-offset: -1px; border-radius: 3px }
.key span { margin-right: 1.2em; white-space: nowrap }
#heads { display: grid; grid-template-columns: 1.6em repeat(var(--columns), minmax(0, 56px)); gap: 3px; align-items: center }
#heads button { padding: 0; border: 1px solid var(--rule); background: var(--panel); border-radius: 3px; aspect-ratio: 1; cursor: pointer }
#heads button[aria-pressed=true] { border-color: var(--c1); box-shadow: 0 0 0 1px var(--c1) }
canvas { display: block; width: 100%; height: 100%; image-rendering: pixelated }
select { font: inherit; color: inherit; background: var(--panel); border: 1px solid var(--rule); border-radius: 4px; max-width: 100% }
label { margin-right: 1em; display: inline-block }
.one { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 24px; margin-top: 1em }
@media (max-width: 760px) { .one { grid-template-columns: minmax(0, 1fr) } }
.links { display: grid; grid-template-columns: minmax(0, 2fr) minmax(40px, 2fr) minmax(0, 2fr); max-height: 560px; overflow: auto;
  border: 1px solid var(--rule); border-radius: 4px }
.links .t { height: 22px; line-height: 22px; padding: 0 6px; overflow: hidden; white-space: nowrap; text-overflow: ellipsis }
#from .s1 { border-left: 3px solid var(--c3) } #to .s1 { border-right: 3px solid var(--c3) }
#from .t { text-align: right; cursor: pointer } #from .t[aria-selected=true] { background: var(--c1); color: var(--paper) }
#to .t { background: color-mix(in srgb, var(--c1) calc(var(--a, 0) * 80%), transparent) }
#lines { width: 100% } #lines line { stroke: var(--c0); vector-effect: non-scaling-stroke } #lines line.chosen { stroke: var(--c1) }
#frame { position: relative; aspect-ratio: 1; max-width: 560px; border: 1px solid var(--rule); background: var(--panel); cursor: crosshair }
#frame.pair::before, #frame.pair::after { content: ""; position: absolute; background: var(--c3); opacity: .6 }
#frame.pair::before { left: calc(var(--border) * 100%); width: 1px; top: 0; bottom: 0 }
#frame.pair::after { top: calc(var(--border) * 100%); height: 1px; left: 0; right: 0 }
#cell { position: absolute; outline: 2px solid var(--c1); min-width: 3px; min-height: 3px; pointer-events: none } #reading { min-height: 3em }
:focus-visible { outline: 2px solid var(--c2) !important; outline-offset: 2px }
#layers small { color: var(--soft) } #layers span { white-space: nowrap } #layers th { white-space: nowrap }
@media (max-width: 700px) { #layers tr, #layers td, #layers th { display: block; border: 0; padding: 0 } #layers tr { padding: .5em 0;
  border-bottom: 1px solid var(--rule) } #layers td::before { content: attr(data-name) ": "; color: var(--soft) } #over thead { display: none } }
"""
_VIEWS = """
<h2>All heads</h2>
<p class="soft">A row for each layer, a column for each head; down a head's square the tokens that attend, across those that they
attend to. Click one, or go to it with the arrow keys.</p>
<p id="failed"></p><div id="heads" role="group" aria-label="all heads"></div>
<h2>One head</h2>
<p><label>layer <select id="layer"></select></label><label>head <select id="head"></select></label></p>
<p class="soft">Left: a token on the left takes from those on the right; choose one by a click or the arrow keys. Lines under 0.01
are not drawn, and of many the strongest 1,500. Right: the same as a matrix, a token's row and what it takes; point, or use the arrow
keys.</p>
<div class="one">
<div class="links"><div id="from" role="listbox" tabindex="0" aria-label="the token that attends"></div>
<svg id="lines" preserveAspectRatio="none" aria-hidden="true"></svg><div id="to" aria-hidden="true"></div></div>
<div><div id="frame" tabindex="0" role="application" aria-label="matrix of the head; arrow keys move"><canvas id="matrix"></canvas>
<div id="cell"></div></div><p id="reading" role="status"></p></div></div>
<h2>One token in all layers</h2>
<p><label>token <select id="token"></select></label></p>
<p class="soft">Attention: what it takes in this layer, mean of the heads. Rollout: what has come to it from the tokens of the input, down
to this layer, half by attention and half by staying (Abnar and Zuidema 2020).</p>
<table id="over"><thead><tr><th></th><th>attention</th><th>rollout</th></tr></thead><tbody id="layers"></tbody></table>
"""
_BETWEEN = """
<h2>Between the two texts</h2>
<p><label>from <select id="way"><option value="0">the first to the second</option><option value="1">the second to the first</option>
</select></label></p>
<p id="crossing"></p><p class="soft">What the tokens of one text take of each token of the other, their mean, by the layer and head that
are chosen above.</p><p id="crossed" class="tokens"></p>
"""


def attention_page(look: Look, model_name: str) -> str:
    """Write the page of a model and one input."""
    parts = [f"<style>{STYLE}</style>"]
    if look.prediction is not None:
        said = {name: _in_words(value) for name, value in look.prediction.items() if name not in GIVEN}
        parts.append(f"<h2>What the model says</h2>{facts_table(said)}")
    parts += [f'<p class="soft">{html.escape(note)}</p>' for note in look.notes()]
    if look.attribution is not None:
        parts.append(_attributions(look, look.attribution))
    else:
        parts.append(f'<h2>The input</h2><p class="tokens">{_chips(look, np.zeros(len(look.tokens)))}</p>')
    parts.append(_key(look))
    if look.alignment is not None:
        parts.append(alignment_view(look, look.alignment))
    if look.attentions is not None:
        parts.append(_weights_views(look))
    heads = f", {look.num_heads} heads" if look.num_heads else ""
    headline = f"{model_name}: {len(look.tokens)} tokens, {look.num_layers} layers{heads}"
    return page("attention", shown(headline), "\n".join(parts))


def _in_words(value: Any) -> str:
    """Write what `predict` says of an example in a line; of many things the first."""
    if isinstance(value, dict):
        return _short(", ".join(f"{name} {_in_words(each)}" for name, each in value.items()))
    if isinstance(value, (list, tuple)):
        return _short("; ".join(map(_in_words, value[:NUM_SAID])) + ("; ..." if len(value) > NUM_SAID else ""))
    return _short(shown(f"{value:.4f}" if isinstance(value, float) else value))


def _short(text: str, most: int = 600) -> str:
    return text if len(text) <= most else f"{text[:most]} ..."


def _attributions(look: Look, attribution: Attribution) -> str:
    """Show what each token adds to the score as its colour, and the largest as numbers."""
    values = attribution.values
    order = np.argsort(-np.abs(values), kind="stable")[:NUM_LISTED]
    rows = [(f"{place + 1}", shown(look.tokens[place]), f"{values[place]:+.4f}") for place in order.tolist()]
    target = html.escape(shown(_short(look.target or "")))
    return (
        f'<h2>What it rests on: <bdi>{target}</bdi></h2><p class="tokens">{_chips(look, values)}</p>'
        f'<p class="key"><span><bdi class="t" style="--a:1">adds to its score</bdi></span><span><bdi class="t minus" style="--a:1">'
        f'takes from it</bdi></span></p><p class="soft">Integrated gradients (Sundararajan et al. 2017) over the token embeddings. '
        f"{html.escape(attribution.completeness())}</p><details><summary>the {len(order)} largest as numbers</summary>"
        f"{Table('', ('token', 'text', 'attribution'), rows).html()}</details>"
    )


def _chips(look: Look, values: NDArray[np.float64]) -> str:
    """Write the tokens in their order, coloured by values; the largest has all of its colour."""
    most = float(np.abs(values).max(initial=0)) or 1.0
    chips = []
    for place, (token, segment, value) in enumerate(zip(look.tokens, look.segments, values.tolist(), strict=True)):
        classes = f"t s{segment}{' marked' if place in look.marked else ''}{' minus' if value < -FAINT * most else ''}"
        chips.append(
            f'<bdi class="{classes}" style="--a:{abs(value) / most:.3f}" title="{value:+.4f}, token {place + 1}">'
            f"{html.escape(shown(token))}</bdi>"
        )
    return " ".join(chips)


def _key(look: Look) -> str:
    """Say what lines and frames around tokens mean, where there are some."""
    names = []
    if 1 in look.segments:
        names.append('<span><bdi class="t s1">of the second text</bdi></span>')
    if look.marked:
        names.append('<span><bdi class="t marked">what is explained</bdi></span>')
    return f'<p class="key">{"".join(names)}</p>' if names else ""


def _weights_views(look: Look) -> str:
    """Give the views of attention, with the script that draws them and the probabilities that it draws."""
    text, levels = packed(look)
    about = {
        "tokens": [shown(token) for token in look.tokens],
        "segments": list(look.segments),
        "layers": look.num_layers,
        "heads": look.num_heads,
        "levels": levels,
        "marked": list(look.marked),
    }
    exact = (
        f'<p class="soft">Every probability of every layer and head is here, in {levels + 1} steps that are finer towards 0: one of '
        f"0.01 is right to {_off(0.01, levels):.4f}, one of 0.5 to {_off(0.5, levels):.4f}. output=x.json gives them exactly.</p>"
    )
    whose = "" if look.alignment is None else " of the encoder"
    views = (
        _VIEWS.replace("All heads</h2>", f"All heads{whose}</h2>") + (_BETWEEN if 1 in look.segments else "") + exact
    )
    script = script_of("attention")
    data = json.dumps(about, ensure_ascii=True).replace("<", "\\u003c")
    return (
        f'{views}<script type="application/json" id="look">{data}</script>'
        f'<script type="application/octet-stream" id="weights">{text}</script>\n<script>{script}</script>'
    )


def _off(share: float, levels: int) -> float:
    """How far from a share the nearest step can be: half a step of its root, and back."""
    return math.sqrt(share) / levels + 0.25 / levels**2


def packed(look: Look) -> tuple[str, int]:
    """Pack attention, and rollout as one more head, (L, N + 1, T, T), into text; give it, and the steps from 0 to 1."""
    assert look.attentions is not None
    assert look.rollout is not None
    return packed_shares(np.concatenate([look.attentions, look.rollout[:, None].astype(np.float32)], 1))
