"""One optimizer step is the same whatever the number of micro-batches and processes."""

import copy
import dataclasses
import itertools
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import small_model
from step_worker import LENGTHS, part
from torch import Tensor, nn

from bertkit.base.batch import Batch
from bertkit.base.errors import NumericsError
from bertkit.base.tensor_files import read_tensors
from bertkit.cli import run
from bertkit.model.heads import BertWithHeads
from bertkit.objectives.losses import batch_losses
from bertkit.train import loop, micro_batches
from bertkit.train.accelerator import make_accelerator
from bertkit.train.log import read_metrics
from bertkit.train.loop import Course, Learner
from bertkit.train.losses import LossTerm
from bertkit.train.optimizer import AdamW, parameter_groups
from bertkit.train.step_report import Skips, StepReport
from bertkit.train.train_config import OptimizerConfig

LAYOUTS = {"1 x 8": 8, "2 x 4": 4, "4 x 2": 2, "8 x 1": 1, "3 + 3 + 2": 3}


def numbered(step: int, micro_sequences: int) -> list[tuple[int, Batch]]:
    return list(enumerate(part(step, *shard) for shard in micro_batches.micro_batch_ranges(8, micro_sequences)))


class Recording(AdamW):
    """Remembers the gradients of every update."""

    def __init__(self, model: nn.Module) -> None:
        config = OptimizerConfig("adamw", 1e-3, 0.9, 0.999, 1e-6, 0.01, False, 1.0)
        super().__init__(parameter_groups(model, 0.01), config)
        self.names = {parameter: name for name, parameter in model.named_parameters()}
        self.gradients: list[dict[str, Tensor]] = []

    def step(self, closure: Callable[[], float] | None = None) -> None:
        self.gradients.append({name: parameter.grad.clone() for parameter, name in self.names.items()})
        super().step(closure)


def steps_of(
    model: nn.Module, optimizer: AdamW, micro_sequences: int = 8, first_step: int = 0, steps: int = 1, **changed: Any
) -> Iterator[StepReport]:
    named = {name: changed.pop(name) for name in ("skips", "should_sync", "stop_requested") if name in changed}
    learner = Learner(make_accelerator("cpu", 1), model, optimizer, changed.pop("losses", batch_losses))
    settings = {
        "batches": lambda step: numbered(step, micro_sequences),
        "learning_rate": lambda step: 1e-3 / (1 + step),
    }
    settings |= {"max_grad_norm": 1e9, "seed": 3, **changed}
    return loop.train(learner, Course(first_step=first_step, steps=steps, **settings), **named)


def one_step(micro_sequences: int, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor], StepReport]:
    model = small_model().to(dtype)
    optimizer = Recording(model)
    (report,) = steps_of(model, optimizer, micro_sequences)
    return optimizer.gradients[0], model.state_dict(), report


def largest_difference(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    assert set(first) == set(second)
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def independent(mean_of_means: bool) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The gradient of the mean over the global batch by plain autograd; or the mean of the micro-batches' means."""
    model = small_model().double()
    shards = numbered(0, 2) if mean_of_means else numbered(0, 8)
    means: dict[str, list[float]] = {"mlm": [], "nsp": []}
    for _, batch in shards:
        terms = batch_losses(model, batch)
        losses = {name: term.sum / max(term.count, 1) for name, term in terms.items()}
        for name, loss in losses.items():
            means[name].append(float(loss.detach()))
        (sum(losses.values()) / len(shards)).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return gradients, {name: float(np.mean(values)) for name, values in means.items()}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_micro_batches_do_not_change_the_step(dtype: torch.dtype, tolerance: float) -> None:
    gradients, weights, report = one_step(8, dtype)
    assert largest_difference(small_model().to(dtype).state_dict(), weights) > 1e-4
    for micro_sequences in LAYOUTS.values():
        other_gradients, other_weights, other = one_step(micro_sequences, dtype)
        assert largest_difference(gradients, other_gradients) <= tolerance
        # AdamW divides by the size of the gradient: where that is near 0, an update differs by more than its gradient
        assert largest_difference(weights, other_weights) <= 10 * tolerance
        assert other.losses == pytest.approx(report.losses, abs=tolerance * 10)
        assert other.accuracies == report.accuracies
        assert (other.num_tokens, other.step) == (sum(LENGTHS), 1)


def test_the_gradient_is_that_of_the_global_mean() -> None:
    gradients, _, report = one_step(2, torch.float64)
    expected, losses = independent(mean_of_means=False)
    assert largest_difference(gradients, expected) <= 1e-12
    assert report.losses == pytest.approx(losses, abs=1e-12)
    norm = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
    assert report.grad_norm == pytest.approx(float(norm), rel=1e-12)
    naive, naive_losses = independent(mean_of_means=True)
    assert largest_difference(gradients, naive) > 1e-3  # what a loop that averages micro-batches would do
    assert abs(naive_losses["mlm"] - losses["mlm"]) > 1e-3


def test_clipping_and_schedule() -> None:
    model = small_model().double()
    optimizer = Recording(model)
    reports = list(steps_of(model, optimizer, 2, steps=3, max_grad_norm=0.01))
    assert [report.learning_rate for report in reports] == [1e-3, 1e-3 / 2, 1e-3 / 3]
    for report, gradients in zip(reports, optimizer.gradients, strict=True):
        norm = float(torch.stack([gradient.norm() for gradient in gradients.values()]).norm())
        assert report.grad_norm > 0.1  # before clipping
        assert norm == pytest.approx(0.01, rel=1e-3)
    assert all(parameter.grad is None for parameter in model.parameters())


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("should_sync", [True, False])
def test_a_step_that_is_not_finite_is_skipped(value: float, should_sync: bool) -> None:
    """Nothing changes but the learning rate's place in its schedule; told at once, or one step later."""
    model = small_model()
    optimizer = Recording(model)
    now = 0

    def batches(step: int) -> list[tuple[int, Batch]]:
        nonlocal now
        now = step + 1
        return numbered(step, 2)

    def losses(model: BertWithHeads, batch: Batch) -> dict[str, LossTerm]:
        terms = batch_losses(model, batch)
        if batch.num_tokens == 13 + 5 and now in (3, 4, 6):
            terms["mlm"] = LossTerm(terms["mlm"].sum * value, terms["mlm"].count, terms["mlm"].correct)
        return terms

    states, reports = [(snapshot(model), 0)], []
    for report in steps_of(
        model, optimizer, steps=7, losses=losses, batches=batches, should_sync=lambda step: should_sync
    ):
        states.append((snapshot(model), optimizer.num_updates))
        reports.append(report)
    assert [largest_difference(a, b) > 0 for (a, _), (b, _) in itertools.pairwise(states)] == [
        True, True, False, False, True, False, True,
    ]  # fmt: skip
    assert [num_updates for _, num_updates in states] == [0, 1, 2, 2, 2, 3, 3, 4]
    assert [report.learning_rate for report in reports] == pytest.approx([1e-3 / n for n in range(1, 8)])
    assert [report.step for report in reports if report.skip_reason] == [3, 4, 6]
    assert all("mlm_loss" in (report.skip_reason or "") for report in reports if report.step in (3, 4, 6))
    counted = [(report.skips.total, report.skips.in_a_row) for report in reports]
    read = [[earlier.step for earlier in report.now_read] for report in reports]
    if should_sync:
        assert counted == [(0, 0), (0, 0), (1, 1), (2, 2), (2, 0), (3, 1), (3, 0)]
        assert read == [[1], [2], [3], [4], [5], [6], [7]]
    else:
        assert counted == [(0, 0), (0, 0), (0, 0), (1, 1), (2, 2), (2, 0), (3, 0)]  # the last one is read at once
        assert read == [[], [1], [2], [3], [4], [5], [6, 7]]
    assert [report.is_synced for report in reports] == [should_sync] * 6 + [True]


@pytest.mark.parametrize(("in_a_row", "is_stopped"), [(0, False), (4, False), (5, True), (6, True)])
def test_too_many_skips_in_a_row_stop_a_run(in_a_row: int, is_stopped: bool) -> None:
    (report,) = steps_of(model := small_model(), Recording(model), 8)
    report = dataclasses.replace(report, skips=Skips(9, in_a_row))
    stops = pytest.raises(NumericsError, match=rf"step 1: .* {in_a_row} steps in a row")
    with stops if is_stopped else nullcontext():
        report.check_skips(5)


def test_resuming_is_bit_for_bit_with_dropout() -> None:
    """Dropout is a function of (seed, step, micro-batch): nothing of the generator needs to be saved."""
    whole = small_model(dropout=0.2).train()
    optimizer = Recording(whole)
    for report in steps_of(whole, optimizer, 4, steps=6):
        if report.step == 3:
            weights, moments = snapshot(whole), copy.deepcopy(optimizer.tensors(optimizer.names))
    torch.manual_seed(999)
    resumed = small_model(dropout=0.2, seed=9).train()
    resumed.load_state_dict(weights)
    restored = Recording(resumed)
    restored.restore(moments, restored.names, 3)
    steps = [report.step for report in steps_of(resumed, restored, 4, first_step=3, steps=6)]
    assert steps == [4, 5, 6]
    assert largest_difference(whole.state_dict(), resumed.state_dict()) == 0
    other = small_model(dropout=0.2).train()
    list(steps_of(other, Recording(other), 4, steps=6, seed=4))
    assert largest_difference(whole.state_dict(), other.state_dict()) > 0


def test_random_draws_are_a_function_of_seed_step_and_shard() -> None:
    def draws(seed: int, shards: Sequence[int], first_step: int, noise: int) -> dict[tuple[int, int, int], float]:
        model = small_model()
        drawn: list[float] = []

        def losses(model: BertWithHeads, batch: Batch) -> dict[str, LossTerm]:
            drawn.append(float(torch.rand(1)))
            return batch_losses(model, batch)

        def batches(step: int) -> list[tuple[int, Batch]]:
            return [numbered(step, 2)[shard] for shard in shards]

        torch.manual_seed(noise)
        list(
            steps_of(model, Recording(model), first_step=first_step, steps=4, losses=losses, batches=batches, seed=seed)
        )
        keys = [(seed, step, shard) for step in range(first_step, 4) for shard in shards]
        return dict(zip(keys, drawn, strict=True))

    every = draws(3, (0, 1, 2, 3), 0, noise=0) | draws(4, (0, 1, 2, 3), 0, noise=0)
    assert len(every) == len(set(every.values())) == 32
    for part_of in (draws(3, (2, 3), 0, noise=1), draws(3, (0, 1), 2, noise=2), draws(4, (3,), 3, noise=3)):
        assert part_of.items() <= every.items()


def test_a_stop_is_reported_and_asked_for_once_a_step() -> None:
    model = small_model()
    answers = iter([False, True, False])
    reports = list(steps_of(model, Recording(model), 4, steps=3, stop_requested=lambda: next(answers)))
    assert [report.stop_requested for report in reports] == [False, True, False]


def test_two_processes_take_the_same_steps(tmp_path: Path, prepared_dir: Path, torchrun: list[str]) -> None:
    """With dropout, through the command line."""
    shape = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 64}
    command = [
        "pretrain", f"data_dir={prepared_dir}", "device=cpu", "steps=6", "batch.sequences=8", "batch.micro_sequences=2",
        "segments.max_seq_length=48", "log.every_steps=1", "model=medium", "model.num_hidden_layers=2", *(f"model.{k}={v}" for k, v in shape.items()),
    ]  # fmt: skip
    assert run([*command, f"output_dir={tmp_path / 'one'}"]) == 0
    done = subprocess.run([*torchrun, *command, f"output_dir={tmp_path / 'two'}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 process" in done.stdout
    one, two = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert [row["step"] for row in one] == [row["step"] for row in two] == [1, 2, 3, 4, 5, 6]
    for ours, theirs in zip(one, two, strict=True):
        for key in ("loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "learning_rate", "grad_norm"):
            assert ours[key] == pytest.approx(theirs[key], abs=1e-6), (ours["step"], key)
    assert len({row["loss"] for row in one}) == 6
    weights = [read_tensors(tmp_path / name / "model" / "model.safetensors") for name in ("one", "two")]
    assert len(weights[0]) > 30
    assert largest_difference(*weights) <= 1e-6
