"""bench.html: what a bench measured, with its charts, the machine and the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.view.charts import BarChart, LineChart
from bertkit.view.page import Table, facts_table, page


def bench_page(
    facts: Mapping[str, Any], tables: Sequence[Table], charts: Sequence[LineChart | BarChart], settings: str
) -> str:
    """Make the page.

    Args:
        facts: what was measured, when, on what, and by which command.
        tables: what was found.
        charts: the same, drawn.
        settings: all of them, as text.
    """
    body = f"""<div class="charts">{"".join(chart.svg() for chart in charts)}</div>
{"".join(table.html() for table in tables)}
<h2>Run</h2>{facts_table({name: value for name, value in facts.items() if value is not None})}"""
    headline = f"bertkit beside Hugging Face, {facts['date']}, {facts['processor']}"
    return page(f"bench: {facts['what']}", headline, body, settings)
