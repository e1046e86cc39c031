"""The model type `gte`: a post-norm BERT with rotary positions and gated feed-forward parts (Zhang et al. 2024, section 2.1); `new` in its authors' own files."""

from collections.abc import Mapping
from typing import ClassVar

from bertkit.base.plugins import option
from bertkit.interop.hugging_face.architecture import Content, Heads
from bertkit.interop.hugging_face.config_keys import Keys
from bertkit.interop.hugging_face.family.renamed import RenamedArchitecture, keys_of, names_of
from bertkit.interop.hugging_face.family.rotary import rotary_attention
from bertkit.interop.hugging_face.names import by_weight
from bertkit.model.bert_config import BertConfig

_LAYER = {
    "self_attn.q_proj": "attention.qkv_proj.query",
    "self_attn.k_proj": "attention.qkv_proj.key",
    "self_attn.v_proj": "attention.qkv_proj.value",
    "self_attn.o_proj": "attention.o_proj",
    "mlp.up_proj": "mlp.up_gate_proj.up",
    "mlp.gate_proj": "mlp.up_gate_proj.gate",
    "post_attention_layernorm": "attn_ln",
    "post_mlp_layernorm": "mlp_ln",
    "mlp.down_proj": "mlp.down_proj",
}


@option("architecture", "gte")
class GteArchitecture(RenamedArchitecture):
    """A GTE. Only the class for sequences has a pooler."""

    family = "gte"
    prefix = "gte."
    of_authors = "new."
    defaults: ClassVar[Content] = {
        "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 8192, "pad_token_id": 1, "rope_theta": 160_000.0,
        "type_vocab_size": 1,
    }  # fmt: skip
    keys = keys_of(
        {
            "layer_norm_type": "layer_norm",
            "logn_attention_scale": False,
            "pack_qkv": True,
            "position_embedding_type": "rope",
        },
        set(),
        {"logn_attention_clip1", "unpad_inputs", "use_memory_efficient_attention"},
    )
    names: ClassVar[Mapping[str, str]] = {
        **names_of("gte."),
        **by_weight({"heads.masked_lm.dense": "lm_head.dense", "heads.masked_lm.norm": "lm_head.layer_norm"}),
        "heads.masked_lm.bias": "lm_head.decoder.bias",
    }
    in_files: ClassVar[Mapping[str, str]] = by_weight(
        {
            "lm_head.layer_norm": "lm_head.norm",
            **{f"gte.layers.{{}}.{ours}": f"gte.encoder.layer.{{}}.{name}" for ours, name in _LAYER.items()},
        }
    )
    joined: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "qkv_proj": ("hidden_size", "query", "key", "value"),
        "up_gate_proj": ("intermediate_size", "up", "gate"),
    }
    ties: ClassVar[Mapping[str, str]] = {"lm_head.decoder.weight": "gte.embeddings.word_embeddings.weight"}
    classes: ClassVar[Mapping[Heads, str]] = {
        ("masked_lm",): "GteForMaskedLM",
        ("sequence",): "GteForSequenceClassification",
        ("token",): "GteForTokenClassification",
        (): "GteModel",
    }

    def derived(self, read: Content, full: Content) -> Content:
        """Return the parts of a layer, with dropout before the last map, and the masked LM head, with GELU always."""
        return {
            "attention": rotary_attention(full),
            "feed_forward": {"kind": "two_map_glu", "bias": False, "output_bias": True},
            "layer_dropout_probs": {"intermediate": read["hidden_dropout_prob"]},
            "head_act": None if read["hidden_act"] == "gelu" else "gelu",
            "head_bias": True,
        }


@option("architecture", "new")
class NewArchitecture(GteArchitecture):
    """A GTE as its authors published it; it is written as `gte`, since `transformers` has no class of this type."""

    defaults: ClassVar[Content] = GteArchitecture.defaults | {
        "max_position_embeddings": 2048, "pad_token_id": 0, "rope_theta": 10_000.0,
    }  # fmt: skip
    # here the masked LM head has the activation of the layers
    keys = Keys(
        GteArchitecture.keys.honoured,
        {**GteArchitecture.keys.only, "hidden_act": "gelu"},
        GteArchitecture.keys.no_effect,
    )
    classes: ClassVar[Mapping[Heads, str]] = {
        heads: name.replace("Gte", "New") for heads, name in GteArchitecture.classes.items()
    }

    def writes(self, config: BertConfig) -> bool:
        """It is the type of files that are only read."""
        return False
