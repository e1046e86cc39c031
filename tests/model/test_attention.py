"""Attention beside a loop in numpy; sequences in one batch never see each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from conftest import small_model

from bertkit.kernels.fast import ALL, PLAIN, FastWays
from bertkit.kernels.layout import Layout
from bertkit.model.attention import MultiHeadAttention, attend
from bertkit.model.config import BertConfig
from bertkit.model.heads import BertWithHeads
from bertkit.model.slots import Slots

LENGTHS = [5, 7, 7, 3, 11, 11, 11, 2]


def reference(query: np.ndarray, key: np.ndarray, value: np.ndarray, lengths: list[int]) -> np.ndarray:
    """The equation, token by token and head by head."""
    context = np.zeros_like(query)
    num_heads, head_size = query.shape[1:]
    first = 0
    for length in lengths:
        for token in range(first, first + length):
            for head in range(num_heads):
                scores = [
                    query[token, head] @ key[other, head] / math.sqrt(head_size)
                    for other in range(first, first + length)
                ]
                weights = np.exp(np.array(scores) - max(scores))
                weights /= weights.sum()
                for other, weight in enumerate(weights):
                    context[token, head] += weight * value[first + other, head]
        first += length
    return context


def test_attend_is_the_equation() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(sum(LENGTHS), 3, 13, generator=generator).double() for _ in range(3))
    context = attend(query, key, value, Layout.from_lengths(torch.tensor(LENGTHS)))
    expected = reference(query.numpy(), key.numpy(), value.numpy(), LENGTHS)
    assert context.shape == (sum(LENGTHS), 3, 13)
    np.testing.assert_allclose(context.numpy(), expected, rtol=0, atol=1e-12)


def test_keeping_the_weights_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(sum(LENGTHS), 3, 13, generator=generator).double() for _ in range(3))
    layout = Layout.from_lengths(torch.tensor(LENGTHS))
    kept: list[torch.Tensor] = []
    context = Slots(small_model().config).attend_keeping(query, key, value, layout, kept)
    (weights,) = kept
    assert float((context - attend(query, key, value, layout)).abs().max()) <= 1e-12
    assert weights.shape == (len(LENGTHS), 3, 11, 11)
    for row, length in zip(weights, LENGTHS, strict=True):
        assert float((row[:, :length, :length].sum(-1) - 1).abs().max()) <= 1e-12
        assert float(row.sum()) == pytest.approx(3 * length)  # nothing elsewhere


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


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_packed_is_one_by_one(dtype: torch.dtype, tolerance: float) -> None:
    model = small_model().to(dtype).eval()
    ids, types = batch(LENGTHS)
    packed = forward(model, ids, types, LENGTHS)
    one_by_one = [forward(model, i, t, [len(i)]) for i, t in zip(ids.split(LENGTHS), types.split(LENGTHS), strict=True)]
    for head in ("masked_lm", "next_sentence"):
        together = torch.cat([logits[head] for logits in one_by_one])
        assert float((packed[head] - together).abs().max()) <= tolerance


def config(prob: float) -> BertConfig:
    shape = vars(small_model().config)
    return BertConfig(**{**shape, "attention_probs_dropout_prob": prob})


def test_dropout_only_in_training() -> None:
    torch.manual_seed(0)
    attention = MultiHeadAttention(config(0.5))
    same = MultiHeadAttention(config(0.0))
    same.load_state_dict(attention.state_dict())
    hidden, layout = torch.randn(12, 26), Layout.from_lengths(torch.tensor([5, 7]))
    assert torch.equal(attention.eval()(hidden, layout), same(hidden, layout))
    torch.manual_seed(1)
    first, second = attention.train()(hidden, layout), attention(hidden, layout)
    assert not torch.allclose(first, second)
    torch.manual_seed(1)
    assert torch.equal(attention(hidden, layout), first)


def test_dropped_weights_are_scaled_up() -> None:
    """With equal scores and values of one, the context is the mean of the kept weights: 0, 1/T * 2, ..."""
    torch.manual_seed(0)
    zeros, ones = torch.zeros(4000, 1, 2), torch.ones(4000, 1, 2)
    context = attend(zeros, zeros, ones, Layout.from_lengths(torch.full((1000,), 4)), dropout_prob=0.5)
    assert set((context * 2).unique().tolist()) == {0.0, 1.0, 2.0, 3.0, 4.0}
    assert abs(float(context.mean()) - 1) < 0.03


@pytest.mark.parametrize("fast", [ALL, PLAIN])
def test_attention_drops_in_the_mean_nothing(fast: FastWays) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(22, 3, 8) for _ in range(3))
    layout = Layout.from_lengths(torch.tensor([11, 11]))
    plain = attend(query, key, value, layout, fast=fast)
    mean = sum(attend(query, key, value, layout, 0.2, fast) for _ in range(4000)) / 4000
    assert float((mean - plain).abs().max()) < 0.1
    assert float((attend(query, key, value, layout, 0.2, fast) - plain).abs().max()) > 0.1


def test_nothing_flows_into_slack_or_out_of_it() -> None:
    values = [torch.randn(15, 3, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    context = attend(*values, Layout.from_lengths(torch.tensor([5, 7]), num_slack=3))
    alone = attend(*(each[:12] for each in values), Layout.from_lengths(torch.tensor([5, 7])))
    torch.testing.assert_close(context[:12], alone, rtol=0, atol=1e-12)
    context[:12].square().sum().backward()
    assert all(each.grad is not None and not each.grad[12:].any() and each.grad[:12].any() for each in values)
