"""How a global batch is cut into micro-batches, and which process takes which of them.

With `reproducibility=strict` the batch has a fixed number K of parts, a power of two, each of neighbouring micro-batches;
their gradients are added in one order (gradient_sums.py), so the result does not depend on the number of processes.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from bertkit.base.errors import InputError

# of one forward pass, where the micro-batch is chosen automatically: what fits a cache, and what fills a GPU
AUTO_MICRO_TOKENS = {"cpu": 2048, "cuda": 65536}
MIN_PARTS = 4  # so that a run can resume with 1, 2 or 4 processes, however it began


class MicroBatch(Protocol):
    """What the training loop needs to know of a batch."""

    @property
    def loss_counts(self) -> Mapping[str, float]:
        """The divisor of each loss: its number of predictions, or the sum of their weights."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens that are not padding."""


NumberedBatches = Sequence[tuple[int, MicroBatch]]  # micro-batches of a step, with their numbers in the global batch


def micro_batch_ranges(num_sequences: int, micro_sequences: int) -> list[tuple[int, int]]:
    """Cut a global batch into micro-batches: (first, last) of each; the last may be smaller."""
    return [(first, min(first + micro_sequences, num_sequences)) for first in range(0, num_sequences, micro_sequences)]


def local_micro_batches(num_micro_batches: int, process: int, num_processes: int) -> range:
    """Give the numbers of a process's micro-batches, which are neighbours.

    Raises:
        InputError: a process would have none.
    """
    if num_micro_batches < num_processes:
        raise InputError(
            f"{num_processes} processes but {num_micro_batches} micro-batches a step; raise batch.sequences, lower "
            "batch.micro_sequences, or start fewer processes (a resumed run keeps its micro-batches)"
        )
    return range(num_micro_batches * process // num_processes, num_micro_batches * (process + 1) // num_processes)


def num_parts_for(num_micro_batches: int) -> int:
    """Choose K: the largest power of two that gives each part at least one micro-batch, or 4."""
    return max(MIN_PARTS, 1 << (num_micro_batches.bit_length() - 1))


def local_parts(num_micro_batches: int, num_parts: int, process: int, num_processes: int) -> list[range]:
    """Give the micro-batches of each part of a process; with few micro-batches some parts are empty.

    Together they are the process's `local_micro_batches`.
    """
    mine = range(num_parts * process // num_processes, num_parts * (process + 1) // num_processes)
    return [range(num_micro_batches * part // num_parts, num_micro_batches * (part + 1) // num_parts) for part in mine]


def check_num_processes(num_micro_batches: int, num_parts: int | None, num_processes: int) -> None:
    """Refuse a number of processes for which a batch of at least so many micro-batches cannot be divided.

    `num_parts` is K; None without `reproducibility=strict`.

    Raises:
        InputError: a process would have no micro-batch, or K is not divisible.
    """
    if num_parts is not None and num_parts % num_processes:
        divisors = [str(1 << power) for power in range(num_parts.bit_length())]
        raise InputError(
            f"{num_processes} processes: reproducibility=strict adds the gradients of {num_parts} parts of a batch in one "
            f"order; start {', '.join(divisors[:-1])} or {divisors[-1]} processes"
        )
    local_micro_batches(num_micro_batches, 0, num_processes)
