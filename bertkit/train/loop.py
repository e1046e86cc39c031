"""The training loop: any module, any batches, any losses.

A step of training, whatever the number of processes and micro-batches:

    counts = all_reduce(sum of the loss counts of every micro-batch)        # before any forward pass
    for each micro-batch: backward(sum of term.sum / counts[term.name])
    clip the global norm -> learning rate -> optimizer step, unless a number is not finite -> zero gradients -> StepReport

so the gradient is that of the mean over the whole global batch, exactly, however it is cut up. Whether a step is skipped
is decided on the device, from numbers summed over all processes; the host reads them later, when the next step is under
way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from accelerate import Accelerator as Accelerator  # also for the annotations of the stages
from torch import Tensor, nn

from bertkit.errors import InputError
from bertkit.train import rendezvous
from bertkit.train.checkpoint import Ranks
from bertkit.train.losses import LossTerm
from bertkit.train.optimizer import Optimizer, clip_global_norm
from bertkit.train.schedule import Schedule
from bertkit.train.step_report import NO_SKIPS, Numbers, Skips
from bertkit.train.step_report import StepReport as StepReport
from bertkit.train.summation import TreeSum, check_processes, shards_of_parts, sum_over_processes

TOKENS_AT_ONCE = {"cpu": 2048, "cuda": 65536}  # of one forward pass, where the micro-batch is chosen automatically
T = TypeVar("T")


class MicroBatch(Protocol):
    """What the loop needs to know of a batch."""

    @property
    def loss_counts(self) -> Mapping[str, float]:
        """What each loss is divided by: its number of predictions, or the sum of their weights."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens that are not padding."""


Losses = Callable[[nn.Module, Any], dict[str, LossTerm]]
Numbered = Sequence[tuple[int, MicroBatch]]


def choose_device(device: str) -> torch.device:
    """Choose between "cpu" and "cuda"; auto takes CUDA where there is one.

    Raises:
        InputError: a CUDA device is asked for and there is none.
    """
    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        raise InputError("device=cuda: no CUDA device here; set device=cpu or device=auto")
    return torch.device("cuda" if has_cuda and device != "cpu" else "cpu")


def make_accelerator(device: str, num_processes: int) -> Accelerator:
    """Set up processes and device.

    Args:
        device: "auto", "cpu" or "cuda"; auto takes CUDA where there is one.
        num_processes: the world that was asked for; accelerate would quietly train in a smaller one.

    Raises:
        InputError: a CUDA device is asked for and there is none, or the world is another one.
    """
    chosen = choose_device(device).type
    rendezvous.join(chosen)
    accelerator = Accelerator(cpu=chosen == "cpu", gradient_accumulation_steps=1)
    if accelerator.num_processes != num_processes:
        raise InputError(
            f"{num_processes} processes were started but {accelerator.num_processes} found each other; start them with "
            f"launch.num_processes={num_processes}, or with torchrun"
        )
    return accelerator


def add_in_one_order(device: torch.device) -> None:
    """Let a GPU add in the same order every time; by itself torch leaves some sums, as in attention, to chance.

    Operators that cannot are refused from then on. A CPU always does.
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as torch asks for; before the first product
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nothing here reads it, and filling takes time


@contextlib.contextmanager
def leaving_together(accelerator: Accelerator) -> Iterator[None]:
    """Let no process end before the others, and close their connections: left open, they abort the interpreter's end."""
    try:
        yield
        accelerator.wait_for_everyone()
    finally:
        if accelerator.num_processes > 1:
            torch.distributed.destroy_process_group()


def on_main_process(accelerator: Accelerator, function: Callable[[], T]) -> T:
    """Call a function on the main process only; every process gets its result, or raises its error."""
    outcome: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            outcome[0] = function()
        except Exception as error:
            outcome[1] = error
    if accelerator.num_processes > 1:
        torch.distributed.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]  # type: ignore[no-any-return]


def ranks_of(accelerator: Accelerator) -> Ranks:
    """Connect the processes for saving, apart from training, so that both can go on at a time; all of them call this."""
    if accelerator.num_processes == 1:
        return Ranks()
    group = torch.distributed.new_group(backend="gloo", timeout=rendezvous.patience())
    return Ranks(accelerator.process_index, accelerator.num_processes, group)


def micro_shards(num_sequences: int, micro_sequences: int) -> list[tuple[int, int]]:
    """Cut a global batch into its micro-shards: (first, last) of each; the last may be smaller."""
    return [(first, min(first + micro_sequences, num_sequences)) for first in range(0, num_sequences, micro_sequences)]


def shards_of_process(num_shards: int, process: int, num_processes: int) -> range:
    """Give a process its neighbouring share of the micro-shards.

    Raises:
        InputError: a process would have none.
    """
    if num_shards < num_processes:
        raise InputError(
            f"{num_processes} processes but {num_shards} micro-batches a step; raise batch.sequences, lower "
            "batch.micro_sequences, or start fewer processes (a run that has begun keeps its micro-batches)"
        )
    return range(num_shards * process // num_processes, num_shards * (process + 1) // num_processes)


def check_layout(num_shards: int, num_parts: int | None, num_processes: int) -> None:
    """Refuse a number of processes that cannot train on a batch as the run cuts it.

    Args:
        num_shards: micro-batches of a step, the fewest there may be.
        num_parts: as for `train`.
        num_processes: all of the run's.

    Raises:
        InputError: a process would have no micro-batch, or the gradients could not be added in the run's order.
    """
    if num_parts is not None:
        check_processes(num_parts, num_processes)
    shards_of_process(num_shards, 0, num_processes)


def train(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Optimizer,
    losses: Losses,
    batches: Callable[[int], Numbered],
    *,
    first_step: int,
    steps: int,
    peak_learning_rate: float,
    schedule: Schedule,
    max_grad_norm: float,
    seed: int,
    num_parts: int | None = None,
    skip_steps: Sequence[int] = (),
    skips: Skips = NO_SKIPS,
    is_read: Callable[[int], bool] = lambda step: True,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Iterator[StepReport]:
    """Train from `first_step` to `steps`, giving a report after each optimizer step.

    Args:
        accelerator: what `make_accelerator` gave.
        model: prepared by the accelerator, in training mode.
        optimizer: over the model's parameters.
        losses: model and micro-batch -> loss terms.
        batches: step -> this process's numbered micro-batches of it.
        first_step: steps done already.
        steps: where to stop.
        peak_learning_rate: what the schedule multiplies.
        schedule: step, counted from 0 -> multiplier.
        max_grad_norm: the global norm is clipped to this.
        seed: of the dropout, which is a function of (seed, step, micro-shard).
        num_parts: add the gradients of so many parts of the global batch in one order, the same for every number of
            processes (`summation`); None leaves the order to data-parallel training.
        skip_steps: steps, counted from 1 as in the log, whose batches are left out.
        skips: of the steps done already.
        is_read: whether the numbers of a step, counted from 1, will be read at once; those of other steps are read one
            step later, when the device is done with them anyway, to find out which were skipped.
        stop_requested: asked once a step; when any process says yes, every process's report says so.
    """
    unread: list[StepReport] = []
    for step in range(first_step, steps):
        started_at = time.perf_counter()
        report = optimizer_step(
            accelerator,
            model,
            optimizer,
            losses,
            batches(step) if step + 1 not in skip_steps else (),
            step=step,
            learning_rate=peak_learning_rate * schedule(step),
            max_grad_norm=max_grad_norm,
            seed=seed,
            num_parts=num_parts,
            stop_requested=stop_requested(),
        )
        if not report.is_left_out:
            unread.append(report)
        found = []
        reads_all = is_read(step + 1) or report.stop_requested or step + 1 == steps
        while len(unread) > (0 if reads_all else 1):
            oldest = unread.pop(0)
            skips = skips.after(oldest.fault is not None)
            if oldest.fault is not None and oldest is not report:
                found.append(oldest)
        seconds = time.perf_counter() - started_at
        yield dataclasses.replace(report, seconds=seconds, is_read=reads_all, skips=skips, found=tuple(found))


def optimizer_step(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Optimizer,
    losses: Losses,
    micro_batches: Numbered,
    *,
    step: int,
    learning_rate: float,
    max_grad_norm: float,
    seed: int,
    num_parts: int | None,
    stop_requested: bool,
) -> StepReport:
    """Take one step over this process's share of the global batch; without micro-batches, only report."""
    world = accelerator.num_processes
    names = sorted(micro_batches[0][1].loss_counts) if micro_batches else []
    local = [sum(batch.loss_counts[name] for _, batch in micro_batches) for name in names]
    local += [sum(batch.num_tokens for _, batch in micro_batches), len(micro_batches), int(stop_requested)]
    *totals, num_tokens, num_shards, stops = _sum_over_processes(accelerator, local)
    report = StepReport(
        step=step + 1,
        learning_rate=learning_rate,
        num_tokens=int(num_tokens),
        stop_requested=bool(stops),
        counts=dict(zip(names, totals, strict=True)),
        scored=frozenset(),
        numbers=None,
    )
    if not micro_batches:
        return report

    scored: set[str] = set()

    def backward(part: Numbered, are_averaged: bool) -> Tensor:
        """Add the gradient of a part of the batch; give for each loss the sum, and then the right predictions."""
        numbers = torch.zeros(2 * len(names), dtype=torch.float64, device=accelerator.device)
        for number, (shard, batch) in enumerate(part):
            is_last = are_averaged and number == len(part) - 1
            with nullcontext() if is_last else accelerator.no_sync(model):
                torch.manual_seed(_dropout_seed(seed, step, shard))
                terms = losses(model, batch)
                # a loss without any prediction is 0 with a gradient of 0, so that every parameter takes part in every step
                loss = sum(terms[name].sum / (report.counts[name] or 1) for name in names)
                # data-parallel training averages the gradients of the processes; their sum is wanted
                accelerator.backward(loss * world if are_averaged else loss)
            for index, name in enumerate(names):
                right = terms[name].correct
                numbers[index] += terms[name].sum.detach()
                if right is not None:
                    scored.add(name)
                    numbers[len(names) + index] += right
        return numbers

    if num_parts is None:
        numbers = backward(micro_batches, are_averaged=True)
    else:
        by_number = dict(micro_batches)
        parts = shards_of_parts(int(num_shards), num_parts, accelerator.process_index, world)
        numbered_parts = [[(number, by_number[number]) for number in part] for part in parts]
        numbers = _add_in_order(accelerator, model, numbered_parts, lambda part: backward(part, are_averaged=False))
    grad_norm = clip_global_norm(model.parameters(), max_grad_norm)
    numbers = torch.cat([numbers, grad_norm[None].to(numbers)])
    if num_parts is None:
        numbers = accelerator.reduce(numbers, "sum")
        numbers[-1] /= world  # the norm, the same one on every process unless one of them fails
    # every process sees the same numbers, and so decides alike
    optimizer.found_inf = (~torch.isfinite(numbers).all()).to(torch.float32)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["rate_scale"]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return dataclasses.replace(report, scored=frozenset(scored), numbers=Numbers(numbers))


def _add_in_order(
    accelerator: Accelerator, model: nn.Module, parts: Sequence[Numbered], backward: Callable[[Numbered], Tensor]
) -> Tensor:
    """Leave in the model the sum of the gradients of all parts of all processes; give the sum of their numbers."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients, numbers = TreeSum(), TreeSum()
    for part in parts:
        numbers.add(backward(part))
        gradients.add(torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in trained]))
        for parameter in trained:
            parameter.grad = None
    gradient, total = (
        sum_over_processes(branch.total(), accelerator.process_index, accelerator.num_processes)
        for branch in (gradients, numbers)
    )
    pieces = torch.split(gradient, [parameter.numel() for parameter in trained])
    for parameter, piece in zip(trained, pieces, strict=True):
        parameter.grad = piece.view_as(parameter)
    return total


@dataclass(frozen=True)
class Measured:
    """The mean loss and the accuracy over a number of predictions; NaN where none is right or wrong."""

    loss: float
    accuracy: float
    count: int


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and afterwards each of its modules back into the mode that it was in.

    Frozen parts stay in evaluation mode while the others train.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@torch.no_grad()
def evaluate(
    accelerator: Accelerator, model: nn.Module, losses: Losses, batches: Iterator[MicroBatch]
) -> dict[str, Measured]:
    """Measure each loss that has predictions over all batches of all processes.

    Every process brings its own, disjoint batches; it may have none.
    """
    sums: dict[str, list[float]] = {}
    with evaluating(model):
        for batch in batches:
            for name, term in losses(model, batch).items():
                total = sums.setdefault(name, [0.0, 0.0, 0.0])
                correct = math.nan if term.correct is None else float(term.correct)
                for index, value in enumerate((float(term.sum), correct, float(term.count))):
                    total[index] += value
    gathered: list[dict[str, list[float]]] = [sums]
    if accelerator.num_processes > 1:
        gathered = [{} for _ in range(accelerator.num_processes)]
        torch.distributed.all_gather_object(gathered, sums)
    names = sorted({name for part in gathered for name in part})
    results = {}
    for name in names:
        loss, correct, count = (sum(part[name][index] for part in gathered if name in part) for index in range(3))
        if count:
            results[name] = Measured(loss / count, correct / count, int(count))
    return results


def _sum_over_processes(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """Sum numbers of the host over all processes; a process by itself does not ask its device."""
    if accelerator.num_processes == 1:
        return list(values)
    # where the hosts are connected too, their numbers need not wait for the work of a GPU
    device = "cpu" if "cpu:gloo" in torch.distributed.get_backend_config() else accelerator.device
    numbers = torch.tensor(values, dtype=torch.float64, device=device)
    return accelerator.reduce(numbers, "sum").tolist()  # type: ignore[no-any-return]


def _dropout_seed(seed: int, step: int, shard: int) -> int:
    """A 63-bit seed for the dropout of one micro-shard of one step."""
    digest = hashlib.blake2b(f"dropout {seed} {step} {shard}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
