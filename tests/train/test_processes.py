"""Processes that meet without bertkit's launcher: who waits for another one's long work is patient, and nobody else is."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bertkit.errors import InputError
from bertkit.train.processes import PATIENCE, check_devices

TIMEOUT = 2.0  # seconds
WORKER = f"""
import json, os, sys, time
import torch
from bertkit import signs
from bertkit.launch import watch
from bertkit.train import processes

def end(line):
    print(line, flush=True)
    os._exit(6)

rank, case = int(os.environ["RANK"]), sys.argv[1]
torch.set_num_threads(1)
watch.watch(rank, {TIMEOUT}, end)
processes.join("cpu")
group = torch.distributed.new_group(backend="gloo", timeout=processes.patience())
options = torch.distributed.group.WORLD._get_backend(torch.device("cpu")).options
print(json.dumps(options._timeout.total_seconds()), flush=True)
if rank == 0:
    until = time.monotonic() + 3 * {TIMEOUT}
    while case == "works" and time.monotonic() < until:
        time.sleep(0.1)
        signs.beat()
    while case == "hangs":
        time.sleep(0.1)
    while case == "stopped":
        time.sleep(0.1)
        signs.beat()
torch.distributed.all_reduce(torch.zeros(1))
torch.distributed.destroy_process_group()
print("done", flush=True)
os._exit(0)
"""


def meet(python: Path, case: str) -> tuple[list[subprocess.Popen[str]], list[str]]:
    """Start two processes as torchrun does; they have met when they have said how long they wait for each other."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCH_CPP_LOG_LEVEL": "FATAL",
    }
    processes = [
        subprocess.Popen(
            [python, "-c", WORKER, case], stdout=subprocess.PIPE, text=True,
            env={**os.environ, **variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in (0, 1)
    ]  # fmt: skip
    return processes, [process.stdout.readline() for process in processes]  # type: ignore[union-attr]


def test_long_work_of_one_process_is_waited_for(python: Path) -> None:
    processes, timeouts = meet(python, "works")
    assert [float(timeout) for timeout in timeouts] == [PATIENCE.total_seconds()] * 2
    assert [process.communicate(timeout=30)[0] for process in processes] == ["done\n"] * 2
    assert [process.returncode for process in processes] == [0, 0]


def test_a_process_that_hangs_says_so(python: Path) -> None:
    (first, second), _ = meet(python, "hangs")
    began = time.monotonic()
    said = first.communicate(timeout=30)[0]
    assert time.monotonic() - began < TIMEOUT + 2
    assert "does not go on, at <string>:" in said
    second.communicate(timeout=30)
    assert first.returncode == 6


def test_a_stopped_process_is_not_waited_for() -> None:
    """Although it holds the store over which the others would learn that it is at work."""
    (first, second), _ = meet(Path(sys.executable), "stopped")
    try:
        os.kill(first.pid, signal.SIGSTOP)
        began = time.monotonic()
        said = second.communicate(timeout=30)[0]
        assert time.monotonic() - began < 2 * TIMEOUT + 2
        assert "waits for another process, at " in said
        assert second.returncode == 6
    finally:
        first.kill()
        first.communicate()


@pytest.mark.parametrize(
    ("variables", "num_devices", "line"),
    [
        ({"LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "1"}, 4, None),
        ({"LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "1"}, 3, "4 processes on this host for 3 CUDA device(s)"),
        ({"LOCAL_RANK": "1"}, 2, None),
        ({"LOCAL_RANK": "2"}, 2, "3 processes on this host for 2 CUDA device(s)"),
    ],
)
def test_a_device_for_each_process(variables: dict[str, str], num_devices: int, line: str | None) -> None:
    def check() -> Any:
        check_devices(variables, num_devices)

    if line is None:
        check()
        return
    with pytest.raises(InputError) as error:
        check()
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)
