"""The review of a fine-tuned model's predictions in its report: confusions, calibration, scatter; tables are in pages/review.html.

A review holds the values from `tasks.scoring.review`, and `scores`, `guessing`, `best_metric`, `num_examples`, `warnings` and
`facts`.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bertkit.view.charts import SOFT, WIDTH, Figure, Frame, color, evenly, hovered, spread, text
from bertkit.view.page import named, number

CELL = 34  # side of a cell of a confusion matrix
MAX_NAME = 14  # characters of a label in a picture
MAX_POINTS = 1500  # of a scatter
NUM_CONFUSIONS = 10


def pictures(review: Mapping[str, Any]) -> list[Figure]:
    """Draw the pictures of a review."""
    draw: dict[str, Callable[[Any], Figure]]
    draw = {"confusion": confusion_matrix, "calibration": reliability, "scatter": scatter}
    return [draw[name](review[name]) for name in draw if name in review]


def headline(review: Mapping[str, Any]) -> str:
    """Write the main score beside the baseline's."""
    name = review["best_metric"]
    text = f"{named(name)} {number(review['scores'][name])} on the dev split"
    if name in review["guessing"]:
        text += f"; guessing scores {number(review['guessing'][name])}"
    return text[0].upper() + text[1:] + "."


def most_confused(confusion: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Give the most frequent confusions: (true, predicted, count); none with two labels, where the picture is enough."""
    labels, counts = confusion["labels"], confusion["counts"]
    confusions = [
        (true, predicted, counts[row][column])
        for row, true in enumerate(labels)
        for column, predicted in enumerate(labels)
        if row != column and counts[row][column]
    ]
    return sorted(confusions, key=lambda one: -one[2])[:NUM_CONFUSIONS] if len(labels) > 2 else []


def confusion_matrix(confusion: Mapping[str, Any]) -> Figure:
    """Draw counts: a row for a true label, a column for a predicted one; darker for a larger share of the row."""
    labels, counts = confusion["labels"], confusion["counts"]
    shorts = [label if len(label) <= MAX_NAME else label[: MAX_NAME - 1] + "…" for label in labels]
    longest = max(map(len, shorts))
    left = 30 + 7 * longest
    size = max(CELL, min(72, (WIDTH - left - 10) // len(labels)))
    is_turned = 7 * longest > size  # column names do not fit side by side
    top, right = (26 + 5 * longest, 5 * longest) if is_turned else (34, 10)
    parts = [
        text(left + size * len(labels) / 2, 11, "predicted", "middle"),
        f'<text text-anchor="middle" transform="translate(10 {top + size * len(labels) / 2:.0f}) rotate(-90)">true</text>',
    ]
    for place, short in enumerate(shorts):
        middle = place * size + size / 2
        turned = f'<text transform="translate({left + middle:.0f} {top - 6}) rotate(-40)">{html.escape(short)}</text>'
        parts.append(turned if is_turned else text(left + middle, top - 6, short, "middle"))
        parts.append(text(left - 6, top + middle + 4, short, "end"))
    for row, true in enumerate(labels):
        whole = sum(counts[row]) or 1
        for column, predicted in enumerate(labels):
            count = counts[row][column]
            share, x, y = count / whole, left + column * size, top + row * size
            ink = "#fff" if share > 0.55 else "var(--ink)"
            rect = f'<rect x="{x + 1}" y="{y + 1}" width="{size - 2}" height="{size - 2}" rx="3" style="fill:'
            cell = (
                f'{rect}var(--panel)"/>{rect}#1f6feb;fill-opacity:{share:.3f}"/>'
                f'<text x="{x + size / 2:.0f}" y="{y + size / 2 + 4:.0f}" text-anchor="middle" '
                f'style="fill:{ink}">{_short(count)}</text>'
            )
            parts.append(hovered(f"true {true}, predicted {predicted}: {count:,} ({share:.1%} of {true})", cell))
    width, height = max(WIDTH, left + size * len(labels) + right), top + size * len(labels) + 6
    return Figure("Confusion matrix", parts, width=width, height=height)


def _short(count: int) -> str:
    return f"{count:,}" if count < 10_000 else f"{count / 1000:.0f}k"


def reliability(calibration: Mapping[str, Any]) -> Figure:
    """Draw accuracy over confidence; on the diagonal they are equal."""
    frame = Frame((0, 1), (0, 1), ("confidence", "share that is right"))
    for part in calibration["bins"]:
        first, last, height = frame.x(part["from"]) + 1, frame.x(part["to"]) - 1, frame.y(part["accuracy"])
        title = (
            f"confidence {part['from']:g} to {part['to']:g}, mean {part['confidence']:.3f}: "
            f"{part['accuracy']:.1%} of {part['count']:,} are right"
        )
        bar = (
            f'<rect x="{first:.1f}" y="{height:.1f}" width="{last - first:.1f}" height="{frame.y(0) - height:.1f}" '
            f'fill-opacity="0.55" style="fill:{color(0)}"/>'
        )
        dot = frame.dot((part["confidence"], part["accuracy"]), 3, f"fill:{color(1)}")
        frame.parts.append(hovered(title, bar + dot))
    frame.parts.append(frame.dashed((0, 0), (1, 1)))
    legend = [("- - perfectly calibrated", SOFT), ("● mean confidence of a bin", color(1))]
    return Figure(f"Calibration: expected error {calibration['error']:.3f}", frame.parts, legend)


def scatter(points: Sequence[tuple[float, float, str]]) -> Figure:
    """Draw predicted over true numbers; on the diagonal they are equal."""
    limits = spread([value for *pair, _ in points for value in pair])
    frame = Frame(limits, limits, ("true", "predicted"))
    frame.parts.append(frame.dashed((limits[0], limits[0]), (limits[1], limits[1])))
    shown = evenly(points, MAX_POINTS)
    for true, predicted, name in shown:
        dot = frame.dot((true, predicted), 3, f"fill:{color(0)};fill-opacity:0.5")
        frame.parts.append(hovered(f"{name}: true {true:.4g}, predicted {predicted:.4g}", dot))
    some = f" ({len(shown):,} of {len(points):,} shown)" if len(shown) < len(points) else ""
    return Figure(f"Predicted and true{some}", frame.parts, [("- - perfect", SOFT)])
