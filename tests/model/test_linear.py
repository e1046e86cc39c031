"""Linear maps and dropout beside the plain way: the same values and gradients, exact probabilities; and the names of fast ways."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F

import bertkit.kernels.linear as kernels_linear
from bertkit.kernels.fast import ALL, ANYWHERE, NAMES, PLAIN, FastWays, choose, has_onednn
from bertkit.kernels.linear import Linear, dropout, linear
from bertkit.kernels.packed import forget_packed, pack


@pytest.mark.parametrize(
    ("rows", "inner", "outer"), [(0, 127, 131), (1, 127, 131), (17, 64, 31), (131, 96, 257), (5, 7, 9001)]
)
@pytest.mark.parametrize("has_bias", [True, False])
def test_fast_linear_equals_plain_linear(rows: int, inner: int, outer: int, has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(rows)
    values = [torch.randn(*shape, generator=generator) for shape in ((rows, inner), (outer, inner), (outer,))]
    weights = torch.randn(rows, outer, generator=generator)
    results = []
    for fast in (ALL, PLAIN):
        inputs, weight, bias = (value.clone().requires_grad_() for value in values)
        output = linear(inputs, weight, bias if has_bias else None, fast)
        (output * weights).sum().backward()
        results.append([output.detach(), inputs.grad, weight.grad, *([bias.grad] if has_bias else [])])
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-4)


def test_a_map_of_few_weights_has_no_program_for_each_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(kernels_linear, "product")
    inputs, weight = torch.randn(5, 26, requires_grad=True), torch.randn(37, 26, requires_grad=True)
    linear(inputs, weight, None, ALL).sum().backward()
    with pytest.raises(NameError):
        linear(torch.randn(5, 128), torch.randn(128, 128), None, ALL)


def test_linear_of_parameters_that_are_frozen_and_of_a_gradient_that_is_not_contiguous() -> None:
    inputs, weight, bias = torch.randn(5, 127, requires_grad=True), torch.randn(131, 127), torch.randn(131)
    linear(inputs, weight, bias, ALL).t().sum(0).sum().backward()
    torch.testing.assert_close(inputs.grad, weight.sum(0).expand(5, 127), atol=1e-4, rtol=1e-5)
    assert weight.grad is None


@pytest.mark.parametrize("prob", [0.1, 0.5, 0.9])
def test_dropout_has_its_probability(prob: float) -> None:
    torch.manual_seed(1)
    dropped = dropout(torch.ones(10_000_001), prob, ALL)
    share = float((dropped == 0).double().mean())
    assert abs(share - prob) < 1e-3
    kept = dropped[dropped != 0]
    assert kept.min() == kept.max()
    assert abs(float(kept[0]) * (1 - round(prob * 65536) / 65536) - 1) < 1e-6  # the mean stays exactly
    neighbours = (dropped[1:] == 0) & (dropped[:-1] == 0)
    assert abs(float(neighbours.double().mean()) - prob**2) < 1e-3  # no two elements fall together


def test_dropout_sends_back_what_it_kept_and_follows_the_seed() -> None:
    inputs = torch.randn(101, 7, requires_grad=True)
    outputs = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        outputs.append(dropout(inputs, 0.3, ALL))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    (gradient,) = torch.autograd.grad(outputs[0].sum(), inputs)
    scale = 65536 / (65536 - round(0.3 * 65536))
    assert torch.equal(gradient, torch.where(outputs[0] == 0, 0.0, torch.tensor(scale)))
    torch.testing.assert_close(outputs[0].detach(), inputs.detach() * gradient)


def test_other_types_and_autocast_take_the_plain_way() -> None:
    inputs, weight = torch.randn(5, 127, dtype=torch.float64), torch.randn(131, 127, dtype=torch.float64)
    assert torch.equal(linear(inputs, weight, None, ALL), F.linear(inputs, weight))
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(inputs.float(), weight.float(), None, ALL).dtype == torch.bfloat16


@pytest.mark.parametrize("fast", [PLAIN, FastWays(onednn_linear=True)])
def test_plain_dropout_is_that_of_torch(fast: FastWays) -> None:
    torch.manual_seed(5)
    ours = dropout(torch.ones(100), 0.5, fast)
    torch.manual_seed(5)
    assert torch.equal(ours, F.dropout(torch.ones(100), 0.5))


@pytest.mark.skipif(not has_onednn(), reason="this torch has no oneDNN")
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(17, 31), (31, 17)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_packed_weights_give_the_same_products_until_they_change(
    num_inputs: int, num_outputs: int, has_bias: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    layer = Linear(num_inputs, num_outputs, bias=has_bias)
    layer.fast = ALL
    for _ in range(2):  # as they are, and once they have changed
        pack(layer)
        for num_rows in (1, 2, 4, 5, 300):
            rows = torch.randn(num_rows, num_inputs, generator=generator)
            plain = F.linear(rows, layer.weight, layer.bias).detach()
            with torch.no_grad():
                torch.testing.assert_close(layer(rows), plain, atol=1e-5, rtol=1e-5)
        assert layer.packed is not None
        assert layer.packed.reordered is not None
        assert (layer.packed.transposed is not None) == (num_outputs > num_inputs)
        with torch.no_grad():
            layer.weight.mul_(2)
            torch.testing.assert_close(
                layer(rows[:2]), F.linear(rows[:2], layer.weight, layer.bias), atol=1e-5, rtol=1e-5
            )
    forget_packed(layer)
    assert layer.packed is None


def test_fast_ways_have_names() -> None:
    assert len(NAMES) == 12
    assert (PLAIN.names, ALL.names) == ((), NAMES)
    assert FastWays.of(["even_rows", "short_dropout"]).names == ("short_dropout", "even_rows")
    with pytest.raises(TypeError, match="even_row"):
        FastWays.of(["even_row"])


def test_plain_and_auto_choose_fast_ways() -> None:
    assert choose("plain") == PLAIN
    assert set(ANYWHERE.names) <= set(choose("auto").names) <= set(NAMES)


def test_a_copy_or_a_pickle_has_no_packed_weights() -> None:
    module, inputs = Linear(32, 64), torch.randn(4, 32)
    pack(module)
    with torch.no_grad():
        expected = module(inputs)
        for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert other.packed is None
            assert (other(inputs) - expected).abs().max() < 1e-5
