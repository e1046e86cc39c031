"""Training in float16 with loss scaling, and layers that are computed twice."""

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import output_of, small_model, weights_of

from bertkit.cli import run
from bertkit.jobs.run_length import random_batch
from bertkit.kernels.fast import ALL, PLAIN, FastWays
from bertkit.kernels.linear import round_weights
from bertkit.model.layers import compile_layers, recompute_layers
from bertkit.objectives.losses import batch_losses, outputs
from bertkit.train import loop, loss_scale
from bertkit.train.accelerator import make_accelerator
from bertkit.train.checkpoint_files import all_checkpoints, read_state
from bertkit.train.log import read_metrics
from bertkit.train.loop import Course, Learner
from bertkit.train.loss_scale import LossScale
from bertkit.train.optimizer import AdamW, parameter_groups
from bertkit.train.step_report import Numbers, StepNumbers, StepReport
from bertkit.train.train_config import OptimizerConfig

RUN = [
    "pretrain", "device=cpu", "model=medium", "model.num_hidden_layers=2", "model.num_attention_heads=2", "model.hidden_size=32", "model.intermediate_size=64", "log.every_steps=1",
    "model.num_hidden_layers=2", "model.max_position_embeddings=32", "segments.max_seq_length=16", "batch.sequences=4",
    "batch.micro_sequences=2", "steps=5", "schedule.warmup_steps=0", "evaluation.max_sequences=8", "precision=fp16",
    "numerics.max_skips_in_a_row=1", "checkpoint.every_steps=1",
]  # fmt: skip
FIRST = 21  # a power of 2, so large that the first steps overflow

# a process that begins with that scale, and is killed after so many steps
PLANTED = """
import os, signal, sys
from bertkit.cli import run
from bertkit.train import loop, loss_scale
real, loss_scale.FIRST, last = loop.optimizer_step, 2.0 ** int(sys.argv[1]), int(sys.argv[2])

def step(learner, course, number, *more, **named):
    if number == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(learner, course, number, *more, **named)

loop.optimizer_step = step
sys.exit(run(sys.argv[3:]))
"""


def scales(run_dir: Path) -> list[Any]:
    return [row.get("loss_scale", row.get("skipped")) for row in read_metrics(run_dir / "metrics.jsonl")]


@pytest.mark.parametrize("option", ["reproducibility=default", "reproducibility=strict", "optimizer=lamb"])
def test_an_overflow_is_skipped_and_the_scale_halved(
    option: str, prepared_dir: Path, tmp_path: Path, python: Path, torchrun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between two overflows and resumed, with layers computed twice: the same bits. In two processes too, if strict."""
    whole, killed, two = tmp_path / "whole", tmp_path / "killed", tmp_path / "two"
    arguments = [f"data_dir={prepared_dir}", option]
    with monkeypatch.context() as patch:
        patch.setattr(loss_scale, "FIRST", 2.0**FIRST)
        assert run([*RUN, f"output_dir={whole}", *arguments]) == 0
    actual = scales(whole)
    skipped = [scale for scale in actual if isinstance(scale, str)]
    assert 2 <= len(skipped) < 5, actual
    assert skipped == [f"overflow in float16, loss scale {2.0 ** (FIRST - n):g}" for n in range(len(skipped))]
    state, num_good = read_state(whole / "checkpoints" / "step-00000005"), 5 - len(skipped)
    assert (state["loss_scale"], state["num_updates"]) == ([2.0 ** (FIRST - len(skipped)), num_good], num_good)
    assert state["standing"]["skips"] == {"total": 0, "in_a_row": 0}

    command = [python, "-c", PLANTED, str(FIRST), "1", *RUN, f"output_dir={killed}", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert [path.name for path in all_checkpoints(killed)] == ["step-00000001"]
    assert run([*RUN, f"output_dir={killed}", *arguments, "recompute=layers"]) == 0
    runs = [whole, killed]
    if option == "reproducibility=strict":
        output_of([*torchrun[:-2], "-c", PLANTED, FIRST, -1, *RUN, f"output_dir={two}", *arguments, "recompute=layers"])
        runs.append(two)
    assert [(scales(each), weights_of(each)) for each in runs] == [(actual, weights_of(whole))] * len(runs)


def test_a_scaled_step_is_the_same_step() -> None:
    """In float32 a power of 2 changes no bit: neither of the clipped gradient, nor of the norm in the log."""
    results, accelerator = [], make_accelerator("cpu", 1)
    course = Course(lambda step: [], lambda step: 1e-3, 0, 1, max_grad_norm=0.01, seed=3)
    for scale in (None, LossScale(accelerator.device)):
        model = small_model(dropout=0.1).train()
        config = OptimizerConfig("adamw", 1e-3, 0.9, 0.999, 1e-6, 0.01, False, 1.0)
        optimizer = AdamW(parameter_groups(model, 0.01), config)
        learner = Learner(accelerator, model, optimizer, batch_losses, scale)
        report = loop.optimizer_step(learner, course, 0, [(0, random_batch(model, 5, 13, has_pairs=True))])
        assert report.loss_scale == (scale and loss_scale.FIRST)
        results.append((report.grad_norm, torch.cat([weight.reshape(-1) for weight in model.parameters()])))
    assert results[0][0] == results[1][0] > 0.01
    assert torch.equal(results[0][1], results[1][1])


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
    ("loss", "norm", "scale", "reason"),
    [
        (2.0, torch.inf, 8.0, "overflow in float16, loss scale 8"),
        (2.0, torch.inf, 1.0, "grad_norm inf"),
        (torch.inf, torch.inf, 8.0, "mlm_loss inf, grad_norm inf"),
        (2.0, 3.0, 1.0, None),
    ],
)
def test_an_overflow_is_not_a_fault(loss: float, norm: float, scale: float, reason: str | None) -> None:
    """With a scale of 1 it is, and steps in a row end the run."""
    sums = (torch.tensor([loss]), torch.zeros(1), torch.tensor(norm), torch.tensor(scale))
    report = StepReport(7, 1e-3, 9, 1, False, {"mlm": 1.0}, Numbers(StepNumbers(*sums)), is_synced=True)
    assert report.skip_reason == reason
    assert report.skips.after(report).in_a_row == (reason is not None and "overflow" not in reason)


@pytest.mark.parametrize(
    ("precision", "fast", "is_compiled"),
    [
        ("fp32", PLAIN, False),
        *((name, ALL, False) for name in ("fp32", "bf16", "fp16")),
        pytest.param("bf16", ALL, True, marks=pytest.mark.slow),
    ],
)
def test_computing_layers_twice_changes_no_bit(precision: str, fast: FastWays, is_compiled: bool) -> None:
    """With dropout; compiled by a backend that only traces."""
    gradients, numbers = [], []
    for is_twice in (False, True):
        model, calls = small_model(dropout=0.2).train(), list[int]()
        model.use(fast)
        for layer in model.bert.encoder.layers:
            layer.feed_forward.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        if is_compiled:
            compile_layers(model.bert.encoder, backend="aot_eager")
        if is_twice:
            recompute_layers(model)
        torch.manual_seed(5)
        sum(
            term.sum for term in batch_losses(model, random_batch(model, 5, 13, has_pairs=True), precision).values()
        ).backward()
        gradients.append(torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]))
        numbers.append(len(calls))
    assert torch.equal(*gradients)
    num_layers = len(model.bert.encoder.layers)
    assert is_compiled or numbers == [num_layers, 2 * num_layers - 1]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_predictor_rounds_the_weights_that_autocast_would_round(precision: str) -> None:
    model = small_model().eval()
    batch = random_batch(model, 3, 16, has_pairs=True)
    expected = outputs(model, batch, precision)
    round_weights(model.bert, precision)
    found, layer = outputs(model, batch, precision), model.bert.encoder.layers[0]
    assert layer.attention.query.weight.dtype == (torch.bfloat16 if precision == "bf16" else torch.float16)
    for name, logits in expected.logits.items():
        assert torch.equal(found.logits[name], logits)
    assert torch.equal(found.last_hidden_state, expected.last_hidden_state)
