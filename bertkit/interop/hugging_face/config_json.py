"""`config.json` of Hugging Face and Google: a model's class, shape and labels."""

import functools
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertkit.base.errors import InputError, say
from bertkit.base.files import to_json
from bertkit.base.text_files import control_character, read_json
from bertkit.base.typed_settings import build, differences, to_mapping
from bertkit.interop.hugging_face.names import CLASSIFIERS
from bertkit.model.bert_config import (
    AttentionConfig,
    BertConfig,
    DecoderConfig,
    FeedForwardConfig,
    HeadConfig,
    NormConfig,
    ProblemType,
)
from bertkit.model.heads import BertWithHeads

PAIR, PAIR_TYPE = "EncoderDecoderModel", "encoder-decoder"
ARCHITECTURES = {
    ("masked_lm", "next_sentence"): "BertForPreTraining",
    ("masked_lm",): "BertForMaskedLM",
    ("next_token",): "BertLMHeadModel",
    ("next_sentence",): "BertForNextSentencePrediction",
    ("sequence",): "BertForSequenceClassification",
    ("token",): "BertForTokenClassification",
    ("span",): "BertForQuestionAnswering",
    ("choice",): "BertForMultipleChoice",
    ("generation",): PAIR,
    (): "BertModel",
}
_LABELLED = ("BertForSequenceClassification", "BertForTokenClassification")
MOST_LABELS = 100_000
RELATIVE_KEY = "relative_key"  # relative positions of transformers 4: Shaw et al. 2018, for keys only
OWN_TYPE = "bertkit"  # the model_type of variants that transformers cannot compute
SHAPE = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act", "hidden_dropout_prob",
    "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size", "initializer_range", "layer_norm_eps",
    "vocab_size",
)  # fmt: skip
_DEFAULTS = {"hidden_act": "gelu", "initializer_range": 0.02, "layer_norm_eps": 1e-12, "type_vocab_size": 2}
_ONLY_VALUES = {
    "add_cross_attention": False, "is_encoder_decoder": False,
    "tie_word_embeddings": True, "pruned_heads": {}, "quantization_config": None,
}  # fmt: skip


def architecture_of(model: BertWithHeads) -> str:
    """Return the name of the `transformers` class with the same heads."""
    heads = tuple(sorted(model.heads))
    if heads not in ARCHITECTURES:
        raise InputError(
            f"heads {', '.join(heads)}: transformers has no class with these heads; load the model with one of them"
        )
    return ARCHITECTURES[heads]


def is_decoder(config: BertConfig) -> bool:
    """Whether a model is BERT with causal attention and no other change, which `transformers` can compute."""
    bert = replace(config, attention=replace(config.attention, pattern="full"))
    return config.attention.pattern == "causal" and not bert.variant


def require_bert(config: BertConfig, where: str) -> None:
    """Raise InputError, which names the settings that `transformers` does not have, if it cannot compute a model."""
    if config.variant and not is_decoder(config):
        changed = changed_from_bert(config)
        rest = "export head=encoder without the head, or use" if changed[0].startswith("head.") else "use"
        raise InputError(
            f"{where}: transformers 5 has no BERT with {', '.join(changed)}; {rest} the model as it is with "
            "bertkit.load_model, finetune, predict and embed"
        )


def changed_from_bert(config: BertConfig) -> list[str]:
    """List the settings that differ from BERT's, as `key=value`."""
    bert = {"attention": to_mapping(AttentionConfig()), "norm": to_mapping(NormConfig()), "pooling": "first"}
    whole = {
        "head": to_mapping(HeadConfig()),
        "feed_forward": to_mapping(FeedForwardConfig()),
    }  # left out where they are BERT's
    variant = whole | {key: value for key, value in config.variant.items() if key != "decoder"}
    if config.decoder is not None and config.decoder.is_from_scratch:
        variant["decoder"] = config.decoder.kind
    changed = [f"{key}={value}" for key, _, value in differences(bert | whole, variant)]
    return [each for each in changed if not config.attention.without_effect(each.partition("=")[0].partition(".")[2])]


def config_json(config: BertConfig, architecture: str, dtype: torch.dtype = torch.float32) -> str:
    """Write `config.json` for `transformers` 4 and 5; `dtype` is the dtype of the weights.

    A variant that `transformers` cannot compute gets the model type `bertkit`, so that `transformers` refuses to load it.
    """
    if config.decoder is not None and not config.decoder.is_from_scratch:
        return _pair_json(config, config.decoder, dtype)
    content = asdict(config)
    for name in ("attention", "norm", "feed_forward", "pooling", "head", "decoder"):
        del content[name]
    if architecture != ARCHITECTURES["next_token",]:
        del content["eos_token_id"]
    labels, problem_type = content.pop("labels"), content.pop("problem_type")
    content |= {
        "architectures": [architecture],
        "dtype": str(dtype).removeprefix("torch."),
        "model_type": "bert",
        "position_embedding_type": "absolute",
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    if is_decoder(config):
        content["is_decoder"] = True
    elif config.variant:
        content |= {**config.variant, "model_type": OWN_TYPE}
    if architecture in _LABELLED:
        content["id2label"] = {str(number): label for number, label in enumerate(labels)}
        content["label2id"] = {label: number for number, label in enumerate(labels)}
        if problem_type is not None:
            content["problem_type"] = problem_type
        if problem_type == "regression":  # without it, a cross-encoder of sentence-transformers applies a sigmoid
            content["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    return to_json(dict(sorted(content.items())))


def _pair_json(config: BertConfig, decoder: DecoderConfig, dtype: torch.dtype) -> str:
    """Write the configuration of an encoder-decoder; the key `decoder_shares_encoder` is bertkit's own."""
    encoder = json.loads(config_json(replace(config, decoder=None), ARCHITECTURES[()], dtype))
    writes = {"add_cross_attention": True, "is_decoder": True, "architectures": ["BertLMHeadModel"]}
    pair = {
        "architectures": [PAIR],
        "decoder": encoder | writes,
        "decoder_shares_encoder": decoder.share,
        "decoder_start_token_id": decoder.start_token_id,
        "dtype": encoder["dtype"],
        "encoder": encoder,
        "eos_token_id": decoder.end_token_id,
        "is_encoder_decoder": True,
        "model_type": PAIR_TYPE,
        "pad_token_id": config.pad_token_id,
        "torch_dtype": encoder["dtype"],
    }
    return to_json(dict(sorted(pair.items())))


def _of_pair(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Return the encoder's configuration in an encoder-decoder of two BERTs, with bertkit's settings for the decoder."""
    sides = {side: part if isinstance(part := content.get(side), dict) else {} for side in ("encoder", "decoder")}
    encoder, decoder = sides["encoder"], sides["decoder"]
    other = [key for key in SHAPE if encoder.get(key, _DEFAULTS.get(key)) != decoder.get(key, _DEFAULTS.get(key))]
    other += [f"decoder.{key}" for key in ("is_decoder", "add_cross_attention") if decoder.get(key) is not True]
    other += [f"{side}.model_type" for side, part in sides.items() if part.get("model_type") != "bert"]
    if other:
        raise InputError(
            f"{path}: {', '.join(other[:3])}: expected two BERTs with equal settings, the decoder with is_decoder and add_cross_attention"
        )
    start = content.get("decoder_start_token_id", decoder.get("decoder_start_token_id"))
    end = content.get("eos_token_id", decoder.get("eos_token_id"))
    if type(start) is not int or type(end) is not int:
        raise InputError(f"{path}: no decoder_start_token_id and eos_token_id; set them to the ids of [CLS] and [SEP]")
    shared = content.get("decoder_shares_encoder", content.get("tie_encoder_decoder", False))
    known = {"kind": "bert", "share": shared, "start_token_id": start, "end_token_id": end}
    return {**encoder, "decoder": {**asdict(DecoderConfig(kind="bert")), **known}, "architectures": [PAIR]}


def read_config(path: Path, tensors: Mapping[str, Tensor] | None = None) -> tuple[BertConfig, tuple[str, str]]:
    """Read `config.json`, or Google's `bert_config.json`.

    Returns also the heads that the weights called `classifier` and `cls.predictions` belong to. If the file has no labels,
    their number comes from the shape of these weights. Raises InputError if the file is missing, is not a BERT's, or has
    settings that bertkit lacks.
    """
    content, tensors = _read_content(path), tensors or {}
    if content.get("model_type") == PAIR_TYPE:
        content = _of_pair(path, content)
    problems = [
        f"{key}={content[key]!r} is not supported; bertkit loads {allowed!r} only"
        for key, allowed in _ONLY_VALUES.items()
        if content.get(key) not in (None, allowed)
    ]
    shape: dict[str, Any] = {name: content.get(name, _DEFAULTS.get(name, "???")) for name in SHAPE}
    shape |= {name: content.get(name) for name in ("classifier_dropout", "problem_type", "decoder", "eos_token_id")}
    shape["pad_token_id"] = content.get("pad_token_id") or 0
    groups: dict[str, Any] = {"attention": asdict(AttentionConfig()), "norm": asdict(NormConfig())}
    if content.get("model_type") == OWN_TYPE:
        for name, known in groups.items():
            own = content.get(name)
            groups[name] = {**known, **own} if isinstance(own, dict) else own
        shape |= {"pooling": content.get("pooling", "first"), "head": content.get("head", {})}
        shape |= {"feed_forward": content.get("feed_forward", {})}
    else:
        is_causal, places = content.get("is_decoder") or False, shape["max_position_embeddings"]
        kind = content.get("position_embedding_type") or "absolute"
        if kind == RELATIVE_KEY and isinstance(places, int):
            groups["attention"] |= {"positions": "relative", "max_distance": places - 1, "relative_to": ["keys"]}
        if is_causal is True:
            groups["attention"]["pattern"] = "causal"
        elif is_causal is not False:
            problems.append(f"is_decoder={is_causal!r}: expected true or false")
        if kind not in ("absolute", RELATIVE_KEY):
            problems.append(
                f"position_embedding_type={kind!r} is not supported; bertkit loads 'absolute' and 'relative_key' only"
            )
    try:
        if problems:
            raise InputError(*problems)
        config = build(BertConfig, {"pooling": "first", **shape, **groups, "labels": _labels(content, tensors)})
    except InputError as error:  # with the names of the file, not of the command line
        lines = [line.removeprefix("model.").replace("missing value: set ", "no ") for line in error.args]
        raise InputError(*(f"{path}: {line}" for line in lines)) from None
    is_lm = content.get("architectures") == [ARCHITECTURES["next_token",]]
    if content.get("is_decoder") is True and not is_lm:
        _say_causal(path)
    return config, (_classifier(content, tensors), "next_token" if is_lm else "masked_lm")


@functools.cache
def _say_causal(path: Path) -> None:
    how = "each token attends only to itself and the tokens before it; in BERT it is false"
    say(f"warning: {path}: is_decoder=true: attention is causal, {how}", file=sys.stderr)


def problem_type_of(config: BertConfig) -> ProblemType:
    """The problem type of a sequence head; without a configured one, it follows from the number of labels."""
    return config.problem_type or ("regression" if len(config.labels) == 1 else "single_label_classification")


def _read_content(path: Path) -> dict[str, Any]:
    content = read_json(path)
    kind = content.get("model_type", "bert") if isinstance(content, dict) else type(content).__name__
    if not isinstance(content, dict) or kind not in ("bert", OWN_TYPE, PAIR_TYPE):
        raise InputError(f"{path}: model_type {kind!r}; bertkit loads 'bert', and encoder-decoders of two")
    architectures = content.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise InputError(f"{path}: architectures={architectures!r}: expected a list of names")
    return content


def _labels(content: dict[str, Any], tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the labels in the order of their numbers; LABEL_0, LABEL_1, ... if the configuration has none."""
    named, rows = content.get("id2label"), tensors.get("classifier.weight")
    if named:
        if not isinstance(named, dict) or sorted(map(str, named)) != sorted(map(str, range(len(named)))):
            raise InputError(f"id2label={named!r}: expected a name for each number from 0")
        names = [named[number] for number in sorted(named, key=int)]
        if not all(isinstance(name, (str, int)) and not control_character(str(name)) for name in names):
            raise InputError(f"id2label={named!r}: expected names, without control characters")
        return [str(name) for name in names]
    count = content.get("num_labels")
    if count is None:
        count = 2 if rows is None or rows.dim() != 2 else len(rows)
    if type(count) is not int or not 1 <= count <= MOST_LABELS:
        raise InputError(f"num_labels={count!r}: expected a whole number from 1 to {MOST_LABELS}")
    return [f"LABEL_{number}" for number in range(count)]


def _classifier(content: dict[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the head that `classifier.*` belongs to, according to `architectures`, or else to the presence of a pooler."""
    heads_of = {name: heads[0] for heads, name in ARCHITECTURES.items() if len(heads) == 1}
    for architecture in content.get("architectures") or ():
        if heads_of.get(architecture) in CLASSIFIERS:
            return heads_of[architecture]
    return "sequence" if "bert.pooler.dense.weight" in tensors else "token"
