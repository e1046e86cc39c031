"""Read and write Hugging Face model directories; the files only, without importing `transformers`.

Loading is strict: every tensor of the file is loaded or skipped by a named rule, every parameter of the model is loaded
or newly made by a named rule, and anything else is an error that lists the names.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertkit.config import build
from bertkit.errors import InputError
from bertkit.files import read_json, sha256_file, to_json
from bertkit.interop import names, weights
from bertkit.interop.google import checkpoint as tensorflow
from bertkit.model.bert import init_weights
from bertkit.model.config import HEADS, POOLED_HEADS, BertConfig, ProblemType
from bertkit.model.heads import BertWithHeads

ARCHITECTURES = {
    ("masked_lm", "next_sentence"): "BertForPreTraining",
    ("masked_lm",): "BertForMaskedLM",
    ("next_sentence",): "BertForNextSentencePrediction",
    ("sequence",): "BertForSequenceClassification",
    ("token",): "BertForTokenClassification",
    ("span",): "BertForQuestionAnswering",
    ("choice",): "BertForMultipleChoice",
    (): "BertModel",
}
_WITHOUT_POOLER = ("BertForMaskedLM", "BertForTokenClassification", "BertForQuestionAnswering")
_LABELLED = ("BertForSequenceClassification", "BertForTokenClassification")
MOST_LABELS = 100_000
_SHAPE = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act", "hidden_dropout_prob",
    "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size", "initializer_range", "layer_norm_eps",
    "vocab_size",
)  # fmt: skip
_DEFAULTS = {"hidden_act": "gelu", "initializer_range": 0.02, "layer_norm_eps": 1e-12, "type_vocab_size": 2}
_HONOURED = {
    "position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False, "is_encoder_decoder": False,
    "tie_word_embeddings": True, "pruned_heads": {}, "quantization_config": None,
}  # fmt: skip
MAX_LISTED = 8  # labels that a line names


@dataclass(frozen=True)
class LoadReport:
    """What became of every name.

    Attributes:
        loaded: parameters of the model taken from the file.
        skipped: tensors of the file that were left out, with the rule.
        new: parameters of the model that the file does not hold, newly initialised.
    """

    loaded: list[str]
    skipped: dict[str, str]
    new: list[str]


def architecture_of(model: BertWithHeads) -> str:
    """Give the name of the `transformers` class with the same heads.

    Raises:
        InputError: there is none with these heads.
    """
    heads = tuple(sorted(model.heads))
    if heads not in ARCHITECTURES:
        raise InputError(
            f"heads {', '.join(heads)}: transformers has no class with these; load the model with one of them"
        )
    return ARCHITECTURES[heads]


def config_json(config: BertConfig, architecture: str, dtype: torch.dtype = torch.float32) -> str:
    """Write `config.json`, readable by `transformers` 4 and 5; `dtype` is that of the weights."""
    content = asdict(config)
    labels, problem_type = content.pop("labels"), content.pop("problem_type")
    content |= {
        "architectures": [architecture],
        "dtype": str(dtype).removeprefix("torch."),
        "model_type": "bert",
        "position_embedding_type": "absolute",
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    if architecture in _LABELLED:
        content["id2label"] = {str(number): label for number, label in enumerate(labels)}
        content["label2id"] = {label: number for number, label in enumerate(labels)}
        if problem_type is not None:
            content["problem_type"] = problem_type
    return to_json(dict(sorted(content.items())))


def read_config(directory: Path, tensors: Mapping[str, Tensor] | None = None) -> BertConfig:
    """Read `config.json`, or Google's `bert_config.json` beside a TensorFlow checkpoint.

    Args:
        directory: where it lies.
        tensors: the weights, whose classifier tells the number of labels where the file does not.

    Raises:
        InputError: no such file, not a BERT, or settings that BERT cannot honour.
    """
    path = config_path(directory)
    content = _read_content(path)
    problems = [
        f"{key}={content[key]!r} is not supported; bertkit loads {allowed!r} only"
        for key, allowed in _HONOURED.items()
        if content.get(key) not in (None, allowed)
    ]
    shape: dict[str, Any] = {name: content.get(name, _DEFAULTS.get(name, "???")) for name in _SHAPE}
    shape["pad_token_id"] = content.get("pad_token_id") or 0
    shape["classifier_dropout"] = content.get("classifier_dropout")
    shape["problem_type"] = content.get("problem_type")
    try:
        if problems:
            raise InputError("\n".join(problems))
        return build(BertConfig, {**shape, "labels": _labels(content, tensors or {})})
    except InputError as error:  # in the words of the file, not of a command line
        lines = [line.removeprefix("model.").replace("missing value: set ", "no ") for line in str(error).split("\n")]
        raise InputError("\n".join(f"{path}: {line}" for line in lines)) from None
    except OverflowError:
        raise InputError(f"{path}: a number in it is too large; restore the file from its source") from None


def config_path(directory: Path) -> Path:
    """Name the file that `read_config` reads."""
    google = weights.google_checkpoint(directory)
    return directory / "config.json" if google is None else tensorflow.config_file(google)


def _read_content(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict) or content.get("model_type", "bert") != "bert":
        kind = content.get("model_type") if isinstance(content, dict) else type(content).__name__
        raise InputError(f"{path}: model_type {kind!r}; bertkit loads 'bert'")
    architectures = content.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise InputError(f"{path}: architectures={architectures!r}: expected a list of names")
    return content


def _labels(content: dict[str, Any], tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of the labels in the order of their numbers; numbered ones where the configuration has none."""
    named, rows = content.get("id2label"), tensors.get("classifier.weight")
    if named:
        if not isinstance(named, dict) or sorted(map(str, named)) != sorted(map(str, range(len(named)))):
            raise InputError(f"id2label={named!r}: expected a name for each number from 0")
        names_in_order = [named[number] for number in sorted(named, key=int)]
        for name in names_in_order:
            if not isinstance(name, (str, int)) or not str(name).isprintable():
                raise InputError(f"id2label={named!r}: expected names")
        return [str(name) for name in names_in_order]
    count = content.get("num_labels")
    if count is None:
        count = 2 if rows is None or rows.dim() != 2 else len(rows)
    if type(count) is not int or not 1 <= count <= MOST_LABELS:
        raise InputError(f"num_labels={count!r}: expected a whole number from 1 to {MOST_LABELS}")
    return [f"LABEL_{number}" for number in range(count)]


def _classifier(content: dict[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Which head `classifier.*` belongs to: what `architectures` says; without it, the pooler tells."""
    by_name = {name: heads[0] for heads, name in ARCHITECTURES.items() if len(heads) == 1}
    for architecture in content.get("architectures") or ():
        if by_name.get(architecture) in names.CLASSIFIERS:
            return by_name[architecture]
    return "sequence" if "bert.pooler.dense.weight" in tensors else "token"


def hashes_of(directory: Path) -> dict[str, str]:
    """Hash the files of a model directory that make the model: weights, configuration and tokenizer."""
    others = ("config.json", "bert_config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json")
    folder = directory if directory.is_dir() else directory.parent  # of a prefix
    present = [folder / name for name in others if (folder / name).is_file()]
    return {path.name: sha256_file(path) for path in [*weights.weight_files(directory), *present]}


def load(
    directory: Path,
    heads: Sequence[str] | None = None,
    with_pooler: bool | None = None,
    seed: int = 0,
    labels: Sequence[str] | None = None,
    problem_type: ProblemType | None = None,
) -> tuple[BertWithHeads, LoadReport]:
    """Build the model of a directory and load its weights.

    Args:
        directory: `config.json` and weights.
        heads: the heads to build; None for those that the file holds.
        with_pooler: None for what the file holds, or what the heads need.
        seed: of the initialisation of what is new.
        labels: of a sequence or token head; None for those of the file. The rows of a head of the same labels are put
            into their order; a head of other labels is left out and made anew.
        problem_type: goes with `labels`.

    Raises:
        InputError: a tensor without a place, a parameter without a tensor, or another shape; all of them are listed.
    """
    tensors, skipped = weights.read_weights(directory)
    config = read_config(directory, tensors)
    held = names.from_hugging_face(tensors, _classifier(_read_content(config_path(directory)), tensors))
    if heads is None:
        heads = [head for head in HEADS if any(name.startswith(f"heads.{head}.") for name in held.values())]
    if with_pooler is None:
        pooler_held = any(name.startswith("bert.pooler.") for name in held.values())
        with_pooler = pooler_held or bool(set(heads) & set(POOLED_HEADS))
    held_layers = len({name for name in tensors if name.endswith(".attention.self.query.weight")})
    if config.num_hidden_layers > 2 * held_layers + 8:  # said before so many are made
        raise InputError(
            f"{directory}: num_hidden_layers={config.num_hidden_layers}, but the weights are of {held_layers} layers; "
            "restore the directory from its source"
        )
    by_name = {ours: tensors[theirs] for theirs, ours in held.items()}
    needs_pooler = any(name.startswith(tuple(f"heads.{head}." for head in POOLED_HEADS)) for name in by_name)
    if labels is not None:
        for theirs, name in held.items():
            if not name.startswith(("heads.sequence.", "heads.token.")) or name.split(".")[1] not in heads:
                continue
            kinds = {kind or _problem_type_of(labels) for kind in (config.problem_type, problem_type)}
            if set(config.labels) == set(labels) and len(kinds) == 1:
                by_name[name] = by_name[name][[config.labels.index(label) for label in labels]]
            else:
                del by_name[name]
                skipped[theirs] = f"of a head of other labels: {', '.join(config.labels[:MAX_LISTED])}"
        config = dataclasses.replace(config, labels=tuple(labels), problem_type=problem_type)
    with torch.device("meta"):
        model = BertWithHeads(config, heads, with_pooler)
    parameters = dict(model.named_parameters())
    problems, new = [], []
    for name, parameter in parameters.items():
        may_be_new = name.startswith("heads.") or (name.startswith("bert.pooler.") and not needs_pooler)
        if name in by_name:
            if by_name[name].shape != parameter.shape:
                problems.append(
                    f"{names.to_hugging_face(name)}: shape {tuple(by_name[name].shape)}, expected {tuple(parameter.shape)}"
                )
        elif may_be_new and not _same_part(name, by_name):
            new.append(name)
        else:
            problems.append(f"{names.to_hugging_face(name)}: missing")
    for theirs in tensors:
        ours = held.get(theirs)
        if ours in parameters:
            continue
        if ours is not None and ours.startswith(("heads.", "bert.pooler.")):
            skipped[theirs] = "of a head that was not asked for"
        else:
            problems.append(f"{theirs}: has no place in this model")
    problems += weights.check_values(tensors)
    if problems:
        listed = "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise InputError(
            f"{directory}: {len(problems)} weights do not fit {config_path(directory).name}: {listed}; restore the directory from its source"
        )
    model.to_empty(device="cpu")
    parameters = dict(model.named_parameters())
    if new:
        init_weights(model, config.initializer_range, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for name, parameter in parameters.items():
            if name in by_name:
                parameter.copy_(by_name[name])
    return model, LoadReport(sorted(set(parameters) - set(new)), skipped, new)


def _problem_type_of(labels: Sequence[str]) -> ProblemType:
    """What a sequence head predicts where its configuration does not say."""
    return "regression" if len(labels) == 1 else "single_label_classification"


def _same_part(name: str, present: dict[str, Tensor]) -> bool:
    """Whether the file holds another tensor of the same head, so that this one is missing rather than new."""
    part = ".".join(name.split(".")[:2]) + "."
    return any(other.startswith(part) for other in present)


def tensors_of(model: BertWithHeads) -> dict[str, Tensor]:
    """Give the weights under the names of the `transformers` class with the same heads, tied ones once.

    A pooler is left out where that class has none.
    """
    architecture = architecture_of(model)
    prefix = "bert." if architecture == "BertModel" else ""
    return {
        names.to_hugging_face(name).removeprefix(prefix): tensor.detach()
        for name, tensor in model.state_dict().items()
        if not (architecture in _WITHOUT_POOLER and name.startswith("bert.pooler."))
    }


def summary(report: LoadReport) -> str:
    """Say in one line what a load did."""
    parts: list[Any] = [f"{len(report.loaded)} tensors loaded"]
    if report.skipped:
        kinds = Counter(report.skipped.values())
        parts += [f"{number} left out ({kind})" for kind, number in sorted(kinds.items())]
    if report.new:
        heads = sorted({name.split(".")[1] for name in report.new})
        parts.append(f"{len(report.new)} newly initialised ({', '.join(heads)})")
    return ", ".join(parts)
