"""Read and write the V2 format of TensorFlow's checkpoints ("tensor bundle"), without TensorFlow.

A checkpoint is a table `PREFIX.index` and data files `PREFIX.data-00000-of-00001`, ...; the data files are nothing but the
tensors' bytes. The table maps each variable's name to an entry: dtype, shape, data file, offset, size, checksum. Reading
goes from the outside in:

1. The table ends in a footer: where the index block lies, and a magic number.
2. A block is a run of (key, value), where a key gives only what differs from the one before; then restart points, which
   only random access needs, one byte for the compression and a checksum. The index block's values say where the data
   blocks lie.
3. A value is a protocol buffer message: of the key "" the header, of every other key an entry.
4. The entry's bytes in the data file, if they have the checksum, are the tensor.

What the files say is not trusted: every length is checked against what is there before anything is read or made.

Source: tensorflow/core/util/tensor_bundle/tensor_bundle.cc, tensorflow/core/lib/io/format.cc and block.cc,
tensorflow/core/protobuf/tensor_bundle.proto.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertkit.errors import InputError

# Of tensorflow/core/framework/types.proto; the others have no use in a BERT.
_DTYPES = {
    1: torch.float32, 2: torch.float64, 3: torch.int32, 9: torch.int64, 10: torch.bool, 14: torch.bfloat16,
    19: torch.float16,
}  # fmt: skip
_DTYPE_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}
_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5  # of a block: compression and checksum
_BLOCK_BYTES = 262144  # a data block is closed above this
_RESTART_INTERVAL = 16
_MAX_INDEX_BYTES = 64 << 20  # BERT-Large with its Adam moments has 0.1 MB
_MAX_KEY_BYTES = 1024
_VARINT, _BYTES, _FIXED32 = 0, 2, 5  # wire types


@dataclass(frozen=True)
class Entry:
    """Where the bytes of a tensor lie.

    Attributes:
        dtype: of the tensor.
        shape: of the tensor; every axis has at least 1.
        shard: the number of the data file.
        offset: of the first byte in the data file.
        size: in bytes.
        crc32c: the masked checksum of the bytes.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc32c: int


def checkpoint_files(prefix: Path) -> list[Path]:
    """List the files of a checkpoint: the index, and the data files that it refers to.

    Raises:
        InputError: a data file is missing; or a damaged index.
    """
    return [index_file(prefix), *_data_files(prefix, *read_index(prefix)).values()]


def index_file(prefix: Path) -> Path:
    """Name the index of a checkpoint."""
    return Path(f"{prefix}.index")


def _data_file(prefix: Path, shard: int, num_shards: int) -> Path:
    return Path(f"{prefix}.data-{shard:05d}-of-{num_shards:05d}")


def _data_files(prefix: Path, num_shards: int, entries: Mapping[str, Entry]) -> dict[int, Path]:
    """Find the data files that hold a tensor, by number."""
    paths = {shard: _data_file(prefix, shard, num_shards) for shard in sorted({e.shard for e in entries.values()})}
    missing = [path.name for path in paths.values() if not path.is_file()]
    if missing:
        listed = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        raise InputError(f"{index_file(prefix)}: {listed} missing; copy the whole directory")
    return paths


def refuse_v1(paths: Iterable[Path]) -> None:
    """Refuse the V1 format, where one file, a table like today's index, holds everything."""
    for path in paths:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8))
            if file.read(8) == struct.pack("<Q", _MAGIC):
                raise InputError(
                    f"{path}: a checkpoint in TensorFlow's old V1 format; save it again with tf.compat.v1.train.Saver, "
                    "whose default is V2"
                )


# --- reading ----------------------------------------------------------------------------------------------------------


def read_checkpoint(prefix: Path) -> dict[str, Tensor]:
    """Read every variable, under TensorFlow's names and in TensorFlow's layout; every checksum is checked.

    The tensors lie in the data files, mapped into memory: a page is read when it is looked at, and copied when it is
    written to. The files never change.

    Raises:
        InputError: a damaged index or data file; or a data file is missing, or the checkpoint holds what bertkit does not read.
    """
    num_shards, entries = read_index(prefix)
    paths = _data_files(prefix, num_shards, entries)
    _check_extents(entries, paths)
    shards = {shard: np.memmap(path, np.uint8, "c") for shard, path in paths.items()}
    return {name: _tensor(name, entry, shards[entry.shard], paths[entry.shard]) for name, entry in entries.items()}


def read_index(prefix: Path) -> tuple[int, dict[str, Entry]]:
    """Read the index alone: the number of data files, and every variable's entry in the order of the names.

    Raises:
        InputError: a damaged index; or no such file, or a dtype or a layout that bertkit does not read.
    """
    path = index_file(prefix)
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected the index of a TensorFlow checkpoint")
    if path.stat().st_size > _MAX_INDEX_BYTES:
        raise InputError(f"{path}: {path.stat().st_size} bytes are too many for the index of a checkpoint")
    try:
        items = dict(_read_table(path.read_bytes()))
        header = _message(items.pop(b""), {1: _VARINT, 2: _VARINT})
        messages = {key.decode("utf-8"): _message(value, _ENTRY) for key, value in items.items() if key[:1] != b"\0"}
    except KeyError:
        raise InputError(f"{path}: damaged (it has no header); copy it again") from None
    except ValueError as error:
        raise InputError(f"{path}: damaged, or not an index of TensorFlow ({error}); copy it again") from None
    num_shards = _last(header[1])
    if _last(header[2]):
        raise InputError(f"{path}: the tensors are big-endian; save them again on a little-endian machine")
    if "_CHECKPOINTABLE_OBJECT_GRAPH" in messages:
        raise InputError(
            f"{path}: a checkpoint of TensorFlow 2 objects (tf.train.Checkpoint, Keras); bertkit reads those of "
            "tf.compat.v1.train.Saver, with google-research/bert's names"
        )
    return num_shards, {name: _entry(path, name, fields, num_shards) for name, fields in messages.items()}


# of a BundleEntryProto: dtype, shape, shard_id, offset, size, crc32c, slices
_ENTRY = {1: _VARINT, 2: _BYTES, 3: _VARINT, 4: _VARINT, 5: _VARINT, 6: _FIXED32, 7: _BYTES}


def _entry(path: Path, name: str, fields: dict[int, list[Any]], num_shards: int) -> Entry:
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
    if entry.shard >= num_shards:
        raise InputError(f"{path}: damaged ({name} is in data file {entry.shard} of {num_shards}); copy it again")
    return entry


def _shape(message: bytes) -> tuple[int, ...]:
    """Read a TensorShapeProto."""
    fields = _message(message, {2: _BYTES, 3: _VARINT})
    sizes = tuple(_last(_message(dim, {1: _VARINT})[1]) for dim in fields[2])
    if _last(fields[3]) or any(size < 1 for size in sizes):
        raise ValueError("an unknown or empty shape")
    return sizes


def _check_extents(entries: Mapping[str, Entry], paths: Mapping[int, Path]) -> None:
    """Check that the tensors lie inside of their data files, one behind the other."""
    sizes = {shard: path.stat().st_size for shard, path in paths.items()}
    ends = dict.fromkeys(paths, 0)
    for name, entry in sorted(entries.items(), key=lambda item: item[1].offset):
        path = paths[entry.shard]
        if entry.offset + entry.size > sizes[entry.shard]:
            raise InputError(
                f"{path}: truncated ({name} ends at byte {entry.offset + entry.size} of {sizes[entry.shard]}); copy it again"
            )
        if entry.offset < ends[entry.shard]:
            raise InputError(f"{path}: {name} overlaps another tensor, so the index is damaged; copy it again")
        ends[entry.shard] = entry.offset + entry.size


def _tensor(name: str, entry: Entry, shard: npt.NDArray[np.uint8], path: Path) -> Tensor:
    data = shard[entry.offset : entry.offset + entry.size]
    if _masked_crc32c(data) != entry.crc32c:
        raise InputError(f"{path}: damaged (the checksum of {name} is wrong); copy it again")
    if data.ctypes.data % entry.dtype.itemsize:
        data = data.copy()  # a tensor behind one of an odd size; torch wants aligned numbers
    return torch.from_numpy(data).view(entry.dtype).reshape(entry.shape)


def _read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Give the (key, value) of a table in order.

    Raises:
        ValueError: it is damaged.
    """
    footer = data[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or footer[-8:] != struct.pack("<Q", _MAGIC):
        raise ValueError("it does not end like a TensorFlow index")
    at = 0
    handle = []
    for _ in range(4):  # offset and size, of the meta index block, which is empty, and of the index block
        number, at = _varint(footer, at)
        handle.append(number)
    last = None
    for _, value in _read_block(data, handle[2], handle[3]):
        offset, at = _varint(value, 0)
        size, _ = _varint(value, at)
        for key, item in _read_block(data, offset, size):
            if last is not None and key <= last:
                raise ValueError("its keys are not in order")
            last = key
            yield key, item


def _read_block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Give the (key, value) of the block of `size` bytes at `offset`."""
    content = _take(data, offset, size + _TRAILER_BYTES)
    block, compression, crc32c = content[:size], content[size], content[size + 1 :]
    if _masked_crc32c(content[: size + 1]) != int.from_bytes(crc32c, "little"):
        raise ValueError(f"the checksum of its block at byte {offset} is wrong")
    if compression:
        raise ValueError(f"its block at byte {offset} is compressed; TensorFlow writes, and bertkit reads, plain ones")
    num_restarts = int.from_bytes(_take(block, size - 4, 4), "little")
    end = size - 4 - 4 * num_restarts
    if end < 0:
        raise ValueError(f"its block at byte {offset} is shorter than it says")
    at, key = 0, b""
    while at < end:
        shared, at = _varint(block, at)
        num_new, at = _varint(block, at)
        num_value, at = _varint(block, at)
        if shared > len(key) or shared + num_new > _MAX_KEY_BYTES or at + num_new + num_value > end:
            raise ValueError(f"its block at byte {offset} has a broken entry")
        key = key[:shared] + block[at : at + num_new]
        at += num_new + num_value
        yield key, block[at - num_value : at]


def _message(data: bytes, wire_types: Mapping[int, int]) -> dict[int, list[Any]]:
    """Read the fields of a protocol buffer message that have a number in `wire_types`; the others are passed over."""
    fields: dict[int, list[Any]] = {number: [] for number in wire_types}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        value: int | bytes
        if wire_type == _VARINT:
            value, at = _varint(data, at)
        elif wire_type == _BYTES:
            size, at = _varint(data, at)
            value, at = _take(data, at, size), at + size
        elif wire_type in (1, _FIXED32):
            size = 8 if wire_type == 1 else 4
            value, at = int.from_bytes(_take(data, at, size), "little"), at + size
        else:
            raise ValueError(f"no field of a message has wire type {wire_type}")
        if number in fields:
            if wire_type != wire_types[number]:
                raise ValueError(f"field {number} of a message has wire type {wire_type}")
            fields[number].append(value)
    return fields


def _last(values: list[Any]) -> int:
    """The number in a field: the last one given, 0 where there is none."""
    return values[-1] if values else 0


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of 7 bits a byte, lowest first; give it, and where the next thing begins."""
    value = 0
    for index, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, at + index + 1
    raise ValueError("a number has no end")


def _take(data: bytes, at: int, size: int) -> bytes:
    if at < 0 or at + size > len(data):
        raise ValueError("it ends too early")
    return data[at : at + size]


def _masked_crc32c(data: bytes | npt.NDArray[np.uint8]) -> int:
    """Checksum bytes as TensorFlow stores it: rotated and shifted, so that a checksum of checksums is none of zeros."""
    crc = 0
    for start in range(0, len(data), 1 << 24):  # part by part: the copy of a large matrix would be large
        crc = google_crc32c.extend(crc, bytes(data[start : start + (1 << 24)]))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# --- writing ----------------------------------------------------------------------------------------------------------


def write_checkpoint(prefix: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write variables as `PREFIX.index` and one data file; the same tensors give the same bytes (TensorFlow's
    own, up to some thousand variables).

    Raises:
        InputError: a dtype that is not written.
    """
    strange = [f"{name} ({tensor.dtype})" for name, tensor in tensors.items() if tensor.dtype not in _DTYPE_NUMBERS]
    if strange:
        raise InputError(f"{prefix}: no dtype of TensorFlow for {', '.join(strange)}; convert them first")
    items = [(b"", _field(1, 1) + _field(3, _field(1, 1)))]  # one data file; made by version 1 of the format
    offset = 0
    with _data_file(prefix, 0, 1).open("wb") as file:
        for name in sorted(tensors, key=str.encode):
            tensor = tensors[name].detach().cpu().contiguous()
            data = tensor.reshape(-1).view(torch.uint8).numpy()
            file.write(data.data)
            shape = b"".join(_field(2, _field(1, size)) for size in tensor.shape)
            message = _field(1, _DTYPE_NUMBERS[tensor.dtype]) + _field(2, shape)
            message += b"".join(_field(number, value) for number, value in ((4, offset), (5, len(data))) if value)
            message += bytes([6 << 3 | _FIXED32]) + struct.pack("<I", _masked_crc32c(data))
            items.append((name.encode(), message))
            offset += len(data)
    index_file(prefix).write_bytes(_table(items))


def _table(items: Iterable[tuple[bytes, bytes]], block_bytes: int = _BLOCK_BYTES) -> bytes:
    """Build a table of (key, value) in order."""
    blocks: list[list[tuple[bytes, bytes]]] = [[]]
    size = 0
    for key, value in items:
        if size >= block_bytes:
            blocks.append([])
            size = 0
        blocks[-1].append((key, value))
        size += len(key) + len(value)
    table = b""
    handles = []
    for block in blocks:
        last = block[-1][0]
        if block is blocks[-1]:
            last = bytes([last[0] + 1])  # any key from the block's last to the next one's first will do
        content = _block(block, _RESTART_INTERVAL)
        handles.append((last, _to_varint(len(table)) + _to_varint(len(content) - _TRAILER_BYTES)))
        table += content
    footer = b""
    for content in (_block([], 1), _block(handles, 1)):
        footer += _to_varint(len(table)) + _to_varint(len(content) - _TRAILER_BYTES)
        table += content
    return table + footer.ljust(_FOOTER_BYTES - 8, b"\0") + struct.pack("<Q", _MAGIC)


def _block(items: list[tuple[bytes, bytes]], restart_interval: int) -> bytes:
    """Build a block with its trailer; every `restart_interval`-th key stands in full."""
    content, restarts, before = b"", [0], b""
    for index, (key, value) in enumerate(items):
        shared = 0
        if index % restart_interval:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        elif index:
            restarts.append(len(content))
        content += _to_varint(shared) + _to_varint(len(key) - shared) + _to_varint(len(value)) + key[shared:] + value
        before = key
    content += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts)) + b"\0"  # not compressed
    return content + struct.pack("<I", _masked_crc32c(content))


def _field(number: int, value: int | bytes) -> bytes:
    """Write a field of a protocol buffer message: a number, or bytes."""
    if isinstance(value, int):
        return bytes([number << 3 | _VARINT]) + _to_varint(value)
    return bytes([number << 3 | _BYTES]) + _to_varint(len(value)) + value


def _to_varint(value: int) -> bytes:
    digits = []
    while value >= 128:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])
