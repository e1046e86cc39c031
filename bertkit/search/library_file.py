"""The SQLite file of a library: whose it is, its connections and transactions, and what is said when they fail."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from bertkit.base.errors import InputError, LockedError, StorageError

APPLICATION = 0x62657274  # "bert": what SQLite's header says of whose file it is
VERSION = 1
SECONDS_OF_PATIENCE = 30.0  # with another process that is writing
_HEADER, _APPLICATION_AT = b"SQLite format 3\0", 68  # sqlite.org/fileformat.html


def check_library(path: Path, setting: str) -> None:
    """Refuse a file that is no library of this version; an empty one becomes one.

    Raises:
        InputError: naming what it is not.
    """
    with path.open("rb") as file:
        head = file.read(100)
    if not head and setting == "output":
        return
    application = int.from_bytes(head[_APPLICATION_AT : _APPLICATION_AT + 4])
    if not head.startswith(_HEADER) or application != APPLICATION:
        raise InputError(f"{setting}={path} is no library of bertkit index; choose another file")
    version = int.from_bytes(head[60:64])
    if version != VERSION:
        raise InputError(f"{setting}={path}: a library of version {version}, expected {VERSION}; make it again")


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """Say what SQLite says of a file in a line, as the error that it is.

    Raises:
        StorageError: the disk is full, read-only or failing.
        LockedError: another process writes for longer than anybody waits.
        InputError: the file is damaged, or Python has no FTS5.
    """
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")):
            raise StorageError(
                f"{path}: {error}; what was committed is kept: free space or let it be written, and run the same again"
            ) from None
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise LockedError(f"{path} is being written by another process; wait for it, or stop it") from None
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise InputError(f"{path}: a damaged library ({error}); delete it and index again") from None
        if "fts5" in str(error):
            raise InputError(
                f"{path}: the SQLite of this Python ({sqlite3.sqlite_version}) has no FTS5; take another"
            ) from None
        raise


def connected(path: Path, may_write: bool) -> sqlite3.Connection:
    """Open a file; what a killed writer left is rolled back where it may be written."""
    mode = "rwc" if may_write else "rw" if os.access(path, os.W_OK) else "ro"
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=SECONDS_OF_PATIENCE, isolation_level=None)
    if not may_write:
        connection.execute("PRAGMA query_only = 1")
    return connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit what is done inside, or none of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # a full disk has ended it already
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
