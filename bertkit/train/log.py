"""metrics.jsonl: one object per logged step, cut back to the checkpoint on resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bertkit.files import write_durably


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the log; a last line cut short by a crash is left out."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


class MetricsLog:
    """Appends to metrics.jsonl."""

    def __init__(self, path: Path, last_step: int) -> None:
        """Open the log and forget every row after `last_step`, which will be trained again."""
        kept = [json.dumps(row) + "\n" for row in read_metrics(path) if row["step"] <= last_step]
        write_durably(path, "".join(kept))
        self._file = path.open("a", encoding="utf-8")

    def write(self, row: dict[str, Any]) -> None:
        """Append one row."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
