"""Charts and tables: where points lie, and what they say."""

import re
from typing import Any

import pytest

from bertkit.display.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, line_chart
from bertkit.display.page import Table


def drawn(*value: Any, **names: Any) -> str:
    figure = line_chart(*value, **names)
    assert figure is not None
    return "".join(figure.parts)


def points_of(svg: str) -> list[list[tuple[float, float]]]:
    lines = re.findall(r'<polyline points="([^"]*)"', svg)
    return [[tuple(map(float, pair.split(","))) for pair in line.split()] for line in lines]  # type: ignore[misc]


def test_chart_starts_at_zero() -> None:
    ((first, last),) = points_of(drawn("t", [("a", [(5, 2.0), (10, 4.0)])]))
    assert first == ((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM)
    assert last == (WIDTH - RIGHT, TOP)


def test_a_pointer_is_told_the_values_and_axes_have_names() -> None:
    many = [(step, 1.0 / (step + 1)) for step in range(1000)]
    svg = drawn("t", [("loss & co", [(5, 2.0)]), ("b", many)], x_name="step", y_name="nats")
    titles = re.findall(r"<title>([^<]*)</title>", svg)
    assert titles[0] == "loss &amp; co: 2 at step 5"
    assert len(titles) == 121  # a long line is felt at some of its points, its last among them
    assert titles[-1] == "b: 0.001 at step 999"
    assert len(points_of(svg)[1]) == 1000
    assert ">step</text>" in svg
    assert ">nats</text>" in svg


def test_a_noisy_line_is_drawn_behind_its_moving_mean() -> None:
    values = [(step, float(step % 2)) for step in range(61)]
    raw, mean = points_of(drawn("t", [("a", values)], is_noisy=True))
    assert [x for x, _ in raw] == [x for x, _ in mean]
    actual = [(HEIGHT - BOTTOM - y) / (HEIGHT - BOTTOM - TOP) for _, y in mean]
    # two points on either side, or as many as there are
    assert actual[:4] == pytest.approx([1 / 3, 1 / 2, 2 / 5, 3 / 5], abs=1e-3)
    assert actual[-3:] == pytest.approx([2 / 5, 1 / 2, 1 / 3], abs=1e-3)
    assert points_of(drawn("t", [("a", values)])) == [raw]
    assert len(points_of(drawn("t", [("a", values[:29])], is_noisy=True))) == 1


def test_more_lines_than_colours_are_dashed() -> None:
    svg = drawn("t", [(str(n), [(1, n), (2, n)]) for n in range(8)])
    looks = re.findall(r"<polyline [^>]*(stroke-width[^/]*)/>", svg)
    assert len(set(looks)) == 8


def test_empty_chart_is_left_out() -> None:
    assert line_chart("t", [("a", [])]) is None


def test_table_is_written_as_markdown() -> None:
    table = Table("Sizes", ("", "n <k>"), [("a", "1"), ("b", "22")])
    assert table.markdown() == "| | n <k> |\n|---|---|\n| a | 1 |\n| b | 22 |"
