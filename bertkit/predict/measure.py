"""The losses of a model on prepared text."""

import functools
import math
from collections.abc import Iterator

from torch import nn

from bertkit.base.batch import PretrainBatch
from bertkit.base.errors import NumericsError
from bertkit.data.batches.sampling import ExampleSource
from bertkit.run.objective import pretraining_losses
from bertkit.train.loop import evaluate
from bertkit.train.processes import Accelerator


def measure_split(
    accelerator: Accelerator,
    model: nn.Module,
    sampler: ExampleSource,
    max_sequences: int | None,
    batch_sequences: int,
    precision: str = "fp32",
) -> dict[str, tuple[float, int]]:
    """Give `mlm_loss`, `mlm_accuracy`, `nsp_loss` and `nsp_accuracy` of a split, each with its number of predictions.

    The sequences are the same every time; each process takes a range of its own.

    Raises:
        NumericsError: a loss is not finite.
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
                f"{name}_loss={term.loss} on prepared text: the weights are too large or damaged; take another checkpoint, "
                "or train again with a lower optimizer.peak_learning_rate="
            )
        results |= {f"{name}_loss": (term.loss, term.count), f"{name}_accuracy": (term.accuracy, term.count)}
    return results
