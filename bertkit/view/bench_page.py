"""bench.html: what a bench measured, with its charts, the machine and the command."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.view.charts import BarChart, LineChart
from bertkit.view.page import Table, facts_table, page

HEAD = ("ratio (lowest - highest)", "to Hugging Face at its best", "peak memory")


@dataclass(frozen=True)
class Findings:
    """What a bench found.

    Attributes:
        unit: of its rates.
        results: plain values, for JSON.
        tables: for the terminal, and for the page.
        charts: for the page.
    """

    unit: str
    results: Sequence[dict[str, Any]]
    tables: Sequence[Table]
    charts: Sequence[LineChart | BarChart]


@dataclass(frozen=True)
class Result:
    """What was measured of a system: medians of the rounds.

    Attributes:
        name: of the system.
        rate: units a second.
        ratio: to the first system's rate in the same round, with the least and the greatest of the rounds.
        peak_megabytes: of its process, or of the GPU.
        ratio_to_best: to Hugging Face at its best, the last of its ways.
    """

    name: str
    rate: float
    ratio: float
    ratio_low: float
    ratio_high: float
    peak_megabytes: float
    ratio_to_best: float | None = None


def rates_found(unit: str, results: Sequence[Result]) -> Findings:
    """Put results into a table and charts, and into a second table its speed without each of its fast ways."""
    tables = [Table("", ("", unit, *HEAD), [_row(each) for each in results])]
    tricks = [
        (without.name.removeprefix(f"{own.name}, "), f"{without.rate / own.rate:.2f}")
        for own in results
        for without in results
        if without.name.startswith(f"{own.name}, ")
    ]
    if tricks:
        tables.append(Table("Fast ways", ("switched off", "speed beside all of them on"), tricks))
    bars = [(each.name, each.ratio, each.ratio_low, each.ratio_high) for each in results]
    charts = [BarChart("Speed beside the first row: median of the rounds, from the lowest to the highest", bars)]
    if any(each.peak_megabytes for each in results):
        charts.append(BarChart("Peak memory, MB", [(each.name, *3 * (each.peak_megabytes,)) for each in results]))
    return Findings(unit, [dataclasses.asdict(each) for each in results], tables, charts)


def _row(result: Result) -> tuple[str, ...]:
    rate = f"{result.rate:,.0f}" if result.rate >= 100 else f"{result.rate:.2f}"
    ratio = f"{result.ratio:.2f} ({result.ratio_low:.2f} - {result.ratio_high:.2f})"
    to_best = "" if result.ratio_to_best is None else f"{result.ratio_to_best:.2f}"
    return (result.name, rate, ratio, to_best, f"{result.peak_megabytes:,.0f} MB" if result.peak_megabytes else "")


def bench_page(facts: Mapping[str, Any], found: Findings, settings: str) -> str:
    """Make the page of what was measured, when, on what and by which command, with all settings as text."""
    body = f"""<div class="charts">{"".join(chart.svg() for chart in found.charts)}</div>
{"".join(table.html() for table in found.tables)}
<h2>Run</h2>{facts_table({name: value for name, value in facts.items() if value is not None})}"""
    headline = f"bertkit beside Hugging Face, {facts['date']}, {facts['processor']}"
    return page(f"bench: {facts['what']}", headline, body, settings)
