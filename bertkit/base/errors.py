"""Errors that users can act on, and output that is safe on a terminal.

File names, columns, labels and texts are untrusted. A control character in them could move the cursor, colour the screen or
start a new line, so `shown` escapes control characters. All errors and all printed lines are escaped by `shown`.
"""

import contextlib
import difflib
import functools
import html
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import TextIO, TypeVar

# what the user calls a setting that has another name here; "" for one that the user cannot set
user_names: ContextVar[Mapping[str, str]] = ContextVar("user_names", default=MappingProxyType({}))
INTERRUPTED = "interrupted before there was anything to save"
INTERRUPTED_CODE = 130  # 128 + SIGINT, as a shell reports it
MAX_FINDINGS = 5  # how many lines of one error are printed
MAX_LENGTH = 380  # characters of such a line
MAX_LISTED = 8  # how many names a message lists
# control characters (C0, DEL, C1), bidirectional controls, line separators, surrogates (from file names that are not UTF-8)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def user_name(setting: str) -> str:
    """Return a setting's name for a message, as the user types it: `text` for `task.columns.text`."""
    return user_names.get().get(setting, setting)


def shown(text: object) -> str:
    r"""Escape control characters; for example, ESC becomes `\x1b`, and a line feed `\n`."""
    return _CONTROL.sub(_escaped, str(text))


def in_brief(message: object) -> str:
    """Escape a message, hide passwords, and cut the middle out of a long one: it begins with the place and ends with the remedy."""
    text = re.sub(r"; use sys\.set_int_max_str_digits.*?limit", "", shown(message))  # advice for programmers
    text = re.sub(
        r"(\w:/+)[^/\s]+@", r"\1...@", text
    )  # the user and password in a URL, which may stand where a file is expected
    return text if len(text) <= MAX_LENGTH else f"{text[:220]} ... {text[220 + 5 - MAX_LENGTH :]}"


def in_one_line(error: BaseException) -> str:
    """Return the message of an error of another library, without line feeds; its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        code -= 0xDC00
    return _SHORT.get(match[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def listed(texts: Sequence[str], between: str = "; ", most: int = MAX_LISTED) -> str:
    """Join texts in one line; of many texts, name only the first ones and count the rest."""
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return between.join(texts[:most]) + more


def counted(number: float, noun: str) -> str:
    """Return a number with its noun, such as "1 row", "2,000 rows" or "2 processes"."""
    ending = "es" if noun.endswith(("s", "tch")) else "s"
    return f"{number:,.15g} {noun}{'' if number == 1 else ending}"


def named(names: Iterable[object], between: str = ", ") -> str:
    """List names such as columns or labels, in quotes; long ones are cut."""
    return listed([repr(str(name)[:30]) for name in names], between)


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar known name, whatever its case; None if none is similar."""
    by_lower = {one.lower(): one for one in known}
    match = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return by_lower[match[0]] if match else None


def by_similarity(names: Iterable[str], known: Sequence[str]) -> list[str]:
    """Return the known names, those first that are similar to one of these names."""
    by_lower = {one.lower(): one for one in known}
    near = (one for name in names for one in difflib.get_close_matches(name.lower(), by_lower, MAX_LISTED, cutoff=0.5))
    return list(dict.fromkeys([*map(by_lower.__getitem__, near), *known]))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" with the most similar known name; "" if none is similar."""
    match = closest(name, known)
    return "" if match is None else f"; did you mean '{match}'?"


def is_missing(value: object) -> bool:
    """Whether a value from Python stands for a missing text; pandas shows it as nan or <NA>."""
    return not isinstance(value, str) and str(value) in ("None", "nan", "<NA>")


def not_text(field: str, value: object) -> str:
    """Return the message about a field whose value is not a text."""
    wrong = "empty; fill it or drop the row" if is_missing(value) else f"{value!r:.80}; expected text"
    return f"'{field}' is {wrong}"


def check_distinct(columns: Iterable[object], where: str) -> None:
    """Raise InputError for two columns with the same name."""
    twice = [name for name, count in Counter(map(str, columns)).items() if count > 1]
    if twice:
        raise InputError(f"{where}: two columns {twice[0]!r:.80}; rename one of them")


def in_markdown(text: object) -> str:
    """Escape a text for Markdown; the result is one line without HTML, links, images or code."""
    safe = html.escape(shown(text), quote=False).replace("\\", "\\\\").replace("](", "]\\(")
    return safe.replace("|", "\\|").replace("`", "\\`")


def in_json(text: str) -> str:
    r"""Escape control characters in JSON, such as ESC as `\u001b`; a JSON parser restores them."""
    return _CONTROL.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


is_silent: ContextVar[bool] = ContextVar("is_silent", default=False)  # whether to print nothing on standard output


def say(*lines: object, file: TextIO | None = None) -> None:
    """Print lines, with control characters escaped, and flush."""
    if is_silent.get() and file in (None, sys.stdout):
        return
    try:
        print(
            "".join(f"{shown(line)}\n" for line in lines), end="", file=file or sys.stdout or sys.__stdout__, flush=True
        )
    except OSError as error:
        error.filename = error.filename or "standard output"
        raise


def warn(*lines: object) -> None:
    """Print warnings, each in a line, on standard error."""
    say(*(f"warning: {line}" for line in lines), file=sys.stderr)


def print_warnings_of_python() -> None:
    """Print warnings of Python in this process as all others: in a line, once, without their places in the code."""
    once = functools.cache(warn)
    warnings.showwarning = lambda message, *_: once(" ".join(str(message).split()))


def install_extra(extra: str) -> str:
    """Return what installs the packages of an extra, such as `serve`; bertkit itself is on no package index."""
    return f"pip install '.[{extra}]' in the directory of bertkit"


class BertkitError(Exception):
    """A failure with a message for the user: what was wrong, where, what was expected, what to do."""

    exit_code = 1

    def __init__(self, *lines: object) -> None:
        super().__init__(*map(in_brief, lines))

    def __str__(self) -> str:
        return "\n".join(self.args)


class ParityError(BertkitError):
    """A model does not match its certificate."""


class InputError(BertkitError):
    """Wrong input or settings; nothing was changed."""

    exit_code = 2

    def with_more(self, more: str) -> "InputError":
        """Return the error with more advice at its end."""
        return InputError(*self.args[:-1], f"{self.args[-1]}{more}")


ErrorT = TypeVar("ErrorT", bound=Exception)


@contextlib.contextmanager
def refusing(kinds: type[ErrorT] | tuple[type[ErrorT], ...], message: Callable[[ErrorT], str]) -> Iterator[None]:
    """Turn errors of some kinds, inside the block, into an InputError with this message about them."""
    try:
        yield
    except kinds as error:
        raise InputError(message(error)) from None


class LibraryError(InputError):
    """A library failed because of a model's file; the text is not at fault, so the server answers with status 500."""


class LockedError(BertkitError):
    """Another process is using the output directory."""

    exit_code = 3


class StorageError(BertkitError):
    """A disk is full, read-only or failing."""

    exit_code = 4


class NumericsError(BertkitError):
    """A loss or gradient is not finite."""

    exit_code = 5


class PeerError(BertkitError):
    """Another process of the run died or hangs; all processes are ended."""

    exit_code = 6


class StoppedError(BertkitError):
    """A signal stopped the run; its checkpoint is saved, and the same command resumes it."""

    exit_code = 75
