"""Read and write Hugging Face model directories; the files only, without importing `transformers`.

Loading is strict: every tensor of the file is loaded or skipped by a named rule, every parameter of the model is loaded
or newly made by a named rule, and anything else is an error that lists the names.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertkit.config import build
from bertkit.errors import InputError, StorageError
from bertkit.files import read_json, sha256_file, to_json
from bertkit.interop import names, tensorflow
from bertkit.model.bert import init_weights
from bertkit.model.config import BertConfig
from bertkit.model.heads import BertWithHeads
from bertkit.train.checkpoint import read_tensors

ARCHITECTURES = {
    ("masked_lm", "next_sentence"): "BertForPreTraining",
    ("masked_lm",): "BertForMaskedLM",
    (): "BertModel",
}
_SHAPE = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_dropout_prob",
    "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size", "initializer_range", "layer_norm_eps",
    "vocab_size",
)  # fmt: skip
WEIGHT_FILES = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
)  # fmt: skip
_DEFAULTS = {"initializer_range": 0.02, "layer_norm_eps": 1e-12, "type_vocab_size": 2}


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
        InputError: bertkit writes none with these heads.
    """
    heads = tuple(sorted(model.heads))
    if heads not in ARCHITECTURES:
        raise InputError(
            f"heads {', '.join(heads)}: cannot be written by themselves; load the model with masked_lm too"
        )
    return ARCHITECTURES[heads]


def config_json(config: BertConfig, architecture: str) -> str:
    """Write `config.json`, readable by `transformers` 4 and 5."""
    content = {
        **asdict(config),
        "architectures": [architecture],
        "dtype": "float32",
        "hidden_act": "gelu",
        "model_type": "bert",
        "position_embedding_type": "absolute",
        "torch_dtype": "float32",
    }
    return to_json(dict(sorted(content.items())))


def read_config(directory: Path) -> BertConfig:
    """Read `config.json`, or Google's `bert_config.json` beside a TensorFlow checkpoint.

    Raises:
        InputError: no such file, not a BERT, or settings that BERT cannot honour.
    """
    path = config_path(directory)
    content = read_json(path)
    if not isinstance(content, dict) or content.get("model_type", "bert") != "bert":
        kind = content.get("model_type") if isinstance(content, dict) else type(content).__name__
        raise InputError(f"{path}: model_type {kind!r}; bertkit loads 'bert'")
    expected = {
        "hidden_act": ("gelu",), "position_embedding_type": ("absolute",), "is_decoder": (False,),
        "add_cross_attention": (False,), "tie_word_embeddings": (True,),
    }  # fmt: skip
    for key, allowed in expected.items():
        if key in content and content[key] not in allowed:
            raise InputError(f"{path}: {key}={content[key]!r} is not supported; bertkit loads {allowed[0]!r} only")
    shape = {name: content.get(name, _DEFAULTS.get(name, "???")) for name in _SHAPE}
    shape["pad_token_id"] = content.get("pad_token_id") or 0
    try:
        return build(BertConfig, shape)
    except InputError as error:
        raise InputError("\n".join(f"{path}: {line}" for line in str(error).split("\n"))) from None


def config_path(directory: Path) -> Path:
    """Name the file that `read_config` reads."""
    google = google_checkpoint(directory)
    return directory / "config.json" if google is None else tensorflow.config_file(google)


def read_weights(directory: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read all tensors under today's full names, and list the ones skipped, with the rule.

    A TensorFlow checkpoint of Google's is read like a Hugging Face directory. Old names are translated: `gamma` and `beta` of LayerNorm, the `module.` prefix of data-parallel training, and an
    encoder saved without the `bert.` prefix.

    Raises:
        InputError: no weights in the directory.
        StorageError: a damaged file.
    """
    google = google_checkpoint(directory)
    if google is not None:
        return tensorflow.read_weights(google)
    tensors: dict[str, Tensor] = {}
    for path in _weight_files(directory):
        if path.suffix == ".safetensors":
            tensors |= read_tensors(path)
        else:
            tensors |= _read_pickled(path)
    renamed: dict[str, Tensor] = {}
    skipped: dict[str, str] = {}
    for name, tensor in tensors.items():
        full = name.removeprefix("module.")
        full = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", full)
        full = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", full)
        if not full.startswith(("bert.", "cls.", "classifier.", "qa_outputs.")):
            full = f"bert.{full}"
        if full == "bert.embeddings.position_ids":
            skipped[name] = "a buffer of old versions, not a weight"
        else:
            renamed[full] = tensor
    ties = {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    for tied, original in ties.items():
        if tied in renamed:
            if original in renamed and not torch.equal(renamed[tied], renamed[original]):
                raise InputError(f"{directory}: {tied} differs from {original}; bertkit loads tied weights only")
            renamed.setdefault(original, renamed[tied])
            del renamed[tied]
            skipped[tied] = f"tied to {original}"
    return renamed, skipped


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """Read a file of `torch.save`; nothing but tensors and plain values, never code."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).strip().split("\n")[0]
        raise StorageError(f"{path}: damaged, or holds more than weights ({reason}); take a safe copy of it") from None
    if not isinstance(content, dict) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise StorageError(f"{path}: expected weights by name; save the model's state_dict() to it")
    return content


def google_checkpoint(directory: Path) -> Path | None:
    """Find the TensorFlow checkpoint of a directory that has no weights of Hugging Face, or at a prefix.

    Raises:
        InputError: there are several, or one that bertkit cannot read.
    """
    if any((directory / name).is_file() for name in WEIGHT_FILES):
        return None
    return tensorflow.find_checkpoint(directory)


def _weight_files(directory: Path) -> list[Path]:
    google = google_checkpoint(directory)
    if google is not None:
        return tensorflow.checkpoint_files(google)
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (directory / name).is_file():
            return [directory / name]
        index = directory / f"{name}.index.json"
        if index.is_file():
            try:
                shards = sorted(map(str, set(read_json(index)["weight_map"].values())))
            except (AttributeError, KeyError, TypeError):
                raise InputError(f"{index}: no weight_map; copy the whole directory again") from None
            if any(Path(shard).name != shard for shard in shards):
                raise InputError(f"{index}: names a file outside of its directory")
            missing = [shard for shard in shards if not (directory / shard).is_file()]
            if missing:
                raise InputError(f"{index}: {', '.join(missing)} missing; copy the whole directory")
            return [directory / shard for shard in shards]
    raise InputError(
        f"{directory}: no model.safetensors or pytorch_model.bin, and no TensorFlow checkpoint, in this directory"
    )


def hashes_of(directory: Path) -> dict[str, str]:
    """Hash the files of a model directory that make the model: weights, configuration and tokenizer."""
    others = ("config.json", "bert_config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json")
    folder = directory if directory.is_dir() else directory.parent  # of a prefix
    present = [folder / name for name in others if (folder / name).is_file()]
    return {path.name: sha256_file(path) for path in [*_weight_files(directory), *present]}


def load(
    directory: Path, heads: Sequence[str] | None = None, with_pooler: bool | None = None, seed: int = 0
) -> tuple[BertWithHeads, LoadReport]:
    """Build the model of a directory and load its weights.

    Args:
        directory: `config.json` and weights.
        heads: the heads to build; None for those that the file holds.
        with_pooler: None for what the file holds, or what the heads need.
        seed: of the initialisation of what is new.

    Raises:
        InputError: a tensor without a place, a parameter without a tensor, or another shape; all of them are listed.
    """
    config = read_config(directory)
    tensors, skipped = read_weights(directory)
    held = names.from_hugging_face(tensors)
    if heads is None:
        heads = [head for head in ("masked_lm", "next_sentence") if any(f".{head}." in n for n in held.values())]
    pooler_held = any(name.startswith("bert.pooler.") for name in held.values())
    if with_pooler is None:
        with_pooler = "next_sentence" in heads or pooler_held
    with torch.device("meta"):
        model = BertWithHeads(config, heads, with_pooler)
    model.to_empty(device="cpu")
    parameters = dict(model.named_parameters())
    problems, new = [], []
    by_name = {ours: tensors[theirs] for theirs, ours in held.items()}
    for name, parameter in parameters.items():
        if name in by_name:
            if by_name[name].shape != parameter.shape:
                problems.append(
                    f"{names.to_hugging_face(name)}: shape {tuple(by_name[name].shape)}, expected {tuple(parameter.shape)}"
                )
        elif name.startswith(("heads.", "bert.pooler.")) and not _same_part(name, by_name):
            new.append(name)
        else:
            problems.append(f"{names.to_hugging_face(name)}: missing")
    for theirs in tensors:
        ours = held.get(theirs)
        if ours in parameters:
            continue
        if ours is not None and ours.startswith(("heads.", "bert.pooler.")):
            skipped[theirs] = "of a head that was not asked for"
        elif theirs.startswith(("classifier.", "qa_outputs.")):
            skipped[theirs] = "of a task head"
        else:
            problems.append(f"{theirs}: has no place in this model")
    if problems:
        listed = "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise InputError(f"{directory}: {len(problems)} weights do not fit {config_path(directory).name}: {listed}")
    if new:
        init_weights(model, config.initializer_range, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for name, parameter in parameters.items():
            if name in by_name:
                parameter.copy_(by_name[name])
    return model, LoadReport(sorted(set(parameters) - set(new)), skipped, new)


def _same_part(name: str, present: dict[str, Tensor]) -> bool:
    """Whether the file holds another tensor of the same head, so that this one is missing rather than new."""
    part = ".".join(name.split(".")[:2]) + "."
    return any(other.startswith(part) for other in present)


def tensors_of(model: BertWithHeads) -> dict[str, Tensor]:
    """Give the weights under the names of the `transformers` class with the same heads, tied ones once.

    `BertForMaskedLM` has no pooler, so a pooler beside the masked LM head alone is left out.
    """
    architecture = architecture_of(model)
    prefix = "bert." if architecture == "BertModel" else ""
    return {
        names.to_hugging_face(name).removeprefix(prefix): tensor.detach()
        for name, tensor in model.state_dict().items()
        if not (architecture == "BertForMaskedLM" and name.startswith("bert.pooler."))
    }


def summary(report: LoadReport) -> str:
    """Say in one line what a load did."""
    parts: list[Any] = [f"{len(report.loaded)} tensors loaded"]
    if report.skipped:
        parts.append(f"{len(report.skipped)} left out ({', '.join(sorted(set(report.skipped.values())))})")
    if report.new:
        heads = sorted({name.split(".")[1] for name in report.new})
        parts.append(f"{len(report.new)} newly initialised ({', '.join(heads)})")
    return ", ".join(parts)
