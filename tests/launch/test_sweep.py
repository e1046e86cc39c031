"""Sweeps: `bertkit -m`."""

import json
import signal
import subprocess
from pathlib import Path
from statistics import fmean, stdev

import pytest
from conftest import make_text, write_text

from bertkit.base.errors import InputError
from bertkit.cli import run
from bertkit.settings.reading.overrides import combinations

TINY = ["model.hidden_size=16", "model.num_attention_heads=2", "model.intermediate_size=16"]


@pytest.mark.usefixtures("quick")
def test_a_run_that_fails_does_not_end_the_others(
    prepared_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = f"data_dir={tmp_path / 'none'},{prepared_dir}"
    common = ["steps=2", "schedule.warmup_steps=1", f"output_dir={tmp_path / 'sweep'}", *TINY]
    assert run(["pretrain", "-m", data, *common]) == 2
    *_, names, failed, done = capfd.readouterr().out.splitlines()
    assert names.split()[:2] == ["run", "mlm_loss"]
    assert failed.split(maxsplit=1) == [f"data_dir={tmp_path / 'none'}", "failed (exit 2)"]
    (scores,) = [json.loads(path.read_text()) for path in tmp_path.glob("sweep/*/eval.json")]
    assert done.split()[:2] == [f"data_dir={prepared_dir}", f"{scores['mlm_loss']:.4g}"]


@pytest.mark.usefixtures("quick")
def test_sweep_prints_mean_over_seeds(prepared_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    common = ["steps=2", "schedule.warmup_steps=1", f"output_dir={tmp_path / 'sweep'}", *TINY]
    assert run(["pretrain", "-m", "seed=1,2", f"data_dir={prepared_dir}", *common]) == 0
    losses = [json.loads(path.read_text())["mlm_loss"] for path in tmp_path.glob("sweep/*/eval.json")]
    *_, mean = capfd.readouterr().out.splitlines()
    assert mean.startswith(f"mean of 2 seeds: mlm_loss {fmean(losses):.4g} ± {stdev(losses):.2g}, ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_run_and_ends_the_sweep(
    number: signal.Signals, prepared_dir: Path, tmp_path: Path, python: Path
) -> None:
    common = [
        "steps=100000", "log.every_steps=10", "checkpoint.every_steps=100000", "schedule.warmup_steps=1",
        f"data_dir={prepared_dir}",
    ]  # fmt: skip
    script = f"import sys; sys.executable = {str(python)!r}; from bertkit.cli import main; main()"
    command = [str(python), "-c", script, "-m", "pretrain", "seed=1,2", *common, f"output_dir={tmp_path}/sweep", *TINY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sweep:
        assert sweep.stdout is not None
        for line in sweep.stdout:
            if line.startswith("step 10/"):
                sweep.send_signal(number)
                break
        rest = sweep.stdout.read()
    assert sweep.returncode == 75
    assert "which is saved" in rest
    assert [line.split() for line in rest.splitlines()[-2:]] == [["seed=1", "stopped"], ["seed=2", "not", "run"]]
    assert list(tmp_path.glob("sweep/seed-1/checkpoints/step-*"))
    assert not (tmp_path / "sweep" / "seed-2").exists()


def test_the_ways_to_name_several_values() -> None:
    def names(*overrides: str) -> list[str]:
        return [swept.name for swept in combinations("glue", [*overrides, "output_dir=x"])]

    assert names("seed=choice(1,2)", "a=b") == ["seed=1", "seed=2"]
    assert names("seed=range(1,4)") == ["seed=1", "seed=2", "seed=3"]
    assert names("model=glob([t*,m*],exclude=[medium,mo*])") == ["model=mini", "model=tiny"]
    with pytest.raises(InputError, match=r"seed=interval\(0,1\)"):
        names("seed=interval(0,1)")
    with pytest.raises(InputError, match=r"seed=glob\(\*\)"):
        names("seed=glob(*)")


def test_cfg_prints_each_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = write_text(tmp_path / "text.txt", make_text(5))
    arguments = ["prepare", "-m", "--cfg", "job", f"corpus.path={text}", "shard_tokens=1000,2000"]
    assert run([*arguments, f"output_dir={tmp_path / 'sweep'}"]) == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line.startswith(("#", "shard_tokens"))] == [
        "# shard_tokens=1000", "shard_tokens: 1000", "# shard_tokens=2000", "shard_tokens: 2000",
    ]  # fmt: skip
    assert not (tmp_path / "sweep").exists()
