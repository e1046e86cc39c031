"""The sums of a step over its micro-batches and over all processes: counts, and the gradient, as one object with one method.

By default data-parallel training sums the gradients in the fastest order. Floating-point addition is not associative:
(a + b) + c and a + (b + c) differ in the last bits. With `reproducibility=strict` the batch therefore has a fixed number K of
parts, a power of two, each of neighbouring micro-batches, and their gradients are always added as a balanced binary tree,

    ((g0 + g1) + (g2 + g3)) + ((g4 + g5) + (g6 + g7))

so the result does not depend on the number of processes W. A process with K / W parts adds a whole branch of the tree alone.
Then processes 0 and 1, 2 and 3, ... exchange the sums of their branches, then 0 and 2, 1 and 3, and so on. a + b and b + a
have the same bits, so both sides of an exchange get the same sum. This is recursive doubling (Thakur, Rabenseifner and
Gropp 2005, 4.5); it replaces the all-reduce of data-parallel training, whose order is not fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, distributed, nn

from bertkit.base.batch import Batch
from bertkit.train.micro_batches import NumberedBatches, local_parts

if TYPE_CHECKING:
    from accelerate import Accelerator


def sum_over_processes(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """Sum numbers over all processes; with gloo this does not wait for the GPU."""
    if accelerator.num_processes == 1:
        return list(values)
    device = "cpu" if "cpu:gloo" in distributed.get_backend_config() else accelerator.device
    numbers = torch.tensor(values, dtype=torch.float64, device=device)
    return accelerator.reduce(numbers, "sum").tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ForwardPass:
    """The forward pass of one micro-batch."""

    loss: Tensor  # its share of the mean loss over the global batch; has a gradient
    sums: Tensor  # numbers for the report, in float64, to be summed over the global batch


Forward = Callable[[int, Batch], ForwardPass]  # takes the number of a micro-batch in the global batch, and the batch


class GradientSum(Protocol):
    """Runs the micro-batches of a step, and sums their gradients."""

    def over(self, micro_batches: NumberedBatches, num_micro_batches: int, forward: Forward) -> Tensor:
        """Run this process's micro-batches forward and backward; the model then has the gradient of the global batch.

        Returns the sums of the forward passes over the global batch, which has `num_micro_batches` micro-batches.
        """


def gradient_sum(accelerator: Accelerator, model: nn.Module, num_parts: int | None) -> GradientSum:
    """Return an `OrderedSum` of this number of parts; for None a `DataParallelSum`."""
    if num_parts is None:
        return DataParallelSum(accelerator, model)
    return OrderedSum(accelerator, model, num_parts)


class DataParallelSum:
    """Sums gradients with data-parallel training, in the fastest order."""

    def __init__(self, accelerator: Accelerator, model: nn.Module) -> None:
        self.accelerator, self.model = accelerator, model

    def over(self, micro_batches: NumberedBatches, num_micro_batches: int, forward: Forward) -> Tensor:
        """Exchange gradients once, during the last backward pass."""
        *earlier, last = micro_batches
        sums: list[Tensor] = []
        with self.accelerator.no_sync(self.model):
            for number, batch in earlier:
                sums.append(self._backward(forward(number, batch)))
        sums.append(self._backward(forward(*last)))
        return self.accelerator.reduce(sum(sums), "sum")  # type: ignore[no-any-return]

    def _backward(self, forward: ForwardPass) -> Tensor:
        # data-parallel training averages the gradients of the processes, and we need their sum
        self.accelerator.backward(forward.loss * self.accelerator.num_processes)
        return forward.sums


class OrderedSum:
    """Sums the gradients of the K parts of a batch as a binary tree, in the same order for any number of processes."""

    def __init__(self, accelerator: Accelerator, model: nn.Module, num_parts: int) -> None:
        self.accelerator, self.model, self.num_parts = accelerator, model, num_parts
        self.rank, self.size = accelerator.process_index, accelerator.num_processes
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def over(self, micro_batches: NumberedBatches, num_micro_batches: int, forward: Forward) -> Tensor:
        """Add the parts of this process, of which some may be empty, then those of the others."""
        by_number, gradients, sums = dict(micro_batches), TreeSum(), list[list[Tensor]]()
        with self.accelerator.no_sync(self.model):  # the exchange is ours
            for part in local_parts(num_micro_batches, self.num_parts, self.rank, self.size):
                sums.append([self._run(forward(number, by_number[number])) for number in part])
                gradients.add(self._take_gradient())
        self._put_gradient(exchange_and_add(gradients.total(), self.rank, self.size))
        nothing = torch.zeros_like(next(numbers for part in sums for numbers in part))
        tree = TreeSum()
        for of_part in sums:
            tree.add(sum(of_part, nothing))
        return exchange_and_add(tree.total(), self.rank, self.size)

    def _run(self, forward: ForwardPass) -> Tensor:
        self.accelerator.backward(forward.loss)
        return forward.sums

    def _take_gradient(self) -> Tensor:
        """Move the gradient out of the model, as one vector."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.trained]
        for parameter in self.trained:
            parameter.grad = None
        return torch.cat([gradient.reshape(-1) for gradient in gradients])

    def _put_gradient(self, gradient: Tensor) -> None:
        pieces = torch.split(gradient, [parameter.numel() for parameter in self.trained])
        for parameter, piece in zip(self.trained, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)


class TreeSum:
    """Sums 2^n tensors, one after another, as a balanced binary tree; it stores at most n + 1 tensors at once."""

    def __init__(self) -> None:
        self._branches: list[tuple[int, Tensor]] = []  # (number of tensors, their sum), largest first

    def add(self, tensor: Tensor) -> None:
        """Add the next tensor."""
        size = 1
        while self._branches and self._branches[-1][0] == size:
            tensor = self._branches.pop()[1] + tensor
            size *= 2
        self._branches.append((size, tensor))

    def total(self) -> Tensor:
        """Return the sum; the number of tensors must be a power of two."""
        ((_, total),) = self._branches
        return total


def exchange_and_add(tensor: Tensor, process: int, num_processes: int) -> Tensor:
    """Sum a tensor over all processes by recursive doubling; the result has the same bits on every process.

    The tensors have the same shape, and `num_processes` is a power of two.
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
