"""The table of names is total both ways."""

from __future__ import annotations

import pytest
from conftest import LAYERS, small_model

from bertkit.interop.hugging_face.names import CLASSIFIERS, HUGGING_FACE, from_hugging_face, to_hugging_face
from bertkit.model.config import TASK_HEADS, DecoderConfig


def their_names() -> set[str]:
    from transformers import BertConfig, BertForPreTraining

    shape = {"hidden_size": 4, "num_attention_heads": 2, "intermediate_size": 3, "vocab_size": 7}
    model = BertForPreTraining(BertConfig(num_hidden_layers=LAYERS, max_position_embeddings=5, **shape))
    return {name for name, _ in model.named_parameters()}  # tied weights once


def test_total_both_ways() -> None:
    ours, theirs = {name for name, _ in small_model().named_parameters()}, their_names()
    assert len(ours) == len(theirs) == 5 + 16 * LAYERS + 2 + 5 + 2
    assert {to_hugging_face(name) for name in ours} == theirs
    back = from_hugging_face(theirs)
    assert set(back) == theirs
    assert set(back.values()) == ours
    assert {to_hugging_face(name): name for name in ours} == back


def test_the_table_is_one_to_one_and_every_row_is_used() -> None:
    assert len(HUGGING_FACE) == 5 + 16 + 2 + 5 + 2 + 2 + 3 * 2 + (5 + 16 + 10 + 5)
    assert len(set(HUGGING_FACE.values())) == len(HUGGING_FACE) - 2 * 2  # three heads are called classifier
    decoder = DecoderConfig(kind="bert")
    models = [small_model(), *(small_model(heads=(head,), decoder=decoder) for head in TASK_HEADS)]
    used = {to_hugging_face(name).replace("layer.0.", "layer.{}.") for m in models for name, _ in m.named_parameters()}
    assert set(HUGGING_FACE.values()) <= used


@pytest.mark.parametrize("head", CLASSIFIERS)
def test_which_classifier(head: str) -> None:
    names = ["classifier.weight", "classifier.bias"]
    assert list(from_hugging_face(names, head).values()) == [f"heads.{head}.dense.weight", f"heads.{head}.dense.bias"]


def test_a_name_without_a_place_is_left_out() -> None:
    assert from_hugging_face(["bert.encoder.layer.0.output.scale", "lm_head.weight", "bert.embeddings.norm.bias"]) == {}
    with pytest.raises(KeyError):
        to_hugging_face("bert.encoder.layers.0.attention.rotary")
