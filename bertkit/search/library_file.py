"""The SQLite file of a library: its header, connections, transactions and errors."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from bertkit.base.errors import InputError, LockedError, StorageError

APPLICATION = 0x62657274  # "bert", the application id in SQLite's header
VERSION = 1
WAIT_SECONDS = 30.0  # for another process that is writing
_HEADER, _APPLICATION_AT = b"SQLite format 3\0", 68  # sqlite.org/fileformat.html


def check_library(path: Path, setting: str) -> None:
    """Refuse a file that is not a library of this version; an empty output is accepted.

    Raises:
        InputError: naming the setting.
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
        raise InputError(f"{setting}={path}: a library of version {version}, expected {VERSION}; index again")


@contextlib.contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as bertkit's.

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
            raise InputError(f"{path}: damaged library ({error}); delete it and index again") from None
        if "fts5" in str(error):
            version = sqlite3.sqlite_version
            raise InputError(f"{path}: this Python's SQLite {version} has no FTS5; take another Python") from None
        raise


def connected(path: Path, may_write: bool) -> sqlite3.Connection:
    """Open a file; SQLite rolls back what a killed writer left, if the file is writable."""
    mode = "rwc" if may_write else "rw" if os.access(path, os.W_OK) else "ro"
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=WAIT_SECONDS, isolation_level=None)
    if not may_write:
        connection.execute("PRAGMA query_only = 1")
    return connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit all statements inside, or none."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # a full disk has ended it already
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
