"""Reads text files, JSON and YAML: decompresses, removes a byte order mark, and refuses binary data.

Sizes and nesting are limited, so that no file can exhaust the memory. Real files are far below the limits.
"""

import codecs
import contextlib
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from bertkit.base.blocks import MAGIC_BYTES, TEXT_BYTES, Blocks, packing_of, unpacked_blocks, utf8_blocks
from bertkit.base.errors import InputError, in_one_line, refusing

JsonValue: TypeAlias = Any  # what JSON or YAML holds: its reader checks what it uses
JsonObject: TypeAlias = dict[str, JsonValue]

LINE_MB = 64  # the maximum size of a line, record or cell
WHOLE_MB = 256  # the maximum size of a file that is read as a whole: JSON, a vocabulary
TOO_LONG = f"longer than {LINE_MB} MB; cut it into shorter ones"
ADVICE = "convert the file to UTF-8"  # about bytes that are not
TOO_LARGE = f"larger than {WHOLE_MB} MB, the limit for a file that is read as a whole"
MAX_DEPTH = 100  # nested lists and mappings; our files have five levels, and Python's recursion limit is 1000
TOO_DEEP = f"lists or groups nested more than {MAX_DEPTH} deep"
PEEKED_BYTES = 1 << 16  # enough to detect the format of a file
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # Unicode's categories Cc, Zl, Zp and Cs
_FROM_EXCEL = "save it as CSV, or as .xlsx"
_UNPACK = "unpack it, and give its files"
_ZIP = b"PK\x03\x04"
_ARCHIVES = {  # the first bytes of files that hold other files, or texts in a way of their own
    _ZIP: f"an Excel file (or another archive); {_FROM_EXCEL}",  # zip
    b"\xd0\xcf\x11\xe0": f"an Excel file (or another archive); {_FROM_EXCEL}",  # the container of .xls
    b"7z\xbc\xaf\x27\x1c": f"a 7z archive; {_UNPACK}",
    b"Rar!\x1a\x07": f"a rar archive; {_UNPACK}",
    b"\x04\x22\x4d\x18": f"an lz4 file; {_UNPACK}",
    b"\x1f\x9d": f"a file of compress; {_UNPACK}",
    b"%PDF-": "a PDF file; make text of it, for example with pdftotext",
}
_TAR = b"ustar"  # at byte 257
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_INVISIBLE = "".join(chr(n) for n in range(0x3001) if chr(n).isspace()) + "\u200b\u200c\u200d\u2060\ufeff"


def is_blank(line: str) -> bool:
    """Return whether a line has only white space, zero-width characters and byte order marks."""
    return not line.strip(_INVISIBLE)


def control_character(text: str) -> str:
    """Name the first control character, line separator or lone surrogate of a text, such as U+001B; "" if there is none.

    Marks that join or direct letters, as in Persian words, Arabic names and emoji, are none: their category is Cf.
    """
    first = _CONTROL.search(text)
    return f"U+{ord(first[0]):04X}" if first else ""


def without_surrogates(text: str) -> str:
    """Join surrogate pairs, and replace lone surrogates by U+FFFD; JSON can contain them, but UTF-8 cannot."""
    if _LONE_SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read_whole(path: Path) -> str:
    """Read a UTF-8 text file as a whole, without a byte order mark.

    Raises InputError if it is too large, UnicodeDecodeError if it is not UTF-8.
    """
    with path.open("rb") as file:
        data = file.read(WHOLE_MB * 1_000_000 + 1)
    if len(data) > WHOLE_MB * 1_000_000:
        raise InputError(f"{path}: {TOO_LARGE}")
    return data.decode("utf-8").removeprefix("\ufeff")


def read_json(path: Path) -> JsonValue:
    """Read a JSON file; raises InputError if the file is missing, or is not JSON."""
    with (
        refusing((FileNotFoundError, IsADirectoryError), lambda _: f"{path}: no such file"),
        refusing(ValueError, lambda error: f"{path}: not JSON ({error}); restore or recreate the file"),
    ):
        return parse_json(read_whole(path), with_nan=False)


def parse_json(text: str, with_nan: bool = True) -> JsonValue:
    """Parse JSON from an untrusted source; raises ValueError if it is not JSON, nested too deeply, or has a key twice.

    NaN and Infinity are no JSON; pandas writes them into records.
    """
    try:
        value = json.loads(
            text, parse_constant=None if with_nan else _refuse_constant, object_pairs_hook=of_distinct_keys
        )
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if text.count("[") + text.count("{") > MAX_DEPTH and is_deep(value):
        raise ValueError(TOO_DEEP)
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def of_distinct_keys(pairs: Sequence[tuple[str, JsonValue]]) -> JsonObject:
    """Return the object of these keys and values; raises ValueError if a key is there twice, of which Python would keep the last."""
    content = dict(pairs)
    if len(content) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"two keys {twice!r:.80} in an object")
    return content


def parse_yaml(text: str) -> JsonValue:
    """Parse YAML from an untrusted source: plain values only. Aliases are refused, because they can expand exponentially.

    Raises ValueError if it is not YAML, has an alias, or is nested too deeply.
    """
    import yaml

    loader, depth = getattr(yaml, "CSafeLoader", yaml.SafeLoader), 0
    try:
        for event in yaml.parse(text, loader):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("it has an alias; write out the value instead")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ValueError(TOO_DEEP)
        return yaml.load(text, loader)
    except yaml.YAMLError as error:
        raise ValueError(in_one_line(error)) from None


def is_deep(value: object) -> bool:
    """Return whether lists and mappings are nested more than `MAX_DEPTH` deep."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH + 1):
        inner = (item for item in level if isinstance(item, (Mapping, list, tuple)))
        groups = (item.values() if isinstance(item, Mapping) else item for item in inner)
        level = [item for group in groups for item in group]
        if not level:
            return False
    return True


def read_lines(
    path: Path, encoding: str = "utf-8", advice: str = ADVICE, in_blocks: bool = False, keeps_returns: bool = False
) -> Iterator[tuple[int, str]]:
    """Read the lines of a file or pipe, numbered from 1, or its blocks; decompress it. For the options see `numbered_lines`.

    Raises InputError if it is missing, damaged or not text; the message has the line number.
    """
    with _opened(path, str(path)) as file:
        yield from numbered_lines(unpacked(file, path), path, encoding, advice, in_blocks, keeps_returns)


def _opened(path: Path, named: str) -> io.BufferedReader:
    """Open a file, to be looked into before it is read; `named` is its name in messages."""
    with refusing(FileNotFoundError, lambda _: f"{named}: no such file"):
        return cast(io.BufferedReader, path.open("rb", buffering=PEEKED_BYTES))


@contextlib.contextmanager
def opened_input(name: str) -> Iterator[tuple[io.BufferedReader, int | None]]:
    """Open the file of `input=`, or standard input for `-`; yield it with its size in bytes, None if unknown.

    Raises InputError if there is no such file, or it is a folder.
    """
    if name == "-":
        if sys.stdin is None:
            raise InputError("input=-: standard input is closed; give a file, or pipe text into the command")
        yield cast(io.BufferedReader, sys.stdin.buffer), None
        return
    path = Path(name)
    if path.is_dir():
        raise InputError(f"input={name} is a folder; give one of its files")
    with _opened(path, f"input={name}") as file:
        yield file, path.stat().st_size if path.is_file() else None


def unpacked(file: io.BufferedReader, name: Path) -> io.BufferedReader:
    """Return a stream of the decompressed bytes of a file; raises InputError if it is an archive.

    Whether it is compressed is seen by its name or its first bytes.
    """
    if packing := packing_of(name, file.peek(MAGIC_BYTES)[:MAGIC_BYTES]):
        file = io.BufferedReader(Blocks(unpacked_blocks(file, name, packing, LINE_MB)), PEEKED_BYTES)
    with unpacking(lambda: str(name)):
        head = file.peek(MAGIC_BYTES)
    kind = next((kind for magic, kind in _ARCHIVES.items() if head.startswith(magic)), "")
    if head.startswith(_ZIP):  # .xlsx is read by readers of tables
        kind = {".zip": f"a zip archive; {_UNPACK}", ".xlsx": ""}.get(name.suffix.lower(), kind)
    if head[257:].startswith(_TAR):
        kind = f"a tar archive; {_UNPACK}"
    if kind:
        raise InputError(f"{name}: {kind}")
    return file


def unpacking(where: Callable[[], str]) -> AbstractContextManager[None]:
    """Turn the error of a damaged file, compressed or of UTF-16, into an `InputError` that starts with `where()`."""
    return refusing(EOFError, lambda error: f"{where()}: {error}; restore it")


def is_text_encoding(name: str) -> bool:
    """Whether texts in this encoding can be read: UTF-16, or one in which a line feed is the byte 0x0a."""
    with contextlib.suppress(LookupError):
        return is_utf16(name) or "\n".encode(name) == b"\n"
    return False


def is_utf16(encoding: str) -> bool:
    """Whether this is a name of UTF-16; raises LookupError if no encoding has the name."""
    return codecs.lookup(encoding).name.startswith("utf-16")


class EncodedText(NamedTuple):
    """A file of text."""

    file: io.BufferedReader
    encoding: str


def as_utf8(file: io.BufferedReader, encoding: str) -> EncodedText:
    """Return a file and its encoding; UTF-16, by its byte order mark or the encoding, is converted to UTF-8."""
    has_mark = file.peek(2)[:2] in UTF_16
    known = "utf-16" if has_mark else codecs.lookup(encoding).name
    if not is_utf16(known):
        return EncodedText(file, encoding)
    decoder = codecs.getincrementaldecoder(
        "utf-16-le" if known == "utf-16" and not has_mark else known
    )  # as Windows writes it
    return EncodedText(io.BufferedReader(Blocks(utf8_blocks(file, decoder())), PEEKED_BYTES), "utf-8")


def numbered_lines(
    file: io.BufferedReader,
    name: Path,
    encoding: str = "utf-8",
    advice: str = ADVICE,
    in_blocks: bool = False,
    keeps_returns: bool = False,
) -> Iterator[tuple[int, str]]:
    """Read lines, numbered from 1, without line ends, or blocks as `text_blocks` does; `name` is used in error messages.

    `keeps_returns` keeps the carriage return before a line feed, since both may be in a quoted cell.
    """
    with unpacking(lambda: str(name)):
        file, encoding = as_utf8(file, encoding)
        read = text_blocks if in_blocks else line_blocks
        for first, lines in read(file, lambda number: f"{name}:{number}", encoding=encoding, advice=advice):
            for number, line in [(first, lines)] if isinstance(lines, str) else enumerate(lines, first):
                yield number, line if in_blocks or keeps_returns else line.removesuffix("\r")


def text_blocks(
    file: io.BufferedReader, where: Callable[[int], str], *, encoding: str, advice: str
) -> Iterator[tuple[int, str]]:
    """Read a text in blocks, each with the number of the line in which it begins; arguments and errors as for `line_blocks`."""
    decoder, number, block = codecs.getincrementaldecoder(encoding)(), 1, b"more"
    while block:
        block = file.read1(TEXT_BYTES)
        try:
            text = decoder.decode(block, not block)
        except UnicodeDecodeError as error:
            number += error.object.count(b"\n", 0, error.start)
            wrong = f"not {encoding.upper()} (byte 0x{error.object[error.start]:02x})"
            raise InputError(f"{where(number)}: {wrong}; {advice}") from None
        yield number, text
        number += text.count("\n")


def line_blocks(
    file: io.BufferedReader,
    where: Callable[[int], str],
    *,
    start: int = 0,
    end: int | None = None,
    encoding: str = "utf-8",
    advice: str = ADVICE,
) -> Iterator[tuple[int, list[str]]]:
    """Read blocks of lines, each with the number of its first line.

    Only a line feed ends a line, since U+2028 and similar characters occur inside sentences. If a line is invalid, the lines
    before it are yielded before the error is raised.

    The file is at its beginning; of its bytes, `start` to `end` (excluded) are read, without waiting for full blocks. For error
    messages `where` returns the place of a line number, and `advice` is what to do about another encoding. In `encoding` a line
    feed is the byte 0x0a. Raises InputError if a line is not text, or not in this encoding.
    """
    if start:
        file.seek(start)
    number, left = 1, None if end is None else end - start
    unfinished: list[bytes] = []
    length = 0
    while True:
        block = file.read1(TEXT_BYTES if left is None else min(TEXT_BYTES, left))
        left = None if left is None else left - len(block)
        end_of_lines = block.rfind(b"\n") + 1  # 0 if the block has no line feed
        unfinished.append(block[: end_of_lines or None])
        length = len(block) - end_of_lines if end_of_lines else length + len(block)
        if block and not end_of_lines and b"\0" not in block:
            if length > LINE_MB * 1_000_000:
                raise InputError(f"{where(number)}: a line {TOO_LONG}")
            continue
        if data := b"".join(unfinished):
            lines, fault = _decoded(data, encoding, advice)
            if start == 0 and number == 1 and lines:
                lines[0] = lines[0].lstrip("\ufeff")
            if lines:
                yield number, lines
            number += len(lines)
            if fault:
                raise InputError(f"{where(number)}: {fault}")
        unfinished = [block[end_of_lines:]]
        if not block:
            return


class _Decoded(NamedTuple):
    """The lines before the first invalid line, and what is wrong with that line; "" if all are valid."""

    lines: list[str]
    fault: str


def _decoded(data: bytes, encoding: str, advice: str) -> _Decoded:
    data = data.removesuffix(b"\n")
    if codecs.lookup(encoding).name == "utf-8" and b"\0" not in data:
        with contextlib.suppress(UnicodeDecodeError):
            return _Decoded(data.decode("utf-8").split("\n"), "")
    lines: list[str] = []
    for line in data.split(b"\n"):
        if b"\0" in line:
            zero = line.index(0) + 1
            return _Decoded(lines, f"not text (a zero byte at column {zero}); remove the file, or convert it to UTF-8")
        try:
            lines.append(line.decode(encoding))
        except UnicodeDecodeError as error:
            byte, column = line[error.start], error.start + 1
            return _Decoded(lines, f"not {encoding.upper()} (byte 0x{byte:02x} at column {column}); {advice}")
    return _Decoded(lines, "")
