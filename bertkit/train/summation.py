"""Sums in a fixed order, so that the last bit does not depend on how many processes there are.

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

    Args:
        tensor: this process's, of the same shape everywhere.
        process: its number.
        num_processes: a power of two.
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
