"""The model type `jina_embeddings_v3`: an XLM-RoBERTa with rotary positions (Sturua et al. 2024, section 3); its adapters are not read."""

from collections.abc import Mapping
from typing import ClassVar

from bertkit.base.plugins import option
from bertkit.interop.hugging_face.architecture import Content, Heads
from bertkit.interop.hugging_face.family.member import gelu_heads
from bertkit.interop.hugging_face.family.renamed import TWO_MAPS, RenamedArchitecture, keys_of, names_of
from bertkit.interop.hugging_face.family.roberta import RobertaArchitecture
from bertkit.interop.hugging_face.family.rotary import rotary_attention
from bertkit.interop.hugging_face.names import by_weight

_LAYER = {
    "self_attn.q_proj": "mixer.Wqkv.query",
    "self_attn.k_proj": "mixer.Wqkv.key",
    "self_attn.v_proj": "mixer.Wqkv.value",
    "self_attn.o_proj": "mixer.out_proj",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    "post_attention_layernorm": "norm1",
    "post_mlp_layernorm": "norm2",
}


@option("architecture", "jina_embeddings_v3")
class JinaArchitecture(RenamedArchitecture):
    """A Jina encoder of the third version, with RoBERTa's heads."""

    family = "jina_embeddings_v3"
    prefix = of_authors = "roberta."
    defaults: ClassVar[Content] = {
        "layer_norm_eps": 1e-5, "max_position_embeddings": 8194, "pad_token_id": 1, "rope_theta": 20_000.0, "type_vocab_size": 1,
    }  # fmt: skip
    keys = keys_of({}, set(), set())
    poolers = RobertaArchitecture.poolers
    without_pooler = RobertaArchitecture.without_pooler
    names: ClassVar[Mapping[str, str]] = names_of("roberta.", TWO_MAPS) | {
        ours: theirs for ours, theirs in RobertaArchitecture.names.items() if ours.startswith("heads.")
    }
    in_files: ClassVar[Mapping[str, str]] = by_weight(
        {
            "roberta.embeddings.LayerNorm": "roberta.emb_ln",
            **{f"roberta.layers.{{}}.{ours}": f"roberta.encoder.layers.{{}}.{name}" for ours, name in _LAYER.items()},
        }
    )
    joined: ClassVar[Mapping[str, tuple[str, ...]]] = {"Wqkv": ("hidden_size", "query", "key", "value")}
    ties = RobertaArchitecture.ties
    classes: ClassVar[Mapping[Heads, str]] = {
        heads: name.replace("Roberta", "JinaEmbeddingsV3")
        for heads, name in RobertaArchitecture.classes.items()
        if heads not in (("next_token",), ("choice",))
    }

    def derived(self, read: Content, full: Content) -> Content:
        """Return rotary positions; the head for masked tokens has GELU always, and that for sequences its dropout before its last map."""
        return gelu_heads(read) | {"attention": rotary_attention(full)}
