"""AdamW beside an independent one in numpy; which parameters decay."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from conftest import LAYERS, small_model
from torch import nn

from bertkit.errors import InputError
from bertkit.train.config import OptimizerConfig
from bertkit.train.optimizer import AdamW, parameter_groups

SHAPES = {"first.weight": (5, 3), "first.bias": (5,), "second.weight": (2, 5), "second.bias": (2,)}
DECAYED = ("first.weight", "second.weight")


def config(bias_correction: bool, **changed: float) -> OptimizerConfig:
    values = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6, "weight_decay": 0.1, "max_grad_norm": 1.0, **changed}
    return OptimizerConfig(name="adamw", peak_learning_rate=1e-3, bias_correction=bias_correction, **values)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 2)
        for index, (name, parameter) in enumerate(self.named_parameters()):
            assert tuple(parameter.shape) == SHAPES[name]
            parameter.data = torch.from_numpy(np.random.default_rng(index).normal(size=SHAPES[name]))


def gradient(name: str, step: int) -> np.ndarray:
    rng = np.random.default_rng([list(SHAPES).index(name), step])
    return rng.normal(size=SHAPES[name]) * 10.0 ** rng.integers(-6, 2)


def rate(step: int) -> float:
    return 1e-2 * min(step / 10, (100 - step) / 90)


def reference(steps: int, bias_correction: bool) -> dict[str, np.ndarray]:
    """The update rule of the two papers, word for word; the optimizer hides its corrections in other numbers."""
    values = {name: parameter.detach().numpy().copy() for name, parameter in Small().named_parameters()}
    m = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    v = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for step, name in itertools.product(range(steps), SHAPES):
        g = gradient(name, step)
        m[name] = 0.9 * m[name] + 0.1 * g
        v[name] = 0.999 * v[name] + 0.001 * g * g
        m_hat, v_hat = m[name], v[name]
        if bias_correction:
            m_hat, v_hat = m_hat / (1 - 0.9 ** (step + 1)), v_hat / (1 - 0.999 ** (step + 1))
        update = m_hat / (np.sqrt(v_hat) + 1e-6)
        decay = 0.1 if name in DECAYED else 0.0
        values[name] = values[name] - rate(step) * (update + decay * values[name])
    return values


def run(model: Small, optimizer: AdamW, first: int, last: int) -> None:
    for step in range(first, last):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.from_numpy(gradient(name, step))
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
        assert [(g["lr"], g["eps"], g["weight_decay"]) for g in optimizer.param_groups] == [
            (rate(step), 1e-6, 0.1),
            (rate(step), 1e-6, 0.0),
        ]


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("steps", [1, 100])
def test_equal_to_the_equation(bias_correction: bool, steps: int) -> None:
    model = Small()
    optimizer = AdamW(parameter_groups(model, 0.1), config(bias_correction))
    run(model, optimizer, 0, steps)
    expected = reference(steps, bias_correction)
    other = reference(steps, not bias_correction)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), expected[name], rtol=0, atol=1e-12)
        if steps == 100:
            assert np.abs(expected[name] - other[name]).max() > 1e-3


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("break_at", [0, 1, 37])
def test_restore_continues_bit_for_bit(bias_correction: bool, break_at: int) -> None:
    whole, first, second = Small(), Small(), Small()
    optimizers = [AdamW(parameter_groups(model, 0.1), config(bias_correction)) for model in (whole, first, second)]
    run(whole, optimizers[0], 0, 50)
    run(first, optimizers[1], 0, break_at)
    names = {parameter: name for name, parameter in first.named_parameters()}
    saved = {name: tensor.clone() for name, tensor in optimizers[1].tensors(names).items()}
    expected = {f"{name}.{moment}" for name in SHAPES for moment in ("exp_avg", "exp_avg_sq")}
    assert set(saved) == (expected if break_at else set())
    second.load_state_dict(first.state_dict())
    optimizers[2].restore(saved, {p: n for n, p in second.named_parameters()}, optimizers[1].num_updates)
    run(second, optimizers[2], break_at, 50)
    for name, parameter in whole.named_parameters():
        assert torch.equal(parameter, second.get_parameter(name)), name


def test_which_parameters_decay() -> None:
    model = small_model()
    names = {parameter: name for name, parameter in model.named_parameters()}
    decayed, kept = parameter_groups(model, 0.01)
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.01, 0.0)
    layer = [
        "attention.query.weight",
        "attention.key.weight",
        "attention.value.weight",
        "attention.output.weight",
        "feed_forward.intermediate.weight",
        "feed_forward.output.weight",
    ]
    expected = [
        "bert.embeddings.token.weight",
        "bert.embeddings.position.weight",
        "bert.embeddings.segment.weight",
        *(f"bert.encoder.layers.{n}.{name}" for n in range(LAYERS) for name in layer),
        "bert.pooler.dense.weight",
        "heads.masked_lm.dense.weight",
        "heads.next_sentence.dense.weight",
    ]
    assert sorted(names[p] for p in decayed["params"]) == sorted(expected)
    rest = sorted(set(names.values()) - set(expected))
    assert sorted(names[p] for p in kept["params"]) == rest
    assert len(rest) == 2 + LAYERS * 10 + 1 + 4 + 1
    assert all(name.endswith("bias") or "norm" in name for name in rest)


def test_frozen_parameters_are_in_no_group() -> None:
    model = small_model()
    model.bert.embeddings.requires_grad_(False)
    held = sum(len(group["params"]) for group in parameter_groups(model, 0.01))
    assert held == len(list(model.parameters())) - 5


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epsilon": 0.0}, "optimizer.epsilon=0.0: expected a positive number"),
        ({"max_grad_norm": -1.0}, "optimizer.max_grad_norm=-1.0: expected a positive number"),
        ({"beta1": 1.0}, "optimizer.beta1=1.0: expected a number from 0 to below 1"),
        ({"beta2": float("nan")}, "optimizer.beta2=nan: expected a number from 0 to below 1"),
        ({"weight_decay": -0.1}, "optimizer.weight_decay=-0.1: expected 0 or more"),
    ],
)
def test_impossible_settings_are_refused(changed: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        config(False, **changed)
