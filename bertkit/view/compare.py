"""compare.html: several runs beside one another, with their curves over one another."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.view.charts import LineChart
from bertkit.view.page import Table, page
from bertkit.view.report import CHARTS, TASK_CHARTS
from bertkit.view.review import named, number

Rows = Sequence[Mapping[str, Any]]  # of metrics.jsonl


def scores_table(runs: Sequence[tuple[str, str, Mapping[str, float]]]) -> Table:
    """Put the scores of runs into a table: each run's name, its steps and its scores by name."""
    columns = list(dict.fromkeys(name for _, _, scores in runs for name in scores))
    rows = [
        (name, steps, *(number(scores[column]) if column in scores else "-" for column in columns))
        for name, steps, scores in runs
    ]
    return Table("Scores", ("run", "steps", *map(named, columns)), rows)


def settings_table(names: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Table:
    """Put settings that differ into a table, a row each."""
    return Table("What differs", ("setting", *names), [(key, *values) for key, values in rows.items()])


def comparison_page(runs: Sequence[tuple[str, Rows]], lines: Sequence[str], tables: Sequence[Table]) -> str:
    """Write the page: what was found in `lines`, the tables, and a chart for each value that is logged."""
    names = ", ".join(name for name, _ in runs)
    charts = []
    is_pretraining = any("mlm_loss" in row for _, rows in runs for row in rows)
    for curves in CHARTS if is_pretraining else TASK_CHARTS:
        for key, label in curves.series:
            overlaid = [
                (name, [(row["step"], row[key]) for row in rows if key in row and math.isfinite(row[key])])
                for name, rows in runs
            ]
            title = curves.title if len(curves.series) == 1 else f"{curves.title}, {label}"
            charts.append(LineChart(title, overlaid, x_name="step", y_name=curves.unit).svg())
    told = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
    written = "".join(table.html() for table in tables if table.rows)
    body = f'{told}{written}<h2>Curves</h2><div class="charts">{"".join(charts)}</div>'
    return page("compare", f"{len(runs)} runs: {names}", body)
