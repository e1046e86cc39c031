"""TensorFlow's V2 checkpoints ("tensor bundles"), read and written without TensorFlow.

A checkpoint consists of a table `PREFIX.index` and data files `PREFIX.data-00000-of-00001`, ..., which contain only the bytes
of the tensors. The table maps the name of each variable to a protocol buffer message with its dtype, shape, data file, offset,
size and checksum, and the key "" to a header.

1. A table ends in a footer: offset and size of the index block, and a magic number. The values of the index block are the
   offsets and sizes of the data blocks.
2. A block is a sequence of (key, value), where a key is stored as its difference from the key before it; then restart points
   for random access, a byte for the compression, and a checksum.

The files are not trusted: every length is checked against the size of the file before anything is read or allocated.

Source: tensorflow/core/util/tensor_bundle/tensor_bundle.cc, tensorflow/core/protobuf/tensor_bundle.proto;
tensorflow/core/lib/io/format.cc, table_builder.cc and block.cc.
"""

import dataclasses
import enum
import functools
import math
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertkit.base.errors import InputError, listed

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

_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)  # the last bytes of a table
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5  # after a block: compression and checksum
_RESTART_INTERVAL = 16
_MAX_KEY_BYTES = 1024


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


def index_file(prefix: Path) -> Path:
    """Return the path of a checkpoint's index."""
    return Path(f"{prefix}.index")


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
    try:
        items = dict(read_table(path.read_bytes()))
        header = _message(items.pop(b""), {1: _Wire.VARINT, 2: _Wire.VARINT})
        messages = {key.decode("utf-8"): _message(value, _ENTRY) for key, value in items.items() if key[:1] != b"\0"}
    except KeyError:
        raise InputError(f"{path}: damaged (no header); copy it again") from None
    except ValueError as error:
        raise InputError(f"{path}: damaged, or not an index of TensorFlow ({error}); copy it again") from None
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
    try:
        shape = _shape(b"".join(fields.texts[2][-1:]))
        expected = math.prod(shape) * dtype.itemsize
        if size != expected:
            raise ValueError(f"has {size} bytes, but {shape} of {dtype} has {expected}")
        if file >= num_files:
            raise ValueError(f"is in data file {file} of {num_files}")
    except ValueError as error:
        raise InputError(f"{path}: damaged ({name} {error}); copy it again") from None
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
    fields, at = _Message(), 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        match wire_type:
            case _Wire.VARINT:
                fields.numbers[number], at = _read_varint(data, at)
            case _Wire.BYTES:
                size, at = _read_varint(data, at)
                fields.texts[number].append(_take(data, at, size))
                at += size
            case _Wire.FIXED32 | _Wire.FIXED64:
                size = 4 if wire_type == _Wire.FIXED32 else 8
                fields.numbers[number] = int.from_bytes(_take(data, at, size), "little")
                at += size
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
        return bytes([number << 3 | _Wire.VARINT]) + _to_varint(value)
    return bytes([number << 3 | _Wire.BYTES]) + _to_varint(len(value)) + value


def read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the (key, value) of a table in order; raises ValueError if it is damaged."""
    footer = data[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or footer[-8:] != _MAGIC:
        raise ValueError("it does not end like a TensorFlow index")
    # offset and size of the meta index block, which is empty, and of the index block
    (_, _, *index), _ = _read_varints(footer, 4)
    last = None
    for _, place in _read_block(data, *index):
        for key, item in _read_block(data, *_read_varints(place, 2)[0]):
            if last is not None and key <= last:
                raise ValueError("its keys are not in order")
            last = key
            yield key, item


def _read_block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the (key, value) of the block of `size` bytes at `offset`."""
    content = _take(data, offset, size + _TRAILER_BYTES)
    block, compression, crc32c = content[:size], content[size], content[size + 1 :]
    if masked_crc32c(content[: size + 1]) != int.from_bytes(crc32c, "little"):
        raise ValueError(f"the checksum of its block at byte {offset} is wrong")
    if compression:
        raise ValueError(f"its block at byte {offset} is compressed; TensorFlow and bertkit use plain blocks")
    num_restarts = int.from_bytes(_take(block, size - 4, 4), "little")
    end = size - 4 - 4 * num_restarts
    if end < 0:
        raise ValueError(f"its block at byte {offset} is shorter than its restart points")
    at, key = 0, b""
    while at < end:
        (shared, num_new, num_value), at = _read_varints(block, 3, at)
        if shared > len(key) or shared + num_new > _MAX_KEY_BYTES or at + num_new + num_value > end:
            raise ValueError(f"its block at byte {offset} has a broken entry")
        key = key[:shared] + block[at : at + num_new]
        at += num_new + num_value
        yield key, block[at - num_value : at]


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number stored in 7 bits a byte, lowest bits first; return it and the offset of the next value."""
    value = 0
    for index, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, at + index + 1
    raise ValueError("a number has no end")


def _read_varints(data: bytes, count: int, at: int = 0) -> tuple[list[int], int]:
    """Read several numbers; return them and the offset of the next value."""
    numbers = []
    for _ in range(count):
        number, at = _read_varint(data, at)
        numbers.append(number)
    return numbers, at


def _take(data: bytes, at: int, size: int) -> bytes:
    """Return `size` bytes from `at` on; ValueError if there are fewer."""
    if at < 0 or at + size > len(data):
        raise ValueError("it ends too early")
    return data[at : at + size]


def masked_crc32c(data: bytes | npt.NDArray[np.uint8]) -> int:
    """Return the checksum of bytes as TensorFlow stores it: rotated and shifted, since stored checksums are checksummed again."""
    crc = 0
    for start in range(0, len(data), 1 << 24):  # in parts, so that no copy of a large matrix is made
        crc = google_crc32c.extend(crc, bytes(data[start : start + (1 << 24)]))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def build_table(*blocks: list[tuple[bytes, bytes]]) -> bytes:
    """Build a table from blocks of (key, value) in order."""
    table, places = b"", []

    def add(block: list[tuple[bytes, bytes]], restart_interval: int) -> bytes:
        nonlocal table
        content = _block(block, restart_interval)
        place = _to_varint(len(table)) + _to_varint(len(content) - _TRAILER_BYTES)
        table += content
        return place

    for block in blocks:
        last = block[-1][0]  # readers accept any key from this one to the first key of the next block
        places.append((bytes([last[0] + 1]) if block is blocks[-1] else last, add(block, _RESTART_INTERVAL)))
    footer = add([], 1) + add(places, 1)
    return table + footer.ljust(_FOOTER_BYTES - 8, b"\0") + _MAGIC


def _block(items: list[tuple[bytes, bytes]], restart_interval: int) -> bytes:
    """Build a block with its trailer; every `restart_interval`-th key is written in full."""
    content, restarts, before = b"", [] if items else [0], b""
    for index, (key, value) in enumerate(items):
        if index % restart_interval == 0:
            restarts.append(len(content))
            before = b""
        shared = next(
            (n for n, (a, b) in enumerate(zip(key, before, strict=False)) if a != b), min(len(key), len(before))
        )
        content += _to_varint(shared) + _to_varint(len(key) - shared) + _to_varint(len(value)) + key[shared:] + value
        before = key
    content += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts)) + b"\0"  # not compressed
    return content + struct.pack("<I", masked_crc32c(content))


def _to_varint(value: int) -> bytes:
    """Encode a number as `_read_varint` decodes it."""
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _to_varint(value >> 7)
