"""Charts and tables: where points and bars lie, and what a bench's page says."""

import itertools
import re

import pytest
from conftest import Page

from bertkit.view.bench_page import Findings, bench_page
from bertkit.view.charts import BAR_LEFT, BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, BarChart, LineChart
from bertkit.view.page import Table


def points_of(svg: str) -> list[list[tuple[float, float]]]:
    lines = re.findall(r'<polyline points="([^"]*)"', svg)
    return [[tuple(map(float, pair.split(","))) for pair in line.split()] for line in lines]  # type: ignore[misc]


def test_a_line_from_zero() -> None:
    ((first, last),) = points_of(LineChart("t", [("a", [(5, 2.0), (10, 4.0)])]).svg())
    assert first == ((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM)
    assert last == (WIDTH - RIGHT, TOP)


def test_a_power_law_is_straight_in_powers() -> None:
    chart = LineChart("t", [("a", [(x, 0.001 * x**2) for x in (64, 128, 256, 2048)]), ("b", [(64, 1.0)])], is_log=True)
    line, alone = points_of(chart.svg())
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in itertools.pairwise(line)]
    assert slopes == pytest.approx([slopes[0]] * 3, rel=0.01)
    assert line[0][0] == alone[0][0] == LEFT
    assert line[-1][0] == WIDTH - RIGHT
    assert all(f'text-anchor="middle">{tick}</text>' in chart.svg() for tick in ("64", "128", "256", "2,048"))


@pytest.mark.parametrize(("low", "high", "ticks"), [
    (0.02, 0.9, ["0.02", "0.05", "0.1", "0.2", "0.5"]),
    (3.0, 6.0, ["3", "4", "5", "6"]),
    (1, 1e6, ["1", "10", "100", "100,000"]),
])  # fmt: skip
def test_heights_in_powers_are_round(low: float, high: float, ticks: list[str]) -> None:
    svg = LineChart("t", [("a", [(1, low), (2, high)])], is_log=True).svg()
    written = re.findall(r'text-anchor="end">([^<]*)<', svg)
    assert 3 <= len(written) <= 10
    assert set(ticks) <= set(written)


def test_bars_and_their_spread() -> None:
    svg = BarChart("t", [("first & <last>", 2.0, 1.0, 4.0), ("b", 4.0, 4.0, 4.0)]).svg()
    widths = [float(width) for width in re.findall(r'<rect [^>]* width="([^"]*)"', svg)]
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.1)
    x1, x2 = map(float, re.findall(r'<line x1="([^"]*)" x2="([^"]*)"', svg)[0])
    assert (x1 - BAR_LEFT, x2 - BAR_LEFT) == pytest.approx((widths[0] / 2, widths[1]), abs=0.1)
    assert "first &amp; &lt;last&gt;" in svg


def test_a_pointer_is_told_the_values_and_axes_have_names() -> None:
    many = [(step, 1.0 / (step + 1)) for step in range(1000)]
    svg = LineChart("t", [("loss & co", [(5, 2.0)]), ("b", many)], x_name="step", y_name="nats").svg()
    told = re.findall(r"<title>([^<]*)</title>", svg)
    assert told[0] == "loss &amp; co: 2 at step 5"
    assert len(told) == 121  # a long line is felt at some of its points, its last among them
    assert told[-1] == "b: 0.001 at step 999"
    assert len(points_of(svg)[1]) == 1000
    assert ">step</text>" in svg
    assert ">nats</text>" in svg
    bars = BarChart("t", [("a", 2.0, 1.0, 4.0)]).svg()
    assert "<title>a: 2 (1 to 4)</title>" in bars


def test_more_lines_than_colours_are_dashed() -> None:
    svg = LineChart("t", [(str(n), [(1, n), (2, n)]) for n in range(8)]).svg()
    looks = re.findall(r"<polyline [^>]*(stroke-width[^/]*)/>", svg)
    assert len(set(looks)) == 8


def test_nothing_to_draw() -> None:
    assert LineChart("t", [("a", [])]).svg() == BarChart("t", []).svg() == ""


def test_a_table_as_text_and_as_html() -> None:
    table = Table("Sizes", ("", "n <k>"), [("a", "1"), ("b", "22")])
    assert table.markdown() == "| | n <k> |\n|---|---|\n| a | 1 |\n| b | 22 |"
    assert table.html().startswith(
        "<h2>Sizes</h2><table><tr><th></th><th>n &lt;k&gt;</th></tr><tr><td>a</td><td>1</td>"
    )


def test_the_page_of_a_bench() -> None:
    facts = {
        "what": "pretrain",
        "date": "2026-03-04",
        "processor": "a <chip>",
        "gpu": None,
        "command": "bertkit bench a&b",
    }
    charts = [LineChart("lines", [("a", [(1, 1), (2, 3)])]), BarChart("bars", [("x", 1, 1, 1)])]
    found = Findings("MB", [], [Table("Sizes", ("n",), [("one",)])], charts)
    page = Page(bench_page(facts, found, "rounds: 5\n"))
    text = "".join(page.text)
    assert page.tags.count("svg") == page.tags.count("figure") == 2
    assert page.tags.count("h1") == 1
    assert page.tags.count("h2") == 3
    for expected in ("a <chip>", "2026-03-04", "bertkit bench a&b", "rounds: 5", "Sizes", "bars"):
        assert expected in text
    assert "gpu" not in text
