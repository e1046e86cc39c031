"""A library: one SQLite file that grows by transactions, and finds passages by the BM25 of FTS5.

    files      -> a file and the hash of its content; no hash while it is being read
    documents  -> every different document, once
    places     -> the places of a document in files; a document without a place is deleted
    passages   -> the parts of a document
    words      -> FTS5's index of the passages; it keeps no second copy of the text

After a kill the next run finds the committed documents by their hashes, so an interrupted index ends as one made in a single
run.

BM25 in FTS5 (sqlite.org/fts5.html, "The bm25() function"): the sum over the words q of a question of

    idf(q) * f(q) * (k1 + 1) / (f(q) + k1 * (1 - b + b * L / mean L)),   k1 = 1.2, b = 0.75
    idf(q) = ln((N - n(q) + 0.5) / (n(q) + 0.5)), or 1e-6 if more than half of the passages have the word

with f(q) the count of q in a passage and its title, L the number of words of the passage, N the number of passages, and n(q)
the number of passages with q.
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
from bertkit.search.library_file import APPLICATION, VERSION, check_library, connected, transaction, translated_errors
from bertkit.search.passages import LibraryDocument, Passage, cut, place_of, searchable, words_of

K1 = 1.2  # of BM25
FREQUENT_SHARE = 0.2  # of the passages: a word in more is frequent; the lowest p99, measured with 100,000 passages
MAX_COUNTS = 100_000  # words with a cached count
TRANSACTION_SECONDS = 2.0  # the work that a kill may cost
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
    """A passage for a question."""

    id: int | str  # of the passage in its engine
    passage: str  # its text
    title: str  # of its document; may be empty
    source: str  # its file
    place: str  # its place in the file
    score: float  # of the engine; more is better


@dataclass
class Added:
    """Counts of the documents of a file."""

    num_new: int = 0
    num_same: int = 0
    num_removed: int = 0


class Library:
    """A library open for reading; every thread has its own connection."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a library.

        Raises:
            InputError: there is no such file, or it is not a library.
        """
        self.path = Path(path)
        if not self.path.is_file():
            raise InputError(f"index={path}: no such file; make it with bertkit index corpus.path=... output={path}")
        check_library(self.path, "index")
        self._of_thread = threading.local()
        with translated_errors(self.path):
            (self.num_passages,) = self._connection.execute("SELECT count(*) FROM passages").fetchone()
        if not self.num_passages:
            raise InputError(f"index={path}: no passages in this library; run bertkit index again")

    @property
    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._of_thread, "connection", None)
        if connection is None:
            connection = self._of_thread.connection = connected(self.path, may_write=False)
        return connection

    def find(self, question: str, num_hits: int, more: Sequence[str] = (), *, fill: bool = False) -> list[Hit]:
        """Give the passages with the best BM25, the best first.

        Args:
            question: any text; punctuation is ignored.
            num_hits: at most.
            more: words added to the question.
            fill: give all passages of a library with no more than `num_hits`; without a word of the question they score 0.
        """
        words = words_of(question, more)
        with translated_errors(self.path):
            rows = self._best(words, num_hits) if words else []
            if fill and len(rows) < self.num_passages <= num_hits:
                seen = {row[0] for row in rows}
                rows += [row for row in self._connection.execute(_ALL) if row[0] not in seen]
        return [
            Hit(number, text, title, source or "", place_of(unit, place or 0, Passage(*where)), score)
            for number, score, text, title, unit, *where, source, place in rows
        ]

    def _best(self, words: Sequence[str], num_hits: int) -> list[tuple[Any, ...]]:
        """Find the best passages without scoring all.

        Many passages have a frequent word, and scoring them takes nearly all of the time. So the passages with a rare word
        come first. If `num_hits` of them score more than all frequent words can give together, they are the best (Turtle and
        Flood 1995, "max score"); else all passages are scored.
        """
        execute, counts = self._connection.execute, {word: self._num_with(word) for word in words}
        (total,) = execute("SELECT count(*) FROM passages").fetchone()
        frequent = [word for word, count in counts.items() if count > FREQUENT_SHARE * total]
        rare = [word for word, count in counts.items() if word not in frequent and count]
        if frequent and rare:
            idfs = (max(1e-6, math.log((total - counts[word] + 0.5) / (counts[word] + 0.5))) for word in frequent)
            most = sum((K1 + 1) * idf for idf in idfs)
            queries = (f"({_any(rare)}) {join} ({_any(frequent)})" for join in ("AND", "NOT"))
            rows = [row for query in queries for row in execute(_FIND, (query, num_hits))]
            rows = sorted(rows, key=lambda row: (-row[1], row[0]))[:num_hits]
            if len(rows) == num_hits and rows[-1][1] > most:
                return rows
        return execute(_FIND, (_any(words), num_hits)).fetchall()

    def _num_with(self, word: str) -> int:
        """Count the passages with a word; counts are cached until the library changes."""
        version = self._connection.execute("PRAGMA data_version").fetchone()
        counts: dict[str, int] = getattr(self._of_thread, "counts", {})
        if getattr(self._of_thread, "version", None) != version or len(counts) > MAX_COUNTS:
            counts = self._of_thread.counts = {}
            self._of_thread.version = version
        if word not in counts:
            count = "SELECT count(*) FROM words WHERE words MATCH ?"
            (counts[word],) = self._connection.execute(count, (_any([word]),)).fetchone()
        return counts[word]


def _any(words: Sequence[str]) -> str:
    """Write an FTS5 query for any of the words."""
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
    """Open a library for writing, or create it.

    Raises:
        InputError: the file is not a library, or it was made with other settings.
    """
    if path.exists():
        check_library(path, "output")
    with translated_errors(path), contextlib.closing(connected(path, may_write=True)) as connection:
        connection.execute("PRAGMA cache_size = -65536")  # 64 MiB
        with transaction(connection):
            if connection.execute("PRAGMA application_id").fetchone() == (0,):
                _make_tables(connection, settings)
        (made,) = connection.execute("SELECT value FROM settings WHERE name = 'passages'").fetchone()
        if json.loads(made) != dataclasses.asdict(settings):
            was = " ".join(f"passages.{name}={value}" for name, value in json.loads(made).items())
            raise InputError(f"output={path} was made with {was}; repeat them, or choose another file")
        connection.execute("CREATE TEMP TABLE seen (document INTEGER PRIMARY KEY)")
        yield LibraryWriter(connection, settings)


def _make_tables(connection: sqlite3.Connection, settings: PassagesConfig) -> None:
    for statement in filter(str.strip, _TABLES.split(";")):
        connection.execute(statement)
    # combining marks belong to their words, as in Hindi; FTS5's default is letters and numbers alone
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
    """A library open for writing."""

    def __init__(self, connection: sqlite3.Connection, settings: PassagesConfig) -> None:
        self._connection, self._settings = connection, settings

    def has(self, path: str, hash: str | None) -> bool:
        """Whether the library has this content of a file, whole."""
        return hash is not None and self._one("SELECT hash FROM files WHERE path = ?", path) == hash

    def add(self, path: str, hash: str | None, documents: Iterable[LibraryDocument]) -> Added:
        """Sync a file's documents: new ones are added, missing ones removed, and the others kept.

        Args:
            path: of the file, absolute.
            hash: of its content and the way of reading it; None if not known before.
            documents: in their order; equal ones count once.
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
                    if time.monotonic() - started_at > TRANSACTION_SECONDS:
                        is_last = False
                        break
                if is_last:
                    old = "SELECT document FROM places WHERE file = ? AND document NOT IN (SELECT document FROM temp.seen)"
                    added.num_removed = self._forget(file, old)
                    connection.execute("UPDATE files SET hash = ? WHERE id = ?", (hash, file))
                    return added

    def remove_others(self, paths: Iterable[str]) -> int:
        """Remove all files but these, with the documents that no other file has; give the number of removed files."""
        kept, gone = set(paths), 0
        for file, path in self._connection.execute("SELECT id, path FROM files").fetchall():
            if path not in kept:
                with transaction(self._connection):
                    self._forget(file, "SELECT document FROM places WHERE file = ?")
                    self._connection.execute("DELETE FROM files WHERE id = ?", (file,))
                gone += 1
        return gone

    def finish(self) -> dict[str, int]:
        """Optimize the index for size and speed; give the library's counts."""
        with transaction(self._connection):
            self._connection.execute("INSERT INTO words (words) VALUES ('optimize')")
        return self.counts()

    def counts(self) -> dict[str, int]:
        """Count files, documents and passages."""
        return {name: self._one(f"SELECT count(*) FROM {name}") for name in ("files", "documents", "passages")}

    def _take(self, document: LibraryDocument, file: int, added: Added) -> None:
        """Add a document if it is new, and note its place."""
        key, connection = document.key, self._connection
        known = self._one("SELECT id FROM documents WHERE key = ?", key)
        if known is None:
            row = (key, document.title, document.unit)
            known = connection.execute("INSERT INTO documents (key, title, unit) VALUES (?, ?, ?)", row).lastrowid
            title = searchable(document.title)
            for passage in cut(document, self._settings):
                text = document.text[passage.start : passage.end]
                number = connection.execute(
                    "INSERT INTO passages (document, text, start, end, first, last) VALUES (?, ?, ?, ?, ?, ?)",
                    (known, text, passage.start, passage.end, passage.first, passage.last),
                ).lastrowid
                connection.execute(
                    "INSERT INTO words (rowid, title, text) VALUES (?, ?, ?)", (number, title, searchable(text))
                )
            added.num_new += 1
        elif self._one("SELECT 1 FROM temp.seen WHERE document = ?", known):
            return
        else:
            added.num_same += 1
        connection.execute("INSERT INTO temp.seen VALUES (?)", (known,))
        place = "INSERT INTO places VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET number = excluded.number"
        connection.execute(place, (known, file, document.number))

    def _forget(self, file: int, documents: str) -> int:
        """Delete a file's places of some documents, and the documents without any other place; give their number."""
        connection, gone = self._connection, 0
        for (document,) in connection.execute(documents, (file,)).fetchall():
            connection.execute("DELETE FROM places WHERE document = ? AND file = ?", (document, file))
            if self._one("SELECT 1 FROM places WHERE document = ?", document) is not None:
                continue
            title = searchable(self._one("SELECT title FROM documents WHERE id = ?", document))
            for number, text in connection.execute(
                "SELECT id, text FROM passages WHERE document = ?", (document,)
            ).fetchall():
                row = (number, title, searchable(text))  # FTS5 keeps no text, so it needs the deleted one
                connection.execute("INSERT INTO words (words, rowid, title, text) VALUES ('delete', ?, ?, ?)", row)
            connection.execute("DELETE FROM passages WHERE document = ?", (document,))
            connection.execute("DELETE FROM documents WHERE id = ?", (document,))
            gone += 1
        return gone

    def _one(self, query: str, *values: Any) -> Any:
        """Give the first value of the first row; None without rows."""
        row = self._connection.execute(query, values).fetchone()
        return None if row is None else row[0]
