"""The model type `deberta`, of 2020: keys without a bias, a vector for each distance, and queries, keys and values in one matrix (He et al. 2020)."""

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from bertkit.base.plugins import option
from bertkit.base.typed_settings import refuse
from bertkit.interop.hugging_face.architecture import Content, Heads, Located, StoredTensors
from bertkit.interop.hugging_face.config_keys import Keys
from bertkit.interop.hugging_face.family.deberta import DebertaArchitecture
from bertkit.model.bert_config import BertConfig
from bertkit.model.heads import BertWithHeads

_PARTS = ("query_proj", "key_proj", "value_proj")
_JOINED = "in_proj.weight"  # of each head the rows of its query, of its key and of its value
_IN_FILE = {  # by the names of DeBERTa v2
    "query_proj.bias": "q_bias", "value_proj.bias": "v_bias", "pos_key_proj.weight": "pos_proj.weight",
    "pos_query_proj.weight": "pos_q_proj.weight", "pos_query_proj.bias": "pos_q_proj.bias",
}  # fmt: skip
_OF_V2 = {theirs: ours for ours, theirs in _IN_FILE.items()}
_OF_ATTENTION = re.compile(r"(.*\.attention\.self\.)(.+)")
# what a DeBERTa v1 has none of, by the keys of v2
_WITHOUT: Content = {
    "attention_head_size": None, "position_buckets": -1, "norm_rel_ebd": "none", "share_att_key": False,
    "conv_kernel_size": 0, "conv_groups": 1, "conv_act": "tanh",
}  # fmt: skip


@option("architecture", "deberta")
class DebertaV1Architecture(DebertaArchitecture):
    """A DeBERTa of 2020, as microsoft/deberta-base."""

    family = "deberta"
    keys = Keys(
        DebertaArchitecture.keys.honoured - _WITHOUT.keys(),
        {**DebertaArchitecture.keys.only, "talking_head": False},
        DebertaArchitecture.keys.no_effect,
    )
    classes: ClassVar[Mapping[Heads, str]] = {
        ("masked_lm",): "DebertaForMaskedLM",
        ("sequence",): "DebertaForSequenceClassification",
        ("token",): "DebertaForTokenClassification",
        ("span",): "DebertaForQuestionAnswering",
        (): "DebertaModel",
    }
    compared_with: ClassVar[Content] = {"legacy": True}

    def derived(self, read: Content, full: Content) -> Content:
        """Return what follows from the settings; keys have no bias."""
        derived = super().derived(read, full | _WITHOUT)
        attention = derived["attention"]
        assert isinstance(attention, dict)
        return derived | {"attention": attention | {"key_bias": False}}

    def content(self, config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
        """Leave out the keys of DeBERTa v2."""
        return {key: value for key, value in super().content(config, class_name, dtype).items() if key not in _WITHOUT}

    def stored(self, tensors: Mapping[str, Tensor], content: Content) -> StoredTensors:
        """Cut the matrix of queries, keys and values."""
        parts = {name: part for whole, tensor in tensors.items() for name, part in _cut(whole, tensor, content)}
        return super().stored(parts, content)

    def reference_weights(self, model: BertWithHeads, full_name: str) -> list[Located]:
        """Return the name in the class, and the rows of a matrix with others."""
        (place,) = super().reference_weights(model, full_name)
        if (match := _OF_ATTENTION.fullmatch(place.name)) is None:
            return [place]
        module, name = match.groups()
        part, _, kind = name.partition(".")
        if part in _PARTS and kind == "weight":
            config = model.config
            rows = torch.arange(3 * config.hidden_size).view(config.num_attention_heads, 3, -1)
            return [Located(module + _JOINED, rows[:, _PARTS.index(part)].flatten().tolist())]
        return [Located(module + _IN_FILE.get(name, name))]


def _cut(name: str, tensor: Tensor, content: Content) -> Iterator[tuple[str, Tensor]]:
    """Yield the queries', keys' and values' parts of a joined matrix; give another tensor the name of DeBERTa v2."""
    match = _OF_ATTENTION.fullmatch(name)
    if match is None or match[2] != _JOINED:
        yield (name if match is None else match[1] + _OF_V2.get(match[2], match[2])), tensor
        return
    heads = content.get("num_attention_heads")
    refuse(
        not (type(heads) is int and heads > 0 and tensor.ndim == 2 and len(tensor) % (3 * heads) == 0)
        and f"{name}: {tuple(tensor.shape)}, expected rows for the queries, keys and values of num_attention_heads={heads!r}; restore it"
    )
    assert isinstance(heads, int)
    for part, rows in zip(_PARTS, tensor.reshape(heads, 3, -1, tensor.shape[-1]).unbind(1), strict=True):
        yield f"{match[1]}{part}.weight", rows.flatten(0, 1)
