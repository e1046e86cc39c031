"""The losses of the task heads: sums and counts beside torch's means, on numbers and on cut-up batches."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from batches import masked_batch
from conftest import small_model

from bertkit.base.batch import IGNORED, Batch, Target
from bertkit.base.errors import InputError
from bertkit.kernels.fast import ALL, ANYWHERE, PLAIN
from bertkit.objectives.losses import DeviceInputs, batch_losses, best_tokens, outputs, task_logits

LENGTHS = np.array([3, 5, 7, 2])
IDS = np.random.default_rng(0).integers(5, 131, 17)
TAGS = np.where(np.arange(17) % 3 == 0, np.arange(17) % 2, -100)
SPANS = np.array([[0, 2], [1, 1], [0, 0], [1, 1]])
WEIGHTS = np.array([0.25, 3.0])


def batch_of(head: str, labels: object, weights: np.ndarray | None = None) -> Batch:
    return Batch(IDS, np.zeros(17, np.int64), LENGTHS, {head: Target(np.array(labels), weights=weights)})


def plain_loss(batch: Batch, logits: list[np.ndarray]) -> torch.Tensor:
    """The mean loss as torch gives it, sequence by sequence."""
    ((head, target),) = batch.targets.items()
    labels = torch.from_numpy(target.labels)
    weight = None if target.weights is None else torch.from_numpy(target.weights).float()
    rows = [torch.from_numpy(part) for part in logits]
    if head == "span":
        parts = [F.cross_entropy(row.T, label) for row, label in zip(rows, labels, strict=True)]
        return torch.stack(parts).mean()  # rows (2, T) against (2,): the mean of start and end
    if head == "token":
        return F.cross_entropy(torch.cat(rows), labels, weight)
    outputs = torch.stack(rows)
    if head == "choice":
        return F.cross_entropy(outputs.view(-1, 2), labels)
    if labels.is_floating_point() and labels.ndim == 1:
        return F.mse_loss(outputs[:, 0].double(), labels)
    if labels.is_floating_point():
        return F.binary_cross_entropy_with_logits(outputs.double(), labels)
    return F.cross_entropy(outputs, labels, weight)


BATCHES = {
    "sequence": batch_of("sequence", [1, 0, 1, 1]),
    "weighted sequence": batch_of("sequence", [1, 0, 1, 1], weights=WEIGHTS),
    "regression": batch_of("sequence", [0.5, 2.0, 0.25, 1.0]),
    "several labels": batch_of("sequence", [[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]),
    "token": batch_of("token", TAGS),
    "weighted token": batch_of("token", TAGS, weights=WEIGHTS),
    "span": batch_of("span", SPANS),
    "choice": batch_of("choice", [1, 0]),
}


@pytest.mark.parametrize("name", BATCHES)
def test_loss_is_that_of_torch(name: str) -> None:
    batch = BATCHES[name]
    labels = ("score",) if name == "regression" else ("no", "yes")
    (head,) = batch.targets
    model = small_model(heads=(head,), labels=labels, with_pooler=head in ("sequence", "choice"))
    output = task_logits(model, batch, head)
    logits, loss = output.logits, output.loss
    term = batch_losses(model, batch)[head]
    assert loss is not None
    assert float(loss.sum) == pytest.approx(float(term.sum.detach()), rel=1e-6)
    assert (loss.count, loss.sum.requires_grad) == (term.count, False)
    assert term.count == pytest.approx(batch.loss_counts[head])
    assert float(term.sum.detach() / term.count) == pytest.approx(float(plain_loss(batch, logits)), rel=1e-6)
    assert term.sum.requires_grad
    if name == "regression":
        assert term.correct is None
    else:
        assert term.correct is not None
        assert 0 <= float(term.correct) <= term.count


def test_right_predictions_are_counted() -> None:
    model = small_model(heads=("span",), with_pooler=False)
    best = np.array([row.argmax(0) for row in task_logits(model, BATCHES["span"], "span").logits])
    for labels, expected in ((best, 4), (best + np.array([[1, 0], [0, 0], [0, 0], [0, 0]]), 3)):
        correct = batch_losses(model, batch_of("span", labels % LENGTHS[:, None]))["span"].correct
        assert correct is not None
        assert int(correct) == expected
    model = small_model(heads=("token",), with_pooler=False, labels=("no", "yes"))
    best = np.concatenate([row.argmax(1) for row in task_logits(model, BATCHES["token"], "token").logits])
    right = np.where(TAGS == -100, -100, best)
    for weights, expected in ((None, 6.0), (WEIGHTS, WEIGHTS[best[TAGS != -100]].sum())):
        correct = batch_losses(model, batch_of("token", right, weights=weights))["token"].correct
        assert correct is not None
        assert float(correct) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rows", "even"),
    [(0, 0), (1, 1), (31, 31), (63, 63), (65, 66), (127, 128), (2047, 2048), (2049, 2112), (5000, 5120)],
)
def test_rows_are_rounded_up_where_onednn_computes(rows: int, even: int) -> None:
    model = small_model()
    ids = np.arange(rows)
    for fast, precision, expected in (
        (ALL, "fp32", even),
        (ANYWHERE, "bf16", even),
        (ANYWHERE, "fp32", rows),
        (PLAIN, "bf16", rows),
    ):
        model.use(fast)
        actual = DeviceInputs.of(model, precision).rows(ids, IGNORED)
        assert len(actual) == expected
        assert actual[:rows].tolist() == ids.tolist()
        assert actual[rows:].tolist() == [IGNORED] * (expected - rows)
    model.use(ALL)
    assert len(DeviceInputs.of(model.double(), "fp32").rows(ids)) == rows


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_rounded_rows_change_no_loss_and_no_gradient(precision: str) -> None:
    """Losses, logits and every gradient are those of the tokens alone."""
    model, results = small_model().eval(), []
    ids, lengths = np.random.default_rng(0).integers(5, 131, 129), np.array([30, 39, 30, 30])
    batch = masked_batch(ids, ids % 2, lengths, np.arange(99), ids[:99], np.array([0, 1, 0, 0]))
    for fast in (ALL, dataclasses.replace(ALL, even_rows=False)):
        model.use(fast)
        assert DeviceInputs.of(model, precision).num_slack(129) == (3 if fast.even_rows else 0)
        model.zero_grad()
        terms = batch_losses(model, batch, precision)
        sum(term.sum / term.count for term in terms.values()).backward()
        best, shares = best_tokens(model, batch, 3, precision)
        assert best.shape == shares.shape == (99, 3)
        gradients = [parameter.grad for parameter in model.parameters()]
        results.append([*(term.sum.detach() for term in terms.values()), torch.from_numpy(shares), *gradients])
    for ours, plain in zip(*results, strict=True):
        assert ours.shape == plain.shape
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5 if precision == "fp32" else 2e-2)


@pytest.mark.parametrize("name", ["token", "span", "sequence"])
def test_logits_of_rounded_rows_are_those_of_the_tokens(name: str) -> None:
    lengths = np.array([30, 39, 30, 30])
    ids = np.random.default_rng(0).integers(5, 131, 129)
    batch = Batch(ids, ids % 2, lengths)
    model = small_model(heads=(name,), with_pooler=name == "sequence").eval()
    results = []
    for fast in (ALL, PLAIN):
        model.use(fast)
        results.append(task_logits(model, batch, name).logits)
    for ours, plain in zip(*results, strict=True):
        np.testing.assert_allclose(ours, plain, atol=1e-5)


def test_a_target_may_stand_anywhere_and_its_labels_may_be_ignored() -> None:
    """The order of targets changes no loss, also beside one with places of its own; ignored labels are not counted."""
    model = small_model(heads=("masked_lm",), with_pooler=False)
    masks, more = Target(IDS[:3], np.array([1, 4, 9])), Target(np.ones(2), np.array([0, 2]))
    batches = [
        Batch(IDS, 0 * IDS, LENGTHS, targets)
        for targets in ({"masked_lm": masks, "more": more}, {"more": more, "masked_lm": masks})
    ]
    first, second = (batch_losses(model, batch)["mlm"] for batch in batches)
    assert torch.equal(first.sum, second.sum)
    part = Target(np.array([IDS[0], IGNORED, IDS[2]]), masks.positions)
    term = batch_losses(model, Batch(IDS, 0 * IDS, LENGTHS, {"masked_lm": part}))["mlm"]
    assert term.count == part.count == 2


@pytest.mark.parametrize("head", ["masked_lm", "sequence", "token"])
def test_weights_and_smoothing_are_those_of_torch_for_any_label_numbers(head: str) -> None:
    model = small_model(heads=(head,), with_pooler=head == "sequence", labels=("no", "yes"))
    size = 131 if head == "masked_lm" else 2
    weights = np.random.default_rng(1).random(size) + 0.1
    labels = {"masked_lm": IDS[:3], "sequence": np.array([1, 0, 1, 1]), "token": TAGS}[head]
    places = np.array([1, 4, 9]) if head == "masked_lm" else None
    for given, smoothing in ((weights, 0.0), (None, 0.3), (weights, 0.3)):
        target = Target(labels, places, given, smoothing)
        batch = Batch(IDS, 0 * IDS, LENGTHS, {head: target})
        (term,) = batch_losses(model, batch).values()
        logits = outputs(model, batch).logits[head]
        weight = None if given is None else torch.from_numpy(given).float()
        loss = F.cross_entropy(
            logits[: len(labels)], torch.from_numpy(labels), weight, label_smoothing=smoothing, reduction="sum"
        )
        assert term.sum.item() == pytest.approx(loss.item(), rel=1e-5)
        assert term.count == pytest.approx(target.count)


@pytest.mark.parametrize("name", ["regression", "several labels", "span", "choice"])
def test_weights_are_refused_where_they_have_no_meaning(name: str) -> None:
    ((head, target),) = BATCHES[name].targets.items()
    model = small_model(
        heads=(head,),
        with_pooler=head in ("sequence", "choice"),
        labels=("score",) if name == "regression" else ("no", "yes"),
    )
    for change in ({"weights": WEIGHTS}, {"smoothing": 0.1}):
        batch = dataclasses.replace(BATCHES[name], targets={head: dataclasses.replace(target, **change)})
        with pytest.raises(InputError, match="takes no weights and no smoothing"):
            batch_losses(model, batch)
