"""Text files, JSON and YAML: gzip is unpacked, a byte order mark dropped, and binary data refused.

Sizes, nesting and compression are limited, so that no file can exhaust the memory. The limits are far above real texts.
"""

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

TEXT_BYTES = 1 << 18  # read, decoded and split into lines at once
LINE_MB = 64  # the longest line, record or cell
WHOLE_MB = 256  # the largest file that is read as a whole: JSON, a vocabulary
MOST_UNPACKED = 200  # the highest compression ratio
TOO_LONG = f"longer than {LINE_MB} MB; cut it into shorter ones"
TOO_LARGE = f"larger than {WHOLE_MB} MB, the limit for a file that is read as a whole"
LINES_AT_ONCE = 1 << 14
MAX_DEPTH = 100  # nesting of lists and mappings; ours have five levels, and Python's stack ends at a thousand
TOO_DEEP = f"lists or groups nested more than {MAX_DEPTH} deep"
FREELY_UNPACKED_BYTES = 1 << 22  # allowed at any compression ratio, since one repeated letter compresses a thousandfold
PEEKED_BYTES = 1 << 16  # enough to detect a file's format
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_GZIP = b"\x1f\x8b"  # RFC 1952; no text starts with these bytes
_INVISIBLE = "".join(chr(n) for n in range(0x3001) if chr(n).isspace()) + "\u200b\u200c\u200d\u2060\ufeff"


def is_blank(line: str) -> bool:
    """Whether a line has only white space, zero-width characters and byte order marks."""
    return not line.strip(_INVISIBLE)


def without_surrogates(text: str) -> str:
    """Join surrogate pairs, and replace lone halves; JSON can hold them, but no encoding can."""
    if _LONE_SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read_whole(path: Path) -> str:
    """Read a UTF-8 text file as a whole.

    Raises:
        InputError: it is too large.
        UnicodeDecodeError: it is not UTF-8.
    """
    with path.open("rb") as file:
        data = file.read(WHOLE_MB * 1_000_000 + 1)
    if len(data) > WHOLE_MB * 1_000_000:
        raise InputError(f"{path}: {TOO_LARGE}")
    return data.decode("utf-8")


def joined(name: Path, lines: Iterator[tuple[int, str]]) -> str:
    """Join numbered lines, up to the limit for a whole file."""
    length = 0
    parts: list[str] = []  # each of many lines, because a short string takes several times its length
    while some := [line for _, line in itertools.islice(lines, LINES_AT_ONCE)]:
        parts.append("\n".join(some))
        length += len(parts[-1]) + 1
        if length > WHOLE_MB * 1_000_000:
            raise InputError(f"{name}: JSON {TOO_LARGE}; write it as lines (.jsonl)")
    return "\n".join(parts)


def check_whole(path: Path) -> None:
    """Check the size of a file before it is read as a whole.

    Raises:
        InputError: it is too large.
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
    """Read JSON from an untrusted source.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if text.count("[") + text.count("{") > MAX_DEPTH and is_deep(value):
        raise ValueError(TOO_DEEP)
    return value


def parse_yaml(text: str) -> Any:
    """Read YAML from an untrusted source: plain values, without aliases, which can expand exponentially.

    Raises:
        ValueError: it is not YAML, has an alias, or is nested too deeply.
    """
    import yaml

    loader, depth = getattr(yaml, "CSafeLoader", yaml.SafeLoader), 0
    try:
        for event in yaml.parse(text, loader):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("an alias; write out the value that it stands for")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ValueError(TOO_DEEP)
        return yaml.load(text, loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def is_deep(value: Any) -> bool:
    """Whether lists and mappings are nested more than `MAX_DEPTH` deep."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        groups = (item.values() if isinstance(item, dict) else item for item in level if isinstance(item, (dict, list)))
        level = [item for group in groups for item in group]
        if not level:
            return False
    return True


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Read the lines of a UTF-8 file or pipe, numbered from 1; gzip is unpacked.

    Raises:
        InputError: it is missing, damaged or not text; the message gives the line.
    """
    try:
        file = path.open("rb", buffering=PEEKED_BYTES)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    with file:
        yield from numbered_lines(unpacked(cast(io.BufferedReader, file), path), path)


@contextlib.contextmanager
def opened_input(name: str) -> Iterator[tuple[io.BufferedReader, int | None]]:
    """Open the file of `input=`, or standard input for `-`; give also its size in bytes, if known.

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
    """Unpack a file if its name or its first bytes say gzip; otherwise give the file itself."""
    if name.suffix.lower() != ".gz" and file.peek(len(_GZIP))[: len(_GZIP)] != _GZIP:
        return file
    return io.BufferedReader(cast(io.RawIOBase, _Gzip(file, name)), PEEKED_BYTES)


class _Packed(io.RawIOBase):
    """Counts the bytes that are read from a file."""

    def __init__(self, file: io.BufferedReader) -> None:
        self.file, self.num_bytes = file, 0

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.num_bytes += len(data)
        return data


class _Gzip(gzip.GzipFile):
    """Unpacks up to the limit."""

    def __init__(self, file: io.BufferedReader, name: Path) -> None:
        self.packed, self.num_bytes, self.where = _Packed(file), 0, name
        super().__init__(fileobj=self.packed, mode="rb")

    def readinto(self, buffer: Any) -> int:
        data = self.read1(len(buffer))  # `read` would lose the data before a fault
        buffer[: len(data)] = data
        self.num_bytes += len(data)
        if self.num_bytes > FREELY_UNPACKED_BYTES + MOST_UNPACKED * self.packed.num_bytes:
            raise InputError(f"{self.where}: unpacks to more than {MOST_UNPACKED} times its size; unpack it before")
        return len(data)


@contextlib.contextmanager
def unpacking(where: Callable[[], str]) -> Iterator[None]:
    """Report a damaged gzip file, with its place."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{where()}: damaged gzip file ({error}); restore it") from None


def numbered_lines(file: io.BufferedReader, name: Path) -> Iterator[tuple[int, str]]:
    """Read UTF-8 lines, numbered from 1, without line ends; `name` is for messages."""
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
    """Read blocks of lines, each with the number of its first line; lines before a fault are yielded before the error.

    Only a line feed ends a line: U+2028 and similar characters occur inside sentences.

    Args:
        file: at its beginning; read without waiting for full blocks.
        where: the place of a line, given its number, for messages.
        start: the first byte to read.
        end: the byte after the last one; None for all.
        encoding: an encoding in which a line feed is the byte 0x0a.
        way_out: the advice for a file in another encoding.

    Raises:
        InputError: a line is not text, or in another encoding.
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
    """The lines before the first fault, and its description; "" without a fault."""
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
