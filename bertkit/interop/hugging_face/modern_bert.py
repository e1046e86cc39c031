"""The model type `modernbert`: rotary positions, gated feed-forward parts, pre-norms and alternating windows (Warner et al. 2024).

`transformers` stores the maps to queries, keys and values of a layer as one matrix, `Wqkv`; here each part has a full name.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from bertkit.base import plugins
from bertkit.base.errors import InputError
from bertkit.base.plugins import option
from bertkit.base.text_files import JsonObject
from bertkit.base.typed_settings import refuse, to_mapping
from bertkit.interop.hugging_face.architecture import (
    Architecture,
    Content,
    Heads,
    Located,
    StoredTensors,
    is_read_back,
    put_together,
)
from bertkit.interop.hugging_face.bert import activation_of, described, rotary_base, task_settings
from bertkit.interop.hugging_face.config_keys import COMMON, NO_EFFECT, ONLY, Keys
from bertkit.interop.hugging_face.names import translate, unwrapped
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import BertConfig, HeadConfig
from bertkit.model.head.head import is_of_task
from bertkit.model.heads import BertWithHeads

# settings with two names: bertkit's, and the one in config.json
_SETTINGS = {
    "vocab_size": "vocab_size", "hidden_size": "hidden_size", "intermediate_size": "intermediate_size",
    "num_hidden_layers": "num_hidden_layers", "num_attention_heads": "num_attention_heads",
    "hidden_act": "hidden_activation", "max_position_embeddings": "max_position_embeddings",
    "initializer_range": "initializer_range", "layer_norm_eps": "norm_eps", "hidden_dropout_prob": "mlp_dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}  # fmt: skip
# of transformers' ModernBertConfig, for settings that a config.json lacks
_DEFAULTS: JsonObject = {
    "hidden_activation": "gelu", "max_position_embeddings": 8192, "initializer_range": 0.02, "norm_eps": 1e-5,
    "mlp_dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0, "classifier_dropout": 0.0,
    "attention_bias": False, "mlp_bias": False, "norm_bias": False, "classifier_bias": False,
    "classifier_activation": "gelu", "classifier_pooling": "cls", "local_attention": 128, "layer_types": None,
    "global_attn_every_n_layers": 3, "rope_parameters": None, "global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0,
}  # fmt: skip
# written as they always are
_FIXED: JsonObject = {"decoder_bias": True, "initializer_cutoff_factor": 2.0, "tie_word_embeddings": True}
# bertkit's settings by other names than those in _SETTINGS, for messages
_NAMES_IN_FILE = {
    "attention.bias": "attention_bias", "attention.full_every": "global_attn_every_n_layers",
    "attention.rotary_base": "global_rope_theta", "attention.rotary_local_base": "local_rope_theta",
    "embedding_dropout_prob": "embedding_dropout", "feed_forward.bias": "mlp_bias", "head_act": "classifier_activation",
    "norm.bias": "norm_bias",
}  # fmt: skip
_POOLINGS = {"cls": "cls", "mean": "plain_mean"}
_OLD_BASES = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}  # of transformers 4
_PARTS = ("query", "key", "value")  # the thirds of Wqkv
_BARE = re.compile(r"^(?=(embeddings|layers|final_norm)\.)")  # of an encoder that was saved without heads
_OWNER = re.compile(
    r"^(model\.)+(?=(model|head|decoder|classifier)\.)"
)  # what a ModernBERT is called in Lightning's modules
_TIES = {"decoder.weight": "model.embeddings.tok_embeddings.weight"}
_OF_TASKS = [name for name in plugins.built_in("model_head") if is_of_task(name)]
_NAMES = {
    "bert.embeddings.token": "model.embeddings.tok_embeddings",
    "bert.embeddings.norm": "model.embeddings.norm",
    **{f"bert.encoder.layers.{{}}.attention.{part}": f"model.layers.{{}}.attn.Wqkv.{part}" for part in _PARTS},
    "bert.encoder.layers.{}.attention.output": "model.layers.{}.attn.Wo",
    "bert.encoder.layers.{}.attention_norm": "model.layers.{}.attn_norm",
    "bert.encoder.layers.{}.feed_forward.intermediate": "model.layers.{}.mlp.Wi",
    "bert.encoder.layers.{}.feed_forward.output": "model.layers.{}.mlp.Wo",
    "bert.encoder.layers.{}.feed_forward_norm": "model.layers.{}.mlp_norm",
    "bert.encoder.norm": "model.final_norm",
    "heads.masked_lm": "decoder",
    "heads.masked_lm.dense": "head.dense",
    "heads.masked_lm.norm": "head.norm",
    **{f"heads.{head}.transform.{part}": f"head.{part}" for head in _OF_TASKS for part in ("dense", "norm")},
    **{f"heads.{head}.dense": "classifier" for head in _OF_TASKS},
}
_TENSORS = {f"{ours}.{part}": f"{theirs}.{part}" for ours, theirs in _NAMES.items() for part in ("weight", "bias")}


@option("architecture", "modernbert")
class ModernBertArchitecture(Architecture):
    """A ModernBERT. Its prediction head is the masked LM head without the output matrix; task heads begin with it too."""

    prefix = "model."
    keys = Keys(
        COMMON | _DEFAULTS.keys() | {"rope_scaling"},
        {**ONLY, "decoder_bias": True, "head_dim": None, "partial_rotary_factor": 1.0},
        # `layer_norm_eps` and `position_embedding_type` are in published files, where nothing reads them
        NO_EFFECT
        | {"compile", "deterministic_flash_attn", "is_decoder", "layer_norm_eps", "position_embedding_type"}
        | {"reference_compile", "repad_logits_with_grad", "sparse_prediction", "sparse_pred_ignore_index"}
        | {"rope_theta"},
        {"initializer_cutoff_factor": 2.0},
    )
    names_in_file: ClassVar[Mapping[str, str]] = _SETTINGS | _NAMES_IN_FILE
    classes: ClassVar[Mapping[Heads, str]] = {
        ("masked_lm",): "ModernBertForMaskedLM",
        ("sequence",): "ModernBertForSequenceClassification",
        ("token",): "ModernBertForTokenClassification",
        ("span",): "ModernBertForQuestionAnswering",
        ("choice",): "ModernBertForMultipleChoice",
        (): "ModernBertModel",
    }

    def writes(self, config: BertConfig) -> bool:
        """Whether a model has all that is fixed in a ModernBERT."""
        usual = {
            "classifier_dropout": config.hidden_dropout_prob,
            "embedding_dropout_prob": config.hidden_dropout_prob,
            "head_act": config.hidden_act,
        }
        same = [name for name, value in usual.items() if vars(config)[name] == value]  # read as not set
        has_local_base = config.attention.rotary_local_base is not None  # null is another base for `transformers`
        plain = replace(config, **dict.fromkeys(same))  # type: ignore[arg-type]
        return has_local_base and config.head == HeadConfig() and is_read_back(type(self), plain)

    def settings(self, content: Content, tensors: Mapping[str, Tensor]) -> Content:
        """Translate the settings; those of a task are as in a BERT."""
        full = _DEFAULTS | content
        bias, dropout, pooling, window = (
            full[name] for name in ("mlp_bias", "mlp_dropout", "classifier_pooling", "local_attention")
        )
        has_head, has_decoder = (any(name.startswith(part) for name in tensors) for part in ("head.", "decoder."))
        refuse(
            self.keys.faults(full, [] if has_decoder else ["decoder_bias"]),
            has_head
            and full["classifier_bias"] not in (None, bias)
            and f"classifier_bias={full['classifier_bias']!r} with mlp_bias={bias!r} is not supported: bertkit loads heads with the "
            "biases of the layers only; use transformers, or save the encoder without its head",
            (not isinstance(pooling, str) or pooling not in _POOLINGS)
            and f"classifier_pooling={pooling!r}: expected cls or mean",
            (type(window) is not int or window < 2) and f"local_attention={window!r}: expected a whole number from 2",
        )
        assert isinstance(window, int)
        assert isinstance(pooling, str)
        dropped, embedded, of_heads = (
            full[name] for name in ("classifier_dropout", "embedding_dropout", "classifier_activation")
        )
        attention = {
            "bias": full["attention_bias"],
            "window": window // 2,
            "full_every": _full_every(full),
            "rotary_base": _base(full, "full_attention"),
            "rotary_local_base": _base(full, "sliding_attention"),
        }
        return {
            **{ours: full.get(theirs, "???") for ours, theirs in _SETTINGS.items()},
            "hidden_act": activation_of(full["hidden_activation"]),
            "attention": to_mapping(modern_attention()) | attention,
            "norm": {"placement": "pre", "kind": "layer_norm", "bias": full["norm_bias"], "before_first": False},
            "feed_forward": {"kind": "glu", "bias": bias},
            "pooling": _POOLINGS[pooling],
            "type_vocab_size": 0,
            "task_transform": True,
            "scale_outputs": True,
            "classifier_dropout": None if dropped == dropout else dropped,
            "embedding_dropout_prob": None if embedded == dropout else embedded,
            "head_act": None if of_heads == full["hidden_activation"] else activation_of(of_heads),
            **task_settings(content, tensors),
        }

    def content(self, config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
        """Return the settings by their keys, for `transformers` 4 and 5."""
        attention = config.attention
        bases = {"full_attention": attention.rotary_base, "sliding_attention": attention.rotary_local_base}
        return {
            **{theirs: vars(config)[ours] for ours, theirs in _SETTINGS.items()},
            **_FIXED,
            **{_OLD_BASES[kind]: base for kind, base in bases.items()},
            **dict.fromkeys(("bos_token_id", "cls_token_id", "eos_token_id", "sep_token_id")),
            **described(config, class_name, dtype),
            "attention_bias": attention.bias,
            "classifier_activation": config.head_act or config.hidden_act,
            "classifier_bias": config.feed_forward.bias,
            "classifier_dropout": config.task_dropout,
            "classifier_pooling": next((theirs for theirs, ours in _POOLINGS.items() if ours == config.pooling), "cls"),
            "embedding_dropout": config.embedding_dropout,
            "global_attn_every_n_layers": attention.full_every,
            "layer_types": _kinds(attention.full_every, config.num_hidden_layers),
            "local_attention": 2 * attention.window,
            "mlp_bias": config.feed_forward.bias,
            "model_type": "modernbert",
            "norm_bias": config.norm.bias,
            "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
        }

    def stored(self, tensors: Mapping[str, Tensor], content: Content) -> StoredTensors:
        """Cut each `Wqkv` into its parts, and leave out the second copy of the token embeddings.

        Raises InputError if no class says what the classifier predicts: its weights have the same names in all.
        """
        refuse(
            "classifier.weight" in tensors
            and not self.heads_of_classes(content)
            and "its config.json does not say what the weights of its classifier are for; add the model's class, such as "
            f'"architectures": ["{self.classes["token",]}"]'
        )
        stored = StoredTensors({})
        for name, tensor in tensors.items():
            full = _BARE.sub("model.", _OWNER.sub("", unwrapped(name)))
            joined = re.fullmatch(r"(model\.layers\.\d+\.attn\.Wqkv)\.(weight|bias)", full)
            if (
                joined is None or tensor.dim() == 0 or len(tensor) % 3
            ):  # in the last cases of another shape than it needs
                stored.put(full, name, tensor)
            else:
                for part, rows in zip(_PARTS, tensor.chunk(3), strict=True):
                    stored.put(f"{joined[1]}.{part}.{joined[2]}", f"{name} ({part})", rows)
        stored.untie(_TIES, content)
        return stored

    def our_names(self, names: Iterable[str], content: Content) -> dict[str, str]:
        """Translate by the head of the named class; without one, it is the masked LM head, if there is any."""
        head = next(iter(self.heads_of_classes(content)), "masked_lm")
        inverse = {
            theirs: ours
            for ours, theirs in _TENSORS.items()
            if ours.startswith(("bert.", f"heads.{head}.")) and ours != "heads.masked_lm.weight"
        }
        return translate(names, inverse)

    def full_name(self, name: str) -> str:
        """Translate by the table of names."""
        return translate([name], _TENSORS)[name]

    def tensors_of(self, model: BertWithHeads) -> dict[str, Tensor]:
        """Return the weights, with queries, keys and values in one matrix; for an encoder alone without the prefix `model.`."""
        weights = model.named_parameters()
        return put_together((self.in_file(model, self.full_name(name)), tensor) for name, tensor in weights)

    def reference_weights(self, model: BertWithHeads, full_name: str) -> list[Located]:
        """Return the name in the class, and for a part of `Wqkv` its rows."""
        name = full_name if model.heads else full_name.removeprefix(self.prefix)
        part = re.search(r"\.Wqkv\.(query|key|value)", name)
        if part is None:
            return [Located(name)]
        size, number = model.config.hidden_size, _PARTS.index(part[1])
        return [Located(name.replace(f".{part[1]}", ""), slice(number * size, (number + 1) * size))]


def modern_attention(**settings: object) -> AttentionConfig:
    """Return ModernBERT's attention, with some of its settings."""
    modern = {"positions": "rotary", "rotary_pairs": "halves", "rotary_local_base": 10_000.0, "pattern": "alternating"}
    return AttentionConfig(**(modern | settings))  # type: ignore[arg-type]


def _base(full: Content, kind: str) -> object:
    """Return the base of the rotary positions of layers with full or local attention, as transformers 5 or 4 stores it."""
    match full["rope_parameters"] or {}:
        case {**kinds} if kinds.keys() <= _OLD_BASES.keys() and isinstance(rope := kinds.get(kind) or {}, dict):
            return rotary_base(full[_OLD_BASES[kind]], rope, full.get("rope_scaling"))
        case ropes:
            raise InputError(f"rope_parameters={ropes!r}: expected settings for {' and '.join(_OLD_BASES)}")


def _full_every(full: Content) -> object:
    """Return the distance between layers with full attention; raise InputError if it is not the same everywhere."""
    kinds, named = full["layer_types"], full["global_attn_every_n_layers"]
    if not isinstance(kinds, list):
        return named
    every = kinds.index("full_attention", 1) if "full_attention" in kinds[1:] else len(kinds)
    refuse(
        len(kinds) != full.get("num_hidden_layers")
        and f"layer_types={kinds}: expected one for each of num_hidden_layers={full.get('num_hidden_layers')}",
        kinds != _kinds(every, len(kinds))
        and f"layer_types={kinds}: expected full_attention in the first layer, and then at equal distances",
    )
    return named if isinstance(named, int) and named > every == len(kinds) else every


def _kinds(every: int, num_layers: int) -> list[str]:
    """Return the kind of attention of each layer."""
    return ["sliding_attention" if number % every else "full_attention" for number in range(num_layers)]
