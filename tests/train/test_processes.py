"""Processes that meet as torchrun has them meet: who waits for the others gives up after the timeout."""

import os
import re
import socket
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from bertkit.base.errors import InputError
from bertkit.train.accelerator import check_devices

TIMEOUT = 2.0  # seconds
WORKER = f"""
import sys, time
import torch
from bertkit.launch.world import is_lost_peer
from bertkit.train.accelerator import make_accelerator, saving_ranks

torch.set_num_threads(1)
accelerator = make_accelerator("cpu", 2, {TIMEOUT})
ranks = saving_ranks(accelerator, {TIMEOUT})
print("met", flush=True)
if accelerator.process_index == 0:
    time.sleep(60)
try:
    torch.distributed.all_reduce(torch.zeros(1)) if sys.argv[1] == "training" else ranks.on_first(lambda: 1)
except RuntimeError as error:
    print(is_lost_peer(error), flush=True)
"""


@pytest.mark.parametrize("what", ["training", "saving"])
def test_a_process_waits_no_longer_than_it_is_told_to(python: Path, what: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {
        "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCH_CPP_LOG_LEVEL": "FATAL",
    }  # fmt: skip
    first, second = (
        subprocess.Popen(
            [python, "-c", WORKER, what], stdout=subprocess.PIPE, text=True,
            env={**os.environ, **variables, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in (0, 1)
    )  # fmt: skip
    assert second.stdout is not None
    assert second.stdout.readline() == "met\n"
    began = time.monotonic()
    assert second.stdout.readline() == "True\n"
    assert TIMEOUT - 0.5 < time.monotonic() - began < TIMEOUT + 2
    for process in (first, second):
        process.terminate()
        process.communicate()


ENDS = """
import os, sys, types
import torch
from torch import distributed, nn
from bertkit.train.accelerator import ending_together

def run(rank: int, file: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 3))
    with ending_together(types.SimpleNamespace(num_processes=2, wait_for_everyone=distributed.barrier)):
        model(torch.ones(5, 2)).sum().backward()

sys.setswitchinterval(5)  # no thread gets the lock of another one that does not wait
rank = int(os.fork() == 0)
for number in range(15):
    run(rank, f"{sys.argv[1]}/{number}")
if rank == 0:
    assert os.wait()[1] == 0
"""


def test_process_group_with_threads_ends(python: Path, tmp_path: Path) -> None:
    """The end of a process group waits for its threads, which wait for the lock of Python."""
    subprocess.run([python, "-c", ENDS, tmp_path], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=60)


@pytest.mark.parametrize(("variables", "num_devices", "line"), [
    ({"LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "1"}, 4, None),
    ({"LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "1"}, 3, "4 processes on this host for 3 CUDA devices; set"),
    ({"LOCAL_RANK": "1"}, 2, None),
    ({"LOCAL_RANK": "1"}, 1, "2 processes on this host for 1 CUDA device; set"),
    ({"LOCAL_RANK": "2"}, 2, "3 processes on this host for 2 CUDA devices; set"),
])  # fmt: skip
def test_a_device_for_each_process(variables: dict[str, str], num_devices: int, line: str | None) -> None:
    with nullcontext() if line is None else pytest.raises(InputError, match=re.escape(line)):
        check_devices(variables, num_devices)
