"""Finds near-duplicates: texts of which one contains most of the other, such as a sentence and a phrase of it.

A text is compared only with the longest texts that share its rarest shingles (sequences of three words), so the time grows linearly
with the number of texts.

Source: Broder 1997, On the resemblance and containment of documents.
"""

import re
from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SHINGLE = 3  # words
MIN_SHINGLES = 4  # texts with fewer shingles are near-duplicates only if all their words are equal
MIN_SHARE = 0.6  # of the shorter text's shingles, in the longer text
NUM_RAREST, NUM_LONGEST = 3, 2  # the shingles of a text, and the texts with each of them, that are compared
MAX_TEXTS = 64  # a shingle in more texts is a common phrase, not a sign of near-duplicates
_WORD = re.compile(r"[\u3040-\u9fff]|[^\W\u3040-\u9fff]+")  # Chinese and Japanese have no blanks between words


def groups_of(texts: Sequence[str]) -> NDArray[np.int64]:
    """Return a group number for each text: near-duplicates, and near-duplicates of these, are in the same group."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    numbers, first_of, words = dict[str, int](), dict[object, int](), array("q")
    firsts, sizes = np.zeros((2, len(texts)), np.int64)
    for place, text in enumerate(texts):
        own = tuple(numbers.setdefault(word, len(numbers)) for word in _WORD.findall(text.lower()))
        firsts[place] = first_of.setdefault(own or text, place)
        if firsts[place] == place:
            sizes[place] = len(own)
            words.extend(own)
    near = _near_duplicates(np.array(words, np.uint64), sizes)
    pairs = np.concatenate([near, [np.arange(len(texts)), firsts]], axis=1)
    graph = coo_array((np.ones(pairs.shape[1]), pairs), shape=(len(texts), len(texts)))
    return np.asarray(connected_components(graph, directed=False)[1], np.int64)


def _near_duplicates(words: NDArray[np.uint64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return pairs of near-duplicates, (2, n); `words` has the words of all texts, `sizes` their number in each text."""
    from scipy.sparse import csr_array

    owners = np.repeat(np.arange(len(sizes)), sizes)
    starts = np.flatnonzero(owners[: 1 - SHINGLE] == owners[SHINGLE - 1 :])
    hashes = np.zeros(len(starts), np.uint64)
    for offset in range(SHINGLE):  # a product with an odd number, 2 ** 64 / golden ratio, mixes the bits
        hashes = (hashes ^ (hashes >> np.uint64(29)) ^ words[starts + offset]) * np.uint64(0x9E3779B97F4A7C15)
    values, columns = np.unique(hashes, return_inverse=True)
    order = np.argsort(-sizes, kind="stable")  # the longest text first
    has = csr_array((np.ones(len(starts), np.int32), (owners[starts], columns)), shape=(len(sizes), len(values)))[order]
    has.sum_duplicates()
    has.data[:] = 1
    counts, lengths = np.bincount(has.indices, minlength=len(values)), np.diff(has.indptr)
    rows = np.repeat(np.arange(len(sizes)), lengths)
    is_sign = (counts[has.indices] > 1) & (counts[has.indices] <= MAX_TEXTS) & (lengths[rows] >= MIN_SHINGLES)
    rows, columns = rows[is_sign], has.indices[is_sign]
    by_rarity = np.argsort(rows * (MAX_TEXTS + 1) + counts[columns], kind="stable")
    rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
    rows, columns = rows[by_rarity][rank < NUM_RAREST], columns[by_rarity][rank < NUM_RAREST]
    by_column = has.tocsc()
    longest = [by_column.indices[by_column.indptr[columns] + place] for place in range(NUM_LONGEST)]
    found = np.unique(np.concatenate([rows * len(sizes) + others for others in longest if len(others)] or [rows]))
    long, short = np.sort(np.divmod(found, max(len(sizes), 1)), axis=0)
    shared = has[short].multiply(has[long]).sum(axis=1)
    is_near = (lengths[short] >= MIN_SHINGLES) & (shared >= MIN_SHARE * lengths[short])
    return np.array([order[short[is_near]], order[long[is_near]]])
