"""The model type `nomic_bert`: a post-norm BERT with rotary positions and SwiGLU, without biases in its layers (Nussbaum et al. 2024, section 3.1)."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from bertkit.base.plugins import option
from bertkit.base.typed_settings import refuse
from bertkit.interop.hugging_face.architecture import Content, Heads
from bertkit.interop.hugging_face.family.renamed import RenamedArchitecture, keys_of, names_of
from bertkit.interop.hugging_face.family.rotary import rotary_attention
from bertkit.interop.hugging_face.names import by_weight
from bertkit.model.bert_config import BertConfig

_LAYER = {
    "self_attn.q_proj": "attn.Wqkv.query",
    "self_attn.k_proj": "attn.Wqkv.key",
    "self_attn.v_proj": "attn.Wqkv.value",
    "self_attn.o_proj": "attn.out_proj",
    "mlp.up_proj": "mlp.fc11",
    "mlp.gate_proj": "mlp.fc12",
    "mlp.down_proj": "mlp.fc2",
    "post_attention_layernorm": "norm1",
    "post_mlp_layernorm": "norm2",
}
# the keys of files that were published before `transformers` had the class, by today's keys
_BEFORE = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions", "layer_norm_eps": "layer_norm_epsilon", "hidden_dropout_prob": "resid_pdrop",
    "attention_probs_dropout_prob": "attn_pdrop", "rope_theta": "rotary_emb_base",
}  # fmt: skip
# what the authors' class had where such a file lacks a key
_DEFAULTS_BEFORE: Content = {
    "activation_function": "gelu_new", "attn_pdrop": 0.1, "embd_pdrop": 0.1, "layer_norm_epsilon": 1e-5, "mlp_fc1_bias": True,
    "mlp_fc2_bias": True, "n_positions": 1024, "qkv_proj_bias": True, "resid_pdrop": 0.1, "rotary_emb_base": 10_000.0,
    "rotary_emb_fraction": 0.0,
}  # fmt: skip
_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu"}


@option("architecture", "nomic_bert")
class NomicBertArchitecture(RenamedArchitecture):
    """A Nomic BERT. Only the class for sequences has a pooler."""

    family = "nomic_bert"
    prefix = "nomic_bert."
    of_authors = "bert."
    defaults: ClassVar[Content] = {
        "hidden_act": "silu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 2048,
        "rope_theta": 1000.0,
    }  # fmt: skip
    keys = keys_of(
        {
            "causal": False, "ffn_div": 1, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "moe_every_n_layers": 0, "parallel_block": False,
            "prenorm": False, "qkv_proj_bias": False, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
            "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "scale_attn_by_inverse_layer_idx": False,
            "scale_attn_weights": True, "use_rms_norm": False,
        },
        {*_BEFORE.values(), "activation_function", "embd_pdrop"},
        {
            "dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln", "max_trained_positions", "pad_vocab_size_multiple",
            "parallel_block_tied_norm", "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
            "summary_type", "summary_use_proj", "use_flash_attn", "use_xentropy",
        },
    )  # fmt: skip
    names: ClassVar[Mapping[str, str]] = {
        **names_of("nomic_bert."),
        **by_weight(
            {
                "heads.masked_lm.dense": "cls.predictions.transform.dense",
                "heads.masked_lm.norm": "cls.predictions.transform.layer_norm",
            }
        ),
        "heads.masked_lm.bias": "cls.predictions.bias",
    }
    in_files: ClassVar[Mapping[str, str]] = by_weight(
        {
            "nomic_bert.embeddings.LayerNorm": "nomic_bert.emb_ln",
            **{
                f"nomic_bert.layers.{{}}.{ours}": f"nomic_bert.encoder.layers.{{}}.{name}"
                for ours, name in _LAYER.items()
            },
        }
    )
    joined: ClassVar[Mapping[str, tuple[str, ...]]] = {"Wqkv": ("hidden_size", "query", "key", "value")}
    ties: ClassVar[Mapping[str, str]] = {
        "cls.predictions.decoder.weight": "nomic_bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    classes: ClassVar[Mapping[Heads, str]] = {
        ("masked_lm",): "NomicBertForMaskedLM",
        ("sequence",): "NomicBertForSequenceClassification",
        ("token",): "NomicBertForTokenClassification",
        (): "NomicBertModel",
    }

    def settings(self, content: Content, tensors: Mapping[str, Tensor]) -> Content:
        """Translate the settings, also those of a file from before `transformers` had the class."""
        is_before = "n_embd" in content and "hidden_size" not in content
        return super().settings(_of_today(content) if is_before else content, tensors)

    def derived(self, read: Content, full: Content) -> Content:
        """Return the parts of a layer and the bias of the masked LM head."""
        return {
            "attention": rotary_attention(full) | {"bias": False},
            "feed_forward": {"kind": "two_map_glu", "bias": False},
            "head_bias": True,
        }

    def content(self, config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
        """Add the size of the heads."""
        return super().content(config, class_name, dtype) | {"head_dim": config.head_size}


def _of_today(content: Content) -> Content:
    """Return the settings of a file from before `transformers` had the class, by today's keys."""
    full = _DEFAULTS_BEFORE | content
    act, embedded, dropped = full["activation_function"], full["embd_pdrop"], full["resid_pdrop"]
    refuse(
        act not in [*_ACTIVATIONS] and f"activation_function={act!r}: expected {' or '.join(_ACTIVATIONS)}",
        embedded != dropped and f"embd_pdrop={embedded!r} with resid_pdrop={dropped!r}: expected the same",
    )
    named = {today: full[before] for today, before in _BEFORE.items() if full.get(before) is not None}
    return full | named | {"hidden_act": _ACTIVATIONS[str(act)]}
