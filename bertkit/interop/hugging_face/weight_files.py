"""The weight files of Hugging Face: find them in a directory, and read them without running code from them."""

import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bertkit.base.errors import InputError
from bertkit.base.memory import require_memory
from bertkit.base.tensor_files import read_tensors
from bertkit.base.text_files import read_json
from bertkit.interop.hugging_face.architecture import StoredTensors

_FILES = ("model.safetensors", "pytorch_model.bin")  # whole, or in shards with an index beside them
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
MAX_SHARED = 4  # how often the numbers in a file may be shared by tensors; tied weights are there twice


@dataclass(frozen=True)
class HuggingFaceFiles:
    """The files of a model directory in a format of Hugging Face."""

    folder: Path

    @property
    def config(self) -> Path:
        """The path of the configuration."""
        return self.folder / "config.json"

    def weights(self) -> list[Path]:
        """List the weight files: one, or the shards in an index."""
        for name in _FILES:
            if (self.folder / name).is_file():
                return [self.folder / name]
            index = _index(self.folder, name)
            if index.is_file():
                return _shards(index)
        missing = "no model.safetensors or pytorch_model.bin, and no TensorFlow checkpoint"
        raise InputError(f"{self.folder}: {missing}; copy the model's weights there, or choose another model_dir=")

    def read(self) -> StoredTensors:
        """Read every tensor, by its name in the file; raises InputError if there are none, or a file is damaged."""
        tensors: dict[str, Tensor] = {}
        for path in self.weights():
            read = read_tensors(path) if path.suffix == ".safetensors" else _read_pickled(path)
            twice = sorted(set(read) & set(tensors))
            if twice:
                raise InputError(f"{path}: {twice[0]} is in another shard too; copy the whole directory again")
            tensors |= read
        return StoredTensors(tensors)


def has_weights(directory: Path) -> bool:
    """Whether a directory has weights in a format of Hugging Face."""
    return any((directory / name).is_file() or _index(directory, name).is_file() for name in _FILES)


def _index(directory: Path, name: str) -> Path:
    return directory / f"{name}.index.json"


def _shards(index: Path) -> list[Path]:
    match read_json(index):
        case {"weight_map": dict(weight_map)} if weight_map:
            shards = sorted(set(map(str, weight_map.values())))
        case _:
            raise InputError(f"{index}: no weight_map; copy the whole directory again")
    expected = Path(index.name.removesuffix(".index.json")).suffix
    if any(Path(shard).name != shard for shard in shards):
        raise InputError(f"{index}: names a file outside of its directory")
    if any(Path(shard).suffix != expected for shard in shards):
        raise InputError(f"{index}: names {shards[0]}, expected files that end in {expected}")
    missing = [shard for shard in shards if not index.with_name(shard).is_file()]
    if missing:
        raise InputError(f"{index}: {', '.join(missing)} missing; copy the whole directory")
    return [index.with_name(shard) for shard in shards]


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """Read a file of `torch.save` that contains only tensors; code in the file is never run.

    A tensor may repeat a few stored numbers without end, and a zip archive may be compressed; `torch.save` does neither.
    """
    path.open("rb").close()
    most = MAX_SHARED * path.stat().st_size
    require_memory(str(path), path.stat().st_size, "take a smaller model")
    try:
        if zipfile.is_zipfile(path) and sum(entry.file_size for entry in zipfile.ZipFile(path).infolist()) > most:
            raise zipfile.BadZipFile
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or malicious file can raise any error
        refused = re.search(r"Unsupported (?:global|class|operand)[^.]*?(?:GLOBAL )?([\w.]+)", str(error))
        reason = f"it needs {refused[1]}" if refused else type(error).__name__
        raise InputError(
            f"{path}: damaged, or contains more than weights ({reason}); no code was run: use a copy with tensors only, "
            "preferably in safetensors"
        ) from None
    is_good = isinstance(content, dict) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_meta
        for name, tensor in content.items()
    )
    if not is_good or sum(tensor.nbytes for tensor in content.values()) > most:
        raise InputError(f"{path}: expected weights by name, each stored in full; save the model's state_dict() to it")
    return dict(content)


def unfit_values(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return an error line for each tensor that cannot be a float32 weight: unsupported dtypes, values that are not finite."""
    problems = []
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            problems.append(f"{name}: {_name(tensor.dtype)}, expected {', '.join(map(_name, _DTYPES))}")
        elif not bool(torch.isfinite(tensor).all()):
            count = int((~torch.isfinite(tensor)).sum())
            problems.append(f"{name}: {count} of {tensor.numel()} values are not finite")
        elif tensor.dtype == torch.float64 and not torch.equal(tensor.float().double(), tensor):
            problems.append(f"{name}: float64 values that float32 cannot represent; convert the file to float32")
    return problems


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
