"""Attributions: which tokens a prediction rests on, by integrated gradients.

Axes: T tokens of the sequence, D hidden_size, n points of a path.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.explain.explanation import Attribution
from bertkit.kernels.layout import Layout
from bertkit.model.heads import BertOutput, BertWithHeads
from bertkit.predict.answers import require_finite
from bertkit.tasks.task import Feature

FEWEST_STEPS, MOST_STEPS = 16, 256  # of a path, if not set
ENOUGH = 0.01  # of the difference of the scores: an error that needs no more steps


@dataclass(frozen=True)
class Target:
    """The score that is explained: a logit, or the sum of two, of one sequence.

    Attributes:
        what: the target in words.
        head: of the logits.
        places: (row, column) of each logit: the row is the token of a tag or an answer, else 0.
        tokens: the tokens of the target, such as those of an answer, or the explained [MASK].
    """

    what: str
    head: str
    places: tuple[tuple[int, int], ...]
    tokens: tuple[int, ...] = ()


def attribute(
    model: BertWithHeads,
    target: Target,
    feature: Feature,
    baseline: Sequence[int],
    steps: int | None,
    micro_tokens: int,
) -> Attribution:
    """Divide the difference of the target's score F from the baseline's among the tokens, by integrated gradients.

        attribution_t = sum over D of (x_t - b_t) * integral of dF / dx_t along b + a (x - b), a from 0 to 1

    x and b are token embeddings; positions and segments, which are added to them, are the same in both. The baseline has
    [PAD] for every token but [CLS] and [SEP], which are in every input, and [MASK], which carries no answer; so these get 0.
    The integral is a Gauss-Legendre sum, captum's default.

    Args:
        model: in evaluation mode, its parameters frozen.
        target: F.
        feature: x.
        baseline: the tokens of b, T of them.
        steps: points of the sum; None for as many as bring the error to `ENOUGH`, up to `MOST_STEPS`.
        micro_tokens: of one forward pass.

    Source: Sundararajan et al. 2017, Axiomatic Attribution for Deep Networks, equation 1; the attributions sum to
    F(x) - F(b) (proposition 1), which gives the error.
    """
    table = model.bert.embeddings.token.weight
    start, end = (table[torch.tensor(ids, device=table.device)].detach() for ids in (list(baseline), feature.input_ids))
    with torch.no_grad():
        scores = _score(model, target, feature, torch.stack([start, end])).double().cpu()
    low, high = scores.tolist()
    require_finite(bool(torch.isfinite(scores).all()))
    count = FEWEST_STEPS if steps is None else steps
    while True:
        values = _integral(model, target, feature, (start, end), count, micro_tokens)
        attribution = Attribution(values, low, high, count)
        if steps is not None or count >= MOST_STEPS or abs(attribution.error) <= ENOUGH * abs(high - low):
            return attribution
        count *= 2


def _integral(
    model: BertWithHeads, target: Target, feature: Feature, ends: tuple[Tensor, Tensor], steps: int, micro_tokens: int
) -> NDArray[np.float64]:
    """Sum the gradients along the line between two ends, each (T, D); give each token's attribution, (T,)."""
    start, end = ends
    points, shares = np.polynomial.legendre.leggauss(steps)
    total = torch.zeros_like(start, dtype=torch.float64, device="cpu")
    at_once = max(1, micro_tokens // len(start))
    for first in range(0, steps, at_once):
        part = slice(first, first + at_once)
        along, weights = (torch.from_numpy(numbers[part]) for numbers in ((points + 1) / 2, shares / 2))  # on [0, 1]
        path = (start + along.to(start)[:, None, None] * (end - start)).requires_grad_()  # (n, T, D)
        (gradient,) = torch.autograd.grad(_score(model, target, feature, path).sum(), path)
        total += (weights[:, None, None] * gradient.double().cpu()).sum(0)
    return (total * (end - start).double().cpu()).sum(-1).numpy()


def _score(model: BertWithHeads, target: Target, feature: Feature, embeddings: Tensor) -> Tensor:
    """Give the target's score, (n,), for the feature with token embeddings (n, T, D) in place of its own."""
    count = len(embeddings)
    with _replaced_embeddings(model, embeddings.flatten(0, 1)):
        masked = target.tokens if target.head == "masked_lm" else ()
        logits = run_copies(model, feature, count, masked).logits[target.head]  # a row for each sequence, mask or token
    rows = logits.view(count, -1, logits.shape[-1])
    return sum((rows[:, row, column] for row, column in target.places), logits.new_zeros(count))


def run_copies(
    model: BertWithHeads, feature: Feature, count: int = 1, masked: Sequence[int] = (), output_attentions: bool = False
) -> BertOutput:
    """Run the model over `count` copies of a feature; masked LM predicts the tokens `masked` alone."""
    device, length = model.bert.embeddings.token.weight.device, len(feature.input_ids)
    ids, types = (
        torch.tensor(numbers, device=device).repeat(count) for numbers in (feature.input_ids, feature.token_type_ids)
    )
    positions = torch.tensor([copy * length + token for copy in range(count) for token in masked], dtype=torch.int64)
    layout = Layout.from_lengths(torch.full((count,), length), device)
    output: BertOutput = model(ids, types, layout, positions.to(device), output_attentions=output_attentions)
    return output


@contextlib.contextmanager
def _replaced_embeddings(model: BertWithHeads, embeddings: Tensor) -> Iterator[None]:
    """Replace the model's token embeddings by these, (S, D)."""
    handle = model.bert.embeddings.token.register_forward_hook(lambda *_: embeddings)
    try:
        yield
    finally:
        handle.remove()
