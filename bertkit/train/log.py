"""metrics.jsonl: one object per logged step, cut back to the checkpoint on resume."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertkit.base.files import write_durably


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the log, without lines that a crash or a power cut damaged."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_bytes().split(b"\n"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and type(row.get("step")) is int:
            rows.append(row)
    return rows


@dataclass
class Window:
    """Sums for the means since the last logged line; saved in checkpoints, so that a resumed run logs the same means."""

    sums: dict[str, float] = field(default_factory=dict)  # of each value, by its name
    counts: dict[str, int] = field(default_factory=dict)  # of the steps that had it

    def add(self, values: Mapping[str, float]) -> None:
        """Add the values of one step."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1

    def close(self) -> dict[str, float]:
        """Give the means, and start again."""
        means = {name: total / self.counts[name] for name, total in self.sums.items()}
        self.sums, self.counts = {}, {}
        return means


class MetricsLog:
    """Appends to metrics.jsonl; cut back to the checkpoint on resume."""

    def __init__(self, path: Path, last_step: int) -> None:
        """Open the log and forget every row after `last_step`, which will be trained again."""
        kept = [json.dumps(row) + "\n" for row in read_metrics(path) if row["step"] <= last_step]
        write_durably(path, "".join(kept))
        self._file = path.open("a", encoding="utf-8")
        self._is_synced = True

    def write(self, row: dict[str, Any]) -> None:
        """Append one row."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        self._is_synced = False

    def sync(self) -> None:
        """Flush the rows to the disk; called before a checkpoint, so that a power cut leaves no gap."""
        if not self._is_synced:
            os.fsync(self._file.fileno())
            self._is_synced = True

    def close(self) -> None:
        """Flush the rows to the disk, and close the file."""
        self.sync()
        self._file.close()
