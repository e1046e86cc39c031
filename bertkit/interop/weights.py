"""The weights of a model directory, whatever their file: every tensor under today's full name, or skipped by a named rule."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from bertkit.errors import InputError
from bertkit.files import read_json
from bertkit.interop.google import bundle
from bertkit.interop.google import checkpoint as tensorflow
from bertkit.train.checkpoint import read_tensors

_TIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_BUFFERS = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")


def read_weights(directory: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read all tensors under today's full names, and list the ones skipped, with the rule.

    A TensorFlow checkpoint of Google's is read like a Hugging Face directory. Old names are translated: `gamma` and
    `beta` of LayerNorm, the `module.` prefix of data-parallel training, and an encoder saved without the `bert.` prefix.

    Raises:
        InputError: no weights in the directory, or a damaged file.
    """
    google = google_checkpoint(directory)
    if google is not None:
        return tensorflow.read_weights(google)
    tensors: dict[str, Tensor] = {}
    for path in weight_files(directory):
        read = read_tensors(path) if path.suffix == ".safetensors" else _read_pickled(path)
        twice = sorted(set(read) & set(tensors))
        if twice:
            raise InputError(f"{path}: {twice[0]} stands in another shard too; copy the whole directory again")
        tensors |= read
    _check_index(directory, tensors)
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
    path.open("rb").close()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a damaged or hostile file can raise has no end
        refused = re.search(r"Unsupported (?:global|class|operand)[^.]*?(?:GLOBAL )?([\w.]+)", str(error))
        reason = f"it asks for {refused[1]}" if refused else type(error).__name__
        raise InputError(
            f"{path}: damaged, or holds more than weights ({reason}); nothing of it was run: take a copy that holds "
            "tensors only, best as safetensors"
        ) from None
    is_good = isinstance(content, dict) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_meta
        for name, tensor in content.items()
    )
    if not is_good:
        raise InputError(f"{path}: expected weights by name; save the model's state_dict() to it")
    return dict(content)


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
            shards = sorted(set(_weight_map(index).values()))
            if any(Path(shard).name != shard or shard in ("", ".", "..") for shard in shards):
                raise InputError(f"{index}: names a file outside of its directory")
            if any(Path(shard).suffix != Path(name).suffix for shard in shards):
                raise InputError(f"{index}: names {shards[0]}, expected files that end in {Path(name).suffix}")
            missing = [shard for shard in shards if not (directory / shard).is_file()]
            if missing:
                raise InputError(f"{index}: {', '.join(missing)} missing; copy the whole directory")
            return [directory / shard for shard in shards]
    raise InputError(
        f"{directory}: no model.safetensors or pytorch_model.bin, and no TensorFlow checkpoint, in this directory"
    )


def _weight_map(index: Path) -> dict[str, str]:
    content = read_json(index)
    found = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(found, dict) or not all(isinstance(shard, str) for shard in found.values()) or not found:
        raise InputError(f"{index}: no weight_map; copy the whole directory again")
    return found


def _check_index(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse shards that do not hold what their index says."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        index = directory / f"{name}.index.json"
        if index.is_file() and not (directory / name).is_file():
            differing = sorted(set(_weight_map(index)) ^ set(tensors))
            if differing:
                raise InputError(
                    f"{index}: {differing[0]} is {'in the index' if differing[0] not in tensors else 'in a shard'} only; "
                    "copy the whole directory again"
                )
            return


def check_values(tensors: Mapping[str, Tensor]) -> list[str]:
    """List the tensors that cannot be weights in float32: of a dtype that is not read, or not the others', or not finite."""
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


def tensor_hashes(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Hash every tensor: its shape, and its values as float32."""
    hashes = {}
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().float().contiguous()
        digest = hashlib.sha256(f"{tuple(tensor.shape)} ".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
        hashes[name] = digest.hexdigest()
    return hashes
