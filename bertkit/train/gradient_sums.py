"""The sum of the gradients of a global batch: by data-parallel training, or in one fixed order.

Floating-point addition is not associative: (a + b) + c and a + (b + c) differ in the last bits. With
`reproducibility=strict` the gradients of the K parts of a batch are always added as a balanced binary tree,

    ((g0 + g1) + (g2 + g3)) + ((g4 + g5) + (g6 + g7))

A process with K / W of the parts holds a whole branch, and adds it alone. Then processes 0 and 1, 2 and 3, ... exchange
their branches, then 0 and 2, 1 and 3, and so on. a + b and b + a are the same bits, so both sides of an exchange continue
with the same sum. This is recursive doubling (Thakur, Rabenseifner and Gropp 2005, 4.5); it replaces the reducer of
data-parallel training, which has an order of its own.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, distributed, nn

from bertkit.train.micro_batches import NumberedBatches, local_parts
from bertkit.train.processes import Accelerator


class DataParallelSum:
    """Gradients added by data-parallel training, in the order that is fastest.

    `scale` is a factor for every loss: the exchange averages over the processes; times their number it is the sum.
    """

    def __init__(self, accelerator: Accelerator, model: nn.Module) -> None:
        self.accelerator, self.model = accelerator, model
        self.scale = accelerator.num_processes

    def parts(self, micro_batches: NumberedBatches) -> list[NumberedBatches]:
        """All of this process's micro-batches are one part."""
        return [micro_batches]

    def exchange(self, is_last: bool) -> AbstractContextManager[None]:
        """Exchange gradients once, after the last micro-batch."""
        return nullcontext() if is_last else self.accelerator.no_sync(self.model)

    def add(self, numbers: Tensor) -> None:
        """Take this process's numbers; its gradient is in the model."""
        self.numbers = numbers

    def finish(self) -> Tensor:
        """Give this process's numbers; the whole gradient is in the model."""
        return self.numbers

    def all_reduce(self, numbers: Tensor) -> Tensor:
        """Sum numbers over the processes; the last is the gradient's norm, the same everywhere unless a process fails."""
        numbers = self.accelerator.reduce(numbers, "sum")
        numbers[-1] /= self.scale
        return numbers


class OrderedSum:
    """Gradients of the parts of a batch, added as a tree whatever the number of processes."""

    scale = 1

    def __init__(self, accelerator: Accelerator, model: nn.Module, num_parts: int, num_micro_batches: int) -> None:
        self.accelerator, self.model = accelerator, model
        self.num_parts, self.num_micro_batches = num_parts, num_micro_batches
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.gradients, self.numbers = TreeSum(), TreeSum()

    def parts(self, micro_batches: NumberedBatches) -> list[NumberedBatches]:
        """Group this process's micro-batches by parts; some may be empty."""
        by_number, rank, size = dict(micro_batches), self.accelerator.process_index, self.accelerator.num_processes
        parts = local_parts(self.num_micro_batches, self.num_parts, rank, size)
        return [[(number, by_number[number]) for number in part] for part in parts]

    def exchange(self, is_last: bool) -> AbstractContextManager[None]:
        """Exchange nothing yet."""
        no_exchange: AbstractContextManager[None] = self.accelerator.no_sync(self.model)
        return no_exchange

    def add(self, numbers: Tensor) -> None:
        """Take a part's numbers, and its gradient out of the model."""
        self.numbers.add(numbers)
        whole = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.trained]
        self.gradients.add(torch.cat([gradient.reshape(-1) for gradient in whole]))
        for parameter in self.trained:
            parameter.grad = None

    def finish(self) -> Tensor:
        """Put the sum of all gradients into the model; give the sum of all numbers."""
        rank, size = self.accelerator.process_index, self.accelerator.num_processes
        gradient, numbers = (exchange_and_add(tree.total(), rank, size) for tree in (self.gradients, self.numbers))
        pieces = torch.split(gradient, [parameter.numel() for parameter in self.trained])
        for parameter, piece in zip(self.trained, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
        return numbers

    def all_reduce(self, numbers: Tensor) -> Tensor:
        """Nothing is left to add: `finish` gave the sums over all processes."""
        return numbers


class TreeSum:
    """Adds a power of two of tensors, one after another, as a balanced binary tree.

    It holds one sum for each finished branch, at most log2 of their number at once.
    """

    def __init__(self) -> None:
        self._branches: list[tuple[int, Tensor]] = []  # (number of tensors added, their sum), ever smaller

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
    """Sum the tensors of all processes, with the same bits everywhere: neighbours first, then pairs of them, and so on.

    The tensors have one shape; `num_processes` is a power of two.
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
