"""Which models record their passes; the recorded passes themselves are tested on a GPU, in test_gpu.py."""

from typing import Any

import pytest
from conftest import small_model

from bertkit.model.bert_config import AttentionConfig
from bertkit.model.recorded import can_record

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
