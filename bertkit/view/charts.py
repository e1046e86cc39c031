"""Charts as inline SVG: lines over steps or sizes, and bars with their spread."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 480, 240, 62, 24, 28, 12
BAR_HEIGHT, BAR_LEFT = 26, 300
COLORS = ("#1f6feb", "#d1570a", "#1a7f37", "#8250df")
GREY = "#57606a"
Points = Sequence[tuple[float, float]]
Scale = Callable[[float], float]


@dataclass(frozen=True)
class LineChart:
    """Lines over a common axis."""

    title: str  # says what both axes are
    lines: Sequence[tuple[str, Points]]
    baseline: tuple[str, float] | None = None  # a dashed line to compare with
    is_log: bool = False  # both axes in powers, where a power law is a straight line; all values above 0

    def svg(self) -> str:
        """Draw it, from 0 on unless the axes are in powers; nothing when there is no point."""
        colored = zip(self.lines, itertools.cycle(COLORS), strict=False)
        lines = [(label, points, color) for (label, points), color in colored if points]
        if not lines:
            return ""
        (x, x_ticks), (y, y_ticks) = self._axes([point for _, points, _ in lines for point in points])
        parts = [
            _level(y(value), "#eaeef2") + _text(LEFT - 6, y(value) + 4, f"{value:,.6g}", "end") for value in y_ticks
        ]
        parts += [_text(x(place), HEIGHT - 8, f"{place:,.6g}", "middle") for place in x_ticks]
        legend = []
        if self.baseline is not None:
            name, height = self.baseline
            parts.append(_level(y(height), GREY, ' stroke-dasharray="5 4"'))
            legend.append(f'<span style="color:{GREY}">- - {html.escape(name)}</span>')
        for label, points, color in lines:
            places = [(x(place), y(value)) for place, value in points]
            path = " ".join(f"{across:.1f},{down:.1f}" for across, down in places)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6"/>')
            if len(points) <= 30:
                parts += [f'<circle cx="{a:.1f}" cy="{d:.1f}" r="2.5" fill="{color}"/>' for a, d in places]
            legend.append(f'<span style="color:{color}">— {html.escape(label)}</span>')
        return _figure(self.title, WIDTH, HEIGHT, parts, legend)

    def _axes(self, points: Points) -> tuple[tuple[Scale, list[float]], tuple[Scale, list[float]]]:
        """Give the scale of each axis, and where its ticks are."""
        values = [value for _, value in points] + ([] if self.baseline is None else [self.baseline[1]])
        low, high = min(values), max(values)
        places = sorted({place for place, _ in points})
        if self.is_log:
            low, high = low / 1.1, high * 1.1
            x = _scale(places[0], max(places[-1], places[0] * 1.01), LEFT, WIDTH - RIGHT, math.log)
            return (x, places), (_scale(low, high, HEIGHT - BOTTOM, TOP, math.log), _log_ticks(low, high))
        low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
        x = _scale(0, max(places[-1], 1), LEFT, WIDTH - RIGHT)
        return (x, _ticks(0, places[-1])), (_scale(low, high, HEIGHT - BOTTOM, TOP), _ticks(low, high))


@dataclass(frozen=True)
class BarChart:
    """A bar for each of several things, and a line over it from the least to the greatest measurement."""

    title: str  # says what the bars measure
    bars: Sequence[tuple[str, float, float, float]]  # name, value, least, greatest

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
                _text(BAR_LEFT - 6, middle + 4, html.escape(name), "end")
                + f'<rect x="{BAR_LEFT}" y="{top}" width="{x(value) - BAR_LEFT:.1f}" height="{BAR_HEIGHT - 6}" '
                f'fill="{COLORS[0]}" fill-opacity="0.6"/>'
                f'<line x1="{x(least):.1f}" x2="{x(greatest):.1f}" y1="{middle:.1f}" y2="{middle:.1f}" stroke="#1c2128"/>'
                + _text(x(greatest) + 6, middle + 4, f"{value:,.4g}", "start")
            )
        return _figure(self.title, WIDTH + BAR_LEFT, 2 * TOP + len(self.bars) * BAR_HEIGHT, parts, [])


def _figure(title: str, width: int, height: int, parts: Sequence[str], legend: Sequence[str]) -> str:
    title = html.escape(title)
    return (
        f'<figure><figcaption>{title}</figcaption><svg role="img" aria-label="{title}" width="{width}" height="{height}">'
        f'{"".join(parts)}</svg><div class="legend">{"".join(legend)}</div></figure>'
    )


def _level(height: float, color: str, more: str = "") -> str:
    return f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}" stroke="{color}"{more}/>'


def _text(across: float, down: float, text: str, anchor: str) -> str:
    return f'<text x="{across:.1f}" y="{down:.1f}" text-anchor="{anchor}">{text}</text>'


def _scale(low: float, high: float, first: float, last: float, bend: Callable[[float], float] = float) -> Scale:
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
