"""What users are told: errors that they can act on, and lines that a terminal shows as they are.

Names of files, columns and labels, texts and command lines are others' words: a control character in them would move the
cursor, colour the screen or begin a line of its own. `shown` writes it as a mark; every error and every line that
bertkit prints goes through it, the latter by `say`.
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Sequence
from typing import TextIO

MAX_FINDINGS = 5  # of an error that are said
# C0, DEL, C1; marks, embeddings and isolates of direction; separators of lines; halves of pairs, as in names that are no UTF-8
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def shown(text: object) -> str:
    r"""Write a text in one line that no terminal takes for an order: ESC becomes `\x1b`, a line feed `\n`."""
    return _CONTROL.sub(_mark, str(text))


def _mark(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a name that is not UTF-8
        code -= 0xDC00
    return _SHORT.get(found[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def listed(texts: Sequence[str], most: int = 8) -> str:
    """Name several things in a line: of many the first ones, and how many more there are."""
    more = [f"and {len(texts) - most:,} more"] if len(texts) > most else []
    return "; ".join([*texts[:most], *more])


def in_markdown(text: object) -> str:
    """Write a text for a page of Markdown, such as a model card: one line without HTML, links, images or code."""
    safe = html.escape(shown(text), quote=False).replace("\\", "\\\\").replace("](", "]\\(")
    return safe.replace("|", "\\|").replace("`", "\\`")


def in_json(text: str) -> str:
    r"""Write JSON so that a terminal shows it as it is: what `shown` marks becomes `\u001b`, which reads back as before."""
    return _CONTROL.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)


def say(*lines: object, file: TextIO | None = None) -> None:
    """Print lines, each of them `shown`, at once: to standard output unless a file is given."""
    try:
        print("".join(f"{shown(line)}\n" for line in lines), end="", file=file or sys.stdout, flush=True)
    except OSError as error:
        error.filename = error.filename or "standard output"
        raise


class BertkitError(Exception):
    """A failure with a message for the user: what was wrong, where, what was expected, what to do."""

    exit_code = 1

    def __init__(self, *findings: object) -> None:
        """Take what was found, a line each."""
        super().__init__(*map(shown, findings))

    def __str__(self) -> str:
        return "\n".join(self.args)


class ParityError(BertkitError):
    """A model is not what its certificate says."""


class InputError(BertkitError):
    """Bad input or configuration; nothing was changed."""

    exit_code = 2


class LockedError(BertkitError):
    """The output directory is in use by a live run."""

    exit_code = 3


class StorageError(BertkitError):
    """A disk is full, read-only or failing."""

    exit_code = 4


class NumericsError(BertkitError):
    """A loss or gradient stopped being finite."""

    exit_code = 5


class PeerError(BertkitError):
    """Another process of the run died or hangs; all of them were ended."""

    exit_code = 6


class StoppedError(BertkitError):
    """The run was asked to stop; its checkpoint is saved and the same command resumes it."""

    exit_code = 75
