"""Runs of several processes, started as a user starts them, and what /proc tells of them; for the tests."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from bertkit.train.log import read_metrics

SMALL = [
    "device=cpu", "model=medium", "model.num_hidden_layers=2", "model.num_attention_heads=2", "model.hidden_size=32", "model.intermediate_size=64",
    "model.max_position_embeddings=48", "segments.max_seq_length=40", "batch.sequences=12", "batch.micro_sequences=3",
    "log.every_steps=1",
]  # fmt: skip
ENDLESS = ["steps=100000", "evaluation.every_steps=100000", "checkpoint.every_steps=100000"]
HANG_SECONDS = 10


def start(
    data: Path,
    output: Path,
    *more: object,
    prefix: tuple[str, ...] = (),
    python: Path = Path(sys.executable),
    **variables: str,
) -> subprocess.Popen[str]:
    command = [*prefix, str(python), "-m", "bertkit", "pretrain", f"data_dir={data}", f"output_dir={output}", *SMALL]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(
        [*command, *map(str, more)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def await_steps(processes: list[subprocess.Popen[str]], output: Path, steps: int) -> None:
    until = time.monotonic() + 120
    while (read_metrics(output / "metrics.jsonl") or [{"step": 0}])[-1]["step"] < steps:
        for process in processes:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)


def workers_of(launcher: subprocess.Popen[str]) -> dict[int, int]:
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    results = {}
    for pid in map(int, children):
        variables = dict(
            each.partition("=")[::2] for each in Path(f"/proc/{pid}/environ").read_text().split("\0") if each
        )
        if "RANK" in variables:  # not so until it is a Python of its own
            results[int(variables["RANK"])] = pid
    return results


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def await_end(pids: list[int]) -> None:
    until = time.monotonic() + 30
    while alive(pids):
        assert time.monotonic() < until, alive(pids)
        time.sleep(0.01)


def listening(pids: list[int]) -> set[str]:
    """The addresses where these processes listen, in the format of /proc (hexadecimal, byte by byte)."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
    results = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pids[0]}/net/{table}").read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A" and parts[9] in inodes:
                results.add(parts[1].split(":")[0])
    return results
