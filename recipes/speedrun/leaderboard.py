"""The leaderboard: the runs of about the same minutes, a line for each row, with what it gains over `modern_mini` from the same seeds.

    python recipes/speedrun/speedrun.py leaderboard --steps 600

A row with three seeds or more has the p-value of a paired t-test; one with fewer is an observation.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scipy import stats

REFERENCE = "modern_mini"
SEEDS_OF_A_RECORD = 3


@dataclass(frozen=True)
class Standing:
    """The runs of a row with one learning rate."""

    row: str
    rate: float
    losses: dict[int, float]  # the last held-out loss, by seed
    gains: list[float]  # for each seed that both have, the reference's loss minus this row's

    @property
    def mean(self) -> float:
        """The mean loss over the seeds."""
        return statistics.mean(self.losses.values())

    @property
    def p_value(self) -> float | None:
        """Of a paired t-test against the reference; None with fewer seeds than a record needs."""
        if len(self.gains) < SEEDS_OF_A_RECORD or len(set(self.gains)) == 1:
            return None
        return float(stats.ttest_1samp(self.gains, 0.0).pvalue)


def standings(runs: Iterable[Mapping[str, Any]]) -> list[Standing]:
    """Group runs by row and rate, the lowest mean loss first.

    The reference has the rate with the most seeds; among those, the one with the lowest mean loss.
    """
    found: dict[tuple[str, float], dict[int, float]] = {}
    for run in runs:
        found.setdefault((run["row"], run["rate"]), {})[run["seed"]] = run["losses"][-1][1]
    own = [losses for (row, _), losses in found.items() if row == REFERENCE]
    reference = min(own, key=lambda losses: (-len(losses), statistics.mean(losses.values())), default={})
    made = [
        Standing(
            row, rate, losses, [reference[seed] - losses[seed] for seed in sorted(losses.keys() & reference.keys())]
        )
        for (row, rate), losses in found.items()
    ]
    return sorted(made, key=lambda each: each.mean)


def table(found: Iterable[Standing], minutes: Mapping[str, float]) -> list[str]:
    """Return the lines of the table, in Markdown; `minutes` of two cores by row, of those whose speed is known."""
    columns = ("row", "rate", "seeds", "last loss", f"gain over {REFERENCE}, same seeds", "p", "minutes")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for each in found:
        spread = f" ± {statistics.stdev(each.losses.values()):.3f}" if len(each.losses) > 1 else ""
        gain = f"{statistics.mean(each.gains):+.3f}" if each.gains and each.row != REFERENCE else ""
        chance = "" if each.p_value is None or each.row == REFERENCE else f"{each.p_value:.2g}"
        seeds = ", ".join(map(str, sorted(each.losses)))
        time = f"{minutes[each.row]:.1f}" if each.row in minutes else ""
        lines.append(f"| {each.row} | {each.rate:g} | {seeds} | {each.mean:.3f}{spread} | {gain} | {chance} | {time} |")
    return lines
