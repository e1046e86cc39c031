"""DeBERTa: files as they are published, settings that bertkit lacks, and positions of another length beside `transformers`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

import bertkit
from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.hugging_face.config_json import config_json
from bertkit.interop.load import load_directory
from bertkit.interop.parity.comparison import certify
from bertkit.model.distances.tables import distance_rows

# the keys of microsoft/deberta-v3-base, with small sizes
PUBLISHED: dict[str, Any] = {
    "model_type": "deberta-v2", "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 14, "initializer_range": 0.02, "intermediate_size": 23, "max_position_embeddings": 61,
    "relative_attention": True, "position_buckets": 10, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7, "max_relative_positions": -1, "position_biased_input": False,
    "num_attention_heads": 2, "num_hidden_layers": 3, "type_vocab_size": 0, "vocab_size": 67, "attention_head_size": 7,
}  # fmt: skip


def saved(
    folder: Path, class_name: str = "DebertaV2ForMaskedLM", published: dict[str, Any] = PUBLISHED, **more: Any
) -> Any:
    """A model with random weights, saved by `transformers`."""
    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(**published | more)
    theirs = getattr(transformers, class_name)(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    theirs.save_pretrained(folder)
    return theirs


def test_a_file_as_it_is_published(tmp_path: Path) -> None:
    """Its masked LM head has the names of `legacy: false`, which it does not say; it names no class, and has weights that nothing uses."""
    theirs = saved(tmp_path, legacy=False)
    tensors = load_file(tmp_path / "model.safetensors")
    unused = {
        "deberta.embeddings.position_embeddings.weight": torch.ones(61, 14),
        "mask_predictions.dense.weight": torch.ones(14, 14), "mask_predictions.classifier.bias": torch.ones(1),
    }  # fmt: skip
    (tmp_path / "model.safetensors").unlink()
    torch.save(tensors | unused, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    model, report = load_directory(tmp_path)
    assert (list(model.heads), report.skipped.keys(), report.new) == (["masked_lm"], unused.keys(), [])
    ids, mask = torch.randint(67, (3, 47)), (torch.arange(47) < torch.tensor([[47], [13], [29]])).long()
    expected = theirs(input_ids=ids, attention_mask=mask).logits[mask.bool()]
    actual = bertkit.load_model(tmp_path)(ids, mask).logits["masked_lm"][mask.bool()]
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5)
    result = certify(tmp_path, num_sequences=2)
    assert result["within_tolerance"]
    assert "cls.predictions" in str(result["rewritten_because"])


@pytest.mark.parametrize("legacy", [True, False])
def test_of_two_masked_lm_heads_the_one_that_transformers_uses_is_read(legacy: bool, tmp_path: Path) -> None:
    theirs = saved(tmp_path, legacy=legacy)
    tensors = load_file(tmp_path / "model.safetensors")
    saved(tmp_path / "other", legacy=not legacy)
    others = load_file(tmp_path / "other" / "model.safetensors")
    more = {name: tensor + 1 for name, tensor in others.items() if not name.startswith("deberta.")}
    save_file(tensors | more, tmp_path / "model.safetensors", {"format": "pt"})
    report = load_directory(tmp_path).report
    assert report.skipped == dict.fromkeys(more, f"another masked LM head, not used with legacy={legacy}")
    ids = torch.randint(67, (2, 31))
    actual = bertkit.load_model(tmp_path)(ids).logits["masked_lm"]
    torch.testing.assert_close(actual, theirs(input_ids=ids).logits, rtol=0, atol=2e-5)


def test_absolute_positions_beside_those_of_distances(tmp_path: Path) -> None:
    saved(tmp_path, position_biased_input=True)
    model, report = load_directory(tmp_path)
    assert (model.config.attention.also_learned, report.skipped, report.new) == (True, {}, [])
    assert json.loads(config_json(model))["position_biased_input"] is True
    assert certify(tmp_path, num_sequences=2)["within_tolerance"]


def test_texts_that_are_longer_than_any_distance_with_a_row_of_its_own(tmp_path: Path) -> None:
    theirs = saved(tmp_path, "DebertaV2Model", max_position_embeddings=900, max_relative_positions=40)
    ids = torch.randint(67, (2, 611))
    actual = bertkit.load_model(tmp_path)(ids).last_hidden_state
    torch.testing.assert_close(actual, theirs(input_ids=ids).last_hidden_state, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("buckets", "most"), [(256, 512), (256, 1024), (32, 64), (10, 61), (7, 30), (6, 9), (2, 4)])
def test_rows_of_distances_are_those_of_transformers(buckets: int, most: int) -> None:
    for reach in (0, 1, 17, 1500):
        distances = torch.arange(-reach, reach + 1)
        theirs = make_log_bucket_position(distances, buckets, most).long() + buckets
        assert torch.equal(distance_rows(reach, most, buckets, 2 * buckets), theirs.clamp(0, 2 * buckets - 1))


REFUSED = [
    ({"conv_kernel_size": 4}, "conv_kernel_size=4: expected an odd number"),
    ({"conv_kernel_size": 3, "conv_groups": 3}, "conv_groups=3: hidden_size=14 is not a multiple of it"),
    ({"conv_kernel_size": 3, "conv_act": "selu"}, "conv_act='selu'"),
    ({"attention_head_size": 5}, "attention_head_size=5 is not supported; bertkit loads 7 only"),
    ({"pooler_hidden_size": 5}, "pooler_hidden_size=5 is not supported; bertkit loads 14 only"),
    ({"pos_att_type": "p2p|c2p"}, "pos_att_type='p2p|c2p': expected c2p, p2c or both"),
    ({"pos_att_type": []}, "pos_att_type=[] with relative_attention=True: expected c2p, p2c or both"),
    ({"relative_attention": False}, "pos_att_type='p2c|c2p' with relative_attention=False"),
    ({"position_biased_input": 1}, "position_biased_input=1: expected true or false"),
    ({"legacy": False, "embedding_size": 5}, "legacy=False with embedding_size=5"),
    ({"position_buckets": "many"}, "position_buckets='many': expected a whole number"),
    ({"position_buckets": 200}, "position_buckets=200 with max_relative_positions=61: expected"),
    ({"share_att_key": 1}, "share_att_key=1: expected true or false"),
    ({"norm_rel_ebd": ["layer_norm"]}, "norm_rel_ebd=['layer_norm']: expected"),
    ({"pooler_hidden_act": "selu"}, "pooler_hidden_act='selu'"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_settings_that_bertkit_lacks_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED | settings))
    with pytest.raises(InputError, match=re.escape(message)):
        load_directory(tmp_path)


@pytest.mark.slow
def test_onnx(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """An export in onnxruntime equals `transformers`, for texts of other lengths than the one that was traced."""
    saved(
        tmp_path / "theirs", "DebertaV2ForSequenceClassification", vocab_size=tokenizer.vocab_size, conv_kernel_size=3
    )
    bertkit.export_model(bertkit.load_model(tmp_path / "theirs"), tokenizer, tmp_path / "model")
    bertkit.export(model_dir=tmp_path / "model", head="task", onnx=True, output_dir=tmp_path / "out")
    rows = json.loads((tmp_path / "out" / "parity.json").read_text())["onnx"]
    assert {tuple(row["shape"]) for row in rows} == {(1, 7), (3, 61), (2, 61)}
    assert max(row["max_abs"] for row in rows) < 1e-5


def test_a_missing_table_of_distances_is_named_as_in_the_file(tmp_path: Path) -> None:
    saved(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["deberta.encoder.rel_embeddings.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"deberta\.encoder\.rel_embeddings\.weight: missing"):
        load_directory(tmp_path)
