"""What a resume costs over a cold start, from the start of the process to its first optimizer step.

Run it with: pytest -m slow -s tests/run/test_resume_time.py
"""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertkit.train.checkpoint_files import all_checkpoints
from bertkit.train.log import read_metrics

LARGE = [  # 32 million parameters, a checkpoint of 385 MB
    "device=cpu", "model=medium", "model.num_hidden_layers=10", "segments.max_seq_length=24", "batch.sequences=2",
    "log.every_steps=1", "steps=1000", "checkpoint.every_steps=2", "checkpoint.keep_last=1",
]  # fmt: skip
NUM_STARTS = 5


def start(data: Path, run_dir: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bertkit", "pretrain", f"data_dir={data}", f"output_dir={run_dir}", *LARGE, *more]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def steps(run_dir: Path) -> list[int]:
    return [row["step"] for row in read_metrics(run_dir / "metrics.jsonl")]


def seconds_to_a_step(data: Path, run_dir: Path, step: int) -> tuple[float, float]:
    """Start a run and kill it after it logged a step; give the wall-clock and the processor seconds until then."""
    started_at, process = time.monotonic(), start(data, run_dir, "checkpoint.every_steps=500")
    while step not in steps(run_dir):
        assert process.poll() is None
        time.sleep(0.002)
    wall = time.monotonic() - started_at
    process.send_signal(signal.SIGKILL)
    usage = os.wait4(process.pid, 0)[2]
    process.returncode = -signal.SIGKILL
    return wall, usage.ru_utime + usage.ru_stime


@pytest.mark.slow
def test_a_resume_costs_at_most_a_second(prepared_dir: Path, tmp_path: Path) -> None:
    process = start(prepared_dir, tmp_path / "saved")
    while not all_checkpoints(tmp_path / "saved"):
        assert process.poll() is None
        time.sleep(0.1)
    process.kill()
    process.wait()
    saved = int(all_checkpoints(tmp_path / "saved")[0].name[5:])
    cold, resumed = [], []
    for trial in range(NUM_STARTS):
        cold.append(seconds_to_a_step(prepared_dir, tmp_path / f"cold{trial}", 1))
        resumed.append(seconds_to_a_step(prepared_dir, tmp_path / "saved", saved + 1))
        (tmp_path / "saved" / "metrics.jsonl").write_text("")
        shutil.rmtree(tmp_path / f"cold{trial}")
        print(f"wall-clock and processor seconds: cold {cold[-1]}, resumed {resumed[-1]}", flush=True)
    for place, name in enumerate(("wall-clock", "processor")):
        medians = [statistics.median(times[place] for times in runs) for runs in (cold, resumed)]
        print(f"\n{name} seconds to the first step: cold {medians[0]:.2f}, resumed {medians[1]:.2f}")
        if name == "wall-clock":
            assert medians[1] - medians[0] <= 1.0
