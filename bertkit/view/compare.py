"""compare.html: the scores, settings and curves of several runs."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.view.charts import line_chart
from bertkit.view.page import Table, named, number, render
from bertkit.view.report import CHARTS, TASK_CHARTS

Rows = Sequence[Mapping[str, Any]]  # of metrics.jsonl


def scores_table(runs: Sequence[tuple[str, str, Sequence[Mapping[str, float]]]]) -> Table:
    """Give the table of scores of runs: (name, steps, the scores of each seed)."""
    columns = list(dict.fromkeys(name for _, _, seeds in runs for scores in seeds for name in scores))
    rows = [
        (name, steps, *(_cell([scores[column] for scores in seeds if column in scores]) for column in columns))
        for name, steps, seeds in runs
    ]
    return Table("Scores", ("run", "steps", *map(named, columns)), rows)


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    if len(values) == 1:
        return number(values[0])
    return f"{number(statistics.fmean(values))} ± {number(statistics.stdev(values))}"


def settings_table(names: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Table:
    """Give the table of differing settings."""
    return Table("What differs", ("setting", *names), [(key, *values) for key, values in rows.items()])


def comparison_page(runs: Sequence[tuple[str, Sequence[Rows]]], lines: Sequence[str], tables: Sequence[Table]) -> str:
    """Write the page: findings, tables, and a chart for every logged value."""
    names = ", ".join(name for name, _ in runs)
    charts = []
    is_pretraining = any("mlm_loss" in row for _, seeds in runs for rows in seeds for row in rows)
    for curves in CHARTS if is_pretraining else TASK_CHARTS:
        for key, label in curves.series:
            overlaid = [(name, _mean_curve(seeds, key)) for name, seeds in runs]
            title = curves.title if len(curves.series) == 1 else f"{curves.title}, {label}"
            charts.append(line_chart(title, overlaid, x_name="step", y_name=curves.unit))
    headline = f"{len(runs)} runs: {names}"
    return render("compare.html", name="compare", headline=headline, lines=lines, tables=tables, charts=charts)


def _mean_curve(seeds: Sequence[Rows], key: str) -> list[tuple[float, float]]:
    """Give a value at each step: the mean of the seeds that logged it."""
    at_step: dict[float, list[float]] = defaultdict(list)
    for rows in seeds:
        for row in rows:
            if key in row and math.isfinite(row[key]):
                at_step[row["step"]].append(row[key])
    return [(step, statistics.fmean(values)) for step, values in sorted(at_step.items())]
