"""The command `bench`: bertkit beside Hugging Face, on the same work -> tables, JSON, a page."""

from __future__ import annotations

import datetime
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import torch
import yaml

from bertkit.bench.compare import compare, compare_startup
from bertkit.bench.scaling import compare_memory, compare_scaling
from bertkit.config import to_mapping
from bertkit.files import to_json, write_durably
from bertkit.settings.bench import BenchSettings
from bertkit.view.bench_page import bench_page


def run(settings: BenchSettings) -> None:
    """Measure, print the tables, and write them where asked.

    Raises:
        InputError: the data cannot be used.
        ParityError: two systems did not do the same work.
    """
    if settings.output is not None:
        Path(settings.output).parent.mkdir(parents=True, exist_ok=True)
    others = {"startup": compare_startup, "memory": compare_memory, "scaling": compare_scaling}
    found = others.get(settings.what, compare)(settings)
    for number, table in enumerate(found.tables):
        print("\n" * bool(number) + (f"{table.title}\n\n" if table.title else "") + table.markdown())
    if settings.output is None:
        return
    facts: dict[str, Any] = {
        "what": settings.what,
        "date": datetime.date.today().isoformat(),
        "processor": _processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() and settings.device != "cpu" else None,
        "torch": torch.__version__,
        "command": shlex.join(["bertkit", *sys.argv[1:]]),
    }
    if settings.output.endswith(".html"):
        text = bench_page(facts, found, yaml.safe_dump(to_mapping(settings), sort_keys=False))
    else:
        text = to_json({**facts, "settings": to_mapping(settings), "unit": found.unit, "results": list(found.results)})
    write_durably(Path(settings.output), text)


def _processor() -> str:
    """Name the processor, and how many of its threads there are."""
    info = Path("/proc/cpuinfo")
    named = re.search(
        r"^model name\s*:\s*(.+)", info.read_text(errors="replace") if info.exists() else "", re.MULTILINE
    )
    return f"{named[1] if named else 'unknown processor'}, {torch.get_num_threads()} threads by default"
