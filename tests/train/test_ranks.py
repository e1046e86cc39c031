"""Two processes save one checkpoint: together, or not at all."""

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from saver import contents

from bertkit.base.tensor_files import read_tensors
from bertkit.train import checkpoint, checkpoint_files
from bertkit.train.checkpoint_files import newest_valid

WORKER = Path(__file__).with_name("ranks_worker.py")
Ranks = tuple[Path, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory, python: Path) -> Ranks:
    directory = tmp_path_factory.mktemp("ranks")
    commands = [[str(python), str(WORKER), str(directory), str(rank)] for rank in (0, 1)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    output = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    return directory / "run", [json.loads(text) for text in output]


def test_one_process_loads_checkpoint_of_two(ranks: Ranks) -> None:
    run_dir, results = ranks
    assert [one["saved"] for one in results] == ["step-00000001"] * 2
    newest, faults = newest_valid(run_dir)
    assert newest is not None
    assert (newest.name, faults) == ("step-00000004", [])
    files = [path.name for path in checkpoint_files.moment_files(newest)]
    assert files == ["optimizer-00001-of-00002.safetensors", "optimizer-00002-of-00002.safetensors"]
    written = contents(4, torch.randn(90_000, generator=torch.Generator().manual_seed(0)))
    moments, weights = checkpoint.read_moments(newest), read_tensors(newest / "model.safetensors")
    for there, here in ((moments, written.optimizer), (weights, written.model)):
        assert set(there) == set(here)
        assert all(torch.equal(there[name], here[name]) for name in here)
    sizes = [(newest / name).stat().st_size for name in files]
    assert abs(sizes[0] - sizes[1]) < 1_000


def test_a_failure_of_one_fails_the_save_of_both(ranks: Ranks) -> None:
    for one in ranks[1]:
        kind, message = one["disk of one"]
        assert kind == "StorageError"
        assert message.startswith("step 2 is not saved: ")
        assert "optimizer-00002-of-00002.safetensors: File too large" in message
        assert message.endswith("last good step 1")
        assert one["left"] == ["step-00000001"]
        kind, message = one["a number of one"]
        assert (kind, message) == ("NumericsError", "step 3: pooler.exp_avg_sq is not finite; nothing was saved")
        assert (one["saved after"], one["kept"]) == ("step-00000004", ["step-00000004"])


def test_a_directory_that_is_not_shared_is_refused_by_both(ranks: Ranks) -> None:
    run_dir, results = ranks
    assert [one["shared"] for one in results] == [[], []]
    elsewhere, host = run_dir.with_name("elsewhere"), socket.gethostname()
    expected = f"output_dir={elsewhere}: process 1 on {host} does not see what process 0 on {host} wrote there"
    for one in results:
        kind, message = one["not shared"]
        assert kind == "InputError"
        assert message.startswith(expected)
    assert not (run_dir / ".shared").exists()


def test_shares_of_the_moments() -> None:
    """All of them, once each, of about equal bytes, for any number of processes."""
    whole = contents(7, torch.randn(9 * 360))
    for size in (1, 2, 3, 6, 7):
        parts = [whole.share(rank, size) for rank in range(size)]
        shares = [
            [name for file, group in part.tensors.items() if "optimizer" in file for name in group] for part in parts
        ]
        assert sorted(name for share in shares for name in share) == sorted(whole.optimizer)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert ["model.safetensors" in part.tensors for part in parts] == [True] + [False] * (size - 1)
        assert [bool(part.texts) for part in parts] == [True] + [False] * (size - 1)
