"""Inference: predictions and losses for the examples of a task, in one process or in all."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from bertkit.base.batch import Batch
from bertkit.base.errors import NumericsError, counted
from bertkit.base.typed_settings import refuse
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.inference.generating import ROWS_AT_ONCE, forget_weights, num_rows, write_texts
from bertkit.inference.task_model import Predictor
from bertkit.model.heads import bare
from bertkit.objectives.losses import batch_losses, best_tokens, log_probabilities, task_logits
from bertkit.tasks.batching import FeatureBatches
from bertkit.tasks.feature import Feature, Logits, MaskFeature, TargetFeature
from bertkit.tasks.fill_mask import pack
from bertkit.tasks.scoring.metrics import perplexity
from bertkit.tasks.task import Example, ExampleT, FeatureT, PredictionT, Task, TopTokens, Written
from bertkit.tasks.task_config import GenerationConfig
from bertkit.tasks.trainable import AnyTrainable
from bertkit.train.drawn_ahead import made_ahead
from bertkit.train.loop import evaluation_mode
from bertkit.train.losses import LossTerm
from bertkit.train.processes import Ranks

PREDICTED_AT_ONCE = 2048  # examples whose logits are in memory together
OutputT = TypeVar("OutputT")


@dataclass(frozen=True)
class Running:
    """A model that a task runs on its features, in this process; it must be in evaluation mode."""

    predictor: Predictor
    head: str  # of the task that runs it
    losses: list[LossTerm] | None = None  # gets the loss of every batch; all features then need labels

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.predictor.tokenizer

    def logits(self, features: Sequence[Feature], num_choices: int = 1) -> list[Logits]:
        """Return the logits of each feature: (C,), or (T, C) for a head with an output for each token."""

        def compute(batch: Batch, _: Sequence[int]) -> Sequence[Logits]:
            output = task_logits(self.predictor.model, batch, self.head, self.predictor.precision)
            require_finite(bool(np.isfinite(np.concatenate(output.logits)).all()), self.predictor.precision)
            if self.losses is not None and output.loss is not None:
                self.losses.append(output.loss)
            return output.logits

        return self._run(features, compute, num_choices)

    def texts(self, features: Sequence[Feature], search: GenerationConfig) -> list[Written]:
        """Return the texts that the model writes for each feature, the best first."""
        model, precision = self.predictor.model, self.predictor.precision

        def compute(batch: Batch, _: Sequence[int]) -> Sequence[Written]:
            if self.losses is not None:
                with torch.no_grad():
                    self.losses.extend(batch_losses(model, batch, precision).values())
            texts = write_texts(model, batch, search, precision)
            require_finite(all(math.isfinite(score) for written in texts for _, score in written), precision)
            return texts

        return self._run(features, compute, max_sequences=max(1, ROWS_AT_ONCE // num_rows(search)))

    def best_tokens(self, features: Sequence[MaskFeature]) -> list[list[TopTokens]]:
        """Return the most probable tokens at each mask of each feature."""
        predictor = self.predictor

        def compute(_: Batch, places: Sequence[int]) -> Sequence[list[TopTokens]]:
            own = [features[place] for place in places]
            tokens, probs = best_tokens(predictor.model, pack(own), predictor.top_k, predictor.precision)
            require_finite(bool(np.isfinite(probs).all()), predictor.precision)
            masks = map(TopTokens, tokens.tolist(), probs.tolist())
            return [[next(masks) for _ in feature.masks] for feature in own]

        return self._run(features, compute)

    def log_probabilities(self, features: Sequence[TargetFeature]) -> list[list[float]]:
        """Return the log-probability of each target of each feature."""
        predictor = self.predictor

        def compute(_: Batch, places: Sequence[int]) -> Sequence[list[float]]:
            own = [features[place] for place in places]
            tokens = np.array([token for feature in own for token in feature.targets], np.int64)
            values = log_probabilities(predictor.model, pack(own), self.head, tokens, predictor.precision)
            require_finite(bool(np.isfinite(values).all()), predictor.precision)
            each = iter(values.tolist())
            return [[next(each) for _ in feature.masks] for feature in own]

        return self._run(features, compute)

    def _run(
        self,
        features: Sequence[Feature],
        compute: Callable[[Batch, Sequence[int]], Sequence[OutputT]],
        num_choices: int = 1,
        max_sequences: int | None = None,
    ) -> list[OutputT]:
        """Compute the output of each feature, in batches; `compute` also takes the numbers of the features in a batch."""
        limit = bare(self.predictor.model).config.type_vocab_size
        if 0 < limit <= self.tokenizer.largest_type:
            refuse(
                any(max(feature.token_type_ids) >= limit for feature in features)
                and f"a pair of texts has token type {self.tokenizer.largest_type}, the model {limit} (type_vocab_size); give it "
                "single texts"
            )
        kept = features if self.losses is not None else [feature.without_label() for feature in features]
        batches = FeatureBatches(kept, self.head, num_choices)
        outputs: dict[int, OutputT] = {}
        for items, batch in batches.batches_of(self.predictor.micro_tokens, 0, 1, max_sequences):
            places: list[int] = (items[:, None] * num_choices + np.arange(num_choices)).reshape(-1).tolist()
            outputs |= zip(places, compute(batch, places), strict=True)
        return [outputs[place] for place in range(len(features))]


def with_features(
    predictor: Predictor, task: Task[ExampleT, FeatureT, PredictionT], chunks: Iterator[list[ExampleT]]
) -> Iterator[tuple[list[ExampleT], list[FeatureT]]]:
    """Yield the examples of each chunk with their features; while a GPU computes a chunk, those of the next one are made."""
    made = ((examples, list(task.each_feature(examples, predictor.tokenizer))) for examples in chunks)
    return made_ahead(made, predictor.device.type)


def predict_local(
    predictor: Predictor,
    task: Task[ExampleT, FeatureT, PredictionT],
    examples: Sequence[ExampleT],
    features: Sequence[FeatureT],
    losses: list[LossTerm] | None = None,
) -> list[PredictionT]:
    """Predict the examples of a task in this process alone. Arguments as for `predict_distributed`."""
    return task.predict(Running(predictor, task.head, losses), examples, features)


def predict_distributed(
    ranks: Ranks,
    predictor: Predictor,
    examples: Sequence[Example],
    features: Sequence[Feature],
    losses: list[LossTerm] | None = None,
) -> list[Any]:
    """Predict examples in all processes; each process predicts a share and returns all predictions, in order.

    The features are those of the examples, of which there is at least one, in the same
    order. The loss of every batch of this process is added to the list `losses`; all features then need labels.
    """
    first, last = (len(examples) * rank // ranks.size for rank in (ranks.rank, ranks.rank + 1))
    borders = np.searchsorted([feature.example for feature in features], np.arange(len(examples) + 1))
    predictions: list[tuple[int, object]] = []
    with evaluation_mode(predictor.model):
        for start in range(first, last, PREDICTED_AT_ONCE):
            stop = min(start + PREDICTED_AT_ONCE, last)
            mine = [feature.of_example(feature.example - start) for feature in features[borders[start] : borders[stop]]]
            predictions += enumerate(
                predict_local(predictor, predictor.task, examples[start:stop], mine, losses), start
            )
    forget_weights(predictor.model)
    return ranks.gather(predictions, len(examples))


@dataclass(frozen=True)
class SplitScores:
    """A labelled split, predicted and scored."""

    scores: dict[str, float]  # for generated texts with their perplexity
    predictions: list[object]
    loss: float  # the mean, without class weights


def score_split(
    ranks: Ranks,
    predictor: Predictor,
    task: AnyTrainable,
    examples: Sequence[Example],
    features: Sequence[Feature],
) -> SplitScores:
    """Predict and score the labelled examples of a task in all processes; its labels may have another order than the model's."""
    losses: list[LossTerm] = []
    predictions = predict_distributed(ranks, predictor, examples, features, losses)
    loss = mean_loss(ranks, losses)
    return SplitScores(task.score(examples, predictions) | task.loss_scores(loss), predictions, loss)


def faults_of(faults: Mapping[str, int], num_examples: int) -> list[str]:
    """Return a warning about each fault of the predictions for some texts."""
    texts = counted(num_examples, "text")
    return [f"{number:,} of {texts} {fault}" for fault, number in faults.items() if number]


def require_finite(is_finite: bool, precision: str = "fp32") -> None:
    """Raise NumericsError if a model's results are not finite; in float16 numbers above 65,504 are not."""
    if not is_finite and precision == "fp16":
        raise NumericsError(
            "the model's output is not finite in float16, whose largest number is 65,504; set precision=fp32"
        )
    if not is_finite:
        raise NumericsError(
            "the model's output is not finite: its weights are too large or damaged; run verify on it, use another "
            "checkpoint, or train again with a lower optimizer.peak_learning_rate="
        )


def mean_loss(ranks: Ranks, losses: Sequence[LossTerm]) -> float:
    """Return the mean, over all processes, of the losses that `predict_distributed` added to `losses`."""
    own = sum(float(loss.sum) for loss in losses), sum(loss.count for loss in losses)
    everyone = ranks.on_every(lambda: own)
    return sum(total for total, _ in everyone) / max(1, sum(count for _, count in everyone))


def with_perplexity(metrics: dict[str, float]) -> dict[str, object]:
    """Add the perplexity of next tokens, if their loss was measured."""
    more = {"perplexity": perplexity(metrics["lm_loss"])} if "lm_loss" in metrics else {}
    return {**metrics, **more}
