"""AdamW, LAMB and clipping beside independent ones in numpy; which parameters decay."""

import itertools

import numpy as np
import pytest
import torch
from conftest import LAYERS, small_model
from torch import nn

from bertkit.base import plugins
from bertkit.base.typed_settings import build
from bertkit.settings.pretrain import PretrainSettings
from bertkit.settings.reading.compose import compose
from bertkit.train.optimizer import Optimizer, clip_global_norm, make_optimizer, parameter_groups
from bertkit.train.train_config import OptimizerConfig

SHAPES = {
    "embedding.weight": (7, 3), "dense.weight": (5, 3), "dense.bias": (5,), "norm.weight": (5,), "norm.bias": (5,),
    "pooler.weight": (2, 5), "pooler.bias": (2,),
}  # fmt: skip
DECAYED = ("embedding.weight", "dense.weight", "pooler.weight")
STEPS, DECAY, EPSILON, MAX_NORM = 100, 0.1, 1e-6, 3.0
RULES = [("adamw", False), ("adamw", True), ("lamb", False), ("lamb", True)]


def config(name: str, bias_correction: bool, **changed: float) -> OptimizerConfig:
    values = {"beta1": 0.9, "beta2": 0.999, "epsilon": EPSILON, "weight_decay": DECAY, "max_grad_norm": MAX_NORM}
    return OptimizerConfig(name=name, peak_learning_rate=1e-3, bias_correction=bias_correction, **{**values, **changed})


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.dense = nn.Embedding(7, 3), nn.Linear(3, 5)
        self.norm, self.pooler = nn.LayerNorm(5), nn.Linear(5, 2)
        assert [name for name, _ in self.named_parameters()] == list(SHAPES)
        for name, parameter in self.named_parameters():
            parameter.data = torch.from_numpy(start(name))


def start(name: str) -> np.ndarray:
    """The weights at the beginning; the pooler's are zero, where the trust ratio is 1."""
    values = np.random.default_rng(list(SHAPES).index(name)).normal(size=SHAPES[name])
    return values * 0 if name == "pooler.weight" else values


def gradient(name: str, step: int) -> np.ndarray:
    """Gradients of very different sizes; every third step has a global norm above MAX_NORM, others lie well below."""
    rng = np.random.default_rng([list(SHAPES).index(name), step])
    size = 10.0 if step % 3 == 0 else 10.0 ** rng.integers(-6, -1)
    return rng.normal(size=SHAPES[name]) * size


def rate(step: int) -> float:
    return 1e-2 * min(step / 10, (STEPS - step) / 90)


def clipped(step: int) -> dict[str, np.ndarray]:
    """The gradients of a step, scaled down together to a global norm of at most MAX_NORM."""
    gradients = {name: gradient(name, step) for name in SHAPES}
    norm = np.sqrt(sum((g * g).sum() for g in gradients.values()))
    return {name: g * MAX_NORM / max(norm, MAX_NORM) for name, g in gradients.items()}


def reference(rule: str, steps: int, bias_correction: bool) -> dict[str, np.ndarray]:
    """The update rules of the papers, word for word: Loshchilov and Hutter 2019 as BERT has it, You et al. 2020."""
    values = {name: start(name) for name in SHAPES}
    m = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    v = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for step, name in itertools.product(range(steps), SHAPES):
        g, p = clipped(step)[name], values[name]
        m[name] = 0.9 * m[name] + 0.1 * g
        v[name] = 0.999 * v[name] + 0.001 * g * g
        m_hat, v_hat = m[name], v[name]
        if bias_correction:
            m_hat, v_hat = m_hat / (1 - 0.9 ** (step + 1)), v_hat / (1 - 0.999 ** (step + 1))
        update = m_hat / (np.sqrt(v_hat) + EPSILON)
        ratio = 1.0
        if name in DECAYED:
            update = update + DECAY * p
            weight_norm, update_norm = np.sqrt((p * p).sum()), np.sqrt((update * update).sum())
            if rule == "lamb" and weight_norm > 0 and update_norm > 0:
                ratio = weight_norm / update_norm
        values[name] = p - rate(step) * ratio * update
    return values


def make(rule: str, bias_correction: bool) -> tuple[Small, Optimizer]:
    model = Small()
    return model, make_optimizer(parameter_groups(model, DECAY), config(rule, bias_correction))


def run(model: Small, optimizer: Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.from_numpy(gradient(name, step))
        clip_global_norm(model.parameters(), MAX_NORM)
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
        used = [(group["lr"], group["eps"], group["weight_decay"]) for group in optimizer.param_groups]
        assert used == [(rate(step), EPSILON, DECAY), (rate(step), EPSILON, 0.0)]


@pytest.mark.parametrize(("rule", "bias_correction"), RULES)
@pytest.mark.parametrize("steps", [1, 2, STEPS])
def test_optimizers_equal_float64_reference(rule: str, bias_correction: bool, steps: int) -> None:
    model, optimizer = make(rule, bias_correction)
    run(model, optimizer, 0, steps)
    expected = reference(rule, steps, bias_correction)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), expected[name], rtol=0, atol=1e-12, err_msg=name)


def test_optimizer_rules_differ_from_each_other() -> None:
    """Else the test above could not tell one from another."""
    results = [reference(rule, STEPS, bias_correction) for rule, bias_correction in RULES]
    for first, second in itertools.combinations(results, 2):
        assert max(np.abs(first[name] - second[name]).max() for name in SHAPES) > 1e-3


@pytest.mark.parametrize("rule", plugins.names_of("optimizer"))
def test_zero_weights_with_zero_gradients_stay_zero(rule: str) -> None:
    """The trust ratio of a weight and an update of zeros is 1."""
    model, optimizer = make(rule, True)
    for parameter in model.parameters():
        parameter.data.zero_()
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert all((parameter == 0).all() for parameter in model.parameters())


@pytest.mark.parametrize(("rule", "bias_correction"), RULES)
@pytest.mark.parametrize("break_at", [0, 1, 37])
def test_restore_continues_bit_for_bit(rule: str, bias_correction: bool, break_at: int) -> None:
    (whole, uncut), (first, before), (second, after) = (make(rule, bias_correction) for _ in range(3))
    run(whole, uncut, 0, 50)
    run(first, before, 0, break_at)
    names = {parameter: name for name, parameter in first.named_parameters()}
    saved = {name: tensor.clone() for name, tensor in before.tensors(names).items()}
    expected = {f"{name}.{moment}" for name in SHAPES for moment in ("exp_avg", "exp_avg_sq")}
    assert set(saved) == expected
    assert any(moment.any() for moment in saved.values()) == (break_at > 0)
    second.load_state_dict(first.state_dict())
    after.restore(saved, {p: n for n, p in second.named_parameters()}, before.num_updates)
    run(second, after, break_at, 50)
    for name, parameter in whole.named_parameters():
        assert torch.equal(parameter, second.get_parameter(name)), name


@pytest.mark.parametrize(("rule", "bias_correction"), RULES)
@pytest.mark.parametrize("left_out", [{0}, {3}, {0, 1, 5}, set(range(8))])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_step_left_out_leaves_no_trace(rule: str, bias_correction: bool, left_out: set[int], value: float) -> None:
    """Weights, moments and the number of updates are those of a run that never saw these gradients, bit for bit."""
    (first, optimizer), (second, without) = (make(rule, bias_correction) for _ in range(2))
    for step in range(8):
        optimizer.found_inf = torch.tensor(float(step in left_out))
        for model in (first, second):
            for name, parameter in model.named_parameters():
                parameter.grad = torch.from_numpy(gradient(name, step))
        if step in left_out:
            first.dense.weight.grad[1, 2] = value
        for group in (*optimizer.param_groups, *without.param_groups):
            group["lr"] = rate(step)
        optimizer.step()
        if step not in left_out:
            without.step()
    names = [{parameter: name for name, parameter in model.named_parameters()} for model in (first, second)]
    ours, theirs = optimizer.tensors(names[0]), without.tensors(names[1])
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert optimizer.num_updates == without.num_updates == 8 - len(left_out)


def test_optimizer_defaults_are_those_of_the_sources() -> None:
    """Of google-research/bert optimization.py, lines 59-65, and of NVIDIA's LAMB."""
    settings = (["data_dir=x", "output_dir=y", f"optimizer={name}"] for name in plugins.names_of("optimizer"))
    assert [build(PretrainSettings, compose("pretrain", each)).optimizer for each in settings] == [
        OptimizerConfig("adamw", 1e-4, 0.9, 0.999, 1e-6, 0.01, False, 1.0),
        OptimizerConfig("lamb", 6e-3, 0.9, 0.999, 1e-6, 0.01, True, 1.0),
    ]


def test_which_parameters_decay() -> None:
    model = small_model()
    names = {parameter: name for name, parameter in model.named_parameters()}
    decayed, kept = parameter_groups(model, 0.01)
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.01, 0.0)
    assert (decayed["is_decayed"], kept["is_decayed"]) == (True, False)
    layer = [f"attention.{name}" for name in ("query", "key", "value", "output")]
    layer += ["feed_forward.intermediate", "feed_forward.output"]
    expected = [
        *(f"bert.embeddings.{name}.weight" for name in ("token", "position", "segment")),
        *(f"bert.encoder.layers.{n}.{name}.weight" for n in range(LAYERS) for name in layer),
        *(f"{name}.dense.weight" for name in ("bert.pooler", "heads.masked_lm", "heads.next_sentence")),
    ]
    assert sorted(names[p] for p in decayed["params"]) == sorted(expected)
    rest = sorted(set(names.values()) - set(expected))
    assert sorted(names[p] for p in kept["params"]) == rest
    assert len(rest) == 2 + LAYERS * 10 + 1 + 4 + 1
    assert all(name.endswith("bias") or "norm" in name for name in rest)
    model.bert.embeddings.requires_grad_(False)  # frozen parameters are in no group
    assert sum(len(group["params"]) for group in parameter_groups(model, 0.01)) == len(list(model.parameters())) - 5


def test_no_vector_decays_whatever_its_module_is() -> None:
    """Neither the weights of a plug-in's norm, nor the biases of recurrent layers, `bias_ih_l0`."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(5))
            self.recurrence = nn.GRU(5, 5)

    model = Own()
    decayed, kept = parameter_groups(model, 0.01)
    assert decayed["params"] == [model.recurrence.weight_ih_l0, model.recurrence.weight_hh_l0]
    assert kept["params"] == [model.gain, model.recurrence.bias_ih_l0, model.recurrence.bias_hh_l0]
