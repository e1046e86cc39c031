"""Trackers of experiments, Accelerate's own: tensorboard, wandb, mlflow and others get the rows of metrics.jsonl.

They are never needed, never waited for, and never the end of a run: each works in a thread of its own, and one that fails is
named and left alone from then on.
"""

from __future__ import annotations

import importlib
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.base.errors import say

FOLDER = "trackers"  # in the directory of the run, for those that write files
PROJECT = "bertkit"  # for those that have projects or experiments
LAST_SECONDS = 30.0  # for what is left at the end of a run


class Trackers:
    """The trackers of a run, in its first process."""

    def __init__(self, names: Sequence[str], directory: Path, settings: Mapping[str, Any]) -> None:
        """Start them.

        Args:
            names: of Accelerate's trackers; none is fine.
            directory: of the run, whose name it has with them.
            settings: of the run.
        """
        flat = dict(_flattened(settings))
        self._all = [_Tracker(name, directory, flat) for name in names]

    def log(self, row: Mapping[str, Any]) -> None:
        """Hand on a row of metrics.jsonl; returns at once."""
        for tracker in self._all:
            tracker.rows.put(row)

    def close(self) -> None:
        """Let them write what is left, for LAST_SECONDS at most."""
        until = time.monotonic() + LAST_SECONDS
        for tracker in self._all:
            tracker.end(max(0.0, until - time.monotonic()))


class _Tracker(threading.Thread):
    def __init__(self, name: str, directory: Path, settings: Mapping[str, Any]) -> None:
        super().__init__(name=f"tracker {name}", daemon=True)
        self.tracker, self.directory, self.settings = name, directory, settings
        self.rows: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self.start()

    def end(self, seconds: float) -> None:
        self.rows.put(None)
        self.join(seconds)
        if self.is_alive():
            self._warn(f"did not end within {LAST_SECONDS:g} s; its last rows may be missing")

    def run(self) -> None:
        try:
            tracker = self._opened()
            while (row := self.rows.get()) is not None:
                values = {name: value for name, value in row.items() if isinstance(value, (int, float, str))}
                step = values.pop("step")
                tracker.log(values, step=step)
            tracker.finish()
        except Exception as error:  # whatever a tracker's own packages, services and disks raise
            self._warn(f"gives up ({type(error).__name__}: {' '.join(str(error).split())[:200]})")

    def _opened(self) -> Any:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        kind, folder, run = LOGGER_TYPE_TO_CLASS[self.tracker], self.directory / FOLDER, self.directory.name
        if self.tracker == "wandb":
            tracker = kind(PROJECT, name=run, dir=self.directory)
        elif self.tracker == "mlflow":
            _keep_mlflow_in(folder)
            tracker = kind(PROJECT, logging_dir=str(folder), run_name=run)
        elif kind.requires_logging_directory:
            tracker = kind(run, logging_dir=str(folder))
        else:
            tracker = kind(PROJECT)
        if hasattr(tracker, "start"):
            tracker.start()
        tracker.store_init_configuration(dict(self.settings))
        return tracker

    def _warn(self, text: str) -> None:
        say(f"warning: log.trackers: {self.tracker} {text}; the run goes on", file=sys.stderr)


def _keep_mlflow_in(folder: Path) -> None:
    """Have mlflow write into the run's directory, not into the current one, unless it is told where."""
    if "MLFLOW_TRACKING_URI" not in os.environ:
        folder.mkdir(exist_ok=True)
        mlflow = importlib.import_module("mlflow")
        mlflow.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.db').absolute()}")


def _flattened(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, (bool, int, float, str)) else str(value)
