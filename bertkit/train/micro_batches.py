"""How a global batch is cut into micro-batches, which process takes which of them, and how their gradients are summed.

By default data-parallel training sums the gradients in the fastest order. Floating-point addition is not associative:
(a + b) + c and a + (b + c) differ in the last bits. With `reproducibility=strict` the batch therefore has a fixed number K of
parts, a power of two, each of neighbouring micro-batches, and their gradients are always added as a balanced binary tree,

    ((g0 + g1) + (g2 + g3)) + ((g4 + g5) + (g6 + g7))

so the result does not depend on the number of processes W. A process with K / W parts adds a whole branch of the tree alone.
Then processes 0 and 1, 2 and 3, ... exchange the sums of their branches, then 0 and 2, 1 and 3, and so on. a + b and b + a
have the same bits, so both sides of an exchange get the same sum. This is recursive doubling (Thakur, Rabenseifner and
Gropp 2005, 4.5); it replaces the all-reduce of data-parallel training, whose order is not fixed.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor, distributed, nn

from bertkit.base.errors import InputError
from bertkit.train.processes import Accelerator

# tokens in one forward pass, for batch.micro_tokens=auto: on a CPU they fit the cache, on a GPU they keep it busy
AUTO_MICRO_TOKENS = {"cpu": 2048, "cuda": 65536}
MIN_PARTS = 4  # so that any run can resume with 1, 2 or 4 processes


class MicroBatch(Protocol):
    """The properties of a batch that the training loop uses."""

    @property
    def loss_counts(self) -> Mapping[str, float]:
        """The divisor of each loss: its number of predictions, or the sum of their weights."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens without padding."""


NumberedBatches = Sequence[tuple[int, MicroBatch]]  # micro-batches in one step, with their numbers in the global batch


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


class DataParallelSum:
    """Sums gradients with data-parallel training, in the fastest order.

    Every loss is multiplied by `scale`, the number of processes: data-parallel training averages over them, and we need the sum.
    """

    def __init__(self, accelerator: Accelerator, model: nn.Module) -> None:
        self.accelerator, self.model = accelerator, model
        self.scale = accelerator.num_processes

    def parts(self, micro_batches: NumberedBatches) -> list[NumberedBatches]:
        """Return all micro-batches of this process as one part."""
        return [micro_batches]

    def exchange(self, is_last: bool) -> AbstractContextManager[None]:
        """Exchange gradients once, after the last micro-batch."""
        return nullcontext() if is_last else self.accelerator.no_sync(self.model)

    def add(self, step_sums: Tensor) -> None:
        """Store this process's sums of losses and of correct predictions; its gradient stays in the model."""
        self.step_sums = step_sums

    def finish(self) -> Tensor:
        """Return this process's sums; the model already has the gradient summed over all processes."""
        return self.step_sums

    def all_reduce(self, step_sums: Tensor) -> Tensor:
        """Sum over the processes; the last number, the gradient norm, is averaged."""
        step_sums = self.accelerator.reduce(step_sums, "sum")
        step_sums[-1] /= self.scale
        return step_sums


class OrderedSum:
    """Sums the gradients of the K parts of a batch as a binary tree, in the same order for any number of processes."""

    scale = 1

    def __init__(self, accelerator: Accelerator, model: nn.Module, num_parts: int, num_micro_batches: int) -> None:
        self.accelerator, self.model = accelerator, model
        self.num_parts, self.num_micro_batches = num_parts, num_micro_batches
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.gradients, self.step_sums = TreeSum(), TreeSum()

    def parts(self, micro_batches: NumberedBatches) -> list[NumberedBatches]:
        """Group this process's micro-batches by parts, of which some may be empty."""
        by_number, rank, size = dict(micro_batches), self.accelerator.process_index, self.accelerator.num_processes
        parts = local_parts(self.num_micro_batches, self.num_parts, rank, size)
        return [[(number, by_number[number]) for number in part] for part in parts]

    def exchange(self, is_last: bool) -> AbstractContextManager[None]:
        """Switch off the exchange of data-parallel training; `finish` exchanges the gradients."""
        return self.accelerator.no_sync(self.model)  # type: ignore[no-any-return]

    def add(self, step_sums: Tensor) -> None:
        """Add a part's sums of losses and of correct predictions, and its gradient, which is removed from the model."""
        self.step_sums.add(step_sums)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.trained]
        self.gradients.add(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        for parameter in self.trained:
            parameter.grad = None

    def finish(self) -> Tensor:
        """Write the sum of all gradients into the model; return the sums of the losses and of correct predictions."""
        rank, size = self.accelerator.process_index, self.accelerator.num_processes
        gradient, step_sums = (exchange_and_add(tree.total(), rank, size) for tree in (self.gradients, self.step_sums))
        pieces = torch.split(gradient, [parameter.numel() for parameter in self.trained])
        for parameter, piece in zip(self.trained, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
        return step_sums

    def all_reduce(self, step_sums: Tensor) -> Tensor:
        """Return the sums unchanged, because `finish` has summed them over all processes."""
        return step_sums


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
