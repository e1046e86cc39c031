"""What the positions of a model say about the distance between two tokens, without a text.

Axes: P positions; D hidden_size, N heads, H head size, k max_distance.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.apps.explain.pictures import BLUE, BROWN, shades
from bertkit.base.errors import InputError, shown
from bertkit.display.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axes, Figure, line_chart, line_color
from bertkit.display.page import render
from bertkit.model.positions import alibi, rotate, sinusoidal

# of the matrix and of the lines: title, horizontal axis, vertical axis
TITLES = {
    "learned": (("Cosine similarity", "position", "position"), ("Mean similarity by distance", "distance", "cosine")),
    "sinusoidal": (("Sinusoids", "element", "position"), ("Product by distance", "distance", "product")),
    "rotary": (("Cosine of each angle", "pair", "distance"), ("Score of an equal key", "distance", "sum of cosines")),
    "relative": (("Cosine similarity", "distance", "distance"), ("Length by distance", "distance", "length")),
    "alibi": (("Factor of a weight", "distance", "head"), ("Slope by head", "head", "slope")),
}


@dataclass(frozen=True)
class PositionsLook:
    """Positions as a matrix and as lines; `first` is the number of the first row, and of the first point of each line."""

    positions: str
    first: int
    lines: dict[str, Tensor]
    matrix: Tensor

    def json(self) -> str:
        """Return the numbers as JSON."""
        return json.dumps(vars(self), default=Tensor.tolist) + "\n"


@torch.no_grad()
def look_at_positions(model: Any) -> PositionsLook:
    """Return what the positions of the encoder of a `BertWithHeads` say about distance.

        learned     cos(p_i, p_j) of the embeddings, (P, P), and its mean for each distance
        sinusoidal  the table, (P, D), and the products p_0 p_j
        rotary      the cosine of each angle, (P, H / 2); their sum is the score of a query for an equal key
        relative    cos(a_i, a_j) of the vectors for keys (or values alone), (2k + 1, 2k + 1), and the length of each vector
        alibi       the factor exp(-m distance) of a weight before it is normalised, (N, P), and the slopes m

    For rotary positions, each pair of elements has length 1; for relative ones, the numbers are means over the layers. Raises
    InputError for other positions, and for none.

    Source: Wang and Chen 2020 (EMNLP), figure 1; Vaswani et al. 2017, section 3.5; Su et al. 2021, equation 34; Shaw et al. 2018,
    section 3.2; Press et al. 2022, section 3.
    """
    config, bert, like, first = model.config, model.bert, torch.zeros(1, dtype=torch.float64), 0
    kind, places = config.attention.positions, torch.arange(config.max_position_embeddings)
    match kind:
        case "learned":
            matrix = _cosines(bert.embeddings.position.weight.double())
            lines = {"mean": torch.stack([matrix.diagonal(distance).mean() for distance in places.tolist()])}
        case "sinusoidal":
            matrix = sinusoidal(places, config.hidden_size, like)
            lines = {"product": matrix @ matrix[0]}
        case "rotary":
            pairs = like.new_tensor([1, 0]).repeat(config.hidden_size // config.num_attention_heads // 2)
            turns = config.attention.rotary_base, config.attention.rotary_factor
            matrix = rotate(pairs.expand(len(places), 1, -1), places, *turns)[:, 0, ::2]
            lines = {"score": matrix.sum(1)}
        case "relative":
            learned, sides = (
                [layer.attention.slots.relative for layer in bert.encoder.layers],
                config.attention.relative_to,
            )
            tables = {n: torch.stack([getattr(each, n[:-1]).weight.double() for each in learned]) for n in sides}
            matrix, first = _cosines(tables[sides[0]]).mean(0), -config.attention.max_distance
            lines = {side: table.norm(dim=-1).mean(0) for side, table in tables.items()}
        case "alibi":
            scores = alibi(places[None, None], config.num_attention_heads, like)[0, :, 0]
            matrix, lines, first = scores.exp(), {"slope": -scores[:, 1]}, 1
        case _:
            known = ", ".join(TITLES)
            raise InputError(f"positions=true: attention.positions={kind} shows nothing; choose a model with {known}")
    return PositionsLook(kind, first, lines, matrix)


def _cosines(vectors: Tensor) -> Tensor:
    unit = F.normalize(vectors, dim=-1)
    return unit @ unit.mT


def positions_page(look: PositionsLook, model_name: str) -> str:
    """Return positions.html, with the first row of the matrix at the bottom."""
    (title, *names), (line_title, *line_names) = TITLES[look.positions]
    (rows, columns), most = look.matrix.shape, float(look.matrix.abs().max()) or 1.0
    left = min(look.first, 0)  # heads are numbered from 1, but their distances from 0
    axes = Axes((left - 0.5, left + columns - 0.5), (look.first - 0.5, look.first + rows - 0.5), (names[0], names[1]))
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM - TOP
    cells = F.adaptive_avg_pool2d(look.matrix[None], (min(rows, height), min(columns, width)))[0].flip(0).numpy()
    ink = np.where(cells[..., None] < 0, BROWN, BLUE)
    axes.parts.append(shades(LEFT, TOP, (width, height), np.abs(cells) / most, ink))
    legend = [(f"■ {most:.3g}", line_color(0)), (f"■ {-most:.3g}", line_color(1))]  # BLUE and BROWN
    lines = [(name, list(enumerate(line.tolist(), look.first))) for name, line in look.lines.items()]
    charts = [Figure(title, axes.parts, legend), line_chart(line_title, lines, None, *line_names)]
    headline = shown(f"{model_name}: {look.positions} positions")
    return render("positions.html", name="positions", headline=headline, kind=look.positions, charts=charts)
