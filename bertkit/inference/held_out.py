"""What a pretrained model predicts on prepared text, beside two controls: counting tokens, and the same text with shuffled words.

Losses are summed by sequence: differences have intervals over documents, and any number of processes gives the same results.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertkit.base.batch import Batch, Predicted, loss_name
from bertkit.base.errors import NumericsError
from bertkit.data.batches.controls import Counting, shuffle_words, token_counts
from bertkit.data.batches.sampling import ExampleSource
from bertkit.data.corpus.prepared import PreparedDataset
from bertkit.objectives.losses import outputs
from bertkit.train.loop import evaluation_mode
from bertkit.train.losses import in_float32
from bertkit.train.processes import Ranks

SEQUENCES_AT_ONCE = 32  # in a forward pass, by default
SHUFFLED_TOGETHER = 32  # sequences; the same ones for any number of processes and any batch
FEWEST_DOCUMENTS = 10  # with fewer documents, an interval is over sequences
CONFIDENCE = 0.999  # of intervals: a run is measured many times, and should not say by chance that it has learned

Floats = NDArray[np.float64]


class Sums(NamedTuple):
    """Sums over the predictions in each sequence, (B,)."""

    num: Floats  # of predictions
    loss: Floats  # in nats
    correct: Floats
    num_at_mask: Floats  # of predictions at [MASK]; the others see a kept or a random token
    loss_at_mask: Floats

    @classmethod
    def of(cls, sequence: NDArray[np.int64], num_sequences: int, predicted: Predicted, is_mask: Floats) -> Sums:
        """Sum predictions, each of a sequence, from 0 to `num_sequences` - 1."""
        parts = np.ones(len(sequence)), predicted.losses, predicted.are_correct, is_mask, predicted.losses * is_mask
        return cls(*(np.bincount(sequence, part, num_sequences).astype(np.float64) for part in parts))

    @classmethod
    def of_tokens(cls, batch: Batch, predicted: Predicted, mask: int) -> Sums:
        """Sum the predictions of the tokens of a batch."""
        sequence = np.repeat(np.arange(len(batch.sequence_lengths)), batch.sequence_lengths)[batch.masked_positions]
        is_mask = 1.0 * (batch.input_ids[batch.masked_positions] == mask)
        return cls.of(sequence, len(batch.sequence_lengths), predicted, is_mask)

    @classmethod
    def joined(cls, parts: Iterable[Sums]) -> Sums:
        """Put the sequences of several parts one after another."""
        return cls(*map(np.concatenate, zip([np.zeros(0)] * len(cls._fields), *parts, strict=True)))

    @property
    def mean_loss(self) -> float:
        """The mean over all predictions, of which there is at least one."""
        return float(self.loss.sum() / self.num.sum())

    @property
    def accuracy(self) -> float:
        """The share of correct predictions."""
        return float(self.correct.sum() / self.num.sum())

    @property
    def mean_loss_at_mask(self) -> float:
        """The mean over the predictions at [MASK], of which there is at least one."""
        return float(self.loss_at_mask.sum() / self.num_at_mask.sum())


@dataclass(frozen=True)
class SplitLosses:
    """The losses of a model on a split, and those of its two controls on the same tokens."""

    objective: str  # "mlm" or "lm"
    documents: NDArray[np.int64]  # the document of each sequence, (B,)
    model: Sums
    counting: Sums
    shuffled: Sums
    sentences: Sums  # the predictions of the next sentence, if any

    @classmethod
    def joined(cls, parts: Sequence[SplitLosses]) -> SplitLosses:
        """Put several splits together."""
        ends = itertools.accumulate((part.documents.max() + 1 for part in parts), initial=0)
        columns = zip(*((part.model, part.counting, part.shuffled, part.sentences) for part in parts), strict=True)
        documents = np.concatenate([part.documents + end for part, end in zip(parts, ends, strict=False)])
        return cls(parts[0].objective, documents, *map(Sums.joined, columns))

    def metrics(self) -> dict[str, float]:
        """Return the means by name; empty without predictions.

        `mlm_loss`, `mlm_accuracy` (or `lm_...`), `nsp_loss`, `nsp_accuracy`; `mlm_loss_at_mask` for the predictions at [MASK]
        alone; the same `by_counting`, which is without context; `mlm_loss_shuffled`, with shuffled words; and how far the loss
        is below both controls: `mlm_gain_on_counting` and `mlm_gain_on_shuffled`, each the lower end of a 99.9 % interval.
        """
        name, values = self.objective, dict[str, float]()
        if self.model.num.any():
            values |= {f"{name}_loss": self.model.mean_loss, f"{name}_accuracy": self.model.accuracy}
        if self.sentences.num.any():
            values |= {"nsp_loss": self.sentences.mean_loss, "nsp_accuracy": self.sentences.accuracy}
        if self.model.num_at_mask.any():
            values[f"{name}_loss_at_mask"] = self.model.mean_loss_at_mask
            values[f"{name}_loss_at_mask_by_counting"] = self.counting.mean_loss_at_mask
        if self.model.num.any():
            values |= {
                f"{name}_loss_by_counting": self.counting.mean_loss,
                f"{name}_accuracy_by_counting": self.counting.accuracy,
                f"{name}_loss_shuffled": self.shuffled.mean_loss,
                f"{name}_gain_on_counting": self._least_gain_on(self.counting),
                f"{name}_gain_on_shuffled": self._least_gain_on(self.shuffled),
            }
        return values

    def _least_gain_on(self, control: Sums) -> float:
        """Return the lower end of the interval of the difference of the mean losses, a ratio of sums (Cochran 1977, section 6.3)."""
        from scipy.special import stdtrit  # Student's t

        groups = np.unique(self.documents, return_inverse=True)[1]
        if groups.max() + 1 < FEWEST_DOCUMENTS:
            groups = np.arange(len(self.documents))
        gain, count = np.bincount(groups, control.loss - self.model.loss), np.bincount(groups, self.model.num)
        mean, size = gain.sum() / count.sum(), len(gain)
        if size == 1:
            return -math.inf
        error = math.sqrt(size / (size - 1) * ((gain - mean * count) ** 2).sum()) / count.sum()
        return float(mean - stdtrit(size - 1, (1 + CONFIDENCE) / 2) * error)


class HeldOutText:
    """A split with fixed sequences and masks, on which models are measured."""

    def __init__(
        self,
        dataset: PreparedDataset,
        sampler: ExampleSource,
        max_sequences: int | None,
        batch_sequences: int = SEQUENCES_AT_ONCE,
        precision: str = "fp32",
    ) -> None:
        """Measure at most `max_sequences` sequences of a sampler of the dataset, whose train split is counted."""
        self.vocab, self.train = dataset.tokenizer.facts, dataset.splits["train"]
        self.sampler, self.precision, self.batch_sequences = sampler, precision, batch_sequences
        self.size = sampler.epoch_length if max_sequences is None else min(max_sequences, sampler.epoch_length)

    def measure(self, ranks: Ranks, model: nn.Module) -> SplitLosses:
        """Measure a model; each process computes a part. Raises NumericsError if a loss is not finite."""
        num_groups = -(-self.size // SHUFFLED_TOGETHER)
        first, last = (
            min(self.size, SHUFFLED_TOGETHER * (num_groups * rank // ranks.size))
            for rank in (ranks.rank, ranks.rank + 1)
        )
        with evaluation_mode(model):
            measured = [self._sums(model, batch) for batch in self._batches(first, last, self.batch_sequences)]
            shuffled = [self._shuffled_sums(model, batch) for batch in self._batches(first, last, SHUFFLED_TOGETHER)]
        own = [
            Sums.joined(parts) for parts in ((part[0] for part in measured), (part[1] for part in measured), shuffled)
        ]
        everyone = ranks.on_every(lambda: own)
        tokens, sentences, moved = (Sums.joined(part[index] for part in everyone) for index in range(3))
        objective = loss_name(self.sampler.in_order(0, 1).token_head)
        for name, sums in ((objective, tokens), ("nsp", sentences)):
            if not np.isfinite(sums.loss).all():
                raise NumericsError(
                    f"{name}_loss={sums.loss.sum()} on prepared text: the weights are too large or damaged; use another "
                    "checkpoint, or train again with a lower optimizer.peak_learning_rate="
                )
        documents = self.sampler.documents(0, self.size)
        return SplitLosses(objective, documents, tokens, self._counting, moved, sentences)

    def metrics_of(self, ranks: Ranks, model: nn.Module) -> dict[str, float]:
        """Measure a model; return the means by name."""
        return self.measure(ranks, model).metrics()

    @functools.cached_property
    def _counting(self) -> Sums:
        """The predictions by counting; the same for all models."""
        counts = token_counts(self.train, self.vocab.size)
        counting = Counting.of(counts, self._batches(0, self.size, SHUFFLED_TOGETHER), self.vocab)
        batches = self._batches(0, self.size, SHUFFLED_TOGETHER)
        return Sums.joined(Sums.of_tokens(batch, counting.predict(batch), self.vocab.mask) for batch in batches)

    def _batches(self, first: int, last: int, size: int) -> Iterator[Batch]:
        for start in range(first, last, size):
            yield self.sampler.in_order(start, min(start + size, last))

    def _sums(self, model: nn.Module, batch: Batch) -> tuple[Sums, Sums]:
        """Sum the predictions of the tokens of a batch, and of its next sentences."""
        tokens, pairs = _predict(model, batch, self.precision)
        every = np.arange(len(pairs.losses))
        return Sums.of_tokens(batch, tokens, self.vocab.mask), Sums.of(every, len(every), pairs, np.zeros(len(every)))

    def _shuffled_sums(self, model: nn.Module, batch: Batch) -> Sums:
        """Sum the predictions of the tokens of a batch, each in the sequence from which it comes, after its words were shuffled."""
        words = shuffle_words(batch, self.vocab)
        moved, _ = _predict(model, words.batch, self.precision)
        back = np.argsort(words.order)
        return Sums.of_tokens(batch, Predicted(moved.losses[back], moved.are_correct[back]), self.vocab.mask)


@torch.no_grad()
def _predict(model: nn.Module, batch: Batch, precision: str) -> tuple[Predicted, Predicted]:
    """Predict the masked or next tokens of a batch, (M,), and its next sentences, (B,) or, without pairs or their head, (0,)."""
    logits = outputs(model, batch, precision).logits
    sentences = Predicted(np.zeros(0), np.zeros(0, bool))
    if "next_sentence" in batch.targets and "next_sentence" in logits:
        sentences = _compared(logits["next_sentence"], batch.targets["next_sentence"].labels)
    return _compared(logits[batch.token_head], batch.masked_labels), sentences


def _compared(logits: Tensor, labels: NDArray[np.int64]) -> Predicted:
    known = torch.from_numpy(labels).to(logits.device)
    losses = F.cross_entropy(in_float32(logits), known, reduction="none")
    return Predicted(losses.double().cpu().numpy(), (logits.argmax(1) == known).cpu().numpy())
