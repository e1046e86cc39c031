"""Inference: predictions and losses for the examples of a task, and losses on prepared text, in one process or in all."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from bertkit.base.batch import PretrainBatch, TaskBatch
from bertkit.base.errors import NumericsError
from bertkit.data.batches.sampling import ExampleSource
from bertkit.inference.generating import ROWS_AT_ONCE, forget_weights, num_rows, write_texts
from bertkit.inference.task_model import Predictor
from bertkit.run.objective import best_tokens, pretraining_losses, task_logits, task_losses
from bertkit.tasks.batching import FeatureBatches
from bertkit.tasks.task import Feature
from bertkit.train import processes
from bertkit.train.loop import evaluate, evaluation_mode
from bertkit.train.losses import LossTerm
from bertkit.train.processes import gather_in_order

PREDICTED_AT_ONCE = 2048  # examples whose logits are in memory together
MAX_LOSS = 700.0  # exp of a larger number overflows


def predict_distributed(
    accelerator: processes.Accelerator,
    predictor: Predictor,
    examples: Sequence[Any],
    features: Sequence[Feature],
    losses: list[LossTerm] | None = None,
) -> list[Any]:
    """Predict examples in all processes; each process predicts a share and returns all predictions, in order.

    The accelerator has prepared the model. The features are those of the examples, of which there is at least one, in the same
    order. The loss of every batch of this process is added to the list `losses`; all features then need labels.
    """
    rank, size = accelerator.process_index, accelerator.num_processes
    first, last = len(examples) * rank // size, len(examples) * (rank + 1) // size
    borders = np.searchsorted([feature.example for feature in features], np.arange(len(examples) + 1))
    predictions: list[tuple[int, Any]] = []
    with evaluation_mode(predictor.model):
        for start in range(first, last, PREDICTED_AT_ONCE):
            stop = min(start + PREDICTED_AT_ONCE, last)
            mine = [
                dataclasses.replace(feature, example=feature.example - start)
                for feature in features[borders[start] : borders[stop]]
            ]
            predictions += enumerate(predict_local(predictor, examples[start:stop], mine, losses), start)
    if predictor.shape.generates_text:
        forget_weights(predictor.model)
    return gather_in_order(predictions, len(examples))


@dataclasses.dataclass(frozen=True)
class SplitScores:
    """A labelled split, predicted and scored."""

    scores: dict[str, float]  # for generated texts with their perplexity
    predictions: list[Any]
    loss: float  # the mean, without class weights


def score_split(
    accelerator: processes.Accelerator, predictor: Predictor, examples: Sequence[Any], features: Sequence[Feature]
) -> SplitScores:
    """Predict and score labelled examples in all processes."""
    losses: list[LossTerm] = []
    predictions = predict_distributed(accelerator, predictor, examples, features, losses)
    scores = predictor.shape.score(predictor.task, examples, predictions, predictor.labels)
    loss = mean_loss(accelerator, losses)
    if predictor.shape.generates_text:
        scores["perplexity"] = perplexity(loss)
    return SplitScores(scores, predictions, loss)


def predict_local(
    predictor: Predictor, examples: Sequence[Any], features: Sequence[Feature], losses: list[LossTerm] | None = None
) -> list[Any]:
    """Predict examples in this process alone; the model must be in evaluation mode. Arguments as for `predict_distributed`."""
    logits = logits_local(predictor, examples, features, losses)
    task, labels, tokenizer = predictor.task, predictor.labels, predictor.tokenizer
    return predictor.shape.predictions(task, examples, features, logits, labels, tokenizer)


def logits_local(
    predictor: Predictor, examples: Sequence[Any], features: Sequence[Feature], losses: list[LossTerm] | None = None
) -> list[Any]:
    """Return the logits of every feature, in this process alone; arguments as for `predict_distributed`.

    For masked LM, the most probable tokens take the place of the logits; for generation, the written texts do.
    """
    shape, search = predictor.shape, predictor.task.generation
    if losses is None:
        features = [dataclasses.replace(feature, label=None) for feature in features]
    num_choices = shape.num_choices(examples)
    batches = FeatureBatches(features, shape.head, num_choices)
    max_sequences = None if search is None else max(1, ROWS_AT_ONCE // num_rows(search))
    logits: list[Any] = [None] * len(features)
    rows: list[Any]
    for items, batch in batches.batches_of(predictor.micro_tokens, 0, 1, max_sequences):
        places = (items[:, None] * num_choices + np.arange(num_choices)).reshape(-1)
        if shape.pack is not None:
            rows = list(_best_tokens(predictor, [features[place] for place in places.tolist()]))
        else:
            rows, loss = _rows_and_loss(predictor, batch, losses is not None)
            if losses is not None and loss is not None:
                losses.append(loss)
        for place, row in zip(places, rows, strict=True):
            logits[place] = row
    return logits


def _rows_and_loss(predictor: Predictor, batch: TaskBatch, with_loss: bool) -> tuple[list[Any], LossTerm | None]:
    """Return the logits, or the written texts, of every sequence; and the loss, if `with_loss` is set."""
    search, loss = predictor.task.generation, None
    if not predictor.shape.generates_text or search is None:
        rows, loss = task_logits(predictor.model, batch, predictor.precision)
        require_finite(all(np.isfinite(row).all() for row in rows))
        return rows, loss
    if with_loss:
        with torch.no_grad():
            loss = task_losses(predictor.model, batch, predictor.precision)[batch.head]
    written = write_texts(predictor.model, batch, search, predictor.precision)
    require_finite(all(math.isfinite(score) for texts in written for _, score in texts))
    return written, loss


def require_finite(is_finite: bool) -> None:
    """Raise NumericsError if a model's results are not finite."""
    if not is_finite:
        raise NumericsError(
            "the model's output is not finite: its weights are too large or damaged; run verify on it, use another "
            "checkpoint, or train again with a lower optimizer.peak_learning_rate="
        )


def _best_tokens(predictor: Predictor, features: Sequence[Feature]) -> Iterator[list[tuple[list[int], list[float]]]]:
    """Yield for every feature the most probable tokens at each [MASK], and their probabilities."""
    assert predictor.shape.pack is not None
    tokens, probs = best_tokens(predictor.model, predictor.shape.pack(features), predictor.top_k, predictor.precision)
    require_finite(bool(np.isfinite(probs).all()))
    masks = zip(tokens.tolist(), probs.tolist(), strict=True)
    for feature in features:
        yield [next(masks) for _ in feature.origins]


def mean_loss(accelerator: processes.Accelerator, losses: Sequence[LossTerm]) -> float:
    """Return the mean, over all processes, of the losses that `predict_distributed` added to `losses`."""
    own = sum(float(loss.sum) for loss in losses), sum(loss.count for loss in losses)
    everyone = gather_in_order([(accelerator.process_index, own)], accelerator.num_processes)
    return sum(total for total, _ in everyone) / sum(count for _, count in everyone)


def perplexity(loss: float) -> float:
    """Return the perplexity, exp(loss), for a mean loss in nats per reference token, without label smoothing."""
    return math.exp(min(loss, MAX_LOSS))


def with_perplexity(metrics: dict[str, float]) -> dict[str, Any]:
    """Add the perplexity of next tokens, if their loss was measured."""
    return metrics | ({"perplexity": perplexity(metrics["lm_loss"])} if "lm_loss" in metrics else {})


def measure_split(
    accelerator: processes.Accelerator,
    model: nn.Module,
    sampler: ExampleSource,
    max_sequences: int | None,
    batch_sequences: int,
    precision: str = "fp32",
) -> dict[str, tuple[float, int]]:
    """Return `mlm_loss`, `mlm_accuracy` (or `lm_...`), `nsp_loss` and `nsp_accuracy` on a split, each with its number of predictions.

    Every call uses the same sequences and masks; each process computes a part of them. Raises NumericsError if a loss is not
    finite.
    """
    total = sampler.epoch_length if max_sequences is None else min(max_sequences, sampler.epoch_length)
    rank, size = accelerator.process_index, accelerator.num_processes
    first, last = total * rank // size, total * (rank + 1) // size

    def batches() -> Iterator[PretrainBatch]:
        for start in range(first, last, batch_sequences):
            yield sampler.in_order(start, min(start + batch_sequences, last))

    measured = evaluate(accelerator, model, functools.partial(pretraining_losses, precision=precision), batches())
    results: dict[str, tuple[float, int]] = {}
    for name, term in measured.items():
        if not math.isfinite(term.loss):
            raise NumericsError(
                f"{name}_loss={term.loss} on prepared text: the weights are too large or damaged; use another checkpoint, "
                "or train again with a lower optimizer.peak_learning_rate="
            )
        results |= {f"{name}_loss": (term.loss, term.count), f"{name}_accuracy": (term.accuracy, term.count)}
    return results
