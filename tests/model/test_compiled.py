"""Compiled layers beside plain ones: the same numbers, the same names, no breaks, and nothing compiled twice."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from batches import ODD, pretraining_batch, task_batch
from conftest import LAYERS, small_model
from torch._dynamo.utils import counters

from bertkit.interop.hugging_face.modern_bert import modern_attention
from bertkit.kernels.linear import ACTIVATIONS
from bertkit.model import layers
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import FeedForwardConfig, NormConfig
from bertkit.model.layers import freeze_below
from bertkit.objectives.losses import batch_losses
from bertkit.train import loop
from bertkit.train.accelerator import make_accelerator
from bertkit.train.loop import Course, Learner
from bertkit.train.optimizer import AdamW, parameter_groups
from bertkit.train.train_config import OptimizerConfig


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def train(
    is_compiled: bool,
    backend: str = "aot_eager",
    frozen_depth: int = 0,
    dropout: float = 0.0,
    order: Sequence[int] = range(20),
    head: str | None = None,
    **changes: Any,
) -> list[float]:
    """Losses of steps of mixed lengths, with an evaluation after every fifth; after the first one nothing may be compiled."""
    if head is not None:
        changes |= {"heads": (head,), "labels": ("no", "yes"), "with_pooler": head in ("sequence", "choice")}
    batch_of = pretraining_batch if head is None else functools.partial(task_batch, head)
    model = small_model(dropout=dropout, **changes).train()
    freeze_below(model, frozen_depth)
    names = list(model.state_dict())
    if is_compiled:
        layers.compile_layers(model.bert.encoder, backend)
    optimizer = AdamW(parameter_groups(model, 0.01), OptimizerConfig("adamw", 1e-3, 0.9, 0.999, 1e-6, 0.01, False, 1.0))
    accelerator = make_accelerator("cpu", 1)
    losses = []
    try:
        learner = Learner(accelerator, model, optimizer, batch_losses)
        course = Course(
            lambda step: [(0, batch_of(order[step]))], lambda step: 1e-3, 0, len(order), max_grad_norm=1.0, seed=3
        )
        for report in loop.train(learner, course):
            losses.append(sum(report.losses.values()))
            if report.step % 5 == 0:
                with loop.evaluation_mode(model), torch.no_grad():
                    terms = batch_losses(model, batch_of(100 + report.step)).values()
                losses += [float(term.sum) / term.count for term in terms]
                torch._dynamo.config.error_on_recompile = True
    finally:
        torch._dynamo.config.error_on_recompile = False
    assert list(model.state_dict()) == names
    assert not counters["graph_break"]
    return losses


@pytest.mark.parametrize(("frozen_depth", "most_graphs"), [(0, 4), pytest.param(2, 10, marks=pytest.mark.slow)])
def test_losses_are_those_of_plain_layers_and_all_layers_share_their_graphs(
    frozen_depth: int, most_graphs: int
) -> None:
    plain = train(False, frozen_depth=frozen_depth)
    assert counters["stats"]["unique_graphs"] == 0
    ours = train(True, frozen_depth=frozen_depth)
    assert len(ours) == 28
    np.testing.assert_allclose(ours, plain, rtol=0, atol=1e-5)
    assert LAYERS == 3
    # before attention and after it; in training and in evaluation; and where a layer is frozen also of it, and of the one
    # above it, whose input has no gradient
    assert 4 <= counters["stats"]["unique_graphs"] <= most_graphs


@pytest.mark.parametrize(
    "head", [None, *(pytest.param(x, marks=pytest.mark.slow) for x in ("token", "span", "choice"))]
)
def test_an_epoch_of_mixed_lengths_needs_four_graphs_whichever_comes_first(head: str | None) -> None:
    train(True, dropout=0.1, order=[ODD, *range(40)] if head is None else range(30), head=head)
    assert counters["stats"]["unique_graphs"] == 4


def test_a_break_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ACTIVATIONS, "gelu", lambda x: [torch._dynamo.graph_break(), x][1])
    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"):
        train(True, order=range(1))


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
    "modern": {
        "attention": modern_attention(bias=False, window=4, full_every=2, rotary_base=700.0),
        "feed_forward": FeedForwardConfig(kind="glu", bias=False),
        "norm": NormConfig(placement="pre", bias=False, before_first=False),
        "type_vocab_size": 0,
    },
}


def check_variant(name: str, backend: str) -> None:
    changes = {"num_attention_heads": 1, **VARIANTS[name]}  # rotary wants heads of an even size
    np.testing.assert_allclose(train(True, backend, **changes), train(False, **changes), rtol=0, atol=1e-5)
    assert 4 <= counters["stats"]["unique_graphs"] <= (9 if name == "modern" else 6)  # three kinds of layers


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
