"""The model type `electra`: BERT with embeddings of another size, a discriminator or its generator (Clark et al. 2020)."""

from collections.abc import Iterable, Mapping
from typing import ClassVar

import torch

from bertkit.base.plugins import option
from bertkit.interop.hugging_face.architecture import Content, Heads
from bertkit.interop.hugging_face.config_keys import FAMILY, NO_EFFECT, Keys
from bertkit.interop.hugging_face.family.member import FamilyArchitecture, gelu_heads
from bertkit.interop.hugging_face.names import by_weight, of_encoder
from bertkit.model.bert_config import BertConfig


@option("architecture", "electra")
class ElectraArchitecture(FamilyArchitecture):
    """An ELECTRA. The encoder has no pooler; the first linear map of a head for texts is the pooler here."""

    family = "electra"
    prefix = "electra."
    defaults: ClassVar[Content] = {"embedding_size": 128, "summary_last_dropout": 0.1}
    keys = Keys(
        FAMILY.honoured | defaults.keys(),
        {
            **FAMILY.only, "summary_activation": "gelu", "summary_first_dropout": 0.0, "summary_proj_to_labels": False,
            "summary_type": "first", "summary_use_proj": True,
        },
        NO_EFFECT,
    )  # fmt: skip
    names_in_file: ClassVar[Mapping[str, str]] = {"head_dropout_probs.choice": "summary_last_dropout"}
    poolers: ClassVar[Mapping[str, str]] = {"sequence": "classifier.dense", "choice": "sequence_summary.summary"}
    names: ClassVar[Mapping[str, str]] = {
        **of_encoder("electra."),
        **by_weight(
            {
                "bert.embeddings.projection": "electra.embeddings_project",
                "heads.masked_lm.dense": "generator_predictions.dense",
                "heads.masked_lm.norm": "generator_predictions.LayerNorm",
                "heads.next_token.dense": "generator_predictions.dense",
                "heads.next_token.norm": "generator_predictions.LayerNorm",
                "heads.replaced_token.dense": "discriminator_predictions.dense",
                "heads.replaced_token.score": "discriminator_predictions.dense_prediction",
                "heads.sequence.dense": "classifier.out_proj",
                "heads.token.dense": "classifier",
                "heads.choice.dense": "classifier",
                "heads.span.dense": "qa_outputs",
            }
        ),
        "heads.masked_lm.bias": "generator_lm_head.bias",
        "heads.next_token.bias": "generator_lm_head.bias",
    }
    ties: ClassVar[Mapping[str, str]] = {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"}
    classes: ClassVar[Mapping[Heads, str]] = {
        ("masked_lm",): "ElectraForMaskedLM",
        ("next_token",): "ElectraForCausalLM",
        ("replaced_token",): "ElectraForPreTraining",
        ("sequence",): "ElectraForSequenceClassification",
        ("token",): "ElectraForTokenClassification",
        ("span",): "ElectraForQuestionAnswering",
        ("choice",): "ElectraForMultipleChoice",
        (): "ElectraModel",
    }
    without_pooler: ClassVar[tuple[Heads, ...]] = (
        ("masked_lm",), ("next_token",), ("replaced_token",), ("token",), ("span",), (),
    )  # fmt: skip

    def heedless(self, content: Content) -> Iterable[str]:
        """Return the keys of the summary for a class that has none: the head for choices alone begins with it."""
        has_summary = not content.get("architectures") or "choice" in self.heads_of_classes(content)
        return [] if has_summary else [key for key in self.keys.only if key.startswith("summary_")]

    def derived(self, read: Content, full: Content) -> Content:
        """Return the size of the embeddings, the activations of the heads, always GELU, and their dropout."""
        size = full["embedding_size"]
        return gelu_heads(read) | {
            "embedding_size": None if size == read["hidden_size"] else size,
            "pooler_act": "gelu",
            "head_dropout_probs": {"choice": full["summary_last_dropout"]},
        }

    def content(self, config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
        """Add the size of the embeddings, and the head for choices."""
        return super().content(config, class_name, dtype) | {
            "embedding_size": config.embedding_width,
            "summary_activation": "gelu",
            "summary_last_dropout": config.head_dropout_probs.get("choice", self.defaults["summary_last_dropout"]),
            "summary_type": "first",
            "summary_use_proj": True,
        }
