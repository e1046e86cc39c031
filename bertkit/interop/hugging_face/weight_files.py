"""Read the weight files of Hugging Face, without running code from them."""

import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from bertkit.base.errors import InputError, refusing
from bertkit.base.memory import require_memory
from bertkit.base.tensor_files import is_finite, read_tensors
from bertkit.interop.hugging_face.architecture import StoredTensors
from bertkit.interop.hugging_face.weight_paths import weight_paths

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
MAX_SHARED = 4  # how often the numbers in a file may be shared by tensors; tied weights are there twice


def read_weights(folder: Path) -> StoredTensors:
    """Read every tensor, by its name in the file; raises InputError if there are none, or a file is damaged."""
    tensors: dict[str, Tensor] = {}
    for path in weight_paths(folder):
        read = read_tensors(path) if path.suffix == ".safetensors" else _read_pickled(path)
        twice = sorted(set(read) & set(tensors))
        if twice:
            raise InputError(f"{path}: {twice[0]} is in another shard too; copy the whole directory again")
        tensors |= read
    return StoredTensors(tensors)


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """Read a file of `torch.save` that contains only tensors; code in the file is never run.

    A tensor may repeat a few stored numbers without end, and a zip archive may be compressed; `torch.save` does neither.
    """
    path.open("rb").close()
    most = MAX_SHARED * path.stat().st_size
    require_memory(str(path), path.stat().st_size, "take a smaller model")
    with refusing(Exception, lambda error: _damaged(path, error)):  # a damaged or malicious file can raise any error
        if zipfile.is_zipfile(path) and sum(entry.file_size for entry in zipfile.ZipFile(path).infolist()) > most:
            raise zipfile.BadZipFile
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    is_good = isinstance(content, dict) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_meta
        for name, tensor in content.items()
    )
    if not is_good or sum(tensor.nbytes for tensor in content.values()) > most:
        raise InputError(f"{path}: expected weights by name, each stored in full; save the model's state_dict() to it")
    return dict(content)


def _damaged(path: Path, error: Exception) -> str:
    """Return the message about a file that `torch.load` refuses."""
    refused = re.search(r"Unsupported (?:global|class|operand)[^.]*?(?:GLOBAL )?([\w.]+)", str(error))
    reason = f"it needs {refused[1]}" if refused else type(error).__name__
    return (
        f"{path}: damaged, or contains more than weights ({reason}); no code was run: use a copy with tensors only, "
        "preferably in safetensors"
    )


def unfit_values(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return an error line for each tensor that cannot be a float32 weight: unsupported dtypes, values that are not finite."""
    problems = []
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            problems.append(f"{name}: {_name(tensor.dtype)}, expected {', '.join(map(_name, _DTYPES))}")
        elif not is_finite(tensor):
            count = int((~torch.isfinite(tensor)).sum())
            problems.append(f"{name}: {count} of {tensor.numel()} values are not finite")
        elif tensor.dtype == torch.float64 and not torch.equal(tensor.float().double(), tensor):
            problems.append(f"{name}: float64 values that float32 cannot represent; convert the file to float32")
    return problems


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
