"""What the checks of a step cost, beside the step. Slow: `pytest -m slow tests/train/test_cost.py -s`."""

import dataclasses
import statistics
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from batches import masked_batch

from bertkit.base.batch import Batch
from bertkit.base.typed_settings import build
from bertkit.model.bert_config import PRETRAINING_HEADS, BertConfig
from bertkit.model.heads import BertWithHeads
from bertkit.model.initialisation import init_weights
from bertkit.objectives.losses import batch_losses
from bertkit.settings.pretrain import PretrainSettings
from bertkit.settings.reading.compose import compose
from bertkit.train import loop
from bertkit.train.accelerator import make_accelerator
from bertkit.train.loop import Course, Learner
from bertkit.train.optimizer import AdamW, parameter_groups
from bertkit.train.step_report import Numbers, StepNumbers, StepReport


def seconds_of(call: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        started_at = time.process_time()
        call()
        taken.append(time.process_time() - started_at)
    return statistics.median(taken)


@pytest.mark.slow
def test_the_checks_cost_less_than_a_hundredth_of_a_step() -> None:
    """model=mini, 32 sequences of 128 tokens in two micro-batches, one thread, in seconds of this process."""
    torch.set_num_threads(1)
    settings = build(PretrainSettings, compose("pretrain", ["data_dir=x", "output_dir=y", "model=mini"]))
    config = BertConfig(**dataclasses.asdict(settings.model), vocab_size=30522, pad_token_id=0)
    model = BertWithHeads(config, PRETRAINING_HEADS, with_pooler=True).train()
    init_weights(model, 0.02, torch.Generator().manual_seed(0))
    rng = np.random.default_rng(0)

    def micro_batch(count: int) -> Batch:
        return masked_batch(
            rng.integers(5, 30522, count * 128), np.zeros(count * 128, np.int64), np.full(count, 128),
            np.sort(rng.permutation(count * 128)[: count * 19]), rng.integers(5, 30522, count * 19),
            rng.integers(2, size=count),
        )  # fmt: skip

    optimizer = AdamW(parameter_groups(model, 0.01), settings.optimizer)
    micro_batches = [(0, micro_batch(16)), (1, micro_batch(16))]

    def step(num_parts: int | None) -> Callable[[], object]:
        accelerator = make_accelerator("cpu", 1)
        learner = Learner(accelerator, model, optimizer, batch_losses, num_parts=num_parts)
        course = Course(lambda step: micro_batches, lambda step: 1e-4, 0, 1, 1e9, seed=0)
        return lambda: list(loop.train(learner, course))

    whole = seconds_of(step(None), 3)
    strict = seconds_of(step(4), 3)
    gradients = [torch.randn_like(parameter) for parameter in model.parameters()]
    norm = torch.tensor(0.5)

    def added() -> None:
        torch._foreach_div_(gradients, norm.clamp(min=1.0))  # the factor of a gradient that needs no clipping
        sums = torch.zeros(2, 2, dtype=torch.float64)
        optimizer.found_inf = (~(torch.isfinite(sums[0]).all() & torch.isfinite(norm))).to(torch.float32)
        numbers = Numbers(StepNumbers(sums[0], sums[1], norm))
        report = StepReport(1, 1e-4, 4096, 2, False, {"mlm": 608, "nsp": 32}, numbers)
        assert report.skip_reason is None

    extra = seconds_of(added, 30)
    print(
        f"a step {whole:.3f} s; the checks {extra * 1e3:.2f} ms, {extra / whole:.2%} of it; "
        f"reproducibility=strict in 4 parts {strict:.3f} s, {strict / whole - 1:+.1%}"
    )
    assert extra < 0.01 * whole
