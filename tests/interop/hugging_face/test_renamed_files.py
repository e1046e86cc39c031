"""Nomic BERT and GTE: files of their authors' own code, their names of weights, their rotary positions and dropout."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import small_config
from interop.hugging_face.test_family import saved
from safetensors.torch import load_file, save_file

import bertkit
from bertkit.base.errors import InputError
from bertkit.interop.load import load_directory
from bertkit.interop.parity.comparison import certify
from bertkit.model.bert import Bert
from bertkit.model.bert_config import FeedForwardConfig

NOMIC = {
    "activation_function": "swiglu", "architectures": ["NomicBertForPreTraining"], "attn_pdrop": 0.0, "bos_token_id": None,
    "causal": False, "dense_seq_output": True, "embd_pdrop": 0.0, "eos_token_id": None, "fused_bias_fc": True, "fused_dropout_add_ln": True,
    "initializer_range": 0.02, "layer_norm_epsilon": 1e-5, "max_trained_positions": 2048, "mlp_fc1_bias": False, "mlp_fc2_bias": False,
    "model_type": "nomic_bert", "n_embd": 24, "n_head": 3, "n_inner": 37, "n_layer": 2, "n_positions": 40, "pad_vocab_size_multiple": 64,
    "parallel_block": False, "parallel_block_tied_norm": False, "prenorm": False, "qkv_proj_bias": False, "reorder_and_upcast_attn": False,
    "resid_pdrop": 0.0, "rotary_emb_base": 700, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None, "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True, "summary_activation": None,
    "summary_first_dropout": 0.0, "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
    "torch_dtype": "float32", "transformers_version": "4.37.2", "type_vocab_size": 2, "use_cache": True, "use_flash_attn": True,
    "use_rms_norm": False, "use_xentropy": True, "vocab_size": 53,
}  # fmt: skip
GTE = {
    "architectures": ["NewModel", "NewForTokenClassification"], "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 24, "id2label": {"0": "LABEL_0"}, "initializer_range": 0.02,
    "intermediate_size": 37, "label2id": {"LABEL_0": 0}, "layer_norm_eps": 1e-12, "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False, "logn_attention_scale": False, "max_position_embeddings": 40, "model_type": "new",
    "num_attention_heads": 3, "num_hidden_layers": 2, "pack_qkv": True, "pad_token_id": 1, "position_embedding_type": "rope",
    "rope_scaling": {"factor": 8.0, "type": "ntk"}, "rope_theta": 20000, "torch_dtype": "float16", "transformers_version": "4.39.1",
    "type_vocab_size": 1, "unpad_inputs": False, "use_memory_efficient_attention": False, "vocab_size": 53,
}  # fmt: skip
SIZES = {
    "vocab_size": 53, "hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 37,
    "max_position_embeddings": 40,
}  # fmt: skip


def rewritten(folder: Path, settings: dict[str, Any], prefixes: tuple[str, str]) -> None:
    """Write other settings, and another prefix before the names of the weights."""
    (folder / "config.json").write_text(json.dumps(settings))
    tensors = {
        re.sub(rf"^{prefixes[0]}\.", f"{prefixes[1]}.", n): t
        for n, t in load_file(folder / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def nomic_of_before(folder: Path, **changed: Any) -> torch.nn.Module:
    """A masked LM as the authors' code wrote it, and the class of `transformers` with its weights."""
    rope = {"rope_type": "default", "rope_theta": 700.0}
    own = {
        "hidden_act": "silu",
        "layer_norm_eps": 1e-5,
        "type_vocab_size": 2,
        "pad_token_id": 0,
        "rope_parameters": rope,
    }
    theirs = saved(folder, "nomic_bert", ("masked_lm",), 3, **SIZES, **own)
    rewritten(
        folder, {key: value for key, value in (NOMIC | changed).items() if value != "absent"}, ("nomic_bert", "bert")
    )
    return theirs


def gte_of_before(folder: Path, **changed: Any) -> torch.nn.Module:
    """The same of a GTE, with the rotary positions that the authors' code has for "ntk"."""
    rope = {"rope_type": "linear", "rope_theta": 8.0 * 20000, "factor": 8.0 ** (2 / 8)}  # heads of 8 numbers
    own = {
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 1,
        "pad_token_id": 1,
        "rope_parameters": rope,
    }
    theirs = saved(folder, "gte", ("token",), 4, **SIZES, **own, id2label={0: "LABEL_0"})
    rewritten(folder, GTE | changed, ("gte", "new"))
    return theirs


@pytest.mark.parametrize("write", [nomic_of_before, gte_of_before])
def test_files_of_before_the_class_of_transformers(write: Any, tmp_path: Path) -> None:
    """Logits as of the class with the same weights; certified by a copy, which has today's keys."""
    theirs = write(tmp_path)
    _, report = load_directory(tmp_path)
    assert (report.skipped, report.new) == ({}, [])
    ids = torch.randint(2, 53, (3, 17), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * 17, [1] * 9 + [0] * 8, [1] * 2 + [0] * 15])
    expected = theirs(input_ids=ids, attention_mask=mask).logits
    actual = next(iter(bertkit.load_model(tmp_path)(ids, mask).logits.values()))
    torch.testing.assert_close(actual[mask.bool()], expected[mask.bool()], rtol=0, atol=2e-5)
    result = certify(tmp_path, num_sequences=2)
    assert (result["within_tolerance"], result["rewritten_because"] is None) == (True, False)


REFUSED = [
    (nomic_of_before, {"qkv_proj_bias": True}, "qkv_proj_bias=True is not supported; bertkit loads False only"),
    (nomic_of_before, {"qkv_proj_bias": "absent"}, "qkv_proj_bias=True is not supported"),
    (nomic_of_before, {"rotary_emb_fraction": "absent"}, "rotary_emb_fraction=0.0 is not supported; bertkit loads 1.0 only"),
    (nomic_of_before, {"rotary_emb_interleaved": True}, "rotary_emb_interleaved=True is not supported"),
    (nomic_of_before, {"rotary_scaling_factor": 2.0}, "rotary_scaling_factor=2.0 is not supported"),
    (nomic_of_before, {"prenorm": True}, "prenorm=True is not supported"),
    (nomic_of_before, {"activation_function": "gelu"}, "activation_function='gelu': expected swiglu or geglu"),
    (nomic_of_before, {"embd_pdrop": 0.1}, "embd_pdrop=0.1 with resid_pdrop=0.0: expected the same"),
    (nomic_of_before, {"n_inner": None}, "no intermediate_size"),
    (gte_of_before, {"pack_qkv": False}, "pack_qkv=False is not supported"),
    (gte_of_before, {"hidden_act": "silu"}, "hidden_act='silu' is not supported; bertkit loads 'gelu' only"),
    (gte_of_before, {"rope_scaling": {"type": "ntk", "factor": 8.0, "mixed_b": 0.6}}, "unknown key 'mixed_b'"),
]  # fmt: skip


@pytest.mark.parametrize(("write", "changed", "message"), REFUSED)
def test_settings_of_before_that_bertkit_lacks_are_refused(
    write: Any, changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write(tmp_path, **changed)
    with pytest.raises(InputError, match=re.escape(message)):
        load_directory(tmp_path)


@pytest.mark.parametrize("kind", ["nomic_bert", "gte"])
@pytest.mark.parametrize("heads", [("masked_lm",), ()])
def test_files_with_the_names_of_the_class(kind: str, heads: tuple[str, ...], tmp_path: Path) -> None:
    theirs = saved(tmp_path / "usual", kind, heads, 5)
    theirs.save_pretrained(tmp_path / "class", save_original_format=False)  # type: ignore[operator]
    usual, renamed = ({*load_file(tmp_path / name / "model.safetensors")} for name in ("usual", "class"))
    assert len(renamed - usual) > 10
    (one, _), (other, report) = (load_directory(tmp_path / name) for name in ("usual", "class"))
    assert (report.skipped, report.new) == ({}, [])
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())


def test_a_joined_matrix_beside_one_of_its_parts_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, "nomic_bert", (), 6)
    tensors = load_file(tmp_path / "model.safetensors")
    part = tensors["encoder.layers.0.attn.Wqkv.weight"].chunk(3)[0].clone()
    save_file(tensors | {"layers.0.self_attn.q_proj.weight": part}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="is there twice, also as"):
        load_directory(tmp_path)


@pytest.mark.parametrize("kind", ["mlp", "glu", "two_map_glu"])
def test_dropout_of_the_intermediate_vectors(kind: str) -> None:
    """Before the last map: with the identity as this map, an output is 0 or twice what it is without dropout."""
    config = small_config(
        hidden_size=32, intermediate_size=32, feed_forward=FeedForwardConfig(kind=kind, bias=False), layer_dropout_probs={"intermediate": 0.5}
    )  # fmt: skip
    torch.manual_seed(0)
    part = Bert(config).encoder.layers[0].feed_forward
    for parameter in part.parameters():
        torch.nn.init.normal_(parameter)
    torch.nn.init.eye_(part.output.weight)
    hidden = torch.randn(29, 32)
    plain, dropped = part.eval()(hidden), part.train()(hidden)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * plain[kept], rtol=1e-5, atol=1e-6)
    assert 0.4 < kept[plain.abs() > 1e-3].float().mean() < 0.6  # GELU itself is 0 for many


def test_a_gte_drops_before_the_last_map_of_a_layer_and_a_nomic_bert_does_not(tmp_path: Path) -> None:
    for kind, expected in (("gte", 0.3), ("nomic_bert", 0.0)):
        saved(tmp_path / kind, kind, ("token",), 3, hidden_dropout_prob=0.3)
        layer = load_directory(tmp_path / kind).model.bert.encoder.layers[1]
        assert (layer.feed_forward.dropout.prob, layer.dropout.prob) == (expected, 0.3)


def test_gte_has_no_segments_where_its_file_says_so(tmp_path: Path) -> None:
    theirs = saved(tmp_path, "gte", (), 8, type_vocab_size=0)
    assert load_directory(tmp_path).model.bert.embeddings.segment is None
    assert isinstance(theirs, transformers.GteModel)
