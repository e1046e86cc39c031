"""Files that consist of blocks of bytes, made as they are read: compressed ones are decompressed, UTF-16 becomes UTF-8."""

import bz2
import codecs
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, cast

from bertkit.base.errors import InputError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

TEXT_BYTES = 1 << 18  # how much is read and decoded at once
PACKED_BYTES = 1 << 12  # how much is read and decompressed at once
# gzip expands at most 1032 times, the others much more. Prose expands 3 times, log lines about 20 times, and 162 times was the most of lines that differ
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


def _open_zstandard(file: IO[bytes]) -> IO[bytes]:
    import pyarrow as pa

    return cast(IO[bytes], pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd"))


class Packing(NamedTuple):
    """A format of compressed files."""

    name: str  # and the name of the program
    endings: tuple[str, ...]
    magic: bytes  # a pattern of its first bytes; no text starts with them
    open: Callable[[IO[bytes]], IO[bytes]]


PACKINGS = (
    Packing(
        "gzip", (".gz",), rb"\x1f\x8b", lambda file: cast(IO[bytes], gzip.GzipFile(fileobj=file, mode="rb"))
    ),  # RFC 1952
    Packing("bzip2", (".bz2",), rb"BZh[1-9]1AY&SY", lambda file: cast(IO[bytes], bz2.BZ2File(file))),
    Packing("xz", (".xz",), rb"\xfd7zXZ\x00", lambda file: cast(IO[bytes], lzma.LZMAFile(file))),  # noqa: SIM115
    Packing("zstd", (".zst", ".zstd"), rb"\x28\xb5\x2f\xfd", _open_zstandard),
)
MAGIC_BYTES = 10  # the longest


def packing_of(name: Path, beginning: bytes) -> Packing | None:
    """Return how a file is compressed, by its ending or else its first bytes; None if it is not."""
    ending = name.suffix.lower()
    by_name = (one for one in PACKINGS if ending in one.endings)
    return next(by_name, None) or next((one for one in PACKINGS if re.match(one.magic, beginning)), None)


def ending_of(path: Path) -> str:
    """Return the ending of the uncompressed file, in lower case: `.csv` for `train.csv.gz`."""
    return (Path(path.stem) if packing_of(path, b"") else path).suffix.lower()


class _Packed(io.RawIOBase):
    """A compressed file, read in small blocks, and the number of bytes that were read."""

    def __init__(self, file: io.BufferedReader) -> None:
        self.file, self.num_bytes = file, 0

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Read some bytes, at most `size`."""
        data = self.file.read(PACKED_BYTES if size < 0 else min(size, PACKED_BYTES))
        self.num_bytes += len(data)
        return data


def unpacked_blocks(file: io.BufferedReader, name: Path, packing: Packing, limit_mb: int) -> Iterator[bytes]:
    """Decompress a file, and check ahead of the reader: the bytes that text would expand to the limit may not exceed it.

    Raises InputError if they do, EOFError for a damaged file, after the bytes before the damage.
    """
    packed, limit, is_more = _Packed(file), limit_mb * 1_000_000, True
    unpacked = packing.open(cast(IO[bytes], packed))
    while is_more:
        end, ahead = packed.num_bytes + limit // MAX_RATIO, bytearray()
        try:
            while is_more and packed.num_bytes < end:
                block = unpacked.read1(TEXT_BYTES)  # type: ignore[attr-defined]  # all have it
                is_more = bool(block)
                ahead += block
                if len(ahead) > limit:
                    grown = f"{limit_mb} MB unpacked from less than {limit / MAX_RATIO / 1e6:g} MB"
                    way_out = f"text expands less than {MAX_RATIO} times; unpack it, and look at it"
                    raise InputError(f"{name}: {grown}; {way_out}")
        except (EOFError, ValueError, OSError, zlib.error, lzma.LZMAError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # of the disk
                raise
            yield bytes(ahead)
            raise EOFError(f"damaged {packing.name} file ({error})") from None
        yield bytes(ahead)


def utf8_blocks(file: io.BufferedReader, decoder: codecs.IncrementalDecoder) -> Iterator[bytes]:
    """Decode a file of UTF-16, and encode it in UTF-8; raises EOFError for bytes that are no text."""
    num_read = 0
    try:
        for block in iter(lambda: file.read1(TEXT_BYTES), b""):
            num_read += len(block)
            yield decoder.decode(block).encode()
        yield decoder.decode(b"", True).encode()
    except UnicodeDecodeError as error:
        place = num_read - len(error.object) + error.start + 1
        raise EOFError(f"not UTF-16 ({error.reason}, at byte {place:,})") from None
