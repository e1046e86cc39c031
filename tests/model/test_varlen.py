"""Attention as CUDA computes it, as far as a CPU can: padded, and by shapes alone; tests/test_gpu.py has the rest."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.varlen import varlen_attn

from bertkit.kernels.layout import Layout
from bertkit.kernels.varlen import attend_padded
from bertkit.model.attention import attend


def leaves(lengths: list[int], dtype: torch.dtype = torch.float64, device: str = "cpu") -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(lengths))
    made = [torch.randn(sum(lengths), 3, 8, generator=generator) for _ in range(3)]
    return [tensor.to(device, dtype).requires_grad_() for tensor in made]


@pytest.mark.parametrize("lengths", [[5, 7, 7, 3, 11, 1], [4, 4, 4], [9]])
def test_padded_attention_is_that_of_each_sequence(lengths: list[int]) -> None:
    layout = Layout.from_lengths(torch.tensor(lengths))
    weights = torch.randn(sum(lengths), 3, 8, dtype=torch.float64)
    found = []
    for function in (attend_padded, attend):
        given = leaves(lengths)
        context = function(*given, layout, 0.0)
        (context * weights).sum().backward()
        found.append([context.detach(), *(tensor.grad for tensor in given)])
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)


def test_padded_attention_drops_each_weight_with_its_probability() -> None:
    """With equal scores and values of one, the context is the share of kept weights over their expected share."""
    torch.manual_seed(0)
    lengths = [1] * 5_000 + [16] * 300
    layout = Layout.from_lengths(torch.tensor(lengths))
    zeros, ones = torch.zeros(sum(lengths), 2, 8), torch.ones(sum(lengths), 2, 8)
    context = attend_padded(zeros, zeros, ones, layout, 0.1)[..., 0]
    single = context[:5_000]  # one weight each, of two heads: dropped or kept
    assert abs(float((single == 0).double().mean()) - 0.1) < 0.012
    assert set((single * 0.9).round(decimals=5).unique().tolist()) == {0.0, 1.0}
    assert abs(float(context.double().mean()) - 1) < 0.012


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
