"""Every kernel beside the plain way: the same values and gradients, and dropout with exactly its probability."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from conftest import small_model
from torch.nn.attention.varlen import varlen_attn

from bertkit.batch import IGNORED
from bertkit.model import kernels
from bertkit.model.attention import attend
from bertkit.model.layout import Layout
from bertkit.run.objective import _masked_lm_loss


@pytest.fixture(autouse=True)
def every_kernel() -> Iterator[None]:
    before = kernels.in_use()
    kernels.use(kernels.NAMES)
    yield
    kernels.use(before)


@pytest.mark.parametrize(
    ("rows", "inner", "outer"), [(0, 7, 13), (1, 7, 13), (17, 64, 31), (131, 96, 257), (5, 7, 9001)]
)
@pytest.mark.parametrize("has_bias", [True, False])
def test_linear_and_its_gradients(rows: int, inner: int, outer: int, has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(rows)
    values = [torch.randn(*shape, generator=generator) for shape in ((rows, inner), (outer, inner), (outer,))]
    weights = torch.randn(rows, outer, generator=generator)
    found = []
    for function in (kernels.linear, F.linear):
        inputs, weight, bias = (value.clone().requires_grad_() for value in values)
        output = function(inputs, weight, bias if has_bias else None)
        (output * weights).sum().backward()
        found.append([output.detach(), inputs.grad, weight.grad, *([bias.grad] if has_bias else [])])
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-4)


def test_linear_of_parameters_that_are_frozen_and_of_a_gradient_that_is_not_contiguous() -> None:
    inputs, weight, bias = torch.randn(5, 3, requires_grad=True), torch.randn(4, 3), torch.randn(4)
    kernels.linear(inputs, weight, bias).t().sum(0).sum().backward()
    torch.testing.assert_close(inputs.grad, weight.sum(0).expand(5, 3))
    assert weight.grad is None


@pytest.mark.parametrize(
    ("rows", "even"),
    [(0, 0), (1, 1), (31, 31), (63, 63), (65, 66), (127, 128), (2047, 2048), (2049, 2112), (5000, 5120)],
)
def test_rows_are_rounded_up_where_onednn_computes(rows: int, even: int) -> None:
    values = torch.randn(rows, 3)
    found = kernels.even_rows(values)
    assert found.shape == (even, 3)
    assert torch.equal(found[:rows], values)
    assert not found[rows:].any()
    assert len(kernels.even_rows(values.double())) == rows
    kernels.use({"even_rows"})
    assert len(kernels.even_rows(values)) == rows


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_with_rounded_rows(precision: str) -> None:
    """Logits, every hidden state and every gradient are those of the tokens alone."""
    model = small_model().eval()
    lengths, found = torch.tensor([30, 41, 30]), []
    ids, masked = torch.randint(model.config.vocab_size, (101,)), torch.tensor([3, 50, 100])
    for names in (kernels.NAMES, tuple(set(kernels.NAMES) - {"even_rows"})):
        kernels.use(names)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            output = model(ids, ids % 2, Layout.from_lengths(lengths), masked, output_hidden_states=True)
        model.zero_grad()
        torch.stack([logits.float().square().mean() for logits in output.logits.values()]).sum().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        found.append([*output.hidden_states, *output.logits.values(), *gradients])
    for ours, plain in zip(*found, strict=True):
        assert ours.shape == plain.shape
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5 if precision == "fp32" else 2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 8, 29])
def test_the_loss_and_its_gradient_in_place_of_the_logits(rows: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows)
    values = (20 * torch.randn(rows, 301, generator=generator)).to(dtype)
    labels = torch.randint(301, (rows,), generator=generator)
    labels[2::5] = IGNORED
    found = []
    for in_place in (True, False):
        inputs = values.clone().requires_grad_()
        logits = inputs * 1  # no leaf, as those of a model
        kernels.use(kernels.NAMES if in_place else ())
        assert kernels.takes_loss(logits) is in_place
        term = _masked_lm_loss(logits, labels, rows)
        (term.sum / 7).backward()
        assert torch.equal(logits, values) is (not in_place or not rows)
        found.append((term.sum.detach(), term.correct, inputs.grad))
    (ours, right, gradient), (plain, right_plainly, plain_gradient) = found
    assert ours.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(gradient, plain_gradient)
    assert right == right_plainly


def test_the_logits_of_an_evaluation_stay() -> None:
    with torch.no_grad():
        assert not kernels.takes_loss(torch.randn(3, 5, requires_grad=True) * 1)


@pytest.mark.parametrize("prob", [0.1, 0.5, 0.9])
def test_dropout_has_its_probability(prob: float) -> None:
    torch.manual_seed(1)
    dropped = kernels.dropout(torch.ones(10_000_001), prob)
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
        outputs.append(kernels.dropout(inputs, 0.3))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    (gradient,) = torch.autograd.grad(outputs[0].sum(), inputs)
    scale = 65536 / (65536 - round(0.3 * 65536))
    assert torch.equal(gradient, torch.where(outputs[0] == 0, 0.0, torch.tensor(scale)))
    torch.testing.assert_close(outputs[0].detach(), inputs.detach() * gradient)


def test_attention_drops_in_the_mean_nothing() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 11, 8) for _ in range(3))
    plain = F.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(kernels.attention(query, key, value, 0.0), plain)
    mean = sum(kernels.attention(query, key, value, 0.2) for _ in range(4000)) / 4000
    assert float((mean - plain).abs().max()) < 0.1
    assert float((kernels.attention(query, key, value, 0.2) - plain).abs().max()) > 0.1


def leaves(lengths: list[int], dtype: torch.dtype = torch.float64, device: str = "cpu") -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(lengths))
    made = [torch.randn(sum(lengths), 3, 8, generator=generator) for _ in range(3)]
    return [tensor.to(device, dtype).requires_grad_() for tensor in made]


@pytest.mark.parametrize("lengths", [[5, 7, 7, 3, 11, 1], [4, 4, 4], [9]])
def test_padded_attention_is_that_of_each_sequence(lengths: list[int]) -> None:
    layout = Layout.from_lengths(torch.tensor(lengths))
    weights = torch.randn(sum(lengths), 3, 8, dtype=torch.float64)
    found = []
    for function in (kernels.padded_attention, attend):
        given = leaves(lengths)
        context = function(*given, layout, 0.0)
        (context * weights).sum().backward()
        found.append([context.detach(), *(tensor.grad for tensor in given)])
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)


def test_padded_attention_drops_each_weight_with_its_probability() -> None:
    """With equal scores and values of one, the context is the share of kept weights over their expected share."""
    torch.manual_seed(0)
    lengths = [1] * 20_000 + [64] * 40
    layout = Layout.from_lengths(torch.tensor(lengths))
    zeros, ones = torch.zeros(sum(lengths), 2, 8), torch.ones(sum(lengths), 2, 8)
    context = kernels.padded_attention(zeros, zeros, ones, layout, 0.1)[..., 0]
    single = context[:20_000]  # one weight each: dropped or kept
    assert abs(float((single == 0).double().mean()) - 0.1) < 0.005
    assert set((single * 0.9).round(decimals=5).unique().tolist()) == {0.0, 1.0}
    assert abs(float(context.double().mean()) - 1) < 0.005


def test_variable_length_attention_takes_what_it_is_given() -> None:
    """Shapes and types alone: the kernel is CUDA's."""
    lengths = [5, 7, 3]
    layout = Layout.from_lengths(torch.tensor(lengths))
    bounds = layout.bounds.to("meta")
    given = leaves(lengths, torch.bfloat16, "meta")
    context = varlen_attn(*given, bounds, bounds, layout.longest, layout.longest)
    context.sum().backward()
    assert (context.shape, context.dtype) == ((15, 3, 8), torch.bfloat16)
    assert [tensor.grad.shape for tensor in given] == [(15, 3, 8)] * 3
    assert not kernels.takes_packed(leaves(lengths)[0])


def test_other_types_and_autocast_take_the_plain_way() -> None:
    inputs, weight = torch.randn(5, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    assert torch.equal(kernels.linear(inputs, weight), F.linear(inputs, weight))
    with torch.autocast("cpu", torch.bfloat16):
        assert kernels.linear(inputs.float(), weight.float()).dtype == torch.bfloat16


def test_none_can_be_chosen() -> None:
    assert kernels.choose("plain") == ()
    assert set(kernels.ALWAYS_FASTER) <= set(kernels.choose("auto")) <= set(kernels.NAMES)
    kernels.use(())
    torch.manual_seed(5)
    ours = kernels.dropout(torch.ones(100), 0.5)
    torch.manual_seed(5)
    assert torch.equal(ours, F.dropout(torch.ones(100), 0.5))
