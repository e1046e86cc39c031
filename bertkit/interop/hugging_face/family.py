"""What the model types of BERT's family share: BERT's layers, by other names, with some settings that follow from the type."""

import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from bertkit.base.errors import InputError
from bertkit.base.typed_settings import build, refuse
from bertkit.interop.hugging_face.architecture import Content, Located
from bertkit.interop.hugging_face.bert import BertArchitecture
from bertkit.interop.hugging_face.names import unwrapped
from bertkit.model.bert_config import BertConfig, HeadConfig
from bertkit.model.heads import BertWithHeads

# settings that follow from the type, and from others that `config.json` has
_DERIVED = ("head_act", "pooler_dropout_probs", "head_dropout_probs", "skips_padding")
# settings that no architecture writes, or only with the class of a task
_NOT_OF_THE_TYPE: dict[str, object] = {
    "labels": ("LABEL_0", "LABEL_1"), "problem_type": None, "score_activation": None, "scale_outputs": False,
}  # fmt: skip


class FamilyArchitecture(BertArchitecture):
    """A member of the family; what it writes of a model is all that it reads of it."""

    family: ClassVar[str]
    defaults: ClassVar[Content] = {}  # of the class of `transformers`, for keys that a file lacks

    def writes(self, config: BertConfig) -> bool:
        """Whether a model of this family would be read as it is written."""
        return config.family == self.family and _is_read_back(type(self), config)

    def settings(self, content: Content, tensors: Mapping[str, Tensor]) -> Content:
        """Translate the settings; those that follow from them are in `derived`."""
        refuse(self.keys.faults(content))
        read = super().settings(self.defaults | content, tensors) | {"family": self.family}
        return read | self.derived(read)

    def derived(self, read: Content) -> Content:
        """Return the settings that follow from the type and from those that were read."""
        return {}

    def content(self, config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
        """Add the type."""
        return super().content(config, class_name, dtype) | {"model_type": self.family}

    def as_read(self, config: BertConfig) -> BertConfig:
        """Return a configuration as it is read after it was written."""
        return build(BertConfig, self.settings(self.content(config, "", torch.float32), {}))

    def completed(self, config: BertConfig) -> BertConfig:
        """Add the settings that follow from the type."""
        read = self.as_read(config)
        return replace(config, **{name: vars(read)[name] for name in _DERIVED})

    def full_name_of_file(self, name: str) -> str:
        """Return the full name: the encoder's weights have the prefix, also in a file of the encoder alone."""
        name = re.sub(r"^(model\.)+", "", unwrapped(name))
        parts = {full[len(self.prefix) :].split(".")[0] for full in self.names.values() if full.startswith(self.prefix)}
        return f"{self.prefix}{name}" if name.split(".")[0] in parts else name

    def reference_weights(self, model: BertWithHeads, full_name: str) -> list[Located]:
        """Return the name in the class."""
        return [Located(full_name if model.heads else full_name.removeprefix(self.prefix))]


@functools.lru_cache(maxsize=64)
def _is_read_back(architecture: type[FamilyArchitecture], config: BertConfig) -> bool:
    plain = replace(config, **_NOT_OF_THE_TYPE, head=HeadConfig() if config.head.is_exported else config.head)  # type: ignore[arg-type]
    try:
        return architecture().as_read(plain) == plain
    except InputError:
        return False
