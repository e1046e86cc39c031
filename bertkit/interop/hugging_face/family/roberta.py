"""The model types `roberta`, `xlm-roberta` and `camembert`: BERT without next sentences (Liu et al. 2019, section 3).

In `transformers` positions are counted from pad_token_id + 1, so that the first rows of the table of positions are never used. Here
the table begins with the first row that is used, and `max_position_embeddings` is the number of tokens that a text may have.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from bertkit.base.plugins import option
from bertkit.base.typed_settings import refuse
from bertkit.interop.hugging_face.architecture import Content, Heads, Located, StoredTensors
from bertkit.interop.hugging_face.family.member import FamilyArchitecture, gelu_heads
from bertkit.interop.hugging_face.names import by_weight, of_encoder
from bertkit.model.bert_config import BertConfig
from bertkit.model.heads import BertWithHeads

_PLACES = "bert.embeddings.position.weight"
_NAMES = {
    **of_encoder("roberta."),
    **by_weight(
        {
            "heads.masked_lm.dense": "lm_head.dense",
            "heads.masked_lm.norm": "lm_head.layer_norm",
            "heads.next_token.dense": "lm_head.dense",
            "heads.next_token.norm": "lm_head.layer_norm",
            "heads.sequence.dense": "classifier.out_proj",
            "heads.token.dense": "classifier",
            "heads.choice.dense": "classifier",
            "heads.span.dense": "qa_outputs",
        }
    ),
    "heads.masked_lm.bias": "lm_head.bias",
    "heads.next_token.bias": "lm_head.bias",
}


@option("architecture", "roberta")
class RobertaArchitecture(FamilyArchitecture):
    """A RoBERTa. The first linear map of its sequence head is the pooler here."""

    family = "roberta"
    prefix = "roberta."
    defaults: ClassVar[Content] = {"pad_token_id": 1}
    poolers: ClassVar[Mapping[str, str]] = {"sequence": "classifier.dense"}
    names: ClassVar[Mapping[str, str]] = _NAMES
    ties: ClassVar[Mapping[str, str]] = {
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }
    classes: ClassVar[Mapping[Heads, str]] = {
        ("masked_lm",): "RobertaForMaskedLM",
        ("next_token",): "RobertaForCausalLM",
        ("sequence",): "RobertaForSequenceClassification",
        ("token",): "RobertaForTokenClassification",
        ("span",): "RobertaForQuestionAnswering",
        ("choice",): "RobertaForMultipleChoice",
        (): "RobertaModel",
    }

    def settings(self, content: Content, tensors: Mapping[str, Tensor]) -> Content:
        """Count the positions that a text can have."""
        read = super().settings(content, tensors)
        rows, pad, in_file = read["max_position_embeddings"], read["pad_token_id"], content.get("pad_token_id")
        refuse(
            type(in_file) is int
            and in_file < 0
            and f"pad_token_id={in_file}: expected at least 0, since positions are counted from it; set it to the id of the padding token",
            type(rows) is int
            and rows <= _first(pad)
            and f"max_position_embeddings={rows}: expected more than {_first(pad)}, since positions are counted from pad_token_id + 1",
        )
        return read | {"max_position_embeddings": rows - _first(pad) if type(rows) is int else rows}

    def derived(self, read: Content, full: Content) -> Content:
        """Return the activation of the masked LM head, always GELU, and the dropout where it differs from BERT's."""
        return gelu_heads(read) | {
            "head_dropout_probs": {"choice": read["hidden_dropout_prob"]},
            "skips_padding": True,
        }

    def content(self, config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
        """Count the rows of positions in `transformers`."""
        return super().content(config, class_name, dtype) | {
            "max_position_embeddings": config.max_position_embeddings + _first(config.pad_token_id),
        }

    def stored(self, tensors: Mapping[str, Tensor], content: Content) -> StoredTensors:
        """Leave out the rows before the first position."""
        stored = super().stored(tensors, content)
        if (name := self.full_name(_PLACES)) in stored.tensors:
            pad = (self.defaults | content)["pad_token_id"]
            stored.tensors[name] = stored.tensors[name][_first(pad) :]
        return stored

    def tensors_of(self, model: BertWithHeads) -> dict[str, Tensor]:
        """Add rows of zeros before the first position."""
        tensors = super().tensors_of(model)
        name = self.reference_weights(model, self.full_name(_PLACES))[0].name
        if name in tensors:
            rows = tensors[name].new_zeros(_first(model.config.pad_token_id), tensors[name].shape[1])
            tensors[name] = torch.cat([rows, tensors[name]])
        return tensors

    def reference_weights(self, model: BertWithHeads, full_name: str) -> list[Located]:
        """Return the name in the class, and the rows of the position embeddings that are used."""
        rows = slice(_first(model.config.pad_token_id) if full_name == self.full_name(_PLACES) else 0, None)
        return [replace(super().reference_weights(model, full_name)[0], rows=rows)]


def _first(pad_token_id: object) -> int:
    """Return the row of the first position."""
    return pad_token_id + 1 if type(pad_token_id) is int else 0


@option("architecture", "xlm-roberta")
class XLMRobertaArchitecture(RobertaArchitecture):
    """An XLM-RoBERTa, of the same layers and names (Conneau et al. 2020)."""

    family = "xlm-roberta"
    classes: ClassVar[Mapping[Heads, str]] = {
        heads: f"XLM{name}" for heads, name in RobertaArchitecture.classes.items()
    }


@option("architecture", "camembert")
class CamembertArchitecture(RobertaArchitecture):
    """A CamemBERT, of the same layers and names (Martin et al. 2020)."""

    family = "camembert"
    classes: ClassVar[Mapping[Heads, str]] = {
        heads: name.replace("Roberta", "Camembert") for heads, name in RobertaArchitecture.classes.items()
    }
