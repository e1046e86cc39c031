"""The weights of a model directory, whatever their file: every tensor under today's full name, or skipped by a named rule."""

from __future__ import annotations

import hashlib
import pickle
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from bertkit.errors import InputError
from bertkit.files import read_json
from bertkit.interop import bundle, tensorflow
from bertkit.train.checkpoint import read_tensors

_TIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_BUFFERS = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")


def read_weights(directory: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read all tensors under today's full names, and list the ones skipped, with the rule.

    A TensorFlow checkpoint of Google's is read like a Hugging Face directory. Old names are translated: `gamma` and `beta` of LayerNorm, the `module.` prefix of data-parallel training, and an
    encoder saved without the `bert.` prefix.

    Raises:
        InputError: no weights in the directory, or a damaged file.
    """
    google = google_checkpoint(directory)
    if google is not None:
        return tensorflow.read_weights(google)
    tensors: dict[str, Tensor] = {}
    for path in weight_files(directory):
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
        if full in _BUFFERS:
            skipped[name] = "a buffer of old versions, not a weight"
        elif full in renamed:
            raise InputError(f"{directory}: {name} stands there twice, under two spellings; remove one")
        else:
            renamed[full] = tensor
    for tied, original in _TIES.items():
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
        raise InputError(f"{path}: damaged, or holds more than weights ({reason}); take a safe copy of it") from None
    if not isinstance(content, dict) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise InputError(f"{path}: expected weights by name; save the model's state_dict() to it")
    return content


def google_checkpoint(directory: Path) -> Path | None:
    """Find the TensorFlow checkpoint of a directory that has no weights of Hugging Face, or at a prefix.

    Raises:
        InputError: there are several, or one that bertkit cannot read.
    """
    if any((directory / name).is_file() for name in _FILES):
        return None
    return tensorflow.find_checkpoint(directory)


def weight_files(directory: Path) -> list[Path]:
    """List the files that hold the weights: one, or the shards that an index names.

    Raises:
        InputError: there are none, one is missing, or the index names a file outside of the directory.
    """
    google = google_checkpoint(directory)
    if google is not None:
        return bundle.checkpoint_files(google)
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


def check_values(tensors: Mapping[str, Tensor]) -> list[str]:
    """List the tensors that cannot be weights: not floating, of another dtype than the others, or not finite."""
    common = Counter(tensor.dtype for tensor in tensors.values()).most_common(1)
    problems = []
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            problems.append(f"{name}: {_name(tensor.dtype)}, expected floating-point numbers")
        elif tensor.dtype != common[0][0]:
            problems.append(f"{name}: {_name(tensor.dtype)}, the others {_name(common[0][0])}")
        elif not bool(torch.isfinite(tensor).all()):
            count = int((~torch.isfinite(tensor)).sum())
            problems.append(f"{name}: {count} of {tensor.numel()} values are not finite")
    return problems


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def tensor_hashes(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Hash every tensor: shape and values, as float32 unless wider, so that a file and what was loaded from it agree."""
    hashes = {}
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        tensor = (tensor if tensor.dtype == torch.float64 else tensor.float()).contiguous()
        digest = hashlib.sha256(f"{tuple(tensor.shape)} ".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
        hashes[name] = digest.hexdigest()
    return hashes
