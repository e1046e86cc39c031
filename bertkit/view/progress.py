"""Progress of long work: a bar on a terminal and in a notebook, lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from tqdm.auto import tqdm

from bertkit.base.errors import say, shown

SECONDS_BETWEEN_LINES = 15.0


class Progress:
    """Count towards a total, if known, and show the time left.

    On a terminal and in a notebook this is a bar; `line` prints above it. Elsewhere `advance` prints a line now and then,
    unless `silent`, for callers that print their own.
    """

    def __init__(
        self, label: str, total: float | None, *, done: float = 0, silent: bool = False, file: TextIO | None = None
    ) -> None:
        self.file = file or sys.stdout
        self.label, self.total, self.done, self.silent = label, total, done, silent
        self.started_at = self.last_line_at = time.monotonic()
        self.done_at_start = done
        self.bar = None
        is_notebook = type(self.file).__module__.startswith("ipykernel")
        if total and (is_notebook or self.file.isatty()) and not silent:
            bar_format = "{desc} {percentage:3.0f}% |{bar}| {elapsed} elapsed, {remaining} left"
            self.bar = tqdm(
                total=total, initial=done, desc=label, file=self.file, leave=False, dynamic_ncols=True,
                bar_format=bar_format,
            )  # fmt: skip

    def advance(self, to: float) -> None:
        """Set the amount of work done, in the unit of the total."""
        step, self.done = to - self.done, to
        if self.bar is not None:
            self.bar.update(step)
        elif not self.silent and time.monotonic() - self.last_line_at > SECONDS_BETWEEN_LINES:
            self.last_line_at = time.monotonic()
            done = f"{100 * self.done / self.total:.0f} %, {self.time_left()} left" if self.total else "running"
            say(f"{self.label}: {done}", file=self.file)

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        self.last_line_at = time.monotonic()
        if self.bar is not None:
            self.bar.write(shown(text), file=self.file)
        else:
            say(text, file=self.file)

    def time_left(self) -> str:
        """Estimate the time left from the speed so far."""
        if not self.total or self.done <= self.done_at_start:
            return "?"
        seconds_per_unit = (time.monotonic() - self.started_at) / (self.done - self.done_at_start)
        return duration(seconds_per_unit * max(0.0, self.total - self.done))

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()


def duration(seconds: float) -> str:
    """Write a duration: 42s, 3m10s, 2h05m, 3d04h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
