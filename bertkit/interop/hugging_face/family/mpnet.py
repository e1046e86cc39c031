"""The model type `mpnet`: RoBERTa without segments, and with T5's bias for each bucket of distances (Song et al. 2020)."""

from collections.abc import Mapping
from typing import ClassVar

import torch

from bertkit.base.plugins import option
from bertkit.interop.hugging_face.architecture import Content, Heads
from bertkit.interop.hugging_face.config_keys import COMMON, NO_EFFECT, ONLY, Keys
from bertkit.interop.hugging_face.family.roberta import RobertaArchitecture
from bertkit.interop.hugging_face.names import by_weight, of_encoder
from bertkit.model.bert_config import BertConfig

_LAYER = {
    "attention.query": "attention.attn.q",
    "attention.key": "attention.attn.k",
    "attention.value": "attention.attn.v",
    "attention.output": "attention.attn.o",
    "attention_norm": "attention.LayerNorm",
}
_PAD, _BUCKETS, _MAX_DISTANCE = 1, 32, 128  # which modeling_mpnet.py has in its code


@option("architecture", "mpnet")
class MPNetArchitecture(RobertaArchitecture):
    """An MPNet. The layers of `transformers` count 32 buckets, and positions from 2, whatever its file says; other values are refused."""

    family = "mpnet"
    prefix = "mpnet."
    fixed: ClassVar[Content] = {
        "pad_token_id": _PAD, "type_vocab_size": 0, "classifier_dropout": None, "position_embedding_type": "absolute",
        "is_decoder": False, "add_cross_attention": False,
    }  # fmt: skip
    keys = Keys(
        COMMON - fixed.keys() | {"attention_probs_dropout_prob", "hidden_act", "hidden_dropout_prob", "layer_norm_eps"},
        {**ONLY, "pad_token_id": _PAD, "relative_attention_num_buckets": _BUCKETS},
        NO_EFFECT | fixed.keys(),  # nothing in `transformers` reads those that are not named above
    )
    names: ClassVar[Mapping[str, str]] = {
        **{ours: theirs for ours, theirs in RobertaArchitecture.names.items() if ours.startswith("heads.")},
        **of_encoder("mpnet."),
        **by_weight({f"bert.encoder.layers.{{}}.{ours}": f"mpnet.encoder.layer.{{}}.{name}" for ours, name in _LAYER.items()}),
        "bert.encoder.positions.embedding.weight": "mpnet.encoder.relative_attention_bias.weight",
    }  # fmt: skip
    ties: ClassVar[Mapping[str, str]] = {
        tied: original.replace("roberta.", "mpnet.") for tied, original in RobertaArchitecture.ties.items()
    }
    classes: ClassVar[Mapping[Heads, str]] = {
        heads: name.replace("Roberta", "MPNet")
        for heads, name in RobertaArchitecture.classes.items()
        if heads != ("next_token",)
    }
    compared_with: ClassVar[Content] = {"attn_implementation": "eager"}

    def derived(self, read: Content, full: Content) -> Content:
        """Return RoBERTa's, and attention."""
        attention = {
            "positions": "relative_bias",
            "also_learned": True,
            "max_distance": _MAX_DISTANCE,
            "distance_buckets": _BUCKETS // 2,  # in each direction
        }
        return super().derived(read, full) | {"attention": attention}

    def content(self, config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
        """Add the number of buckets."""
        return super().content(config, class_name, dtype) | {
            "pad_token_id": config.pad_token_id,
            "relative_attention_num_buckets": _BUCKETS,
        }
