"""glue.md: the scores of a suite of tasks over several seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.base.errors import in_markdown
from bertkit.view.page import Table


def suite_table(summary: Mapping[str, Any], left_out: Sequence[str], archive: str) -> str:
    """Write glue.json as a table; `archive` is named as missing while answers are missing."""
    rows, faults = [], []
    for name, task in summary["tasks"].items():
        metrics = ", ".join(f"{key} {_percent(value)}" for key, value in task["metrics"].items())
        counted, num_runs = task["num_seeds"], len(task["runs"])
        seeds = str(num_runs) if counted == num_runs else f"{counted} of {num_runs}"
        rows.append((in_markdown(name), metrics or "-", _percent(task["score"]), seeds))
        faults += [
            f"- {in_markdown(name)}, seed {run['seed']}: not counted: {in_markdown(run['fault'])}"
            for run in task["runs"]
            if run["fault"]
        ]
    average = summary["average"]
    value = "-" if average["score"] is None else f"{100 * average['score']:.2f}"
    lines = [
        f"GLUE, dev sets, in per cent; mean ± sample standard deviation over the seeds. Model: {in_markdown(summary['model_dir'])}",
        "",
        Table("", ("task", "metrics", "score", "seeds"), rows).markdown(),
        "",
        f"Average: {value}, of the scores of {', '.join(average['tasks']) or 'no task'}.",
    ]
    for name in average["left_out"]:
        why = "as in Devlin et al. 2019" if name in left_out else "none of its runs counts"
        lines.append(f"Left out of the average: {name} ({why}).")
    lines.append("A score is the mean of a task's metrics.")
    if faults:
        lines += ["", *faults]
    if summary["missing"]:
        lines += ["", f"No {archive}: no answers for {', '.join(summary['missing'])}."]
    return "\n".join(lines) + "\n"


def _percent(spread: Mapping[str, float | None] | None) -> str:
    if spread is None or spread["mean"] is None:
        return "-"
    deviation = "" if spread["deviation"] is None else f" ± {100 * spread['deviation']:.2f}"
    return f"{100 * spread['mean']:.2f}{deviation}"
