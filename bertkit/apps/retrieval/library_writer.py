"""Adding documents and vectors to a library, and removing documents.

Documents are added in transactions, to a copy that replaces the library at the end. If `index` is killed, the next run
continues from this copy; it recognizes the committed documents by their hashes, and the result is that of a single run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.apps.retrieval.bm25 import store_postings
from bertkit.apps.retrieval.library_file import (
    EncoderIdentity,
    make_tables,
    make_vectors,
    open_library,
    seal,
    stored_encoder,
    using,
)
from bertkit.apps.retrieval.passages import LibraryDocument, cut, searchable, stemmer_of
from bertkit.apps.retrieval.vectors import Numbers, records_of
from bertkit.base.errors import InputError
from bertkit.base.files import UNFINISHED, flush, partial_dir, writing
from bertkit.data.data_config import PassagesConfig
from bertkit.data.texts.documents import REPLACEMENT

TRANSACTION_SECONDS = 2.0  # the most work that is lost if the process is killed
# passages whose vectors are made and committed together, so that the vectors after a kill are those of a single run; MiniLM
# takes 0.02 s of CPU time per passage
VECTORS_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class StoredFiles:
    """What a library has: its files with their hashes, and the model that made its vectors, if there are any."""

    hashes: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    encoder: EncoderIdentity | None = None


def stored_files(path: Path, settings: PassagesConfig, encoder: EncoderIdentity | None) -> StoredFiles:
    """Return what a library has, which must have these settings, and vectors of no other model; nothing if it is yet to be made."""
    stemmer_of(settings.stemming)  # so that a missing package is told first
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return StoredFiles()
    expected = json.dumps(dataclasses.asdict(settings))
    with contextlib.closing(open_library(path, "output")) as connection, using(connection, path):
        row = connection.execute("SELECT value FROM settings WHERE name = 'passages'").fetchone()
        files, made_by = dict(connection.execute("SELECT path, hash FROM files")), stored_encoder(connection)
    if row != (expected,):
        was = re.sub('[{}"]', "", str(row and row[0]))[:200]
        raise InputError(f"output={path} was made with other passages ({was}); repeat them, or choose another file")
    if made_by not in (None, encoder):
        raise InputError(
            f"output={path} has vectors of another model, {made_by.model_dir}; set model_dir= to it, or choose another file"
        )
    if made_by is not None and encoder is not None and made_by.numbers != encoder.numbers:
        raise InputError(f"output={path} has vectors={made_by.numbers}; set the same, or choose another file")
    return StoredFiles(files, made_by)


@contextlib.contextmanager
def opened_for_writing(path: Path, settings: PassagesConfig, made_from: str = "") -> Iterator[LibraryWriter]:
    """Make a library, or change a copy of one that `stored_files` accepts; at the end it gets its name.

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
            store_postings(connection)
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
        many documents are "new", "already stored" and "removed", and how many new ones have "lost characters".
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
        return {name: self._one(f"SELECT count(*) FROM {name}s") for name in ("file", "document", "passage")}

    def prepare_vectors(self, encoder: EncoderIdentity) -> int:
        """Make room for the vectors of a model, if there is none yet; return how many passages have a vector."""
        if stored_encoder(self._connection) is None:
            make_vectors(self._connection, encoder)
        return int(self._one("SELECT count(*) FROM vectors"))

    def without_vectors(self) -> Iterator[Sequence[tuple[int, str]]]:
        """Yield the passages without a vector, in the order of their ids, in blocks of (id, text)."""
        query = (
            "SELECT id, text FROM passages WHERE id > ? AND id NOT IN (SELECT passage FROM vectors) ORDER BY id LIMIT ?"
        )
        last = 0
        while block := self._connection.execute(query, (last, VECTORS_AT_ONCE)).fetchall():
            yield block
            last = block[-1][0]

    def add_vectors(self, ids: Iterable[int], vectors: NDArray[np.float32], numbers: Numbers) -> None:
        """Store the vectors of some passages."""
        blobs = (record.tobytes() for record in records_of(vectors, numbers))
        with self._connection as connection:
            connection.executemany("INSERT INTO vectors VALUES (?, ?)", zip(ids, blobs, strict=True))

    def _add(self, document: LibraryDocument, file: int, changes: Counter[str]) -> None:
        """Add a document if it is new, and store its place."""
        key, connection, stemming = document.key, self._connection, self._settings.stemming
        known = self._one("SELECT id FROM documents WHERE key = ?", key)
        if known is None:
            row = (key, document.title, document.unit, document.columns)
            insert = "INSERT INTO documents (key, title, unit, columns) VALUES (?, ?, ?, ?)"
            known = connection.execute(insert, row).lastrowid
            title = searchable(document.title, stemming)
            for passage in cut(document, self._settings):
                text = document.text[passage.start : passage.end]
                number = connection.execute(
                    "INSERT INTO passages (document, text, start, end, first, last) VALUES (?, ?, ?, ?, ?, ?)",
                    (known, text, passage.start, passage.end, passage.first, passage.last),
                ).lastrowid
                words = (number, title, searchable(text, stemming))
                connection.execute("INSERT INTO words (rowid, title, text) VALUES (?, ?, ?)", words)
            changes["new"] += 1
            changes["lost characters"] += REPLACEMENT in f"{document.title}{document.text}{document.columns}"
        elif self._one("SELECT 1 FROM temp.seen WHERE document = ?", known):
            return
        else:
            changes["already stored"] += 1
        connection.execute("INSERT INTO temp.seen VALUES (?)", (known,))
        place = "INSERT INTO places VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET number = excluded.number"
        connection.execute(place, (known, file, document.number))

    def _remove(self, file: int, documents: str) -> int:
        """Delete a file's places of some documents, selected by a query; delete and count documents without other places."""
        connection, stemming, num_removed = self._connection, self._settings.stemming, 0
        for (document,) in connection.execute(documents, (file,)).fetchall():
            connection.execute("DELETE FROM places WHERE document = ? AND file = ?", (document, file))
            if self._one("SELECT 1 FROM places WHERE document = ?", document) is not None:
                continue
            title = searchable(str(self._one("SELECT title FROM documents WHERE id = ?", document)), stemming)
            passages = connection.execute("SELECT id, text FROM passages WHERE document = ?", (document,))
            for number, text in passages.fetchall():
                row = (number, title, searchable(str(text), stemming))  # FTS5 has no copy of the text to delete
                connection.execute("INSERT INTO words (words, rowid, title, text) VALUES ('delete', ?, ?, ?)", row)
            connection.execute("DELETE FROM passages WHERE document = ?", (document,))
            connection.execute("DELETE FROM documents WHERE id = ?", (document,))
            num_removed += 1
        return num_removed

    def _one(self, query: str, *values: str | int | bytes) -> Any:
        """Return the first value of the first row, or None if there are no rows."""
        row = self._connection.execute(query, values).fetchone()
        return None if row is None else row[0]
