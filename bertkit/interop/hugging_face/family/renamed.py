"""What `nomic_bert`, `gte` and `jina_embeddings_v3` share: rotary positions in a post-norm BERT, and files with names of their own.

Their files keep the names of their authors' code, and its joined matrices: `transformers` renames and cuts them when it loads a
file, and does the reverse when it saves one. Files with the names of the classes are read, too.
"""

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from bertkit.interop.hugging_face.architecture import Content, Heads, Located, StoredTensors
from bertkit.interop.hugging_face.config_keys import FAMILY, NO_EFFECT, ONLY, Keys
from bertkit.interop.hugging_face.family.member import FamilyArchitecture
from bertkit.interop.hugging_face.family.rotary import KEYS, NAMES, rope_parameters
from bertkit.interop.hugging_face.names import by_weight, translate, unwrapped
from bertkit.model.bert_config import BertConfig
from bertkit.model.heads import BertWithHeads

_LAYER = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention_norm": "post_attention_layernorm",
    "feed_forward_norm": "post_mlp_layernorm",
}
GATED = {
    "feed_forward.intermediate": "mlp.gate_proj",
    "feed_forward.gate": "mlp.up_proj",
    "feed_forward.output": "mlp.down_proj",
}
TWO_MAPS = {"feed_forward.intermediate": "mlp.fc1", "feed_forward.output": "mlp.fc2"}


def names_of(prefix: str, feed_forward: Mapping[str, str] = GATED) -> dict[str, str]:
    """Return the names of the weights of an encoder and of task heads in the classes, by bertkit's."""
    layer = {**_LAYER, **feed_forward}
    return {
        "bert.embeddings.token.weight": f"{prefix}embeddings.word_embeddings.weight",
        "bert.embeddings.segment.weight": f"{prefix}embeddings.token_type_embeddings.weight",
        **by_weight(
            {
                "bert.embeddings.norm": f"{prefix}embeddings.LayerNorm",
                **{f"bert.encoder.layers.{{}}.{ours}": f"{prefix}layers.{{}}.{name}" for ours, name in layer.items()},
                "bert.pooler.dense": f"{prefix}pooler.dense",
                "heads.sequence.dense": "classifier",
                "heads.token.dense": "classifier",
            }
        ),
    }


def keys_of(only: Mapping[str, object], honoured: set[str], no_effect: set[str]) -> Keys:
    """Return the keys that both types share, with those of one type."""
    others = {**ONLY, "add_cross_attention": False, "is_decoder": False, "partial_rotary_factor": 1.0, **only}
    return Keys(FAMILY.honoured | KEYS | honoured, others, NO_EFFECT | no_effect)


class RenamedArchitecture(FamilyArchitecture):
    """A type whose files have other names than its class."""

    fixed: ClassVar[Content] = {"position_embedding_type": "absolute"}
    names_in_file: ClassVar[Mapping[str, str]] = NAMES
    left_out: ClassVar[Mapping[str, str]] = {r".*rotary_emb\.inv_freq": "a buffer of old versions, not a weight"}
    without_pooler: ClassVar[tuple[Heads, ...]] = (("masked_lm",), ("token",), ())
    of_authors: ClassVar[str]  # the prefix of the names in files of the authors' code
    in_files: ClassVar[
        Mapping[str, str]
    ]  # names in files by those in the class; a part of a joined matrix is `MATRIX.PART`
    joined: ClassVar[
        Mapping[str, tuple[str, ...]]
    ]  # by the last word of a matrix, the setting with the rows of a part, and the parts

    def content(self, config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
        """Add the rotary positions."""
        return super().content(config, class_name, dtype) | {"rope_parameters": rope_parameters(config.attention)}

    def stored(self, tensors: Mapping[str, Tensor], content: Content) -> StoredTensors:
        """Cut the joined matrices."""
        parts = {name: part for whole, tensor in tensors.items() for name, part in self._cut(whole, tensor)}
        return super().stored(parts, content)

    def _cut(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield the parts of a joined matrix or its bias; yield any other tensor unchanged."""
        module, _, kind = name.rpartition(".")
        _, *parts = self.joined.get(module.rpartition(".")[2], ("",))
        if not parts or tensor.dim() == 0 or len(tensor) % len(parts):
            yield name, tensor
        else:
            for part, rows in zip(parts, tensor.chunk(len(parts)), strict=True):
                yield f"{module}.{part}.{kind}", rows

    def full_name_of_file(self, name: str) -> str:
        """Return the name in the class."""
        own = re.sub(rf"^((?:model\.)*){re.escape(self.of_authors)}", rf"\1{self.prefix}", unwrapped(name))
        full = super().full_name_of_file(own)
        in_class = {theirs: ours for ours, theirs in self.in_files.items()}
        return next(iter(translate([full, f"{self.prefix}{full}"], in_class).values()), full)

    def in_file(self, model: BertWithHeads, full_name: str) -> Located:
        """Return the name in the file, and for a part of a joined matrix its rows."""
        named = translate([full_name], self.in_files)
        if full_name not in named:
            return super().in_file(model, full_name)
        name = named[full_name] if model.heads else named[full_name].removeprefix(self.prefix)
        module, _, kind = name.rpartition(".")
        whole, _, part = module.rpartition(".")
        size, *parts = self.joined.get(whole.rpartition(".")[2], ("",))
        if not parts:
            return Located(name)
        rows, number = vars(model.config)[size], parts.index(part)
        return Located(f"{whole}.{kind}", slice(number * rows, (number + 1) * rows))
