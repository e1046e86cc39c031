"""Attributions: how much each token contributes to an output of the model, by integrated gradients.

Axes: T tokens of the sequence, D hidden_size, n points on the path from the baseline to the input.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.base.errors import InputError, named, nearest
from bertkit.inference.forward import require_finite
from bertkit.inference.task_model import Predictor
from bertkit.kernels.layout import Layout
from bertkit.model.bert_config import FOLLOWS
from bertkit.model.heads import BertOutput, BertWithHeads
from bertkit.tasks.feature import Feature, SpanFeature, TaggingFeature
from bertkit.tasks.task import AnyTask

MIN_STEPS, MAX_STEPS = 16, 256  # points on the path, if `steps` is not set
MAX_ERROR = 0.01  # relative to the difference of the scores; a larger error needs more steps


@dataclass(frozen=True)
class Target:
    """The output that is explained: a logit, or the sum of two logits."""

    description: str  # the target in words, such as "the label good"
    head: str  # the model's head that computes the logits
    logits: tuple[tuple[int, int], ...]  # (row, column): the row is the token's position for tags and answers, else 0
    tokens: tuple[int, ...] = ()  # positions of the tokens of an answer or word, or of the explained [MASK]


@dataclass(frozen=True)
class Attribution:
    """The contribution of each token to the score of a target."""

    values: NDArray[np.float64]  # (T,)
    baseline_score: float  # the target's score for the baseline
    score: float  # the target's score for the input
    num_steps: int  # points on the path from the baseline to the input

    @property
    def error(self) -> float:
        """The sum of the values minus the difference of the scores; 0 if the integral is exact."""
        return float(self.values.sum()) - (self.score - self.baseline_score)

    def completeness(self) -> str:
        """Compare the sum of the values with the difference of the scores, in words."""
        difference = self.score - self.baseline_score
        share = f", {abs(self.error / difference):.2%} of it" if difference else ""
        return (
            f"The score is {self.score:.4f}, and {self.baseline_score:.4f} with [PAD] in place of the tokens: a difference of "
            f"{difference:.4f}. The attributions sum to {self.values.sum():.4f}, an error of {abs(self.error):.2g}{share}, "
            f"with {self.num_steps} steps of integration."
        )


def attribute(
    model: BertWithHeads,
    target: Target,
    feature: Feature,
    baseline: Sequence[int],
    steps: int | None,
    micro_tokens: int,
) -> Attribution:
    """Distribute the difference between the scores F of the input and of a baseline over the tokens, by integrated gradients.

        attribution_t = sum over D of (x_t - b_t) * integral of dF / dx_t along b + a (x - b), a from 0 to 1

    x are the token embeddings of the input, b those of the baseline; position and segment embeddings are the same in both. The
    baseline has [PAD] instead of each token except [CLS], [SEP] and [MASK], whose attribution is therefore 0. The integral is
    approximated by Gauss-Legendre quadrature, as by default in captum, with `steps` points; None doubles their number until the
    relative error is at most `MAX_ERROR`, up to `MAX_STEPS`. `micro_tokens` is the number of tokens in one forward pass.

    Source: Sundararajan et al. 2017, Axiomatic Attribution for Deep Networks, equation 1; the attributions sum to
    F(x) - F(b) (proposition 1), from which the error is computed.
    """
    table = model.bert.embeddings.token.weight
    start, end = (table[torch.tensor(ids, device=table.device)].detach() for ids in (list(baseline), feature.input_ids))
    with torch.no_grad():
        scores = _score(model, target, feature, torch.stack([start, end])).double().cpu()
    low, high = scores.tolist()
    require_finite(bool(torch.isfinite(scores).all()))
    count = MIN_STEPS if steps is None else steps
    while True:
        values = _integral(model, target, feature, (start, end), count, micro_tokens)
        attribution = Attribution(values, low, high, count)
        if steps is not None or count >= MAX_STEPS or abs(attribution.error) <= MAX_ERROR * abs(high - low):
            return attribution
        count *= 2


def _integral(
    model: BertWithHeads, target: Target, feature: Feature, ends: tuple[Tensor, Tensor], steps: int, micro_tokens: int
) -> NDArray[np.float64]:
    """Integrate the gradients on the line between two ends, each (T, D); return the attribution of each token, (T,)."""
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
    """Return the target's score, (n,), for the feature with these token embeddings, (n, T, D), instead of its own."""
    count = len(embeddings)
    with model.bert.embeddings.token.register_forward_hook(lambda *_: embeddings.flatten(0, 1)):
        masked = target.tokens if target.head == "masked_lm" else ()
        logits = run_copies(model, feature, count, masked).logits[target.head]  # a row for each sequence, mask or token
    rows = logits.view(count, -1, logits.shape[-1])
    return sum((rows[:, row, column] for row, column in target.logits), logits.new_zeros(count))


def run_copies(
    model: BertWithHeads, feature: Feature, count: int = 1, masked: Sequence[int] = (), output_attentions: bool = False
) -> BertOutput:
    """Run the model on `count` copies of a feature; the masked LM head predicts only the positions `masked`."""
    device, length = model.bert.embeddings.token.weight.device, len(feature.input_ids)
    ids, types = (
        torch.tensor(numbers, device=device).repeat(count) for numbers in (feature.input_ids, feature.token_type_ids)
    )
    positions = torch.tensor([copy * length + token for copy in range(count) for token in masked], dtype=torch.int64)
    layout = Layout.from_lengths(torch.full((count,), length), device)
    output: BertOutput = model(ids, types, layout, positions.to(device), output_attentions=output_attentions)
    return output


NUM_WORDS = 5  # predicted words that are shown for a [MASK]


def _chosen(target: str | None, names: Sequence[str], predicted: int, what: str) -> int:
    """Return the index of `target` in names; if it is None, the index of the prediction."""
    if target is None:
        return predicted
    if target not in names:
        hint = nearest(target, names) or f"; expected one of {named(names)}"
        raise InputError(f"target={target:.80}: no such {what}{hint}")
    return names.index(target)


def target_of(
    task: AnyTask, example: Any, features: Sequence[Any], prediction: Any, target: str | None
) -> tuple[Feature, Target | None]:
    """Return the feature and the logit that are explained: by default the predicted label, word or ending."""
    labels = list(task.labels)
    match task.head:
        case "token":
            return _tag_target(labels, example, features, prediction, target)
        case "span":
            _chosen(target, (), 0, "choice: only the predicted answer to a question can be explained")
            return _answer_target(features, prediction)
        case "choice":
            column = _chosen(target, [str(number) for number in range(len(features))], prediction.label, "ending")
            return features[column], Target(f"ending {column}", "choice", ((0, 0),))
    if not labels:
        _chosen(target, (), 0, "label: the model predicts a number")
        return features[0], Target("the number", "sequence", ((0, 0),))
    best = int(np.argmax([prediction.probabilities[label] for label in labels]))
    column = _chosen(target, labels, best, "label")
    return features[0], Target(f"the label {labels[column]}", "sequence", ((0, column),))


def _tag_target(
    labels: list[str], example: Any, features: Sequence[TaggingFeature], prediction: Any, target: str | None
) -> tuple[Feature, Target | None]:
    """Explain the tag of a word, in the window with the most context around it, as `predict` does."""
    words: list[str] = list(example.words if hasattr(example, "words") else prediction.words)
    if not words:
        _chosen(target, (), 0, "word: there are none")
        return features[0], None
    first = next((place for place, tag in enumerate(prediction.tags) if tag != "O"), 0)
    word = _chosen(target, words, first, "word of the text")

    def context(feature: TaggingFeature) -> int:
        position = feature.words.index(word)
        return min(position - 1, len(feature.input_ids) - 2 - position)

    feature = max((window for window in features if word in window.words), key=context)
    start = feature.words.index(word)
    after = next((n for n, at in enumerate(feature.words) if n > start and at >= 0), len(feature.words) - 1)
    tag = prediction.tags[word]
    place = (start, labels.index(tag))
    return feature, Target(f"the tag {tag} of {words[word]}", "token", (place,), tuple(range(start, after)))


def _answer_target(features: Sequence[SpanFeature], prediction: Any) -> tuple[Feature, Target]:
    """Explain the start and end logits of the answer; without an answer those of [CLS] in the first window."""
    answer: Any = next((answer for answer in prediction.n_best if answer.text == prediction.text), None)
    for feature in features if prediction.text and answer is not None else ():
        places = list(enumerate(feature.origins))
        starts = [n for n, at in places if at is not None and at.is_max_context and at.start == answer.start]
        ends = [n for n, at in places if at is not None and at.end == answer.end]
        if starts and ends:
            start, end = starts[0], ends[-1]
            span = tuple(range(start, end + 1))
            return feature, Target(f"the answer {prediction.text}", "span", ((start, 0), (end, 1)), span)
    return features[0], Target("that there is no answer", "span", ((0, 0), (0, 1)), (0,))


def pretraining_target(
    predictor: Predictor, feature: Feature, target: str | None
) -> tuple[dict[str, Any] | None, Target | None]:
    """Explain the word at the first [MASK], or else the next sentence prediction; None if the model has no such head."""
    model: Any = predictor.model
    vocab, mask = predictor.tokenizer.vocab, predictor.tokenizer.facts.mask
    if "masked_lm" in model.heads and mask in feature.input_ids:
        place = feature.input_ids.index(mask)
        shares = _probabilities(model, feature, "masked_lm", place)
        best = shares.argsort()[::-1][:NUM_WORDS].tolist()
        words = [{"token": vocab[number], "probability": float(shares[number])} for number in best]
        column = _chosen(target, vocab, best[0], "token of the vocabulary")
        return {"masks": [words]}, Target(f"{vocab[column]} at [MASK]", "masked_lm", ((0, column),), (place,))
    if "next_sentence" in model.heads and 1 in feature.token_type_ids:
        shares = _probabilities(model, feature, "next_sentence")
        column = _chosen(target, FOLLOWS, int(shares.argmax()), "label")
        row = {"next_sentence": dict(zip(FOLLOWS, shares.tolist(), strict=True))}
        return row, Target(f"that the second text {FOLLOWS[column]}", "next_sentence", ((0, column),))
    return None, None


@torch.no_grad()
def _probabilities(model: BertWithHeads, feature: Feature, head: str, *masked: int) -> NDArray[np.float64]:
    """Return the probabilities that a pretraining head predicts."""
    logits = run_copies(model, feature, masked=masked).logits[head][0].double()
    require_finite(bool(torch.isfinite(logits).all()))
    return torch.softmax(logits, -1).cpu().numpy()
