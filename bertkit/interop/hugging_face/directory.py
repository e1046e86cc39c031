"""Read and write directories of Hugging Face, without importing `transformers`.

Weights may be old: every tensor is read under its present full name, or left out by a named rule.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from bertkit.base.errors import InputError, listed
from bertkit.base.files import building_dir, read_tensors, write_tensors
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.hugging_face.config_json import (
    PAIR_TYPE,
    RELATIVE_KEY,
    architecture_of,
    config_json,
    read_object,
    require_bert,
)
from bertkit.interop.hugging_face.names import full_name, to_hugging_face
from bertkit.interop.padded import PaddedBert
from bertkit.model.heads import BertWithHeads

WITHOUT_POOLER = ("BertForMaskedLM", "BertLMHeadModel", "BertForTokenClassification", "BertForQuestionAnswering")
_FILES = ("model.safetensors", "pytorch_model.bin")  # whole, or in shards with an index beside them
_TIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_TIES |= {f"decoder.{tied}": f"decoder.{original}" for tied, original in _TIES.items()}
_DISTANCES, _PLACES = ".attention.self.distance_embedding.weight", "bert.embeddings.position_embeddings.weight"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_BUFFERS = tuple(
    f"{part}bert.embeddings.{name}_ids" for part in ("", "decoder.") for name in ("position", "token_type")
)


def export_model(model: PaddedBert | BertWithHeads, tokenizer: Tokenizer, output_dir: str | Path) -> Path:
    """Write a Hugging Face directory of the class with the model's heads, without comparing it; replace an earlier export.

    Raises:
        InputError: the directory holds something else, the sizes of vocabulary and embeddings differ, or a weight is not
            finite.
    """
    require_bert(packed(model).config, "the model")
    final = Path(output_dir)
    if final.exists() and not final.is_dir():
        raise InputError(f"output_dir={final} is a file; choose a directory")
    if final.exists() and any(final.iterdir()):
        ours = {"model.safetensors", "README.md", "parity.json", *text_files(model, tokenizer)}
        others = sorted(path.name for path in final.iterdir() if path.name not in ours)
        if read_object(final / "config.json", is_optional=True).get("architectures") != [
            architecture_of(packed(model))
        ]:
            others.append("a model of another class")
        if others:
            raise InputError(f"output_dir={final} holds something else ({', '.join(others[:3])}); choose another one")
    with building_dir(final.resolve()) as partial:
        write_model(model, tokenizer, partial)
    return final


def write_model(
    model: PaddedBert | BertWithHeads,
    tokenizer: Tokenizer,
    directory: Path,
    more_files: Mapping[str, str] | None = None,
) -> None:
    """Write weights, configuration and tokenizer into an existing directory."""
    inner = packed(model)
    if tokenizer.vocab_size != inner.config.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model {inner.config.vocab_size}; they do not belong "
            "together"
        )
    tensors = tensors_of(inner)
    problems = unfit_values(tensors)
    if problems:
        raise InputError(f"the model cannot be written: {listed(problems)}")
    for name, content in {**text_files(inner, tokenizer), **(more_files or {})}.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(content, encoding="utf-8")
    write_tensors(directory / "model.safetensors", tensors)


def text_files(model: PaddedBert | BertWithHeads, tokenizer: Tokenizer) -> dict[str, str]:
    """Return configuration and tokenizer as files, by name."""
    inner = packed(model)
    config = config_json(inner.config, architecture_of(inner), next(inner.parameters()).dtype)
    return {"config.json": config, **tokenizer.files(inner.config.max_position_embeddings)}


def tensors_of(model: BertWithHeads) -> dict[str, Tensor]:
    """Return the weights under the names of the `transformers` class with the same heads, tied weights once.

    A pooler is left out if that class has none.
    """
    architecture, decoder = architecture_of(model), model.config.decoder
    if decoder is not None and decoder.kind == "bert":
        return _tensors_of_pair(model)
    prefix = "bert." if architecture == "BertModel" else ""
    return {
        to_hugging_face(name).removeprefix(prefix): tensor.detach()
        for name, tensor in model.named_parameters()
        if not (architecture in WITHOUT_POOLER and name.startswith("bert.pooler."))
    }


def _tensors_of_pair(model: BertWithHeads) -> dict[str, Tensor]:
    """Return all weights of an encoder-decoder, shared ones twice; `transformers` expects a pooler, which is not used."""
    size = model.config.hidden_size
    pooler = {"encoder.pooler.dense.weight": (size, size), "encoder.pooler.dense.bias": (size,)}
    like = next(model.parameters())
    tensors = {name: like.new_zeros(shape) for name, shape in pooler.items()}
    alone = dict(model.named_parameters())
    for name, tensor in model.named_parameters(remove_duplicate=False):
        theirs = re.sub(r"^bert\.", "encoder.", to_hugging_face(name))
        tensors[theirs] = (
            tensor.detach() if name in alone else tensor.detach().clone()
        )  # a file cannot hold shared memory
    return tensors


def packed(model: PaddedBert | BertWithHeads) -> BertWithHeads:
    """Return the packed model inside a padded one."""
    return model.model if isinstance(model, PaddedBert) else model


def _weights_or_index(directory: Path) -> Path | None:
    """Find the file of the weights, or the index of their shards."""
    paths = (directory / f"{name}{ending}" for name in _FILES for ending in ("", ".index.json"))
    return next((path for path in paths if path.is_file()), None)


def has_weights(directory: Path) -> bool:
    """Whether a directory has weights in a format of Hugging Face."""
    return _weights_or_index(directory) is not None


def weight_files(directory: Path) -> list[Path]:
    """List the files that hold the weights: one, or the shards that an index names."""
    path = _weights_or_index(directory)
    if path is None:
        raise InputError(
            f"{directory}: no model.safetensors or pytorch_model.bin, and no TensorFlow checkpoint, in this directory"
        )
    return _shards(path) if path.suffix == ".json" else [path]


def read_weights(directory: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read all tensors under their present full names; return also the tensors that are left out, and the rule for each.

    Old names are translated: `gamma` and `beta` of LayerNorm, the prefix `module.` of data-parallel training, and encoders
    without the prefix `bert.`.

    Raises:
        InputError: no weights in the directory, or a damaged file.
    """
    renamed: dict[str, Tensor] = {}
    skipped: dict[str, str] = {}
    config = read_object(directory / "config.json", is_optional=True)
    is_pair = config.get("model_type") == PAIR_TYPE
    for name, tensor in _read_files(directory).items():
        if is_pair and name.startswith("encoder.pooler."):
            skipped[name] = "a pooler that is not used"
            continue
        full = full_name(re.sub("^encoder[.]", "bert.", name) if is_pair else name.removeprefix("module."))
        full = full.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if full in _BUFFERS:
            skipped[name] = "a buffer of old versions, not a weight"
        elif full in renamed:
            raise InputError(f"{directory}: {name} stands there twice, under two spellings; remove one")
        else:
            renamed[full] = tensor
    is_relative = config.get("position_embedding_type") == RELATIVE_KEY
    # their rows are numbered by i - j, where Shaw et al. 2018 have j - i
    for name in [name for name in renamed if is_relative and name.endswith(_DISTANCES)]:
        layer = name.removesuffix(_DISTANCES).rpartition(".")[2]
        renamed[f"bert.encoder.layers.{layer}.attention.slots.relative.key.weight"] = renamed.pop(name).flip(0)
        if renamed.pop(_PLACES, None) is not None:
            skipped[_PLACES] = "not used with relative positions"
    for tied, original in _TIES.items():
        if tied in renamed:
            tensor = renamed.pop(tied)
            if original in renamed and not torch.equal(tensor, renamed[original]):
                raise InputError(f"{directory}: {tied} differs from {original}; bertkit loads tied weights only")
            renamed.setdefault(original, tensor)
            skipped[tied] = f"tied to {original}"
    return renamed, skipped


def _read_files(directory: Path) -> dict[str, Tensor]:
    """Read all tensors under the names in the files."""
    tensors: dict[str, Tensor] = {}
    for path in weight_files(directory):
        read = read_tensors(path) if path.suffix == ".safetensors" else _read_pickled(path)
        twice = sorted(set(read) & set(tensors))
        if twice:
            raise InputError(f"{path}: {twice[0]} stands in another shard too; copy the whole directory again")
        tensors |= read
    return tensors


def _shards(index: Path) -> list[Path]:
    """List the shards in an index, which lie beside it."""
    weight_map = read_object(index).get("weight_map")
    names = sorted(set(map(str, weight_map.values()))) if isinstance(weight_map, dict) else []
    ending = Path(index.name.removesuffix(".index.json")).suffix
    wrong = [name for name in names if Path(name).name != name or Path(name).suffix != ending]
    if not names or wrong:
        shown = f"names {wrong[0]!r}" if wrong else "has no weight_map"
        raise InputError(
            f"{index}: {shown}, expected files beside it that end in {ending}; copy the whole directory again"
        )
    missing = [name for name in names if not index.with_name(name).is_file()]
    if missing:
        raise InputError(f"{index}: {', '.join(missing)} missing; copy the whole directory")
    return [index.with_name(name) for name in names]


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """Read a file of `torch.save`: tensors and plain values, never code."""
    path.open("rb").close()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file can raise anything
        refused = re.search(r"Unsupported (?:global|class|operand)[^.]*?(?:GLOBAL )?([\w.]+)", str(error))
        reason = f"it asks for {refused[1]}" if refused else type(error).__name__
        raise InputError(
            f"{path}: damaged, or holds more than weights ({reason}); none of its code ran: take a copy with tensors only, "
            "best as safetensors"
        ) from None
    is_good = isinstance(content, dict) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_meta
        for name, tensor in content.items()
    )
    if not is_good:
        raise InputError(f"{path}: expected weights by name; save the model's state_dict() to it")
    return dict(content)


def unfit_values(tensors: Mapping[str, Tensor]) -> list[str]:
    """List tensors that cannot become float32 weights: by an unknown or mixed dtype, or by values that are not finite."""
    common = Counter(tensor.dtype for tensor in tensors.values()).most_common(1)
    problems = []
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            problems.append(f"{name}: {_name(tensor.dtype)}, expected {', '.join(map(_name, _DTYPES))}")
        elif tensor.dtype != common[0][0]:
            problems.append(f"{name}: {_name(tensor.dtype)}, the others {_name(common[0][0])}")
        elif not bool(torch.isfinite(tensor).all()):
            count = int((~torch.isfinite(tensor)).sum())
            problems.append(f"{name}: {count} of {tensor.numel()} values are not finite")
        elif tensor.dtype == torch.float64 and not torch.equal(tensor.float().double(), tensor):
            problems.append(f"{name}: float64 values that float32 does not hold; convert the file to float32")
    return problems


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
