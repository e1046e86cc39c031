"""How much memory a run needs: a refusal before anything is made, and an estimate before training.

    peak = the process with the weights and the optimizer's moments
         + gradients, their copies, and copies of the state that is being saved
         + activations, which autograd keeps during a forward pass
         + overhead of the allocator and the libraries

Activations are measured with one and with two sequences. They grow linearly with the number of tokens, which gives the
need of a micro-batch of any size. All sizes are bytes.
"""

from collections.abc import Callable, Sequence
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
class LargestBatch:
    """The largest micro-batch of the steps with one sequence length."""

    forward: Callable[[int], int]  # passes so many sequences through the model, and gives their number of tokens
    num_tokens: int
    max_seq_length: int
    by_sequences: bool  # whether batch.micro_sequences decides on its size, and not batch.micro_tokens

    @property
    def setting(self) -> tuple[str, int, int]:
        """The setting that decides on its size: name, value, and tokens for each unit of the value."""
        if self.by_sequences:
            return "batch.micro_sequences", -(-self.num_tokens // self.max_seq_length), self.max_seq_length
        return "batch.micro_tokens", self.num_tokens, 1


def check_size(config: BertConfig, batch_sequences: int, max_seq_length: int, device: str) -> None:
    """Refuse a model or a batch that is too large for this machine, before anything is made.

    A weight needs at least four numbers (itself, its gradient, two moments), a token of a batch its ids.

    Raises:
        InputError: with the estimate.
    """
    names = ("hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings", "type_vocab_size")
    shape = ", ".join(f"{name}={getattr(config, name)}" for name in names)
    weights = config.num_weights
    model = f"a model of {weights:.3g} weights (model.{shape}, {config.vocab_size} tokens)"
    require_memory(model, 16 * weights, "take a smaller one", device)
    batch = f"batch.sequences={batch_sequences} of {max_seq_length} tokens"
    require_memory(batch, BYTES_OF_A_TOKEN * batch_sequences * max_seq_length, "lower batch.sequences")


def standing_bytes(model: BertWithHeads, num_processes: int, is_strict: bool, saves_copies: bool) -> int:
    """Count the bytes that a step needs in addition to weights, moments and activations.

    They are the gradients; a buffer for their exchange; with `is_strict` the sums of parts, and one part in one piece;
    with `saves_copies` copies of weights and moments for a save in the background.
    """
    gradients = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    copies = sum(parameter.nbytes for parameter in model.parameters()) + 2 * gradients if saves_copies else 0
    return gradients * (1 + (num_processes > 1) + 3 * is_strict) + copies


def kept_by_autograd(model: BertWithHeads, forward: Callable[[int], int], num_sequences: int) -> tuple[int, int]:
    """Pass sequences through a model; give their number of tokens, and the bytes that autograd keeps, without the weights.

    The random state and the model are left unchanged. Layers run uncompiled, so this slightly overestimates.
    """
    first = next(model.parameters())
    kept: dict[int, torch.UntypedStorage] = {}  # by its address, which stays its own while it is held

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
    """The bytes that steps need beyond those of a process with the model and the optimizer."""

    fixed: float  # with the narrowed copies of the weights in bf16
    per_token: float

    def of(self, num_tokens: int) -> int:
        """Give the bytes for micro-batches of so many tokens."""
        return round(self.fixed + self.per_token * num_tokens)

    def fitting(self, num_bytes: int) -> int:
        """Give the most tokens of a micro-batch for which so many bytes are enough."""
        return int((num_bytes - self.fixed) / self.per_token)


def needs_of(model: BertWithHeads, standing: int, batch: LargestBatch) -> Needs:
    """Measure the activations of one and two sequences, and add `standing`, the bytes beside them."""
    on_cpu = next(model.parameters()).device.type == "cpu"
    first_use, factor = (FIRST_USE, 1 + SHARE_KEPT_BY_ALLOCATOR) if on_cpu else (0, 1.0)
    (fewer, less), (tokens, kept) = (kept_by_autograd(model, batch.forward, count) for count in (1, 2))
    per_token = (kept - less) / (tokens - fewer)
    return Needs(first_use + factor * (standing + kept - per_token * tokens), factor * per_token)


def memory_lines(model: BertWithHeads, standing: int, batches: Sequence[LargestBatch], num_here: int) -> list[str]:
    """Write the expected peak memory, and a warning where it exceeds the free memory for each of `num_here` processes."""
    here = memory_here(next(model.parameters()).device.type)
    if here is None:
        return []
    measured = [(batch, needs_of(model, standing, batch)) for batch in batches]
    batch, needs = max(measured, key=lambda pair: pair[1].of(pair[0].num_tokens))
    needed, free = needs.of(batch.num_tokens), here.free // num_here
    where = "" if num_here == 1 else f" in each of {num_here} processes"
    lines = [f"expected peak memory {gigabytes(here.held + needed)}{where} of {gigabytes(here.total)} here"]
    if needed > free:
        name, value, unit = batch.setting
        fitting = needs.fitting(free) // unit
        advice = f"{name}={fitting} would fit" if 0 < fitting < value else "take a smaller model or a larger machine"
        lines.append(
            f"warning: {name}={value} needs {gigabytes(needed)} more{where}, {gigabytes(free)} are free; {advice}"
        )
    return lines
