"""The report of a run is one page by itself, whatever was logged; and the lines of a run, word for word."""

import json
import re
from pathlib import Path

import pytest
from browser import chromium
from conftest import Page

from bertkit.display.console import health_line, model_line, phase_line, scores_line, step_line
from bertkit.display.page import Table
from bertkit.display.report import CHARTS, TASK_CHARTS, comparison_page, scores_table, write_report

KEYS = [key for curves in CHARTS for key, _ in curves.series]


def report(
    run_dir: Path, rows: list[dict], corpus: str = "two files", settings: str = "steps: 5\n", review: dict | None = None
) -> Page:
    run_dir.mkdir(exist_ok=True)
    manifest = {"corpus": {"description": corpus}, "bertkit": "1", "packages": {"torch": "2"}, "world_size": 1,
                "command_line": ["pretrain", "a=<b>", "--text", "Review Text"]}  # fmt: skip
    (run_dir / "manifest.json").write_text(json.dumps(manifest))
    (run_dir / "config.yaml").write_text(settings)
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    baselines = {"guessing": 0.625, "chance": 0.7}
    write_report(run_dir, *((baselines, CHARTS) if review is None else ({}, TASK_CHARTS)), review or {})
    return Page((run_dir / "report.html").read_text())


def rows(keys: list[str], steps: int = 4) -> list[dict]:
    return [{"step": step, **{key: 3.0 / step for key in keys}} for step in range(1, steps + 1)]


@pytest.mark.parametrize(("keys", "num_charts"), [
    (KEYS, len(CHARTS)),
    (["mlm_loss"], 1),
    (["mlm_loss", "eval_mlm_loss", "eval_mlm_accuracy"], 2),
    (["mlm_loss", "grad_norm", "tokens_per_second"], 3),
    ([], 0),
])  # fmt: skip
def test_a_chart_for_each_logged_metric(tmp_path: Path, keys: list[str], num_charts: int) -> None:
    page = report(tmp_path / "run", rows(keys))
    assert page.tags.count("svg") == page.tags.count("figure") == num_charts
    assert page.tags.count("polyline") == len(keys)
    assert page.tags.count("circle") == 4 * len(keys)
    assert ("lang", "en") in page.attributes


def test_an_empty_log_is_a_page_too(tmp_path: Path) -> None:
    page = report(tmp_path / "run", [])
    assert page.tags.count("svg") == 0
    assert "Step 0" in page.text


def points(page: Page) -> list[tuple[float, float]]:
    (line,) = [value for name, value in page.attributes if name == "points"]
    return [tuple(map(float, point.split(","))) for point in line.split()]


def test_the_curve_falls_where_the_loss_falls(tmp_path: Path) -> None:
    curve = points(report(tmp_path / "run", rows(["grad_norm"])))
    assert [x for x, _ in curve] == sorted(x for x, _ in curve)
    assert [y for _, y in curve] == sorted(y for _, y in curve)  # y points down on a screen
    assert all(0 <= x <= 460 and 0 <= y <= 240 for x, y in curve)


def test_metrics_have_names_for_readers(tmp_path: Path) -> None:
    page = report(tmp_path / "run", rows(KEYS))
    assert not [part for part in page.text if re.search(r"[a-z]_[a-z]", part)]
    for name in ("MLM loss", "held-out NSP accuracy", "tokens per second", "gradient norm"):
        assert name in page.text


@pytest.mark.parametrize("values", [[2.0], [2.0, 2.0], [0.0, float("nan")], [float("inf"), 1.0]])
def test_flat_single_and_not_finite_values(tmp_path: Path, values: list[float]) -> None:
    page = report(tmp_path / "run", [{"step": n + 1, "mlm_loss": value} for n, value in enumerate(values)])
    finite = [value for value in values if abs(value) < 1e9]
    assert len(points(page)) == len(finite)
    assert not any("nan" in value or "inf" in value for name, value in page.attributes if name != "name")


def test_the_headline_is_the_health_of_the_run(tmp_path: Path) -> None:
    scores = {**METRICS, "nsp_accuracy": 0.75}
    page = report(tmp_path / "run", [{"step": 9, **{f"eval_{name}": value for name, value in scores.items()}}])
    assert f"Step 9: {health_line(scores, {'guessing': 0.625, 'chance': 0.7})}." in page.text


def test_report_escapes_text(tmp_path: Path) -> None:
    page = report(tmp_path / "<run>", rows(["mlm_loss"]), corpus="</table><b>&", settings="name: </pre><i>x\n")
    assert "b" not in page.tags
    assert "i" not in page.tags
    assert "</table><b>&" in page.text
    assert "name: </pre><i>x\n" in page.text
    assert "bertkit pretrain 'a=<b>' --text 'Review Text'" in page.text
    assert page.text.count("<run>") == 2


REVIEW = {
    "scores": {"accuracy": 0.75, "f1": 0.5},
    "baselines": {"majority": {"accuracy": 0.625}, "TF-IDF": {"accuracy": 0.7}},
    "intervals": {"accuracy": (0.6875, 0.8125)},
    "best_metric": "accuracy",
    "num_examples": 1234,
    "by_label": {"<good>": {"precision": 0.5, "recall": 0.25, "f1": 1 / 3, "support": 8}},
    "confusion": {"labels": ["<good>", "bad", "ugly"], "counts": [[2, 6, 0], [1, 30, 4], [0, 0, 5]]},
    "calibration": {
        "error": 0.125,
        "bins": [{"from": 0.5, "to": 0.6, "confidence": 0.55, "accuracy": 0.4, "count": 10}],
    },
    "scatter": [[1.0, 1.5, "a"], [3.0, 2.0, "b"]],
    "groups": [{"title": "By length", "columns": ["", "<F1>"], "rows": [["long", "7.0"]]}],
    "mistakes": {"title": "The 1 mistake", "columns": ["id", "text"], "rows": [["7", "</td><b>why?"]]},
    "facts": {"time": "3m10s"},
}


def test_a_review_opens_with_the_score_and_the_baseline(tmp_path: Path) -> None:
    page = report(tmp_path / "run", rows(["loss", "eval_accuracy"]), review=REVIEW)
    text = "\n".join(page.text)
    order = ["0.7500", "0.6875", "0.6250", "0.7000", "1,234", "error 0.125", "Predicted and true", "Loss", "Confusion matrix", "Scores",
             "majority: the mean of the training labels", "By label",
             "Most confused", "By length", "<F1>", "The 1 mistake", "</td><b>why?", "3m10s"]  # fmt: skip
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "b" not in page.tags[page.tags.index("table") :]
    assert ("title", "true <good>, predicted bad: 75.0 % of <good>") in page.attributes
    for hover in ("0.5 to 0.6.*0.550.*40.0%.*10", "b.* 3.* 2", "1.5 at step 2"):
        assert any(re.search(hover, part) for part in page.text), hover
    for axis in ("true", "predicted", "confidence", "step"):
        assert axis in page.text
    confused = text[text.index("Most confused") :]
    assert confused.index("6") < confused.index("4") < confused.index("1")


def test_report_has_light_and_dark_colours_and_fits_any_width(tmp_path: Path) -> None:
    """Colours are the page's, which has two sets of them; pictures follow the width."""
    report(tmp_path / "run", rows(["loss"]), review=REVIEW)
    text = (tmp_path / "run" / "report.html").read_text()
    style, body = text.split("</style>")
    light, dark = style.split("prefers-color-scheme: dark")
    used = set(re.findall(r"var\((--\w+)\)", text)) - {"--share"}
    assert len(used) > 5
    for name in used:
        assert f"{name}:" in light
        assert f"{name}:" in dark
    assert 'name="viewport"' in text
    assert body.count("<svg ") == body.count("viewBox=") >= 3
    assert re.findall(r"#[0-9a-f]{3,6}", body) == []


def test_no_report_scrolls_sideways(tmp_path: Path) -> None:
    """On a phone and on a desk, also with long names."""
    long = "a_name_without_a_space_" * 20
    confusion = {"labels": [f"{n}_{long[:40]}" for n in range(30)], "counts": [[n] * 30 for n in range(30)]}
    report(
        tmp_path / "tuned", rows(["loss"]), review={**REVIEW, "confusion": confusion, "facts": {"started from": long}}
    )
    report(tmp_path / long[:200], rows(KEYS), corpus=long, settings=f"data_dir: {long}\n")
    with chromium(tmp_path / "profile") as browser:
        for page in (tmp_path / "tuned", tmp_path / long[:200]):
            for width, is_dark in ((390, False), (1280, True)):
                browser.open((page / "report.html").as_uri(), width, is_dark=is_dark)
                assert browser.ask("document.documentElement.scrollWidth") <= width, (page, width)
        assert browser.faults == browser.requests == []


@pytest.mark.slow
def test_reports_are_accessible(tmp_path: Path, axe: str) -> None:
    report(tmp_path / "tuned", rows(["loss"], 90), review=REVIEW)
    report(tmp_path / "trained", rows(KEYS, 90))
    table = Table("Scores", ("", "accuracy"), [("a", "0.5")])
    compared = comparison_page([(name, [rows(["mlm_loss"])]) for name in "abcdefg"], ["a and b differ"], [table])
    (tmp_path / "compare.html").write_text(compared)
    pages = [tmp_path / "tuned" / "report.html", tmp_path / "trained" / "report.html", tmp_path / "compare.html"]
    with chromium(tmp_path / "profile") as browser:
        for page in pages:
            for width, is_dark in ((360, False), (1280, True)):
                browser.open(page.as_uri(), width, is_dark=is_dark)
                assert browser.violations(axe) == [], (page, width)


def test_report_omits_missing_metrics(tmp_path: Path) -> None:
    kept = {key: REVIEW[key] for key in ("scores", "best_metric", "num_examples")} | {"baselines": {}, "intervals": {}}
    page = report(tmp_path / "run", rows(["loss"]), review=kept)
    assert any("0.7500" in part and "majority" not in part for part in page.text)
    assert page.tags.count("svg") == 1


METRICS = {
    "mlm_loss": 5.5, "mlm_accuracy": 0.125, "mlm_loss_at_mask": 5.9, "mlm_loss_by_counting": 6.1, "mlm_accuracy_by_counting": 0.1,
    "mlm_loss_at_mask_by_counting": 6.4, "mlm_loss_shuffled": 5.8, "mlm_gain_on_counting": 0.5, "mlm_gain_on_shuffled": 0.2,
}  # fmt: skip
PAIRS = {**METRICS, "nsp_accuracy": 0.75}


def test_model_line_has_size_layers_heads_and_device() -> None:
    line = model_line(1_234_567, 3, 26, ["masked_lm", "next_sentence"], "fp32 on cpu, 2 processes")
    assert re.search("1.2 M .*3 .*26.*masked_lm, next_sentence.*fp32 on cpu, 2 process", line)


def test_a_phase_names_its_steps_only_where_there_are_others() -> None:
    only = "5,614 examples an epoch, 6.8 epochs; 16 sequences a step in 2 micro-batches"
    assert phase_line(range(2400), None, 16, 5614, 2) == only
    final = "steps 901 to 1000, sequences of up to 512 tokens: 800 examples an epoch, 2 epochs; 16 sequences a step in 8 micro-batches"
    assert phase_line(range(900, 1000), 512, 16, 800, 8) == final
    short = "345 examples an epoch, 0.046 epochs; 4 sequences a step in 2 micro-batches"
    assert phase_line(range(4), None, 4, 345, 2) == short
    one = "7 examples an epoch, 1 epoch; 1 sequence a step in 1 micro-batch"
    assert phase_line(range(7), None, 1, 7, 1) == one


def test_step_line_shows_progress() -> None:
    row = {"step": 50, "loss": 6.82261, "mlm_loss": 6.1385, "learning_rate": 9.8e-4, "tokens_per_second": 27043.4}
    output = "step 50/2400  loss 6.8226  mlm 6.1385  lr 9.80e-04  27,043 tokens/s  1m37s left"
    assert step_line(row, 2400, "1m37s") == output
    with_pairs = {**row, "nsp_accuracy": 0.5}
    assert step_line(with_pairs, 2400, "1m37s") == output.replace("  lr", "  nsp acc 0.50  lr")
    left_out = {key: row[key] for key in ("step", "learning_rate", "tokens_per_second")}
    assert step_line(left_out, 2400, "") == "step 50/2400  left out  lr 9.80e-04  27,043 tokens/s"


def test_scores_line_shows_the_baselines_of_one_metric() -> None:
    scores = {"pearson": 0.5, "r2": 0.25, "rmse": 1.5}
    baselines = {"majority": {"r2": 0.0, "rmse": 2.0}, "TF-IDF": {"r2": 0.125, "pearson": 0.4}}
    output = "R² 0.2500 [0.1000, 0.4000] (majority 0.0000, TF-IDF 0.1250), Pearson correlation 0.5000, RMSE 1.5000"
    assert scores_line(scores, baselines, "r2", {"r2": (0.1, 0.4), "rmse": (1.0, 2.0)}) == output
    assert scores_line({"f1": 0.5}, {}, "f1") == "F1 0.5000"


def test_health_line_compares_loss_with_its_controls() -> None:
    line = health_line(METRICS, {})
    assert line == (
        "masked LM has learned from context: held-out MLM loss 5.500, 6.100 by counting tokens (at [MASK] alone 5.900, 6.400), "
        "5.800 with shuffled words; MLM accuracy 0.125, 0.100 by counting"
    )
    for control in ("counting", "shuffled"):
        chance = health_line({**METRICS, f"mlm_gain_on_{control}": -0.01}, {})
        assert chance == line.replace("has", "has not").replace("words;", "words, which may be chance;")
    pairs = {"guessing": 0.572, "chance": 0.6}
    assert re.search(r"has learned.*0\.750.*0\.572$", health_line(PAIRS, pairs).removeprefix(line))
    chance = health_line({**PAIRS, "nsp_accuracy": 0.59}, pairs)
    assert "next sentence prediction has not learned: NSP accuracy 0.590" in chance


def test_a_mean_of_fewer_seeds_says_how_many() -> None:
    seeds = [{"f1": 0.5, "loss": 1.0}, {"loss": 3.0}, {"loss": 2.0}]
    (row,) = scores_table([("mean of 3 seeds", "7", seeds)]).rows
    assert row[2:] == ("0.5000 (1 of 3 seeds)", "2 ± 1")
