"""Charts as inline SVG: lines over steps or shares.

Colours are those of the page, which has light and dark ones; what a pointer rests on says its values.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 400, 230, 58, 16, 38, 22
NUM_COLORS = 6  # of a page: --c0 and so on
MAX_HOVERED = 120  # points of a line that a pointer can rest on; a longer one has them evenly spaced
SOFT, RULE = "var(--soft)", "var(--rule)"
Points = Sequence[tuple[float, float]]
Scale = Callable[[float], float]


@dataclass(frozen=True)
class LineChart:
    """Lines over a common axis."""

    title: str
    lines: Sequence[tuple[str, Points]]
    baseline: tuple[str, float] | None = None  # a dashed line to compare with
    x_name: str = ""  # what the axes are, where the title does not say it
    y_name: str = ""

    def svg(self) -> Markup:
        """Draw it, from 0 on; nothing when there is no point."""
        colored = [(*line, color(number), _dashes(number)) for number, line in enumerate(self.lines)]
        lines = [each for each in colored if each[1]]
        if not lines:
            return Markup()
        (x, x_ticks), (y, y_ticks) = self._axes([point for _, points, *_ in lines for point in points])
        parts = axes(x, x_ticks, y, y_ticks, (self.x_name, self.y_name))
        legend = []
        if self.baseline is not None:
            name, height = self.baseline
            parts.append(hovered(f"{name}: {height:,.4g}", level(y(height), SOFT, ' stroke-dasharray="5 4"')))
            legend.append((f"- - {name}", SOFT))
        for label, points, shade, dashes in lines:
            path = " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke-width="1.6"{dashes} style="stroke:{shade}"/>')
            parts += [
                self._point(label, point, (x, y), shade, len(points) > 30) for point in evenly(points, MAX_HOVERED)
            ]
            legend.append((f"{'- -' if dashes else '—'} {label}", shade))
        return figure(self.title, WIDTH, HEIGHT, parts, legend)

    def _point(
        self, label: str, point: tuple[float, float], scales: tuple[Scale, Scale], shade: str, is_many: bool
    ) -> str:
        """Draw a point; of many it is only felt, not seen."""
        across, down = (scale(value) for scale, value in zip(scales, point, strict=True))
        size, seen = ("5", ";fill-opacity:0") if is_many else ("2.5", "")
        said = f"{label}: {point[1]:,.5g} at {self.x_name or 'x'} {point[0]:,.6g}"
        return hovered(said, f'<circle cx="{across:.1f}" cy="{down:.1f}" r="{size}" style="fill:{shade}{seen}"/>')

    def _axes(self, points: Points) -> tuple[tuple[Scale, list[float]], tuple[Scale, list[float]]]:
        """Give the scale of each axis, and where its ticks are."""
        values = [value for _, value in points] + ([] if self.baseline is None else [self.baseline[1]])
        low, high = min(values), max(values)
        last = max(place for place, _ in points)
        low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
        x = scaled(0, max(last, 1), LEFT, WIDTH - RIGHT)
        return (x, ticks(0, last)), (scaled(low, high, HEIGHT - BOTTOM, TOP), ticks(low, high))


def color(number: int) -> str:
    """Give the page's colour of a line, by its number."""
    return f"var(--c{number % NUM_COLORS})"


def _dashes(number: int) -> str:
    """Tell lines of the same colour apart."""
    return "" if number < NUM_COLORS else f' stroke-dasharray="{2 + 4 * (number // NUM_COLORS)} 3"'


def figure(
    title: str,
    width: float,
    height: float,
    parts: Sequence[str],
    legend: Sequence[tuple[str, str]],
    is_fixed: bool = False,
) -> Markup:
    """Put a drawing together; a fixed one keeps its size, and a narrow page scrolls it."""
    title = html.escape(title)
    size = f' width="{width:.0f}" height="{height:.0f}"' if is_fixed else ""
    drawing = (
        f'<svg role="img" aria-label="{title}" viewBox="0 0 {width:.0f} {height:.0f}"{size}>{"".join(parts)}</svg>'
    )
    named = "".join(f'<span style="color:{shade}">{html.escape(name)}</span>' for name, shade in legend)
    drawing = f'<div class="scroll">{drawing}</div>' if is_fixed else drawing
    whole = ' class="whole"' if is_fixed else ""
    return Markup(f'<figure{whole}><figcaption>{title}</figcaption>{drawing}<div class="legend">{named}</div></figure>')


def axes(x: Scale, x_ticks: Sequence[float], y: Scale, y_ticks: Sequence[float], names: tuple[str, str]) -> list[str]:
    """Draw levels with their values, the places below, and what both axes are."""
    parts = [level(y(value), RULE) + text(LEFT - 6, y(value) + 4, f"{value:,.6g}", "end") for value in y_ticks]
    parts += [text(x(place), HEIGHT - BOTTOM + 15, f"{place:,.6g}", "middle") for place in x_ticks]
    middle = (LEFT + WIDTH - RIGHT) / 2
    named = [(middle, HEIGHT - 6, names[0], "middle"), (4, 10, names[1], "start")]
    return parts + [text(*each) for each in named if each[2]]


def hovered(said: str, drawn: str) -> str:
    """Let a drawing say something to a pointer that rests on it."""
    return f"<g><title>{html.escape(said)}</title>{drawn}</g>"


def level(height: float, shade: str, more: str = "") -> str:
    """Draw a horizontal line over the whole width."""
    return f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}"{more} style="stroke:{shade}"/>'


def text(across: float, down: float, said: str, anchor: str) -> str:
    """Write a text."""
    return f'<text x="{across:.1f}" y="{down:.1f}" text-anchor="{anchor}">{html.escape(said)}</text>'


def evenly(points: Points, most: int) -> Points:
    """Give the points, or of more than `most` so many, evenly spaced, with the last."""
    if len(points) <= most:
        return points
    return [points[round(number * (len(points) - 1) / (most - 1))] for number in range(most)]


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
