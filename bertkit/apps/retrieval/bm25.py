"""BM25 of the passages of a library, for the words that FTS5 finds in them.

As in FTS5 (sqlite.org/fts5.html, "The bm25() function"), whose scores these are, it is the sum, over the words q of a question, of

    idf(q) * f(q) * (k1 + 1) / (f(q) + k1 * (1 - b + b * L / mean L)),   k1 = 1.2, b = 0.75
    idf(q) = ln((N - n(q) + 0.5) / (n(q) + 0.5)), or 1e-6 if more than half of the passages have the word

where f(q) is the count of q in a passage and its title, L the number of words in the passage, N the number of passages, and
n(q) the number of passages with q.

FTS5 takes a microsecond to score a passage, and a frequent word has many. So the postings of frequent words (the passages with the word, and
its counts) are also stored as arrays, which numpy scores; those of other words are read from FTS5.
"""

import functools
import math
import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.apps.retrieval.library_file import damaged

K1, B = 1.2, 0.75
LEAST_IDF = 1e-6  # of words in most passages
FREQUENT = 1000  # the postings of a word that occurs so often in a library are stored; FTS5 reads them in 0.4 ms
# a passage, by its place in the list of all, and how often it has the word
_POSTING = np.dtype([("passage", "<u4"), ("count", "<u4")])
MAX_CACHED = 64  # words whose stored postings are kept in memory: with natural text up to 0.2 kB a passage
OTHER_POSTINGS = "postings of other passages than there are"  # what a damaged library has
_ALL_WORDS = ""  # its postings are the list of all passages, by their ids, with their lengths
Postings = NDArray[np.void]  # (n,) of _POSTING, ascending


def store_postings(connection: sqlite3.Connection) -> None:
    """Store the postings of frequent words, in place of those of an earlier state of the library."""
    sizes = connection.execute("SELECT id, sz FROM words_docsize ORDER BY id")
    lengths = np.array([(passage, _sum_of_varints(columns)) for passage, columns in sizes], _POSTING)
    ids = lengths["passage"].astype(np.int64)
    frequent = "SELECT term, group_concat(doc) FROM instances GROUP BY term HAVING count(*) >= ?"
    with connection:
        connection.execute("DELETE FROM postings")
        connection.execute("INSERT INTO postings VALUES (?, ?)", (_ALL_WORDS, lengths.tobytes()))
        words = connection.execute(frequent, (FREQUENT,))
        rows = ((word, _postings_of(passages, ids).tobytes()) for word, passages in words)
        connection.executemany("INSERT INTO postings VALUES (?, ?)", rows)


def _sum_of_varints(data: bytes) -> int:
    """Sum SQLite's integers of variable length, with seven bits in each byte; the last byte is below 128."""
    total = number = 0
    for byte in data:
        number = number << 7 | byte & 127
        if byte < 128:
            total, number = total + number, 0
    return total


def _postings_of(passages: str, all_passages: NDArray[np.int64]) -> Postings:
    """Make the postings of a word from the ids of its passages, separated by commas; an id is there for each occurrence."""
    ids, counts = np.unique(np.fromstring(passages, np.int64, sep=","), return_counts=True)
    postings = np.empty(len(ids), _POSTING)
    postings["passage"], postings["count"] = np.searchsorted(all_passages, ids), counts
    return postings


class _Scored(NamedTuple):
    """A word of a question, in some passages."""

    postings: Postings
    idf: float


class Bm25:
    """The scores of passages in a library that is open for reading."""

    @damaged(OTHER_POSTINGS)
    def __init__(self, connection: sqlite3.Connection, num_passages: int) -> None:
        """Read the lengths of all passages, and take over the library's rules for words."""
        self._connection, self._num_passages = connection, num_passages

        @functools.lru_cache(MAX_CACHED)
        def stored(word: str) -> Postings | None:
            row = connection.execute(_STORED, (word,)).fetchone()
            return None if row is None else np.frombuffer(row[0], _POSTING)

        self._stored = stored
        lengths = np.frombuffer(connection.execute(_STORED, (_ALL_WORDS,)).fetchone()[0], _POSTING)
        if len(lengths) != num_passages:
            raise sqlite3.DataError(f"postings of {len(lengths)} passages, not {num_passages}")
        self.ids = lengths["passage"].astype(np.int64)
        self._penalties = K1 * (1 - B + B * lengths["count"] / lengths["count"].mean())  # (N,), for the lengths
        (table,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'words'").fetchone()
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(table.replace(" words ", " temp.question "))
        connection.execute("CREATE VIRTUAL TABLE temp.asked USING fts5vocab(temp, question, instance)")

    @damaged(OTHER_POSTINGS)
    def best(self, words: Sequence[str], num_hits: int, fits: NDArray[np.bool_]) -> dict[int, float]:
        """Return the ids and scores of the best passages that fit, the best first; of equal ones, the first in the library.

        A word in most passages takes most of the time, and adds less than 3e-6. So all other words are scored first, and then all words in
        the passages that can still be among the best (Turtle and Flood 1995, "max score").
        """
        scored = [_Scored(postings, self._idf(postings)) for postings in map(self._postings, self._in_the_index(words))]
        telling = [word for word in scored if word.idf > LEAST_IDF]
        scores = self._scores(telling) * fits
        num_best = min(num_hits, self._num_passages)
        least = np.partition(scores, -num_best)[-num_best]
        scores += (K1 + 1) * LEAST_IDF * (len(scored) - len(telling))
        is_chosen = fits & (scores >= least) & (scores > 0)
        scores = self._scores(_Scored(word.postings[is_chosen[word.postings["passage"]]], word.idf) for word in scored)
        chosen = np.flatnonzero(scores)
        best = chosen[np.argsort(-scores[chosen], kind="stable")[:num_hits]]
        return dict(zip(self.ids[best].tolist(), scores[best].tolist(), strict=True))

    def _scores(self, words: Iterable[_Scored]) -> NDArray[np.float64]:
        """Return the sum over some words, (N,)."""
        scores = np.zeros(self._num_passages)
        for word in words:
            passages, counts = word.postings["passage"].astype(np.intp), word.postings["count"]
            scores[passages] += word.idf * (counts * (K1 + 1) / (counts + self._penalties[passages]))
        return scores

    def _idf(self, postings: Postings) -> float:
        rareness = math.log((self._num_passages - len(postings) + 0.5) / (len(postings) + 0.5))
        return rareness if rareness > 0 else LEAST_IDF

    @damaged(OTHER_POSTINGS)
    def num_with(self, word: str) -> int:
        """Count the passages with a word."""
        return max((len(self._postings(term)) for term in self._in_the_index([word])), default=0)

    def _in_the_index(self, words: Sequence[str]) -> list[str]:
        """Return words as the index has them, such as stems, or without accents."""
        self._connection.execute("INSERT INTO question (question) VALUES ('delete-all')")
        self._connection.execute("INSERT INTO question (text) VALUES (?)", (" ".join(words),))
        return [word for (word,) in self._connection.execute("SELECT term FROM asked ORDER BY offset")]

    def _postings(self, word: str) -> Postings:
        """Return the postings of a word that are stored, else make them."""
        stored = self._stored(word)
        if stored is not None:
            return stored
        (passages,) = self._connection.execute(_IN_FTS5, (word,)).fetchone()
        return _postings_of(passages, self.ids)


_STORED = "SELECT passages FROM postings WHERE word = ?"
_IN_FTS5 = "SELECT coalesce(group_concat(doc), '') FROM instances WHERE term = ?"
