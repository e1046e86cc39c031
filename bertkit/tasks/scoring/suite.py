"""The scores of a suite such as GLUE: each task with several seeds, the mean over the seeds, the average over the tasks."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEFT_OUT = ("wnli",)  # of the average: Devlin et al. 2019, 4.1, since no model beats the majority


@dataclass(frozen=True)
class Run:
    """One task with one seed."""

    seed: int
    directory: Path
    metrics: dict[str, float]  # on the dev set
    fault: str | None  # why it is left out of the mean

    @property
    def score(self) -> float:
        """The mean of the metrics."""
        return statistics.fmean(self.metrics.values())


def best_of(task_runs: Sequence[Run]) -> Run | None:
    """Choose the run for the test files: the first with the best score, if possible among the runs without a fault."""
    ended = [run for run in task_runs if run.metrics]
    return max([run for run in ended if run.fault is None] or ended, key=lambda run: run.score, default=None)


def summarise(results: Mapping[str, Sequence[Run]], directory: Path) -> dict[str, Any]:
    """Give the mean and the sample standard deviation of each task over its seeds, and the average over the tasks.

    The average is without `LEFT_OUT`, and without tasks whose runs all have a fault.
    """
    summary: dict[str, Any] = {}
    for name, task_runs in results.items():
        counted = [run for run in task_runs if run.fault is None]
        best = best_of(task_runs)
        columns = {key: [run.metrics[key] for run in counted] for key in (counted[0].metrics if counted else ())}
        summary[name] = {
            "score": _spread([run.score for run in counted]) if counted else None,
            "metrics": {key: _spread(values) for key, values in columns.items()},
            "num_seeds": len(counted),
            "best_seed": None if best is None else best.seed,
            "runs": [
                {"seed": run.seed, "directory": str(run.directory.relative_to(directory))} | run.metrics | {"fault": run.fault}
                for run in task_runs
            ],
        }  # fmt: skip
    averaged = [name for name, row in summary.items() if row["score"] and name not in LEFT_OUT]
    average = statistics.fmean(summary[name]["score"]["mean"] for name in averaged) if averaged else None
    left_out = [name for name in summary if name not in averaged]
    return {"tasks": summary, "average": {"score": average, "tasks": averaged, "left_out": left_out}}


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    return {"mean": statistics.fmean(values), "deviation": statistics.stdev(values) if len(values) > 1 else None}
