"""What differs between the model types of `config.json`: settings, names of weights, and the classes of `transformers`.

An architecture registers under its `model_type`, with the decorator of all options (`base/plugins.py`). Loading, writing, the
comparison with `transformers` and the model card ask it, and have no branch for any model type.
"""

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from bertkit.base import plugins
from bertkit.base.errors import InputError
from bertkit.base.typed_settings import build
from bertkit.interop.hugging_face.config_keys import Keys
from bertkit.model.bert_config import BertConfig, HeadConfig
from bertkit.model.heads import BertWithHeads

Content = dict[str, object]  # of config.json
Heads = tuple[str, ...]  # of a model, in alphabetical order
OWN_TYPE = "bertkit"  # the model_type of variants that transformers cannot compute
# settings that no architecture writes, or only with the class of a task
_NOT_OF_THE_TYPE = ("labels", "problem_type", "score_activation", "scale_outputs", "frequency_biases")


@dataclass(frozen=True)
class StoredTensors:
    """The weights of a model directory, by the full names that `transformers` gives them today."""

    tensors: dict[str, Tensor]
    skipped: dict[str, str] = field(default_factory=dict)  # names of tensors that were left out, with the reason
    file_names: dict[str, str] = field(default_factory=dict)  # by full names

    def put(self, full_name: str, name: str, tensor: Tensor) -> None:
        """Add a tensor with its name in the file; raise InputError if it is there twice."""
        if full_name in self.tensors:
            raise InputError(f"{name} is there twice, also as {self.file_names[full_name]}; remove one")
        self.tensors[full_name], self.file_names[full_name] = tensor, name

    def untie(self, ties: Mapping[str, str], content: Content) -> None:
        """Keep tied weights once, by the name of the original; raise InputError if they differ, or one of two is missing."""
        for tied, original in ties.items():
            bias = tied.removesuffix("weight") + "bias"
            if tied in self.tensors:
                tensor, name = self.tensors.pop(tied), self.file_names[tied]
                self.file_names.setdefault(original, name)
                if not torch.equal(tensor, self.tensors.setdefault(original, tensor)):
                    raise InputError(
                        f"{name} differs from {self.file_names[original]} (tie_word_embeddings={content.get('tie_word_embeddings', True)}); bertkit "
                        "loads tied weights only; use transformers, or save the encoder without this head"
                    )
                self.skipped[tied] = f"tied to {original}"
            elif content.get("tie_word_embeddings") is False and not {bias, ties.get(bias)}.isdisjoint(self.tensors):
                raise InputError(f"{tied}: missing, and tie_word_embeddings=False; restore it, or tie it to {original}")


@dataclass(frozen=True)
class Located:
    """A parameter of a `transformers` class, or some of its rows."""

    name: str
    rows: slice | list[int] = field(default_factory=lambda: slice(None))  # of a matrix

    def part_of(self, tensor: Tensor) -> Tensor:
        """Return these rows; a number of a plug-in's has none."""
        return tensor[self.rows] if tensor.ndim else tensor


class OfNextSentence(NamedTuple):
    """The names of its label and its logits in a class that also fills masks."""

    label: str = "next_sentence_label"
    logits: str = "seq_relationship_logits"


class Architecture(ABC):
    """A model type. Full names of weights are those of a `transformers` class with heads, such as `bert.pooler.dense.bias`."""

    prefix: ClassVar[str]  # of the names of the encoder's weights in a class with heads
    # further prefixes of names that belong to the model: others are left out, as transformers does
    parts: ClassVar[tuple[str, ...]] = ()
    keys: ClassVar[Keys]  # of `config.json`
    names_in_file: ClassVar[Mapping[str, str]] = {}  # of bertkit's settings, where they differ
    classes: ClassVar[Mapping[Heads, str]]  # of transformers, by their heads
    without_pooler: ClassVar[tuple[Heads, ...]] = ()  # the heads of the classes that have none
    of_next_sentence: ClassVar[OfNextSentence] = OfNextSentence()
    compared_with: ClassVar[Content] = {"attn_implementation": "sdpa"}  # how a comparison loads a class

    @abstractmethod
    def writes(self, config: BertConfig) -> bool:
        """Whether a model is written with this type; `transformers` can then compute it."""

    @abstractmethod
    def settings(self, content: Content, tensors: Mapping[str, Tensor]) -> Content:
        """Translate `config.json` to the settings of a `BertConfig`; raise InputError for settings that bertkit lacks.

        If the file has no labels, their number comes from the shape of the weights.
        """

    @abstractmethod
    def content(self, config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
        """Return the content of `config.json` for a class of `transformers` and the dtype of the weights."""

    @abstractmethod
    def stored(self, tensors: Mapping[str, Tensor], content: Content) -> StoredTensors:
        """Give the tensors of a directory their full names, one for each parameter of bertkit.

        Raises InputError if a tensor is there twice, or tied weights differ.
        """

    @abstractmethod
    def our_names(self, names: Iterable[str], content: Content) -> dict[str, str]:
        """Translate full names to bertkit's; names that bertkit does not know are left out."""

    @abstractmethod
    def full_name(self, name: str) -> str:
        """Translate bertkit's name of a parameter to its full name."""

    @abstractmethod
    def tensors_of(self, model: BertWithHeads) -> dict[str, Tensor]:
        """Return the weights by their names in the file of the class with the model's heads; tied weights once."""

    @abstractmethod
    def reference_weights(self, model: BertWithHeads, full_name: str) -> list[Located]:
        """Return where a weight is in the class of `transformers`: in two places if decoder and encoder share it."""

    def in_file(self, model: BertWithHeads, full_name: str) -> Located:
        """Return where a weight is in the file that is written: as in the class, except in types whose files have other names."""
        return self.reference_weights(model, full_name)[0]

    def as_read(self, config: BertConfig) -> BertConfig:
        """Write a configuration, read it again, and return what was read."""
        return build(BertConfig, self.settings(self.content(config, "", torch.float32), {}))

    def completed(self, config: BertConfig) -> BertConfig:
        """Return the configuration of a new model with the settings that follow from its type."""
        return config

    def reference_settings(self, model: BertWithHeads) -> Content:
        """Return what `from_pretrained` of the class needs, beyond the directory, to load a model without new weights."""
        return {}

    def class_of(self, model: BertWithHeads) -> str:
        """Return the name of the `transformers` class with the model's heads."""
        heads = heads_of(model)
        if heads not in self.classes:
            raise InputError(
                f"heads {', '.join(heads)}: transformers has no class with these heads; load the model with one of them"
            )
        return self.classes[heads]

    def has_pooler(self, model: BertWithHeads) -> bool:
        """Whether the class with the model's heads has a pooler."""
        return heads_of(model) not in self.without_pooler

    def heads_of_classes(self, content: Content) -> set[str]:
        """Return the heads of the classes that `config.json` names."""
        named = content.get("architectures") or []
        assert isinstance(named, list)
        return {head for heads, name in self.classes.items() if name in named for head in heads}


@functools.lru_cache(maxsize=64)
def is_read_back(architecture: type[Architecture], config: BertConfig) -> bool:
    """Whether a configuration that an architecture writes is read again as it was, so that the type has all of its settings."""
    plain = replace(config, head=HeadConfig() if config.head.is_exported else config.head)
    try:
        read = architecture().as_read(plain)
    except InputError:
        return False
    return replace(read, **{name: vars(plain)[name] for name in _NOT_OF_THE_TYPE}) == plain


def heads_of(model: BertWithHeads) -> Heads:
    """Return the names of a model's heads for `transformers`."""
    return in_transformers(model.heads)


def in_transformers(heads: Iterable[str]) -> Heads:
    """Return the names of the heads that `transformers` may have, in alphabetical order: it lacks those of plug-ins."""
    return tuple(sorted(name for name in heads if not plugins.is_plugin("model_head", name)))


def put_together(weights: Iterable[tuple[Located, Tensor]]) -> dict[str, Tensor]:
    """Return weights by their names in a file; those that are rows of one matrix become this matrix."""
    parts: dict[str, list[tuple[Located, Tensor]]] = {}
    for place, tensor in weights:
        parts.setdefault(place.name, []).append((place, tensor.detach()))
    return {name: _joined(own) if len(own) > 1 else own[0][1] for name, own in parts.items()}


def _joined(parts: Sequence[tuple[Located, Tensor]]) -> Tensor:
    """Put the rows of a matrix in their places."""
    first = parts[0][1]
    whole = first.new_empty(sum(len(rows) for _, rows in parts), *first.shape[1:])
    for place, rows in parts:
        whole[place.rows] = rows
    return whole


def rule_of(name: str, rules: Mapping[str, str]) -> str | None:
    """Return the reason to leave out a tensor: that of the first regular expression that its name matches."""
    return next((reason for pattern, reason in rules.items() if re.fullmatch(pattern, name)), None)


def find_architecture(model_type: object) -> Architecture | None:
    """Find the architecture of a model type; None if there is none."""
    made = plugins.find("architecture", model_type)
    return None if made is None else made()


def writer_of(config: BertConfig, heads: Iterable[str]) -> Architecture:
    """Return the architecture with which a model is written: bertkit's own if `transformers` cannot compute it, or lacks a plug-in's head."""
    own: Architecture = plugins.get("architecture", OWN_TYPE)()
    if any(plugins.is_plugin("model_head", head) for head in heads):
        return own
    known: list[Architecture] = [plugins.get("architecture", name)() for name in plugins.names_of("architecture")]
    return next((each for each in known if each.writes(config)), own)
