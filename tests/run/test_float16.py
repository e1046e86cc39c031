"""Training in float16 with loss scaling, and layers that are computed twice."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import small_model

from bertkit.base.errors import NumericsError
from bertkit.base.files import sha256_file
from bertkit.cli import run
from bertkit.kernels.fast import ALL, PLAIN, FastWays
from bertkit.model.layers import compile_layers, recompute_layers
from bertkit.run.objective import pretraining_losses
from bertkit.run.run_length import random_batch
from bertkit.train import loss_scale
from bertkit.train.checkpoint import read_state
from bertkit.train.log import read_metrics
from bertkit.train.loss_scale import LossScale
from bertkit.train.step_report import Numbers, StepReport

RUN = [
    "pretrain", "device=cpu", "model=tiny", "model.hidden_size=32", "model.intermediate_size=64", "log.every_steps=1",
    "model.num_hidden_layers=3", "model.max_position_embeddings=48", "segments.max_seq_length=24", "batch.sequences=8",
    "batch.micro_sequences=2", "steps=6", "schedule.warmup_steps=0", "evaluation.max_sequences=16",
]  # fmt: skip
FIRST = 21  # a power of 2, so large that the first steps overflow
FP16 = [*RUN, "precision=fp16"]


def weights_of(run_dir: Path) -> str:
    return sha256_file(run_dir / "model" / "model.safetensors")


def scales(run_dir: Path) -> list[Any]:
    return [row.get("loss_scale", row.get("skipped")) for row in read_metrics(run_dir / "metrics.jsonl")]


@pytest.mark.parametrize("option", ["reproducibility=default", "reproducibility=strict", "optimizer=lamb"])
def test_an_overflow_is_skipped_and_the_scale_halved(
    option: str, prepared_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More skips than `numerics.max_skips_in_a_row`; stopped and resumed between two of them, bit for bit."""
    whole, stopped, alike = tmp_path / "whole", tmp_path / "stopped", tmp_path / "fp32"
    given = [f"data_dir={prepared_dir}", "numerics.max_skips_in_a_row=1", "checkpoint.every_steps=2", option]
    monkeypatch.setattr(loss_scale, "FIRST", 2.0**FIRST)
    assert run([*FP16, f"output_dir={whole}", *given]) == 0
    found = scales(whole)
    skipped = [scale for scale in found if isinstance(scale, str)]
    assert 3 <= len(skipped) < 6, found
    assert skipped == [f"overflow in float16, loss scale {2.0 ** (FIRST - n):g}" for n in range(len(skipped))]
    state = read_state(whole / "checkpoints" / "step-00000006")
    num_good = 6 - len(skipped)
    assert state["loss_scale"] == [2.0 ** (FIRST - len(skipped)), num_good]
    assert state["standing"]["skips"] == {"total": 0, "in_a_row": 0, "overflows": len(skipped)}
    assert state["num_updates"] == num_good

    shutil.copytree(whole, stopped)
    for name in ("checkpoints/step-00000004", "checkpoints/step-00000006", "model"):
        shutil.rmtree(stopped / name)
    (stopped / "eval.json").unlink()
    monkeypatch.undo()
    assert run([*FP16, f"output_dir={stopped}", *given]) == 0
    assert (scales(stopped), weights_of(stopped)) == (found, weights_of(whole))
    assert run([*RUN, f"output_dir={alike}", *given]) == 0
    norms = [read_metrics(each / "metrics.jsonl") for each in (whole, alike)]
    first = norms[0][len(skipped)]["grad_norm"]  # the first update, on another batch than that of float32
    assert first == pytest.approx(norms[1][0]["grad_norm"], rel=0.5)


def test_two_processes_agree(prepared_dir: Path, tmp_path: Path, torchrun: list[str]) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    given = [f"data_dir={prepared_dir}", "reproducibility=strict"]
    assert run([*FP16, f"output_dir={one}", *given]) == 0
    command = [*torchrun, *FP16, f"output_dir={two}", *given, "recompute=layers"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert weights_of(one) == weights_of(two)


def test_the_scale_is_that_of_torch() -> None:
    ours, theirs = LossScale(torch.device("cpu")), torch.amp.GradScaler("cpu")
    assert ours.state[0] == theirs.get_scale()
    assert theirs.get_growth_factor() == loss_scale.GROWTH
    assert theirs.get_backoff_factor() == loss_scale.BACKOFF
    assert theirs.get_growth_interval() == loss_scale.GOOD_STEPS
    ours.restore((8.0, loss_scale.GOOD_STEPS - 1))
    for found_inf, expected in ((0.0, (16.0, 0)), (0.0, (16.0, 1)), (1.0, (8.0, 0))):
        ours.update(torch.tensor(found_inf))
        assert ours.state == expected


@pytest.mark.parametrize(
    ("loss", "norm", "scale", "reason", "is_fault"),
    [
        (2.0, torch.inf, 8.0, "overflow in float16, loss scale 8", False),
        (2.0, torch.nan, 1.0, "overflow in float16, loss scale 1", True),
        (torch.inf, torch.inf, 8.0, "mlm_loss inf, grad_norm inf", False),
        (2.0, 3.0, 1.0, None, False),
    ],
)
def test_an_overflow_is_not_a_fault(loss: float, norm: float, scale: float, reason: str | None, is_fault: bool) -> None:
    numbers = Numbers(torch.tensor([loss, 0.0, norm, scale]))
    report = StepReport(7, 1e-3, 9, False, {"mlm": 1.0}, frozenset(), numbers, is_synced=True)
    assert report.skip_reason == reason
    assert report.skips.after(report).in_a_row == (loss == torch.inf)
    if is_fault:
        with pytest.raises(
            NumericsError, match=r"step 7: the gradient overflows in float16 even with a loss scale of 1; "
        ):
            report.check_skips(5)
    else:
        report.check_skips(5)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("fast", "is_compiled"), [(PLAIN, False), (ALL, False), (ALL, True)])
def test_computing_layers_twice_changes_no_bit(precision: str, fast: FastWays, is_compiled: bool) -> None:
    """With dropout; compiled by a backend that only traces."""
    gradients, numbers = [], []
    for is_twice in (False, True):
        model, calls = small_model(dropout=0.2).train(), list[int]()
        model.use(fast)
        for layer in model.bert.encoder.layers:
            layer.attention.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        if is_compiled:
            compile_layers(model.bert.encoder, backend="aot_eager")
        if is_twice:
            recompute_layers(model)
        torch.manual_seed(5)
        sum(term.sum for term in pretraining_losses(model, random_batch(model, 5, 13), precision).values()).backward()
        gradients.append(torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]))
        numbers.append(len(calls))
    assert torch.equal(*gradients)
    num_layers = len(model.bert.encoder.layers)
    assert is_compiled or numbers == [num_layers, 2 * num_layers - 1]


def test_a_run_with_layers_computed_twice(prepared_dir: Path, tmp_path: Path) -> None:
    """It resumes with and without."""
    given = [f"data_dir={prepared_dir}", "checkpoint.every_steps=3"]
    once, twice = tmp_path / "once", tmp_path / "twice"
    assert run([*RUN, f"output_dir={once}", *given]) == 0
    shutil.copytree(once, twice)
    for name in ("checkpoints/step-00000006", "model"):
        shutil.rmtree(twice / name)
    (twice / "eval.json").unlink()
    assert run([*RUN, f"output_dir={twice}", *given, "recompute=layers"]) == 0
    assert weights_of(once) == weights_of(twice)
