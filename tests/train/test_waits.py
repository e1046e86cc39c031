"""A training step never waits for its device, shown on a device without values.

On torch's "meta" device every operation knows only shapes. Whatever needs a value of the device on the host fails there: an
item, a condition, a mask as an index. `Watch` refuses, too, what meta does not: copies to the device that wait.
"""

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from batches import pretraining_batch, task_batch
from conftest import small_model
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from bertkit.base.batch import Batch
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import DecoderConfig
from bertkit.model.geometry import Geometry
from bertkit.objectives.losses import batch_losses
from bertkit.train import loop
from bertkit.train.loop import Course, Learner
from bertkit.train.losses import LossTerm
from bertkit.train.optimizer import make_optimizer, parameter_groups
from bertkit.train.step_report import StepNumbers
from bertkit.train.train_config import OptimizerConfig

DEVICE = torch.device("meta")
STEPS = 2
TINY: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 1}  # rotary wants heads of an even size


class WaitError(Exception):
    pass


class Watch(TorchFunctionMode):
    """Refuse copies from the host to the device, except those of `on_device`, which go through pinned memory on CUDA."""

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        made_from_host = function in (torch.tensor, torch.as_tensor, Tensor.new_tensor) or (
            function in (Tensor.to, Tensor.copy_) and any(isinstance(x, Tensor) and not x.is_meta for x in args)
        )
        if made_from_host and result.is_meta and sys._getframe(1).f_code.co_name != "on_device":
            raise WaitError(f"{function} copied to the device")
        return result


class Mixed(TorchDispatchMode):
    """Refuse operations between the device and the host, such as an index on the host, which would be copied."""

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        flat = [x for each in args for x in (each if isinstance(each, (list, tuple)) else [each])]
        if len({x.device for x in flat if isinstance(x, Tensor) and x.ndim}) > 1:
            raise WaitError(f"{function} between the device and the host")
        return function(*args, **(kwargs or {}))


class Numbers:
    """The numbers of a step, which arrive later; remembers the step and when they were read."""

    reads: ClassVar[list[tuple[int, int]]] = []  # (step, the newest step when it was read)
    made = 0

    def __init__(self, numbers: StepNumbers) -> None:
        assert {numbers.losses.device, numbers.num_correct.device, numbers.grad_norm.device} == {DEVICE}
        Numbers.made += 1
        self.step, self.size = Numbers.made, len(numbers.losses)

    def read(self) -> StepNumbers:
        Numbers.reads.append((self.step, Numbers.made))
        return StepNumbers(torch.ones(self.size), torch.ones(self.size), torch.ones(1))


class OneProcess:
    device, num_processes, process_index = DEVICE, 1, 0
    no_sync = staticmethod(contextlib.nullcontext)
    reduce = staticmethod(lambda tensor, _: tensor)
    backward = staticmethod(lambda loss: loss.backward())


@pytest.fixture(autouse=True)
def shapes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "Numbers", Numbers)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # meta has none
    Numbers.reads, Numbers.made = [], 0


def train(
    model: Any, batch_of: Callable[[int], Any], losses: Any, optimizer: str = "adamw", parts: int | None = None
) -> None:
    """Train without a logged step in between."""
    model = model.to(DEVICE).train()
    config = OptimizerConfig(optimizer, 1e-3, 0.9, 0.999, 1e-6, 0.01, False, 1.0)
    groups = parameter_groups(model, 0.01)
    learner = Learner(OneProcess(), model, make_optimizer(groups, config), losses, num_parts=parts)  # type: ignore[arg-type]
    course = Course(
        batches=lambda step: [(number, batch_of(2 * step + number)) for number in range(2)],
        learning_rate=lambda step: 1e-3, first_step=0, steps=STEPS, max_grad_norm=1.0, seed=3,
    )  # fmt: skip
    with Watch(), Mixed():
        reports = list(loop.train(learner, course, should_sync=lambda step: False))
    # each is read once, while the next step is under way; the last one at the end
    assert Numbers.reads == [*((step, step + 1) for step in range(1, STEPS)), (STEPS, STEPS)]
    assert [report.is_synced for report in reports] == [False] * (STEPS - 1) + [True]


VARIANTS: list[dict[str, Any]] = [{}, {"positions": "relative"}, {"pattern": "bigbird", "block_size": 4}]
RARER: list[dict[str, Any]] = [
    *({"score": score} for score in ("dot", "general", "additive", "location")),
    *({"positions": positions} for positions in ("sinusoidal", "relative_bias", "rotary", "alibi", "none")),
    {"pattern": "causal"}, {"pattern": "window", "window": 4}, {"pattern": "linformer", "compressed_size": 7},
]  # fmt: skip
SLOW = [pytest.param(option, marks=pytest.mark.slow) for option in RARER]


@pytest.mark.parametrize("option", [*VARIANTS, *SLOW], ids=lambda option: "-".join(map(str, option.values())) or "bert")
def test_pretraining_step_never_waits_for_device(option: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the padded groups of attention on CUDA."""
    monkeypatch.setattr(Geometry, "__init__", functools.partialmethod(Geometry.__init__, is_padded=True))
    pooling = "mean" if option.get("pattern") == "causal" else "first"
    model = small_model(dropout=0.1, attention=AttentionConfig(**option), pooling=pooling, **TINY)
    train(model, pretraining_batch, batch_losses)


@pytest.mark.parametrize(("optimizer", "parts"), [("lamb", None), ("adamw", 4)])
def test_optimizers_and_ordered_sums_do_not_wait(optimizer: str, parts: int | None) -> None:
    train(small_model(dropout=0.1, **TINY), pretraining_batch, batch_losses, optimizer, parts)


DECODERS = {kind: DecoderConfig(kind=kind, start_token_id=2, end_token_id=3) for kind in ("bert", "transformer", "rnn")}


@pytest.mark.parametrize(
    "kind", ["sequence", "weighted", "regression", "several", "token", "span", "choice", *DECODERS]
)
def test_fine_tuning_step_never_waits_for_device(kind: str) -> None:
    shape = "generation" if kind in DECODERS else kind
    (head,) = task_batch(shape).targets
    options: dict[str, Any] = {"with_pooler": head in ("sequence", "choice"), "decoder": DECODERS.get(kind)}
    labels = ("score",) if kind == "regression" else ("no", "yes")
    model = small_model(dropout=0.1, heads=(head,), labels=labels, **options, **TINY)
    train(model, lambda number: task_batch(shape, number), batch_losses)


WAITS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "condition": lambda x: 1 if x.sum() > 0 else 0,
    "list": lambda x: x.tolist(),
    "numpy": lambda x: x.detach().numpy(),
    "copy": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "unique": lambda x: x.unique(),
    "repeat": lambda x: x.repeat_interleave((x > 0).long().flatten()),
    "equal": lambda x: torch.equal(x, x + 1),
    "tensor": lambda x: x + torch.tensor([1.0], device=x.device),
    "unpinned": lambda x: x + torch.ones(1).to(x.device),
    "host index": lambda x: x[torch.tensor([0])],
}


@pytest.mark.parametrize("kind", WAITS)
def test_a_wait_in_the_losses_is_seen(kind: str) -> None:
    def losses(model: Any, batch: Batch) -> dict[str, LossTerm]:
        terms = batch_losses(model, batch)
        WAITS[kind](model.bert.embeddings.token.weight.detach())
        return terms

    with pytest.raises((WaitError, RuntimeError, NotImplementedError, TypeError)):
        train(small_model(**TINY), pretraining_batch, losses)
