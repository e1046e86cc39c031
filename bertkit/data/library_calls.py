"""Calls of the library `tokenizers`, and what of a `tokenizer.json` it is not asked to do.

A file may make the library panic, which is no `Exception` and prints a stack, or let a few letters fill the memory. So files are
opened by `opened` alone, and every call is a `library_call`.
"""

import base64
import binascii
import contextlib
import math
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer

from bertkit.base.errors import InputError, LibraryError, say
from bertkit.base.memory import require_memory
from bertkit.base.text_files import JsonObject, JsonValue
from bertkit.base.typed_settings import at, refuse

MAX_PIECE = 1000  # characters; the longest of GPT-2 has 128
MAX_GROWTH = 1000  # times that a text may grow
MAX_WORD = 10_000  # characters; WordPiece's time grows with the square of a word's
BYTES_PER_CHARACTER = 350  # of Unigram's tree, for each character of its pieces (measured)
PROBE_CHARACTERS = 40  # of a text on which a pattern that goes back and forth fails
PROBED_CHARACTERS = 200  # of the patterns of a file, from which such texts are made
_started: dict[int, float] = {}  # when the call in each thread began


def running_seconds() -> float:
    """Return for how long the longest call has been running."""
    now = time.monotonic()
    return max((now - began for began in list(_started.values())), default=0.0)


@contextlib.contextmanager
def library_call() -> Iterator[None]:
    """Turn a panic of the library into a `LibraryError`; also a decorator. While there is one thread, the panic prints nothing."""
    thread = threading.get_ident()
    if thread in _started:  # inside another call
        yield
        return
    _started[thread] = time.monotonic()
    try:
        with _silencing_panics():
            yield
    except BaseException as error:
        if not _is_panic(error):
            raise
        raise LibraryError(
            f"the library `tokenizers` failed on a text ({_reason(error)}); repair tokenizer.json, or use another model"
        ) from None
    finally:
        del _started[thread]


@contextlib.contextmanager
def _silencing_panics() -> Iterator[None]:
    """Hold back what is written to standard error; after a panic, drop it. With other threads, which may print, do nothing."""
    if threading.active_count() > 1 or sys.stderr is None:
        yield
        return
    sys.stderr.flush()
    (read, write), kept = os.pipe(), os.dup(2)
    for end in (read, write):  # what a pipe cannot hold is lost
        os.set_blocking(end, False)
    os.dup2(write, 2)
    has_panicked = False
    try:
        yield
    except BaseException as error:
        has_panicked = _is_panic(error)
        raise
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(write)
        with open(read, "rb") as held, open(kept, "wb") as real:
            real.write(b"" if has_panicked else held.read())


def _is_panic(error: BaseException) -> bool:
    return type(error).__name__ == "PanicException"  # pyo3's, which no module has


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split("\n")[0].split())[:120]


def opened(path: Path, text: str, content: JsonObject) -> Tokenizer:
    """Build the library's tokenizer from a `tokenizer.json`, its text and its parsed content, as `tried` returns it.

    Raises InputError if the library cannot read it, or as `tried`, or if the file lets a short text fill the memory.
    """
    check_sizes(path, content)
    with _reading(path, content):
        library = Tokenizer.from_str(text)
    return tried(path, library, content)


def tried(path: Path, library: Tokenizer, content: JsonObject) -> Tokenizer:
    """Return a tokenizer that neither pads nor cuts texts, after it has encoded some; the same changes are made to `content`.

    The dropout of BPE is for training, and off. Raises InputError if the library fails on a text.
    """
    with _reading(path, content):
        library.no_padding()
        library.no_truncation()
        content["padding"] = None
        if dropout := at(content, "model.dropout"):
            library.model.dropout = content["model"]["dropout"] = None
            line = f"warning: {path}: model.dropout={dropout:.3g} is off: the same text always has the same tokens"
            say(line, file=sys.stderr)
        for probe in _probes(_patterns(content)):
            library.encode(probe)
        _check_ids(library)
    return library


@contextlib.contextmanager
def _reading(path: Path, content: JsonObject) -> Iterator[None]:
    """Turn errors and panics of the library into an InputError."""
    try:
        with _silencing_panics():
            yield
    except BaseException as error:
        if not (isinstance(error, Exception) or _is_panic(error)):
            raise
        wrong = f"model.type={at(content, 'model.type')}: not a tokenizer of the library `tokenizers`"
        raise InputError(f"{path}: {wrong} ({_reason(error)})") from None  # the library raises nothing more special


def _probes(patterns: list[str]) -> list[str]:
    """Return texts to try: one without any token, and for patterns those of one character, on which a slow one fails."""
    characters = dict.fromkeys("a0 A_" + "".join(patterns)[:PROBED_CHARACTERS]) if patterns else ()
    return ["\uffff", *(f"{character * PROBE_CHARACTERS}\0" for character in characters)]


def _check_ids(library: Tokenizer) -> None:
    """Raise ValueError if the post-processor gives a token another id than the vocabulary."""
    for one in (library.encode(""), library.encode("", "")):
        for token, number in zip(one.tokens, one.ids, strict=True):
            if (known := library.token_to_id(token)) not in (number, None):
                raise ValueError(f"the post_processor gives {token} the id {number}, the vocabulary {known}")


def check_sizes(path: Path, content: JsonObject) -> None:
    """Raise InputError for what lets a small file, or a short text, fill the memory."""
    vocab, added = at(content, "model.vocab"), at(content, "added_tokens")
    pieces, ids = list(_pieces(vocab)), vocab if isinstance(vocab, dict) else {}
    names = [token.get("content") for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    longest = max((len(piece) for piece in [*pieces, *names] if isinstance(piece, str)), default=0)
    most = at(content, "model.max_input_chars_per_word")
    counts = [int(number) for pattern in _patterns(content) for number in re.findall(r"[{,](\d{1,9})(?=[,}])", pattern)]
    growths = {part: _growth(at(content, part)) for part in ("normalizer", "decoder")}
    refuse(
        [f"{path}: model.vocab.{k}={v!r:.80}: expected a whole number" for k, v in ids.items() if type(v) is not int],
        longest > MAX_PIECE and f"{path}: a token of {longest:,} characters; expected at most {MAX_PIECE:,}",
        isinstance(most, int) and most > MAX_WORD
        and f"{path}: model.max_input_chars_per_word={most}: expected at most {MAX_WORD:,}",
        math.prod(counts) > MAX_GROWTH and f"{path}: a pattern that repeats {math.prod(counts):,} times; expected at most {MAX_GROWTH:,}",
        *(
            growth > MAX_GROWTH and f"{path}: {part}: it makes a character up to {growth:,} characters; expected at most {MAX_GROWTH:,}"
            for part, growth in growths.items()
        ),
    )  # fmt: skip
    if at(content, "model.type") == "Unigram":
        need = BYTES_PER_CHARACTER * sum(map(len, filter(None, pieces)))
        require_memory(f"{path}: its vocabulary", need, "use a smaller one")


def _pieces(vocab: JsonValue) -> Iterator[str]:
    """Yield the tokens of a model: the keys of a mapping, or for Unigram the first of each pair."""
    for piece in vocab if isinstance(vocab, (dict, list)) else ():
        name = piece[0] if isinstance(piece, list) and piece else piece
        if isinstance(name, str):
            yield name


def _parts(value: JsonValue) -> Iterator[JsonObject]:
    """Yield the mappings in a value, outermost first."""
    inner: Iterable[JsonValue] = ()
    match value:
        case dict():
            yield value
            inner = value.values()
        case list():
            inner = value
    for one in inner:
        yield from _parts(one)


def _patterns(content: JsonObject) -> list[str]:
    """List the regular expressions of a file."""
    places = (content.get(part) for part in ("normalizer", "pre_tokenizer", "decoder"))
    found = [part["Regex"] for place in places for part in _parts(place) if "Regex" in part]
    return [pattern for pattern in found if isinstance(pattern, str)]


def _growth(part: JsonValue) -> int:
    """Return the number of characters that replacements make of one, at most."""
    growth = 1
    for one in _parts(part):
        match one:
            case {"type": "Replace", "content": str() as new}:
                growth *= max(1, len(new))
            case {"type": "Precompiled", "precompiled_charsmap": str() as packed}:
                growth *= max(1, _longest_normal_form(packed))
    return growth


def _longest_normal_form(packed: str) -> int:
    """Return the size of the longest text in SentencePiece's table: the size of a tree, the tree, and texts that end with NUL."""
    with contextlib.suppress(binascii.Error, ValueError):
        table = base64.b64decode(packed)
        return max(map(len, table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")))
    return 0
