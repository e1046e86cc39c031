"""A library of passages in one SQLite file, with BM25 search by SQLite's extension FTS5.

It has these tables:

    settings   how documents were cut into passages
    files      path and content hash of each indexed file; no hash while the file is being indexed
    documents  title, hash and short columns of each different document
    places     where each document is in the files; a document without a place is deleted
    passages   the passages of the documents, with their text
    words      FTS5's index of the passages, without another copy of the text
    vectors    a vector for each passage; only in a library that was made with an encoder

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
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import InputError
from bertkit.retrieval import library_file
from bertkit.retrieval.library_file import open_library, stored_encoder, stored_settings, using
from bertkit.retrieval.passages import Passage, place_of, words_of
from bertkit.retrieval.snippets import Marker, Span

K1 = 1.2  # BM25's k1, which FTS5 fixes
FREQUENT_SHARE = 0.2  # words in more of the passages are frequent; 0.2 has the lowest p99 latency with 100,000 passages
MAX_CACHED_COUNTS = 100_000


@dataclass(frozen=True)
class Hit:
    """A passage found for a question."""

    id: int | str  # id of the passage
    passage: str  # text of the passage
    title: str  # title of its document; may be empty
    source: str  # path of its file, from the folder of all the library's files
    place: str  # its place in the file, such as "lines 3-5"
    document: str  # the column _id or id of its document, or the file and the number in it, such as "a.txt#3"
    score: float  # BM25; larger is better
    score_vectors: float | None = None  # the cosine of its vector and that of the question; None if there are none


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
    named: str  # its column _id or id; "" if it has none

    @property
    def place(self) -> str:
        """The place of the passage in its file."""
        return place_of(self.unit, self.number, Passage(self.start, self.end, self.first, self.last))


@dataclass(frozen=True)
class _Vectors:
    """The vectors of all passages."""

    ids: NDArray[np.int64]  # (n,), ascending
    matrix: NDArray[np.float32]  # (n, D), of length 1


class Library:
    """A library open for reading, by one thread at a time; when `index` replaces the file, the next search opens it again."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a library; raises InputError if the file is missing, damaged or something else."""
        self.path, self._version = Path(os.path.expanduser(path)), (0, 0)
        self._vectors: _Vectors | None = None
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
            encoder = stored_encoder(connection)
            settings = stored_settings(connection)
        if not num_passages:
            raise InputError(f"index={self.path}: no passages in this library; run bertkit index again")

        @functools.lru_cache(MAX_CACHED_COUNTS)
        def num_with(word: str) -> int:
            count = "SELECT count(*) FROM words WHERE words MATCH ?"
            return int(connection.execute(count, (_any([word]),)).fetchone()[0])

        self._connection, self._num_with, self.num_passages = connection, num_with, int(num_passages)
        self.encoder, self._vectors, self._stemming, self._marker = encoder, None, settings.stemming, Marker(settings)
        self._version = (state.st_ino, state.st_mtime_ns)
        common = os.path.commonprefix(ends)  # noqa: RUF071  # of two texts, cut to a folder below
        self._folder = common[: common.rfind("/") + 1] if common.startswith("/") else ""  # of all files

    def find(self, question: str, num_hits: int, more: Sequence[str] = (), *, add_rest: bool = False) -> list[Hit]:
        """Return the passages with the highest BM25 for a question and `more` words, the best first.

        With `add_rest`, if the library has at most `num_hits` passages, return all; the rest, without such words, score 0.
        """
        with contextlib.suppress(OSError, InputError):  # without another library that can be read, this one stays
            self._open()
        words = words_of(question, more, self._stemming)
        with using(self._connection, self.path, library_file.READ_SECONDS):
            rows = self._best(words, num_hits) if words else []
            if add_rest and len(rows) < self.num_passages <= num_hits:
                seen = {row.id for row in rows}
                rows += [row for row in self._rows(_ALL) if row.id not in seen]
        return self._hits(rows)

    def add_nearest(self, hits: Sequence[Hit], query: NDArray[np.float32], num_hits: int) -> list[Hit]:
        """Add the `num_hits` passages whose vectors have the largest cosines with `query`, (D,); all get their cosine.

        A passage that is not among the hits has a BM25 of 0.
        """
        with using(self._connection, self.path, library_file.READ_SECONDS):
            vectors = self._vectors = self._vectors or self._read_vectors(len(query))
            cosines = vectors.matrix @ query  # (n,)
            nearest = np.argpartition(-cosines, min(num_hits, len(cosines)) - 1)[:num_hits]
            known = {hit.id for hit in hits}
            added = [number for number in vectors.ids[nearest].tolist() if number not in known]
            all_hits = [*hits, *self._hits(self._rows(_THESE, json.dumps(added)))]
        places = np.searchsorted(vectors.ids, [int(hit.id) for hit in all_hits])
        return [
            dataclasses.replace(hit, score_vectors=cosine)
            for hit, cosine in zip(all_hits, cosines[places].tolist(), strict=True)
        ]

    def marks(self, texts: Sequence[str], question: str, more: Sequence[str] = ()) -> list[list[Span]]:
        """Return the places of the words of a question and of `more` in each text.

        Words in more than half of the passages, which count next to nothing in BM25, are left out if there are others.
        """
        words = words_of(question, more, self._stemming)
        with using(self._connection, self.path, library_file.READ_SECONDS):
            telling = [word for word in words if self._num_with(word) <= self.num_passages / 2]
        return self._marker.marks(texts, telling or words)

    def _read_vectors(self, dimension: int) -> _Vectors:
        """Read all vectors into memory."""
        ids = np.empty(self.num_passages, np.int64)
        matrix = np.empty((self.num_passages, dimension), np.float32)
        rows = self._connection.execute("SELECT id, vector FROM passages LEFT JOIN vectors ON passage = id ORDER BY id")
        try:
            for place, (number, vector) in enumerate(rows):
                ids[place], matrix[place] = number, np.frombuffer(vector, "<f4")
        except (TypeError, ValueError):
            raise sqlite3.DataError("a passage without a vector, or one of another size") from None
        return _Vectors(ids, matrix)

    def _hits(self, rows: Iterable[_FoundRow]) -> list[Hit]:
        named = ((row, row.source.removeprefix(self._folder)) for row in rows)
        return [
            Hit(row.id, row.text, row.title, source, row.place, row.named or f"{source}#{row.number}", row.score)
            for row, source in named
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
_TYPES = (int, float, str, str, str, int, int, int, int, str, int, str)  # of the columns below
_PARTS = """p.text, d.title, d.unit, p.start, p.end, p.first, p.last, coalesce(f.path, ''), coalesce(l.number, 0),
    coalesce(json_extract(d.columns, '$._id'), json_extract(d.columns, '$.id'), '')
FROM {} JOIN passages p ON p.id = {} JOIN documents d ON d.id = p.document
LEFT JOIN places l ON l.document = d.id AND l.file = (
    SELECT files.id FROM places JOIN files ON files.id = places.file WHERE places.document = d.id ORDER BY path LIMIT 1)
LEFT JOIN files f ON f.id = l.file"""
_FOUND = (
    "(SELECT rowid AS place, -bm25(words) AS score FROM words WHERE words MATCH ? ORDER BY bm25(words), rowid LIMIT ?)"
)
_FIND = f"SELECT p.id, score, {_PARTS.format(_FOUND, 'place')} ORDER BY score DESC, p.id"
_ALL = f"SELECT p.id, 0.0, {_PARTS.format('(SELECT id AS place FROM passages)', 'place')} ORDER BY p.id"
_THESE = f"SELECT p.id, 0.0, {_PARTS.format('(SELECT value AS place FROM json_each(?))', 'place')} ORDER BY p.id"
