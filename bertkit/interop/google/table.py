"""The table of TensorFlow's checkpoints, `PREFIX.index`, a sorted map from bytes to bytes, without TensorFlow.

1. A table ends in a footer: the place of the index block, and a magic number. The values of the index block are the places
   of the data blocks.
2. A block is a run of (key, value), where a key omits the prefix that it shares with the key before it; then restart points,
   which only random access needs, a byte for the compression, and a checksum.

Files are not trusted: every length is verified before anything is read or allocated.

Source: tensorflow/core/lib/io/format.cc, table_builder.cc and block.cc.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import google_crc32c
import numpy as np
import numpy.typing as npt

MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)  # the last bytes of a table
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5  # compression and checksum of a block
_BLOCK_BYTES = 262144  # a data block is closed above this
_RESTART_INTERVAL = 16
_MAX_KEY_BYTES = 1024


def read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the (key, value) of a table in order.

    Raises:
        ValueError: it is damaged.
    """
    footer = data[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or footer[-8:] != MAGIC:
        raise ValueError("it does not end like a TensorFlow index")
    at = 0
    handle = []
    for _ in range(4):  # offset and size of the meta index block, which is empty, and of the index block
        number, at = read_varint(footer, at)
        handle.append(number)
    last = None
    for _, value in _read_block(data, handle[2], handle[3]):
        offset, at = read_varint(value, 0)
        size, _ = read_varint(value, at)
        for key, item in _read_block(data, offset, size):
            if last is not None and key <= last:
                raise ValueError("its keys are not in order")
            last = key
            yield key, item


def _read_block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the (key, value) of the block of `size` bytes at `offset`."""
    content = take(data, offset, size + _TRAILER_BYTES)
    block, compression, crc32c = content[:size], content[size], content[size + 1 :]
    if masked_crc32c(content[: size + 1]) != int.from_bytes(crc32c, "little"):
        raise ValueError(f"the checksum of its block at byte {offset} is wrong")
    if compression:
        raise ValueError(f"its block at byte {offset} is compressed; TensorFlow writes, and bertkit reads, plain ones")
    num_restarts = int.from_bytes(take(block, size - 4, 4), "little")
    end = size - 4 - 4 * num_restarts
    if end < 0:
        raise ValueError(f"its block at byte {offset} is shorter than it says")
    at, key = 0, b""
    while at < end:
        shared, at = read_varint(block, at)
        num_new, at = read_varint(block, at)
        num_value, at = read_varint(block, at)
        if shared > len(key) or shared + num_new > _MAX_KEY_BYTES or at + num_new + num_value > end:
            raise ValueError(f"its block at byte {offset} has a broken entry")
        key = key[:shared] + block[at : at + num_new]
        at += num_new + num_value
        yield key, block[at - num_value : at]


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of 7 bits a byte, lowest bits first; return it with the place behind it."""
    value = 0
    for index, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, at + index + 1
    raise ValueError("a number has no end")


def take(data: bytes, at: int, size: int) -> bytes:
    """Return `size` bytes from `at` on; raise ValueError if there are fewer."""
    if at < 0 or at + size > len(data):
        raise ValueError("it ends too early")
    return data[at : at + size]


def masked_crc32c(data: bytes | npt.NDArray[np.uint8]) -> int:
    """Compute the checksum that TensorFlow stores: rotated and shifted, so that checksums of checksums do not vanish."""
    crc = 0
    for start in range(0, len(data), 1 << 24):  # in parts, as bytes are copied
        crc = google_crc32c.extend(crc, bytes(data[start : start + (1 << 24)]))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def build_table(items: Iterable[tuple[bytes, bytes]], block_bytes: int = _BLOCK_BYTES) -> bytes:
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
            last = bytes([last[0] + 1])  # any key between two blocks separates them
        content = _block(block, _RESTART_INTERVAL)
        handles.append((last, to_varint(len(table)) + to_varint(len(content) - _TRAILER_BYTES)))
        table += content
    footer = b""
    for content in (_block([], 1), _block(handles, 1)):
        footer += to_varint(len(table)) + to_varint(len(content) - _TRAILER_BYTES)
        table += content
    return table + footer.ljust(_FOOTER_BYTES - 8, b"\0") + MAGIC


def _block(items: list[tuple[bytes, bytes]], restart_interval: int) -> bytes:
    """Build a block with its trailer; every `restart_interval`-th key is complete."""
    content, restarts, before = b"", [0], b""
    for index, (key, value) in enumerate(items):
        shared = 0
        if index % restart_interval:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        elif index:
            restarts.append(len(content))
        content += to_varint(shared) + to_varint(len(key) - shared) + to_varint(len(value)) + key[shared:] + value
        before = key
    content += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts)) + b"\0"  # not compressed
    return content + struct.pack("<I", masked_crc32c(content))


def to_varint(value: int) -> bytes:
    """Write a number as `read_varint` reads it."""
    digits = []
    while value >= 128:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])
