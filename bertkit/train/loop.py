"""The training loop: any module, any batches, any losses.

A step of training, whatever the number of processes and micro-batches:

    counts = all_reduce(sum of the loss counts of every micro-batch)        # before any forward pass
    for each micro-batch: backward(sum of term.sum / counts[term.name])
    clip the global norm -> learning rate -> optimizer step -> zero gradients -> StepReport

so the gradient is that of the mean over the whole global batch, exactly, however it is cut up.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from accelerate import Accelerator as Accelerator  # also for the annotations of the stages
from torch import Tensor, nn

from bertkit.errors import InputError, NumericsError
from bertkit.train import rendezvous
from bertkit.train.losses import LossTerm
from bertkit.train.optimizer import Optimizer, clip_global_norm
from bertkit.train.schedule import Schedule

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


@dataclass(frozen=True)
class StepReport:
    """What one optimizer step did, over all processes.

    Attributes:
        step: optimizer steps finished, this one included.
        losses: the mean of each loss over the global batch, before the update; without those that have no prediction
            in it, and none where the batch was left out.
        accuracies: the share of right predictions of each loss that has right ones.
        learning_rate: of this step.
        grad_norm: the global norm of the gradient before clipping.
        num_tokens: tokens of the global batch.
        seconds: wall-clock time of the step.
        stop_requested: some process was asked to stop.
    """

    step: int
    losses: dict[str, float]
    accuracies: dict[str, float]
    learning_rate: float
    grad_norm: float
    num_tokens: int
    seconds: float
    stop_requested: bool


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
            "batch.micro_sequences, or start fewer processes"
        )
    return range(num_shards * process // num_processes, num_shards * (process + 1) // num_processes)


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
    skip_steps: Sequence[int] = (),
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
        skip_steps: steps, counted from 1 as in the log, whose batches are left out.
        stop_requested: asked once a step; when any process says yes, every process's report says so.

    Raises:
        NumericsError: the gradient is not finite; the weights are those before the step.
    """
    for step in range(first_step, steps):
        yield optimizer_step(
            accelerator,
            model,
            optimizer,
            losses,
            batches(step) if step + 1 not in skip_steps else (),
            step=step,
            learning_rate=peak_learning_rate * schedule(step),
            max_grad_norm=max_grad_norm,
            seed=seed,
            stop_requested=stop_requested(),
        )


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
    stop_requested: bool,
) -> StepReport:
    """Take one step over this process's share of the global batch; without micro-batches, only report.

    Raises:
        NumericsError: the gradient is not finite; the weights are those before the step.
    """
    started_at = time.perf_counter()
    names = sorted(micro_batches[0][1].loss_counts) if micro_batches else []
    local = [sum(batch.loss_counts[name] for _, batch in micro_batches) for name in names]
    local += [sum(batch.num_tokens for _, batch in micro_batches), int(stop_requested)]
    *totals, num_tokens, stops = _all_reduce(accelerator, local).tolist()
    counts = dict(zip(names, totals, strict=True))

    sums: dict[str, Tensor | float] = dict.fromkeys(names, 0.0)
    correct: dict[str, Tensor | float] = {}
    grad_norm = 0.0
    for number, (shard, batch) in enumerate(micro_batches):
        is_last = number == len(micro_batches) - 1
        with nullcontext() if is_last else accelerator.no_sync(model):
            torch.manual_seed(_dropout_seed(seed, step, shard))
            terms = losses(model, batch)
            # a loss without any prediction is 0 with a gradient of 0, so that every parameter takes part in every step
            loss = sum(terms[name].sum / (counts[name] or 1) for name in names)
            # data-parallel training averages the gradients of the processes; their sum is wanted
            accelerator.backward(loss * accelerator.num_processes)
        for name in names:
            sums[name] = sums[name] + terms[name].sum.detach()
            right = terms[name].correct
            if right is not None:
                correct[name] = correct.get(name, 0.0) + right
    if micro_batches:
        grad_norm = clip_global_norm(model.parameters(), max_grad_norm)
        if not math.isfinite(grad_norm):
            raise NumericsError(
                f"step {step + 1}: the gradient is not finite (norm {grad_norm}), and no weight was changed by it; run "
                f"again with data.skip_steps=[{step + 1}] to leave this batch out, or elsewhere with a lower "
                "optimizer.peak_learning_rate"
            )
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * group["rate_scale"]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    totals = _all_reduce(accelerator, [*sums.values(), *correct.values()]).tolist() if names else []
    reduced = iter(totals)
    loss_sums, num_right = ({name: next(reduced) for name in part} for part in (sums, correct))
    return StepReport(
        step=step + 1,
        losses={name: total / counts[name] for name, total in loss_sums.items() if counts[name]},
        accuracies={name: total / counts[name] for name, total in num_right.items() if counts[name]},
        learning_rate=learning_rate,
        grad_norm=grad_norm,
        num_tokens=int(num_tokens),
        seconds=time.perf_counter() - started_at,
        stop_requested=bool(stops),
    )


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


def _all_reduce(accelerator: Accelerator, values: Sequence[Tensor | float]) -> Tensor:
    """Sum numbers over all processes, in float64."""
    device = accelerator.device
    tensor = torch.stack([torch.as_tensor(value, dtype=torch.float64, device=device) for value in values])
    return accelerator.reduce(tensor, "sum")  # type: ignore[no-any-return]


def _dropout_seed(seed: int, step: int, shard: int) -> int:
    """A 63-bit seed for the dropout of one micro-shard of one step."""
    digest = hashlib.blake2b(f"dropout {seed} {step} {shard}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
