"""Charts as inline SVG: lines over steps or shares.

Colours are those of the page, which has light and dark ones; what a pointer rests on says its values.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 400, 230, 58, 16, 38, 22
NUM_COLORS = 6  # of a page: --c0 and so on
MAX_HOVERED = 120  # points of a line that a pointer can rest on; a longer one has them evenly spaced
SOFT = "var(--soft)"
Points = Sequence[tuple[float, float]]
Point = TypeVar("Point")
Scale = Callable[[float], float]


@dataclass(frozen=True)
class Figure:
    """A drawing for a page."""

    title: str
    parts: Sequence[str]  # SVG
    legend: Sequence[tuple[str, str]] = ()  # names with their colours
    width: float = WIDTH
    height: float = HEIGHT

    @property
    def is_wide(self) -> bool:
        """Whether it is wider than others; it keeps its size, and scrolls."""
        return self.width > WIDTH


def line_chart(
    title: str,
    lines: Sequence[tuple[str, Points]],
    baseline: tuple[str, float] | None = None,
    x_name: str = "",
    y_name: str = "",
) -> Figure | None:
    """Draw lines over a common axis, from 0 on, and a dashed one to compare with; nothing when there is no point.

    Axes have names where the title does not say what they are.
    """
    colored = [(*line, color(number), _dashes(number)) for number, line in enumerate(lines)]
    drawn = [each for each in colored if each[1]]
    if not drawn:
        return None
    values = [value for _, points, *_ in drawn for _, value in points]
    values += [baseline[1]] if baseline else []
    last = max(1, *(place for _, points, *_ in drawn for place, _ in points))
    frame = Frame((0, last), spread(values), (x_name, y_name))
    legend = []
    if baseline is not None:
        name, height = baseline
        dashed = frame.dashed((0, height), (last, height))
        frame.parts.append(hovered(f"{name}: {height:,.4g}", dashed))
        legend.append((f"- - {name}", SOFT))
    for label, points, shade, dashes in drawn:
        path = " ".join(f"{frame.x(place):.1f},{frame.y(value):.1f}" for place, value in points)
        frame.parts.append(f'<polyline points="{path}" fill="none" stroke-width="1.6"{dashes} style="stroke:{shade}"/>')
        # of many points none is seen, though a pointer feels them
        look = (5, f"fill:{shade};fill-opacity:0") if len(points) > 30 else (2.5, f"fill:{shade}")
        for place, value in evenly(points, MAX_HOVERED):
            said = f"{label}: {value:,.5g} at {x_name or 'x'} {place:,.6g}"
            frame.parts.append(hovered(said, frame.dot((place, value), *look)))
        legend.append((f"{'- -' if dashes else '—'} {label}", shade))
    return Figure(title, frame.parts, legend)


class Frame:
    """Two axes with their names, the levels and places that are written beside them, and what is drawn between them."""

    def __init__(self, across: tuple[float, float], up: tuple[float, float], names: tuple[str, str]) -> None:
        self.x, self.y = scaled(*across, LEFT, WIDTH - RIGHT), scaled(*up, HEIGHT - BOTTOM, TOP)
        rule = f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{{0:.1f}}" y2="{{0:.1f}}" style="stroke:var(--rule)"/>'
        self.parts = [
            rule.format(self.y(value)) + text(LEFT - 6, self.y(value) + 4, f"{value:,.6g}", "end")
            for value in ticks(*up)
        ]
        self.parts += [text(self.x(place), HEIGHT - BOTTOM + 15, f"{place:,.6g}", "middle") for place in ticks(*across)]
        named = [((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, names[0], "middle"), (4, 10, names[1], "start")]
        self.parts += [text(*each) for each in named if each[2]]

    def dot(self, point: tuple[float, float], radius: float, style: str) -> str:
        """Draw a point."""
        return f'<circle cx="{self.x(point[0]):.1f}" cy="{self.y(point[1]):.1f}" r="{radius:g}" style="{style}"/>'

    def dashed(self, first: tuple[float, float], last: tuple[float, float]) -> str:
        """Draw a line to compare with."""
        (x1, y1), (x2, y2) = ((self.x(across), self.y(up)) for across, up in (first, last))
        ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        return f'<line {ends} stroke-dasharray="5 4" style="stroke:{SOFT}"/>'


def color(number: int) -> str:
    """Give the page's colour of a line, by its number."""
    return f"var(--c{number % NUM_COLORS})"


def _dashes(number: int) -> str:
    """Tell lines of the same colour apart."""
    return "" if number < NUM_COLORS else f' stroke-dasharray="{2 + 4 * (number // NUM_COLORS)} 3"'


def hovered(said: str, drawn: str) -> str:
    """Let a drawing say something to a pointer that rests on it."""
    return f"<g><title>{html.escape(said)}</title>{drawn}</g>"


def text(across: float, down: float, said: str, anchor: str) -> str:
    """Write a text."""
    return f'<text x="{across:.1f}" y="{down:.1f}" text-anchor="{anchor}">{html.escape(said)}</text>'


def evenly(points: Sequence[Point], most: int) -> Sequence[Point]:
    """Give the points, or of more than `most` so many, evenly spaced, with the last."""
    if len(points) <= most:
        return points
    return [points[round(number * (len(points) - 1) / (most - 1))] for number in range(most)]


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Give the least and the greatest value, a little apart where they are the same."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def scaled(low: float, high: float, first: float, last: float) -> Scale:
    """Map values from low to high to places from first to last."""
    width = (high - low) or 1.0  # of numbers so large that a step more is none
    return lambda value: first + (last - first) * (value - low) / width


def ticks(low: float, high: float) -> list[float]:
    """Round numbers between two limits, some four to eight of them."""
    rough = (high - low) / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    size = min((power * factor for factor in (1, 2, 5, 10)), key=lambda width: abs(width - rough))
    return [size * number for number in range(math.ceil(low / size), math.floor(high / size) + 1)]
