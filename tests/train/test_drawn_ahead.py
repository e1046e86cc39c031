"""Batches drawn ahead are those of the run, each drawn once; an error is raised at its own step."""

import threading
from pathlib import Path

import pytest
from conftest import TINY_PRETRAIN, weights_of

from bertkit.base.errors import InputError
from bertkit.cli import run
from bertkit.run import trainer
from bertkit.train.drawn_ahead import drawn_ahead
from bertkit.train.step_report import StepReport


def test_each_step_is_drawn_once_and_a_step_ahead() -> None:
    drawn: list[int] = []
    arrived = threading.Semaphore(0)

    def draw(step: int) -> int:
        drawn.append(step)
        arrived.release()
        return step * step

    with drawn_ahead(draw, last_step=7) as take:
        for step in range(3, 7):
            assert take(step) == step * step
            for _ in range(2 if step == 3 else step < 6):
                assert arrived.acquire(timeout=30)
            assert drawn == list(range(3, min(step + 2, 7)))
    assert drawn == [3, 4, 5, 6]


def test_an_error_is_raised_at_its_step_and_never_for_a_step_left_out() -> None:
    def draw(step: int) -> int:
        if step == 2:
            raise InputError("step 2 has no text")
        return step

    with drawn_ahead(draw, last_step=9) as take:
        assert [take(0), take(1), take(3)] == [0, 1, 3]
    with drawn_ahead(draw, last_step=9) as take:
        assert take(1) == 1
        with pytest.raises(InputError, match="step 2 has no text"):
            take(2)


def test_a_run_that_is_stopped_and_resumed_has_the_same_bits(
    prepared_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["pretrain", f"data_dir={prepared_dir}", *TINY_PRETRAIN, "steps=5", "log.every_steps=1"]
    assert run([*arguments, f"output_dir={tmp_path / 'plain'}"]) == 0
    monkeypatch.setattr(trainer, "AHEAD", ("cpu",))
    real = trainer.Trainer.due

    def stop(self: trainer.Trainer, report: StepReport) -> trainer.Due:
        if report.step == 3:
            raise KeyboardInterrupt
        return real(self, report)

    with monkeypatch.context() as patched:
        patched.setattr(trainer.Trainer, "due", stop)
        assert run([*arguments, f"output_dir={tmp_path / 'ahead'}", "checkpoint.every_steps=2"]) != 0
    assert run([*arguments, f"output_dir={tmp_path / 'ahead'}", "checkpoint.every_steps=2"]) == 0
    assert weights_of(tmp_path / "ahead") == weights_of(tmp_path / "plain")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]
