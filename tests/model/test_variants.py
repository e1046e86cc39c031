"""Every option of attention, norm and pooling beside loops of numpy, and what must hold between them."""

from __future__ import annotations

import doctest
import importlib
import itertools
import pkgutil
from collections.abc import Sequence
from typing import Any, get_args, get_type_hints

import loops
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bertkit.model
from bertkit.cli import run
from bertkit.errors import InputError
from bertkit.model.bert import Bert
from bertkit.model.config import AttentionConfig, BertConfig, NormConfig
from bertkit.model.heads import BertWithHeads
from bertkit.model.layout import Layout
from bertkit.model.patterns import allowed, bigbird_blocks, plan
from bertkit.model.positions import rotate, sinusoidal

LENGTHS = (5, 23, 23, 41, 1, 2)  # two run together; the longest has as many as there are positions, and eleven blocks
OPTIONS = {slot: get_args(get_type_hints(AttentionConfig)[slot]) for slot in ("score", "positions", "pattern")}
SMALL = {"window": 4, "block_size": 4, "random_blocks": 1, "compressed_size": 7, "max_distance": 3, "additive_size": 11}
GRADIENT_STEP = 1e-30


def config_of(norm: NormConfig = NormConfig(), pooling: Any = "first", layers: int = 2, **attention: Any) -> BertConfig:  # noqa: B008
    return BertConfig(
        hidden_size=12, num_hidden_layers=layers, num_attention_heads=3, intermediate_size=17, hidden_act="silu",
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=41, type_vocab_size=2,
        initializer_range=0.2, layer_norm_eps=1e-3, vocab_size=19, attention=AttentionConfig(**{**SMALL, **attention}),
        norm=norm, pooling=pooling,
    )  # fmt: skip


def fill(model: nn.Module, seed: int = 0) -> None:
    """Give every parameter values of its own, norms and biases too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(1 + 0.2 * values if name.endswith("norm.weight") else 0.4 * values)


def model_of(config: BertConfig) -> Bert:
    model = Bert(config).double().eval()
    fill(model)
    return model


def batch(lengths: Sequence[int] = LENGTHS, vocab_size: int = 19) -> tuple[Tensor, Tensor, Layout]:
    generator = torch.Generator().manual_seed(1)
    ids, types = (torch.randint(high, (sum(lengths),), generator=generator) for high in (vocab_size, 2))
    return ids, types, Layout.from_lengths(torch.tensor(lengths))


def outputs(config: BertConfig, weights: dict[str, Tensor] | None = None, lengths: Sequence[int] = LENGTHS) -> Tensor:
    """What a model gives with the weights of another, where it has such, all in one."""
    model = model_of(config)
    if weights is not None:
        left = model.load_state_dict({k: v for k, v in weights.items() if k in model.state_dict()}, strict=False)
        assert all(".slots." in name for name in left.missing_keys)
    hidden, pooled = model(*batch(lengths))
    assert pooled is not None
    return torch.cat([hidden[-1], pooled])


def same(ours: Tensor, theirs: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


# beside the loops


def test_the_examples_of_the_docstrings() -> None:
    counts = {}
    for module in pkgutil.iter_modules(bertkit.model.__path__):
        page = importlib.import_module(f"bertkit.model.{module.name}")
        counts[module.name] = doctest.testmod(page, extraglobs={"torch": torch})
    assert all(count.failed == 0 for count in counts.values())
    with_examples = {name: count.attempted for name, count in counts.items() if count.attempted}
    assert with_examples == {"bert": 2, "patterns": 4, "positions": 7, "scores": 7}


EVERYTHING = config_of(
    NormConfig(placement="pre", kind="rms"), "feed_forward", score="general", positions="rotary", pattern="window"
)
CASES = {
    "bert": config_of(),
    "dot": config_of(score="dot"),
    "general": config_of(score="general"),
    "additive": config_of(score="additive"),
    "location": config_of(score="location"),
    "sinusoidal": config_of(positions="sinusoidal"),
    "relative": config_of(positions="relative"),
    "relative_keys": config_of(positions="relative", relative_to=("keys",)),
    "relative_values": config_of(positions="relative", relative_to=("values",)),
    "rotary": config_of(positions="rotary"),
    "alibi": config_of(positions="alibi"),
    "none": config_of(positions="none"),
    "causal": config_of(pattern="causal", pooling="mean"),
    "window": config_of(pattern="window"),
    "bigbird": config_of(pattern="bigbird"),
    **{
        f"linformer_{shared}": config_of(pattern="linformer", compression_shared=shared)
        for shared in ("none", "heads", "key_value", "layers")
    },
    "pre": config_of(NormConfig(placement="pre")),
    "rms": config_of(NormConfig(kind="rms")),
    "mean": config_of(pooling="mean"),
    "feed_forward": config_of(pooling="feed_forward"),
    "everything": EVERYTHING,
    "general_relative_bigbird": config_of(score="general", positions="relative", pattern="bigbird"),
    "additive_alibi_causal": config_of(pooling="mean", score="additive", positions="alibi", pattern="causal"),
    "location_alibi_window": config_of(score="location", positions="alibi", pattern="window"),
    "location_bigbird": config_of(score="location", pattern="bigbird"),
    "dot_relative_window": config_of(score="dot", positions="relative", pattern="window"),
    "additive_linformer": config_of(score="additive", positions="none", pattern="linformer"),
}


def test_there_is_a_case_of_every_option() -> None:
    for slot, options in OPTIONS.items():
        assert {getattr(case.attention, slot) for case in CASES.values()} == set(options)
    assert {len(options) for options in OPTIONS.values()} == {5, 6}
    assert {case.pooling for case in CASES.values()} == {"first", "mean", "feed_forward"}
    assert len({(case.norm.placement, case.norm.kind) for case in CASES.values()}) == 4


def beside_the_loops(config: BertConfig, only: str | None = None) -> None:
    """Compare outputs, and their derivative in a random direction of all weights, or of one of them."""
    model, rng = model_of(config), np.random.default_rng(2)
    parameters = dict(model.named_parameters())
    ids, types, layout = batch()
    hidden, pooled = model(ids, types, layout)
    assert pooled is not None
    of_hidden, of_pooled = rng.normal(size=hidden[-1].shape), rng.normal(size=pooled.shape)
    loss = (hidden[-1] * torch.tensor(of_hidden)).sum() + (pooled * torch.tensor(of_pooled)).sum()
    gradients = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))

    direction = {name: rng.normal(size=weight.shape) for name, weight in parameters.items()}
    if only is not None:
        direction = {name: one * (name == only) for name, one in direction.items()}
    w = {
        name: weight.detach().numpy() + 1j * GRADIENT_STEP * direction[name] for name, weight in parameters.items()
    }  # what layers share is there once
    parts = zip(ids.split(LENGTHS), types.split(LENGTHS), strict=True)
    found = [loops.encode(w, config, own_ids.tolist(), own_types.tolist()) for own_ids, own_types in parts]
    their_hidden, their_pooled = np.concatenate([each for each, _ in found]), np.stack([each for _, each in found])
    np.testing.assert_allclose(hidden[-1].detach().numpy(), their_hidden.real, rtol=0, atol=1e-10)
    np.testing.assert_allclose(pooled.detach().numpy(), their_pooled.real, rtol=0, atol=1e-10)
    theirs = ((their_hidden * of_hidden).sum() + (their_pooled * of_pooled).sum()).imag / GRADIENT_STEP
    products = [gradients[name].numpy() * direction[name] for name in parameters]
    size = sum(float(np.abs(each).sum()) for each in products)
    assert size > 0 or only is not None
    assert sum(float(each.sum()) for each in products) == pytest.approx(theirs, rel=0, abs=1e-10 * max(1.0, size))


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_loops(name: str) -> None:
    beside_the_loops(CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_of_each_parameter_is_that_of_loops(name: str) -> None:
    for parameter, _ in Bert(CASES[name]).named_parameters():
        beside_the_loops(CASES[name], parameter)
