"""Stage: bertkit beside the Hugging Face way, on the same work -> tables, JSON, a page.

pretrain, finetune, predict, prepare, batches, startup    how fast, and with how much memory (`bench_compare`)
memory     the peak for several batch sizes, beside the plan (`bench_memory`)
scaling    how time grows with lengths, batches and corpora (`bench_scaling`)
"""

from __future__ import annotations

import datetime
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

from bertkit.bench.compare import compare, compare_startup
from bertkit.bench.memory import compare_memory
from bertkit.bench.rounds import Findings
from bertkit.bench.scaling import compare_scaling
from bertkit.config import to_mapping
from bertkit.files import to_json, write_durably
from bertkit.settings.schemas import BenchSettings
from bertkit.view.bench_page import bench_page

MEASURES: dict[str, Callable[[BenchSettings], Findings]] = {
    **dict.fromkeys(("pretrain", "finetune", "predict", "prepare", "batches"), compare),
    "startup": compare_startup,
    "memory": compare_memory,
    "scaling": compare_scaling,
}


def run(settings: BenchSettings) -> None:
    """Measure, print the tables, and write them where asked.

    Raises:
        InputError: the data cannot be used.
        ParityError: two contestants did not do the same work.
    """
    if settings.output is not None:
        Path(settings.output).parent.mkdir(parents=True, exist_ok=True)
    found = MEASURES[settings.what](settings)
    for number, table in enumerate(found.tables):
        print("\n" * bool(number) + (f"{table.title}\n\n" if table.title else "") + table.markdown())
    if settings.output is None:
        return
    facts = {
        "what": settings.what,
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() and settings.device != "cpu" else None,
        "torch": torch.__version__,
        "command": shlex.join(["bertkit", *sys.argv[1:]]),
    }
    path = Path(settings.output)
    if path.suffix == ".html":
        settings_text = yaml.safe_dump(to_mapping(settings), sort_keys=False)
        write_durably(path, bench_page(facts, found.tables, found.charts, settings_text))
    else:
        whole: dict[str, Any] = {**facts, "settings": to_mapping(settings), "unit": found.unit}
        write_durably(path, to_json({**whole, "results": list(found.results)}))


def processor() -> str:
    """Name the processor, and how many of its threads there are."""
    name = "unknown processor"
    for line in _lines_of(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{name}, {torch.get_num_threads()} threads by default"


def _lines_of(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
