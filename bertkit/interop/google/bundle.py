"""TensorFlow's V2 checkpoints ("tensor bundles"), read and written without TensorFlow.

A checkpoint is a table `PREFIX.index` and data files `PREFIX.data-00000-of-00001`, ..., which hold the bytes of the tensors.
The table maps the name of each variable to an entry, a protocol buffer message: dtype, shape, data file, offset, size and
checksum; and the key "" to a header. The files are not trusted: every length and checksum is verified.

Source: tensorflow/core/util/tensor_bundle/tensor_bundle.cc, tensorflow/core/protobuf/tensor_bundle.proto.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertkit.base.errors import InputError, listed
from bertkit.interop.google.table import build_table, masked_crc32c, read_table, read_varint, take, to_varint

# from tensorflow/core/framework/types.proto, as far as a BERT needs them
_DTYPES = {
    1: torch.float32, 2: torch.float64, 3: torch.int32, 9: torch.int64, 10: torch.bool, 14: torch.bfloat16,
    19: torch.float16,
}  # fmt: skip
_DTYPE_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}
_MAX_INDEX_BYTES = 64 << 20  # BERT-Large with its Adam moments has 0.1 MB
_VARINT, _BYTES, _FIXED32 = 0, 2, 5  # wire types


@dataclass(frozen=True)
class Entry:
    """The place of a tensor's bytes."""

    dtype: torch.dtype
    shape: tuple[int, ...]  # every axis has at least 1
    file: int  # the number of the data file
    offset: int
    size: int  # in bytes
    crc32c: int  # masked


def checkpoint_files(prefix: Path) -> list[Path]:
    """List the files of a checkpoint: the index and its data files."""
    return [index_file(prefix), *_data_files(prefix, *read_index(prefix)).values()]


def index_file(prefix: Path) -> Path:
    """Name the index of a checkpoint."""
    return Path(f"{prefix}.index")


def _data_file(prefix: Path, number: int, num_files: int) -> Path:
    return Path(f"{prefix}.data-{number:05d}-of-{num_files:05d}")


def _data_files(prefix: Path, num_files: int, entries: Mapping[str, Entry]) -> dict[int, Path]:
    """Find the data files that hold a tensor, by number."""
    paths = {number: _data_file(prefix, number, num_files) for number in sorted({e.file for e in entries.values()})}
    missing = [path.name for path in paths.values() if not path.is_file()]
    if missing:
        raise InputError(f"{index_file(prefix)}: {listed(missing)} missing; copy the whole directory")
    return paths


def read_checkpoint(prefix: Path) -> dict[str, Tensor]:
    """Read every variable, under the names and in the layout of TensorFlow, and verify every checksum.

    The tensors are mapped from the data files, and copied where they are written to; the files never change.

    Raises:
        InputError: a file is damaged or missing, or the checkpoint is of a kind that bertkit does not read.
    """
    num_files, entries = read_index(prefix)
    paths = _data_files(prefix, num_files, entries)
    for number, path in paths.items():
        total, size = sum(entry.size for entry in entries.values() if entry.file == number), path.stat().st_size
        if total > size:
            raise InputError(f"{path}: truncated (its tensors have {total} bytes, the file {size}); copy it again")
    maps = {number: np.memmap(path, np.uint8, "c") for number, path in paths.items()}
    return {name: _tensor(name, entry, maps[entry.file], paths[entry.file]) for name, entry in entries.items()}


def read_index(prefix: Path) -> tuple[int, dict[str, Entry]]:
    """Read the index alone: the number of data files, and the entry of each variable, by name."""
    path = index_file(prefix)
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected the index of a TensorFlow checkpoint")
    if path.stat().st_size > _MAX_INDEX_BYTES:
        raise InputError(f"{path}: {path.stat().st_size} bytes are too many for the index of a checkpoint")
    try:
        items = dict(read_table(path.read_bytes()))
        header = _message(items.pop(b""), {1: _VARINT, 2: _VARINT})
        messages = {key.decode("utf-8"): _message(value, _ENTRY) for key, value in items.items() if key[:1] != b"\0"}
    except KeyError:
        raise InputError(f"{path}: damaged (it has no header); copy it again") from None
    except ValueError as error:
        raise InputError(f"{path}: damaged, or not an index of TensorFlow ({error}); copy it again") from None
    num_files = _last(header[1])
    if _last(header[2]):
        raise InputError(f"{path}: the tensors are big-endian; save them again on a little-endian machine")
    if "_CHECKPOINTABLE_OBJECT_GRAPH" in messages:
        raise InputError(
            f"{path}: a checkpoint of TensorFlow 2 objects (tf.train.Checkpoint, Keras); bertkit reads those of "
            "tf.compat.v1.train.Saver, with google-research/bert's names"
        )
    return num_files, {name: _entry(path, name, fields, num_files) for name, fields in messages.items()}


# BundleEntryProto: dtype, shape, shard_id, offset, size, crc32c, slices
_ENTRY = {1: _VARINT, 2: _BYTES, 3: _VARINT, 4: _VARINT, 5: _VARINT, 6: _FIXED32, 7: _BYTES}


def _entry(path: Path, name: str, fields: dict[int, list[Any]], num_files: int) -> Entry:
    if fields[7]:
        raise InputError(
            f"{path}: {name} is saved in {len(fields[7])} slices; save it again without partitioned variables"
        )
    dtype = _DTYPES.get(_last(fields[1]))
    if dtype is None:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES.values())
        raise InputError(f"{path}: {name} has TensorFlow's dtype number {_last(fields[1])}; bertkit reads {known}")
    try:
        shape = _shape(fields[2][-1] if fields[2] else b"")
    except ValueError as error:
        raise InputError(f"{path}: damaged ({name}: {error}); copy it again") from None
    entry = Entry(dtype, shape, _last(fields[3]), _last(fields[4]), _last(fields[5]), _last(fields[6]))
    if entry.size != math.prod(shape) * dtype.itemsize:
        raise InputError(
            f"{path}: damaged ({name} has {entry.size} bytes, but {shape} of {dtype} has "
            f"{math.prod(shape) * dtype.itemsize}); copy it again"
        )
    if entry.file >= num_files:
        raise InputError(f"{path}: damaged ({name} is in data file {entry.file} of {num_files}); copy it again")
    return entry


def _shape(message: bytes) -> tuple[int, ...]:
    """Read a TensorShapeProto."""
    fields = _message(message, {2: _BYTES, 3: _VARINT})
    sizes = tuple(_last(_message(dim, {1: _VARINT})[1]) for dim in fields[2])
    if _last(fields[3]) or any(size < 1 for size in sizes):
        raise ValueError("an unknown or empty shape")
    return sizes


def _tensor(name: str, entry: Entry, file: npt.NDArray[np.uint8], path: Path) -> Tensor:
    data = file[entry.offset : entry.offset + entry.size]
    if masked_crc32c(data) != entry.crc32c:
        raise InputError(f"{path}: damaged (the checksum of {name} is wrong); copy it again")
    if data.ctypes.data % entry.dtype.itemsize:
        data = data.copy()  # torch needs aligned numbers; a tensor of odd size may precede
    return torch.from_numpy(data).view(entry.dtype).reshape(entry.shape)


def _message(data: bytes, wire_types: Mapping[int, int]) -> dict[int, list[Any]]:
    """Read the fields in `wire_types` from a protocol buffer message, and skip all others."""
    fields: dict[int, list[Any]] = {number: [] for number in wire_types}
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        value: int | bytes
        if wire_type == _VARINT:
            value, at = read_varint(data, at)
        elif wire_type == _BYTES:
            size, at = read_varint(data, at)
            value, at = take(data, at, size), at + size
        elif wire_type in (1, _FIXED32):
            size = 8 if wire_type == 1 else 4
            value, at = int.from_bytes(take(data, at, size), "little"), at + size
        else:
            raise ValueError(f"no field of a message has wire type {wire_type}")
        if number in fields:
            if wire_type != wire_types[number]:
                raise ValueError(f"field {number} of a message has wire type {wire_type}")
            fields[number].append(value)
    return fields


def _last(values: list[Any]) -> int:
    """Return the last number of a field; 0 if there is none."""
    return values[-1] if values else 0


def write_checkpoint(prefix: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write variables as `PREFIX.index` and one data file, with the same bytes as TensorFlow up to some thousand variables.

    Raises:
        InputError: TensorFlow has no such dtype.
    """
    strange = [f"{name} ({tensor.dtype})" for name, tensor in tensors.items() if tensor.dtype not in _DTYPE_NUMBERS]
    if strange:
        raise InputError(f"{prefix}: no dtype of TensorFlow for {', '.join(strange)}; convert them first")
    items = [(b"", _field(1, 1) + _field(3, _field(1, 1)))]  # one data file; version 1 of the format
    offset = 0
    with _data_file(prefix, 0, 1).open("wb") as file:
        for name in sorted(tensors, key=str.encode):
            tensor = tensors[name].detach().cpu().contiguous()
            data = tensor.reshape(-1).view(torch.uint8).numpy()
            file.write(data.data)
            shape = b"".join(_field(2, _field(1, size)) for size in tensor.shape)
            message = _field(1, _DTYPE_NUMBERS[tensor.dtype]) + _field(2, shape)
            message += b"".join(_field(number, value) for number, value in ((4, offset), (5, len(data))) if value)
            message += bytes([6 << 3 | _FIXED32]) + struct.pack("<I", masked_crc32c(data))
            items.append((name.encode(), message))
            offset += len(data)
    index_file(prefix).write_bytes(build_table(items))


def _field(number: int, value: int | bytes) -> bytes:
    """Write a field of a protocol buffer message: a number, or bytes."""
    if isinstance(value, int):
        return bytes([number << 3 | _VARINT]) + to_varint(value)
    return bytes([number << 3 | _BYTES]) + to_varint(len(value)) + value
