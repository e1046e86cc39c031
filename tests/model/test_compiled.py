"""Compiled layers beside plain ones: the same numbers, the same names, and nothing compiled twice."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from conftest import LAYERS, small_model
from torch._dynamo.utils import counters

from bertkit.base.batch import PretrainBatch
from bertkit.model import layers
from bertkit.model.bert_config import AttentionConfig, NormConfig
from bertkit.model.layers import freeze_below
from bertkit.run.objective import pretraining_losses
from bertkit.train import loop, processes
from bertkit.train.loop import Course, Learner
from bertkit.train.optimizer import AdamW, parameter_groups
from bertkit.train.train_config import OptimizerConfig


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def batch_of(step: int) -> PretrainBatch:
    """One to six sequences of 3 to 29 tokens; the last is the odd batch with a single short one."""
    rng = np.random.default_rng(step)
    lengths = rng.integers(3, 30, size=rng.integers(1, 7)) if step < 19 else np.array([3])
    size = int(lengths.sum())
    ids, types = rng.integers(131, size=size), rng.integers(2, size=size)
    masked = np.sort(rng.permutation(size)[: 1 + size // 7])
    return PretrainBatch(ids, types, lengths, masked, ids[masked], rng.integers(2, size=len(lengths)))


def train(
    is_compiled: bool, backend: str = "aot_eager", frozen_depth: int = 0, dropout: float = 0.0, **changes: Any
) -> list[float]:
    """Losses of 20 steps with an evaluation after every fifth; after the first evaluation nothing may be compiled."""
    model = small_model(dropout=dropout, **changes).train()
    freeze_below(model, frozen_depth)
    names = list(model.state_dict())
    if is_compiled:
        layers.compile_layers(model.bert.encoder, backend)
    optimizer = AdamW(parameter_groups(model, 0.01), OptimizerConfig("adamw", 1e-3, 0.9, 0.999, 1e-6, 0.01, False, 1.0))
    accelerator = processes.make_accelerator("cpu", 1)
    losses = []
    try:
        learner = Learner(accelerator, model, optimizer, pretraining_losses)
        course = Course(lambda step: [(0, batch_of(step))], lambda step: 1e-3, 0, 20, max_grad_norm=1.0, seed=3)
        for report in loop.train(learner, course):
            losses.append(sum(report.losses.values()))
            if report.step % 5 == 0:
                found = loop.evaluate(accelerator, model, pretraining_losses, iter([batch_of(100 + report.step)]))
                losses += [measured.loss for measured in found.values()]
                torch._dynamo.config.error_on_recompile = True
    finally:
        torch._dynamo.config.error_on_recompile = False
    assert list(model.state_dict()) == names
    return losses


@pytest.mark.parametrize(("frozen_depth", "most_graphs"), [(0, 6), pytest.param(2, 15, marks=pytest.mark.slow)])
def test_losses_are_those_of_plain_layers_and_all_layers_share_their_graphs(
    frozen_depth: int, most_graphs: int
) -> None:
    plain = train(False, frozen_depth=frozen_depth)
    assert counters["stats"]["unique_graphs"] == 0
    ours = train(True, frozen_depth=frozen_depth)
    assert len(ours) == 28
    np.testing.assert_allclose(ours, plain, rtol=0, atol=1e-5)
    assert LAYERS == 3
    # before attention, after it, and after the projection of its contexts; in training and in evaluation; and where a
    # layer is frozen also of it, and of the one above it, whose input has no gradient
    assert 6 <= counters["stats"]["unique_graphs"] <= most_graphs


VARIANTS: dict[str, dict[str, Any]] = {
    "everything": {
        "attention": AttentionConfig(score="general", positions="rotary", pattern="window", window=4),
        "norm": NormConfig(placement="pre", kind="rms"),
        "pooling": "feed_forward",
    },
    "rotary": {"attention": AttentionConfig(positions="rotary")},
    "relative": {"attention": AttentionConfig(positions="relative", max_distance=5)},
    "additive": {"attention": AttentionConfig(score="additive")},
    "causal": {"attention": AttentionConfig(pattern="causal"), "pooling": "mean"},
    "window": {"attention": AttentionConfig(pattern="window", window=4)},
    "bigbird": {"attention": AttentionConfig(pattern="bigbird", block_size=4, random_blocks=1)},
    "linformer": {"attention": AttentionConfig(pattern="linformer", compressed_size=7)},
    "pre": {"norm": NormConfig(placement="pre")},
}


def check_variant(name: str, backend: str) -> None:
    changes = {"num_attention_heads": 1, **VARIANTS[name]}  # rotary wants heads of an even size
    np.testing.assert_allclose(train(True, backend, **changes), train(False, **changes), rtol=0, atol=1e-5)
    assert 6 <= counters["stats"]["unique_graphs"] <= 8


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_other_attentions_give_the_same_losses(name: str) -> None:
    check_variant(name, "aot_eager")


@pytest.mark.slow
def test_dropout_follows_the_seed() -> None:
    first, second = (train(True, dropout=0.2) for _ in range(2))
    assert first == second
    assert not np.allclose(first, train(True))


@pytest.mark.slow
def test_the_compiler_of_users_gives_the_same_losses() -> None:
    if layers.missing_for("cpu"):
        pytest.skip(f"no {layers.missing_for('cpu')}")
    np.testing.assert_allclose(train(True, "inductor"), train(False), rtol=0, atol=1e-5)
