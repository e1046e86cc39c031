"""Whether a run will fit into the memory that this machine has.

    peak = what the process holds anyway, with the weights and the optimizer's moments
         + the highest point of a step: what autograd keeps of the forward pass, and what is computed from it on the way back
         + what the allocator and the libraries take besides

The highest point is that of a step with fake tensors, which have shapes and no values. Its model has one layer, for all
layers are alike: each one below adds what autograd keeps of it, each one above the gradients of its parameters.
tests/run/test_memory.py compares what autograd keeps with that of real steps, tests/bench/test_bench.py the peak with theirs.
All sizes are bytes.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bertkit.kernels.layout import Layout
from bertkit.memory import gigabytes, memory_here, require_memory
from bertkit.model.config import BertConfig
from bertkit.model.heads import BertWithHeads, Targets
from bertkit.model.recurrent import RecurrentEncoder
from bertkit.run.depth import freeze_below
from bertkit.train.losses import cross_entropy

MASKED_SHARE = 0.15  # of the tokens are predicted (Devlin et al. 2019, A.1)
BYTES_OF_A_TOKEN = 32  # in a batch: its id, type, position and sequence, 8 bytes each
# Of the process on a CPU, beyond the tensors: what oneDNN and torch take on first use, and freed memory that glibc keeps.
# Fitted to `bertkit bench what=memory`: mini at 128 with 4 to 64 sequences, base at 512 with 2 and 4, fp32 and bf16; 1 thread, glibc.
FIRST_USE, SHARE_KEPT_BY_ALLOCATOR = 80_000_000, 0.25


@dataclass(frozen=True, kw_only=True)
class TrainingStep:
    """What a step is, but for its number of tokens."""

    model: BertWithHeads  # only looked at
    max_seq_length: int
    precision: str
    device: str = "cpu"
    optimizer: str = "adamw"
    accumulates: bool = False  # the gradients of several micro-batches
    num_processes: int = 1  # that train together
    is_strict: bool = False  # gradients are added in one order


@dataclass(frozen=True)
class PartOfRun:
    """Steps of one shape."""

    step: TrainingStep
    num_tokens: int  # of the largest micro-batch
    evaluated_tokens: int  # of the largest batch that is evaluated; 0 for none
    setting: tuple[str, int]  # name and value of the one that a micro-batch's size comes from
    tokens_of_setting: int  # that one of it stands for
    saves_copies: bool  # checkpoints are written from copies, while training goes on

    @functools.cached_property
    def needed(self) -> int:
        """Beyond what a process holds that has the model and the optimizer."""
        needed = plan_step(self.step, self.num_tokens).of_step
        if self.evaluated_tokens > self.num_tokens:  # of as many tokens a step needs more
            needed = max(needed, needed_by_evaluation(self.step, self.evaluated_tokens))
        return needed + self.copies

    @property
    def copies(self) -> int:
        """Of weights and moments, to be saved."""
        parameters = list(self.step.model.parameters())
        return (_bytes_of(parameters) + 2 * _bytes_of(_trained(parameters))) if self.saves_copies else 0


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


@dataclass(frozen=True)
class MemoryPlan:
    """What a step needs."""

    weights: int
    moments: int
    gradients: int
    activations: int  # what autograd keeps of a forward pass; in bf16 with the narrowed copies of the weights
    of_step: int  # beyond weights and moments, allocator and libraries included


def plan_step(step: TrainingStep, num_tokens: int) -> MemoryPlan:
    """Say what a step needs whose micro-batches have `num_tokens` tokens, in sequences as long as the longest one."""
    if "generation" in step.model.heads:
        return _plan_of_pair(step, num_tokens)
    trained = _trained(step.model.parameters())
    gradients, largest = _bytes_of(trained), max(parameter.nbytes for parameter in trained)
    of_layers = [_bytes_of(_trained(layer.parameters())) for layer in step.model.bert.encoder.layers]
    num_others = max(0, sum(map(bool, of_layers)) - 1)
    fake = _measure(step, num_tokens)
    above, below = num_others * of_layers[-1], num_others * fake.kept_by_layer
    highest = max(fake.at_head + below, fake.at_layer + max(below, above), fake.at_end + above)
    # there all the time: of earlier micro-batches; what processes exchange; the sums of parts, and one part in one piece
    standing = gradients * (step.accumulates + (step.num_processes > 1) + 3 * step.is_strict)
    updating = 4 * largest if step.optimizer == "lamb" else 0  # AdamW's kernel makes no copy
    working = max(standing + highest, gradients * (1 + (step.num_processes > 1)) + updating)
    return MemoryPlan(
        weights=_bytes_of(step.model.parameters()),
        moments=2 * gradients,
        gradients=gradients,
        activations=fake.kept + below,
        of_step=_with_overhead(step, working),
    )


def _plan_of_pair(step: TrainingStep, num_tokens: int) -> MemoryPlan:
    """The same of an encoder with a decoder, all layers of which are run; half of the tokens are the decoder's."""
    gradients = _bytes_of(_trained(step.model.parameters()))
    kept, most = _measure_pair(step, num_tokens)
    standing = gradients * (step.accumulates + (step.num_processes > 1) + 3 * step.is_strict)
    return MemoryPlan(
        weights=_bytes_of(step.model.parameters()),
        moments=2 * gradients,
        gradients=gradients,
        activations=kept,
        of_step=_with_overhead(step, standing + most),
    )


def _measure_pair(step: TrainingStep, num_tokens: int, is_training: bool = True) -> tuple[int, int]:
    """Give what autograd keeps of a fake forward pass, and the most that there is of a step, beside the weights."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    like = step.model
    with FakeTensorMode(), _LiveBytes() as live, torch.set_grad_enabled(is_training):
        with torch.device(step.device):
            model = BertWithHeads(like.config, tuple(like.heads), like.bert.pooler is not None).train(is_training)
            model.use(like.fast)
            length = max(1, min(step.max_seq_length, num_tokens // 2))
            ids, _, layout, _ = _inputs(num_tokens // 2 // length * length, length)
        before = live.most = live.now
        with torch.autocast(step.device, torch.bfloat16, enabled=step.precision == "bf16"):
            logits = model(ids, ids, layout, targets=Targets(ids, layout)).logits["generation"]
        is_in_place = is_training and model.fast.loss_in_place and step.device == "cpu"
        kept = live.now - before
        if is_training:
            loss = logits if is_in_place else cross_entropy(logits, ids).sum
            torch.autograd.backward([loss], [logits.detach() if is_in_place else None])
    return kept, live.most - before


def needed_by_evaluation(step: TrainingStep, num_tokens: int) -> int:
    """Say what the forward pass of an evaluation needs, beyond what the process holds."""
    if "generation" in step.model.heads:
        return _with_overhead(step, _measure_pair(step, num_tokens, is_training=False)[1])
    fake = _measure(step, num_tokens, is_training=False)
    return _with_overhead(step, fake.at_head + (len(step.model.bert.encoder.layers) - 1) * fake.kept_by_layer)


def largest_micro_batch(step: TrainingStep, num_bytes: int) -> int:
    """Say how many sequences of T tokens a micro-batch may have for a step to fit into so many bytes; 0 where none does."""

    @functools.cache
    def missing(num_sequences: int) -> int:
        return plan_step(step, num_sequences * step.max_seq_length).of_step - num_bytes

    by_sequence = max(1, (missing(100) - missing(1)) // 99)  # it grows evenly, so that a few guesses are enough
    fitting, too_many, guess = 0, 1 << 40, 1
    while too_many - fitting > 1:
        fitting, too_many = (guess, too_many) if missing(guess) <= 0 else (fitting, guess)
        guess = min(max(guess - -(-missing(guess) // by_sequence), fitting + 1), too_many - 1)
    return fitting


def _with_overhead(step: TrainingStep, working: int) -> int:
    return working + FIRST_USE + round(SHARE_KEPT_BY_ALLOCATOR * working) if step.device == "cpu" else working


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _trained(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [parameter for parameter in parameters if parameter.requires_grad]


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that there are, and the most that there were."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(each, Tensor):
                self._see(each.untyped_storage())
        self.most = max(self.most, self.now)
        return found

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._seen:
            self._seen[key] = weakref.ref(storage, lambda _: self._forget(key, size))
            self.now += size

    def _forget(self, key: int, size: int) -> None:
        del self._seen[key]
        self.now -= size


@dataclass
class _Measured:
    """Of a step with one layer, beside its weights."""

    kept: int = 0  # by autograd
    kept_by_layer: int = 0
    at_head: int = 0  # the most until the way back comes to the layer; without one, the most
    at_layer: int = 0
    at_end: int = 0


def _measure(step: TrainingStep, num_tokens: int, is_training: bool = True, num_layers: int = 1) -> _Measured:
    """Take a step with fake tensors, of a model with one layer or more; only what the model trains is trained."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    found = _Measured()
    with FakeTensorMode(), _LiveBytes() as live, torch.set_grad_enabled(is_training):
        with torch.device(step.device):
            model = _top_of(step.model, num_layers, is_training)
            inputs = _inputs(num_tokens, step.max_seq_length)

        def end_of(part: str) -> None:
            setattr(found, part, live.most - before)
            live.most = live.now

        before_layer: list[tuple[int, int, Any]] = []

        def begin_layer(_: Any, given: tuple[Tensor, Layout]) -> None:
            before_layer.append((live.now, given[0].nbytes, weakref.ref(given[0].untyped_storage())))

        def end_layer(_: Any, given: tuple[Tensor, Layout], output: Tensor) -> None:
            found.kept_by_layer = live.now - before_layer[0][0]
            for tensor, part in ((output, "at_head"), (given[0], "at_layer")):
                if tensor.requires_grad:
                    tensor.register_hook(lambda _, part=part: end_of(part))  # type: ignore[no-untyped-call]

        layer = model.bert.encoder.layers[0]
        layer.register_forward_pre_hook(begin_layer)
        layer.register_forward_hook(end_layer)
        before = live.most = live.now
        with torch.autocast(step.device, torch.bfloat16, enabled=step.precision == "bf16"):
            logits = model(*inputs).logits
        _, size_of_input, input_of_layer = before_layer[0]
        if input_of_layer() is None:  # nobody needs it any more
            found.kept_by_layer -= size_of_input
        is_in_place = is_training and model.fast.loss_in_place and step.device == "cpu"
        roots, gradients = [], []
        while logits:
            name, one = logits.popitem()
            lies_there = name == "masked_lm" and is_in_place  # the gradient lies where the logits are
            roots.append(one if lies_there else cross_entropy(one, inputs[0][: len(one)]).sum)
            gradients.append(one.detach() if lies_there else None)
            del one
        found.kept = live.now - before
        if is_training:
            torch.autograd.backward(roots, gradients)
        end_of(next(part for part in ("at_head", "at_layer", "at_end") if not getattr(found, part)))
    return found


def _top_of(like: BertWithHeads, num_layers: int, is_training: bool) -> BertWithHeads:
    """Build a model like another, with fewer layers: the uppermost, since those are trained if any are."""
    config = dataclasses.replace(like.config, num_hidden_layers=num_layers)
    model = BertWithHeads(config, tuple(like.heads), like.bert.pooler is not None)
    model.use(like.fast)
    parts = (like.bert.embeddings, *list(like.bert.encoder.layers)[-num_layers:])
    freeze_below(model.train(is_training), sum(not next(part.parameters()).requires_grad for part in parts))
    return model


def _inputs(num_tokens: int, max_seq_length: int) -> tuple[Tensor, Tensor, Layout, Tensor]:
    """Make ids, types, layout and masked positions; all but their sizes is arbitrary."""
    count, rest = divmod(num_tokens, max_seq_length)
    ids, masked = torch.zeros(num_tokens, dtype=torch.int64), round(MASKED_SHARE * num_tokens)
    runs = tuple(run for run in ((0, count, max_seq_length), (num_tokens - rest, 1, rest)) if run[1] * run[2])
    num_sequences = count + (rest > 0)
    layout = Layout(ids[:num_sequences], torch.zeros(num_sequences + 1, dtype=torch.int32), ids, ids, runs)
    return ids, ids, layout, ids[:masked]


def memory_lines(parts: Sequence[PartOfRun], num_here: int) -> list[str]:
    """Say what the part that needs most will need, and warn where that is more than is free to each of the processes."""
    if any(isinstance(part.step.model.bert, RecurrentEncoder) for part in parts):
        return []  # whose kernels cannot be run with shapes alone
    here = memory_here(parts[0].step.device)
    if here is None:
        return []
    try:
        part = max(parts, key=lambda each: each.needed)
    except (
        RuntimeError
    ) as error:  # a kernel of this device that cannot be run with shapes alone; the plan is only advice
        return [f"how much memory a step needs is not known here: {str(error).splitlines()[0]}"]
    each = "" if num_here == 1 else f" in each of {num_here} processes"
    needed, free = part.needed, here.free // num_here
    lines = [f"expected peak memory {gigabytes(here.held + needed)}{each} of {gigabytes(here.total)} here"]
    if needed > free:
        name, value = part.setting
        fitting = (
            largest_micro_batch(part.step, free - part.copies) * part.step.max_seq_length // part.tokens_of_setting
        )
        advice = f"{name}={fitting} would fit" if 0 < fitting < value else "take a smaller model or a larger machine"
        lines.append(
            f"warning: {name}={value} needs {gigabytes(needed)} more{each}, {gigabytes(free)} are free; {advice}"
        )
    return lines
