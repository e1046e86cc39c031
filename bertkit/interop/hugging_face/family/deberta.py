"""The model type `deberta-v2`, also of DeBERTa v3: disentangled attention, and embeddings projected before their norm (He et al. 2020, 2021)."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import ClassVar

import torch
from torch import Tensor

from bertkit.base.plugins import option
from bertkit.base.typed_settings import refuse
from bertkit.interop.hugging_face.architecture import Content, Heads, StoredTensors
from bertkit.interop.hugging_face.bert import activation_of
from bertkit.interop.hugging_face.config_keys import COMMON, NO_EFFECT, ONLY, Keys
from bertkit.interop.hugging_face.family.member import FamilyArchitecture
from bertkit.interop.hugging_face.names import HUGGING_FACE, by_weight, of_encoder
from bertkit.model.bert_config import BertConfig

_ATTENTION = "bert.encoder.layers.{}.attention"
_SELF = "deberta.encoder.layer.{}.attention.self"
_PLACES = "deberta.embeddings.position_embeddings."  # absolute ones
_NORM = "deberta.encoder.LayerNorm."  # of distances
_LEGACY, _OTHER = "cls.predictions.", "lm_predictions."  # masked LM heads
_NAMES = {
    **{ours: theirs for ours, theirs in HUGGING_FACE.items() if ours.startswith("heads.") and "crossattention" not in theirs},
    **of_encoder("deberta."),
    **by_weight(
        {
            **{f"{_ATTENTION}.{part}": f"{_SELF}.{part}_proj" for part in ("query", "key", "value")},
            **{f"{_ATTENTION}.slots.disentangled.{part}": f"{_SELF}.pos_{part}_proj" for part in ("query", "key")},
            "bert.encoder.positions.norm": "deberta.encoder.LayerNorm",
            "bert.pooler.dense": "pooler.dense",
            "bert.encoder.layers.{}.convolution": "deberta.encoder.conv.conv",
            "bert.encoder.layers.{}.convolution_norm": "deberta.encoder.conv.LayerNorm",
        }
    ),
    "bert.embeddings.first_projection.weight": "deberta.embeddings.embed_proj.weight",
    "bert.encoder.positions.embedding.weight": "deberta.encoder.rel_embeddings.weight",
}  # fmt: skip


@option("architecture", "deberta-v2")
class DebertaArchitecture(FamilyArchitecture):
    """A DeBERTa. The encoder has no pooler; the first linear map of a head for texts is the pooler here.

    `transformers` has two masked LM heads, which compute the same by other names: `legacy`, which is written, and the one that
    published files have, which it leaves out unless they say `legacy: false`.
    """

    family = "deberta-v2"
    prefix = "deberta."
    defaults: ClassVar[Content] = {
        "type_vocab_size": 0, "layer_norm_eps": 1e-7, "max_position_embeddings": 512, "relative_attention": False,
        "max_relative_positions": -1, "position_buckets": -1, "pos_att_type": [], "position_biased_input": True, "share_att_key": False,
        "norm_rel_ebd": "none", "pooler_dropout": 0.0, "pooler_hidden_act": "gelu", "legacy": True,
        "cls_dropout": None, "conv_kernel_size": 0, "conv_groups": 1, "conv_act": "tanh",
    }  # fmt: skip
    fixed: ClassVar[Content] = {"position_embedding_type": "absolute", "is_decoder": False}
    names_in_file: ClassVar[Mapping[str, str]] = {
        "classifier_dropout": "cls_dropout", "pooler_act": "pooler_hidden_act",
        "pooler_dropout_probs.sequence": "pooler_dropout", "pooler_dropout_probs.choice": "pooler_dropout",
        "convolution.kernel_size": "conv_kernel_size", "convolution.groups": "conv_groups", "convolution.act": "conv_act",
        "attention.max_distance": "max_relative_positions", "attention.distance_buckets": "position_buckets",
    }  # fmt: skip
    keys = Keys(
        COMMON - names_in_file.keys()
        | defaults.keys()
        | {"attention_head_size", "attention_probs_dropout_prob", "embedding_size", "hidden_act", "hidden_dropout_prob"}
        | {"pooler_hidden_size"},
        ONLY,
        # which nothing in `transformers` reads
        NO_EFFECT
        | {"add_cross_attention", "classifier_dropout", "is_decoder", "position_embedding_type"}
        | {"summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj"},
    )
    names: ClassVar[Mapping[str, str]] = _NAMES
    ties: ClassVar[Mapping[str, str]] = {
        "cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    left_out: ClassVar[Mapping[str, str]] = {
        r"mask_predictions\..*": "the head for replaced tokens, which bertkit does not have"
    }
    classes: ClassVar[Mapping[Heads, str]] = {
        ("masked_lm",): "DebertaV2ForMaskedLM",
        ("sequence",): "DebertaV2ForSequenceClassification",
        ("token",): "DebertaV2ForTokenClassification",
        ("span",): "DebertaV2ForQuestionAnswering",
        ("choice",): "DebertaV2ForMultipleChoice",
        (): "DebertaV2Model",
    }
    compared_with: ClassVar[Content] = {"attn_implementation": "eager", "legacy": True}
    without_pooler: ClassVar[tuple[Heads, ...]] = (("masked_lm",), ("token",), ("span",), ())

    def derived(self, read: Content, full: Content) -> Content:
        """Return the size of the embeddings, attention, and the activation and the dropout of the heads."""
        size, hidden, heads = full.get("embedding_size"), read["hidden_size"], read["num_attention_heads"]
        head_size = hidden // heads if type(hidden) is int and type(heads) is int and heads > 0 else None
        refuse(
            *(
                f"{key}={full[key]!r} is not supported; bertkit loads {value!r} only"
                for key, value in (("attention_head_size", head_size), ("pooler_hidden_size", hidden))
                if full.get(key) not in (None, value)
            ),
            full["legacy"] is False
            and size not in (None, hidden)
            and f"legacy=False with embedding_size={size!r}: expected hidden_size={hidden!r}, as in transformers",
        )
        dropped = full["pooler_dropout"]
        return {
            "attention": _attention_of(full, read["max_position_embeddings"]),
            "embedding_size": None if size == hidden else size,
            "projects_first": True,
            "convolution": _convolution_of(full),
            "pooler_act": activation_of(full["pooler_hidden_act"]),
            "pooler_dropout_probs": {"sequence": dropped, "choice": dropped},
            "head_dropout_probs": {"token": read["hidden_dropout_prob"]},
        }

    def content(self, config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
        """Add the settings of attention, and those of the embeddings and of the pooler."""
        attention = config.attention
        is_relative, own = attention.positions == "disentangled", config.classifier_dropout
        of_distances: Content = {
            "max_relative_positions": attention.max_distance,
            "norm_rel_ebd": "layer_norm" if attention.distance_norm else "none",
            "pos_att_type": [*attention.distance_terms],
            "position_buckets": attention.distance_buckets or -1,
            "share_att_key": attention.distance_maps == "shared",
        }
        convolution = {} if config.convolution is None else asdict(config.convolution)
        of_layer = {f"conv_{name}": value for name, value in convolution.items()}
        return super().content(config, class_name, dtype) | of_layer | (of_distances if is_relative else {}) | {
            "cls_dropout": own,
            "embedding_size": config.embedding_width,
            "legacy": True,
            "pooler_dropout": config.pooler_dropout_probs.get("sequence", 0.0),
            "pooler_hidden_act": config.pooler_act,
            "position_biased_input": attention.of_embeddings == "learned",
            "relative_attention": is_relative,
        }  # fmt: skip

    def stored(self, tensors: Mapping[str, Tensor], content: Content) -> StoredTensors:
        """Give the masked LM head the names that it has with `legacy`, and leave out a second one, and positions that the model does not use."""
        full = self.defaults | content
        has_both = all(any(name.startswith(head) for name in tensors) for head in (_LEGACY, _OTHER))
        second = (_OTHER if full["legacy"] else _LEGACY) if has_both else "none"
        names = {_with_legacy(name): name for name in tensors if not name.startswith(second)}
        stored = super().stored({new: tensors[name] for new, name in names.items()}, content)
        stored.file_names.update({new: names[name] for new, name in stored.file_names.items()})
        reason = f"another masked LM head, not used with legacy={full['legacy']}"
        stored.skipped.update({name: reason for name in tensors if name not in names.values()})
        for key, unused in (("position_biased_input", _PLACES), ("relative_attention", _NORM)):
            for name in [name for name in stored.tensors if not full[key] and name.startswith(unused)]:
                stored.skipped[stored.file_names.pop(name)] = f"not used with {key}=False"
                del stored.tensors[name]
        return stored


def _with_legacy(name: str) -> str:
    """Return the name that a weight has in the other masked LM head of `transformers`."""
    name = name.replace("lm_predictions.lm_head.bias", "cls.predictions.bias")
    return name.replace("lm_predictions.lm_head.", "cls.predictions.transform.")


def _convolution_of(full: Content) -> Content | None:
    """Return the settings of the convolution; None: there is none."""
    size = full["conv_kernel_size"]
    refuse(type(size) is not int and f"conv_kernel_size={size!r}: expected a whole number")
    act = activation_of(full["conv_act"])
    return (
        {"kernel_size": size, "groups": full["conv_groups"], "act": act} if isinstance(size, int) and size > 0 else None
    )


def _attention_of(full: Content, max_positions: object) -> Content:
    """Return the settings of attention."""
    terms, norms = full["pos_att_type"] or [], full["norm_rel_ebd"]
    terms = [term.strip() for term in terms.lower().split("|")] if isinstance(terms, str) else terms
    is_relative, is_absolute = full["relative_attention"], full["position_biased_input"]
    most, buckets = full["max_relative_positions"], full["position_buckets"]
    refuse(
        *(f"{name}={full[name]!r}: expected a whole number" for name in ("max_relative_positions", "position_buckets") if type(full[name]) is not int),
        *(
            f"{name}={full[name]!r}: expected true or false"
            for name in ("relative_attention", "position_biased_input", "share_att_key")
            if type(full[name]) is not bool
        ),
        not isinstance(norms, str) and f"norm_rel_ebd={norms!r}: expected layer_norm or none",
        (not isinstance(terms, list) or not {*map(str, terms)} <= {"c2p", "p2c"})
        and f"pos_att_type={full['pos_att_type']!r}: expected c2p, p2c or both",
        bool(terms) != bool(is_relative)
        and f"pos_att_type={full['pos_att_type']!r} with relative_attention={is_relative}: expected c2p, p2c or both with relative_attention=true, "
        "and none without",
    )  # fmt: skip
    if not is_relative:
        return {"positions": "learned" if is_absolute else "none"}
    assert isinstance(norms, str)
    assert isinstance(terms, list)
    assert isinstance(most, int)
    assert isinstance(buckets, int)
    return {
        "positions": "disentangled",
        "also_learned": is_absolute,
        "max_distance": max_positions if most < 1 else most,
        "distance_buckets": max(buckets, 0),
        "distance_terms": sorted(terms),
        "distance_maps": "shared" if full["share_att_key"] else "own",
        "distance_norm": "layer_norm" in [norm.strip() for norm in norms.lower().split("|")],
    }
