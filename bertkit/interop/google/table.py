"""A sorted table of keys and values, in which TensorFlow stores the index of a checkpoint.

1. A table ends in a footer: offset and size of the index block, and a magic number. The values of the index block are the
   offsets and sizes of the data blocks.
2. A block is a sequence of (key, value), where a key is stored as its difference from the key before it; then restart points
   for random access, a byte for the compression, and a checksum.

Source: tensorflow/core/lib/io/format.cc, table_builder.cc and block.cc.
"""

import struct
from collections.abc import Iterator

import google_crc32c
import numpy as np
import numpy.typing as npt

_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)  # the last bytes of a table
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5  # after a block: compression and checksum
_RESTART_INTERVAL = 16
_MAX_KEY_BYTES = 1024


class Reader:
    """Bytes that are read one value after another; raises ValueError where they end too early."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at  # `at`: the offset of the next value

    def take(self, size: int) -> bytes:
        """Read some bytes."""
        if self.at < 0 or self.at + size > len(self.data):
            raise ValueError("it ends too early")
        self.at += size
        return self.data[self.at - size : self.at]

    def integer(self, size: int) -> int:
        """Read a number of some bytes, the lowest first."""
        return int.from_bytes(self.take(size), "little")

    def varint(self) -> int:
        """Read a number that is stored in 7 bits a byte, lowest bits first."""
        value = 0
        for index, byte in enumerate(self.data[self.at : self.at + 10]):
            value |= (byte & 127) << (7 * index)
            if byte < 128:
                self.at += index + 1
                return value
        raise ValueError("a number has no end")

    def varints(self, count: int) -> list[int]:
        """Read several numbers."""
        return [self.varint() for _ in range(count)]


def read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the (key, value) of a table in order; raises ValueError if it is damaged."""
    footer = data[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or footer[-8:] != _MAGIC:
        raise ValueError("it does not end like a TensorFlow index")
    # offset and size of the meta index block, which is empty, and of the index block
    _, _, *index = Reader(footer).varints(4)
    last = None
    for _, place in _read_block(data, *index):
        for key, item in _read_block(data, *Reader(place).varints(2)):
            if last is not None and key <= last:
                raise ValueError("its keys are not in order")
            last = key
            yield key, item


def _read_block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the (key, value) of the block of `size` bytes at `offset`."""
    content = Reader(data, offset).take(size + _TRAILER_BYTES)
    block, compression, crc32c = content[:size], content[size], content[size + 1 :]
    if masked_crc32c(content[: size + 1]) != int.from_bytes(crc32c, "little"):
        raise ValueError(f"the checksum of its block at byte {offset} is wrong")
    if compression:
        raise ValueError(f"its block at byte {offset} is compressed; TensorFlow and bertkit use plain blocks")
    num_restarts = Reader(block, size - 4).integer(4)
    end = size - 4 - 4 * num_restarts
    if end < 0:
        raise ValueError(f"its block at byte {offset} is shorter than its restart points")
    rest, key = Reader(block), b""
    while rest.at < end:
        shared, num_new, num_value = rest.varints(3)
        if shared > len(key) or shared + num_new > _MAX_KEY_BYTES or rest.at + num_new + num_value > end:
            raise ValueError(f"its block at byte {offset} has a broken entry")
        key = key[:shared] + rest.take(num_new)
        yield key, rest.take(num_value)


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
        place = to_varint(len(table)) + to_varint(len(content) - _TRAILER_BYTES)
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
        content += to_varint(shared) + to_varint(len(key) - shared) + to_varint(len(value)) + key[shared:] + value
        before = key
    content += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts)) + b"\0"  # not compressed
    return content + struct.pack("<I", masked_crc32c(content))


def to_varint(value: int) -> bytes:
    """Encode a number as `Reader.varint` decodes it."""
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + to_varint(value >> 7)
