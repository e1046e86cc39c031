"""What an objective with heads of its own measures on prepared text: its losses and accuracies."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Protocol

import torch
from torch import nn

from bertkit.base.errors import NumericsError
from bertkit.data.batches.sampling import ExampleSource
from bertkit.data.corpus.prepared import PreparedDataset
from bertkit.inference.held_out import SEQUENCES_AT_ONCE, HeldOutText
from bertkit.model.heads import BertWithHeads, bare
from bertkit.objectives.objective import Moment, Objective
from bertkit.train.loop import evaluation_mode
from bertkit.train.processes import Ranks


class HeldOut(Protocol):
    """A split on which models are measured."""

    def metrics_of(self, ranks: Ranks, model: nn.Module) -> dict[str, float]:
        """Measure a model; each process computes a part. Raises NumericsError if a loss is not finite."""


class HeldOutLosses:
    """A split with fixed sequences and masks, on which an objective computes its losses."""

    def __init__(self, objective: Objective, sampler: ExampleSource, max_sequences: int | None, precision: str) -> None:
        self.objective, self.sampler, self.precision = objective, sampler, precision
        self.size = sampler.epoch_length if max_sequences is None else min(max_sequences, sampler.epoch_length)

    def metrics_of(self, ranks: Ranks, model: nn.Module) -> dict[str, float]:
        """Return the mean of each loss, and the share of correct predictions where there are any."""
        firsts = list(enumerate(range(0, self.size, SEQUENCES_AT_ONCE)))
        with evaluation_mode(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            own = [
                (number, self._sums(bare(model), number, first)) for number, first in firsts[ranks.rank :: ranks.size]
            ]
        totals: dict[str, list[float]] = defaultdict(lambda: [0.0] * 3)
        for sums in ranks.gather(own, len(firsts)):
            for name, parts in sums.items():
                totals[name] = [total + part for total, part in zip(totals[name], parts, strict=True)]
        metrics = {}
        for name, (loss, correct, count) in totals.items():
            if not math.isfinite(loss):
                raise NumericsError(f"{name}_loss={loss} on prepared text: lower optimizer.peak_learning_rate=")
            if count:
                metrics[f"{name}_loss"] = loss / count
                metrics |= {} if math.isnan(correct) else {f"{name}_accuracy": correct / count}
        return metrics

    def _sums(self, model: BertWithHeads, number: int, first: int) -> dict[str, tuple[float, float, float]]:
        """Return the sum, the number of correct predictions and the count of each loss, the same in every evaluation."""
        torch.manual_seed(number)
        drawn = self.sampler.in_order(first, min(first + SEQUENCES_AT_ONCE, self.size))
        batch = self.objective.prepare(drawn, Moment(0, 1, number, seed=0))
        terms = self.objective.losses(model, batch, self.precision)
        return {
            name: (float(term.sum), math.nan if term.correct is None else float(term.correct), term.count)
            for name, term in terms.items()
        }


def held_out_of(
    objective: Objective, dataset: PreparedDataset, sampler: ExampleSource, max_sequences: int | None, precision: str
) -> HeldOut:
    """Return at most `max_sequences` sequences of a sampler of the dataset, on which models of an objective are measured."""
    if objective.heads is not None:
        return HeldOutLosses(objective, sampler, max_sequences, precision)
    return HeldOutText(dataset, sampler, max_sequences, precision=precision)
