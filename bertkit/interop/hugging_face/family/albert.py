"""The model type `albert`: layers with the same weights, and embeddings of another size (Lan et al. 2020, section 3.1)."""

from collections.abc import Mapping
from typing import ClassVar

import torch

from bertkit.base.plugins import option
from bertkit.interop.hugging_face.architecture import Content, Heads, OfNextSentence
from bertkit.interop.hugging_face.config_keys import FAMILY, NO_EFFECT, Keys
from bertkit.interop.hugging_face.family.member import FamilyArchitecture
from bertkit.interop.hugging_face.names import by_weight, of_encoder
from bertkit.model.bert_config import BertConfig

_LAYER = {
    "attention.query": "attention.query",
    "attention.key": "attention.key",
    "attention.value": "attention.value",
    "attention.output": "attention.dense",
    "attention_norm": "attention.LayerNorm",
    "feed_forward.intermediate": "ffn",
    "feed_forward.output": "ffn_output",
    "feed_forward_norm": "full_layer_layer_norm",
}
_ONE = "albert.encoder.albert_layer_groups.0.albert_layers.0"  # all layers


@option("architecture", "albert")
class AlbertArchitecture(FamilyArchitecture):
    """An ALBERT, whose next sentence head predicts the order of sentences."""

    family = "albert"
    prefix = "albert."
    defaults: ClassVar[Content] = {
        "embedding_size": 128, "hidden_act": "gelu_new", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.1,
    }  # fmt: skip
    names_in_file: ClassVar[Mapping[str, str]] = {"classifier_dropout": "classifier_dropout_prob"}
    keys = Keys(
        FAMILY.honoured - names_in_file.keys() | defaults.keys(),
        {**FAMILY.only, "inner_group_num": 1, "is_decoder": False, "num_hidden_groups": 1},
        NO_EFFECT | {"down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"},
    )
    names: ClassVar[Mapping[str, str]] = {
        **{ours: theirs for ours, theirs in of_encoder("albert.").items() if ".embeddings." in ours},
        **by_weight(
            {
                "bert.embeddings.projection": "albert.encoder.embedding_hidden_mapping_in",
                **{f"bert.encoder.layers.{{}}.{ours}": f"{_ONE}.{theirs}" for ours, theirs in _LAYER.items()},
                "bert.pooler.dense": "albert.pooler",
                "heads.masked_lm.dense": "predictions.dense",
                "heads.masked_lm.norm": "predictions.LayerNorm",
                "heads.next_sentence.dense": "sop_classifier.classifier",
                "heads.sequence.dense": "classifier",
                "heads.token.dense": "classifier",
                "heads.choice.dense": "classifier",
                "heads.span.dense": "qa_outputs",
            }
        ),
        "heads.masked_lm.bias": "predictions.bias",
    }
    ties: ClassVar[Mapping[str, str]] = {
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    }
    classes: ClassVar[Mapping[Heads, str]] = {
        ("masked_lm", "next_sentence"): "AlbertForPreTraining",
        ("masked_lm",): "AlbertForMaskedLM",
        ("sequence",): "AlbertForSequenceClassification",
        ("token",): "AlbertForTokenClassification",
        ("span",): "AlbertForQuestionAnswering",
        ("choice",): "AlbertForMultipleChoice",
        (): "AlbertModel",
    }
    of_next_sentence: ClassVar[OfNextSentence] = OfNextSentence("sentence_order_label", "sop_logits")

    def derived(self, read: Content, full: Content) -> Content:
        """Return the size of the embeddings, whose map is always there, and the dropout where it differs from BERT's."""
        return {
            "embedding_size": full["embedding_size"],
            "shared_layers": True,
            "head_dropout_probs": {"next_sentence": full["classifier_dropout_prob"]},
            "layer_dropout_probs": {"feed_forward": 0.0},
        }

    def content(self, config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
        """Add the size of the embeddings, and what is the same in every ALBERT here."""
        own = config.classifier_dropout
        return super().content(config, class_name, dtype) | {
            "classifier_dropout_prob": self.defaults["classifier_dropout_prob"] if own is None else own,
            "embedding_size": config.embedding_width,
            "inner_group_num": 1,
            "num_hidden_groups": 1,
        }
