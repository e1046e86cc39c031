"""Losses and accuracies without training, over all batches of all processes."""

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from bertkit.train.losses import Losses
from bertkit.train.micro_batches import MicroBatch
from bertkit.train.processes import Accelerator, gather_in_order


@dataclass(frozen=True)
class Measured:
    """The mean loss and the accuracy over a number of predictions; NaN where none is right or wrong."""

    loss: float
    accuracy: float
    count: int


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode, then restore the mode of each module; frozen modules stay in evaluation mode."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@torch.no_grad()
def evaluate(
    accelerator: Accelerator, model: nn.Module, losses: Losses, batches: Iterable[MicroBatch]
) -> dict[str, Measured]:
    """Measure each loss that has predictions; every process brings its own batches, perhaps none."""
    sums: dict[str, list[float]] = {}
    with evaluating(model):
        for batch in batches:
            for name, term in losses(model, batch).items():
                total = sums.setdefault(name, [0.0, 0.0, 0.0])
                correct = math.nan if term.correct is None else float(term.correct)
                for index, value in enumerate((float(term.sum), correct, float(term.count))):
                    total[index] += value
    gathered = gather_in_order([(accelerator.process_index, sums)], accelerator.num_processes)
    results = {}
    for name in sorted({name for part in gathered for name in part}):
        loss, correct, count = (sum(part[name][index] for part in gathered if name in part) for index in range(3))
        if count:
            results[name] = Measured(loss / count, correct / count, int(count))
    return results
