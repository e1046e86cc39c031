"""A library of passages in one SQLite file, with BM25 search by SQLite's extension FTS5.

It has these tables:

    settings   how documents were cut into passages
    files      path and content hash of each indexed file; no hash while the file is being indexed
    documents  title and hash of each different document
    places     where each document is in the files; a document without a place is deleted
    passages   the passages of the documents, with their text
    words      FTS5's index of the passages, without another copy of the text

Documents are added in transactions, to a copy that replaces the library at the end. If `index` is killed, the next run
continues from this copy; it recognizes the committed documents by their hashes, and the result is that of a single run.

BM25 in FTS5 (sqlite.org/fts5.html, "The bm25() function") is the sum, over the words q of a question, of

    idf(q) * f(q) * (k1 + 1) / (f(q) + k1 * (1 - b + b * L / mean L)),   k1 = 1.2, b = 0.75
    idf(q) = ln((N - n(q) + 0.5) / (n(q) + 0.5)), or 1e-6 if more than half of the passages have the word

where f(q) is the count of q in a passage and its title, L the number of words in the passage, N the number of passages, and
n(q) the number of passages with q.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import re
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.base.errors import InputError
from bertkit.base.files import UNFINISHED, flush, partial_dir, writing
from bertkit.data.data_config import PassagesConfig
from bertkit.retrieval import library_file
from bertkit.retrieval.library_file import make_tables, open_library, seal, using
from bertkit.retrieval.passages import LibraryDocument, Passage, cut, place_of, searchable, words_of

K1 = 1.2  # BM25's k1, which FTS5 fixes
FREQUENT_SHARE = 0.2  # words in more of the passages are frequent; 0.2 has the lowest p99 latency with 100,000 passages
MAX_CACHED_COUNTS = 100_000
TRANSACTION_SECONDS = 2.0  # the most work that is lost if the process is killed


@dataclass(frozen=True)
class Hit:
    """A passage found for a question."""

    id: int | str  # id of the passage
    passage: str  # text of the passage
    title: str  # title of its document; may be empty
    source: str  # path of its file, from the folder of all the library's files
    place: str  # its place in the file, such as "lines 3-5"
    score: float  # BM25; larger is better


class _FoundRow(NamedTuple):
    """A passage found, as a query returns it."""

    id: int
    score: float
    text: str
    title: str
    unit: str
    start: int
    end: int
    first: int
    last: int
    source: str
    number: int  # of the document in its file

    @property
    def place(self) -> str:
        """The place of the passage in its file."""
        return place_of(self.unit, self.number, Passage(self.start, self.end, self.first, self.last))


class Library:
    """A library open for reading, by one thread at a time; when `index` replaces the file, the next search opens it again."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a library; raises InputError if the file is missing, damaged or something else."""
        self.path, self._version = Path(os.path.expanduser(path)), (0, 0)
        if not self.path.exists():
            raise InputError(f"index={path}: no such file; make it with bertkit index corpus.path=... output={path}")
        self._open()

    def _open(self) -> None:
        """Open the file, if it is another one than before."""
        state = self.path.stat()
        if self._version == (state.st_ino, state.st_mtime_ns):
            return
        connection = open_library(self.path, "index")
        with using(connection, self.path, library_file.READ_SECONDS):  # not count(*), which cannot be interrupted
            (num_passages,) = connection.execute("SELECT count(document) FROM passages").fetchone()
            ends = [str(path) for path in connection.execute(_FIRST_AND_LAST).fetchone()]
        if not num_passages:
            raise InputError(f"index={self.path}: no passages in this library; run bertkit index again")

        @functools.lru_cache(MAX_CACHED_COUNTS)
        def num_with(word: str) -> int:
            count = "SELECT count(*) FROM words WHERE words MATCH ?"
            return int(connection.execute(count, (_any([word]),)).fetchone()[0])

        self._connection, self._num_with, self.num_passages = connection, num_with, int(num_passages)
        self._version = (state.st_ino, state.st_mtime_ns)
        common = os.path.commonprefix(ends)  # noqa: RUF071  # of two texts, cut to a folder below
        self._folder = common[: common.rfind("/") + 1] if common.startswith("/") else ""  # of all files

    def find(self, question: str, num_hits: int, more: Sequence[str] = (), *, add_rest: bool = False) -> list[Hit]:
        """Return the passages with the highest BM25 for a question and `more` words, the best first.

        With `add_rest`, if the library has at most `num_hits` passages, return all; the rest, without such words, score 0.
        """
        words = words_of(question, more)
        with contextlib.suppress(OSError, InputError):  # without another library that can be read, this one stays
            self._open()
        with using(self._connection, self.path, library_file.READ_SECONDS):
            rows = self._best(words, num_hits) if words else []
            if add_rest and len(rows) < self.num_passages <= num_hits:
                seen = {row.id for row in rows}
                rows += [row for row in self._rows(_ALL) if row.id not in seen]
        return [
            Hit(row.id, row.text, row.title, row.source.removeprefix(self._folder), row.place, row.score)
            for row in rows
        ]

    def _best(self, words: Sequence[str], num_hits: int) -> list[_FoundRow]:
        """Find the best passages, if possible without scoring all passages that match.

        Nearly all of the time is spent on passages that have only frequent words. So the passages with a rare word are scored
        first. If `num_hits` of them score more than the highest possible score of the frequent words alone, they are the best
        (Turtle and Flood 1995, "max score"). Otherwise all matching passages are scored.
        """
        total = self.num_passages
        counts = {word: self._num_with(word) for word in words}
        if max(counts.values()) > total:
            raise sqlite3.DataError("more passages in the index than there are")
        frequent = [word for word, count in counts.items() if count > FREQUENT_SHARE * total]
        rare = [word for word, count in counts.items() if word not in frequent and count]
        if frequent and rare:
            idfs = (max(1e-6, math.log((total - counts[word] + 0.5) / (counts[word] + 0.5))) for word in frequent)
            max_score = sum((K1 + 1) * idf for idf in idfs)
            queries = (f"({_any(rare)}) {join} ({_any(frequent)})" for join in ("AND", "NOT"))
            rows = [row for query in queries for row in self._rows(_FIND, query, num_hits)]
            rows = sorted(rows, key=lambda row: (-row.score, row.id))[:num_hits]
            if len(rows) == num_hits and rows[-1].score > max_score:
                return rows
        return self._rows(_FIND, _any(words), num_hits)

    def _rows(self, query: str, *values: str | int) -> list[_FoundRow]:
        """Return the rows of a query for passages; in a damaged library a column may have values of any type."""
        rows = self._connection.execute(query, values).fetchall()
        if any(tuple(map(type, row)) != _TYPES for row in rows):
            raise sqlite3.DataError("a value of another type than its column")
        return [_FoundRow(*row) for row in rows]


def _any(words: Sequence[str]) -> str:
    """Return an FTS5 query for passages with any of the words."""
    return " OR ".join(f'"{word}"' for word in words)


_FIRST_AND_LAST = "SELECT min(path), max(path) FROM files"  # what these share, all share
_TYPES = (int, float, str, str, str, int, int, int, int, str, int)  # of the columns below
_PARTS = """p.text, d.title, d.unit, p.start, p.end, p.first, p.last, coalesce(f.path, ''), coalesce(l.number, 0)
FROM {} JOIN passages p ON p.id = {} JOIN documents d ON d.id = p.document
LEFT JOIN places l ON l.document = d.id AND l.file = (
    SELECT files.id FROM places JOIN files ON files.id = places.file WHERE places.document = d.id ORDER BY path LIMIT 1)
LEFT JOIN files f ON f.id = l.file"""
_FOUND = (
    "(SELECT rowid AS place, -bm25(words) AS score FROM words WHERE words MATCH ? ORDER BY bm25(words), rowid LIMIT ?)"
)
_FIND = f"SELECT p.id, score, {_PARTS.format(_FOUND, 'place')} ORDER BY score DESC, p.id"
_ALL = f"SELECT p.id, 0.0, {_PARTS.format('(SELECT id AS place FROM passages)', 'place')} ORDER BY p.id"


def stored_hashes(path: Path, settings: PassagesConfig) -> dict[str, str | None]:
    """Return the files of a library, which must have these settings, with their hashes; none if it is yet to be made."""
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return {}
    expected = json.dumps(dataclasses.asdict(settings))
    with contextlib.closing(open_library(path, "output")) as connection, using(connection, path):
        row = connection.execute("SELECT value FROM settings WHERE name = 'passages'").fetchone()
        if row != (expected,):
            was = re.sub('[{}"]', "", str(row and row[0]))[:200]
            raise InputError(f"output={path} was made with other passages ({was}); repeat them, or choose another file")
        return dict(connection.execute("SELECT path, hash FROM files"))


@contextlib.contextmanager
def opened_for_writing(path: Path, settings: PassagesConfig, made_from: str = "") -> Iterator[LibraryWriter]:
    """Make a library, or change a copy of one that `stored_hashes` accepts; at the end it gets its name.

    After a kill, the next call with the same `made_from` continues.
    """
    path = path.resolve()  # a link stays
    state = path.stat() if path.exists() and path.stat().st_size else None
    made_from += repr((settings, state and (state.st_ino, state.st_size, state.st_mtime_ns)))
    with partial_dir(path, made_from) as folder:
        file = folder / UNFINISHED / "library.db"
        if state is not None and not file.exists():
            with path.open("rb") as old, writing(file, is_binary=True) as new:
                shutil.copyfileobj(old, new)
            shutil.copymode(path, file)
        with contextlib.closing(sqlite3.connect(file)) as connection, using(connection, path):
            connection.execute("PRAGMA cache_size = -65536")  # 64 MiB
            if connection.execute("PRAGMA application_id").fetchone() == (0,):
                make_tables(connection, settings)
            connection.execute("CREATE TEMP TABLE seen (document INTEGER PRIMARY KEY)")
            yield LibraryWriter(connection, settings)
        seal(file)
        file.replace(path)
        flush(path.parent)
        shutil.rmtree(folder)


class LibraryWriter:
    """A library open for writing."""

    def __init__(self, connection: sqlite3.Connection, settings: PassagesConfig) -> None:
        self._connection, self._settings = connection, settings

    def has(self, path: str, hash: str | None) -> bool:
        """Whether the library has the whole file, with this hash."""
        return hash is not None and self._one("SELECT hash FROM files WHERE path = ?", path) == hash

    def sync(self, path: str, hash: str | None, documents: Iterable[LibraryDocument]) -> Counter[str]:
        """Sync a file's documents: add the new ones, remove the missing ones, and keep the others; equal ones are added once.

        `path` is absolute; `hash` depends on the file's content and the settings for reading it, None if unknown. Returns how
        many documents are "new", "already stored" and "removed".
        """
        changes = Counter[str]()
        with self._connection as connection:  # commits at the end, or rolls back after an error
            connection.execute("INSERT INTO files (path) VALUES (?) ON CONFLICT DO UPDATE SET hash = NULL", (path,))
            file = self._one("SELECT id FROM files WHERE path = ?", path)
            connection.execute("DELETE FROM temp.seen")
            committed_at = time.monotonic()
            for document in documents:
                self._add(document, file, changes)
                if time.monotonic() - committed_at > TRANSACTION_SECONDS:
                    connection.commit()
                    committed_at = time.monotonic()
            old = "SELECT document FROM places WHERE file = ? AND document NOT IN (SELECT document FROM temp.seen)"
            changes["removed"] = self._remove(file, old)
            connection.execute("UPDATE files SET hash = ? WHERE id = ?", (hash, file))
        return changes

    def remove_others(self, kept: Container[str]) -> int:
        """Remove all other files, and the documents that only they have; return the number of removed files."""
        connection = self._connection
        files = connection.execute("SELECT id, path FROM files").fetchall()
        missing = [(file,) for file, path in files if path not in kept]
        with connection:
            for (file,) in missing:
                self._remove(file, "SELECT document FROM places WHERE file = ?")
            connection.executemany("DELETE FROM files WHERE id = ?", missing)
        return len(missing)

    def finish(self) -> dict[str, int]:
        """Optimize the index for size and speed; return the numbers of files, documents and passages."""
        with self._connection:
            self._connection.execute("INSERT INTO words (words) VALUES ('optimize')")
        return {name: self._one(f"SELECT count(*) FROM {name}") for name in ("files", "documents", "passages")}

    def _add(self, document: LibraryDocument, file: int, changes: Counter[str]) -> None:
        """Add a document if it is new, and store its place."""
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
                words = (number, title, searchable(text))
                connection.execute("INSERT INTO words (rowid, title, text) VALUES (?, ?, ?)", words)
            changes["new"] += 1
        elif self._one("SELECT 1 FROM temp.seen WHERE document = ?", known):
            return
        else:
            changes["already stored"] += 1
        connection.execute("INSERT INTO temp.seen VALUES (?)", (known,))
        place = "INSERT INTO places VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET number = excluded.number"
        connection.execute(place, (known, file, document.number))

    def _remove(self, file: int, documents: str) -> int:
        """Delete a file's places of some documents, selected by a query; delete and count documents without other places."""
        connection, num_removed = self._connection, 0
        for (document,) in connection.execute(documents, (file,)).fetchall():
            connection.execute("DELETE FROM places WHERE document = ? AND file = ?", (document, file))
            if self._one("SELECT 1 FROM places WHERE document = ?", document) is not None:
                continue
            title = searchable(str(self._one("SELECT title FROM documents WHERE id = ?", document)))
            passages = connection.execute("SELECT id, text FROM passages WHERE document = ?", (document,))
            for number, text in passages.fetchall():
                row = (number, title, searchable(str(text)))  # FTS5 has no copy of the text to delete
                connection.execute("INSERT INTO words (words, rowid, title, text) VALUES ('delete', ?, ?, ?)", row)
            connection.execute("DELETE FROM passages WHERE document = ?", (document,))
            connection.execute("DELETE FROM documents WHERE id = ?", (document,))
            num_removed += 1
        return num_removed

    def _one(self, query: str, *values: str | int | bytes) -> Any:
        """Return the first value of the first row, or None if there are no rows."""
        row = self._connection.execute(query, values).fetchone()
        return None if row is None else row[0]
