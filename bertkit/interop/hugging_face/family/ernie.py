"""The model type `ernie`: BERT, perhaps with an embedding of the task (Sun et al. 2020, ERNIE 2.0, section 3.3), whose number is 0 here."""

from collections.abc import Mapping
from typing import ClassVar

import torch

from bertkit.base.plugins import option
from bertkit.interop.hugging_face.architecture import Content, Heads
from bertkit.interop.hugging_face.bert import BertArchitecture
from bertkit.interop.hugging_face.config_keys import FAMILY, NO_EFFECT, Keys
from bertkit.interop.hugging_face.family.member import FamilyArchitecture
from bertkit.interop.hugging_face.names import HUGGING_FACE, of_encoder
from bertkit.model.bert_config import BertConfig

_NUM_TASKS = 3  # in `transformers`, where a file names no other


@option("architecture", "ernie")
class ErnieArchitecture(FamilyArchitecture):
    """An ERNIE."""

    family = "ernie"
    prefix = "ernie."
    keys = Keys(FAMILY.honoured | {"task_type_vocab_size", "use_task_id"}, FAMILY.only, NO_EFFECT)
    names: ClassVar[Mapping[str, str]] = {
        **{
            ours: theirs for ours, theirs in HUGGING_FACE.items() if not ours.startswith(("bert.", "heads.generation."))
        },
        **of_encoder("ernie."),
        "bert.embeddings.task.weight": "ernie.embeddings.task_type_embeddings.weight",
    }
    ties: ClassVar[Mapping[str, str]] = {
        "cls.predictions.decoder.weight": "ernie.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    classes: ClassVar[Mapping[Heads, str]] = {
        heads: name.replace("BertLMHeadModel", "ErnieForCausalLM").replace("Bert", "Ernie")
        for heads, name in BertArchitecture.classes.items()
        if heads != ("generation",)
    }

    def derived(self, read: Content, full: Content) -> Content:
        """Return the number of task embeddings."""
        return {"task_type_vocab_size": full.get("task_type_vocab_size", _NUM_TASKS) if full.get("use_task_id") else 0}

    def content(self, config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
        """Add the number of task embeddings."""
        return super().content(config, class_name, dtype) | {
            "task_type_vocab_size": config.task_type_vocab_size or _NUM_TASKS,
            "use_task_id": config.task_type_vocab_size > 0,
        }
