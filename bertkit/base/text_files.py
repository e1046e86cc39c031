"""Text files and JSON, read one way for everybody: gzip is unpacked, a byte order mark dropped, and what is no text refused.

Nothing is read without end. The limits are far above what people write.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import itertools
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from bertkit.base.errors import InputError

TEXT_BYTES = 1 << 18  # read, decoded and cut into lines at once
LINE_MB = 64  # of a line, a record, a cell
WHOLE_MB = 256  # of a file that is read as a whole: JSON, a vocabulary
MOST_UNPACKED = 200  # how many times its size a compressed file may unpack to
TOO_LONG = f"longer than {LINE_MB} MB; cut it into shorter ones"
TOO_LARGE = f"larger than {WHOLE_MB} MB, the most that is read as a whole"
LINES_AT_ONCE = 1 << 14
MAX_DEPTH = 100  # of lists and groups in one another; ours have five, and Python's own stack ends at a thousand
TOO_DEEP = f"lists or groups more than {MAX_DEPTH} deep in one another"
FREELY_UNPACKED_BYTES = 1 << 22  # whatever the size of a compressed file: a run of one letter shrinks a thousandfold
PEEKED_BYTES = 1 << 16  # that tell how a file is written before it is read
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_GZIP = b"\x1f\x8b"  # RFC 1952; no text begins so
_INVISIBLE = "".join(chr(n) for n in range(0x3001) if chr(n).isspace()) + "\u200b\u200c\u200d\u2060\ufeff"


def is_blank(line: str) -> bool:
    """Whether a line holds nothing but white space, non-breaking too, zero-width characters and byte order marks."""
    return not line.strip(_INVISIBLE)


def without_surrogates(text: str) -> str:
    """Join surrogate pairs, and replace lone halves; JSON can hold them, but no encoding can."""
    if _LONE_SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read_whole(path: Path) -> str:
    """Read a UTF-8 text file as a whole.

    Raises:
        InputError: it is larger than such a file may be.
        UnicodeDecodeError: it is no text.
    """
    check_whole(path)
    with path.open("rb") as file:
        data = file.read(WHOLE_MB * 1_000_000 + 1)
    if len(data) > WHOLE_MB * 1_000_000:  # of a pipe
        raise InputError(f"{path}: {TOO_LARGE}")
    return data.decode("utf-8")


def joined(name: Path, lines: Iterator[tuple[int, str]]) -> str:
    """Put numbered lines together again, as many as a file may have that is read as a whole."""
    length = 0
    parts: list[str] = []  # of many lines each, for a short one takes several times its length
    while some := [line for _, line in itertools.islice(lines, LINES_AT_ONCE)]:
        parts.append("\n".join(some))
        length += len(parts[-1]) + 1
        if length > WHOLE_MB * 1_000_000:
            raise InputError(f"{name}: JSON {TOO_LARGE}; write it as lines (.jsonl)")
    return "\n".join(parts)


def check_whole(path: Path) -> None:
    """Refuse a file that is too large to be read as a whole, by its size.

    Raises:
        InputError: it is.
    """
    if path.stat().st_size > WHOLE_MB * 1_000_000:
        raise InputError(f"{path}: {TOO_LARGE}")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: the file is missing, or is not JSON.
    """
    try:
        return parse_json(read_whole(path))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); restore or recreate the file") from None


def parse_json(text: str) -> Any:
    """Read JSON that anybody may have written.

    Raises:
        ValueError: it is not JSON, or too deep for what will walk through it.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if text.count("[") + text.count("{") > MAX_DEPTH and is_deep(value):
        raise ValueError(TOO_DEEP)
    return value


def is_deep(value: Any) -> bool:
    """Whether lists and groups stand deeper in one another than anything here is made for."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inside = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list)))
        level = [item for items in inside for item in items]
        if not level:
            return False
    return True


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Read the lines of a UTF-8 text file, or a pipe, numbered from 1; packed by gzip or not.

    Raises:
        InputError: it is missing, damaged or no text, with the line.
    """
    try:
        file = path.open("rb", buffering=PEEKED_BYTES)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    with file:
        yield from numbered_lines(unpacked(cast(io.BufferedReader, file), path), path)


@contextlib.contextmanager
def opened_input(name: str) -> Iterator[tuple[io.BufferedReader, int | None]]:
    """Open what `input=` names, `-` for standard input; give also its size in bytes where that is known.

    Raises:
        InputError: there is no such file, or it is a folder.
    """
    if name == "-" and sys.stdin is None:
        raise InputError("input=-: standard input is closed; give a file, or a text through a pipe")
    if name == "-":
        yield cast(io.BufferedReader, sys.stdin.buffer), None
        return
    path = Path(name)
    if path.is_dir():
        raise InputError(f"input={name} is a folder; give one of its files")
    try:
        file = path.open("rb", buffering=PEEKED_BYTES)
    except FileNotFoundError:
        raise InputError(f"input={name}: no such file") from None
    with file:
        yield cast(io.BufferedReader, file), path.stat().st_size if path.is_file() else None


def unpacked(file: io.BufferedReader, name: Path) -> io.BufferedReader:
    """Give the bytes of a file; of a gzip file, as its first bytes or its name say, what is packed in it."""
    if name.suffix.lower() != ".gz" and file.peek(len(_GZIP))[: len(_GZIP)] != _GZIP:
        return file
    return io.BufferedReader(cast(io.RawIOBase, _Gzip(file, name)), PEEKED_BYTES)


class _Packed(io.RawIOBase):
    """Counts what is read of a file."""

    def __init__(self, file: io.BufferedReader) -> None:
        self.file, self.num_bytes = file, 0

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.num_bytes += len(data)
        return data


class _Gzip(gzip.GzipFile):
    """Unpacks no more than a limit allows."""

    def __init__(self, file: io.BufferedReader, name: Path) -> None:
        self.packed, self.num_bytes, self.where = _Packed(file), 0, name
        super().__init__(fileobj=self.packed, mode="rb")

    def readinto(self, buffer: Any) -> int:
        data = self.read1(len(buffer))  # `read` would lose what comes before a fault
        buffer[: len(data)] = data
        self.num_bytes += len(data)
        if self.num_bytes > FREELY_UNPACKED_BYTES + MOST_UNPACKED * self.packed.num_bytes:
            raise InputError(f"{self.where}: unpacks to more than {MOST_UNPACKED} times its size; unpack it before")
        return len(data)


@contextlib.contextmanager
def unpacking(where: Callable[[], str]) -> Iterator[None]:
    """Refuse a damaged gzip file, with the place."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{where()}: damaged gzip file ({error}); restore it") from None


def numbered_lines(file: io.BufferedReader, name: Path) -> Iterator[tuple[int, str]]:
    """Read lines of UTF-8, without their ends, numbered from 1; `name` is the file's, for messages."""
    with unpacking(lambda: str(name)):
        for first, lines in line_blocks(file, lambda number: f"{name}:{number}"):
            for number, line in enumerate(lines, first):
                yield number, line.removesuffix("\r")


def line_blocks(
    file: io.BufferedReader,
    where: Callable[[int], str],
    *,
    start: int = 0,
    end: int | None = None,
    encoding: str = "utf-8",
    way_out: str = "convert the file to UTF-8",
) -> Iterator[tuple[int, list[str]]]:
    """Read lines, many at once, with the number of the first of them; those before a fault are given before it is raised.

    A line ends at a line feed and nowhere else: U+2028 and its like stand inside of sentences.

    Args:
        file: at its beginning; bytes are given on as they come.
        where: names the line of a number, for messages.
        start: the first byte to read.
        end: the byte after the last one; None for all.
        encoding: one in which a line feed is the byte 0x0a.
        way_out: of another encoding.

    Raises:
        InputError: a line is not text, or of another encoding.
    """
    if start:
        file.seek(start)
    number, left = 1, None if end is None else end - start
    unfinished: list[bytes] = []
    length = 0
    while True:
        block = file.read1(TEXT_BYTES if left is None else min(TEXT_BYTES, left))
        left = None if left is None else left - len(block)
        border = block.rfind(b"\n") + 1
        unfinished.append(block[: border or None])
        length = len(block) - border if border else length + len(block)
        if block and not border and b"\0" not in block:
            if length > LINE_MB * 1_000_000:
                raise InputError(f"{where(number)}: a line {TOO_LONG}")
            continue
        if data := b"".join(unfinished):
            lines, fault = _decoded(data, encoding, way_out)
            if start == 0 and number == 1 and lines:
                lines[0] = lines[0].lstrip("\ufeff")
            if lines:
                yield number, lines
            number += len(lines)
            if fault:
                raise InputError(f"{where(number)}: {fault}")
        unfinished = [block[border:]]
        if not block:
            return


def _decoded(data: bytes, encoding: str, way_out: str) -> tuple[list[str], str]:
    """The lines up to the first one that is no text, and what is wrong with that one; nothing if all are text."""
    data = data.removesuffix(b"\n")
    if codecs.lookup(encoding).name == "utf-8" and b"\0" not in data:
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode("utf-8").split("\n"), ""
    lines: list[str] = []
    for line in data.split(b"\n"):
        if b"\0" in line:
            zero = line.index(0) + 1
            return lines, f"not text (a zero byte at column {zero}); remove the file, or convert it to UTF-8"
        try:
            lines.append(line.decode(encoding))
        except UnicodeDecodeError as error:
            byte, column = line[error.start], error.start + 1
            return lines, f"not {encoding.upper()} (byte 0x{byte:02x} at column {column}); {way_out}"
    return lines, ""
