"""report.html: the curves, metrics and settings of a run, on one self-contained page."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.base.files import write_durably
from bertkit.base.text_files import read_json
from bertkit.train.log import read_metrics
from bertkit.view.charts import Figure, line_chart
from bertkit.view.console import health_line
from bertkit.view.page import number, render
from bertkit.view.review import headline, most_confused, pictures


class Curves(NamedTuple):
    """The lines of a chart: (key of the log, name), and the key of a constant baseline."""

    title: str
    series: tuple[tuple[str, str], ...]
    baseline: str | None = None
    unit: str = ""


CHARTS = (
    Curves("Masked LM loss (nats)", (("mlm_loss", "training"), ("eval_mlm_loss", "held out")), "unigram entropy"),
    Curves("Masked LM accuracy", (("mlm_accuracy", "training"), ("eval_mlm_accuracy", "held out")), None, "share"),
    Curves(
        "Next sentence accuracy", (("nsp_accuracy", "training"), ("eval_nsp_accuracy", "held out")), "guessing", "share"
    ),
    Curves("Learning rate", (("learning_rate", "learning rate"),), None, "rate"),
    Curves("Gradient norm before clipping", (("grad_norm", "gradient norm"),), None, "norm"),
    Curves("Speed", (("tokens_per_second", "tokens per second"),), None, "tokens/s"),
)
TASK_CHARTS = (
    Curves("Loss of the task's head", (("loss", "training"), ("eval_loss", "dev")), None, "loss"),
    Curves("Accuracy", (("sequence_accuracy", "training"), ("eval_accuracy", "dev")), None, "share"),
    Curves(
        "F1", (("eval_f1", "dev"), ("eval_overall_f1", "dev, of entities"), ("eval_f1_macro", "dev, macro")), None, "F1"
    ),
    Curves("Correlation", (("eval_pearson", "Pearson, dev"), ("eval_spearmanr", "Spearman, dev")), None, "correlation"),
    Curves("Matthews correlation", (("eval_matthews_correlation", "dev"),), None, "correlation"),
    Curves("Exact match", (("eval_exact_match", "dev"), ("eval_exact", "dev")), None, "%"),
    *CHARTS[-3:],
)


def write_report(
    run_dir: Path,
    baselines: dict[str, float],
    charts: Sequence[Curves] = CHARTS,
    review: Mapping[str, Any] | None = None,
) -> None:
    """Write the page of a run so far; charts without values are left out.

    Args:
        run_dir: of the run.
        baselines: "unigram entropy", and with pairs "guessing", the accuracy of the commoner label.
        charts: to draw.
        review: of a fine-tuned model's predictions, for `view.review`; None during training.
    """
    rows = read_metrics(run_dir / "metrics.jsonl")
    last = rows[-1] if rows else {}
    manifest = read_json(run_dir / "manifest.json")
    facts = {
        "text": manifest["corpus"]["description"],
        "bertkit": manifest["bertkit"],
        "torch": manifest["packages"]["torch"],
        "processes": manifest["world_size"],
        "command": "bertkit " + " ".join(manifest["command_line"]),
    }
    page = render(
        "report.html",
        name=run_dir.resolve().name,
        headline=headline(review) if review else _headline(last, baselines),
        charts=[_chart(rows, curves, baselines) for curves in charts],
        last=last,
        facts=facts,
        settings=(run_dir / "config.yaml").read_text(encoding="utf-8"),
        review=review,
        pictures=pictures(review or {}),
        confused=most_confused(review["confusion"]) if review and "confusion" in review else (),
    )
    write_durably(run_dir / "report.html", page)


def _headline(last: dict[str, Any], baselines: dict[str, float]) -> str:
    scores = {key[5:]: value for key, value in last.items() if key.startswith("eval_")}
    step = f"Step {last.get('step', 0):,}"
    if "mlm_loss" in scores:
        return f"{step}: {health_line(scores, baselines)}."
    named = [f"{name.replace('_', ' ')} {number(value)}" for name, value in scores.items()]
    return step + (f": {', '.join(named)} on the dev split" if named else "")


def _chart(rows: list[dict[str, Any]], curves: Curves, constants: dict[str, float]) -> Figure | None:
    lines = [
        (label, [(row["step"], row[key]) for row in rows if key in row and math.isfinite(row[key])])
        for key, label in curves.series
    ]
    baseline = curves.baseline
    compared = (baseline, constants[baseline]) if baseline in constants else None
    return line_chart(curves.title, lines, compared, x_name="step", y_name=curves.unit)
