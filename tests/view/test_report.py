"""The report of a run: one page by itself, whatever was logged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Page

from bertkit.view.report import CHARTS, write_report

KEYS = [key for _, series, _ in CHARTS for key, _ in series]


def report(run_dir: Path, rows: list[dict], corpus: str = "two files", settings: str = "steps: 5\n") -> Page:
    run_dir.mkdir(exist_ok=True)
    manifest = {
        "corpus": {"description": corpus},
        "bertkit": "1",
        "packages": {"torch": "2"},
        "world_size": 1,
        "command_line": ["pretrain", "a=<b>"],
    }
    (run_dir / "manifest.json").write_text(json.dumps(manifest))
    (run_dir / "config.yaml").write_text(settings)
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_report(run_dir, {"unigram entropy": 4.5, "guessing": 0.625})
    text = (run_dir / "report.html").read_text()
    return Page(text)


def rows(keys: list[str], steps: int = 4) -> list[dict]:
    return [{"step": step, **{key: 3.0 / step for key in keys}} for step in range(1, steps + 1)]


@pytest.mark.parametrize(
    ("keys", "num_charts"),
    [
        (KEYS, len(CHARTS)),
        (["mlm_loss"], 1),
        (["mlm_loss", "eval_mlm_loss"], 1),
        (["mlm_loss", "grad_norm", "tokens_per_second"], 3),
        ([], 0),
    ],
)
def test_a_chart_for_each_logged_metric(tmp_path: Path, keys: list[str], num_charts: int) -> None:
    page = report(tmp_path / "run", rows(keys))
    assert page.tags.count("svg") == page.tags.count("figure") == num_charts
    assert page.tags.count("polyline") == len(keys)
    assert page.tags.count("circle") == 4 * len(keys)
    assert ("lang", "en") in page.attributes


def test_an_empty_log_is_a_page_too(tmp_path: Path) -> None:
    page = report(tmp_path / "run", [])
    assert page.tags.count("svg") == 0
    assert "step 0" in page.text


def points(page: Page) -> list[tuple[float, float]]:
    (line,) = [value for name, value in page.attributes if name == "points"]
    return [tuple(map(float, point.split(","))) for point in line.split()]


def test_the_curve_falls_where_the_loss_falls(tmp_path: Path) -> None:
    curve = points(report(tmp_path / "run", rows(["grad_norm"])))
    assert [x for x, _ in curve] == sorted(x for x, _ in curve)
    assert [y for _, y in curve] == sorted(y for _, y in curve)  # y points down on a screen
    assert all(0 <= x <= 460 and 0 <= y <= 240 for x, y in curve)


@pytest.mark.parametrize("values", [[2.0], [2.0, 2.0], [0.0, float("nan")], [float("inf"), 1.0]])
def test_flat_single_and_not_finite_values(tmp_path: Path, values: list[float]) -> None:
    page = report(tmp_path / "run", [{"step": n + 1, "mlm_loss": value} for n, value in enumerate(values)])
    finite = [value for value in values if abs(value) < 1e9]
    assert len(points(page)) == len(finite)
    assert not any("nan" in value or "inf" in value for name, value in page.attributes if name != "name")


@pytest.mark.parametrize(("loss", "words"), [(4.0, "below"), (5.0, "not below")])
def test_the_headline_says_whether_it_learns(tmp_path: Path, loss: float, words: str) -> None:
    page = report(tmp_path / "run", [{"step": 9, "eval_mlm_loss": loss, "eval_nsp_accuracy": 0.75}])
    headline = next(text for text in page.text if "held-out" in text)
    assert f"{loss:.3f}, {words} the unigram entropy of 4.500" in headline
    assert "0.750, guessing 0.625" in headline


def test_text_is_escaped(tmp_path: Path) -> None:
    page = report(tmp_path / "<run>", rows(["mlm_loss"]), corpus="</table><b>&", settings="name: </pre><i>x\n")
    assert "b" not in page.tags
    assert "i" not in page.tags
    assert "</table><b>&" in page.text
    assert "name: </pre><i>x\n" in page.text
    assert "bertkit pretrain a=<b>" in page.text
    assert page.text.count("<run>") == 2
