"""Sequences in one batch never see each other, nor slack; on CUDA neither, as far as a CPU can compute it (test_gpu.py has the rest)."""

import numpy as np
import pytest
import torch
from conftest import small_model

from bertkit.kernels import sequences
from bertkit.kernels.fast import ALL, PLAIN, FastWays
from bertkit.kernels.layout import Layout
from bertkit.model.attention import Weighing, attend_fast
from bertkit.model.geometry import Geometry
from bertkit.model.heads import BertWithHeads
from bertkit.model.patterns import CAUSAL
from bertkit.model.slots import FULL, Pattern

LENGTHS = [5, 7, 7, 3, 11, 11, 11, 2]


def within(lengths: list[int], num_slack: int = 0, is_padded: bool = False) -> Geometry:
    layout = Layout.from_lengths(torch.tensor(lengths), num_slack=num_slack)
    return Geometry(layout, layout, is_padded=is_padded)


def batch(lengths: list[int], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(high, (sum(lengths),), generator=generator) for high in (131, 2))


def forward(model: BertWithHeads, ids: torch.Tensor, types: torch.Tensor, lengths: list[int]):
    with torch.no_grad():
        return model(ids, types, Layout.from_lengths(torch.tensor(lengths))).logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_another_pair_changes_nothing_not_even_a_bit(dtype: torch.dtype) -> None:
    model = small_model().to(dtype).eval()
    ids, types = batch(LENGTHS)
    before = forward(model, ids, types, LENGTHS)
    ends = np.cumsum(LENGTHS)
    for changed, (end, length) in enumerate(zip(ends, LENGTHS, strict=True)):
        other_ids, other_types = ids.clone(), types.clone()
        other_ids[end - length : end] = (ids[end - length : end] + 17) % 131
        other_types[end - length : end] = 1 - types[end - length : end]
        after = forward(model, other_ids, other_types, LENGTHS)
        kept = torch.ones(sum(LENGTHS), dtype=torch.bool)
        kept[end - length : end] = False
        assert torch.equal(after["masked_lm"][kept], before["masked_lm"][kept])
        assert not torch.isclose(after["masked_lm"][~kept], before["masked_lm"][~kept]).all(1).any()
        others = torch.arange(len(LENGTHS)) != changed
        assert torch.equal(after["next_sentence"][others], before["next_sentence"][others])
        assert not torch.equal(after["next_sentence"][changed], before["next_sentence"][changed])


@pytest.mark.parametrize("fast", [ALL, PLAIN])
def test_attention_drops_in_the_mean_nothing(fast: FastWays) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(22, 3, 8) for _ in range(3))
    geometry = within([11, 11])
    plain = attend_fast(query, key, value, geometry, Weighing(fast=fast))
    mean = sum(attend_fast(query, key, value, geometry, Weighing(0.2, fast)) for _ in range(4000)) / 4000
    assert float((mean - plain).abs().max()) < 0.1
    assert float((attend_fast(query, key, value, geometry, Weighing(0.2, fast)) - plain).abs().max()) > 0.1


def test_nothing_flows_into_slack_or_out_of_it() -> None:
    values = [torch.randn(15, 3, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    context = attend_fast(*values, within([5, 7], num_slack=3))
    alone = attend_fast(*(each[:12] for each in values), within([5, 7]))
    torch.testing.assert_close(context[:12], alone, rtol=0, atol=1e-12)
    context[:12].square().sum().backward()
    assert all(each.grad is not None and not each.grad[12:].any() and each.grad[:12].any() for each in values)


def leaves(lengths: list[int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(lengths))
    made = [torch.randn(sum(lengths), 3, 8, generator=generator, dtype=torch.float64) for _ in range(3)]
    return [tensor.requires_grad_() for tensor in made]


@pytest.mark.parametrize("lengths", [[5, 7, 7, 3, 11, 1], [4, 4, 4], [9]])
def test_padded_attention_is_that_of_each_sequence(lengths: list[int]) -> None:
    weights = torch.randn(sum(lengths), 3, 8, dtype=torch.float64)
    results = []
    for is_padded in (True, False):
        tensors = leaves(lengths)
        context = attend_fast(*tensors, within(lengths, is_padded=is_padded))
        (context * weights).sum().backward()
        results.append([context.detach(), *(tensor.grad for tensor in tensors)])
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("fast", [ALL, PLAIN])
def test_padded_attention_drops_each_weight_with_its_probability(fast: FastWays) -> None:
    """With equal scores and values of one, the context is the share of kept weights over their expected share."""
    torch.manual_seed(0)
    lengths = [1] * 5_000 + [16] * 300
    zeros, ones = torch.zeros(sum(lengths), 2, 8), torch.ones(sum(lengths), 2, 8)
    context = attend_fast(zeros, zeros, ones, within(lengths, is_padded=True), Weighing(0.1, fast))[..., 0]
    single = context[:5_000]  # one weight for each of two heads: dropped or kept
    assert abs(float((single == 0).double().mean()) - 0.1) < 0.012
    assert set((single * 0.9).round(decimals=4).unique().tolist()) == {0.0, 1.0}
    assert abs(float(context.double().mean()) - 1) < 0.012


@pytest.mark.parametrize("pattern", [FULL, CAUSAL])
@pytest.mark.parametrize("lengths", [[5, 7, 7, 3, 11, 1], [8, 8, 8, 8], [3]])
def test_attention_by_sequence_is_that_of_torch(
    pattern: Pattern, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "random_mask", lambda shape, prob: (torch.ones(shape, dtype=torch.uint8), 1.0))
    layout, weights = Layout.from_lengths(torch.tensor(lengths)), torch.randn(sum(lengths), 3, 8, dtype=torch.float64)
    results = []
    for fast, prob in ((PLAIN, 0.0), (FastWays(own_attention=True), 0.1)):
        tensors = leaves(lengths)
        context = attend_fast(*tensors, Geometry(layout, layout, pattern), Weighing(prob, fast))
        (context * weights).sum().backward()
        results.append([context.detach(), *(tensor.grad for tensor in tensors)])
    for plain, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)


def test_attention_by_sequence_reads_another_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries of 3, 3 and 5 tokens, keys of 7, 2 and 11, then slack."""
    monkeypatch.setattr(sequences, "random_mask", lambda shape, prob: (torch.ones(shape, dtype=torch.uint8), 1.0))
    queries, keys = (Layout.from_lengths(torch.tensor(each), num_slack=2) for each in ([3, 3, 5], [7, 2, 11]))
    geometry, results = Geometry(queries, keys), []
    for fast, prob in ((PLAIN, 0.0), (FastWays(own_attention=True), 0.1)):
        (query,), (_, key, value) = leaves([13])[:1], leaves([22])
        context = attend_fast(query, key, value, geometry, Weighing(prob, fast))
        (context * torch.arange(8)).sum().backward()
        results.append([context.detach(), *(tensor.grad for tensor in (query, key, value))])
    for plain, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)


def test_gradients_of_attention_by_sequence_are_those_of_the_weights_it_kept() -> None:
    """Beside differences of outputs, with the same elements dropped."""
    layout = Layout.from_lengths(torch.tensor([5, 7, 7, 3, 11, 1]))

    def context(*tensors: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return attend_fast(*tensors, Geometry(layout, layout), Weighing(0.3, FastWays(own_attention=True)))

    assert torch.autograd.gradcheck(context, leaves(layout.lengths), fast_mode=True)


def test_attention_by_sequence_drops_each_weight_with_its_probability() -> None:
    """With equal scores and one-hot values, the context is the weights."""
    torch.manual_seed(0)
    count, size, heads = 64, 64, 4
    zeros, values = (
        torch.zeros(count * size, heads, size),
        torch.eye(size).repeat(count, 1)[:, None].repeat(1, heads, 1),
    )
    context = attend_fast(zeros, zeros, values, within([size] * count), Weighing(0.1, FastWays(own_attention=True)))
    weights = context.view(count, size, heads, size) * size
    assert set((weights * 0.9).round(decimals=4).unique().tolist()) == {0.0, 1.0}
    is_dropped = (weights == 0).double()
    assert abs(float(is_dropped.mean()) - 0.1) < 0.001
    assert abs(float(weights.double().mean()) - 1) < 0.001
    for axis in range(4):  # whatever the sequence, the query, the head or the key
        others = [other for other in range(4) if other != axis]
        shares = is_dropped.mean(others)
        assert float((shares - 0.1).abs().max()) < 5 * (0.09 / (weights.numel() / len(shares))) ** 0.5
    assert 0.008 < float((is_dropped[0] * is_dropped[1]).mean()) < 0.012  # sequences drop independently


@pytest.mark.parametrize("prob", [0.0, 0.1])
@pytest.mark.parametrize("is_autocast", [True, False])
def test_training_on_a_cpu_computes_attention_of_half_precision_in_float32(prob: float, is_autocast: bool) -> None:
    layout = Layout.from_lengths(torch.tensor([5, 70, 70, 3, 110, 1]))
    halves, weights = [each.bfloat16() for each in leaves(layout.lengths)], torch.randn(259, 3, 8).bfloat16()
    results = []
    for dtype in (torch.bfloat16, torch.float32):
        torch.manual_seed(0)
        tensors = [each.detach().to(dtype).requires_grad_() for each in halves]
        with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast and dtype == torch.bfloat16):
            context = attend_fast(*tensors, Geometry(layout, layout), Weighing(prob))
        assert context.dtype == dtype
        context.backward(weights.to(dtype))
        results.append([context.detach(), *(each.grad for each in tensors)])
    for ours, exact in zip(*results, strict=True):
        assert torch.equal(ours, exact.bfloat16())


def test_variable_length_attention_takes_what_it_is_given() -> None:
    """Shapes and types alone: the kernel is CUDA's."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    layout = Layout.from_lengths(torch.tensor([5, 7, 3]))
    bounds = layout.bounds.to("meta")
    tensors = [torch.zeros(15, 3, 8, dtype=torch.bfloat16, device="meta", requires_grad=True) for _ in range(3)]
    context = varlen.varlen_attn(*tensors, bounds, bounds, layout.longest, layout.longest)
    context.sum().backward()
    assert (context.shape, context.dtype) == ((15, 3, 8), torch.bfloat16)
    assert [tensor.grad.shape for tensor in tensors] == [(15, 3, 8)] * 3
