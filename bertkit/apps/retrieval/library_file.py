"""The SQLite file of a library: its tables, its checksum, opening it to read, and SQLite's errors.

A library file is never changed: `index` changes a copy, which then replaces the file. So it can be read without a lock, and
SQLite's own files beside it (-journal, -wal, -shm), which are not ours, are neither read nor written. Its checksum is in the
header, in four bytes that SQLite leaves to applications (`user_version`).
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import google_crc32c

from bertkit.apps.retrieval.vectors import Numbers
from bertkit.base.errors import InputError, StorageError
from bertkit.base.files import flush
from bertkit.base.typed_settings import build
from bertkit.data.data_config import PassagesConfig

APPLICATION = 0x62657274  # "bert", the application id in SQLite's header
VERSION = 4  # of the tables and of the words in the index
CHECKED_BYTES = 1 << 30  # of a larger library, a search checks the size only; CRC-32C takes 0.2 s for so many bytes
READ_SECONDS = 60  # the limit for a search; 100,000 passages take 0.01 s
STEPS = 100_000  # of SQLite's virtual machine, between two looks at the clock: some milliseconds
# sqlite.org/fileformat.html
_HEADER, _PAGE_SIZE_AT, _NUM_PAGES_AT, _CHECKSUM_AT, _APPLICATION_AT, _HEADER_BYTES = (
    b"SQLite format 3\0",
    16,
    28,
    60,
    68,
    100,
)
_TABLES = """BEGIN;
CREATE TABLE settings (/* version {version} */ name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE files (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, hash TEXT);
CREATE TABLE documents (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, title TEXT NOT NULL, unit TEXT NOT NULL,
                        columns TEXT NOT NULL);
CREATE TABLE places (document INTEGER, file INTEGER, number INTEGER NOT NULL, PRIMARY KEY (document, file)) WITHOUT ROWID;
CREATE INDEX places_of_file ON places (file);
CREATE TABLE passages (id INTEGER PRIMARY KEY, document INTEGER NOT NULL, text TEXT NOT NULL, start INTEGER NOT NULL,
                       end INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE INDEX passages_of_document ON passages (document);
CREATE VIRTUAL TABLE words USING fts5(title, text, content='', tokenize='{tokenize}');
CREATE VIRTUAL TABLE instances USING fts5vocab(words, instance);
CREATE TABLE postings (word TEXT PRIMARY KEY, passages BLOB NOT NULL);
INSERT INTO settings VALUES ('passages', '{settings}');
PRAGMA application_id = {application};
COMMIT"""
# a record of `vectors.py`; a deleted passage has no vector, and its id may be given again
_VECTORS = """CREATE TABLE vectors (passage INTEGER PRIMARY KEY, vector BLOB NOT NULL);
CREATE TRIGGER vector_of_passage AFTER DELETE ON passages BEGIN DELETE FROM vectors WHERE passage = old.id; END;"""


@dataclasses.dataclass(frozen=True)
class EncoderIdentity:
    """The model that made the vectors of a library; two are equal if their files and pooling are."""

    model_dir: str = dataclasses.field(compare=False)  # where it was
    hash: str
    dimension: int  # numbers in a vector
    numbers: Numbers = dataclasses.field(compare=False)  # as which the library stores them


def tokenizer_of(settings: PassagesConfig) -> str:
    """Return FTS5's tokenizer for a library, as an SQL text without its quotes."""
    # a word consists of letters, numbers and combining marks, which Hindi needs; FTS5's default leaves the marks out
    tokenize = f"unicode61 remove_diacritics {2 if settings.accents == 'drop' else 0} categories ''L* N* M* Co''"
    return f"porter {tokenize}" if settings.stemming == "english" else tokenize


def make_tables(connection: sqlite3.Connection, settings: PassagesConfig) -> None:
    """Make the tables of an empty library."""
    made = json.dumps(dataclasses.asdict(settings))
    tokenize = tokenizer_of(settings)
    connection.executescript(_TABLES.format(tokenize=tokenize, settings=made, application=APPLICATION, version=VERSION))


@contextlib.contextmanager
def damaged(what: str) -> Iterator[None]:
    """Turn errors about what a damaged library holds into SQLite's, with this message."""
    try:
        yield
    except (InputError, LookupError, TypeError, ValueError):
        raise sqlite3.DataError(what) from None


def stored_settings(connection: sqlite3.Connection) -> PassagesConfig:
    """Return how the documents of a library were cut into passages."""
    row = connection.execute("SELECT value FROM settings WHERE name = 'passages'").fetchone()
    with damaged("unreadable settings"):
        return build(PassagesConfig, json.loads(row[0]))


def make_vectors(connection: sqlite3.Connection, encoder: EncoderIdentity) -> None:
    """Make the table of the passages' vectors, without any; remember which model makes them."""
    with connection:
        connection.executescript(f"BEGIN;{_VECTORS}")
        made_by = json.dumps(dataclasses.asdict(encoder))
        connection.execute("INSERT INTO settings VALUES ('encoder', ?)", (made_by,))


def stored_encoder(connection: sqlite3.Connection) -> EncoderIdentity | None:
    """Return the model that made the vectors; None for a library without vectors."""
    row = connection.execute("SELECT value FROM settings WHERE name = 'encoder'").fetchone()
    with damaged("unreadable encoder"):
        return None if row is None else EncoderIdentity(**json.loads(row[0]))


def seal(path: Path) -> None:
    """Write the checksum of a library into its header, and flush the file to disk."""
    checksum = _checksum(path)
    with path.open("r+b") as file:
        file.seek(_CHECKSUM_AT)
        file.write(checksum)
    flush(path)


def _checksum(path: Path) -> bytes:
    """Compute the CRC-32C of a file, apart from the bytes that hold it."""
    with path.open("rb") as file:
        checksum = google_crc32c.value(file.read(_CHECKSUM_AT))
        file.seek(_CHECKSUM_AT + 4)
        while block := file.read(1 << 20):
            checksum = google_crc32c.extend(checksum, block)
    return int(checksum).to_bytes(4)


def _fault_of(path: Path, is_whole: bool) -> str | None:
    """Describe the damage of a library; None if it has none. Its bytes are checked with `is_whole`, or if they are few."""
    with path.open("rb") as file:
        head = file.read(_HEADER_BYTES)
    page_size = int.from_bytes(head[_PAGE_SIZE_AT : _PAGE_SIZE_AT + 2])
    expected, size = page_size * int.from_bytes(head[_NUM_PAGES_AT : _NUM_PAGES_AT + 4]), path.stat().st_size
    if size != expected:
        return f"{size:,} bytes, expected {expected:,}"
    is_checked = is_whole or size <= CHECKED_BYTES
    return "wrong checksum" if is_checked and _checksum(path) != head[_CHECKSUM_AT : _CHECKSUM_AT + 4] else None


def _schema(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()


@functools.cache
def _schemas() -> list[list[tuple[str, ...]]]:
    """Return the schema of a library for each of the settings that the tables depend on."""
    schemas = []
    for stemming, accents in itertools.product(("none", "english"), ("drop", "keep")):
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            make_tables(connection, PassagesConfig(1, 0, stemming, accents))  # type: ignore[arg-type]
            schemas.append(_schema(connection))
            connection.executescript(_VECTORS)
            schemas.append(_schema(connection))
    return schemas


def open_library(path: Path, setting: str) -> sqlite3.Connection:
    """Open a library for reading; raises InputError, which names the setting, if its tables are not those of this version."""
    if not path.is_file():
        raise InputError(f"{setting}={path} is a folder, or not a regular file; choose a file, such as library.db")
    with path.open("rb") as file:
        head = file.read(_HEADER_BYTES)
    application = int.from_bytes(head[_APPLICATION_AT : _APPLICATION_AT + 4])
    if not head.startswith(_HEADER) or application != APPLICATION:
        raise InputError(f"{setting}={path} is not a library of bertkit index; choose another file")
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    with using(connection, path, READ_SECONDS):
        connection.execute("PRAGMA trusted_schema = OFF")
        if _schema(connection) not in _schemas():
            raise sqlite3.DatabaseError("other tables than those of this version")
        if fault := _fault_of(path, is_whole=setting == "output"):
            raise sqlite3.DatabaseError(fault)
    return connection


@contextlib.contextmanager
def using(connection: sqlite3.Connection, path: Path, seconds: float = math.inf) -> Iterator[None]:
    """Limit the time of the block's queries; translate SQLite's errors: StorageError for the disk's, else InputError."""
    until = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > until, STEPS)
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter for a message of SQLite that is not UTF-8
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")):
            raise StorageError(
                f"{path}: {error}; committed documents are kept: free space or allow writing, and repeat the command"
            ) from None
        if name == "SQLITE_INTERRUPT":
            raise InputError(f"{path}: no result in {seconds} s; make a smaller library, or delete it") from None
        if "no such module" in str(error):
            version = sqlite3.sqlite_version
            raise InputError(f"{path}: Python's SQLite {version} has no FTS5; use another build of Python") from None
        reason = str(error)[:100]
        raise InputError(f"{path}: damaged library ({reason}); delete it and run bertkit index again") from None
