"""Files that consist of blocks of bytes, made as they are read: gzip is decompressed, UTF-16 becomes UTF-8."""

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bertkit.base.errors import InputError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

TEXT_BYTES = 1 << 18  # how much is read and decoded at once
PACKED_BYTES = 1 << 12  # how much is read and decompressed at once
# gzip expands at most 1032 times. Prose expands 3 times, log lines about 20 times, and 162 times was the most of lines that differ
# in a number (each 2 kB); only equal lines expand 200 times, and these are read up to the limit of `unpacked_blocks`
MAX_RATIO = 200


class Blocks(io.RawIOBase):
    """A file of the bytes that an iterator gives."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.blocks, self.block = blocks, io.BytesIO()

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read the next bytes; 0 at the end."""
        while not (count := self.block.readinto(buffer)) and (block := next(self.blocks, None)) is not None:
            self.block = io.BytesIO(block)
        return count


class _Packed:
    """A compressed file, read in small blocks, and the number of bytes that were read."""

    def __init__(self, file: io.BufferedReader) -> None:
        self.file, self.num_bytes = file, 0

    def read(self, size: int) -> bytes:
        """Read some bytes, at most `size`."""
        data = self.file.read(min(size, PACKED_BYTES))
        self.num_bytes += len(data)
        return data


def unpacked_blocks(file: io.BufferedReader, name: Path, limit_mb: int) -> Iterator[bytes]:
    """Decompress gzip, and check ahead of the reader: the bytes that text would expand to the limit may not exceed it.

    Raises InputError if they do, and the errors of the gzip module for a damaged file, after the bytes before the damage.
    """
    packed, limit, is_more = _Packed(file), limit_mb * 1_000_000, True
    unpacked = gzip.GzipFile(fileobj=cast(io.BufferedReader, packed), mode="rb")
    while is_more:
        end, ahead = packed.num_bytes + limit // MAX_RATIO, bytearray()
        try:
            while is_more and packed.num_bytes < end:
                block = unpacked.read1(TEXT_BYTES)
                is_more = bool(block)
                ahead += block
                if len(ahead) > limit:
                    grown = f"{limit_mb} MB unpacked from less than {limit / MAX_RATIO / 1e6:g} MB"
                    way_out = f"text expands less than {MAX_RATIO} times; unpack it, and look at it"
                    raise InputError(f"{name}: {grown}; {way_out}")
        except (EOFError, zlib.error, gzip.BadGzipFile):
            yield bytes(ahead)
            raise
        yield bytes(ahead)


def utf8_blocks(file: io.BufferedReader, decoder: codecs.IncrementalDecoder) -> Iterator[bytes]:
    """Decode a file, and encode it in UTF-8."""
    for block in iter(lambda: file.read1(TEXT_BYTES), b""):
        yield decoder.decode(block).encode()
    yield decoder.decode(b"", True).encode()
