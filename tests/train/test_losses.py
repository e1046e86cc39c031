"""The loss in place beside the plain one: the same value, the same gradient."""

import pytest
import torch

from bertkit.base.batch import IGNORED
from bertkit.train.losses import cross_entropy, cross_entropy_in_place


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("rows", "classes"), [(0, 301), (1, 301), (8, 301), (29, 301), (149, 3001)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_and_its_gradient_in_place_of_the_logits(
    rows: int, classes: int, smoothing: float, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(rows)
    values = (20 * torch.randn(rows, classes, generator=generator)).to(dtype)
    labels = values.argmax(1).where(torch.arange(rows) % 3 > 0, 17)
    labels[2::5] = IGNORED
    results = []
    for in_place in (True, False):
        inputs = values.clone().requires_grad_()
        logits = inputs * 1  # no leaf, as those of a model
        compute = cross_entropy_in_place if in_place else cross_entropy
        term = compute(logits, labels, count=rows, label_smoothing=smoothing)
        (term.sum / 7).backward()
        assert torch.equal(logits, values) is (not in_place or not rows)
        results.append((term.sum.detach(), term.correct, inputs.grad))
    (ours, right, gradient), (plain, right_plainly, plain_gradient) = results
    assert ours.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(gradient, plain_gradient)
    assert right == right_plainly >= rows // 3
    assert rows == 0 or gradient.float().sum(1).abs().max() < (3e-2 if dtype == torch.bfloat16 else 1e-5)


def test_the_logits_of_an_evaluation_stay() -> None:
    logits, labels = torch.randn(3, 5, requires_grad=True), torch.tensor([1, 4, 0])
    with torch.no_grad():
        before = logits.clone()
        term = cross_entropy_in_place(logits, labels, 3)
    assert torch.equal(logits, before)
    assert float(term.sum) == float(cross_entropy(before, labels).sum.detach())


@pytest.mark.parametrize("smoothing", [0.1, 0.37])
@pytest.mark.parametrize("rows", [0, 1, 29])
def test_smoothed_labels_are_those_of_torch_and_of_the_definition(rows: int, smoothing: float) -> None:
    """Both losses, and their gradients: of 13 classes each has smoothing / 13, the label 1 - smoothing more."""
    generator = torch.Generator().manual_seed(rows)
    values = 5 * torch.randn(rows, 13, generator=generator, dtype=torch.float64)
    labels = torch.randint(13, (rows,), generator=generator)
    labels[2::5] = IGNORED
    is_known = labels != IGNORED
    shares = torch.full((rows, 13), smoothing / 13, dtype=torch.float64)
    shares[is_known, labels[is_known]] += 1 - smoothing
    expected = -(shares * torch.log_softmax(values, 1)).sum(1)[is_known].sum()
    of_logits = (torch.softmax(values, 1) - shares) * is_known[:, None]
    loss = torch.nn.CrossEntropyLoss(label_smoothing=smoothing, reduction="sum")
    for compute in (cross_entropy, cross_entropy_in_place, None):
        inputs = values.clone().requires_grad_()
        logits = inputs * 1
        total = (
            loss(logits, labels) if compute is None else compute(logits, labels, count=7, label_smoothing=smoothing).sum
        )
        (total / 7).backward()
        torch.testing.assert_close(total.detach(), expected, rtol=1e-13, atol=1e-12)
        torch.testing.assert_close(inputs.grad, of_logits / 7, rtol=0, atol=1e-14)
