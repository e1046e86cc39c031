"""A library of passages in one SQLite file, with BM25 search of the words that SQLite's extension FTS5 finds.

It has these tables:

    settings   how documents were cut into passages
    files      path and content hash of each indexed file; no hash while the file is being indexed
    documents  title, hash and short columns of each different document
    places     where each document is in the files; a document without a place is deleted
    passages   the passages of the documents, with their text
    words      FTS5's index of the passages, without another copy of the text; FTS5 shows it as the table `instances`, too
    postings   the passages of each frequent word, and the lengths of all passages
    vectors    a vector for each passage; only in a library that was made with an encoder
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.apps.retrieval import library_file
from bertkit.apps.retrieval.bm25 import Bm25
from bertkit.apps.retrieval.library_file import EncoderIdentity, open_library, stored_encoder, stored_settings, using
from bertkit.apps.retrieval.passages import Passage, TextSpan, place_of, words_of
from bertkit.apps.retrieval.snippets import Marker
from bertkit.apps.retrieval.vectors import Records, products, record_type
from bertkit.base.errors import InputError, named
from bertkit.base.typed_settings import refuse

MAX_CACHED_CONDITIONS = 16  # a byte for each passage
MAX_CONDITIONS = 100  # of a search


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


class Library:
    """A library open for reading, by one thread at a time; when `index` replaces the file, the next search opens it again."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a library; raises InputError if the file is missing, damaged or something else."""
        self.path, self._version = Path(os.path.expanduser(path)), (0, 0)
        self._vectors: Records | None = None  # of length 1, in the order of the ids
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
            bm25 = Bm25(connection, num_passages)
        self._connection, self._bm25, self.num_passages = connection, bm25, num_passages
        self._fits = functools.lru_cache(MAX_CACHED_CONDITIONS)(self._find_fitting)
        self.encoder, self._vectors, self._stemming, self._marker = encoder, None, settings.stemming, Marker(settings)
        self._version = (state.st_ino, state.st_mtime_ns)
        common = os.path.commonprefix(ends)  # noqa: RUF071  # of two texts, cut to a folder below
        self._folder = common[: common.rfind("/") + 1] if common.startswith("/") else ""  # of all files

    def find(
        self,
        question: str,
        num_hits: int,
        more: Sequence[str] = (),
        where: Sequence[str] = (),
        *,
        add_rest: bool = False,
    ) -> list[Hit]:
        """Return the passages with the highest BM25 for a question and `more` words, the best first.

        Only documents are searched whose columns are as in `where`, such as "lang=de". With `add_rest`, if they have at most
        `num_hits` passages, return all; the rest, without such words, score 0.
        """
        with contextlib.suppress(OSError, InputError):  # without another library that can be read, this one stays
            self._open()
        words = words_of(question, more, self._stemming)
        with using(self._connection, self.path, library_file.READ_SECONDS):
            fits = self._fits(tuple(where))
            scores = self._bm25.best(words, num_hits, fits)
            is_all = add_rest and np.count_nonzero(fits) <= num_hits
            rows = self._rows(self._bm25.ids[fits].tolist() if is_all else list(scores))
        return self._hits(rows, scores)

    def add_nearest(
        self, hits: Sequence[Hit], query: NDArray[np.float32], num_hits: int, where: Sequence[str] = ()
    ) -> list[Hit]:
        """Add the `num_hits` passages whose vectors are most similar to `query`, (D,); all get their similarity.

        `where` is that of the hits. A passage that is not among the hits has a BM25 of 0.
        """
        with using(self._connection, self.path, library_file.READ_SECONDS):
            if self._vectors is None:
                self._vectors = self._read_vectors(self.encoder)
            cosines, fits = products(self._vectors, query), self._fits(tuple(where))  # (n,)
            nearest = np.argpartition(-np.where(fits, cosines, -np.inf), min(num_hits, len(cosines)) - 1)[:num_hits]
            known = {hit.id for hit in hits}
            added = [number for number in self._bm25.ids[nearest[fits[nearest]]].tolist() if number not in known]
            all_hits = [*hits, *self._hits(self._rows(added), {})]
        places = np.searchsorted(self._bm25.ids, [int(hit.id) for hit in all_hits])
        return [
            dataclasses.replace(hit, score_vectors=cosine)
            for hit, cosine in zip(all_hits, cosines[places].tolist(), strict=True)
        ]

    def has(self, where: Sequence[str]) -> bool:
        """Whether a document has these columns."""
        with using(self._connection, self.path, library_file.READ_SECONDS):
            return bool(self._fits(tuple(where)).any())

    def marks(self, texts: Sequence[str], question: str, more: Sequence[str] = ()) -> list[list[TextSpan]]:
        """Return the places of the words of a question and of `more` in each text.

        Words in more than half of the passages, which count next to nothing in BM25, are left out if there are others.
        """
        words = words_of(question, more, self._stemming)
        with using(self._connection, self.path, library_file.READ_SECONDS):
            telling = [word for word in words if self._bm25.num_with(word) <= self.num_passages / 2]
        return self._marker.marks(texts, telling or words)

    def shared_ids(self) -> list[str]:
        """Return the ids, of the column _id or id, that several documents have."""
        with using(self._connection, self.path, library_file.READ_SECONDS):
            return [str(name) for (name,) in self._connection.execute(_SHARED_IDS)]

    def _find_fitting(self, where: tuple[str, ...]) -> NDArray[np.bool_]:
        """Return for each passage, in the order of the ids, whether its document has these columns.

        Raises InputError if no document has any column of a name, or there are too many conditions.
        """
        refuse(len(where) > MAX_CONDITIONS and f"where: {len(where):,} conditions; expected at most {MAX_CONDITIONS}")
        if not where:
            return np.ones(self.num_passages, np.bool_)
        pairs = [condition.partition("=")[::2] for condition in where]
        query = _FITTING.format(" AND ".join([_HAS_COLUMN] * len(pairs)))
        rows = self._connection.execute(query, list(itertools.chain.from_iterable(pairs)))
        fits = np.fromiter((is_fitting for (is_fitting,) in rows), np.bool_, self.num_passages)
        if not fits.any():
            known = [name for (name,) in self._connection.execute(_COLUMNS)]
            missing = [name for name, _ in pairs if name not in known]
            has = f"no document has this column; they have: {named(known) or 'none'}"
            refuse([f"where={name}=: {has}" for name in missing])
        return fits

    def _read_vectors(self, encoder: EncoderIdentity | None) -> Records:
        """Read all vectors into memory."""
        if encoder is None:
            raise sqlite3.DataError("no vectors")
        kind = record_type(encoder.dimension, encoder.numbers)
        records = np.empty(self.num_passages, kind)
        rows = self._connection.execute("SELECT vector FROM passages LEFT JOIN vectors ON passage = id ORDER BY id")
        with library_file.damaged("a passage without a vector, or one of another size"):
            for place, (vector,) in enumerate(rows):
                (records[place],) = np.frombuffer(vector, kind)
        return records

    def _hits(self, rows: Iterable[_FoundRow], scores: Mapping[int, float]) -> list[Hit]:
        """Return hits for passages, the best first; those without a score have 0."""
        scored = ((row, row.source.removeprefix(self._folder), scores.get(row.id, 0.0)) for row in rows)
        hits = [
            Hit(row.id, row.text, row.title, source, row.place, row.named or f"{source}#{row.number}", score)
            for row, source, score in scored
        ]
        return sorted(hits, key=lambda hit: -hit.score)

    def _rows(self, passages: Sequence[int]) -> list[_FoundRow]:
        """Return the rows of passages, by their ids; in a damaged library a column may have values of any type."""
        rows = self._connection.execute(_FIND, (json.dumps(passages),)).fetchall()
        if any(tuple(map(type, row)) != _TYPES for row in rows):
            raise sqlite3.DataError("a value of another type than its column")
        return [_FoundRow(*row) for row in rows]


_FIRST_AND_LAST = "SELECT min(path), max(path) FROM files"  # what these share, all share
_TYPES = (int, str, str, str, int, int, int, int, str, int, str)  # of the columns below
_NAME = "coalesce(json_extract(columns, '$._id'), json_extract(columns, '$.id'), '')"
_SHARED_IDS = f"SELECT {_NAME} name FROM documents WHERE name <> '' GROUP BY CAST(name AS TEXT) HAVING count(*) > 1"
_FIND = f"""SELECT p.id, p.text, d.title, d.unit, p.start, p.end, p.first, p.last, coalesce(f.path, ''), coalesce(l.number, 0),
    {_NAME}
FROM json_each(?) JOIN passages p ON p.id = json_each.value JOIN documents d ON d.id = p.document
LEFT JOIN places l ON l.document = d.id AND l.file = (
    SELECT files.id FROM places JOIN files ON files.id = places.file WHERE places.document = d.id ORDER BY path LIMIT 1)
LEFT JOIN files f ON f.id = l.file ORDER BY p.id"""
_HAS_COLUMN = "EXISTS (SELECT 1 FROM json_each(d.columns) WHERE key = ? AND value = ?)"
_FITTING = "SELECT {} FROM passages p LEFT JOIN documents d ON d.id = p.document ORDER BY p.id"
_COLUMNS = "SELECT DISTINCT json_each.key FROM documents, json_each(columns) ORDER BY 1"
