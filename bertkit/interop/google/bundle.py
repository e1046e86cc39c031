"""TensorFlow's V2 checkpoints ("tensor bundles"), read and written without TensorFlow.

A checkpoint consists of a table `PREFIX.index` and data files `PREFIX.data-00000-of-00001`, ..., which contain only the bytes
of the tensors. The table (table.py) maps the name of each variable to a protocol buffer message with its dtype, shape, data file, offset,
size and checksum, and the key "" to a header.

The files are not trusted: every length is checked against the size of the file before anything is read or allocated.

Source: tensorflow/core/util/tensor_bundle/tensor_bundle.cc, tensorflow/core/protobuf/tensor_bundle.proto.
"""

import dataclasses
import enum
import functools
import math
import struct
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertkit.base.errors import InputError, listed, refusing
from bertkit.interop.google.files import index_file
from bertkit.interop.google.table import Reader, build_table, masked_crc32c, read_table, to_varint

# from tensorflow/core/framework/types.proto; BERT does not need the other dtypes
_DTYPES = {
    1: torch.float32, 2: torch.float64, 3: torch.int32, 9: torch.int64, 10: torch.bool, 14: torch.bfloat16,
    19: torch.float16,
}  # fmt: skip
_DTYPE_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}
_MAX_INDEX_BYTES = 64 << 20  # the index of BERT-Large with its Adam moments has 0.1 MB


class _Wire(enum.IntEnum):
    """How the value of a field is stored."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


# BundleEntryProto: dtype, shape, shard_id, offset, size, crc32c, slices
_ENTRY = {
    1: _Wire.VARINT, 2: _Wire.BYTES, 3: _Wire.VARINT, 4: _Wire.VARINT, 5: _Wire.VARINT, 6: _Wire.FIXED32, 7: _Wire.BYTES,
}  # fmt: skip


@dataclass(frozen=True)
class _Message:
    """The fields of a protocol buffer message, by number."""

    # the last value of a number, or 0 if it has none
    numbers: defaultdict[int, int] = dataclasses.field(default_factory=functools.partial(defaultdict, int))
    texts: defaultdict[int, list[bytes]] = dataclasses.field(default_factory=functools.partial(defaultdict, list))


@dataclass(frozen=True)
class _Entry:
    """The entry of a tensor in the index."""

    dtype: torch.dtype
    shape: tuple[int, ...]  # every axis has at least 1
    path: Path
    offset: int
    size: int  # in bytes
    crc32c: int  # as `masked_crc32c` computes it


def checkpoint_files(prefix: Path) -> list[Path]:
    """Return the files of a checkpoint: the index and its data files."""
    paths = sorted({entry.path for entry in read_index(prefix).values()})
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise InputError(f"{index_file(prefix)}: {listed(missing)} missing; copy the whole directory")
    return [index_file(prefix), *paths]


def read_checkpoint(prefix: Path) -> dict[str, Tensor]:
    """Read every variable, with the name and the shape that it has in TensorFlow, and check every checksum.

    The data files are memory-mapped copy-on-write: changing a tensor does not change the file. Raises InputError if the
    checkpoint is damaged, or uses a feature that bertkit lacks.
    """
    entries, maps = read_index(prefix), {}
    for path in checkpoint_files(prefix)[1:]:
        total, size = sum(entry.size for entry in entries.values() if entry.path == path), path.stat().st_size
        if total > size:
            raise InputError(f"{path}: truncated (its tensors have {total} bytes, the file {size}); copy it again")
        maps[path] = np.memmap(path, np.uint8, "c")
    return {name: _tensor(name, entry, maps[entry.path]) for name, entry in entries.items()}


def read_index(prefix: Path) -> dict[str, _Entry]:
    """Read only the index: the entry of every variable, in the order of the names."""
    path = index_file(prefix)
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected the index of a TensorFlow checkpoint")
    if path.stat().st_size > _MAX_INDEX_BYTES:
        raise InputError(f"{path}: {path.stat().st_size} bytes are too many for the index of a checkpoint")
    with (
        refusing(KeyError, lambda _: f"{path}: damaged (no header); copy it again"),
        refusing(ValueError, lambda e: f"{path}: damaged, or not an index of TensorFlow ({e}); copy it again"),
    ):
        items = dict(read_table(path.read_bytes()))
        header = _message(items.pop(b""), {1: _Wire.VARINT, 2: _Wire.VARINT})
        messages = {key.decode("utf-8"): _message(value, _ENTRY) for key, value in items.items() if key[:1] != b"\0"}
    if header.numbers[2]:
        raise InputError(f"{path}: the tensors are big-endian; save them again on a little-endian machine")
    if "_CHECKPOINTABLE_OBJECT_GRAPH" in messages:
        raise InputError(
            f"{path}: a checkpoint of TensorFlow 2 objects (tf.train.Checkpoint, Keras); bertkit reads those of "
            "tf.compat.v1.train.Saver, with google-research/bert's names"
        )
    return {name: _entry(prefix, name, fields, header.numbers[1]) for name, fields in messages.items()}


def _entry(prefix: Path, name: str, fields: _Message, num_files: int) -> _Entry:
    path = index_file(prefix)
    if fields.texts[7]:
        raise InputError(
            f"{path}: {name} is saved in {len(fields.texts[7])} slices; save it without partitioned variables"
        )
    dtype = _DTYPES.get(fields.numbers[1])
    if dtype is None:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES.values())
        raise InputError(f"{path}: {name} has TensorFlow's dtype number {fields.numbers[1]}; bertkit reads {known}")
    file, offset, size, crc32c = (fields.numbers[number] for number in (3, 4, 5, 6))
    with refusing(ValueError, lambda error: f"{path}: damaged ({name} {error}); copy it again"):
        shape = _shape(b"".join(fields.texts[2][-1:]))
        expected = math.prod(shape) * dtype.itemsize
        if size != expected:
            raise ValueError(f"has {size} bytes, but {shape} of {dtype} has {expected}")
        if file >= num_files:
            raise ValueError(f"is in data file {file} of {num_files}")
    return _Entry(dtype, shape, Path(f"{prefix}.data-{file:05d}-of-{num_files:05d}"), offset, size, crc32c)


def _shape(message: bytes) -> tuple[int, ...]:
    """Read a TensorShapeProto."""
    fields = _message(message, {2: _Wire.BYTES, 3: _Wire.VARINT})
    sizes = tuple(_message(dim, {1: _Wire.VARINT}).numbers[1] for dim in fields.texts[2])
    if fields.numbers[3] or any(size < 1 for size in sizes):
        raise ValueError("has an unknown or empty shape")
    return sizes


def _tensor(name: str, entry: _Entry, file: npt.NDArray[np.uint8]) -> Tensor:
    data = file[entry.offset : entry.offset + entry.size]
    if masked_crc32c(data) != entry.crc32c:
        raise InputError(f"{entry.path}: damaged (the checksum of {name} is wrong); copy it again")
    if data.ctypes.data % entry.dtype.itemsize:
        data = data.copy()  # torch needs aligned numbers, and the tensor before may have an odd number of bytes
    return torch.from_numpy(data).view(entry.dtype).reshape(entry.shape)


def _message(data: bytes, wire_types: Mapping[int, _Wire]) -> _Message:
    """Read the fields of a protocol buffer message; those with a number in `wire_types` must have this type."""
    fields, rest = _Message(), Reader(data)
    while rest.at < len(data):
        tag = rest.varint()
        number, wire_type = tag >> 3, tag & 7
        match wire_type:
            case _Wire.VARINT:
                fields.numbers[number] = rest.varint()
            case _Wire.BYTES:
                fields.texts[number].append(rest.take(rest.varint()))
            case _Wire.FIXED32:
                fields.numbers[number] = rest.integer(4)
            case _Wire.FIXED64:
                fields.numbers[number] = rest.integer(8)
            case _:
                raise ValueError(f"no field of a message has wire type {wire_type}")
        if wire_types.get(number, wire_type) != wire_type:
            raise ValueError(f"field {number} of a message has wire type {wire_type}")
    return fields


def write_checkpoint(prefix: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write variables as `PREFIX.index` and one data file.

    The same tensors give the same bytes; up to some thousand variables, TensorFlow writes the same bytes, too. Raises
    InputError if TensorFlow has no such dtype.
    """
    unknown = [f"{name} ({tensor.dtype})" for name, tensor in tensors.items() if tensor.dtype not in _DTYPE_NUMBERS]
    if unknown:
        raise InputError(f"{prefix}: TensorFlow has no dtype for {', '.join(unknown)}; convert these tensors first")
    items = [(b"", field(1, 1) + field(3, field(1, 1)))]  # one data file; version 1 of the format
    offset = 0
    with Path(f"{prefix}.data-00000-of-00001").open("wb") as file:
        for name in sorted(tensors, key=str.encode):
            tensor = tensors[name].detach().cpu().contiguous()
            data = tensor.reshape(-1).view(torch.uint8).numpy()
            file.write(data.data)
            shape = b"".join(field(2, field(1, size)) for size in tensor.shape)
            message = field(1, _DTYPE_NUMBERS[tensor.dtype]) + field(2, shape)
            message += b"".join(field(number, value) for number, value in ((4, offset), (5, len(data))) if value)
            message += bytes([6 << 3 | _Wire.FIXED32]) + struct.pack("<I", masked_crc32c(data))
            items.append((name.encode(), message))
            offset += len(data)
    index_file(prefix).write_bytes(build_table(items))


def field(number: int, value: int | bytes) -> bytes:
    """Encode a field of a protocol buffer message: a number, or bytes."""
    if isinstance(value, int):
        return bytes([number << 3 | _Wire.VARINT]) + to_varint(value)
    return bytes([number << 3 | _Wire.BYTES]) + to_varint(len(value)) + value
