"""Charts as inline SVG, in the page's light and dark colours, with values on hover: lines, calibration, scatter plots."""

import html
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bertkit.base.errors import shown
from bertkit.base.text_files import JsonObject

WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 400, 230, 58, 16, 38, 22
NUM_COLORS = 6  # the colours --c0 to --c5 in page.css
MAX_HOVERED = 120  # points of a line with values on hover
MAX_POINTS = 1500  # of a scatter plot
SOFT = "var(--soft)"
Points = Sequence[tuple[float, float]]
Point = TypeVar("Point")
Scale = Callable[[float], float]


@dataclass(frozen=True)
class Figure:
    """A chart for a page."""

    title: str
    parts: Sequence[str]  # SVG elements
    legend: Sequence[tuple[str, str]] = ()  # (name, colour)
    width, height = WIDTH, HEIGHT


def line_chart(
    title: str,
    lines: Sequence[tuple[str, Points]],
    baseline: tuple[str, float] | None = None,
    x_name: str = "",
    y_name: str = "",
    *,
    is_noisy: bool = False,
) -> Figure | None:
    """Draw lines, and a dashed baseline; the horizontal axis begins at 0 or below. Return None if there are no points.

    A noisy line of n points is drawn faintly, behind its moving mean over n / 30 points on either side.
    """
    colored = [(*line, line_color(number), _dashes(number)) for number, line in enumerate(lines)]
    drawn = [line for line in colored if line[1]]
    if not drawn:
        return None
    values = [value for _, points, *_ in drawn for _, value in points]
    values += [baseline[1]] if baseline else []
    places = [place for _, points, *_ in drawn for place, _ in points]
    first, last = min(0, *places), max(1, *places)
    axes = Axes((first, last), limits_of(values), (x_name, y_name))
    legend = []
    if baseline is not None:
        name, height = baseline
        dashed = axes.dashed((first, height), (last, height))
        axes.parts.append(with_hover(f"{name}: {height:,.4g}", dashed))
        legend.append((f"- - {name}", SOFT))
    for label, points, shade, dashes in drawn:
        mean = smoothed(points, len(points) // 30) if is_noisy else points
        if mean != points:
            axes.parts.append(axes.line(points, f'stroke-opacity="0.3" style="stroke:{shade}"'))
        axes.parts.append(axes.line(mean, f'stroke-width="1.6"{dashes} style="stroke:{shade}"'))
        # on a line with many points, the points are invisible, but still have values on hover
        style = (5, f"fill:{shade};fill-opacity:0") if len(points) > 30 else (2.5, f"fill:{shade}")
        for place, value in thinned(points, MAX_HOVERED):
            hover = f"{label}: {value:,.5g} at {x_name or 'x'} {place:,.6g}"
            axes.parts.append(with_hover(hover, axes.dot((place, value), *style)))
        legend.append((f"{'- -' if dashes else '—'} {label}", shade))
    return Figure(title, axes.parts, legend if len(lines) > 1 or baseline else ())


class Axes:
    """Two axes with names and ticks, and the SVG elements that are drawn on them."""

    def __init__(self, across: tuple[float, float], up: tuple[float, float], names: tuple[str, str]) -> None:
        self.x, self.y = linear_scale(*across, LEFT, WIDTH - RIGHT), linear_scale(*up, HEIGHT - BOTTOM, TOP)
        rule = f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{{0:.1f}}" y2="{{0:.1f}}" style="stroke:var(--rule)"/>'
        self.parts = [
            rule.format(self.y(value)) + text(LEFT - 6, self.y(value) + 4, f"{value:,.6g}", "end")
            for value in ticks(*up)
        ]
        self.parts += [text(self.x(place), HEIGHT - BOTTOM + 15, f"{place:,.6g}", "middle") for place in ticks(*across)]
        named = [((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, names[0], "middle"), (4, 10, names[1], "start")]
        self.parts += [text(*name) for name in named if name[2]]

    def dot(self, point: tuple[float, float], radius: float, style: str) -> str:
        """Return a point."""
        return f'<circle cx="{self.x(point[0]):.1f}" cy="{self.y(point[1]):.1f}" r="{radius:g}" style="{style}"/>'

    def line(self, points: Points, look: str) -> str:
        """Return a line through points; `look` are its SVG attributes."""
        path = " ".join(f"{self.x(place):.1f},{self.y(value):.1f}" for place, value in points)
        return f'<polyline points="{path}" fill="none" {look}/>'

    def dashed(self, first: tuple[float, float], last: tuple[float, float]) -> str:
        """Return a dashed line."""
        (x1, y1), (x2, y2) = ((self.x(across), self.y(up)) for across, up in (first, last))
        ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        return f'<line {ends} stroke-dasharray="5 4" style="stroke:{SOFT}"/>'


def line_color(number: int) -> str:
    """Return the colour of a line, by its number."""
    return f"var(--c{number % NUM_COLORS})"


def _dashes(number: int) -> str:
    """Return the dashes of a line; lines with the same colour have different dashes."""
    return "" if number < NUM_COLORS else f' stroke-dasharray="{2 + 4 * (number // NUM_COLORS)} 3"'


def with_hover(title: str, drawing: str) -> str:
    """Add a text to a drawing that appears on hover."""
    return f"<g><title>{html.escape(shown(title))}</title>{drawing}</g>"


def text(across: float, down: float, content: str, anchor: str) -> str:
    """Return a text."""
    return f'<text x="{across:.1f}" y="{down:.1f}" text-anchor="{anchor}">{html.escape(shown(content))}</text>'


def thinned(points: Sequence[Point], most: int) -> Sequence[Point]:
    """Return at most `most` of the points, evenly spaced, always with the first and the last."""
    if len(points) <= most:
        return points
    return [points[round(number * (len(points) - 1) / (most - 1))] for number in range(most)]


def smoothed(points: Points, reach: int) -> Points:
    """Return the moving mean over `reach` points on either side, or as many as there are."""
    values = [value for _, value in points]
    means = (statistics.fmean(values[max(0, n - reach) : n + reach + 1]) for n in range(len(values)))
    return [(place, mean) for (place, _), mean in zip(points, means, strict=True)]


def limits_of(values: Sequence[float]) -> tuple[float, float]:
    """Return the smallest and the largest value; if they are equal, an interval of length 1 around them."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def linear_scale(low: float, high: float, first: float, last: float) -> Scale:
    """Return a function that maps the interval from low to high to the one from first to last."""
    width = (high - low) or 1.0  # the difference of very large numbers may be 0
    return lambda value: first + (last - first) * (value - low) / width


def ticks(low: float, high: float) -> list[float]:
    """Return four to eight round numbers between two limits."""
    rough = (high - low) / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    size = min((power * factor for factor in (1, 2, 5, 10)), key=lambda width: abs(width - rough))
    return [size * number for number in range(math.ceil(low / size), math.floor(high / size) + 1)]


def reliability(calibration: JsonObject) -> Figure:
    """Draw accuracy over confidence; on the diagonal, predictions are perfectly calibrated."""
    axes = Axes((0, 1), (0, 1), ("confidence", "accuracy"))
    for part in calibration["bins"]:
        first, last, height = axes.x(part["from"]) + 1, axes.x(part["to"]) - 1, axes.y(part["accuracy"])
        title = (
            f"confidence {part['from']:.2g} to {part['to']:.2g}, mean {part['confidence']:.3f}: "
            f"{part['accuracy']:.1%} of {part['count']:,} are right"
        )
        bar = (
            f'<rect x="{first:.1f}" y="{height:.1f}" width="{last - first:.1f}" height="{axes.y(0) - height:.1f}" '
            f'fill-opacity="0.55" style="fill:{line_color(0)}"/>'
        )
        dot = axes.dot((part["confidence"], part["accuracy"]), 3, f"fill:{line_color(1)}")
        axes.parts.append(with_hover(title, bar + dot))
    axes.parts.append(axes.dashed((0, 0), (1, 1)))
    legend = [("- - perfectly calibrated", SOFT), ("● mean confidence of a bin", line_color(1))]
    return Figure(f"Calibration: expected error {calibration['error']:.3f}", axes.parts, legend)


def scatter(points: Sequence[tuple[float, float, str]]) -> Figure:
    """Draw predicted over true numbers; on the diagonal, predictions are perfect."""
    limits = limits_of([value for *pair, _ in points for value in pair])
    axes = Axes(limits, limits, ("true", "predicted"))
    axes.parts.append(axes.dashed((limits[0], limits[0]), (limits[1], limits[1])))
    drawn = thinned(points, MAX_POINTS)
    for true, predicted, name in drawn:
        dot = axes.dot((true, predicted), 3, f"fill:{line_color(0)};fill-opacity:0.5")
        axes.parts.append(with_hover(f"{name}: true {true:.4g}, predicted {predicted:.4g}", dot))
    some = f" ({len(drawn):,} of {len(points):,} shown)" if len(drawn) < len(points) else ""
    return Figure(f"Predicted and true{some}", axes.parts, [("- - perfect", SOFT)])
