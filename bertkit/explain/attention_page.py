"""attention.html: all heads of a model, one of them, one token in all layers, and what the prediction rests on.

The page holds its own script, and what it shows: probabilities in at most 256 steps, compressed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bertkit.base.errors import shown
from bertkit.explain.look import Look
from bertkit.view.packing import PackedShares, packed_shares
from bertkit.view.page import render

NUM_LISTED = 10  # attributions that are given as numbers
NUM_SAID = 5  # of a list in a prediction
GIVEN = ("id", "words", "question", "context")  # what a prediction has from its input, which is shown as tokens


def attention_page(look: Look, model_name: str) -> str:
    """Write the page of a model and one input."""
    values = np.zeros(len(look.tokens)) if look.attribution is None else look.attribution.values
    heads = f", {look.num_heads} heads" if look.num_heads else ""
    aligned = None if look.alignment is None else look.alignment.weights
    prediction = None if look.prediction is None else look.prediction.items()
    return render(
        "attention.html",
        name="attention",
        headline=shown(f"{model_name}: {len(look.tokens)} tokens, {look.num_layers} layers{heads}"),
        look=look,
        said=prediction and {name: _in_words(value) for name, value in prediction if name not in GIVEN},
        target=shown(_short(look.target or "")),
        values=values.tolist(),
        most=float(np.abs(values).max(initial=0)) or 1.0,
        largest=np.argsort(-np.abs(values), kind="stable")[:NUM_LISTED].tolist(),
        alignment=None if aligned is None else packed_shares(aligned.copy()),
        weights=None if look.attentions is None else packed(look),
    )


def _in_words(value: Any) -> str:
    """Write what `predict` says of an example in a line; of many things the first."""
    if isinstance(value, dict):
        return _short(", ".join(f"{name} {_in_words(each)}" for name, each in value.items()))
    if isinstance(value, (list, tuple)):
        return _short("; ".join(map(_in_words, value[:NUM_SAID])) + ("; ..." if len(value) > NUM_SAID else ""))
    return _short(shown(f"{value:.4f}" if isinstance(value, float) else value))


def _short(text: str, most: int = 600) -> str:
    return text if len(text) <= most else f"{text[:most]} ..."


def packed(look: Look) -> PackedShares:
    """Pack attention, and rollout as one more head: (L, N + 1, T, T)."""
    assert look.attentions is not None
    assert look.rollout is not None
    return packed_shares(np.concatenate([look.attentions, look.rollout[:, None].astype(np.float32)], 1))
