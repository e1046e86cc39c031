"""Finds near-duplicates: texts of which one contains most of the other, such as a sentence and a phrase of it.

A text is compared only with the longest texts that share its rarest shingles (sequences of three words), so the time grows linearly
with the number of texts.

Source: Broder 1997, On the resemblance and containment of documents.
"""

import re
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHINGLE = 3  # words
MIN_SHINGLES = 4  # texts with fewer shingles are near-duplicates only if all their words are equal
MIN_SHARE = 0.6  # of the shorter text's shingles, in the longer text
NUM_RAREST, NUM_LONGEST = 3, 2  # the shingles of a text, and the texts with each of them, that are compared
MAX_TEXTS = 64  # a shingle in more texts is a common phrase, not a sign of near-duplicates
_WORD = re.compile(r"[\u3040-\u9fff]|[^\W\u3040-\u9fff]+")  # Chinese and Japanese have no blanks between words


def groups_of(texts: Sequence[Any]) -> NDArray[np.int64]:
    """Return a group number for each text, or list of texts: near-duplicates, and their near-duplicates, are in one group."""
    from scipy import sparse

    numbers, first_of, words = dict[str, int](), dict[object, int](), array("q")
    firsts, sizes = np.zeros((2, len(texts)), np.int64)
    for place, text in enumerate(texts):
        whole = text if isinstance(text, str) else " ".join(str(part) for part in text if part)
        own = tuple(numbers.setdefault(word, len(numbers)) for word in _WORD.findall(whole.lower()))
        firsts[place] = first_of.setdefault(own or whole, place)
        if firsts[place] == place:
            sizes[place] = len(own)
            words.extend(own)
    pairs = np.hstack([_near_duplicates(np.array(words, np.uint64), sizes), [np.arange(len(texts)), firsts]])
    graph = sparse.coo_array((np.ones(pairs.shape[1]), pairs), shape=(len(texts), len(texts)))
    return np.asarray(sparse.csgraph.connected_components(graph, directed=False)[1], np.int64)


def _near_duplicates(words: NDArray[np.uint64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return pairs of near-duplicates, (2, n); `words` has the words of all texts, `sizes` their number in each text."""
    from scipy import sparse

    owners = np.repeat(np.arange(len(sizes)), sizes)
    starts = np.flatnonzero(owners[: 1 - SHINGLE] == owners[SHINGLE - 1 :])
    hashes = np.zeros(len(starts), np.uint64)
    for offset in range(SHINGLE):  # a product with an odd number, 2 ** 64 / golden ratio, mixes the bits
        hashes = (hashes ^ (hashes >> np.uint64(29)) ^ words[starts + offset]) * np.uint64(0x9E3779B97F4A7C15)
    values, columns = np.unique(hashes, return_inverse=True)
    order = np.argsort(-sizes, kind="stable")  # the longest text first
    cells = (np.ones(len(starts), bool), (owners[starts], columns))
    has = sparse.coo_array(cells, shape=(len(sizes), len(values))).tocsr()[order]  # whether a text has a shingle
    has.sum_duplicates()
    counts, lengths = np.bincount(has.indices, minlength=len(values)), np.diff(has.indptr)
    rows, columns = np.repeat(np.arange(len(sizes)), lengths), has.indices
    is_sign = (counts[columns] > 1) & (counts[columns] <= MAX_TEXTS) & (lengths[rows] >= MIN_SHINGLES)
    rows, columns = rows[is_sign], columns[is_sign]
    by_rarity = np.argsort(rows * (MAX_TEXTS + 1) + counts[columns], kind="stable")
    by_rarity = by_rarity[np.arange(len(rows)) - np.searchsorted(rows, rows) < NUM_RAREST]
    rows, columns, by_column = rows[by_rarity], columns[by_rarity], has.tocsc()
    others = [by_column.indices[by_column.indptr[columns] + place] for place in range(NUM_LONGEST)]
    found = np.unique(np.tile(rows * len(sizes), NUM_LONGEST) + np.hstack(others))
    long, short = np.sort(np.divmod(found, max(len(sizes), 1)), axis=0)
    shared = has[short].multiply(has[long]).sum(axis=1)
    is_near = (lengths[short] >= MIN_SHINGLES) & (shared >= MIN_SHARE * lengths[short])
    return order[np.array([short[is_near], long[is_near]])]
