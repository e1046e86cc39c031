"""A library on the disk: one SQLite file that grows by transactions, and finds passages by the BM25 of FTS5.

    files      -> a file that was read, and the hash of what was read; none while it is being read
    documents  -> each different document, once
    places     -> where a document stands in a file; a document without a place is gone
    passages   -> its parts
    words      -> FTS5's index of them; `searchable` text goes in, and none of it is kept a second time

What a transaction wrote is there; what a killed process had not committed, the next one does again, and finds what is there
by its hash. So an interrupted index becomes the one that a single run makes.

BM25 as FTS5 has it (sqlite.org/fts5.html, "The bm25() function"): the sum over the words q of a question of

    idf(q) * f(q) * (k1 + 1) / (f(q) + k1 * (1 - b + b * L / mean L)),   k1 = 1.2, b = 0.75
    idf(q) = ln((N - n(q) + 0.5) / (n(q) + 0.5)), or 1e-6 where more than half of the passages have the word

with f(q) the times that a passage has it, title included, L its words, N the passages, n(q) those that have it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError
from bertkit.data.data_config import PassagesConfig
from bertkit.search.library_file import APPLICATION, VERSION, check_library, connected, told, transaction
from bertkit.search.passages import LibraryDocument, Passage, cut, place_of, searchable, words_of

K1 = 1.2  # of BM25
FREQUENT_SHARE = 0.2  # of the passages, from which on a word is frequent; measured on 100,000: the least p99
MOST_KEPT = 100_000  # words whose counts are remembered
SECONDS_OF_A_TRANSACTION = 2.0  # of work that a kill may cost
_TABLES = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE files (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, hash TEXT);
CREATE TABLE documents (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, title TEXT NOT NULL, unit TEXT NOT NULL);
CREATE TABLE places (document INTEGER, file INTEGER, number INTEGER NOT NULL, PRIMARY KEY (document, file)) WITHOUT ROWID;
CREATE INDEX places_of_file ON places (file);
CREATE TABLE passages (id INTEGER PRIMARY KEY, document INTEGER NOT NULL, text TEXT NOT NULL, start INTEGER NOT NULL,
                       end INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE INDEX passages_of_document ON passages (document);
"""


@dataclass(frozen=True)
class Hit:
    """A passage that was found."""

    id: int | str  # of the passage in its engine
    passage: str  # its text
    title: str  # of its document; may be empty
    source: str  # the file that it is from
    place: str  # where it stands there
    score: float  # how well it fits the question, by the engine; more is better


@dataclass
class Added:
    """What became of the documents of a file."""

    num_new: int = 0
    num_same: int = 0
    num_removed: int = 0


class Library:
    """A library that is open for reading; each thread has a connection of its own."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a library.

        Raises:
            InputError: there is none, or the file is something else.
        """
        self.path = Path(path)
        if not self.path.is_file():
            raise InputError(f"index={path}: no such file; make it with bertkit index corpus.path=... output={path}")
        check_library(self.path, "index")
        self._of_thread = threading.local()
        with told(self.path):
            (self.num_passages,) = self._connection.execute("SELECT count(*) FROM passages").fetchone()
        if not self.num_passages:
            raise InputError(f"index={path}: no passages in this library; run bertkit index again")

    @property
    def _connection(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._of_thread, "connection", None)
        if found is None:
            found = self._of_thread.connection = connected(self.path, may_write=False)
        return found

    def find(self, question: str, num_hits: int, more: Sequence[str] = (), *, fill: bool = False) -> list[Hit]:
        """Give the passages with the best BM25, the best first.

        Args:
            question: any text; its signs mean nothing.
            num_hits: as many at most.
            more: words that widen the question.
            fill: of a library that has no more than `num_hits`, give all; those without a word of the question score 0.
        """
        words = words_of(question, more)
        with told(self.path):
            found = self._best(words, num_hits) if words else []
            if fill and len(found) < self.num_passages <= num_hits:
                seen = {row[0] for row in found}
                found += [row for row in self._connection.execute(_ALL) if row[0] not in seen]
        return [
            Hit(number, text, title, source or "", place_of(unit, place or 0, Passage(*where)), score)
            for number, score, text, title, unit, *where, source, place in found
        ]

    def _best(self, words: Sequence[str], num_hits: int) -> list[tuple[Any, ...]]:
        """Score no more passages than it takes.

        The passages with a frequent word are many, and their scores take nearly all of the time. So those with a word that
        is not frequent come first. When as many of them as are wanted score more than all frequent words together can give,
        no other passage can be among the best (Turtle and Flood 1995, "max score"); else all are scored.
        """
        some = {word: self._num_with(word) for word in words}
        (num_passages,) = self._connection.execute("SELECT count(*) FROM passages").fetchone()
        frequent = [word for word, num_with in some.items() if num_with > FREQUENT_SHARE * num_passages]
        rare = [word for word, num_with in some.items() if word not in frequent and num_with]
        if frequent and rare:
            most = sum(
                (K1 + 1) * max(1e-6, math.log((num_passages - some[word] + 0.5) / (some[word] + 0.5)))
                for word in frequent
            )
            found = [
                row
                for join in ("AND", "NOT")
                for row in self._connection.execute(_FIND, (f"({_any(rare)}) {join} ({_any(frequent)})", num_hits))
            ]
            found = sorted(found, key=lambda row: (-row[1], row[0]))[:num_hits]
            if len(found) == num_hits and found[-1][1] > most:
                return found
        return self._connection.execute(_FIND, (_any(words), num_hits)).fetchall()

    def _num_with(self, word: str) -> int:
        """Count the passages with a word; kept until somebody writes."""
        version = self._connection.execute("PRAGMA data_version").fetchone()
        kept: dict[str, int] = getattr(self._of_thread, "kept", {})
        if getattr(self._of_thread, "version", None) != version or len(kept) > MOST_KEPT:
            kept = self._of_thread.kept = {}
            self._of_thread.version = version
        if word not in kept:
            count = "SELECT count(*) FROM words WHERE words MATCH ?"
            (kept[word],) = self._connection.execute(count, (_any([word]),)).fetchone()
        return kept[word]


def _any(words: Sequence[str]) -> str:
    """Write a query of FTS5 for any of some words."""
    return " OR ".join(f'"{word}"' for word in words)


_PARTS = """p.text, d.title, d.unit, p.start, p.end, p.first, p.last, f.path, l.number
FROM {} JOIN passages p ON p.id = {} JOIN documents d ON d.id = p.document
LEFT JOIN places l ON l.document = d.id AND l.file = (
    SELECT files.id FROM places JOIN files ON files.id = places.file WHERE places.document = d.id ORDER BY path LIMIT 1)
LEFT JOIN files f ON f.id = l.file"""
_FOUND = (
    "(SELECT rowid AS place, -bm25(words) AS score FROM words WHERE words MATCH ? ORDER BY bm25(words), rowid LIMIT ?)"
)
_FIND = f"SELECT p.id, score, {_PARTS.format(_FOUND, 'place')} ORDER BY score DESC, p.id"
_ALL = f"SELECT p.id, 0.0, {_PARTS.format('(SELECT id AS place FROM passages)', 'place')} ORDER BY p.id"


@contextlib.contextmanager
def opened_for_writing(path: Path, settings: PassagesConfig) -> Iterator[LibraryWriter]:
    """Open a library to write to, or make one.

    Raises:
        InputError: the file is something else, or it was made with other settings.
    """
    if path.exists():
        check_library(path, "output")
    with told(path), contextlib.closing(connected(path, may_write=True)) as connection:
        connection.execute("PRAGMA cache_size = -65536")  # 64 MiB
        with transaction(connection):
            if connection.execute("PRAGMA application_id").fetchone() == (0,):
                _make_tables(connection, settings)
        (made,) = connection.execute("SELECT value FROM settings WHERE name = 'passages'").fetchone()
        if json.loads(made) != dataclasses.asdict(settings):
            was = " ".join(f"passages.{name}={value}" for name, value in json.loads(made).items())
            raise InputError(f"output={path} was made with {was}; give the same, or choose another file")
        connection.execute("CREATE TEMP TABLE seen (document INTEGER PRIMARY KEY)")
        yield LibraryWriter(connection, settings)


def _make_tables(connection: sqlite3.Connection, settings: PassagesConfig) -> None:
    for statement in filter(str.strip, _TABLES.split(";")):
        connection.execute(statement)
    # marks belong to the words that they are written with, as in Hindi; FTS5 knows letters and numbers alone
    drop = 2 if settings.accents == "drop" else 0
    tokenize = f"unicode61 remove_diacritics {drop} categories ''L* N* M* Co''"
    if settings.stemming == "english":
        tokenize = f"porter {tokenize}"
    connection.execute(f"CREATE VIRTUAL TABLE words USING fts5(title, text, content='', tokenize='{tokenize}')")
    made = json.dumps(dataclasses.asdict(settings))
    connection.execute("INSERT INTO settings VALUES ('passages', ?)", (made,))
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


class LibraryWriter:
    """A library that is open for writing."""

    def __init__(self, connection: sqlite3.Connection, settings: PassagesConfig) -> None:
        self._connection, self._settings = connection, settings

    def has(self, path: str, hash: str | None) -> bool:
        """Whether all of a file is there as it is now."""
        return hash is not None and self._one("SELECT hash FROM files WHERE path = ?", path) == hash

    def add(self, path: str, hash: str | None, documents: Iterable[LibraryDocument]) -> Added:
        """Make a file's documents those that it has now; what is there already is left as it is.

        Args:
            path: of the file, absolute.
            hash: of what is in it and how it is read; None where that is not known before.
            documents: in their order; of several that are the same the first one counts.
        """
        connection, added = self._connection, Added()
        waiting = iter(documents)
        with transaction(connection):
            connection.execute("INSERT INTO files (path) VALUES (?) ON CONFLICT DO UPDATE SET hash = NULL", (path,))
            file = self._one("SELECT id FROM files WHERE path = ?", path)
            connection.execute("DELETE FROM temp.seen")
        while True:
            with transaction(connection):
                started_at, is_last = time.monotonic(), True
                for document in waiting:
                    self._take(document, file, added)
                    if time.monotonic() - started_at > SECONDS_OF_A_TRANSACTION:
                        is_last = False
                        break
                if is_last:
                    old = "SELECT document FROM places WHERE file = ? AND document NOT IN (SELECT document FROM temp.seen)"
                    added.num_removed = self._forget(file, old)
                    connection.execute("UPDATE files SET hash = ? WHERE id = ?", (hash, file))
                    return added

    def remove_others(self, paths: Iterable[str]) -> int:
        """Take out the files that are not among some, and the documents that no other file has; give the files' number."""
        kept, gone = set(paths), 0
        for file, path in self._connection.execute("SELECT id, path FROM files").fetchall():
            if path not in kept:
                with transaction(self._connection):
                    self._forget(file, "SELECT document FROM places WHERE file = ?")
                    self._connection.execute("DELETE FROM files WHERE id = ?", (file,))
                gone += 1
        return gone

    def finish(self) -> dict[str, int]:
        """Put the index in order, so that it is small and quick; give what is in the library."""
        with transaction(self._connection):
            self._connection.execute("INSERT INTO words (words) VALUES ('optimize')")
        return self.counts()

    def counts(self) -> dict[str, int]:
        """Give how many files, documents and passages there are."""
        return {name: self._one(f"SELECT count(*) FROM {name}") for name in ("files", "documents", "passages")}

    def _take(self, document: LibraryDocument, file: int, added: Added) -> None:
        """Put a document in unless it is there, and note its place."""
        key, connection = document.key, self._connection
        found = self._one("SELECT id FROM documents WHERE key = ?", key)
        if found is None:
            row = (key, document.title, document.unit)
            found = connection.execute("INSERT INTO documents (key, title, unit) VALUES (?, ?, ?)", row).lastrowid
            title = searchable(document.title)
            for passage in cut(document, self._settings):
                text = document.text[passage.start : passage.end]
                number = connection.execute(
                    "INSERT INTO passages (document, text, start, end, first, last) VALUES (?, ?, ?, ?, ?, ?)",
                    (found, text, passage.start, passage.end, passage.first, passage.last),
                ).lastrowid
                connection.execute(
                    "INSERT INTO words (rowid, title, text) VALUES (?, ?, ?)", (number, title, searchable(text))
                )
            added.num_new += 1
        elif self._one("SELECT 1 FROM temp.seen WHERE document = ?", found):
            return
        else:
            added.num_same += 1
        connection.execute("INSERT INTO temp.seen VALUES (?)", (found,))
        place = "INSERT INTO places VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET number = excluded.number"
        connection.execute(place, (found, file, document.number))

    def _forget(self, file: int, documents: str) -> int:
        """Take a file's places of some documents out, and the documents that are left without one; give their number."""
        connection, gone = self._connection, 0
        for (document,) in connection.execute(documents, (file,)).fetchall():
            connection.execute("DELETE FROM places WHERE document = ? AND file = ?", (document, file))
            if self._one("SELECT 1 FROM places WHERE document = ?", document) is not None:
                continue
            title = searchable(self._one("SELECT title FROM documents WHERE id = ?", document))
            for number, text in connection.execute(
                "SELECT id, text FROM passages WHERE document = ?", (document,)
            ).fetchall():
                row = (number, title, searchable(text))  # FTS5 has to be told what it forgets
                connection.execute("INSERT INTO words (words, rowid, title, text) VALUES ('delete', ?, ?, ?)", row)
            connection.execute("DELETE FROM passages WHERE document = ?", (document,))
            connection.execute("DELETE FROM documents WHERE id = ?", (document,))
            gone += 1
        return gone

    def _one(self, query: str, *values: Any) -> Any:
        """Give the first value of the first row; None where there is none."""
        row = self._connection.execute(query, values).fetchone()
        return None if row is None else row[0]
