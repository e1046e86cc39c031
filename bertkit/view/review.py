"""What a report shows of a fine-tuned model's predictions: scores beside guessing, confusions, calibration, mistakes.

It draws the plain values that `tasks.review` gives, with `scores`, `guessing`, `best_metric`, `num_examples`, `warnings` and `facts` beside them; what
is not there is left out.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.view.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    SOFT,
    TOP,
    WIDTH,
    axes,
    color,
    evenly,
    figure,
    hovered,
    scaled,
    text,
    ticks,
)
from bertkit.view.page import Table, facts_table

CELL = 34  # side of a cell of a confusion matrix
MAX_NAME = 14  # characters of a label that a picture has room for
MAX_POINTS = 1500  # of a scatter
NUM_CONFUSIONS = 10
NAMES = {
    "f1": "F1",
    "f1_macro": "macro F1",
    "f1_micro": "micro F1",
    "overall_f1": "F1 of entities",
    "exact": "exact match",
    "pearson": "Pearson correlation",
    "spearmanr": "Spearman correlation",
    "matthews_correlation": "Matthews correlation",
}
SHARES = (0, 0.2, 0.4, 0.6, 0.8, 1.0)


def review_sections(review: Mapping[str, Any]) -> str:
    """Write all of it, the score first."""
    pictures = [
        confusion_matrix(review["confusion"]) if "confusion" in review else "",
        reliability(review["calibration"]) if "calibration" in review else "",
        scatter(review["scatter"]) if "scatter" in review else "",
    ]
    warnings = "".join(f'<p class="warning">{html.escape(text)}</p>' for text in review.get("warnings", ()))
    parts = [_tiles(review), warnings, f'<div class="charts">{"".join(pictures)}</div>', _scores(review)]
    if review.get("by_label"):
        parts.append(_by_label(review["by_label"]))
    if "confusion" in review:
        parts.append(_confused(review["confusion"]))
    parts += [Table(each["title"], each["columns"], each["rows"]).html() for each in review.get("groups", ())]
    if review.get("mistakes", {}).get("rows"):
        each = review["mistakes"]
        parts.append(Table(each["title"], each["columns"], each["rows"]).html(is_of_texts=True))
    if review.get("facts"):
        parts.append(f"<h2>Training</h2>{facts_table(review['facts'])}")
    return "\n".join(part for part in parts if part)


def headline(review: Mapping[str, Any]) -> str:
    """Say in a sentence how good the model is, beside who guesses."""
    name = review["best_metric"]
    said = f"{named(name)} {number(review['scores'][name])} on the dev split"
    if name in review["guessing"]:
        said += f", where guessing scores {number(review['guessing'][name])}"
    return said[0].upper() + said[1:] + "."


def number(value: float) -> str:
    """Write a score: a whole number as it is, others with four digits."""
    if isinstance(value, int) or value == 0:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 1 else f"{value:.4f}"


def named(metric: str) -> str:
    """Write the name of a metric for people."""
    return NAMES.get(metric, metric.replace("_", " "))


def _tiles(review: Mapping[str, Any]) -> str:
    name = review["best_metric"]
    tiles = [(number(review["scores"][name]), named(name))]
    if name in review["guessing"]:
        tiles.append((number(review["guessing"][name]), f"{named(name)} of guessing"))
    if "calibration" in review:
        tiles.append((f"{review['calibration']['error']:.3f}", "expected calibration error"))
    if "mean_absolute_error" in review:
        tiles.append((f"{review['mean_absolute_error']:.3g}", "mean absolute error"))
    tiles.append((f"{review['num_examples']:,}", "dev examples"))
    return f'<div class="tiles">{"".join(f"<div><b>{value}</b><span>{html.escape(what)}</span></div>" for value, what in tiles)}</div>'


def _scores(review: Mapping[str, Any]) -> str:
    guessing = review["guessing"]
    rows = [
        (named(name), number(value), number(guessing[name]) if name in guessing else "-")
        for name, value in review["scores"].items()
        if not name.endswith(("total", "thresh", "threshold"))  # of SQuAD; they are no scores
    ]
    said = "Guessing is to say of every example what is commonest in the training examples; of a question, that it has no answer."
    return Table("Scores", ("metric", "this model", "guessing"), rows).html() + (f"<p>{said}</p>" if guessing else "")


def _by_label(scores: Mapping[str, Mapping[str, float]]) -> str:
    rows = [
        (label, *(f"{own[name]:.3f}" for name in ("precision", "recall", "f1")), f"{own['support']:,}")
        for label, own in scores.items()
    ]
    return Table("By label", ("label", "precision", "recall", "F1", "true ones"), rows).html()


def _confused(confusion: Mapping[str, Any]) -> str:
    """The labels that are most often taken for one another."""
    labels, counts = confusion["labels"], confusion["counts"]
    found = [
        (counts[row][column], true, said)
        for row, true in enumerate(labels)
        for column, said in enumerate(labels)
        if row != column and counts[row][column]
    ]
    if len(labels) < 3 or not found:
        return ""
    rows = [
        (true, said, f"{count:,}") for count, true, said in sorted(found, key=lambda each: -each[0])[:NUM_CONFUSIONS]
    ]
    return Table("Most confused", ("true", "taken for", "times"), rows).html()


def confusion_matrix(confusion: Mapping[str, Any]) -> str:
    """Draw counts: a row a true label, a column a predicted one, the darker the larger its share of the row."""
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
        for column, said in enumerate(labels):
            count = counts[row][column]
            share, x, y = count / whole, left + column * size, top + row * size
            ink = "#fff" if share > 0.55 else "var(--ink)"
            parts.append(
                hovered(
                    f"true {true}, predicted {said}: {count:,} ({share:.1%} of {true})",
                    f'<rect x="{x + 1}" y="{y + 1}" width="{size - 2}" height="{size - 2}" rx="3" style="fill:var(--panel)"/>'
                    f'<rect x="{x + 1}" y="{y + 1}" width="{size - 2}" height="{size - 2}" rx="3" '
                    f'style="fill:#1f6feb;fill-opacity:{share:.3f}"/>'
                    f'<text x="{x + size / 2:.0f}" y="{y + size / 2 + 4:.0f}" text-anchor="middle" '
                    f'style="fill:{ink}">{_short(count)}</text>',
                )
            )
    width, height = max(WIDTH, left + size * len(labels) + right), top + size * len(labels) + 6
    return figure("Confusion matrix", width, height, parts, [], is_fixed=width > WIDTH)


def _short(count: int) -> str:
    return f"{count:,}" if count < 10_000 else f"{count / 1000:.0f}k"


def reliability(calibration: Mapping[str, Any]) -> str:
    """Draw accuracy over confidence; on the diagonal both are the same."""
    x, y = scaled(0, 1, LEFT, WIDTH - RIGHT), scaled(0, 1, HEIGHT - BOTTOM, TOP)
    parts = axes(x, SHARES, y, SHARES, ("confidence", "share that is right"))
    for each in calibration["bins"]:
        first, last, height = x(each["from"]) + 1, x(each["to"]) - 1, y(each["accuracy"])
        said = (
            f"confidence {each['from']:g} to {each['to']:g}, mean {each['confidence']:.3f}: "
            f"{each['accuracy']:.1%} of {each['count']:,} are right"
        )
        bar = (
            f'<rect x="{first:.1f}" y="{height:.1f}" width="{last - first:.1f}" height="{y(0) - height:.1f}" '
            f'fill-opacity="0.55" style="fill:{color(0)}"/>'
            f'<circle cx="{x(each["confidence"]):.1f}" cy="{height:.1f}" r="3" style="fill:{color(1)}"/>'
        )
        parts.append(hovered(said, bar))
    parts.append(
        f'<line x1="{x(0):.1f}" y1="{y(0):.1f}" x2="{x(1):.1f}" y2="{y(1):.1f}" stroke-dasharray="5 4" style="stroke:{SOFT}"/>'
    )
    legend = [("- - perfectly calibrated", SOFT), ("● mean confidence of a bin", color(1))]
    title = f"Calibration: expected error {calibration['error']:.3f}"
    return figure(title, WIDTH, HEIGHT, parts, legend)


def scatter(points: Sequence[tuple[float, float, str]]) -> str:
    """Draw predicted over true numbers; on the diagonal both are the same."""
    values = [value for true, said, _ in points for value in (true, said)]
    low, high = min(values), max(values)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    x, y = scaled(low, high, LEFT, WIDTH - RIGHT), scaled(low, high, HEIGHT - BOTTOM, TOP)
    parts = axes(x, ticks(low, high), y, ticks(low, high), ("true", "predicted"))
    parts.append(
        f'<line x1="{x(low):.1f}" y1="{y(low):.1f}" x2="{x(high):.1f}" y2="{y(high):.1f}" stroke-dasharray="5 4" '
        f'style="stroke:{SOFT}"/>'
    )
    shown = evenly(list(enumerate(values[::2])), MAX_POINTS)
    for place, _ in shown:
        true, said, name = points[int(place)]
        dot = f'<circle cx="{x(true):.1f}" cy="{y(said):.1f}" r="3" fill-opacity="0.5" style="fill:{color(0)}"/>'
        parts.append(hovered(f"{name}: true {true:.4g}, predicted {said:.4g}", dot))
    some = f" ({len(shown):,} of {len(points):,} shown)" if len(shown) < len(points) else ""
    return figure(f"Predicted and true{some}", WIDTH, HEIGHT, parts, [("- - as they should be", SOFT)])
