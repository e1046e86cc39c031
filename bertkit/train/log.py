"""metrics.jsonl, one JSON object per logged step; Accelerate's trackers, such as tensorboard and wandb, get the same rows."""

import importlib
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError, say
from bertkit.base.files import write_durably
from bertkit.base.typed_settings import at, dotted_keys


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl, skipping lines that a crash or a power cut damaged; other values than numbers are an InputError."""
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and type(row.get("step")) is int:
            rows.append(row)
            for name, value in row.items():
                is_number = isinstance(value, float) or (type(value) is int and abs(value) < 1 << 63)
                is_text = name in ("skipped", "examples", "batch") and str(value).isprintable()
                if not (is_number or is_text) or not name.isprintable():
                    raise InputError(f"{path}:{number}: {name}={value!r:.60}: expected a number; remove this line")
    return rows


@dataclass
class Window:
    """Averages values since the last logged row; saved in checkpoints, so that a resumed run logs the same means."""

    sums: dict[str, float] = field(default_factory=dict)  # by the name of the value
    counts: dict[str, int] = field(default_factory=dict)  # the number of steps that had the value

    def add(self, values: Mapping[str, float]) -> None:
        """Add the values of one step."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1

    def close(self) -> dict[str, float]:
        """Return the means, and reset the sums."""
        means = {name: total / self.counts[name] for name, total in self.sums.items()}
        self.sums, self.counts = {}, {}
        return means


class MetricsLog:
    """Appends rows to metrics.jsonl; on resume, rows after the checkpoint are removed."""

    def __init__(self, path: Path, last_step: int) -> None:
        """Open the log and remove the rows after `last_step`, because these steps are trained again."""
        kept = [json.dumps(row) + "\n" for row in read_metrics(path) if row["step"] <= last_step]
        write_durably(path, "".join(kept))
        self._file = path.open("a", encoding="utf-8")
        self._is_synced = True

    def write(self, row: Mapping[str, object]) -> None:
        """Append one row."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        self._is_synced = False

    def sync(self) -> None:
        """Flush the rows to disk; called before a checkpoint, so that no earlier row is lost in a power cut."""
        if not self._is_synced:
            os.fsync(self._file.fileno())
            self._is_synced = True

    def close(self) -> None:
        """Flush the rows to disk, and close the file."""
        self.sync()
        self._file.close()


FOLDER = "trackers"  # in the run directory, for trackers that write files
PROJECT = "bertkit"  # the name of the project or experiment in trackers
CLOSE_SECONDS = 30.0  # how long to wait for trackers to write their last rows


class Trackers:
    """The trackers of a run, each in a thread of process 0."""

    def __init__(self, names: Sequence[str], directory: Path, settings: Mapping[str, object]) -> None:
        """Start the trackers and log the run's settings to them; the run has the name of its directory."""
        values = {key: at(settings, key) for key in dotted_keys(settings)}
        flat = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
        plain = {key: value if isinstance(value, (int, float, str)) else str(value) for key, value in flat.items()}
        self._threads = [_Tracker(name, directory, plain) for name in names]

    def log(self, row: Mapping[str, object]) -> None:
        """Queue a row of metrics.jsonl for every tracker; return at once."""
        for thread in self._threads:
            thread.rows.put(row)

    def close(self) -> None:
        """Wait at most CLOSE_SECONDS until the trackers have written their last rows."""
        end = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.rows.put(None)
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                thread.warn(f"did not end within {CLOSE_SECONDS:g} s; its last rows may be missing")


class _Tracker(threading.Thread):
    def __init__(self, name: str, directory: Path, settings: Mapping[str, object]) -> None:
        super().__init__(name=name, daemon=True)
        self.directory, self.settings = directory, settings
        self.rows: queue.SimpleQueue[Mapping[str, object] | None] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        try:
            tracker = self._open()
            while (row := self.rows.get()) is not None:
                values = {name: value for name, value in row.items() if isinstance(value, (int, float, str))}
                step = values.pop("step")
                tracker.log(values, step=step)
            tracker.finish()
        except Exception as error:  # a tracker calls other packages and services; no error there may stop the run
            self.warn(f"stopped ({type(error).__name__}: {' '.join(str(error).split())[:200]})")

    def _open(self) -> Any:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        kind, folder, run = LOGGER_TYPE_TO_CLASS[self.name], self.directory / FOLDER, self.directory.name
        if self.name == "wandb":
            tracker = kind(PROJECT, name=run, dir=self.directory)
        elif self.name == "mlflow":
            if "MLFLOW_TRACKING_URI" not in os.environ:  # by default mlflow writes into the current directory
                folder.mkdir(exist_ok=True)
                mlflow = importlib.import_module("mlflow")
                mlflow.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.db').absolute()}")
            tracker = kind(PROJECT, logging_dir=str(folder), run_name=run)
        elif kind.requires_logging_directory:
            tracker = kind(run, logging_dir=str(folder))
        else:
            tracker = kind(PROJECT)
        if hasattr(tracker, "start"):
            tracker.start()
        tracker.store_init_configuration(self.settings)
        return tracker

    def warn(self, text: str) -> None:
        say(f"warning: log.trackers: {self.name} {text}; the run continues", file=sys.stderr)
