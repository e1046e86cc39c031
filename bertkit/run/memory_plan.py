"""How much memory a run needs: a check before the model is made, and an estimate before training. All sizes are bytes.

    peak = memory of the process with the weights and the moments of the optimizer
         + buffers: gradients, copies of them, and copies of the state that is being saved
         + activations, which autograd keeps from the forward pass for the backward pass
         + overhead of the allocator and the libraries

Activations grow linearly with the number of tokens. They are measured with one sequence and with two, and extrapolated to
the size of a micro-batch.
"""

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from bertkit.base.memory import gigabytes, memory_here, require_memory
from bertkit.model.bert_config import BertConfig
from bertkit.model.heads import BertWithHeads, Trained, num_parameters

TOO_MANY = 2**61  # float32 numbers; torch counts their bytes in 64 bits
BYTES_OF_A_TOKEN = 32  # in a batch: token id, segment id, position and sequence number, 8 bytes each
# On a CPU, in addition to the tensors: memory that oneDNN and torch allocate on first use, and freed memory that glibc keeps.
# Fitted to measurements: mini at length 128 with 4 to 64 sequences, base at length 512 with 2 and 4; fp32 and bf16; 1 thread.
FIRST_USE, SHARE_KEPT_BY_ALLOCATOR = 80_000_000, 0.25
# With recompute=layers, autograd keeps one layer and the inputs of the others; the backward pass of a layer needs about as much
# again for tensors that it frees. Fitted to hidden sizes 256 and 512 with 4 to 32 sequences of 128 and 512 tokens, and to base.
RECOMPUTING = 2


class Setting(NamedTuple):
    """A setting of the size of a micro-batch."""

    name: str
    value: int
    unit: int  # tokens per unit of the value


@dataclass(frozen=True)
class LargestBatch:
    """The largest micro-batch among the steps with the same sequence length."""

    forward: Callable[[int], int]  # takes a number of sequences, runs the model on them, returns the number of tokens
    num_tokens: int
    max_seq_length: int
    by_sequences: bool  # whether batch.micro_sequences, not batch.micro_tokens, sets its size

    @property
    def setting(self) -> Setting:
        """The setting of its size."""
        if self.by_sequences:
            num_sequences = -(-self.num_tokens // self.max_seq_length)
            return Setting("batch.micro_sequences", num_sequences, self.max_seq_length)
        return Setting("batch.micro_tokens", self.num_tokens, 1)


def check_size(config: BertConfig, batch_sequences: int, max_seq_length: int, device: str) -> None:
    """Raise InputError if a model and a batch cannot fit into the memory of this machine, before they are made.

    A weight needs at least four float32 numbers: itself, its gradient, and two moments.
    """
    names = ("hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings", "type_vocab_size")
    shape = ", ".join(f"{name}={vars(config)[name]}" for name in names)
    weights = num_weights(config)
    model = f"a model of {weights:.3g} weights (model.{shape}, {config.vocab_size} tokens)"
    require_memory(model, 16 * weights, "take a smaller one", device)
    batch = f"batch.sequences={batch_sequences} of {max_seq_length} tokens"
    require_memory(batch, BYTES_OF_A_TOKEN * batch_sequences * max_seq_length, "lower batch.sequences")


def num_weights(config: BertConfig) -> int:
    """Return the number of weights in encoder and embeddings, without pooler and heads; for a matrix of too many `TOO_MANY`.

    They are those of a model with two layers, and for each further layer those of its third one: ten thousand layers take a minute.
    """
    with contextlib.suppress(RuntimeError), torch.device("meta"):
        two, three = (BertWithHeads(replace(config, num_hidden_layers=n), (), with_pooler=False) for n in (2, 3))
        of_two, of_three = num_parameters(two.parameters()), num_parameters(three.parameters())
        return of_two + (config.num_hidden_layers - 2) * (of_three - of_two)
    return TOO_MANY


def buffer_bytes(model: Trained, num_processes: int, is_strict: bool, saves_copies: bool) -> int:
    """Return the size of the buffers that a step needs in addition to weights, moments and activations.

    The buffers are the gradients; with several processes, a buffer to exchange them; with `is_strict`, three more copies for
    the ordered sum; with `saves_copies`, copies of weights and moments for a save in the background.
    """
    gradients = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    copies = sum(parameter.nbytes for parameter in model.parameters()) + 2 * gradients if saves_copies else 0
    return gradients * (1 + (num_processes > 1) + 3 * is_strict) + copies


def _uncompiled() -> contextlib.AbstractContextManager[None]:
    """Run layers uncompiled. None is compiled before torch's compiler is imported, which takes seconds."""
    is_imported = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if is_imported else contextlib.nullcontext()


class Activations(NamedTuple):
    """What autograd keeps after a forward pass, without the weights."""

    num_tokens: int
    num_bytes: int


def measure_activations(model: Trained, forward: Callable[[int], int], num_sequences: int) -> Activations:
    """Run a model on some sequences, and measure what autograd keeps.

    The random state and the model are not changed. Layers run uncompiled, so this slightly overestimates.
    """
    first = next(model.parameters())
    kept: dict[int, torch.UntypedStorage] = {}  # by address, which is unique while the storage exists

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor  # an objective may compute gradients in its forward pass

    with (
        torch.random.fork_rng(devices=[first.device] if first.is_cuda else []),
        _uncompiled(),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        num_tokens = forward(num_sequences)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    num_bytes = sum(storage.nbytes() for address, storage in kept.items() if address not in weights)
    return Activations(num_tokens, num_bytes)


@dataclass(frozen=True)
class MemoryNeeds:
    """The bytes that a step needs, in addition to the model and the optimizer."""

    fixed: float  # includes the bf16 copies of the weights
    per_token: float

    def num_bytes(self, num_tokens: int) -> int:
        """Return the bytes for a micro-batch of `num_tokens` tokens."""
        return round(self.fixed + self.per_token * num_tokens)

    def max_tokens(self, num_bytes: int) -> int:
        """Return the largest number of tokens in a micro-batch that needs at most `num_bytes`."""
        return int((num_bytes - self.fixed) / self.per_token)


def measure_needs(model: Trained, buffers: int, batch: LargestBatch, recomputes: bool = False) -> MemoryNeeds:
    """Measure the activations of one and two sequences, and add `buffers` bytes."""
    on_cpu = next(model.parameters()).device.type == "cpu"
    first_use, factor = (FIRST_USE, 1 + SHARE_KEPT_BY_ALLOCATOR) if on_cpu else (0, 1.0)
    one, two = (measure_activations(model, batch.forward, count) for count in (1, 2))
    times = RECOMPUTING if recomputes else 1
    per_token = times * (two.num_bytes - one.num_bytes) / (two.num_tokens - one.num_tokens)
    fixed = buffers + times * two.num_bytes - per_token * two.num_tokens
    return MemoryNeeds(first_use + factor * fixed, factor * per_token)


def memory_lines(
    model: Trained, buffers: int, batches: Sequence[LargestBatch], num_here: int, recomputes: bool = False
) -> list[str]:
    """Describe the expected peak memory, and warn if it exceeds the free memory, divided by the processes on this machine."""
    here = memory_here(next(model.parameters()).device.type)
    measured = [(batch, measure_needs(model, buffers, batch, recomputes)) for batch in batches]
    batch, needs = max(measured, key=lambda pair: pair[1].num_bytes(pair[0].num_tokens))
    needed, free = needs.num_bytes(batch.num_tokens), here.free // num_here
    where = "" if num_here == 1 else f" in each of {num_here} processes"
    lines = [f"expected peak memory {gigabytes(here.held + needed)}{where} of {gigabytes(here.total)} here"]
    if needed > free:
        name, value, unit = batch.setting
        fitting = needs.max_tokens(free) // unit
        advice = f"{name}={fitting} would fit" if 0 < fitting < value else "take a smaller model or a larger machine"
        lines.append(
            f"warning: {name}={value} needs {gigabytes(needed)} more{where}, {gigabytes(free)} are free; {advice}"
        )
    return lines
