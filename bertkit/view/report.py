"""report.html: one self-contained page of a run, with its curves, metrics and settings."""

from __future__ import annotations

import html
import math
from pathlib import Path
from typing import Any

from bertkit.files import read_json, write_durably
from bertkit.train.log import read_metrics

WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 480, 240, 62, 24, 28, 12
COLORS = ("#1f6feb", "#d1570a")
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2128; background: #fff; max-width: 1000px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.4em; margin-bottom: .2em } h2 { font-size: 1.1em; margin-top: 2em }
.charts { display: flex; flex-wrap: wrap; gap: 18px } figure { margin: 0 } figcaption { font-weight: 600 }
.legend span { margin-right: 1.2em; font-size: .85em } svg text { font: 11px system-ui, sans-serif; fill: #57606a }
table { border-collapse: collapse } td, th { text-align: left; padding: .15em 1.2em .15em 0; border-bottom: 1px solid #eaeef2 }
pre { background: #f6f8fa; padding: 1em; overflow: auto; font-size: .85em }
"""
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
    figures = [_figure(rows, title, series, baseline, baselines) for title, series, baseline in charts]
    last = rows[-1] if rows else {}
    manifest = read_json(run_dir / "manifest.json")
    settings = (run_dir / "config.yaml").read_text(encoding="utf-8")
    name = html.escape(run_dir.resolve().name)
    facts = {
        "text": manifest["corpus"]["description"],
        "bertkit": manifest["bertkit"],
        "torch": manifest["packages"]["torch"],
        "processes": manifest["world_size"],
        "command": "bertkit " + " ".join(manifest["command_line"]),
    }
    page = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title><style>{STYLE}</style>
<h1>{name}</h1><p>{_headline(last, baselines)}</p>
<div class="charts">{"".join(figures)}</div>
<h2>Last metrics</h2>{_table(last)}
<h2>Run</h2>{_table(facts)}
<h2>Settings</h2><pre>{html.escape(settings)}</pre>
</html>
"""
    write_durably(run_dir / "report.html", page)


def _headline(last: dict[str, Any], baselines: dict[str, float]) -> str:
    if "eval_mlm_loss" not in last:
        return f"step {last.get('step', 0):,}"
    unigram_entropy = baselines["unigram entropy"]
    side = "below" if last["eval_mlm_loss"] < unigram_entropy else "not below"
    text = f"Step {last['step']:,}: held-out masked LM loss {last['eval_mlm_loss']:.3f}, {side} the unigram entropy of {unigram_entropy:.3f}"
    if "eval_nsp_accuracy" in last and "guessing" in baselines:
        text += f"; next sentence accuracy {last['eval_nsp_accuracy']:.3f}, guessing {baselines['guessing']:.3f}"
    return html.escape(text + ".")


def _table(rows: dict[str, Any]) -> str:
    cells = [
        f"<tr><th>{html.escape(str(key))}</th><td>{html.escape(f'{value:.6g}' if isinstance(value, float) else str(value))}</td></tr>"
        for key, value in rows.items()
    ]
    return f"<table>{''.join(cells)}</table>"


def _figure(
    rows: list[dict[str, Any]],
    title: str,
    series: tuple[tuple[str, str], ...],
    baseline: str | None,
    constants: dict[str, float],
) -> str:
    """Draw one chart, or nothing when none of its keys was logged."""
    lines = [
        (label, color, [(row["step"], row[key]) for row in rows if key in row and math.isfinite(row[key])])
        for (key, label), color in zip(series, COLORS, strict=False)
    ]
    lines = [line for line in lines if line[2]]
    if not lines:
        return ""
    values = [value for _, _, points in lines for _, value in points]
    if baseline in constants:
        values.append(constants[baseline])
    low, high = min(values), max(values)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    last_step = max(step for _, _, points in lines for step, _ in points)

    def x(step: float) -> float:
        return float(LEFT + (WIDTH - LEFT - RIGHT) * step / max(last_step, 1))

    def y(value: float) -> float:
        return float(TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low))

    parts = []
    for value in _ticks(low, high):
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#eaeef2"/>'
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,.6g}</text>'
        )
    for step in _ticks(0, last_step):
        parts.append(f'<text x="{x(step):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{step:,.6g}</text>')
    legend = []
    if baseline in constants:
        height = y(constants[baseline])
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}" stroke="#57606a" stroke-dasharray="5 4"/>')  # fmt: skip
        legend.append(f'<span style="color:#57606a">- - {baseline}</span>')
    for label, color, points in lines:
        path = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6"/>')
        if len(points) <= 30:
            parts += [f'<circle cx="{x(s):.1f}" cy="{y(v):.1f}" r="2.5" fill="{color}"/>' for s, v in points]
        legend.append(f'<span style="color:{color}">— {label}</span>')
    return (
        f'<figure><figcaption>{title}</figcaption><svg role="img" aria-label="{title}" width="{WIDTH}" height="{HEIGHT}">'
        f'{"".join(parts)}</svg><div class="legend">{"".join(legend)}</div></figure>'
    )


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between two limits, some four to eight of them."""
    rough = (high - low) / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    size = min((power * factor for factor in (1, 2, 5, 10)), key=lambda width: abs(width - rough))
    return [size * number for number in range(math.ceil(low / size), math.floor(high / size) + 1)]
