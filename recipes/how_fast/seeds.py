"""Scores of bertkit and transformers over paired seeds. The scores of every run are kept in a file; finished runs are not repeated."""

import json
import resource
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from bertkit.display.page import Table

SYSTEMS = ("bertkit", "transformers")
Run = Callable[[], dict[str, float]]  # returns scores by their names


def run_missing(folder: Path, name: str, seed: int, runs: Mapping[str, Run]) -> None:
    """Run each side and seed without scores, and keep its scores and its CPU seconds."""
    (folder / "scores").mkdir(parents=True, exist_ok=True)
    for system, run in runs.items():
        result = folder / "scores" / f"{name}.{system}.{seed}.json"
        if result.exists():
            continue
        before = _seconds()
        scores = run()
        scores["seconds"] = _seconds() - before
        partial = result.with_suffix(".partial")
        partial.write_text(json.dumps(scores), encoding="utf-8")
        partial.rename(result)
        print(f"{name}, seed {seed}, {system}: {scores}", flush=True)


def table(folder: Path, keys: Iterable[tuple[str, str]]) -> Table:
    """Return a table of mean and deviation over the seeds that both sides have, for the scores with these names and keys."""
    rows = []
    for name, key in keys:
        found = [
            {path.name.split(".")[2]: json.loads(path.read_text(encoding="utf-8"))[key] for path in paths}
            for paths in ((folder / "scores").glob(f"{name}.{system}.*.json") for system in SYSTEMS)
        ]
        seeds = sorted(found[0].keys() & found[1].keys())
        if len(seeds) < 2:
            continue
        sides = [[scores[seed] for seed in seeds] for scores in found]
        means = [f"{statistics.mean(side):.3f} ± {statistics.stdev(side):.3f}" for side in sides]
        difference = statistics.mean(sides[0]) - statistics.mean(sides[1])
        error = (sum(map(statistics.variance, sides)) / len(seeds)) ** 0.5
        rows.append((name, key, f"{len(seeds)}", *means, f"{difference:+.3f}", f"{error:.3f}"))
    return Table("", ("", "score", "seeds", *SYSTEMS, "difference", "its standard error"), rows)


def _seconds() -> float:
    """Return the CPU seconds of this process and its children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
