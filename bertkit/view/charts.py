"""Charts as inline SVG: lines over steps or sizes, and bars with their spread."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 480, 240, 62, 24, 28, 12
BAR_HEIGHT, BAR_LEFT = 26, 300
COLORS = ("#1f6feb", "#d1570a", "#1a7f37", "#8250df")
GREY = "#57606a"
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class LineChart:
    """Lines over a common axis.

    Attributes:
        title: above it; says what both axes are.
        lines: their names and points.
        baseline: the name and height of a dashed line to compare with.
        is_log: both axes in powers, where a power law is a straight line; all values above 0.
    """

    title: str
    lines: Sequence[tuple[str, Points]]
    baseline: tuple[str, float] | None = None
    is_log: bool = False

    def svg(self) -> str:
        """Draw it, from 0 on unless the axes are in powers; nothing when there is no point."""
        lines = [
            (label, color, points)
            for (label, points), color in zip(self.lines, COLORS * (1 + len(self.lines) // len(COLORS)), strict=False)
            if points
        ]
        if not lines:
            return ""
        values = [value for _, _, points in lines for _, value in points]
        if self.baseline is not None:
            values.append(self.baseline[1])
        low, high = min(values), max(values)
        places = sorted({place for _, _, points in lines for place, _ in points})
        if self.is_log:
            x = _scale(places[0], max(places[-1], places[0] * 1.01), LEFT, WIDTH - RIGHT, math.log)
            y = _scale(low / 1.1, high * 1.1, HEIGHT - BOTTOM, TOP, math.log)
            x_ticks, y_ticks = places, _log_ticks(low / 1.1, high * 1.1)
        else:
            low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
            x = _scale(0, max(places[-1], 1), LEFT, WIDTH - RIGHT)
            y = _scale(low, high, HEIGHT - BOTTOM, TOP)
            x_ticks, y_ticks = _ticks(0, places[-1]), _ticks(low, high)
        parts = [
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#eaeef2"/>'
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,.6g}</text>'
            for value in y_ticks
        ]
        parts += [
            f'<text x="{x(place):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{place:,.6g}</text>' for place in x_ticks
        ]
        legend = []
        if self.baseline is not None:
            name, height = self.baseline[0], y(self.baseline[1])
            parts.append(
                f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}" stroke="{GREY}" '
                'stroke-dasharray="5 4"/>'
            )
            legend.append(f'<span style="color:{GREY}">- - {html.escape(name)}</span>')
        for label, color, points in lines:
            path = " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6"/>')
            if len(points) <= 30:
                parts += [f'<circle cx="{x(s):.1f}" cy="{y(v):.1f}" r="2.5" fill="{color}"/>' for s, v in points]
            legend.append(f'<span style="color:{color}">— {html.escape(label)}</span>')
        return _figure(self.title, WIDTH, HEIGHT, parts, legend)


@dataclass(frozen=True)
class BarChart:
    """A bar for each of several things, and a line over it from the least to the greatest measurement.

    Attributes:
        title: above it; says what the bars measure.
        bars: name, value, least, greatest.
    """

    title: str
    bars: Sequence[tuple[str, float, float, float]]

    def svg(self) -> str:
        """Draw it, from 0 on; nothing when there is no bar."""
        if not self.bars:
            return ""
        x = _scale(0, max(greatest for *_, greatest in self.bars), BAR_LEFT, WIDTH + BAR_LEFT - 2 * RIGHT)
        parts = []
        for number, (name, value, least, greatest) in enumerate(self.bars):
            top = TOP + number * BAR_HEIGHT
            middle = top + BAR_HEIGHT / 2 - 3
            parts.append(
                f'<text x="{BAR_LEFT - 6}" y="{middle + 4:.1f}" text-anchor="end">{html.escape(name)}</text>'
                f'<rect x="{BAR_LEFT}" y="{top}" width="{x(value) - BAR_LEFT:.1f}" height="{BAR_HEIGHT - 6}" '
                f'fill="{COLORS[0]}" fill-opacity="0.6"/>'
                f'<line x1="{x(least):.1f}" x2="{x(greatest):.1f}" y1="{middle:.1f}" y2="{middle:.1f}" stroke="#1c2128"/>'
                f'<text x="{x(greatest) + 6:.1f}" y="{middle + 4:.1f}">{value:,.4g}</text>'
            )
        return _figure(self.title, WIDTH + BAR_LEFT, 2 * TOP + len(self.bars) * BAR_HEIGHT, parts, [])


def _figure(title: str, width: int, height: int, parts: Sequence[str], legend: Sequence[str]) -> str:
    title = html.escape(title)
    return (
        f'<figure><figcaption>{title}</figcaption><svg role="img" aria-label="{title}" width="{width}" height="{height}">'
        f'{"".join(parts)}</svg><div class="legend">{"".join(legend)}</div></figure>'
    )


def _scale(
    low: float, high: float, first: float, last: float, bend: Callable[[float], float] = float
) -> Callable[[float], float]:
    """Map values from low to high to places from first to last, straight or through a logarithm."""
    return lambda value: first + (last - first) * (bend(value) - bend(low)) / (bend(high) - bend(low))


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, 20, 50, ... between two limits above 0; round numbers where those are few, 1, 10, 100 where they are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 4 else (1,)
    found = [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]
    return found if len(found) > 2 else _ticks(low, high)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between two limits, some four to eight of them."""
    rough = (high - low) / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    size = min((power * factor for factor in (1, 2, 5, 10)), key=lambda width: abs(width - rough))
    return [size * number for number in range(math.ceil(low / size), math.floor(high / size) + 1)]
