"""`config.json` of Hugging Face and Google, in either direction, and whether `transformers` can compute a model."""

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from bertkit.base import plugins
from bertkit.base.errors import InputError, warn
from bertkit.base.files import to_json
from bertkit.base.text_files import read_json
from bertkit.base.typed_settings import build, differences, refuse, to_mapping
from bertkit.interop.hugging_face.architecture import (
    OWN_TYPE,
    Architecture,
    Content,
    find_architecture,
    in_transformers,
    writer_of,
)
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import BertConfig, FeedForwardConfig, HeadConfig, NormConfig, problem_type_of
from bertkit.model.heads import BertWithHeads

_OF_HEAD = re.compile(r"(pooler|head)_dropout_probs\.")  # settings that follow from keys of the file


def architecture_of(model: BertWithHeads) -> str:
    """Return the name of the `transformers` class with the same heads."""
    return writer_of(model.config, model.heads).class_of(model)


def is_decoder(config: BertConfig) -> bool:
    """Whether a model is BERT with causal attention and no other change, which `transformers` can compute."""
    bert = replace(config, attention=replace(config.attention, pattern="full"))
    return config.attention.pattern == "causal" and not bert.variant


def require_bert(model: BertWithHeads, where: str) -> None:
    """Raise InputError, which names the settings that `transformers` does not have, if it cannot compute a model."""
    if changed := not_in_transformers(model):
        rest = "export head=encoder without the head, or use" if changed[0].startswith(("head.", "head=")) else "use"
        raise InputError(
            f"{where}: transformers 5 has no BERT with {', '.join(changed)}; {rest} the model as it is with "
            "bertkit.load_model, finetune, predict and embed"
        )


def require_class(config: BertConfig, heads: Iterable[str]) -> None:
    """Raise InputError if a model with these heads could not be saved, since its type has no class with them."""
    wanted = in_transformers(heads)
    known = {name: find_architecture(name) for name in plugins.names_of("architecture")}
    types = [name for name, each in known.items() if each is not None and wanted in each.classes and name != OWN_TYPE]
    way_out = f"models of the type {' or '.join(types)} have one"
    if "next_sentence" in heads:
        way_out = "for the masked LM alone set segments=full_sentences, or next_sentence=none"
    refuse(
        wanted not in writer_of(config, heads).classes
        and f"the heads {' and '.join(heads)}: transformers has no such class of this model's type; {way_out}"
    )


def not_in_transformers(model: BertWithHeads) -> list[str]:
    """List the settings, as `key=value`, for which `transformers` cannot compute a model: none if it can, or its head's alone."""
    config = model.config
    if writer_of(config, model.heads).writes(config):
        return []
    heads = [f"head={name}" for name in model.heads if plugins.is_plugin("model_head", name)]
    changed, bare = changed_from_bert(config), replace(config, head=HeadConfig())
    return heads + [each for each in changed if each.startswith("head.") or not writer_of(bare, ()).writes(bare)]


def changed_from_bert(config: BertConfig) -> list[str]:
    """List the settings that differ from BERT's, as `key=value`."""
    bert = {"attention": to_mapping(AttentionConfig()), "norm": to_mapping(NormConfig()), "pooling": "first"}
    # these groups are left out where they are BERT's
    whole = {"head": to_mapping(HeadConfig()), "feed_forward": to_mapping(FeedForwardConfig())}
    variant = whole | {key: value for key, value in config.variant.items() if key != "decoder"}
    if config.decoder is not None and config.decoder.is_from_scratch:
        variant["decoder"] = config.decoder.kind
    changed = [f"{key}={value}" for key, _, value in differences(bert | whole, variant)]
    return [each for each in changed if not config.attention.without_effect(each.partition("=")[0].partition(".")[2])]


def completed(config: BertConfig) -> BertConfig:
    """Return the configuration of a new model with the settings that follow from its family."""
    architecture = find_architecture(config.family)
    return config if architecture is None else architecture.completed(config)


def config_json(model: BertWithHeads) -> str:
    """Write `config.json` for the class of `transformers` 4 and 5 with the model's heads."""
    config, dtype = model.config, next(model.parameters()).dtype
    content = writer_of(config, model.heads).content(config, architecture_of(model), dtype)
    if any(head.has_label_names for head in model.kinds.values()):
        content |= _labels(config)
    return to_json(dict(sorted(content.items())))


def _labels(config: BertConfig) -> Content:
    """Return the names of the labels, and what is computed from their logits."""
    content: Content = {
        "id2label": {str(number): label for number, label in enumerate(config.labels)},
        "label2id": {label: number for number, label in enumerate(config.labels)},
    }
    if config.problem_type is not None:
        content["problem_type"] = config.problem_type
    if (
        problem_type_of(config) == "regression"
    ):  # without it, a cross-encoder of sentence-transformers applies a sigmoid
        name = "activation.Sigmoid" if config.score_activation else "linear.Identity"
        content["sentence_transformers"] = {"activation_fn": f"torch.nn.modules.{name}"}
    return content


def read_content(path: Path) -> Content:
    """Read a JSON object with the classes of a model, if it names any."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: {type(content).__name__}, expected the settings of a model by name")
    architectures = content.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise InputError(f"{path}: architectures={architectures!r}: expected a list of names")
    return content


def type_of(path: Path, content: Content) -> Architecture:
    """Return the architecture of a configuration; Google's has no `model_type`."""
    kind = content.get("model_type", "bert")
    architecture = find_architecture(kind)
    if architecture is None:
        known = ", ".join(plugins.names_of("architecture"))
        raise InputError(
            f"{path}: model_type {kind!r}; bertkit loads {known}; a plug-in may add others: plugins=[its module]"
        )
    return architecture


def read_config(path: Path) -> BertConfig:
    """Read `config.json`, or Google's `bert_config.json`, as `config_of` does."""
    return config_of(path, read_content(path), {})


def config_of(path: Path, content: Content, tensors: Mapping[str, Tensor]) -> BertConfig:
    """Translate the content of a configuration; the number of labels may come from the weights.

    Raises InputError if a setting is missing, or has a value that bertkit lacks.
    """
    architecture = type_of(path, content)
    try:
        config = build(BertConfig, architecture.settings(content, tensors))
    except InputError as error:  # with the names of the file, not of the command line
        names = architecture.names_in_file
        lines = [line.removeprefix("model.").replace("missing value: set ", "no ") for line in error.args]
        lines = [re.sub(r"[a-z_]+(\.[a-z_]+)?", lambda word: names.get(word[0], word[0]), line) for line in lines]
        in_file = [line for line in lines if not _OF_HEAD.match(line)] or lines  # the others follow from them
        raise InputError(*(f"{path}: {line}" for line in dict.fromkeys(in_file))) from None
    if unknown := architecture.keys.unknown(content):
        warn_once(f"{path}: no effect, since transformers does not compute with them either: {', '.join(unknown)}")
    is_causal = content.get("is_decoder") is True and config.attention.pattern == "causal"
    if is_causal and "next_token" not in architecture.heads_of_classes(content):
        how = "each token attends only to itself and the tokens before it; in BERT it is false"
        warn_once(f"{path}: is_decoder=true: attention is causal, {how}")
    return config


@functools.cache
def warn_once(line: str) -> None:
    """Print a warning about a file, which may be opened several times."""
    warn(line)
