"""Training and prediction on a CUDA device beside the CPU: `python -m pytest -q -m gpu tests/test_gpu.py`.

They take a few minutes on a GPU of compute capability 8.0 or later, most of them for the first compilation.
"""

import functools
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import masked_batch
from conftest import small_model
from torch._dynamo.utils import counters

from bertkit.base.batch import Batch, Target
from bertkit.base.files import sha256_file
from bertkit.cli import run
from bertkit.kernels.fast import ALL, PLAIN, FastWays
from bertkit.kernels.layout import Layout
from bertkit.model import recorded
from bertkit.model.attention import Weighing, attend, attend_fast
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.geometry import Geometry
from bertkit.model.heads import BertWithHeads
from bertkit.model.layers import compile_layers
from bertkit.model.patterns import SlidingWindow
from bertkit.model.recorded import record_passes
from bertkit.objectives.losses import batch_losses
from bertkit.train import loop
from bertkit.train.accelerator import make_accelerator
from bertkit.train.loop import Course, Learner
from bertkit.train.loss_scale import LossScale
from bertkit.train.optimizer import AdamW, parameter_groups
from bertkit.train.step_report import StepReport
from bertkit.train.train_config import OptimizerConfig

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]

DEVICE = "cuda"
SIZES = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96, "max_position_embeddings": 128}
VARIANTS: list[dict[str, Any]] = [
    *({"score": score} for score in ("dot", "general", "additive", "location")),
    *({"positions": positions} for positions in ("sinusoidal", "relative", "relative_bias", "rotary", "alibi", "none")),
    {"pattern": "causal"}, {"pattern": "window", "window": 4}, {"pattern": "linformer", "compressed_size": 7},
    {"pattern": "bigbird", "block_size": 8, "random_blocks": 1},
]  # fmt: skip
MIXED, EQUAL, ONE = [5, 17, 17, 128, 64, 3], [31, 31, 31], [67]
PRETRAINING = [
    f"device={DEVICE}", "model=medium", "model.num_hidden_layers=2", "model.num_attention_heads=2", "model.hidden_size=128",
    "model.intermediate_size=512", "model.max_position_embeddings=48", "segments.max_seq_length=40",
    "batch.sequences=12", "batch.micro_sequences=3", "optimizer.peak_learning_rate=1e-3", "schedule.warmup_steps=1",
    "log.every_steps=1", "evaluation.every_steps=2", "steps=6",
]  # fmt: skip


def batch_of(step: int) -> Batch:
    rng = np.random.default_rng(step)
    lengths = np.sort(rng.integers(3, 129, size=rng.integers(1, 17))) if step % 10 != 9 else np.array([3])
    size = int(lengths.sum())
    ids, types = rng.integers(131, size=size), rng.integers(2, size=size)
    masked = np.sort(rng.permutation(size)[: 1 + size // 7])
    return masked_batch(ids, types, lengths, masked, ids[masked], rng.integers(2, size=len(lengths)))


class Trained:
    """A model on a device, with an optimizer, to take steps of the loop."""

    def __init__(self, device: str, precision: str = "fp32", dropout: float = 0.0, model: Any = None) -> None:
        self.model: BertWithHeads = model or small_model(dropout=dropout, **SIZES)
        self.model.to(device).train()
        self.accelerator = make_accelerator(device, 1)
        config = OptimizerConfig("adamw", 1e-3, 0.9, 0.999, 1e-6, 0.01, False, 1.0)
        self.optimizer = AdamW(parameter_groups(self.model, 0.01), config)
        self.precision = precision
        self.loss_scale = LossScale.of(precision, self.accelerator.device)

    def step(self, step: int, batch: Any) -> StepReport:
        return self.steps(step, [(0, batch)])

    def steps(self, step: int, batches: list[tuple[int, Any]]) -> StepReport:
        precise = functools.partial(batch_losses, precision=self.precision)
        learner = Learner(self.accelerator, self.model, self.optimizer, precise, self.loss_scale)
        course = Course(lambda step: [], lambda step: 1e-3, 0, 1, max_grad_norm=1.0, seed=3)
        return loop.optimizer_step(learner, course, step, batches)


def forget_device() -> None:
    """Accelerate keeps the device that a process began with."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    forget_device()
    yield
    forget_device()
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 2e-2), ("fp16", 5e-3)])
def test_a_step_is_that_of_the_cpu(precision: str, tolerance: float) -> None:
    results = []
    for device, its_precision in (("cpu", "fp32"), (DEVICE, precision)):
        forget_device()
        trained = Trained(device, its_precision)
        reports = [trained.step(step, batch_of(step)) for step in range(3)]
        assert next(trained.model.parameters()).device.type == device
        results.append([[*report.losses.values(), report.grad_norm] for report in reports])
    losses, norms = np.array(results)[:, :, :2], np.array(results)[:, :, 2]
    np.testing.assert_allclose(losses[1], losses[0], rtol=tolerance)
    np.testing.assert_allclose(norms[1], norms[0], rtol=5 * tolerance)


def variant(option: dict[str, Any], dropout: float = 0.0) -> BertWithHeads:
    pooling = "mean" if option.get("pattern") == "causal" else "first"
    return small_model(dropout=dropout, attention=AttentionConfig(**option), pooling=pooling, **SIZES)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("option", VARIANTS, ids=lambda option: "-".join(map(str, option.values())))
def test_other_attentions_are_those_of_the_cpu(option: dict[str, Any], precision: str) -> None:
    results = []
    for device, its_precision in (("cpu", "fp32"), (DEVICE, precision)):
        forget_device()
        trained = Trained(device, its_precision, model=variant(option))
        reports = [trained.step(step, batch_of(step)) for step in range(3)]
        results.append([[*report.losses.values(), report.grad_norm] for report in reports])
    tolerance = 1e-4 if precision == "fp32" else 2e-2
    np.testing.assert_allclose(results[1], results[0], rtol=5 * tolerance)


def within(lengths: list[int], device: str = DEVICE) -> Geometry:
    layout = Layout.from_lengths(torch.tensor(lengths), torch.device(device))
    return Geometry(layout, layout)


def packed(lengths: list[int], dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(lengths))
    made = [torch.randn(sum(lengths), 3, 32, generator=generator) for _ in range(3)]
    return [tensor.to(torch.bfloat16).to(device, dtype).requires_grad_() for tensor in made]


@pytest.mark.parametrize("lengths", [MIXED, EQUAL, ONE])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 5e-3), (torch.float32, 1e-4)])
@pytest.mark.parametrize("fast", [ALL, PLAIN])
def test_attention_and_its_gradients_are_those_of_each_sequence(
    fast: FastWays, lengths: list[int], dtype: torch.dtype, tolerance: float
) -> None:
    weights = torch.randn(sum(lengths), 3, 32, generator=torch.Generator().manual_seed(1))
    plain = packed(lengths, torch.float64, "cpu")
    expected = attend_fast(*plain, within(lengths, "cpu"), Weighing(0.0))
    (expected * weights).sum().backward()
    ours = packed(lengths, dtype, DEVICE)
    context = attend_fast(*ours, within(lengths), Weighing(0.0, fast))
    (context * weights.to(DEVICE)).sum().backward()
    pairs = [(context, expected), *((mine.grad, its.grad) for mine, its in zip(ours, plain, strict=True))]
    for actual, wanted in pairs:
        difference = (actual.detach().cpu().double() - wanted.detach()).abs().max()
        assert float(difference) <= tolerance * float(wanted.abs().max())


def test_flash_attention_is_what_half_precision_takes() -> None:
    geometry = within(MIXED)
    names = {}
    for dtype, dropout_prob in ((torch.bfloat16, 0.0), (torch.bfloat16, 0.1), (torch.float32, 0.0)):
        with torch.profiler.profile() as profile, torch.no_grad():
            attend_fast(*packed(MIXED, dtype, DEVICE), geometry, Weighing(dropout_prob))
        names[dtype, dropout_prob] = {event.key for event in profile.key_averages()}
    took_flash = {key: any("_flash_attention" in name for name in actual) for key, actual in names.items()}
    assert list(took_flash.values()) == [True, True, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("prob", [0.1, 0.5])
def test_attention_drops_with_its_probability(dtype: torch.dtype, prob: float) -> None:
    """Of sequences of a single token the context is its value, kept and scaled up, or 0; flash attention drops multiples of 1/256."""
    its = math.ceil(256 * prob) / 256 if dtype == torch.bfloat16 else prob
    torch.manual_seed(0)
    lengths = [1] * 60_000 + [2] * 3
    geometry = within(lengths)
    shares = []
    for _ in range(14):  # of 60,000 x 12 weights each: 1e7 draws
        ones = torch.ones(sum(lengths), 12, 8, dtype=dtype, device=DEVICE)
        context = attend_fast(torch.zeros_like(ones), torch.zeros_like(ones), ones, geometry, Weighing(prob, ALL))
        single = context[:60_000, :, 0]
        shares.append((single == 0).double().mean())
        kept = single[single != 0].double()
        assert float(kept.min()) == float(kept.max()) == pytest.approx(1 / (1 - its), rel=4e-3)
    assert abs(float(torch.stack(shares).mean()) - its) < 3e-4


def test_the_plain_way_drops_with_its_probability() -> None:
    """Of sequences of two tokens, the second with a value of 0, the context is 0 where the weight of the first is dropped."""
    torch.manual_seed(0)
    ones = torch.ones(60_000, 12, 8, dtype=torch.bfloat16, device=DEVICE)
    value = torch.stack([ones[:30_000], torch.zeros_like(ones[:30_000])], 1).flatten(0, 1)
    geometry = within([2] * 30_000)
    contexts = (attend_fast(ones, ones, value, geometry, Weighing(0.1, PLAIN)) for _ in range(14))
    shares = [(context[..., 0] == 0).double().mean() for context in contexts]
    assert abs(float(torch.stack(shares).mean()) - 0.1) < 1e-3


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-2), (torch.bfloat16, 2.0)])
def test_heads_and_sequences_drop_by_themselves_and_the_gradient_drops_alike(
    dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(0)
    lengths = [64, 64, 48]
    geometry = within(lengths)
    zeros = torch.zeros(sum(lengths), 4, 8, device=DEVICE, dtype=dtype)
    value = torch.randn(sum(lengths), 1, 1, device=DEVICE).expand(-1, 4, 8).to(dtype).contiguous().requires_grad_()
    context = attend_fast(zeros, zeros, value, geometry, Weighing(0.3, ALL))
    for first, second in ((0, 1), (1, 2), (2, 3)):
        assert not torch.allclose(context[:, first], context[:, second])
    # the context is linear in the values; with other masks backwards the two sums would differ
    weights = torch.randn_like(context)
    (context * weights).sum().backward()
    sums = ((value * value.grad).double().sum(), (context * weights).double().sum())
    torch.testing.assert_close(*sums, rtol=1e-3, atol=tolerance)
    alike = attend_fast(zeros, zeros, torch.ones_like(zeros), geometry, Weighing(0.3, ALL))
    assert not torch.equal(alike[:64], alike[64:128])


def task_batches() -> dict[str, Batch]:
    rng = np.random.default_rng(0)
    lengths = np.array([3, 5, 7, 2])
    ids, tags = rng.integers(5, 131, 17), np.where(np.arange(17) % 3 == 0, np.arange(17) % 2, -100)
    weights = np.array([0.25, 3.0])
    labels: dict[str, Any] = {
        "sequence": np.array([1, 0, 1, 1]), "token": tags, "span": np.array([[0, 2], [1, 1], [0, 0], [1, 1]]),
        "choice": np.array([1, 0]),
    }  # fmt: skip
    return {
        head: Batch(
            ids, ids % 2, lengths, {head: Target(its, weights=weights if head in ("sequence", "token") else None)}
        )
        for head, its in labels.items()
    }


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("head", ["pretraining", "sequence", "token", "span", "choice"])
def test_a_step_does_not_wait_for_the_device(head: str, precision: str, is_compiled: bool) -> None:
    pooled = head in ("sequence", "choice")
    heads = {} if head == "pretraining" else {"heads": (head,), "with_pooler": pooled, "labels": ("no", "yes")}
    model = small_model(dropout=0.1, **heads, **SIZES)
    if is_compiled:
        compile_layers(model.bert.encoder)
    trained = Trained(DEVICE, precision, model=model)
    batches = [batch_of(step) for step in range(4)] if head == "pretraining" else [task_batches()[head]] * 4
    trained.step(0, batches[0])  # compiles, and sets up libraries
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        reports = [trained.step(step, batches[step]) for step in range(1, 4)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [report.skip_reason for report in reports] == [None] * 3


@pytest.mark.parametrize("option", VARIANTS, ids=lambda option: "-".join(map(str, option.values())))
def test_a_step_of_other_attentions_does_not_wait_either(option: dict[str, Any]) -> None:
    trained = Trained(DEVICE, model=variant(option, dropout=0.1))
    trained.step(0, batch_of(0))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(1, 4):
            trained.step(step, batch_of(step))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_nothing_is_compiled_in_fifty_steps_of_other_lengths(precision: str) -> None:
    torch._dynamo.reset()
    counters.clear()
    model = small_model(dropout=0.1, **SIZES)
    compile_layers(model.bert.encoder)
    trained = Trained(DEVICE, precision, model=model)
    try:
        for step in range(50):
            trained.step(step, batch_of(step))
            if step % 10 == 0:
                with loop.evaluation_mode(model), torch.no_grad():
                    batch_losses(model, batch_of(step + 7), precision)
                torch._dynamo.config.error_on_recompile = True
    finally:
        torch._dynamo.config.error_on_recompile = False
    assert counters["stats"]["unique_graphs"] == 4


def test_compiled_losses_are_those_of_plain_layers() -> None:
    results = []
    for is_compiled in (False, True):
        model = small_model(**SIZES)
        if is_compiled:
            compile_layers(model.bert.encoder)
        trained = Trained(DEVICE, model=model)
        results.append([sum(trained.step(step, batch_of(step)).losses.values()) for step in range(10)])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_resumed_is_bit_for_bit_the_same_and_predicts_as_on_the_cpu(
    prepared_dir: Path, tmp_path: Path, precision: str
) -> None:
    """With reproducibility=strict; by default a GPU adds up gradients in an order of its own."""
    settings = [*PRETRAINING, f"data_dir={prepared_dir}", f"precision={precision}", "reproducibility=strict"]
    for name, more in (("whole", []), ("stopped", ["checkpoint.every_steps=3"])):
        assert run(["pretrain", f"output_dir={tmp_path / name}", *settings, *more]) == 0
    stopped = tmp_path / "stopped"
    shutil.rmtree(stopped / "checkpoints" / "step-00000006")
    shutil.rmtree(stopped / "model")
    (stopped / "eval.json").unlink()
    assert run(["pretrain", f"output_dir={stopped}", *settings, "checkpoint.every_steps=3"]) == 0
    weights = [sha256_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "stopped")]
    assert weights[0] == weights[1]

    texts = tmp_path / "texts.txt"
    texts.write_text("kan [MASK] min\n" + "lon [MASK] run tesh [MASK]\n" * 5, encoding="utf-8")
    answers = {}
    for device in ("cpu", DEVICE):
        output = tmp_path / f"{device}.jsonl"
        command = ["predict", f"model_dir={stopped}", f"input={texts}", f"output={output}", f"device={device}"]
        assert run(command) == 0
        rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
        answers[device] = [
            [{each["token"]: each["probability"] for each in mask} for mask in row["masks"]] for row in rows
        ]
    assert [len(masks) for masks in answers["cpu"]] == [1, *[2] * 5]
    for ours, plain in zip(answers[DEVICE], answers["cpu"], strict=True):
        for mine, its in zip(ours, plain, strict=True):
            assert sorted(mine.values()) == pytest.approx(sorted(its.values()), abs=1e-3)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_recorded_passes_are_the_usual_ones(precision: str, is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses, gradients and dropout, with two micro-batches a step, some of which have shapes of their own."""
    results, num_recorded = [], []
    for often in (100, 2):
        forget_device()
        monkeypatch.setattr(recorded, "OFTEN", often)
        model = small_model(dropout=0.1, **SIZES)
        if is_compiled:
            compile_layers(model.bert.encoder)
        record_passes(model)
        recorder: Any = model.forward
        trained = Trained(DEVICE, precision, model=model)
        reports = []
        for step in range(12):
            reports.append(trained.steps(step, [(0, batch_of(step % 3)), (1, batch_of(3 + step % 2))]))
        results.append([[*report.losses.values(), report.grad_norm] for report in reports])
        num_recorded.append(len(recorder.recordings))
    assert num_recorded == [0, 5]
    np.testing.assert_allclose(results[1], results[0], rtol=2e-3)


def test_a_recorded_step_does_not_wait_for_the_device() -> None:
    model = small_model(dropout=0.1, **SIZES)
    record_passes(model)
    trained = Trained(DEVICE, "bf16", model=model)
    for _ in range(3):
        trained.step(0, batch_of(0))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(1, 4):
            trained.step(step, batch_of(0))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("drop", [0.0, 0.1])
def test_windows_hide_far_keys(dtype: torch.dtype, drop: float) -> None:
    lengths = [12, 9, 12]
    geometries = [replace(within(lengths, device), pattern=SlidingWindow(window=4)) for device in ("cpu", DEVICE)]
    plain = packed(lengths, torch.float64, "cpu")
    expected = attend(*plain, geometries[0])
    torch.manual_seed(0)
    ours = packed(lengths, dtype, DEVICE)
    contexts = [attend_fast(*ours, geometries[1], Weighing(drop)) for _ in range(4000 if drop else 1)]
    actual = torch.stack([each.detach().double() for each in contexts]).mean(0).cpu()
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=0.03)


def test_heads_that_flash_attention_does_not_take_are_not_recorded() -> None:
    model = small_model(hidden_size=24, num_attention_heads=2)
    record_passes(model)
    assert not model.records_passes
