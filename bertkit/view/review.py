"""The review of a fine-tuned model's predictions in its report: confusions, calibration, scatter; tables are in pages/review.html.

A review holds the values from `tasks.scoring.review`, and `scores`, `guessing`, `best_metric`, `num_examples`, `warnings` and
`facts`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.view.charts import SOFT, Figure, Frame, color, evenly, hovered, spread
from bertkit.view.page import named, number

MAX_POINTS = 1500  # of a scatter
NUM_CONFUSIONS = 10


def pictures(review: Mapping[str, Any]) -> list[Figure]:
    """Draw the pictures of a review."""
    figures = [reliability(review["calibration"])] if "calibration" in review else []
    return [*figures, scatter(review["scatter"])] if "scatter" in review else figures


def headline(review: Mapping[str, Any]) -> str:
    """Write the main score beside the baseline's."""
    name = review["best_metric"]
    text = f"{named(name)} {number(review['scores'][name])} on the dev split"
    if name in review["guessing"]:
        text += f"; guessing scores {number(review['guessing'][name])}"
    return text[0].upper() + text[1:] + "."


def most_confused(confusion: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Give the most frequent confusions: (true, predicted, count); none with two labels, where the matrix is enough."""
    labels, counts = confusion["labels"], confusion["counts"]
    confusions = [
        (true, predicted, counts[row][column])
        for row, true in enumerate(labels)
        for column, predicted in enumerate(labels)
        if row != column and counts[row][column]
    ]
    return sorted(confusions, key=lambda one: -one[2])[:NUM_CONFUSIONS] if len(labels) > 2 else []


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
