"""A run killed again and again, and each time resumed by another number of processes, through the command line.

The long form: `pytest -m slow tests/launch/test_elastic.py -s` (ten chains of four kills in each mode).
"""

import hashlib
import itertools
import json
import os
import random
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from forks import KILL

from bertkit.base.files import LOCK, sha256_file
from bertkit.train.checkpoint import read_moments
from bertkit.train.checkpoint_files import all_checkpoints
from bertkit.train.log import read_metrics

WORKER = Path(__file__).with_name("elastic_worker.py")
STEPS = 18
SMALL = [
    "device=cpu", "model=medium", "model.num_hidden_layers=2", "model.num_attention_heads=2", "model.hidden_size=32", "model.intermediate_size=64", "model.max_position_embeddings=48",
    "segments.max_seq_length=40", "batch.sequences=12", "batch.micro_sequences=3", "optimizer.peak_learning_rate=1e-3",
    "log.every_steps=1", "checkpoint.every_steps=3", "evaluation.every_steps=999", f"steps={STEPS}",
]  # fmt: skip


def start(python: Path, data: Path, run_dir: Path, world: int, *more: str) -> subprocess.Popen[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    batches = run_dir.with_suffix(".batches")
    arguments = ["pretrain", f"data_dir={data}", f"output_dir={run_dir}", *SMALL, *more]
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.Popen(
        [str(python), str(WORKER), str(world), str(port), str(batches), *arguments],
        env={**environment, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


def kill_after(process: subprocess.Popen[str], run_dir: Path, step: int) -> None:
    deadline = time.monotonic() + 600
    while not any(row["step"] >= step for row in read_metrics(run_dir / "metrics.jsonl")[-1:]):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(KILL)
    process.communicate()


def batches_of(run_dir: Path) -> dict[tuple[int, int], str]:
    """The hash of every micro-batch of every step, which must not depend on when it was trained."""
    results: dict[tuple[int, int], str] = {}
    for line in run_dir.with_suffix(".batches").read_text().splitlines():
        step, number, digest = line.split()
        assert results.setdefault((int(step), int(number)), digest) == digest, line
    return results


def state_of(run_dir: Path) -> list[Any]:
    newest = all_checkpoints(run_dir)[0]
    moments = read_moments(newest)
    digest = hashlib.sha256(b"".join(moments[name].numpy().tobytes() for name in sorted(moments))).hexdigest()
    return [
        sha256_file(newest / "model.safetensors"),
        digest,
        json.loads((newest / "state.json").read_text())["num_updates"],
    ]


def losses_of(run_dir: Path) -> list[dict[str, Any]]:
    keys = ("step", "loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy", "learning_rate", "grad_norm")
    return [{key: row[key] for key in keys} for row in read_metrics(run_dir / "metrics.jsonl")]


def chain(python: Path, data: Path, run_dir: Path, worlds: list[int], kills: list[int], *more: str) -> None:
    """Train with each number of processes in turn; each run is killed after its step, and the last one finishes."""
    for world, step in zip(worlds, kills, strict=False):
        kill_after(start(python, data, run_dir, world, *more), run_dir, step)
    finish(start(python, data, run_dir, worlds[-1], *more))
    assert [row["step"] for row in read_metrics(run_dir / "metrics.jsonl")] == list(range(1, STEPS + 1))


def check_chain(
    python: Path, data: Path, whole: Path, run_dir: Path, worlds: list[int], kills: list[int], mode: str
) -> None:
    chain(python, data, run_dir, worlds, kills, f"reproducibility={mode}")
    assert batches_of(run_dir) == batches_of(whole)
    assert len(batches_of(whole)) == 4 * STEPS
    if mode == "strict":
        assert state_of(run_dir) == state_of(whole)
        assert losses_of(run_dir) == losses_of(whole)
    else:
        for ours, theirs in zip(losses_of(run_dir), losses_of(whole), strict=True):
            assert ours == pytest.approx(theirs, abs=1e-6)


def refuses(process: subprocess.Popen[str], run_dir: Path, line: str) -> None:
    def contents() -> dict[str, str]:
        return {str(path): sha256_file(path) for path in run_dir.rglob("*") if path.is_file() and path.name != LOCK}

    before = contents()
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 2, output
    assert line in output
    assert contents() == before


@pytest.mark.slow
def test_other_processes_after_each_kill(python: Path, prepared_dir: Path, tmp_path: Path) -> None:
    """Strict: one hash."""
    finish(start(python, prepared_dir, tmp_path / "whole", 1, "reproducibility=strict"))
    strict = "reproducibility=strict"
    kill_after(start(python, prepared_dir, tmp_path / "run", 4, strict), tmp_path / "run", 7)
    line = "3 processes: reproducibility=strict"
    refuses(start(python, prepared_dir, tmp_path / "run", 3, strict), tmp_path / "run", line)
    check_chain(python, prepared_dir, tmp_path / "whole", tmp_path / "run", [2], [], "strict")


@pytest.mark.slow
def test_resume_with_fewer_processes_keeps_micro_batches(python: Path, prepared_dir: Path, tmp_path: Path) -> None:
    """Default: the same micro-batches, and losses that differ by rounding only."""
    finish(start(python, prepared_dir, tmp_path / "whole", 1))
    check_chain(python, prepared_dir, tmp_path / "whole", tmp_path / "run", [3, 1], [10], "default")
    of_itself = "batch.micro_sequences=auto"  # two for one process; three for three, if they had begun the run
    kill_after(start(python, prepared_dir, tmp_path / "begun", 1, of_itself), tmp_path / "begun", 4)
    line = "3 processes but 2 micro-batches a step"
    refuses(start(python, prepared_dir, tmp_path / "begun", 3, of_itself), tmp_path / "begun", line)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["strict", "default"])
def test_ten_chains_of_four_kills(python: Path, prepared_dir: Path, tmp_path: Path, mode: str) -> None:
    finish(start(python, prepared_dir, tmp_path / "whole", 1, f"reproducibility={mode}"))
    for trial in range(10):
        rng = random.Random(trial)
        worlds = [rng.choice((1, 2, 4))]
        while len(worlds) < 5:
            worlds.append(rng.choice([world for world in (1, 2, 4) if world != worlds[-1]]))
        kills = sorted(rng.sample(range(2, STEPS), 4))
        assert all(a != b for a, b in itertools.pairwise(worlds))
        check_chain(python, prepared_dir, tmp_path / "whole", tmp_path / f"run{trial}", worlds, kills, mode)
        print(f"{mode} chain {trial}: processes {worlds}, killed after steps {kills}: equal")
