"""What a model attends to, and what its prediction rests on, of one input: for `bertkit view` and pages that do the same.

Axes: L layers, N heads, T tokens of the sequence, D hidden_size, n points of a path, C labels.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.base.errors import InputError
from bertkit.explain.aligning import align, is_recurrent
from bertkit.explain.look import Alignment, Attribution, Look
from bertkit.explain.targets import AIMS, Target, chosen
from bertkit.kernels.layout import Layout
from bertkit.model.heads import BertOutput, BertWithHeads
from bertkit.predict.answers import answer_here, require_finite
from bertkit.predict.task_model import Predictor
from bertkit.tasks.task import Feature

FEWEST_STEPS, MOST_STEPS = 16, 256  # of a path whose number of points is found here
ENOUGH = 0.01  # of the difference that attributions add up to: an error that is not worth more points
NUM_WORDS = 5  # at [MASK] that are said
FOLLOWS = ("follows", "does not follow")  # the labels of next sentence prediction


def look(
    predictor: Predictor,
    example: Any,
    features: Sequence[Feature],
    target: str | None = None,
    steps: int | None = None,
    target_text: str | None = None,
) -> Look:
    """Look into a model while it reads one example.

    Args:
        predictor: of a task, of masked LM, or of no head at all, as `open_task_model` gives it.
        example: of its shape.
        features: of this example alone.
        target: what is explained; None for what is predicted.
        steps: points of the path of integrated gradients; None for as many as it takes, 0 for no attributions.
        target_text: of a model that writes, the text whose tokens are aligned with the source's; None for what it writes.

    Raises:
        InputError: there is no such target.
        NumericsError: what the model computes is not finite.
    """
    features = [dataclasses.replace(feature, label=None, example=0) for feature in features]
    model: Any = predictor.model
    model.requires_grad_(False)
    feature, said, aim, alignment = _explained(predictor, example, features, target, target_text)
    if aim is None and target is not None:
        raise InputError(f"target={target}: the model predicts nothing of this input; leave target= out")
    facts, vocab = predictor.tokenizer.facts, predictor.tokenizer.vocab
    attribution = None
    if aim is not None and steps != 0:
        kept = {facts.cls, facts.sep, facts.mask}
        baseline = [number if number in kept else facts.pad for number in feature.input_ids]
        attribution = attribute(model, aim, feature, baseline, steps, predictor.micro_tokens)
    attentions = attentions_of(model, feature)
    return Look(
        tokens=[vocab[number] for number in feature.input_ids],
        token_ids=feature.input_ids,
        segments=feature.token_type_ids,
        num_layers=model.config.num_hidden_layers,
        num_heads=0 if is_recurrent(model.config) else model.config.num_attention_heads,
        prediction=said,
        target=None if aim is None else aim.what,
        marked=() if aim is None else aim.tokens,
        attribution=attribution,
        attentions=attentions,
        rollout=None if attentions is None else rollout(attentions),
        num_cut=feature.num_cut,
        num_windows=1 if predictor.shape.has_choices else len(features),
        alignment=alignment,
    )


def _explained(
    predictor: Predictor, example: Any, features: Sequence[Feature], target: str | None, target_text: str | None
) -> tuple[Feature, dict[str, Any] | None, Target | None, Alignment | None]:
    """Give the feature that is looked at, what is predicted, what of it is explained, and how a text that is written is aligned."""
    model: Any = predictor.model
    if predictor.shape.head == "generation":
        if target is not None:
            raise InputError(
                f"target={target}: nothing is explained of a model that writes; target_text= is a text of its own"
            )
        feature, said, alignment = align(predictor, example, target_text)
        return feature, said, None, alignment
    if predictor.shape.head not in model.heads:
        return features[0], *_pretraining_aim(predictor, features[0], target), None
    (prediction,) = answer_here(predictor, [example], features)
    feature, aim = AIMS[predictor.shape.head](predictor, example, features, prediction, target)
    return feature, predictor.shape.row(example, prediction), aim, None


def attentions_of(model: BertWithHeads, feature: Feature) -> NDArray[np.float32] | None:
    """Give the share of each key (last axis) for each query, (L, N, T, T); None where no token looks at another."""
    if model.config.attention.pattern == "linformer" or is_recurrent(model.config):
        return None
    with torch.no_grad():
        found = _run(model, feature, output_attentions=True).attentions
    assert found is not None
    weights: NDArray[np.float32] = torch.cat(found).float().cpu().numpy()
    require_finite(bool(np.isfinite(weights).all()))
    return weights


def rollout(attentions: NDArray[np.floating]) -> NDArray[np.float64]:
    """Follow attention down to the input: (L, N, T, T) -> (L, T, T), of each layer the shares of the input's tokens.

        rollout_l = (0.5 mean over heads of A_l + 0.5 I) rollout_(l - 1), each row summing to 1

    Half of what a token is comes by the residual connection, from itself.

    Source: Abnar and Zuidema 2020, Quantifying Attention Flow in Transformers, equation 1 and section 3.
    """
    shares = np.eye(attentions.shape[-1])
    found = []
    for of_layer in attentions:
        mixed = 0.5 * of_layer.mean(0, dtype=np.float64) + 0.5 * np.eye(len(shares))
        shares = mixed / mixed.sum(-1, keepdims=True) @ shares
        found.append(shares)
    return np.stack(found)


def attribute(
    model: BertWithHeads,
    target: Target,
    feature: Feature,
    baseline: Sequence[int],
    steps: int | None,
    micro_tokens: int,
) -> Attribution:
    """Share out among the tokens what the target's score F has more than for a baseline, by integrated gradients.

        attribution_t = sum over D of (x_t - b_t) * integral of dF / dx_t along b + a (x - b), a from 0 to 1

    x and b are token embeddings, before those of positions and segments are added: positions and segments are the same
    in both. The baseline has [PAD] for every token but [CLS] and [SEP], which are in every input, and [MASK], which asks
    and does not answer; so these get 0. The integral is a Gauss-Legendre sum, as captum's by default.

    Args:
        model: in evaluation mode, its parameters frozen.
        target: F.
        feature: x.
        baseline: the tokens of b, T of them.
        steps: points of the sum; None for as many as bring its error to `ENOUGH`, up to `MOST_STEPS`.
        micro_tokens: of one forward pass.

    Source: Sundararajan et al. 2017, Axiomatic Attribution for Deep Networks, equation 1; the sum of the attributions
    is F(x) - F(b) (proposition 1), which shows the error.
    """
    table = model.bert.embeddings.token.weight
    start, end = (table[torch.tensor(ids, device=table.device)].detach() for ids in (list(baseline), feature.input_ids))
    with torch.no_grad():
        of_ends = _score(model, target, feature, torch.stack([start, end])).double().cpu()
    low, high = of_ends.tolist()
    require_finite(bool(torch.isfinite(of_ends).all()))
    count = FEWEST_STEPS if steps is None else steps
    while True:
        shares = _integral(model, target, feature, (start, end), count, micro_tokens)
        found = Attribution(shares, low, high, count)
        if steps is not None or count >= MOST_STEPS or abs(found.error) <= ENOUGH * abs(high - low):
            return found
        count *= 2


def _integral(
    model: BertWithHeads,
    target: Target,
    feature: Feature,
    ends: tuple[Tensor, Tensor],
    steps: int,
    micro_tokens: int,
) -> NDArray[np.float64]:
    """Sum the gradients along the straight way between two ends, each (T, D); give what each token adds, (T,)."""
    start, end = ends
    points, shares = np.polynomial.legendre.leggauss(steps)
    total = torch.zeros_like(start, dtype=torch.float64, device="cpu")
    at_once = max(1, micro_tokens // len(start))
    for first in range(0, steps, at_once):
        part = slice(first, first + at_once)
        along, weights = (torch.from_numpy(each[part]) for each in ((points + 1) / 2, shares / 2))  # on [0, 1]
        path = (start + along.to(start)[:, None, None] * (end - start)).requires_grad_()  # (n, T, D)
        (gradient,) = torch.autograd.grad(_score(model, target, feature, path).sum(), path)
        total += (weights[:, None, None] * gradient.double().cpu()).sum(0)
    return (total * (end - start).double().cpu()).sum(-1).numpy()


def _score(model: BertWithHeads, target: Target, feature: Feature, embeddings: Tensor) -> Tensor:
    """Give the target's score, (n,), of the feature with token embeddings (n, T, D) in place of its own."""
    count = len(embeddings)
    with _embedded_as(model, embeddings.flatten(0, 1)):
        masked = [token for token, _ in target.places if token is not None] if target.head == "masked_lm" else []
        logits = _run(model, feature, count, masked).logits[target.head]  # a row for each sequence, mask or token
    rows = logits.view(count, -1, logits.shape[-1])
    of_tokens = target.head in ("token", "span")
    places = ((token if of_tokens else 0, column) for token, column in target.places)
    return sum((rows[:, token, column] for token, column in places), logits.new_zeros(count))


def _run(
    model: BertWithHeads,
    feature: Feature,
    count: int = 1,
    masked: Sequence[int] = (),
    output_attentions: bool = False,
) -> BertOutput:
    """Run the model over `count` copies of a feature, with words predicted at the tokens `masked` alone."""
    device, length = model.bert.embeddings.token.weight.device, len(feature.input_ids)
    ids, types = (
        torch.tensor(each, device=device).repeat(count) for each in (feature.input_ids, feature.token_type_ids)
    )
    positions = torch.tensor([copy * length + token for copy in range(count) for token in masked], dtype=torch.int64)
    layout = Layout.from_lengths(torch.full((count,), length), device)
    found: BertOutput = model(ids, types, layout, positions.to(device), output_attentions=output_attentions)
    return found


@contextlib.contextmanager
def _embedded_as(model: BertWithHeads, embeddings: Tensor) -> Iterator[None]:
    """Have the embedding of tokens give these, (S, D), whatever the tokens are."""
    handle = model.bert.embeddings.token.register_forward_hook(lambda *_: embeddings)
    try:
        yield
    finally:
        handle.remove()


def _pretraining_aim(
    predictor: Predictor, feature: Feature, target: str | None
) -> tuple[dict[str, Any] | None, Target | None]:
    """Explain the word at the first [MASK], else whether the second text follows; nothing where there is no such head."""
    model: Any = predictor.model
    vocab, mask = predictor.tokenizer.vocab, predictor.tokenizer.facts.mask
    if "masked_lm" in model.heads and mask in feature.input_ids:
        place = feature.input_ids.index(mask)
        shares = _shares(model, feature, "masked_lm", place)
        best = shares.argsort()[::-1][:NUM_WORDS].tolist()
        said = [{"token": vocab[number], "probability": float(shares[number])} for number in best]
        column = chosen(target, vocab, best[0], "token of the vocabulary")
        return {"masks": [said]}, Target(f"{vocab[column]} at [MASK]", "masked_lm", ((place, column),), (place,))
    if "next_sentence" in model.heads and 1 in feature.token_type_ids:
        shares = _shares(model, feature, "next_sentence")
        column = chosen(target, FOLLOWS, int(shares.argmax()), "label")
        said_of_pair = {"next_sentence": dict(zip(FOLLOWS, shares.tolist(), strict=True))}
        return said_of_pair, Target(f"that the second text {FOLLOWS[column]}", "next_sentence", ((None, column),))
    return None, None


@torch.no_grad()
def _shares(model: BertWithHeads, feature: Feature, head: str, *masked: int) -> NDArray[np.float64]:
    """Give the probabilities of a head of pretraining."""
    logits = _run(model, feature, masked=masked).logits[head][0].double()
    require_finite(bool(torch.isfinite(logits).all()))
    return torch.softmax(logits, -1).cpu().numpy()
