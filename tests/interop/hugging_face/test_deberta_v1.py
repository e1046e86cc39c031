"""DeBERTa of 2020: files as they are published, and settings that bertkit lacks."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import test_deberta as deberta
import torch
from safetensors.torch import load_file, save_file

import bertkit
from bertkit.base.errors import InputError
from bertkit.interop.load import load_directory
from bertkit.interop.parity.comparison import certify

# the keys of microsoft/deberta-base, with small sizes
PUBLISHED: dict[str, Any] = {
    "model_type": "deberta", "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 14,
    "initializer_range": 0.02, "intermediate_size": 23, "max_position_embeddings": 61, "relative_attention": True, "pos_att_type": "c2p|p2c",
    "layer_norm_eps": 1e-7, "padding_idx": 0, "position_biased_input": False, "num_attention_heads": 2, "num_hidden_layers": 3,
    "type_vocab_size": 0, "vocab_size": 67, "max_relative_positions": -1, "pooler_dropout": 0, "pooler_hidden_act": "gelu",
}  # fmt: skip


saved = functools.partial(deberta.saved, class_name="DebertaForMaskedLM", published=PUBLISHED)


def test_a_file_as_it_is_published(tmp_path: Path) -> None:
    """Its masked LM head has the names of `legacy: false`, which it does not say; it names no class, and has positions that nothing uses."""
    theirs = saved(tmp_path, legacy=False)
    unused = {"deberta.embeddings.position_embeddings.weight": torch.ones(61, 14)}
    torch.save(load_file(tmp_path / "model.safetensors") | unused, tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    model, report = load_directory(tmp_path)
    assert (list(model.heads), report.skipped.keys(), report.new) == (["masked_lm"], unused.keys(), [])
    ids, mask = torch.randint(67, (3, 47)), (torch.arange(47) < torch.tensor([[47], [13], [29]])).long()
    expected = theirs(input_ids=ids, attention_mask=mask).logits[mask.bool()]
    actual = bertkit.load_model(tmp_path)(ids, mask).logits["masked_lm"][mask.bool()]
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5)
    assert certify(tmp_path, num_sequences=2)["within_tolerance"]


def test_a_fine_tuned_one_of_the_hub_is_read_with_its_pooler(tmp_path: Path) -> None:
    """As microsoft/deberta-base-mnli."""
    theirs = saved(tmp_path, class_name="DebertaForSequenceClassification", id2label={0: "no", 1: "perhaps", 2: "yes"})
    ids = torch.randint(67, (3, 29))
    actual = bertkit.load_model(tmp_path)(ids).logits["sequence"]
    torch.testing.assert_close(actual, theirs(input_ids=ids).logits, rtol=0, atol=2e-5)


def test_settings_of_other_computations_are_refused_by_name(tmp_path: Path) -> None:
    saved(tmp_path)
    for more, message in (
        ({"talking_head": True}, "talking_head=True is not supported"),
        ({"pos_att_type": []}, "pos_att_type="),
    ):
        (tmp_path / "config.json").write_text(json.dumps(PUBLISHED | more))
        with pytest.raises(InputError, match=message):
            load_directory(tmp_path)


def test_a_joined_matrix_of_another_shape_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "deberta.encoder.layer.1.attention.self.in_proj.weight"
    save_file(tensors | {name: tensors[name][:-1].contiguous()}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"in_proj\.weight: \(41, 14\), expected rows"):
        load_directory(tmp_path)
