"""How a global batch is cut into micro-batches, and which process takes which of them.

With `reproducibility=strict` the micro-batches form K parts, a power of two, whose gradients are added in one order
whoever holds them (`summation`).
"""

from __future__ import annotations

from bertkit.errors import InputError

# of one forward pass, where the micro-batch is chosen automatically: what fits a cache, and what fills a GPU
TOKENS_AT_ONCE = {"cpu": 2048, "cuda": 65536}
FEWEST_PARTS = 4  # so that a run can go on with 1, 2 or 4 processes, however it began


def micro_batch_ranges(num_sequences: int, micro_sequences: int) -> list[tuple[int, int]]:
    """Cut a global batch into micro-batches: (first, last) of each; the last may be smaller."""
    return [(first, min(first + micro_sequences, num_sequences)) for first in range(0, num_sequences, micro_sequences)]


def share_of_process(num_micro_batches: int, process: int, num_processes: int) -> range:
    """Give a process its neighbouring share of the micro-batches.

    Raises:
        InputError: a process would have none.
    """
    if num_micro_batches < num_processes:
        raise InputError(
            f"{num_processes} processes but {num_micro_batches} micro-batches a step; raise batch.sequences, lower "
            "batch.micro_sequences, or start fewer processes (a run that has begun keeps its micro-batches)"
        )
    first, last = process, process + 1
    return range(num_micro_batches * first // num_processes, num_micro_batches * last // num_processes)


def num_parts_for(num_micro_batches: int) -> int:
    """Choose K: the largest power of two that gives each part at least one micro-batch, or 4."""
    return max(FEWEST_PARTS, 1 << (num_micro_batches.bit_length() - 1))


def parts_of_process(num_micro_batches: int, num_parts: int, process: int, num_processes: int) -> list[range]:
    """Give the micro-batches of each of a process's parts; some parts are empty where micro-batches are few.

    Together they are the process's share, `share_of_process`.
    """
    mine = range(num_parts * process // num_processes, num_parts * (process + 1) // num_processes)
    return [range(num_micro_batches * part // num_parts, num_micro_batches * (part + 1) // num_parts) for part in mine]


def check_shares(num_micro_batches: int, num_parts: int | None, num_processes: int) -> None:
    """Refuse a number of processes that cannot train on a batch as the run cuts it.

    Args:
        num_micro_batches: of a step, the fewest there may be.
        num_parts: K; None without `reproducibility=strict`.
        num_processes: of the run.

    Raises:
        InputError: a process would have no micro-batch, or K cannot be shared out.
    """
    if num_parts is not None and num_parts % num_processes:
        fitting = [str(1 << power) for power in range(num_parts.bit_length())]
        raise InputError(
            f"{num_processes} processes: reproducibility=strict adds the gradients of {num_parts} parts of a batch in one "
            f"order, for {', '.join(fitting[:-1])} or {fitting[-1]} processes; start as many"
        )
    share_of_process(num_micro_batches, 0, num_processes)
