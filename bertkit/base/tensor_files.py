"""Files of tensors in the safetensors format, with a checksum of their content."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bertkit.base.errors import StorageError, refusing
from bertkit.base.files import naming
from bertkit.base.memory import require_memory

if TYPE_CHECKING:
    from torch import Tensor

CHECKSUM = "bertkit_crc32"  # in the header of safetensors files; other programs that write such a file leave it out
_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file, and check the CRC-32 of its tensors if `write_tensors` has written it.

    Raises InputError if the file is damaged, or larger than the memory; StorageError if the tensors have changed since.
    """
    import safetensors

    path.open("rb").close()  # raises the right error for an unreadable file, which safetensors reports as missing
    require_memory(str(path), path.stat().st_size, "take a smaller model")
    damaged = refusing(safetensors.SafetensorError, lambda error: f"{path}: damaged ({error}); restore it from a copy")
    with damaged, safetensors.safe_open(path, "pt") as file:
        expected = (file.metadata() or {}).get(CHECKSUM)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if expected is not None and expected != _crc32(tensors):
        raise StorageError(f"{path}: damaged ({CHECKSUM} differs from its header); restore it from a copy")
    return tensors


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, with the CRC-32 of the tensors in its header; its bytes depend only on the tensors.

    The library would write the entries of the header's metadata in random order.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header: dict[str, object] = {"__metadata__": {"format": "pt", CHECKSUM: _crc32(tensors)}}
    names, end = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name)), 0  # keeps numbers aligned
    for name in names:
        tensor, start, end = tensors[name], end, end + tensors[name].nbytes
        dtype = _DTYPES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with naming(path), path.open("wb") as file:
        file.writelines([len(text).to_bytes(8, "little"), text, *(_content(tensors[name]) for name in names)])


def is_finite(tensor: Tensor) -> bool:
    """Return whether a tensor has no NaN and no infinity."""
    # the minimum and maximum are enough, and 25 times faster than a test of every number
    return tensor.numel() == 0 or all(math.isfinite(extreme) for extreme in tensor.aminmax())


def _crc32(tensors: Mapping[str, Tensor]) -> str:
    crc = 0
    for name in sorted(tensors):
        crc = zlib.crc32(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}".encode(), crc)
        crc = zlib.crc32(_content(tensors[name]), crc)
    return f"{crc:08x}"


def _content(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU, without a copy."""
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy().data
