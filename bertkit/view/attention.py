"""attention.html: all heads of a model, one of them, one token in all layers, and what the prediction rests on.

The page holds its own script, and what it shows: probabilities in at most 256 steps, compressed.
"""

from __future__ import annotations

import html
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import shown
from bertkit.view.alignment import alignment_view
from bertkit.view.look import Attribution, Look
from bertkit.view.packing import drawn, packed_shares
from bertkit.view.page import Table, facts_table, page, part_of_page

NUM_LISTED = 10  # attributions that are given as numbers
FAINT = 0.05  # of the largest attribution: what takes less from the score is not marked
NUM_SAID = 5  # of a list in a prediction
GIVEN = ("id", "words", "question", "context")  # what a prediction has from its input, which is shown as tokens


def attention_page(look: Look, model_name: str) -> str:
    """Write the page of a model and one input."""
    parts = [f"<style>{part_of_page('attention.css')}</style>"]
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
        part_of_page("attention.html").replace("All heads</h2>", f"All heads{whose}</h2>")
        + (part_of_page("between.html") if 1 in look.segments else "")
        + exact
    )
    return views + drawn("attention", ("look", about), ("weights", text))


def _off(share: float, levels: int) -> float:
    """How far from a share the nearest step can be: half a step of its root, and back."""
    return math.sqrt(share) / levels + 0.25 / levels**2


def packed(look: Look) -> tuple[str, int]:
    """Pack attention, and rollout as one more head, (L, N + 1, T, T), into text; give it, and the steps from 0 to 1."""
    assert look.attentions is not None
    assert look.rollout is not None
    return packed_shares(np.concatenate([look.attentions, look.rollout[:, None].astype(np.float32)], 1))
