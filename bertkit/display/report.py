"""Write report.html for a run, compare.html for several runs, and glue.md for a GLUE run.

In a report, a review is what `tasks.scoring.review` returns, with the keys `scores`, `baselines` (scores by name),
`intervals` (95 %, of each score), `best_metric`, `num_examples`, `warnings` and `facts` added.
"""

import itertools
import math
import shlex
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bertkit.base.errors import in_markdown
from bertkit.base.files import write_durably
from bertkit.base.text_files import JsonObject, JsonValue, read_json
from bertkit.base.typed_settings import at
from bertkit.display.charts import Figure, line_chart, reliability, scatter
from bertkit.display.console import has_controls, health_line, objective_of
from bertkit.display.page import Table, format_score, metric_name, render
from bertkit.train.log import read_metrics

NUM_CONFUSIONS = 10  # in the table "Most confused"
COMPARISON = b'<meta name="generator" content="bertkit compare">'  # in the head of compare.html


class Curves(NamedTuple):
    """A chart of logged values."""

    title: str
    series: tuple[tuple[str, str], ...]  # the lines: (key in metrics.jsonl, name)
    baseline: tuple[str, str] | None = None  # (key, name) of a constant that is drawn as a dashed line
    is_noisy: bool = True  # then it is smoothed


CHARTS = (
    Curves(
        "MLM loss (nats)",
        (("mlm_loss", "training"), ("eval_mlm_loss", "held out")),
        ("eval_mlm_loss_by_counting", "counting tokens"),
    ),
    Curves(
        "MLM loss at [MASK] alone (nats)",
        (("eval_mlm_loss_at_mask", "held out"),),
        ("eval_mlm_loss_at_mask_by_counting", "counting tokens"),
    ),
    Curves(
        "MLM accuracy",
        (("mlm_accuracy", "training"), ("eval_mlm_accuracy", "held out")),
        ("eval_mlm_accuracy_by_counting", "counting tokens"),
    ),
    Curves(
        "Next token loss (nats)",
        (("lm_loss", "training"), ("eval_lm_loss", "held out")),
        ("eval_lm_loss_by_counting", "counting tokens"),
    ),
    Curves(
        "Next token accuracy",
        (("lm_accuracy", "training"), ("eval_lm_accuracy", "held out")),
        ("eval_lm_accuracy_by_counting", "counting tokens"),
    ),
    Curves(
        "Next sentence accuracy",
        (("nsp_accuracy", "training"), ("eval_nsp_accuracy", "held out")),
        ("guessing", "guessing"),
    ),
    Curves("Learning rate", (("learning_rate", "learning rate"),), is_noisy=False),
    Curves("Gradient norm before clipping", (("grad_norm", "gradient norm"),)),
    Curves("Tokens per second", (("tokens_per_second", "tokens per second"),)),
)
TASK_CHARTS = (
    Curves("Loss", (("loss", "training"), ("eval_loss", "dev"))),
    Curves("Mean score of several tasks", (("eval_score", "dev"),)),
    Curves("Accuracy", (("sequence_accuracy", "training"), ("eval_accuracy", "dev"))),
    Curves("F1", (("eval_f1", "dev"), ("eval_overall_f1", "dev, of entities"), ("eval_f1_macro", "dev, macro"))),
    Curves("Correlation", (("eval_pearson", "Pearson, dev"), ("eval_spearmanr", "Spearman, dev"))),
    Curves("R²", (("eval_r2", "dev"),)),
    Curves("Matthews correlation", (("eval_matthews_correlation", "dev"),)),
    Curves("Exact match (%)", (("eval_exact_match", "dev"), ("eval_exact", "dev"))),
    *CHARTS[-3:],
)


def write_report(
    run_dir: Path,
    baselines: Mapping[str, float],
    charts: Sequence[Curves] = CHARTS,
    review: Mapping[str, JsonValue] = {},
    samples: Table | None = None,
) -> None:
    """Write report.html for a run so far; charts without values are omitted.

    With next sentence prediction, `baselines` has "guessing", the accuracy of the more frequent label, and "chance".
    Only a finished run has a review of its predictions (fine-tuning), or samples: held-out texts with predictions (pretraining).
    """
    rows = read_metrics(run_dir / "metrics.jsonl")
    last = rows[-1] if rows else {}
    constants = {key: value for row in rows for key, value in row.items()} | dict(baselines)
    manifest = read_json(run_dir / "manifest.json")
    facts = {
        "text": at(manifest, "corpus.description"),
        "bertkit": at(manifest, "bertkit"),
        "torch": at(manifest, "packages.torch"),
        "processes": at(manifest, "world_size"),
        "command": f"bertkit {shlex.join(map(str, at(manifest, 'command_line') or ()))}",
    }
    page = render(
        "report.html",
        name=run_dir.resolve().name,
        headline=headline(review) if review else _headline(last, baselines),
        charts=[*pictures(review), *(_chart(rows, curves, constants) for curves in charts)],
        samples=samples,
        last={metric_name(name): value for name, value in last.items() if name != "batch"},
        facts=facts,
        settings=(run_dir / "config.yaml").read_text(encoding="utf-8"),
        review=review,
        confused=most_confused(review),
    )
    write_durably(run_dir / "report.html", page)


def pictures(review: Mapping[str, JsonValue]) -> list[Figure]:
    """Return the charts of a review."""
    drawings: dict[str, Callable[[JsonValue], Figure]] = {"calibration": reliability, "scatter": scatter}
    return [draw(review[name]) for name, draw in drawings.items() if name in review]


def headline(review: Mapping[str, JsonValue]) -> str:
    """Return a sentence with the main score, its 95 % interval if there is one, and the baseline's score."""
    name = review["best_metric"]
    ends = ", ".join(map(format_score, review["intervals"].get(name, ())))
    interval = f" [{ends}]" if ends else ""
    text = f"{metric_name(name)} {format_score(review['scores'][name])}{interval} on the dev split"
    if name in (majority := review["baselines"].get("majority", {})):
        text += f"; the majority baseline scores {format_score(majority[name])}"
    return text[0].upper() + text[1:] + "."


def most_confused(review: Mapping[str, JsonValue]) -> list[tuple[str, str, int]]:
    """Return the most frequent confusions, (true, predicted, count); none for two labels, which the matrix shows clearly."""
    if "confusion" not in review or len(review["confusion"]["labels"]) < 3:
        return []
    labels, counts = review["confusion"]["labels"], review["confusion"]["counts"]
    places = itertools.permutations(range(len(labels)), 2)
    confusions = [(labels[row], labels[column], counts[row][column]) for row, column in places if counts[row][column]]
    return sorted(confusions, key=lambda one: -one[2])[:NUM_CONFUSIONS]


def _headline(last: JsonObject, baselines: Mapping[str, float]) -> str:
    scores = {key[5:]: value for key, value in last.items() if key.startswith("eval_")}
    step = f"Step {last.get('step', 0):,}"
    if has_controls(scores):
        return f"{step}: {health_line(scores, baselines)}."
    named = [f"{metric_name(name)} {format_score(value)}" for name, value in scores.items()]
    return step + (f": {', '.join(named)} on the dev split" if named else "")


def _chart(rows: list[JsonObject], curves: Curves, constants: JsonObject) -> Figure | None:
    lines = [(label, _points(rows, key)) for key, label in curves.series]
    key, name = curves.baseline or ("", "")
    compared = (name, constants[key]) if key in constants else None
    return line_chart(curves.title, lines, compared, x_name="step", is_noisy=curves.is_noisy)


Rows = Sequence[JsonObject]  # the rows of metrics.jsonl


def _points(rows: Rows, key: str) -> list[tuple[float, float]]:
    """Return (step, value) of the rows with a finite value."""
    return [(row["step"], row[key]) for row in rows if key in row and math.isfinite(row[key])]


def scores_table(runs: Sequence[tuple[str, str, Sequence[Mapping[str, float]]]]) -> Table:
    """Return the table of scores; a run is (name, steps, the scores of each seed)."""
    columns = list(dict.fromkeys(name for _, _, seeds in runs for scores in seeds for name in scores))
    rows = [
        (name, steps, *(_cell([scores.get(column) for scores in seeds]) for column in columns))
        for name, steps, seeds in runs
    ]
    return Table("Scores", ("run", "steps", *map(metric_name, columns)), rows)


def _cell(of_seeds: Sequence[float | None]) -> str:
    """Write a score, or the mean and standard deviation of several, with their number where not all seeds have one."""
    values = [value for value in of_seeds if value is not None]
    if not values:
        return "-"
    number = f" ({len(values)} of {len(of_seeds)} seeds)" if len(values) < len(of_seeds) else ""
    if len(values) == 1 or not all(map(math.isfinite, values)):
        return f"{format_score(statistics.fmean(values))}{number}"
    return f"{format_score(statistics.fmean(values))} ± {format_score(statistics.stdev(values))}{number}"


def comparison_page(runs: Sequence[tuple[str, Sequence[Rows]]], lines: Sequence[str], tables: Sequence[Table]) -> str:
    """Return compare.html: lines of text, tables, and a chart for each logged value."""
    names = ", ".join(name for name, _ in runs)
    charts = []
    is_pretraining = any(objective_of(row) for _, seeds in runs for rows in seeds for row in rows)
    for curves in CHARTS if is_pretraining else TASK_CHARTS:
        for key, label in curves.series:
            overlaid = [(name, _mean_curve(seeds, key)) for name, seeds in runs]
            title = curves.title if len(curves.series) == 1 else f"{curves.title}, {label}"
            charts.append(line_chart(title, overlaid, x_name="step", is_noisy=curves.is_noisy))
    headline = f"{len(runs)} runs: {names}"
    return render("compare.html", name="compare", headline=headline, lines=lines, tables=tables, charts=charts)


def is_comparison(path: Path) -> bool:
    """Whether a file is a page that `comparison_page` returned."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return COMPARISON in file.read(1000)


def _mean_curve(seeds: Sequence[Rows], key: str) -> list[tuple[float, float]]:
    """Return (step, value) points; a value is the mean over the seeds that logged it."""
    at_step: dict[float, list[float]] = defaultdict(list)
    for rows in seeds:
        for step, value in _points(rows, key):
            at_step[step].append(value)
    return [(step, statistics.fmean(values)) for step, values in sorted(at_step.items())]


# BERT-base on the dev sets: transformers, examples/pytorch/text-classification/README.md, cased, one seed; and on the test sets:
# Devlin et al. 2019, table 1 (F1 for MRPC and QQP, Spearman for STS-B, Matthews for CoLA, accuracy for the others)
PUBLISHED = {
    "cola": ("56.53", "52.1"),
    "sst2": ("92.32", "93.5"),
    "mrpc": ("84.07, F1 88.85", "F1 88.9"),
    "stsb": ("88.64, 88.48", "85.8"),
    "qqp": ("90.71, F1 87.49", "F1 71.2"),
    "mnli": ("83.91, 84.10", "84.6, 83.4"),
    "qnli": ("90.66", "90.5"),
    "rte": ("65.70", "66.4"),
    "wnli": ("56.34", "-"),
}


def glue_table(summary: JsonObject, left_out: Sequence[str], archive: str) -> str:
    """Return glue.md, glue.json as a table beside the published scores; `archive` is the file for the GLUE server."""
    rows, faults = [], []
    for name in [name for name in PUBLISHED if name in summary["tasks"]]:
        task = summary["tasks"][name]
        metrics = ", ".join(f"{key} {_percent(value)}" for key, value in task["metrics"].items())
        counted, num_runs = task["num_seeds"], len(task["runs"])
        seeds = str(num_runs) if counted == num_runs else f"{counted} of {num_runs}"
        rows.append((name, metrics or "-", _percent(task["score"]), seeds, *PUBLISHED[name]))
        faults += [
            f"- {name}, seed {run['seed']}: not counted: {in_markdown(run['fault'])}"
            for run in task["runs"]
            if run["fault"]
        ]
    average = summary["average"]
    value = "-" if average["score"] is None else f"{100 * average['score']:.2f}"
    lines = [
        f"GLUE, dev sets, in per cent; mean ± sample standard deviation over the seeds. Model: {in_markdown(summary['model_dir'])}",
        "",
        Table("", ("task", "metrics", "score", "seeds", "BERT-base, dev", "BERT-base, test"), rows).markdown(),
        "",
        f"Average: {value}, over the scores of {', '.join(average['tasks']) or 'no task'}.",
    ]
    for name in average["left_out"]:
        why = "as in Devlin et al. 2019" if name in left_out else "none of its runs counts"
        lines.append(f"Not in the average: {name} ({why}).")
    lines.append("A score is the mean of a task's metrics.")
    lines.append(
        "BERT-base: on dev sets, transformers' run_glue.py (cased, one seed); on test sets, Devlin et al. 2019, table 1."
    )
    if faults:
        lines += ["", *faults]
    if summary["missing"]:
        lines += ["", f"No {archive}: predictions are missing for {', '.join(summary['missing'])}."]
    return "\n".join(lines) + "\n"


def _percent(spread: Mapping[str, float | None] | None) -> str:
    if spread is None or spread["mean"] is None:
        return "-"
    deviation = "" if spread["deviation"] is None else f" ± {100 * spread['deviation']:.2f}"
    return f"{100 * spread['mean']:.2f}{deviation}"
