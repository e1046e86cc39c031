"""report.html: one self-contained page of a run, with its curves, metrics and settings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from bertkit.files import read_json, write_durably
from bertkit.train.log import read_metrics
from bertkit.view.charts import LineChart
from bertkit.view.page import facts_table, page

Charts = tuple[tuple[str, tuple[tuple[str, str], ...], str | None], ...]
# title, the logged keys with their names, and the key of a constant to compare with
CHARTS: Charts = (
    ("Masked LM loss (nats)", (("mlm_loss", "training"), ("eval_mlm_loss", "held out")), "unigram entropy"),
    ("Masked LM accuracy", (("mlm_accuracy", "training"), ("eval_mlm_accuracy", "held out")), None),
    ("Next sentence accuracy", (("nsp_accuracy", "training"), ("eval_nsp_accuracy", "held out")), "guessing"),
    ("Learning rate", (("learning_rate", "learning rate"),), None),
    ("Gradient norm before clipping", (("grad_norm", "gradient norm"),), None),
    ("Tokens per second", (("tokens_per_second", "tokens per second"),), None),
)
TASK_CHARTS: Charts = (
    ("Loss of the task's head", (("loss", "training"), ("eval_loss", "dev")), None),
    ("Accuracy", (("sequence_accuracy", "training"), ("eval_accuracy", "dev")), None),
    ("F1", (("eval_f1", "dev"), ("eval_overall_f1", "dev, of chunks")), None),
    ("Correlation", (("eval_pearson", "Pearson, dev"), ("eval_spearmanr", "Spearman, dev")), None),
    ("Matthews correlation", (("eval_matthews_correlation", "dev"),), None),
    *CHARTS[-3:],
)


def write_report(run_dir: Path, baselines: dict[str, float], charts: Charts = CHARTS) -> None:
    """Draw the run's metrics so far; the page needs no network and no other file.

    Args:
        run_dir: the run.
        baselines: what to compare with: "unigram entropy", and with pairs "guessing", the accuracy of the commoner label.
        charts: what to draw, `CHARTS` or `TASK_CHARTS`; charts without values are left out.
    """
    rows = read_metrics(run_dir / "metrics.jsonl")
    figures = [_chart(rows, title, series, baseline, baselines).svg() for title, series, baseline in charts]
    last = rows[-1] if rows else {}
    manifest = read_json(run_dir / "manifest.json")
    settings = (run_dir / "config.yaml").read_text(encoding="utf-8")
    facts = {
        "text": manifest["corpus"]["description"],
        "bertkit": manifest["bertkit"],
        "torch": manifest["packages"]["torch"],
        "processes": manifest["world_size"],
        "command": "bertkit " + " ".join(manifest["command_line"]),
    }
    body = f"""<div class="charts">{"".join(figures)}</div>
<h2>Last metrics</h2>{facts_table(last)}
<h2>Run</h2>{facts_table(facts)}"""
    text = page(run_dir.resolve().name, _headline(last, baselines), body, settings)
    write_durably(run_dir / "report.html", text)


def _headline(last: dict[str, Any], baselines: dict[str, float]) -> str:
    if "eval_mlm_loss" not in last:
        return f"step {last.get('step', 0):,}"
    unigram_entropy = baselines["unigram entropy"]
    side = "below" if last["eval_mlm_loss"] < unigram_entropy else "not below"
    text = f"Step {last['step']:,}: held-out masked LM loss {last['eval_mlm_loss']:.3f}, {side} the unigram entropy of {unigram_entropy:.3f}"
    if "eval_nsp_accuracy" in last and "guessing" in baselines:
        text += f"; next sentence accuracy {last['eval_nsp_accuracy']:.3f}, guessing {baselines['guessing']:.3f}"
    return text + "."


def _chart(
    rows: list[dict[str, Any]],
    title: str,
    series: tuple[tuple[str, str], ...],
    baseline: str | None,
    constants: dict[str, float],
) -> LineChart:
    """Make one chart of what was logged."""
    lines = [
        (label, [(row["step"], row[key]) for row in rows if key in row and math.isfinite(row[key])])
        for key, label in series
    ]
    return LineChart(title, lines, (baseline, constants[baseline]) if baseline in constants else None)
