"""The model type `eurobert`: RMS norms, gated feed-forward parts and rotary positions, as in Llama, for both directions (Boizard et al. 2025)."""

from collections.abc import Mapping
from typing import ClassVar

import torch

from bertkit.base.plugins import option
from bertkit.base.typed_settings import refuse
from bertkit.interop.hugging_face.architecture import Content, Heads
from bertkit.interop.hugging_face.config_keys import COMMON, NO_EFFECT, ONLY, Keys
from bertkit.interop.hugging_face.family.member import FamilyArchitecture
from bertkit.interop.hugging_face.family.rotary import KEYS, NAMES, rope_parameters, rotary_attention
from bertkit.interop.hugging_face.names import by_weight
from bertkit.model.bert_config import BertConfig

_LAYER = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention_norm": "input_layernorm",
    "feed_forward.intermediate": "mlp.gate_proj",
    "feed_forward.gate": "mlp.up_proj",
    "feed_forward.output": "mlp.down_proj",
    "feed_forward_norm": "post_attention_layernorm",
}
_MASK = 128_002  # in `transformers`, where nothing computes with it; it has to be in the vocabulary
_POOLINGS = {"bos": "first", "mean": "mean", "late": "late_mean"}


@option("architecture", "eurobert")
class EuroBertArchitecture(FamilyArchitecture):
    """A EuroBERT. The first linear map of its sequence head is the pooler here."""

    family = "eurobert"
    prefix = "model."
    defaults: ClassVar[Content] = {
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "attention_dropout": 0.0, "attention_bias": False, "mlp_bias": False,
        "max_position_embeddings": 8192, "num_key_value_heads": None, "rope_theta": 10_000.0,
        "classifier_pooling": "late", "pad_token_id": 128_001,
    }  # fmt: skip
    fixed: ClassVar[Content] = {
        "type_vocab_size": 0, "hidden_dropout_prob": 0.0, "classifier_dropout": 0.0, "position_embedding_type": "absolute",
    }  # fmt: skip
    keys = Keys(
        COMMON - fixed.keys() | defaults.keys() | KEYS | {"eos_token_id"},
        {**ONLY, "is_decoder": False, "tie_word_embeddings": False},
        NO_EFFECT | {"mask_token_id", "pretraining_tp"},
        # in published files; the first is the name in the authors' own code
        {"clf_pooling": "late", "hidden_dropout": 0.0},
    )
    names_in_file: ClassVar[Mapping[str, str]] = {
        "layer_norm_eps": "rms_norm_eps", "attention_probs_dropout_prob": "attention_dropout",
        # for messages
        **NAMES, "attention.bias": "attention_bias", "attention.key_value_heads": "num_key_value_heads",
        "feed_forward.bias": "mlp_bias", "model.num_attention_heads": "num_attention_heads",
    }  # fmt: skip
    names: ClassVar[Mapping[str, str]] = {
        "bert.embeddings.token.weight": "model.embed_tokens.weight",
        **by_weight(
            {
                **{f"bert.encoder.layers.{{}}.{ours}": f"model.layers.{{}}.{name}" for ours, name in _LAYER.items()},
                "bert.encoder.norm": "model.norm",
                "bert.pooler.dense": "dense",
                "heads.masked_lm.dense": "lm_head",
                "heads.sequence.dense": "classifier",
                "heads.token.dense": "classifier",
            }
        ),
    }
    ties: ClassVar[Mapping[str, str]] = {}
    left_out: ClassVar[Mapping[str, str]] = {r"model\..*rotary_emb\.inv_freq": "a buffer of old versions, not a weight"}
    classes: ClassVar[Mapping[Heads, str]] = {
        ("masked_lm",): "EuroBertForMaskedLM",
        ("sequence",): "EuroBertForSequenceClassification",
        ("token",): "EuroBertForTokenClassification",
        (): "EuroBertModel",
    }
    without_pooler: ClassVar[tuple[Heads, ...]] = (("masked_lm",), ("token",), ())

    def derived(self, read: Content, full: Content) -> Content:
        """Return the parts of a layer, the pooler and the masked LM head."""
        heads, of_keys, pooling = read["num_attention_heads"], full["num_key_value_heads"], full["classifier_pooling"]
        refuse(pooling not in [*_POOLINGS] and f"classifier_pooling={pooling!r}: expected {', '.join(_POOLINGS)}")
        shared = {"bias": full["attention_bias"], "key_value_heads": None if of_keys == heads else of_keys}
        return {
            "attention": rotary_attention(full) | shared,
            "norm": {"placement": "pre", "kind": "rms", "of_embeddings": False},
            "feed_forward": {"kind": "two_map_glu", "bias": full["mlp_bias"]},
            "pooling": _POOLINGS[str(pooling)],
            "pooler_act": "gelu",
            "plain_lm_head": True,
        }

    def content(self, config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
        """Add the settings of attention, the biases and the pooling, for `transformers` 4 and 5."""
        attention = config.attention
        return super().content(config, class_name, dtype) | {
            "attention_bias": attention.bias,
            "classifier_pooling": next(
                (theirs for theirs, ours in _POOLINGS.items() if ours == config.pooling), "late"
            ),
            "head_dim": config.head_size,
            "mask_token_id": min(_MASK, config.vocab_size - 1),
            "mlp_bias": config.feed_forward.bias,
            "num_key_value_heads": attention.key_value_heads or config.num_attention_heads,
            "rope_parameters": rope_parameters(attention),
            "rope_theta": attention.rotary_base,
            "tie_word_embeddings": False,
        }
