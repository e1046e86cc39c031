"""report.html: one self-contained page of a run, with its curves, metrics and settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.files import read_json, write_durably
from bertkit.train.log import read_metrics
from bertkit.view.charts import LineChart
from bertkit.view.page import facts_table, page


class Curves(NamedTuple):
    """What one chart draws: keys of the log with their names, and the key of a constant to compare with."""

    title: str
    series: tuple[tuple[str, str], ...]
    baseline: str | None = None


CHARTS = (
    Curves("Masked LM loss (nats)", (("mlm_loss", "training"), ("eval_mlm_loss", "held out")), "unigram entropy"),
    Curves("Masked LM accuracy", (("mlm_accuracy", "training"), ("eval_mlm_accuracy", "held out"))),
    Curves("Next sentence accuracy", (("nsp_accuracy", "training"), ("eval_nsp_accuracy", "held out")), "guessing"),
    Curves("Learning rate", (("learning_rate", "learning rate"),)),
    Curves("Gradient norm before clipping", (("grad_norm", "gradient norm"),)),
    Curves("Tokens per second", (("tokens_per_second", "tokens per second"),)),
)
TASK_CHARTS = (
    Curves("Loss of the task's head", (("loss", "training"), ("eval_loss", "dev"))),
    Curves("Accuracy", (("sequence_accuracy", "training"), ("eval_accuracy", "dev"))),
    Curves("F1", (("eval_f1", "dev"), ("eval_overall_f1", "dev, of chunks"))),
    Curves("Correlation", (("eval_pearson", "Pearson, dev"), ("eval_spearmanr", "Spearman, dev"))),
    Curves("Matthews correlation", (("eval_matthews_correlation", "dev"),)),
    *CHARTS[-3:],
)


def write_report(run_dir: Path, baselines: dict[str, float], charts: Sequence[Curves] = CHARTS) -> None:
    """Draw the run's metrics so far; charts without values are left out.

    The `baselines` are "unigram entropy", and with pairs "guessing", the accuracy of the commoner label.
    """
    rows = read_metrics(run_dir / "metrics.jsonl")
    figures = [_chart(rows, curves, baselines).svg() for curves in charts]
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


def _chart(rows: list[dict[str, Any]], curves: Curves, constants: dict[str, float]) -> LineChart:
    lines = [
        (label, [(row["step"], row[key]) for row in rows if key in row and math.isfinite(row[key])])
        for key, label in curves.series
    ]
    baseline = curves.baseline
    return LineChart(curves.title, lines, (baseline, constants[baseline]) if baseline in constants else None)
