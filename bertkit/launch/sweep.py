"""Runs the combinations of a sweep one after another, each in its own process, and prints their scores, and the means over seeds."""

import contextlib
import json
import re
import signal
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from types import FrameType
from typing import Any

from bertkit.base.errors import INTERRUPTED_CODE, say
from bertkit.launch.world import STOP_SIGNALS, child_command, end_with_parent, handle_signals

STOPPED_CODES = (75, INTERRUPTED_CODE)


@dataclass(frozen=True)
class SweptRun:
    """One combination of the swept values."""

    name: str  # the swept values, as on the command line
    arguments: list[str]  # the command and its overrides
    directory: Path | None  # its output directory; None if it has none


def run_each(runs: Sequence[SweptRun]) -> int:
    """Run all combinations. If a run fails, the sweep continues; a signal ends the current run and the sweep.

    The result is the exit code of a stopped run if there is one, otherwise of the first failed run, otherwise 0.
    """
    codes: dict[str, int] = {}
    received: list[int] = []
    running: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: FrameType | None) -> None:
        received.append(number)
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    with handle_signals(STOP_SIGNALS, forward):
        for run in runs:
            say(f"-- {run.name}")
            # in its own session, so that a signal from the terminal reaches it only once, through `forward`
            command = child_command(*run.arguments)
            process = subprocess.Popen(command, start_new_session=True, preexec_fn=_before_start)
            running[:] = [process]
            if received:  # the signal arrived between two runs
                process.send_signal(received[-1])
            codes[run.name] = process.wait()
            if received or codes[run.name] in STOPPED_CODES:
                break
    say(*_table(runs, codes))
    stops = [code for code in codes.values() if code in STOPPED_CODES or code < 0]
    failures = [code for code in codes.values() if code]
    return abs(([*stops, *failures] or [0])[0])


def _before_start() -> None:
    end_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the run handles it


def _table(runs: Sequence[SweptRun], codes: dict[str, int]) -> list[str]:
    """Return a line for each run: its scores, or how it ended."""
    scores = {run.name: _scores(run.directory) for run in runs}
    names = list(dict.fromkeys(name for row in scores.values() for name in row))
    width = max(len(run.name) for run in runs)
    lines = ["  ".join([f"{'run':<{width}}", *names])] if names else []
    for run in runs:
        if run.name not in codes:
            cells = ["not run"]
        elif codes[run.name]:
            cells = ["stopped" if codes[run.name] in STOPPED_CODES else f"failed (exit {codes[run.name]})"]
        else:
            row = dict.fromkeys(names, float("nan")) | scores[run.name]
            cells = [f"{row[name]:>{len(name)}.4g}" for name in names] or ["done"]
        lines.append("  ".join([f"{run.name:<{width}}", *cells]))
    return lines + _over_seeds({name: row for name, row in scores.items() if codes.get(name) == 0 and row})


def _over_seeds(scores: dict[str, dict[str, float]]) -> list[str]:
    """Return a line for each setting with several seeds: the mean and the standard deviation of each score."""
    groups = defaultdict[str, list[dict[str, float]]](list)
    for name, row in scores.items():
        groups[re.sub("(^|_)seed=[0-9]+", "", name).strip("_")].append(row)
    lines = []
    for name, rows in groups.items():
        columns = {key: [row[key] for row in rows] for key in rows[0] if all(key in row for row in rows)}
        if len(rows) > 1:
            cells = [f"{key} {fmean(values):.4g} ± {stdev(values):.2g}" for key, values in columns.items()]
            lines.append(f"{name}{': ' if name else ''}mean of {len(rows)} seeds: {', '.join(cells)}")
    return lines


def _scores(directory: Path | None) -> dict[str, float]:
    if directory is None or not (directory / "eval.json").is_file():
        return {}
    values: dict[str, Any] = json.loads((directory / "eval.json").read_text(encoding="utf-8"))
    return {name: value for name, value in values.items() if isinstance(value, float) and name != "best_epoch"}
