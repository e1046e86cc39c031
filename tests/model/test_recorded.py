"""Which models record their passes; the recorded passes themselves are tested on a GPU, in test_gpu.py."""

from typing import Any

import pytest
import torch
from conftest import small_model

from bertkit.kernels.layout import Layout
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.recorded import can_record, forget_passes

PLAIN = [
    {},
    {"attention": AttentionConfig(pattern="causal"), "pooling": "cls"},
    {"attention": AttentionConfig(positions="rotary"), "hidden_size": 32},
]
OTHERS = [
    {"attention": AttentionConfig(score="additive")},
    {"attention": AttentionConfig(positions="relative")},
    {"attention": AttentionConfig(pattern="bigbird", block_size=8)},
    {"attention": AttentionConfig(pattern="linformer", compressed_size=7)},
    {"pooling": "mean"},  # it reads the lengths of the sequences
]


@pytest.mark.parametrize(
    ("config", "expected"), [*((each, True) for each in PLAIN), *((each, False) for each in OTHERS)]
)
def test_models_whose_passes_depend_on_shapes_alone(config: dict[str, Any], expected: bool) -> None:
    model = small_model(heads=("masked_lm",), with_pooler=True, **config)
    assert (can_record(model), model.records_passes) == (expected, False)


def test_a_model_without_its_recorded_passes_is_the_usual_one() -> None:
    model = small_model().eval()
    inputs = torch.tensor([5, 6, 7]), torch.tensor([0, 0, 0]), Layout.from_lengths(torch.tensor([3]))
    usual = model(*inputs).last_hidden_state
    model.forward, model.records_passes = (lambda *_: None), True  # type: ignore[method-assign, assignment]
    assert model(*inputs) is None
    forget_passes(model)
    assert torch.equal(model(*inputs).last_hidden_state, usual)
    assert not model.records_passes
