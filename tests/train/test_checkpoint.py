"""A checkpoint on disk is whole or is not taken, whatever happens to the process or the files."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bertkit.base import tensor_files
from bertkit.base.errors import NumericsError, StorageError
from bertkit.base.tensor_files import read_tensors
from bertkit.train import checkpoint, checkpoint_files
from bertkit.train.checkpoint import Checkpoint
from bertkit.train.checkpoint_files import all_checkpoints, fault_of, newest_valid
from bertkit.train.checkpoint_writer import CheckpointWriter
from bertkit.train.processes import Ranks
from bertkit.train.train_config import SavingConfig

FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "config.json", "vocab.txt")


def contents(step: int) -> Checkpoint:
    generator = torch.Generator().manual_seed(step)
    return Checkpoint(
        step=step,
        model={"b": torch.randn(3, 5, generator=generator), "a": torch.randn(7, generator=generator).double()},
        optimizer={"a.exp_avg": torch.full((7,), float(step))},
        state={"micro_sequences": 4, "num_updates": step},
        files={"config.json": '{"x": 1}\n', "vocab.txt": "a\nb\n"},
    )


def save(run_dir: Path, *steps: int, keep_last: int = 3) -> list[Path]:
    return [checkpoint.save(run_dir, contents(step).share(0, 1), keep_last=keep_last) for step in steps]


def names(run_dir: Path) -> list[str]:
    return [path.name for path in all_checkpoints(run_dir)]


def test_saved_checkpoint_is_read_back(tmp_path: Path) -> None:
    (path,) = save(tmp_path, 7)
    assert path == tmp_path / "checkpoints" / "step-00000007"
    assert sorted(file.name for file in path.iterdir()) == sorted([*FILES, "manifest.json"])
    written, weights = contents(7), read_tensors(path / "model.safetensors")
    moments, state = checkpoint.read_moments(path), checkpoint_files.read_state(path)
    for there, here in ((written.model, weights), (written.optimizer, moments)):
        assert set(there) == set(here)
        assert all(torch.equal(there[name], here[name]) and there[name].dtype == here[name].dtype for name in there)
    assert state == {"step": 7, **written.state}
    assert (path / "vocab.txt").read_text() == "a\nb\n"
    assert set(json.loads((path / "manifest.json").read_text())["files"]) == set(FILES)


def test_best_of_equal_scores_has_lower_loss(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, SavingConfig(keep_last=1, background=False, on_save_error="stop"), Ranks(0, 1))
    offers = [(0.5, 0.7, True), (0.5, 0.6, True), (0.5, 0.6, False), (0.5, 0.8, False), (0.4, 0.1, False), (0.5, None, False),
              (0.6, 0.9, True), (0.6, float("nan"), False), (float("nan"), 0.1, False)]  # fmt: skip
    assert [writer.offer_best(n, score, loss) for n, (score, loss, _) in enumerate(offers)] == [
        best for _, _, best in offers
    ]
    assert writer.history.best is not None
    assert writer.history.best.step == 6


def test_oldest_checkpoints_are_deleted_in_order_of_steps(tmp_path: Path) -> None:
    save(tmp_path, 5, 10, 95, 100, keep_last=2)
    assert names(tmp_path) == ["step-00000100", "step-00000095"]
    save(tmp_path, 100_000_000, keep_last=2)  # one digit more than the names were made for
    assert names(tmp_path) == ["step-100000000", "step-00000100"]
    assert newest_valid(tmp_path)[0].name == "step-100000000"


def test_the_one_just_saved_is_kept_beside_damaged_later_ones(tmp_path: Path) -> None:
    save(tmp_path, 10, 20, 30, keep_last=3)
    for step in (20, 30):
        (tmp_path / "checkpoints" / f"step-{step:08d}" / "state.json").write_text("{}")
    assert newest_valid(tmp_path)[0].name == "step-00000010"
    save(tmp_path, 15, keep_last=1)
    assert newest_valid(tmp_path)[0].name == "step-00000015"


def test_damaged_checkpoints_do_not_count_among_those_kept(tmp_path: Path) -> None:
    """Known by resuming, or by having no manifest; they go when as many whole ones as are kept have come after them."""
    save(tmp_path, 10, 20, 30, 40, keep_last=4)
    (tmp_path / "checkpoints" / "step-00000030" / "manifest.json").unlink()
    (tmp_path / "checkpoints" / "step-00000040" / "state.json").write_text("{}")
    assert newest_valid(tmp_path)[0].name == "step-00000020"
    save(tmp_path, 45, keep_last=2)
    assert [step[-2:] for step in names(tmp_path)] == ["45", "40", "30", "20"]
    save(tmp_path, 50, keep_last=2)
    assert [step[-2:] for step in names(tmp_path)] == ["50", "45"]


def test_one_saved_again_over_a_damaged_one_counts(tmp_path: Path) -> None:
    save(tmp_path, 10, 20, keep_last=2)
    (tmp_path / "checkpoints" / "step-00000020" / "state.json").write_text("{}")
    assert newest_valid(tmp_path)[0].name == "step-00000010"
    save(tmp_path, 20, 30, keep_last=2)
    assert [step[-2:] for step in names(tmp_path)] == ["30", "20"]


UNDELETABLE = """
import os, sys
from pathlib import Path

sys.path.insert(0, {here!r})
from test_checkpoint import names, save

save(Path(sys.argv[2]), 1)  # what is imported late may be root's alone
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)  # nobody: root may delete everything
run_dir = Path(sys.argv[1])
save(run_dir, 10)
os.chmod(run_dir / "checkpoints" / "step-00000010", 0o500)
for step in (20, 30):
    save(run_dir, step, keep_last=1)
    print(*names(run_dir))
(trash,) = (run_dir / "checkpoints").glob(".*")
trash.chmod(0o700)
save(run_dir, 40, keep_last=1)
print(*sorted(path.name for path in (run_dir / "checkpoints").iterdir()))
"""


def test_a_checkpoint_that_cannot_be_deleted_fails_no_save(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
        done = subprocess.run(
            [sys.executable, "-c", UNDELETABLE.format(here=str(Path(__file__).parent)), folder, tmp_path],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        warning, *output = done.stdout.splitlines()
        path = f"{folder}/checkpoints/step-00000010"
        assert warning == f"warning: {path} could not be deleted (Permission denied); the next save tries again"
        assert output == ["step-00000020", "step-00000030", "step-00000040"]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    (path,) = save(tmp_path, 7)
    (path / "state.json").write_text("{}")
    assert fault_of(path) is not None
    save(tmp_path, 7)
    assert fault_of(path) is None
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_what_a_crash_left_is_ignored_and_cleaned(tmp_path: Path) -> None:
    (path,) = save(tmp_path, 10)
    partial = path.with_name("step-00000020.partial")
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(b"half")
    (path.parent / ".step-00000005.trash").mkdir()
    assert newest_valid(tmp_path) == (path, [])
    save(tmp_path, 20)
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["step-00000010", "step-00000020"]
    assert newest_valid(tmp_path)[1] == []


def test_a_full_disk_is_refused_before_anything_is_written_or_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = save(tmp_path, 10)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=2000, free=1000))
    with pytest.raises(StorageError, match="no space left"):
        save(tmp_path, 20, keep_last=1)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_one_nan_or_infinity_is_detected() -> None:
    for good in (
        torch.ones(3),
        torch.zeros(2, 2),
        torch.empty(0),
        torch.full((1,), 3e38),
        *(torch.ones(3).to(t) for t in (torch.bfloat16, torch.float16, torch.float64)),
    ):
        assert tensor_files.is_finite(good)
    for number in (float("nan"), float("inf"), float("-inf")):
        for place in range(5):
            bad = torch.arange(5.0)
            bad[place] = number
            assert not tensor_files.is_finite(bad)


@pytest.mark.parametrize("group", ["model", "optimizer"])
def test_nothing_that_is_not_finite_is_written(tmp_path: Path, group: str) -> None:
    (path,) = save(tmp_path, 10)
    bad = contents(20)
    name, tensor = next(iter(getattr(bad, group).items()))
    tensor.view(-1)[-1] = float("nan")
    with pytest.raises(NumericsError, match=f"step 20: {name} "):
        checkpoint.save(tmp_path, bad.share(0, 1), keep_last=1)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert newest_valid(tmp_path) == (path, [])
