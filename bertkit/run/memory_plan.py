"""Whether a run will fit into the memory that this machine has: refused before anything is made, or said before training.

    peak = what the process holds anyway, with the weights and the optimizer's moments
         + gradients, their copies, and copies of the state that are being saved
         + activations: what autograd keeps of a forward pass
         + what the allocator and the libraries take besides

Activations are measured. They grow evenly with the number of tokens, so that one sequence and two of them, passed through the
model as in training, tell of a micro-batch of any size. All sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertkit.base.memory import gigabytes, memory_here, require_memory
from bertkit.model.bert_config import BertConfig
from bertkit.model.heads import BertWithHeads

BYTES_OF_A_TOKEN = 32  # in a batch: its id, type, position and sequence, 8 bytes each
# Of the process on a CPU, beyond the tensors: what oneDNN and torch take on first use, and freed memory that glibc keeps.
# Fitted to steps of mini at 128 with 4 to 64 sequences and of base at 512 with 2 and 4, fp32 and bf16; 1 thread, glibc.
FIRST_USE, SHARE_KEPT_BY_ALLOCATOR = 80_000_000, 0.25


@dataclass(frozen=True)
class MicroBatch:
    """The largest micro-batch of steps of one shape.

    Attributes:
        model: that is trained.
        forward: passes so many sequences through it, as training does, and gives their number of tokens.
        standing: bytes beside the activations.
        num_tokens: of the micro-batch.
        setting: name and value of the one that its size comes from.
        tokens_of_setting: that one of it stands for.
    """

    model: BertWithHeads
    forward: Callable[[int], int]
    standing: int
    num_tokens: int = 0
    setting: tuple[str, int] = ("batch.micro_tokens", 0)
    tokens_of_setting: int = 1


def check_size(config: BertConfig, batch_sequences: int, max_seq_length: int, device: str, setting: str) -> None:
    """Refuse a model or a batch that this machine cannot hold, by the least that they need, before anything is made.

    A weight that is trained needs four numbers: itself, its gradient and two moments. Of a batch, what is sure is what its
    tokens take before they are numbers of the model.

    Raises:
        InputError: with the estimate.
    """
    names = ("hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings", "type_vocab_size")
    shape = ", ".join(f"{name}={getattr(config, name)}" for name in names)
    weights = config.num_weights
    what = f"a model of {weights:.3g} weights (model.{shape}, {config.vocab_size} tokens)"
    require_memory(what, 16 * weights, "take a smaller one", device)
    what = f"{setting}={batch_sequences} of {max_seq_length} tokens"
    require_memory(what, BYTES_OF_A_TOKEN * batch_sequences * max_seq_length, f"lower {setting}")


def standing_bytes(model: BertWithHeads, num_processes: int, is_strict: bool, saves_copies: bool) -> int:
    """Say what a step needs beside weights, moments and activations.

    Gradients; what processes exchange; the sums of parts, and one part in one piece, where gradients are added in one
    order; copies of weights and moments to be saved while training goes on.
    """
    gradients = _bytes_of(parameter for parameter in model.parameters() if parameter.requires_grad)
    copies = _bytes_of(model.parameters()) + 2 * gradients if saves_copies else 0
    return gradients * (1 + (num_processes > 1) + 3 * is_strict) + copies


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def kept_by_autograd(model: BertWithHeads, forward: Callable[[int], int], num_sequences: int) -> tuple[int, int]:
    """Pass sequences through a model; give their number of tokens, and the bytes that autograd keeps, weights aside.

    Everything stays as it is, random numbers too. Layers that are compiled are not, and need somewhat less.
    """
    first = next(model.parameters())
    kept: dict[int, torch.UntypedStorage] = {}  # by its address; holding them, so that none is used twice

    def keep(tensor: Tensor) -> None:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()

    with (
        torch.random.fork_rng(devices=[first.device] if first.is_cuda else []),
        torch.compiler.set_stance("force_eager"),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda nothing: nothing),
    ):
        num_tokens = forward(num_sequences)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    return num_tokens, sum(storage.nbytes() for place, storage in kept.items() if place not in weights)


@dataclass(frozen=True)
class Needs:
    """What steps need beyond what a process holds that has the model and the optimizer."""

    fixed: float  # with the narrowed copies of the weights in bf16
    by_token: float

    def of(self, num_tokens: int) -> int:
        """Give the bytes for micro-batches of so many tokens."""
        return round(self.fixed + self.by_token * num_tokens)

    def fitting(self, num_bytes: int) -> int:
        """Give the most tokens of a micro-batch for which so many bytes are enough."""
        return int((num_bytes - self.fixed) / self.by_token)


def needs_of(part: MicroBatch) -> Needs:
    """Measure the activations, and add what is needed beside them."""
    on_cpu = next(part.model.parameters()).device.type == "cpu"
    more, factor = (FIRST_USE, 1 + SHARE_KEPT_BY_ALLOCATOR) if on_cpu else (0, 1.0)
    (fewer, less), (tokens, kept) = (kept_by_autograd(part.model, part.forward, count) for count in (1, 2))
    by_token = (kept - less) / (tokens - fewer)
    return Needs(more + factor * (part.standing + kept - by_token * tokens), factor * by_token)


def memory_lines(parts: Sequence[MicroBatch], device: str, num_here: int) -> list[str]:
    """Say what the part that needs most will need, and warn where that is more than is free to each of the processes."""
    here = memory_here(device)
    if here is None:
        return []
    measured = [(part, needs_of(part)) for part in parts]
    part, needs = max(measured, key=lambda each: each[1].of(each[0].num_tokens))
    needed, free = needs.of(part.num_tokens), here.free // num_here
    each = "" if num_here == 1 else f" in each of {num_here} processes"
    lines = [f"expected peak memory {gigabytes(here.held + needed)}{each} of {gigabytes(here.total)} here"]
    if needed > free:
        name, value = part.setting
        fitting = needs.fitting(free) // part.tokens_of_setting
        advice = f"{name}={fitting} would fit" if 0 < fitting < value else "take a smaller model or a larger machine"
        lines.append(
            f"warning: {name}={value} needs {gigabytes(needed)} more{each}, {gigabytes(free)} are free; {advice}"
        )
    return lines
