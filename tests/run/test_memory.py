"""The planner beside what torch says: what autograd keeps, how many parameters there are; and the lines that are printed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from bertkit import memory
from bertkit.batch import PretrainBatch
from bertkit.cli import run
from bertkit.kernels.fast import NAMES, FastWays
from bertkit.model.config import PRETRAINING_HEADS, BertConfig
from bertkit.model.heads import BertWithHeads
from bertkit.run import memory as plan
from bertkit.run.depth import freeze_below
from bertkit.run.memory import (
    FIRST_USE,
    SHARE_KEPT_BY_ALLOCATOR,
    PartOfRun,
    TrainingStep,
    largest_micro_batch,
    memory_lines,
    plan_step,
)
from bertkit.run.objective import pretraining_losses

SEQUENCES, LENGTH, VOCAB = 5, 97, 3001
WITHOUT_SLACK = tuple(name for name in NAMES if name != "even_rows")


def config_of(dropout: float = 0.1, **changes: object) -> BertConfig:
    shape = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 509}
    rest = {"hidden_act": "gelu", "max_position_embeddings": 101, "type_vocab_size": 2, "initializer_range": 0.02}
    drops = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout, "layer_norm_eps": 1e-12}
    return BertConfig(**{**shape, **rest, **drops, "vocab_size": VOCAB, **changes})  # type: ignore[arg-type]


def kept_by_autograd(model: BertWithHeads, precision: str) -> int:
    """Ask torch for every tensor that it keeps for the way back of a real step, each storage once, weights not."""
    num_tokens = SEQUENCES * LENGTH
    rng, masked = np.random.default_rng(0), round(0.15 * num_tokens)
    batch = PretrainBatch(
        rng.integers(0, VOCAB, num_tokens),
        np.zeros(num_tokens, np.int64),
        np.full(SEQUENCES, LENGTH),
        np.arange(masked),
        rng.integers(0, VOCAB, masked),
        np.zeros(SEQUENCES, np.int64),
    )
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}  # holding them, so that no address is used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        pretraining_losses(model, batch, precision)
    return sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in weights)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("names", "dropout", "activation"),
    [
        *((names, 0.1, "gelu") for names in (WITHOUT_SLACK, ("short_dropout",), ("own_attention",), ())),
        (WITHOUT_SLACK, 0.1, "relu"),
        ((), 0.0, "gelu"),
    ],
)
def test_activations_are_what_autograd_keeps(
    precision: str, names: tuple[str, ...], dropout: float, activation: str
) -> None:
    model = BertWithHeads(config_of(dropout, hidden_act=activation)).train()
    model.use(FastWays.of(names))
    step = TrainingStep(model=model, max_seq_length=LENGTH, precision=precision)
    kept = kept_by_autograd(model, precision)
    assert plan_step(step, SEQUENCES * LENGTH).activations == pytest.approx(kept, rel=0.02)


def step_of(heads: Sequence[str] = PRETRAINING_HEADS, frozen_depth: int = 0, **changes: object) -> TrainingStep:
    model = BertWithHeads(config_of(**changes), heads, bool({"next_sentence", "sequence"} & set(heads))).train()
    freeze_below(model, frozen_depth)
    return TrainingStep(model=model, max_seq_length=LENGTH, precision="fp32")


@pytest.mark.parametrize(
    ("heads", "frozen_depth"),
    [
        (PRETRAINING_HEADS, 0),
        (("masked_lm",), 0),
        (("sequence",), 0),
        (("sequence",), 1),
        (("token",), 3),
        (("span",), 4),
    ],
)
def test_parameters_are_counted(heads: tuple[str, ...], frozen_depth: int) -> None:
    step = step_of(heads, frozen_depth, labels=("a", "b", "c", "d", "e"))
    plan = plan_step(step, LENGTH)
    assert plan.weights == 4 * sum(parameter.numel() for parameter in step.model.parameters())
    trained = [parameter for parameter in step.model.parameters() if parameter.requires_grad]
    assert plan.gradients == 4 * sum(parameter.numel() for parameter in trained)
    assert plan.moments == 2 * plan.gradients


def working(step: TrainingStep, num_tokens: int = 10 * LENGTH, **changes: object) -> float:
    of_step = plan_step(dataclasses.replace(step, **changes), num_tokens).of_step
    return (of_step - FIRST_USE) / (1 + SHARE_KEPT_BY_ALLOCATOR)


def test_what_makes_a_step_need_more() -> None:
    step = step_of()
    least, trained = working(step), plan_step(step, LENGTH).gradients
    for changes, more in (
        ({"accumulates": True}, trained),
        ({"num_processes": 2}, trained),
        ({"is_strict": True}, 3 * trained),
        ({"optimizer": "lamb"}, 0),  # the activations stand higher
    ):
        assert working(step, **changes) - least == pytest.approx(more, abs=2), changes
    assert working(step, 1, optimizer="lamb") == pytest.approx(trained + 4 * 4 * VOCAB * 128, abs=2)
    assert working(step_of(frozen_depth=4)) < least / 3


@pytest.mark.parametrize(
    ("precision", "num_tokens"), [("fp32", 40), ("fp32", 10 * LENGTH + 7), ("bf16", 10 * LENGTH + 7)]
)
@pytest.mark.parametrize(("num_layers", "frozen_depth"), [(1, 0), (5, 0), (5, 2), (3, 1), (3, 4)])
def test_one_layer_tells_of_all(num_layers: int, frozen_depth: int, precision: str, num_tokens: int) -> None:
    """What is planned from one layer is the highest point of the whole model."""
    step = step_of(("masked_lm",), frozen_depth, num_hidden_layers=num_layers)
    step = dataclasses.replace(step, precision=precision)
    whole = plan._measure(step, num_tokens, num_layers=num_layers)
    highest = max(whole.at_head, whole.at_layer, whole.at_end)
    # where all is frozen nothing is high, and the embedded tokens beside the input of the second layer can be seen
    assert working(step, num_tokens) == pytest.approx(highest, rel=0.02 if frozen_depth <= num_layers else 0.15)


def test_planning_draws_no_random_numbers() -> None:
    step, before = step_of(), torch.get_rng_state()
    plan_step(step, 2 * LENGTH)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_largest_micro_batch_fits_and_one_more_does_not() -> None:
    step = step_of()
    for limit in (100_000_000, 1_000_000_000, 9_999_999_999):
        largest = largest_micro_batch(step, limit)
        assert plan_step(step, largest * LENGTH).of_step <= limit < plan_step(step, (largest + 1) * LENGTH).of_step
    assert largest > 100
    assert largest_micro_batch(step, 1_000_000) == 0


def planned(num_sequences: int, **changes: object) -> PartOfRun:
    given = {"step": step_of(), "num_tokens": num_sequences * LENGTH, "evaluated_tokens": 0, "saves_copies": False}
    setting = {"setting": ("batch.micro_sequences", num_sequences), "tokens_of_setting": LENGTH}
    return PartOfRun(**{**given, **setting, **changes})  # type: ignore[arg-type]


def test_the_lines_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        memory, "CGROUPS", tmp_path
    )  # a container's files: 3 GB, of which one is taken, besides cached files
    (tmp_path / "memory.max").write_text("3000000000\n")
    (tmp_path / "memory.current").write_text("1700000000\n")
    (tmp_path / "memory.stat").write_text("anon 900000000\ninactive_file 700000000\nactive_file 5\n")
    here = memory.memory_here("cpu")
    assert here is not None
    assert (here.total, here.free) == (3_000_000_000, 2_000_000_000)
    assert 50e6 < here.held < 20e9

    (line,) = memory_lines([planned(2)], 1)
    assert line.startswith("expected peak memory ")
    assert line.endswith(" GB of 3.0 GB here")
    largest = largest_micro_batch(step_of(), 2_000_000_000)
    assert len(memory_lines([planned(largest)], 1)) == 1
    _, warning = memory_lines([planned(2), planned(largest + 700)], 1)
    assert warning.startswith(f"warning: batch.micro_sequences={largest + 700} needs ")
    assert warning.endswith(f"2.0 GB are free; batch.micro_sequences={largest} would fit")
    by_tokens = planned(largest + 700, setting=("batch.micro_tokens", 99_999_999), tokens_of_setting=1)
    assert memory_lines([by_tokens], 1)[1].endswith(f"; batch.micro_tokens={largest * LENGTH} would fit")
    shared = memory_lines([planned(largest)], 2)
    assert " in each of 2 processes of 3.0 GB here" in shared[0]
    assert len(shared) == 2
    (tmp_path / "memory.current").write_text("3699999999\n")
    assert memory_lines([planned(1)], 1)[1].endswith("; take a smaller model or a larger machine")


def test_the_limit_of_a_job_counts_for_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup").write_text("4:memory:/old\n0::/job_7/step_0\n")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "OWN_CGROUP", tmp_path / "cgroup")
    (tmp_path / "job_7" / "step_0").mkdir(parents=True)
    (tmp_path / "job_7" / "step_0" / "memory.max").write_text("max\n")
    (tmp_path / "job_7" / "memory.max").write_text("2000000000\n")
    (tmp_path / "job_7" / "memory.current").write_text("500000000\n")
    here = memory.memory_here("cpu")
    assert here is not None
    assert (here.total, here.free) == (2_000_000_000, 1_500_000_000)


def test_a_machine_without_a_limit_is_as_large_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    here = memory.memory_here("cpu")
    assert here is not None
    assert 0 < here.free < here.total
    assert memory_lines([planned(1)], 1)[0].endswith(f"of {here.total / 1e9:.1f} GB here")


def test_copies_and_evaluation_count() -> None:
    alone = planned(2).needed
    weights = plan_step(step_of(), LENGTH).weights
    assert planned(2, saves_copies=True).needed == alone + 3 * weights
    assert planned(2, evaluated_tokens=2 * LENGTH).needed == alone
    assert planned(2, evaluated_tokens=200 * LENGTH).needed > alone


def test_pretraining_says_what_it_will_need(
    prepared_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "memory.max").write_text("900000000\n")
    (tmp_path / "memory.current").write_text("890000000\n")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    small = ["steps=1", "batch.sequences=4", "batch.micro_sequences=2", "evaluation.max_sequences=4", "device=cpu"]
    assert run(["pretrain", f"data_dir={prepared_dir}", f"output_dir={tmp_path / 'run'}", "model=tiny", *small]) == 0
    said = capsys.readouterr().out
    assert said.count("expected peak memory ") == said.count(" GB of 0.9 GB here\n") == 1
    assert said.count("warning: batch.micro_sequences=2 needs 0.1 GB more, 0.0 GB are free; take a smaller model") == 1
