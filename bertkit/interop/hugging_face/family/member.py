"""What the model types of BERT's family share: BERT's layers, by other names, with some settings that follow from the type."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from bertkit.base.typed_settings import refuse
from bertkit.interop.hugging_face.architecture import Content, Located, StoredTensors, heads_of, is_read_back
from bertkit.interop.hugging_face.bert import BertArchitecture
from bertkit.interop.hugging_face.config_keys import FAMILY
from bertkit.interop.hugging_face.names import unwrapped
from bertkit.model.bert_config import BertConfig
from bertkit.model.heads import BertWithHeads

# settings that follow from the type, and from others that `config.json` has
_DERIVED = (
    "classifier_dropout", "head_act", "head_bias", "pooler_act", "pooler_dropout_probs", "head_dropout_probs", "layer_dropout_probs", "skips_padding",
    "projects_first", "plain_lm_head",
)  # fmt: skip
_PARTS = ("weight", "bias")


def gelu_heads(read: Content) -> Content:
    """Return the settings of heads that begin with GELU always, with the labels' dropout before the last map of that for sequences."""
    own = read["classifier_dropout"]
    return {
        "head_act": None if read["hidden_act"] == "gelu" else "gelu",
        "pooler_dropout_probs": {"sequence": read["hidden_dropout_prob"] if own is None else own},
    }


class FamilyArchitecture(BertArchitecture):
    """A model type of the family; it writes a model only if it reads the same configuration back."""

    family: ClassVar[str]
    keys = FAMILY
    defaults: ClassVar[Content] = {}  # of the class of `transformers`, for keys that a file lacks
    fixed: ClassVar[Content] = {}  # BERT's settings for which there is no key
    poolers: ClassVar[Mapping[str, str]] = {}  # the pooler's name in the class with a head, where it has another one

    def writes(self, config: BertConfig) -> bool:
        """Whether a model that this type writes is read again with the same settings."""
        return config.family == self.family and is_read_back(type(self), config)

    def settings(self, content: Content, tensors: Mapping[str, Tensor]) -> Content:
        """Translate the settings; those that follow from them are in `derived`."""
        refuse(self.keys.faults(content, self.heedless(content)))
        full = {**self.defaults, **content}
        full |= {ours: full[theirs] for ours, theirs in self.names_in_file.items() if theirs in full} | self.fixed
        read = super().settings(full, tensors) | {"family": self.family}
        return read | self.derived(read, full)

    def heedless(self, content: Content) -> Iterable[str]:
        """Return the keys whose values the class that `config.json` names does not use."""
        return ()

    def derived(self, read: Content, full: Content) -> Content:
        """Return the settings that follow from the type, from those that were read, and from the keys that BERT does not have."""
        return {}

    def content(self, config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
        """Return the settings by the keys of the type."""
        of_type: Content = {"model_type": self.family, "bos_token_id": None, "eos_token_id": config.eos_token_id}
        berts = super().content(config, class_name, dtype) | of_type
        own = {theirs: berts[ours] for ours, theirs in self.names_in_file.items() if ours in berts}
        return {key: value for key, value in berts.items() if key not in {*self.names_in_file, *self.fixed}} | own

    def completed(self, config: BertConfig) -> BertConfig:
        """Add the settings that follow from the type."""
        read = self.as_read(config)
        return replace(config, **{name: vars(read)[name] for name in _DERIVED})

    def stored(self, tensors: Mapping[str, Tensor], content: Content) -> StoredTensors:
        """Give a head's own pooler the name of the encoder's, which is left out if both are there."""
        stored = super().stored(tensors, content)
        pooler = self.pooler
        for name in {f"{module}.{part}": part for module in self.poolers.values() for part in _PARTS}:
            if name in stored.tensors and name.rpartition(".")[0] != pooler:
                full, in_file = f"{pooler}.{name.rpartition('.')[2]}", stored.file_names.pop(name)
                if stored.tensors.pop(full, None) is not None:
                    stored.skipped[stored.file_names[full]] = "an unused pooler"
                stored.tensors[full], stored.file_names[full] = stored.tensors.pop(name), in_file
        return stored

    @property
    def pooler(self) -> str:
        """The full name of the pooler's linear map."""
        return self.full_name("bert.pooler.dense.weight").removesuffix(".weight")

    def full_name_of_file(self, name: str) -> str:
        """Return the full name: the encoder's weights have the prefix, also in a file of the encoder alone."""
        name = re.sub(r"^(model\.)+", "", unwrapped(name))
        parts = {full[len(self.prefix) :].split(".")[0] for full in self.names.values() if full.startswith(self.prefix)}
        return f"{self.prefix}{name}" if name.split(".")[0] in parts else name

    def reference_weights(self, model: BertWithHeads, full_name: str) -> list[Located]:
        """Return the name in the class, that of the pooler by the head."""
        own = next((self.poolers[head] for head in heads_of(model) if head in self.poolers), self.pooler)
        module, _, part = full_name.rpartition(".")
        name = f"{own}.{part}" if module == self.pooler else full_name
        return [Located(name if model.heads else name.removeprefix(self.prefix))]
