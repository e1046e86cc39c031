"""Trackers of experiments: they get every row, and whatever happens to them, the run goes on."""

import json
import sys
import time
from pathlib import Path

import pytest
from conftest import Capsys

from bertkit.cli import run
from bertkit.train import log
from bertkit.train.log import Trackers

TINY = ["model.hidden_size=16", "model.num_attention_heads=2", "model.intermediate_size=16", "batch.sequences=4"]


def pretrain(prepared_dir: Path, output_dir: Path, *names: str) -> int:
    more = ["steps=4", "schedule.warmup_steps=1", "log.every_steps=1", f"log.trackers=[{','.join(names)}]"]
    return run(["pretrain", f"data_dir={prepared_dir}", f"output_dir={output_dir}", *more, *TINY])


def package(folder: Path, name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package that behaves badly."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)


def test_unknown_trackers_are_refused_before_training(prepared_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    assert pretrain(prepared_dir, tmp_path / "run", "tensorbord", "swanlab") == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: log.trackers: unknown tensorbord; did you mean 'tensorboard'? (one of aim, clearml, comet_ml, dvclive, mlflow, "
        "swanlab, tensorboard, trackio, wandb)",
        "error: log.trackers: swanlab is not installed; pip install swanlab, or leave it out",
    ]
    assert not (tmp_path / "run").exists()


def test_failing_tracker_is_named_and_run_continues(
    prepared_dir: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "swanlab", "def init(**_): raise OSError('no\\nserver')", monkeypatch)
    assert pretrain(prepared_dir, tmp_path / "run", "swanlab") == 0
    assert capsys.readouterr().err == "warning: log.trackers: swanlab stopped (OSError: no server); the run continues\n"
    assert (tmp_path / "run" / "eval.json").exists()


def test_no_step_waits_for_a_slow_one(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "swanlab", "import time\ndef init(**_): time.sleep(1)", monkeypatch)
    monkeypatch.setattr(log, "CLOSE_SECONDS", 0.2)
    slow = Trackers(["swanlab"], tmp_path / "run", {"seed": 0, "batch": {"sequences": 4}})
    began = time.monotonic()
    for step in range(1000):
        slow.log({"step": step, "loss": 1.0})
    assert time.monotonic() - began < 1
    slow.close()
    assert time.monotonic() - began < 5
    assert "swanlab did not end within 0.2 s" in capsys.readouterr().err
    for thread in slow._threads:  # what it says at its end is of this test
        thread.join()


@pytest.mark.slow
def test_real_trackers_get_every_row(prepared_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Needs tensorboard, mlflow and wandb, which bertkit does not."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert pretrain(prepared_dir, tmp_path / "run", "tensorboard", "mlflow", "wandb") == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    folder = tmp_path / "run" / "trackers"
    events = accumulator.EventAccumulator(str(folder / "run"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx([row["loss"] for row in rows])
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    (actual,) = mlflow.search_runs(experiment_names=["bertkit"], output_format="list")
    assert actual.data.metrics["loss"] == pytest.approx(rows[-1]["loss"])
    assert actual.data.params["seed"] == "0"
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
