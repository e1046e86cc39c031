"""What a step is expected to need, beside what autograd keeps of a larger one; and the lines that are printed."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from bertkit.base import memory
from bertkit.cli import run
from bertkit.jobs.run_length import random_batch
from bertkit.kernels.fast import NAMES, FastWays
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import BertConfig, NormConfig
from bertkit.model.heads import BertWithHeads
from bertkit.objectives.losses import batch_losses
from bertkit.run.memory_plan import LargestBatch, buffer_bytes, measure_activations, measure_needs, memory_lines

LENGTH = 97
SHAPE = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 509}


def micro_batch(
    precision: str = "fp32", num_sequences: int = 1, ways: tuple[str, ...] = NAMES, **named: Any
) -> tuple[BertWithHeads, int, LargestBatch]:
    """A model, the bytes beside its activations, and its largest batch."""
    rest = {"hidden_act": "gelu", "max_position_embeddings": 101, "type_vocab_size": 2, "initializer_range": 0.02}
    drops = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "layer_norm_eps": 1e-12}
    model = BertWithHeads(BertConfig(**{**SHAPE, **rest, **drops, "vocab_size": 3001, **named})).train()
    model.use(FastWays.of(ways))

    def forward(num_sequences: int) -> int:
        batch_losses(model, random_batch(model, num_sequences, LENGTH, has_pairs=True), precision)
        return num_sequences * LENGTH

    batch = LargestBatch(forward, num_sequences * LENGTH, LENGTH, by_sequences=True)
    return model, buffer_bytes(model, 1, False, False), batch


VARIANTS: dict[str, dict[str, Any]] = {
    "fast": {},
    "plain": {"ways": ()},
    "without dropout": {"ways": (), "attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0},
    "window": {"attention": AttentionConfig(pattern="window", window=16)},
    "relative": {"attention": AttentionConfig(positions="relative")},
    "additive": {"attention": AttentionConfig(score="additive")},
    "linformer": {"attention": AttentionConfig(pattern="linformer", compressed_size=31)},
    "bigbird": {"attention": AttentionConfig(pattern="bigbird", block_size=8)},
    "pre": {"norm": NormConfig(placement="pre", kind="rms"), "pooling": "feed_forward"},
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_memory_is_estimated_from_one_sequence(precision: str, variant: str) -> None:
    model, buffers, batch = micro_batch(precision, **VARIANTS[variant])
    tokens, kept = measure_activations(model, batch.forward, 7)
    needs = measure_needs(model, buffers, batch)
    estimated = (needs.num_bytes(tokens) - 80e6) / 1.25 - buffers
    assert tokens == 7 * LENGTH
    assert 0.98 * kept < estimated < 1.09 * kept  # a single sequence needs less than its share with linformer


def test_measuring_leaves_nothing() -> None:
    """No random draws, gradients or activations remain."""
    (model, _, _), made = micro_batch("bf16"), []

    def forward(num_sequences: int) -> int:
        batch = random_batch(model, num_sequences, LENGTH, has_pairs=True)
        made.extend(weakref.ref(term.sum) for term in batch_losses(model, batch, "bf16").values())
        return num_sequences * LENGTH

    before = torch.get_rng_state()
    gc.disable()
    try:
        assert measure_activations(model, forward, 2)[1] > 0
        assert [each() for each in made] == [None, None]
    finally:
        gc.enable()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_fixed_memory_counts_weights_gradients_and_moments() -> None:
    model, _, _ = micro_batch()
    for parameter in model.bert.embeddings.parameters():
        parameter.requires_grad_(False)
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    trained = 4 * sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert trained < weights
    assert buffer_bytes(model, 1, False, False) == trained
    assert buffer_bytes(model, 2, False, False) == 2 * trained
    assert buffer_bytes(model, 1, True, False) == 4 * trained
    assert buffer_bytes(model, 1, False, True) == 3 * trained + weights


def test_memory_lines_compare_need_with_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        memory, "CGROUPS", tmp_path
    )  # a container's files: 3 GB, of which one is taken, besides cached files
    (tmp_path / "memory.max").write_text("3000000000\n")
    (tmp_path / "memory.current").write_text("1700000000\n")
    (tmp_path / "memory.stat").write_text("anon 900000000\ninactive_file 700000000\nactive_file 5\n")
    here = memory.memory_here("cpu")
    assert here is not None
    assert (here.total, here.free) == (3_000_000_000, 2_000_000_000)
    assert 50e6 < here.held < 20e9

    model, buffers, batch = micro_batch()

    def lines(*num_sequences: int, by_sequences: bool = True, num_here: int = 1) -> list[str]:
        batches = [LargestBatch(batch.forward, n * LENGTH, LENGTH, by_sequences) for n in num_sequences]
        return memory_lines(model, buffers, batches, num_here)

    (line,) = lines(2)
    assert line.startswith("expected peak memory ")
    assert line.endswith(" GB of 3.0 GB here")
    needs = measure_needs(model, buffers, batch)
    largest = needs.max_tokens(2_000_000_000) // LENGTH
    assert needs.num_bytes(largest * LENGTH) <= 2_000_000_000 < needs.num_bytes((largest + 1) * LENGTH)
    assert len(lines(largest)) == 1
    _, warning = lines(2, largest + 700)
    assert warning.startswith(f"warning: batch.micro_sequences={largest + 700} needs ")
    assert warning.endswith(f"2.0 GB are free; batch.micro_sequences={largest} would fit")
    advice = f"; batch.micro_tokens={needs.max_tokens(2_000_000_000)} would fit"
    assert lines(largest + 700, by_sequences=False)[1].endswith(advice)
    shared = lines(largest, num_here=2)
    assert " in each of 2 processes of 3.0 GB here" in shared[0]
    assert len(shared) == 2
    (tmp_path / "memory.current").write_text("3699999999\n")
    assert "take a smaller model" in lines(1)[1]


def test_the_limit_of_a_job_counts_for_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup").write_text("4:memory:/old\n0::/job_7/step_0\n")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "OWN_CGROUP", tmp_path / "cgroup")
    (tmp_path / "job_7" / "step_0").mkdir(parents=True)
    (tmp_path / "job_7" / "step_0" / "memory.max").write_text("max\n")
    (tmp_path / "job_7" / "memory.max").write_text("2000000000\n")
    (tmp_path / "job_7" / "memory.current").write_text("500000000\n")
    here = memory.memory_here("cpu")
    assert here is not None
    assert (here.total, here.free) == (2_000_000_000, 1_500_000_000)


def test_a_machine_without_a_limit_is_as_large_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    here = memory.memory_here("cpu")
    assert here is not None
    assert 0 < here.free < here.total
    model, buffers, batch = micro_batch()
    assert memory_lines(model, buffers, [batch], 1)[0].endswith(f"of {here.total / 1e9:.1f} GB here")


def test_pretraining_says_what_it_will_need(
    prepared_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "memory.max").write_text("900000000\n")
    (tmp_path / "memory.current").write_text("890000000\n")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    small = ["steps=1", "batch.sequences=4", "batch.micro_sequences=2", "evaluation.max_sequences=4", "device=cpu"]
    assert run(["pretrain", f"data_dir={prepared_dir}", f"output_dir={tmp_path / 'run'}", "model=tiny", *small]) == 0
    printed = capsys.readouterr().out
    assert printed.count("expected peak memory ") == printed.count(" GB of 0.9 GB here\n") == 1
    assert (
        printed.count("warning: batch.micro_sequences=2 needs 0.1 GB more, 0.0 GB are free; take a smaller model") == 1
    )
