"""The model type `bert`, and bertkit's own type for the variants of BERT that `transformers` cannot compute.

Directories that old versions of `transformers` wrote are read too: each tensor gets the name that it has today, or is left out
by a named rule.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import ClassVar

import torch
from torch import Tensor

from bertkit.base.errors import InputError, counted
from bertkit.base.plugins import option
from bertkit.base.text_files import control_character
from bertkit.base.typed_settings import refuse
from bertkit.interop.hugging_face.architecture import (
    OWN_TYPE,
    Architecture,
    Content,
    Heads,
    Located,
    StoredTensors,
    put_together,
    rule_of,
)
from bertkit.interop.hugging_face.config_json import is_decoder
from bertkit.interop.hugging_face.config_keys import ACTIVATIONS, BERT, NO_EFFECT, Keys
from bertkit.interop.hugging_face.names import (
    CLASSIFIERS,
    HUGGING_FACE,
    from_hugging_face,
    full_name,
    to_hugging_face,
    unwrapped,
)
from bertkit.model.bert_config import OWN_SETTINGS, BertConfig
from bertkit.model.heads import BertWithHeads

SHAPE = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act", "hidden_dropout_prob",
    "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size", "initializer_range", "layer_norm_eps",
    "vocab_size",
)  # fmt: skip
DEFAULTS = {
    "hidden_act": "gelu", "initializer_range": 0.02, "layer_norm_eps": 1e-12, "type_vocab_size": 2,
    "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
}  # fmt: skip
MOST_LABELS = 100_000
RELATIVE_KEY = "relative_key"  # relative positions of transformers 4: Shaw et al. 2018, for keys only
_TIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_TIES |= {f"decoder.{tied}": f"decoder.{original}" for tied, original in _TIES.items()}
_CLASSIFIERS = ("classifier.weight", "classifier.out_proj.weight")
_OLD_NAMES = {r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"}
_OWNER = re.compile(r"^(model\.)+")  # what a BERT is called in a module that holds it, such as Lightning's
_DISTANCES = re.compile(r"bert\.encoder\.layer\.(\d+)\.attention\.self\.distance_embedding\.weight")
_PLACES = "bert.embeddings.position_embeddings.weight"


@option("architecture", "bert")
class BertArchitecture(Architecture):
    """A BERT, with causal attention too."""

    prefix = "bert."
    parts: ClassVar[tuple[str, ...]] = ("heads.",)  # of variants
    keys = BERT
    classes: ClassVar[Mapping[Heads, str]] = {
        ("masked_lm", "next_sentence"): "BertForPreTraining",
        ("masked_lm",): "BertForMaskedLM",
        ("next_token",): "BertLMHeadModel",
        ("next_sentence",): "BertForNextSentencePrediction",
        ("sequence",): "BertForSequenceClassification",
        ("token",): "BertForTokenClassification",
        ("span",): "BertForQuestionAnswering",
        ("choice",): "BertForMultipleChoice",
        ("generation",): "EncoderDecoderModel",
        (): "BertModel",
    }
    without_pooler: ClassVar[tuple[Heads, ...]] = (("masked_lm",), ("next_token",), ("token",), ("span",))
    names: ClassVar[Mapping[str, str]] = HUGGING_FACE  # full names by bertkit's
    ties: ClassVar[Mapping[str, str]] = _TIES  # of full names: those of a second copy, and of the original
    # tensors without a weight, with the reason; the buffers of the embeddings are left out everywhere
    left_out: ClassVar[Mapping[str, str]] = {}

    def writes(self, config: BertConfig) -> bool:
        """Whether `transformers` computes a model as a BERT."""
        return config.decoder is None and (not config.variant or is_decoder(config))

    def settings(self, content: Content, tensors: Mapping[str, Tensor]) -> Content:
        """Translate the settings, which are BERT's but for the positions and the direction of attention."""
        places, is_causal = content.get("max_position_embeddings"), content.get("is_decoder") or False
        kind = content.get("position_embedding_type") or "absolute"
        attention: Content = {"pattern": "causal" if is_causal else "full"}
        if kind == RELATIVE_KEY and isinstance(places, int):
            attention |= {"positions": "relative", "max_distance": places - 1, "relative_to": ["keys"]}
        refuse(
            BERT.faults(content),  # here it may be that of an encoder with a decoder
            type(is_causal) is not bool and f"is_decoder={is_causal!r}: expected true or false",
            kind not in ("absolute", RELATIVE_KEY)
            and f"position_embedding_type={kind!r} is not supported; bertkit loads 'absolute' and 'relative_key' only",
        )
        return {"attention": attention, **shared_settings(content, tensors)}

    def content(self, config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
        """Return the settings by their keys, for `transformers` 4 and 5."""
        causal = {"is_decoder": True} if config.attention.pattern == "causal" else {}
        return shared_content(config, class_name, dtype) | causal

    def full_name_of_file(self, name: str) -> str:
        """Return the full name of a tensor in a file of `transformers`."""
        return full_name(_OWNER.sub("", unwrapped(name)))

    def stored(self, tensors: Mapping[str, Tensor], content: Content) -> StoredTensors:
        """Rename what old versions called otherwise, and leave out buffers and second copies of tied weights."""
        stored = StoredTensors({})
        buffers = rf"(decoder\.)?{re.escape(self.prefix)}embeddings\.(position|token_type|task_type)_ids"
        left_out = {**self.left_out, buffers: "a buffer of old versions, not a weight"}
        for name, tensor in tensors.items():
            full = self.full_name_of_file(name)
            for old, new in _OLD_NAMES.items():
                full = re.sub(old, new, full)
            if reason := rule_of(full, left_out):
                stored.skipped[name] = reason
            else:
                stored.put(full, name, tensor)
        if content.get("position_embedding_type") == RELATIVE_KEY:
            _turn_distances(stored)
        stored.untie(self.ties, content)
        return stored

    def our_names(self, names: Iterable[str], content: Content) -> dict[str, str]:
        """Translate by the heads of the named class; without one, `classifier` belongs to a pooler, or else to tokens."""
        names, heads = set(names), self.heads_of_classes(content)
        classifier = next((head for head in CLASSIFIERS if head in heads), self.unnamed_classifier(names))
        return from_hugging_face(names, classifier, "next_token" if "next_token" in heads else "masked_lm", self.names)

    def unnamed_classifier(self, names: set[str]) -> str:
        """Return the head that has the classifier if no class is named; that of texts may have a name of its own, as in RoBERTa."""
        of_texts = self.full_name("heads.sequence.dense.weight")
        is_shared = of_texts == self.full_name("heads.token.dense.weight")
        if of_texts in names and not is_shared:
            return "sequence"
        pooled = "sequence" if is_shared else "choice"
        return pooled if self.full_name("bert.pooler.dense.weight") in names else "token"

    def full_name(self, name: str) -> str:
        """Translate by the table of names; parameters that only variants have keep theirs."""
        return to_hugging_face(name, self.names)

    def reference_settings(self, model: BertWithHeads) -> Content:
        """Leave out the pooler that a class without heads has and the encoder has not."""
        lacks_pooler = not (model.heads or model.bert.pooler) and self.has_pooler(model)
        return {"add_pooling_layer": False} if lacks_pooler else {}

    def tensors_of(self, model: BertWithHeads) -> dict[str, Tensor]:
        """Return the weights by their names in the class; no pooler if the class has none."""
        absent = () if self.has_pooler(model) else ("bert.pooler.",)
        kept = {name: tensor for name, tensor in model.named_parameters() if not name.startswith(absent)}
        return put_together((self.in_file(model, self.full_name(name)), tensor) for name, tensor in kept.items())

    def reference_weights(self, model: BertWithHeads, full_name: str) -> list[Located]:
        """Return the full name, for an encoder alone without the prefix."""
        return [Located(full_name if model.heads else full_name.removeprefix(self.prefix))]


def _turn_distances(stored: StoredTensors) -> None:
    """Turn the embeddings of distances: the rows of `transformers` are for i - j, those of Shaw et al. 2018 for j - i."""
    for name, layer in [(name, match[1]) for name in stored.tensors if (match := _DISTANCES.fullmatch(name))]:
        ours = f"bert.encoder.layers.{layer}.attention.slots.relative.key.weight"
        stored.tensors[ours] = stored.tensors.pop(name).flip(0)
        if stored.tensors.pop(_PLACES, None) is not None:
            stored.skipped[_PLACES] = "not used with relative positions"


def shared_settings(content: Content, tensors: Mapping[str, Tensor]) -> Content:
    """Return the settings that all model types of BERT's shape have, with "???" for one that is missing."""
    optional = {name: content.get(name) for name in ("classifier_dropout", "decoder", "eos_token_id")}
    shape = {name: content.get(name, DEFAULTS.get(name, "???")) for name in SHAPE}
    shape["hidden_act"] = activation_of(shape["hidden_act"])
    return {**shape, **optional, **task_settings(content, tensors)}


def activation_of(name: object) -> object:
    """Return bertkit's name of an activation that `transformers` has by several names."""
    return ACTIVATIONS.get(name, name) if isinstance(name, str) else name


def rotary_base(theta: object, *given: object) -> object:
    """Return the base of rotary positions: `theta`, or the last one that settings such as `rope_parameters` give.

    Raises InputError for another rotation than the plain one.
    """
    plain = {"rope_type": "default", "type": "default", "partial_rotary_factor": 1.0, "rope_theta": theta}
    own: Content = dict(plain)
    for each in given:
        if isinstance(each, dict):
            own |= each
        else:
            refuse(each is not None and f"{each!r}: expected settings of rotary positions by name")
    others = [f"{key}={own[key]!r}" for key in own if key != "rope_theta" and own[key] != plain.get(key)]
    refuse(len(others) > 0 and f"{', '.join(others)} is not supported; bertkit loads 'default' only")
    return own["rope_theta"]


def task_settings(content: Content, tensors: Mapping[str, Tensor]) -> Content:
    """Return the settings of labels, padding and masks, which all model types have."""
    labels, kind = labels_of(content, _classifier_in(tensors)), content.get("problem_type")
    refuse(
        len(labels) == 1
        and kind == "single_label_classification"
        and f"problem_type={kind!r} with one label, whose probability is always 1; set it to 'regression', or "
        "'multi_label_classification' for a probability"
    )
    named = content.get("architectures") or ()
    is_choice = isinstance(named, list) and any(
        str(each).endswith("ForMultipleChoice") for each in named
    )  # one logit an ending
    score = None if is_choice else score_activation(content, len(labels), kind)
    pad, size = content.get("pad_token_id") or 0, content.get("vocab_size")
    if isinstance(pad, int) and isinstance(size, int) and -size <= pad < 0:
        pad += size  # torch's embeddings count from the end
    return {
        "labels": labels, "problem_type": kind, "score_activation": score, "pad_token_id": pad,
        "masked_next_token": content.get("masked_next_token", False),
    }  # fmt: skip


def _classifier_in(tensors: Mapping[str, Tensor]) -> Tensor | None:
    """Return the matrix whose rows are the labels' logits; None if there is none."""
    return next((tensors[name] for name in _CLASSIFIERS if name in tensors), None)


def score_activation(content: Content, num_labels: int, problem_type: object) -> str | None:
    """Return the function from the only logit to the score: "sigmoid", or None for the logit itself.

    Where the file names neither, it is the sigmoid unless `problem_type` is "regression", as in sentence-transformers' cross-encoders and
    transformers' pipelines.
    Raises InputError for another function, and for one that turns several logits into other probabilities than bertkit does.
    """
    own, old = content.get("sentence_transformers"), content.get("sbert_ce_default_activation_function")
    if not isinstance(own, dict) and old is None and problem_type == "regression":
        return None
    named = own.get("activation_fn", old) if isinstance(own, dict) else old
    default = "Sigmoid" if num_labels == 1 else "Identity"
    # code that is not torch's own is not run, there either
    name = str(named).rpartition(".")[2] if str(named).startswith("torch.") else default
    is_plain = name in (("Identity", "Sigmoid") if num_labels == 1 else ("Identity", "Softmax"))
    refuse(
        not is_plain
        and (name, problem_type) != ("Sigmoid", "multi_label_classification")
        and f"activation_fn={named!r} with {counted(num_labels, 'label')} is not supported; bertkit loads Identity, Sigmoid for "
        "one label, and Sigmoid with problem_type='multi_label_classification'"
    )
    return "sigmoid" if num_labels == 1 and name == "Sigmoid" and problem_type != "multi_label_classification" else None


def labels_of(content: Content, rows: Tensor | None) -> list[str]:
    """Return the names of the labels in the order of their numbers; LABEL_0, LABEL_1, ... if the configuration has none."""
    if named := content.get("id2label"):
        names = [named.get(str(number)) for number in range(len(named))] if isinstance(named, dict) else [None]
        if any(not isinstance(name, (str, int)) or control_character(str(name)) for name in names):
            raise InputError(f"id2label={named!r}: expected names for the numbers from 0, without control characters")
        return list(map(str, names))
    count = content.get("num_labels")
    if count is None:
        count = 2 if rows is None or rows.dim() != 2 else len(rows)
    if type(count) is not int or not 1 <= count <= MOST_LABELS:
        raise InputError(f"num_labels={count!r}: expected a whole number from 1 to {MOST_LABELS}")
    return [f"LABEL_{number}" for number in range(count)]


def shared_content(config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
    """Return what all model types of BERT's shape have in `config.json`, in no order."""
    content: Content = {name: value for name, value in asdict(config).items() if name in SHAPE}
    content |= described(config, class_name, dtype) | {
        "classifier_dropout": config.classifier_dropout,
        "model_type": "bert",
        "position_embedding_type": "absolute",
    }
    if class_name.endswith(("LMHeadModel", "ForCausalLM")):
        content["eos_token_id"] = config.eos_token_id
    return content


def described(config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
    """Return what every `config.json` says: the class, the dtype and the id of padding."""
    name = str(dtype).removeprefix("torch.")
    own: Content = {"masked_next_token": True} if config.masked_next_token else {}  # transformers reads past it
    return own | {
        "architectures": [class_name],
        "dtype": name,
        "pad_token_id": config.pad_token_id,
        "torch_dtype": name,
    }


@option("architecture", OWN_TYPE)
class VariantArchitecture(BertArchitecture):
    """A variant of BERT with bertkit's own settings; `transformers` refuses to load its type."""

    keys = Keys(BERT.honoured | {*OWN_SETTINGS}, BERT.only, NO_EFFECT)
    classes: ClassVar[Mapping[Heads, str]] = {**BertArchitecture.classes, ("replaced_token",): "ElectraForPreTraining"}

    def writes(self, config: BertConfig) -> bool:
        """It is the type of the models that no other architecture writes."""
        return False

    def settings(self, content: Content, tensors: Mapping[str, Tensor]) -> Content:
        """Add bertkit's settings."""
        refuse(self.keys.faults(content))
        return {name: content[name] for name in OWN_SETTINGS if name in content} | shared_settings(content, tensors)

    def content(self, config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
        """Add bertkit's settings."""
        return shared_content(config, class_name, dtype) | config.variant | {"model_type": OWN_TYPE}
