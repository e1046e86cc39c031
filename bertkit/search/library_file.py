"""The SQLite file of a library: checking its header, connecting, transactions, and SQLite's errors."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from bertkit.base.errors import InputError, LockedError, StorageError

APPLICATION = 0x62657274  # "bert", the application id in SQLite's header
VERSION = 1
WAIT_SECONDS = 30.0  # how long to wait for another process that is writing
_HEADER, _APPLICATION_AT = b"SQLite format 3\0", 68  # sqlite.org/fileformat.html


def check_library(path: Path, setting: str) -> None:
    """Check that a file is a library of this version; an empty file is accepted as `output`.

    Raises:
        InputError: it is not; the message names the setting.
    """
    with path.open("rb") as file:
        head = file.read(100)
    if not head and setting == "output":
        return
    application = int.from_bytes(head[_APPLICATION_AT : _APPLICATION_AT + 4])
    if not head.startswith(_HEADER) or application != APPLICATION:
        raise InputError(f"{setting}={path} is not a library of bertkit index; choose another file")
    version = int.from_bytes(head[60:64])
    if version != VERSION:
        raise InputError(f"{setting}={path}: library version {version}, expected {VERSION}; run bertkit index again")


@contextlib.contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Translate SQLite's errors into bertkit's.

    Raises:
        StorageError: the disk is full, read-only or failing.
        LockedError: another process has been writing for WAIT_SECONDS.
        InputError: the file is damaged, or Python has no FTS5.
    """
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")):
            raise StorageError(
                f"{path}: {error}; committed documents are kept: free space or allow writing, and repeat the command"
            ) from None
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise LockedError(f"{path} is being written by another process; wait for it, or stop it") from None
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise InputError(f"{path}: damaged library ({error}); delete it and run bertkit index again") from None
        if "fts5" in str(error):
            version = sqlite3.sqlite_version
            raise InputError(f"{path}: Python's SQLite {version} has no FTS5; use another build of Python") from None
        raise


def connect(path: Path, may_write: bool) -> sqlite3.Connection:
    """Open the file; if it is writable, SQLite rolls back the unfinished transaction of a killed process."""
    mode = "rwc" if may_write else "rw" if os.access(path, os.W_OK) else "ro"
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=WAIT_SECONDS, isolation_level=None)
    if not may_write:
        connection.execute("PRAGMA query_only = 1")
    return connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit all statements of the block, or none."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:  # commits, or after an error rolls back, unless SQLite has done so already (full disk)
        yield
