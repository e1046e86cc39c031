"""The loss in place beside the plain one: the same value, the same gradient."""

from __future__ import annotations

import pytest
import torch

from bertkit.batch import IGNORED
from bertkit.train.losses import cross_entropy, cross_entropy_in_place


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
        term = (cross_entropy_in_place if in_place else cross_entropy)(logits, labels, count=rows)
        (term.sum / 7).backward()
        assert torch.equal(logits, values) is (not in_place or not rows)
        found.append((term.sum.detach(), term.correct, inputs.grad))
    (ours, right, gradient), (plain, right_plainly, plain_gradient) = found
    assert ours.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(gradient, plain_gradient)
    assert right == right_plainly


def test_the_logits_of_an_evaluation_stay() -> None:
    logits, labels = torch.randn(3, 5, requires_grad=True), torch.tensor([1, 4, 0])
    with torch.no_grad():
        before = logits.clone()
        term = cross_entropy_in_place(logits, labels, 3)
    assert torch.equal(logits, before)
    assert float(term.sum) == float(cross_entropy(before, labels).sum.detach())
