"""How a global batch is cut into micro-batches, and which process takes which of them.

Floating-point addition is not associative: (a + b) + c and a + (b + c) differ in the last bits. With
`reproducibility=strict` a global batch is a fixed number K of neighbouring parts, a power of two, and their gradients are
always added as a balanced binary tree does,

    ((g0 + g1) + (g2 + g3)) + ((g4 + g5) + (g6 + g7))

whoever holds them: a process that holds a share of K / W of them holds a whole branch, and adds it by itself; then
processes 0 and 1, 2 and 3, ... exchange their branches, then 0 and 2, 1 and 3, and so on. a + b and b + a are the same
bits, so both sides of an exchange go on with the same sum. This is recursive doubling (Thakur, Rabenseifner and Gropp
2005, 4.5), and it takes the place of the reducer of data-parallel training, whose order is its own.
"""

from __future__ import annotations

import torch
from torch import Tensor, distributed

from bertkit.base.errors import InputError

# of one forward pass, where the micro-batch is chosen automatically: what fits a cache, and what fills a GPU
AUTO_MICRO_TOKENS = {"cpu": 2048, "cuda": 65536}
FEWEST_PARTS = 4  # so that a run can go on with 1, 2 or 4 processes, however it began


def micro_batch_ranges(num_sequences: int, micro_sequences: int) -> list[tuple[int, int]]:
    """Cut a global batch into micro-batches: (first, last) of each; the last may be smaller."""
    return [(first, min(first + micro_sequences, num_sequences)) for first in range(0, num_sequences, micro_sequences)]


def local_micro_batches(num_micro_batches: int, process: int, num_processes: int) -> range:
    """Give a process its neighbouring share of the micro-batches.

    Raises:
        InputError: a process would have none.
    """
    if num_micro_batches < num_processes:
        raise InputError(
            f"{num_processes} processes but {num_micro_batches} micro-batches a step; raise batch.sequences, lower "
            "batch.micro_sequences, or start fewer processes (a run that has begun keeps its micro-batches)"
        )
    return range(num_micro_batches * process // num_processes, num_micro_batches * (process + 1) // num_processes)


def num_parts_for(num_micro_batches: int) -> int:
    """Choose K: the largest power of two that gives each part at least one micro-batch, or 4."""
    return max(FEWEST_PARTS, 1 << (num_micro_batches.bit_length() - 1))


def local_parts(num_micro_batches: int, num_parts: int, process: int, num_processes: int) -> list[range]:
    """Give the micro-batches of each of a process's parts; some parts are empty where micro-batches are few.

    Together they are the process's share, `local_micro_batches`.
    """
    mine = range(num_parts * process // num_processes, num_parts * (process + 1) // num_processes)
    return [range(num_micro_batches * part // num_parts, num_micro_batches * (part + 1) // num_parts) for part in mine]


def check_num_processes(num_micro_batches: int, num_parts: int | None, num_processes: int) -> None:
    """Refuse a number of processes that cannot train on a batch as the run cuts it.

    `num_micro_batches` are the fewest that a step may have, `num_parts` is K, None without `reproducibility=strict`.

    Raises:
        InputError: a process would have no micro-batch, or K cannot be shared out.
    """
    if num_parts is not None and num_parts % num_processes:
        fitting = [str(1 << power) for power in range(num_parts.bit_length())]
        raise InputError(
            f"{num_processes} processes: reproducibility=strict adds the gradients of {num_parts} parts of a batch in one "
            f"order, for {', '.join(fitting[:-1])} or {fitting[-1]} processes; start as many"
        )
    local_micro_batches(num_micro_batches, 0, num_processes)


class TreeSum:
    """Adds tensors that come one after another, a power of two of them, as a balanced binary tree does.

    It holds one sum for each finished branch, so at most log2 of their number at once.
    """

    def __init__(self) -> None:
        self._branches: list[tuple[int, Tensor]] = []  # tensors added, their sum; ever smaller ones

    def add(self, tensor: Tensor) -> None:
        """Add the next one."""
        size = 1
        while self._branches and self._branches[-1][0] == size:
            tensor = self._branches.pop()[1] + tensor
            size *= 2
        self._branches.append((size, tensor))

    def total(self) -> Tensor:
        """Give the sum of a power of two of tensors."""
        ((_, total),) = self._branches
        return total


def exchange_and_add(tensor: Tensor, process: int, num_processes: int) -> Tensor:
    """Give the sum of every process's tensor, the same bits on each: neighbours first, then pairs of them, and so on.

    Tensors have the same shape everywhere; `num_processes` is a power of two.
    """
    distance = 1
    while distance < num_processes:
        peer, received = process ^ distance, torch.empty_like(tensor)
        exchange = [
            distributed.P2POp(distributed.isend, tensor, peer),
            distributed.P2POp(distributed.irecv, received, peer),
        ]
        for request in distributed.batch_isend_irecv(exchange):
            request.wait()
        tensor = tensor + received
        distance *= 2
    return tensor
