"""The model type `distilbert`: BERT without segments, and without a pooler except in its heads for texts (Sanh et al. 2019, section 3)."""

from collections.abc import Mapping
from typing import ClassVar

import torch

from bertkit.base.plugins import option
from bertkit.interop.hugging_face.architecture import Content, Heads
from bertkit.interop.hugging_face.config_keys import COMMON, NO_EFFECT, ONLY, Keys
from bertkit.interop.hugging_face.family.member import FamilyArchitecture
from bertkit.interop.hugging_face.names import by_weight
from bertkit.model.bert_config import BertConfig

_LAYER = {
    "attention.query": "attention.q_lin",
    "attention.key": "attention.k_lin",
    "attention.value": "attention.v_lin",
    "attention.output": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "feed_forward.intermediate": "ffn.lin1",
    "feed_forward.output": "ffn.lin2",
    "feed_forward_norm": "output_layer_norm",
}
_MODULES = {
    "bert.embeddings.norm": "distilbert.embeddings.LayerNorm",
    **{
        f"bert.encoder.layers.{{}}.{ours}": f"distilbert.transformer.layer.{{}}.{name}" for ours, name in _LAYER.items()
    },
    "bert.pooler.dense": "pre_classifier",
    "heads.masked_lm.dense": "vocab_transform",
    "heads.masked_lm.norm": "vocab_layer_norm",
    "heads.sequence.dense": "classifier",
    "heads.token.dense": "classifier",
    "heads.choice.dense": "classifier",
    "heads.span.dense": "qa_outputs",
}


@option("architecture", "distilbert")
class DistilBertArchitecture(FamilyArchitecture):
    """A DistilBERT, with the dropout of each of its heads."""

    family = "distilbert"
    prefix = "distilbert."
    defaults: ClassVar[Content] = {
        "activation": "gelu", "dropout": 0.1, "attention_dropout": 0.1, "qa_dropout": 0.1, "seq_classif_dropout": 0.2,
    }  # fmt: skip
    fixed: ClassVar[Content] = {
        "layer_norm_eps": 1e-12, "type_vocab_size": 0, "position_embedding_type": "absolute",
    }  # fmt: skip
    names_in_file: ClassVar[Mapping[str, str]] = {
        "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads", "intermediate_size": "hidden_dim",
        "hidden_act": "activation", "hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout",
        "classifier_dropout": "seq_classif_dropout", "head_dropout_probs.span": "qa_dropout",
    }  # fmt: skip
    keys = Keys(
        COMMON - names_in_file.keys() | {*names_in_file.values()},
        {**ONLY, "is_decoder": False},
        # `sinusoidal_pos_embds` is about initial weights; `transformers` reads none of the others
        NO_EFFECT | {"sinusoidal_pos_embds", "tie_weights_"},
    )
    names: ClassVar[Mapping[str, str]] = {
        **by_weight(_MODULES),
        "bert.embeddings.token.weight": "distilbert.embeddings.word_embeddings.weight",
        "bert.embeddings.position.weight": "distilbert.embeddings.position_embeddings.weight",
        "heads.masked_lm.bias": "vocab_projector.bias",
    }
    ties: ClassVar[Mapping[str, str]] = {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"}
    classes: ClassVar[Mapping[Heads, str]] = {
        ("masked_lm",): "DistilBertForMaskedLM",
        ("sequence",): "DistilBertForSequenceClassification",
        ("token",): "DistilBertForTokenClassification",
        ("span",): "DistilBertForQuestionAnswering",
        ("choice",): "DistilBertForMultipleChoice",
        (): "DistilBertModel",
    }
    without_pooler: ClassVar[tuple[Heads, ...]] = (("masked_lm",), ("token",), ("span",), ())

    def derived(self, read: Content, full: Content) -> Content:
        """Return the activation of the pooler, and the dropout where it differs from BERT's."""
        return {
            "pooler_act": "relu",
            "head_dropout_probs": {"token": read["hidden_dropout_prob"], "span": full["qa_dropout"]},
            "layer_dropout_probs": {"attention": 0.0},
        }

    def content(self, config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
        """Add the dropout of the heads."""
        of_texts = config.classifier_dropout
        return super().content(config, class_name, dtype) | {
            "qa_dropout": config.head_dropout_probs.get("span", self.defaults["qa_dropout"]),
            "seq_classif_dropout": self.defaults["seq_classif_dropout"] if of_texts is None else of_texts,
        }
