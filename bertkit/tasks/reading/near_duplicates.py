"""Finds near-duplicates: texts of which one contains most of the other, such as a sentence and a phrase of it.

A text is compared only with the longest texts that share its rarest shingles (sequences of three words), so the time grows linearly
with the number of texts.

Source: Broder 1997, On the resemblance and containment of documents.
"""

import re
from array import array
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Content = str | Sequence[str | None]  # of an example: a text, or several
MIN_SHINGLES = 4  # texts with fewer shingles are near-duplicates only if all their words are equal
MIN_SHARE = 0.6  # of the shorter text's shingles, in the longer text
NUM_RAREST, NUM_LONGEST = 3, 2  # the shingles of a text, and the texts with each of them, that are compared
MAX_TEXTS = 64  # a shingle in more texts is a common phrase, not a sign of near-duplicates
_WORD = re.compile(r"[\u3040-\u9fff]|[^\W\u3040-\u9fff]+")  # Chinese and Japanese have no blanks between words


def groups_of(texts: Sequence[Content]) -> NDArray[np.int64]:
    """Return a group number for each text, or list of texts: near-duplicates, and their near-duplicates, are in one group."""
    from scipy import sparse

    first_of, hashes = dict[str, int](), array("q")
    firsts, lengths = np.zeros((2, len(texts)), np.int64)
    for place, text in enumerate(texts):
        whole = text if isinstance(text, str) else " ".join(filter(None, text))
        words = _WORD.findall(whole.lower())
        firsts[place] = first_of.setdefault(" ".join(words) or whole, place)
        if firsts[place] == place:
            own = {crc32(" ".join(three).encode()) for three in zip(words, words[1:], words[2:], strict=False)}
            lengths[place] = len(own)
            hashes.extend(own)
    values, columns = np.unique(np.array(hashes, np.int64), return_inverse=True)
    cells = (np.ones(len(columns), bool), (np.repeat(np.arange(len(texts)), lengths), columns))
    has = sparse.coo_array(cells, shape=(len(texts), len(values))).tocsr()  # whether a text has a shingle
    pairs = np.hstack([_near_duplicates(has, lengths), [np.arange(len(texts)), firsts]])
    graph = sparse.coo_array((np.ones(pairs.shape[1]), pairs), shape=(len(texts), len(texts)))
    return np.asarray(sparse.csgraph.connected_components(graph, directed=False)[1], np.int64)


def _near_duplicates(has: Any, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return pairs of near-duplicates, (2, n), from the shingles of each text, (texts, shingles), and their number."""
    order = np.argsort(-lengths, kind="stable")  # the longest text first
    has, lengths, num_texts = has[order], lengths[order], max(len(order), 1)
    rows, columns, counts = np.repeat(np.arange(len(order)), lengths), has.indices, np.bincount(has.indices)
    is_sign = (counts[columns] > 1) & (counts[columns] <= MAX_TEXTS) & (lengths[rows] >= MIN_SHINGLES)
    rows, columns = rows[is_sign], columns[is_sign]
    by_rarity = np.lexsort((columns, counts[columns], rows))
    by_rarity = by_rarity[np.arange(len(rows)) - np.searchsorted(rows, rows) < NUM_RAREST]
    rows, columns, by_column = rows[by_rarity], columns[by_rarity], has.tocsc()
    others = [by_column.indices[by_column.indptr[columns] + place] for place in range(NUM_LONGEST)]
    long, short = np.divmod(np.unique(np.minimum(rows, others) * num_texts + np.maximum(rows, others)), num_texts)
    shared = has[short].multiply(has[long]).sum(axis=1)
    is_near = (lengths[short] >= MIN_SHINGLES) & (shared >= MIN_SHARE * lengths[short])
    return np.asarray(order[np.array([short[is_near], long[is_near]])], np.int64)
