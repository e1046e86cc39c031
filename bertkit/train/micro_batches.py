"""How a global batch is cut into micro-batches, and which process takes which of them; `gradient_sum.py` adds their gradients."""

from collections.abc import Sequence

from bertkit.base.batch import Batch
from bertkit.base.errors import InputError

# tokens in one forward pass, for batch.micro_tokens=auto: on a CPU they fit the cache, on a GPU they keep it busy
AUTO_MICRO_TOKENS = {"cpu": 2048, "cuda": 65536}
MIN_PARTS = 4  # so that any run can resume with 1, 2 or 4 processes


NumberedBatches = Sequence[tuple[int, Batch]]  # micro-batches in one step, with their numbers in the global batch


def micro_batch_ranges(num_sequences: int, micro_sequences: int) -> list[tuple[int, int]]:
    """Return the ranges (start, end) of the micro-batches in a global batch; the last one may be smaller."""
    return [(first, min(first + micro_sequences, num_sequences)) for first in range(0, num_sequences, micro_sequences)]


def local_micro_batches(num_micro_batches: int, process: int, num_processes: int) -> range:
    """Return the numbers of the micro-batches that a process takes, a contiguous range with at least one."""
    if num_micro_batches < num_processes:
        raise InputError(
            f"{num_processes} processes but {num_micro_batches} micro-batches a step; raise batch.sequences, lower "
            "batch.micro_sequences, or start fewer processes (a resumed run keeps its micro-batches)"
        )
    return range(num_micro_batches * process // num_processes, num_micro_batches * (process + 1) // num_processes)


def num_parts_for(num_micro_batches: int) -> int:
    """Choose K: the largest power of two that gives each part at least one micro-batch, but at least 4."""
    return max(MIN_PARTS, 1 << (num_micro_batches.bit_length() - 1))


def local_parts(num_micro_batches: int, num_parts: int, process: int, num_processes: int) -> list[range]:
    """Return the ranges of micro-batches in each part of a process; their union is `local_micro_batches`.

    With fewer micro-batches than parts, some parts are empty.
    """
    mine = range(num_parts * process // num_processes, num_parts * (process + 1) // num_processes)
    return [range(num_micro_batches * part // num_parts, num_micro_batches * (part + 1) // num_parts) for part in mine]


def check_num_processes(num_micro_batches: int, num_parts: int | None, num_processes: int) -> None:
    """Check that a batch can be divided among the processes.

    `num_micro_batches` is the smallest number of micro-batches in a step; `num_parts` is K, or None without
    `reproducibility=strict`. Raises InputError if a process would have no micro-batch, or K is not divisible by the number of
    processes.
    """
    if num_parts is not None and num_parts % num_processes:
        divisors = [str(1 << power) for power in range(num_parts.bit_length())]
        raise InputError(
            f"{num_processes} processes: reproducibility=strict divides a batch into {num_parts} parts, the same number for "
            f"each process; start {', '.join(divisors[:-1])} or {divisors[-1]} processes"
        )
    local_micro_batches(num_micro_batches, 0, num_processes)
