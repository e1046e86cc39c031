"""The runs of a sweep, one after another, each a process of its own, and the table of their scores at the end."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from bertkit.base.errors import say
from bertkit.launch.world import INTERRUPTED_CODE, STOP_SIGNALS, end_with_parent, own_command

STOPPED_CODES = (75, INTERRUPTED_CODE)


@dataclass(frozen=True)
class SweptRun:
    """One combination of values.

    Attributes:
        name: the values, as they are given.
        arguments: of its command.
        directory: that it writes; None where it writes none.
    """

    name: str
    arguments: list[str]
    directory: Path | None


def run_each(runs: Sequence[SweptRun]) -> int:
    """Run all combinations; one that fails does not end the others, a signal ends the one that runs and the sweep.

    Returns:
        0, the code of a stop, or that of the first run that failed.
    """
    codes: dict[str, int] = {}
    received: list[int] = []
    running: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        received.append(number)
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in STOP_SIGNALS}
    try:
        for run in runs:
            say(f"-- {run.name}")
            # in a session of its own, so that a signal of the terminal comes once, from here
            process = subprocess.Popen(
                own_command(*run.arguments),
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
            running[:] = [process]
            if received:  # between two runs
                process.send_signal(received[-1])
            codes[run.name] = process.wait()
            if received or codes[run.name] in STOPPED_CODES:
                break
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    say(*_table(runs, codes))
    stops = [code for code in codes.values() if code in STOPPED_CODES or code < 0]
    failures = [code for code in codes.values() if code]
    return abs(([*stops, *failures] or [0])[0])


def _table(runs: Sequence[SweptRun], codes: dict[str, int]) -> list[str]:
    """Give a line for each run: its scores, or how it ended."""
    scores = {run.name: _scores(run.directory) for run in runs}
    names = list(dict.fromkeys(name for each in scores.values() for name in each))
    width = max(len(run.name) for run in runs)
    lines = ["  ".join([f"{'run':<{width}}", *names])] if names else []
    for run in runs:
        code = codes.get(run.name)
        end = (
            "not run"
            if code is None
            else "stopped"
            if code in STOPPED_CODES
            else f"failed (exit {code})"
            if code
            else ""
        )
        cells = [f"{scores[run.name].get(name, float('nan')):>{len(name)}.4g}" for name in names] if not end else [end]
        lines.append("  ".join([f"{run.name:<{width}}", *(cells or ["done"])]))
    return lines


def _scores(directory: Path | None) -> dict[str, float]:
    if directory is None or not (directory / "eval.json").is_file():
        return {}
    found: dict[str, Any] = json.loads((directory / "eval.json").read_text(encoding="utf-8"))
    return {name: value for name, value in found.items() if isinstance(value, float) and not isinstance(value, bool)}
