"""Finds near-duplicates: texts of which one contains most of the other, such as a sentence and a phrase of it.

Texts are compared by their shingles, sequences of three words. All pairs are compared, unless that takes too long: then the shingles
in the most texts, which are common phrases, do not count.

Source: Broder 1997, On the resemblance and containment of documents.
"""

import itertools
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Content = str | Sequence[str | None]  # of an example: a text, or several
MIN_SHINGLES = 4  # texts with fewer shingles are near-duplicates only if all their words are equal
MIN_SHARE = 0.6  # of the shorter text's shingles, in the longer text
MAX_COMPARISONS = 10**8  # of shingles, a few seconds: 2,000 texts of 25 shingles that have all in common
AT_ONCE = 4 * 10**6  # comparisons in one matrix product, which bounds the memory
_WORD = re.compile(r"[\u3040-\u9fff]|[^\W\u3040-\u9fff]+")  # Chinese and Japanese have no blanks between words


class Shingled(NamedTuple):
    """Texts as sets of shingles."""

    has: Any  # whether a distinct text has a shingle; a sparse matrix, (texts, shingles)
    distinct: NDArray[np.int64]  # the number of each text among the distinct ones, which differ in their words


@dataclass(frozen=True)
class NearDuplicates:
    """Which of some texts are near-duplicates."""

    distinct: NDArray[np.int64]  # the number of each text among the distinct ones
    pairs: NDArray[np.int64]  # near-duplicates among the distinct texts, (2, n); the first is not the longer one

    @classmethod
    def of(cls, texts: Sequence[Content]) -> "NearDuplicates":
        """Compare texts, or lists of texts."""
        has, distinct = shingled(texts)
        counts = np.bincount(has.indices, minlength=has.shape[1])
        in_order = np.sort(counts)
        num_rare = int(np.searchsorted(np.cumsum(in_order**2), MAX_COMPARISONS, side="right"))
        is_rare = counts < np.append(in_order, np.inf)[num_rare]
        return cls(
            distinct, _near(has[:, is_rare & (counts > 1)], np.diff(has.indptr) - np.diff(has[:, ~is_rare].indptr))
        )

    def chains(self) -> NDArray[np.int64]:
        """Return a group number for each text: near-duplicates, and their near-duplicates, are in one group."""
        from scipy import sparse

        size = self.distinct.max(initial=-1) + 1
        graph = sparse.coo_array((np.ones(self.pairs.shape[1]), self.pairs), shape=(size, size))
        return np.asarray(sparse.csgraph.connected_components(graph, directed=False)[1], np.int64)[self.distinct]

    def stars(self) -> NDArray[np.int64]:
        """Return a group number for each text: all texts of a group are near-duplicates of the longest, its representative."""
        own = np.arange(self.distinct.max(initial=-1) + 1)
        short, long = self.pairs[:, np.argsort(self.pairs[0], kind="stable")]
        texts, starts = np.unique(short, return_index=True)
        borders = itertools.pairwise([*starts, len(short)])
        for text, (start, end) in zip(texts, borders, strict=True):  # the longest text first
            nearest = long[start:end]
            own[text] = min(nearest[own[nearest] == nearest], default=text)
        return own[self.distinct]

    def across(self, is_held: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which of the texts that are held out have a near-duplicate, or the same words, among the others."""
        has_other = np.zeros(self.distinct.max(initial=-1) + 1, bool)
        has_other[self.distinct[~is_held]] = True
        near = has_other.copy()
        for one, other in (self.pairs, self.pairs[::-1]):
            near[one[has_other[other]]] = True
        return is_held & near[self.distinct]


def shingled(texts: Sequence[Content]) -> Shingled:
    """Return the shingles of distinct texts, the longest first."""
    from scipy import sparse

    numbers, hashes, lengths = dict[str, int](), array("q"), array("q")
    distinct = np.zeros(len(texts), np.int64)
    for place, text in enumerate(texts):
        whole = text if isinstance(text, str) else " ".join(filter(None, text))
        words = _WORD.findall(whole.lower())
        distinct[place] = numbers.setdefault(" ".join(words) or whole, len(numbers))
        if distinct[place] == len(lengths):
            own = {crc32(" ".join(three).encode()) for three in zip(words, words[1:], words[2:], strict=False)}
            lengths.append(len(own))
            hashes.extend(own)
    values, columns = np.unique(np.array(hashes, np.int64), return_inverse=True)
    cells = (np.ones(len(columns), np.int32), (np.repeat(np.arange(len(lengths)), lengths), columns))
    has = sparse.coo_array(cells, shape=(len(lengths), len(values))).tocsr()
    order = np.argsort(-np.array(lengths, np.int64), kind="stable")
    return Shingled(has[order], np.argsort(order)[distinct])


def _near(has: Any, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return pairs of near-duplicates, (2, n), from the shingles that texts share, and the number of shingles of each text."""
    texts = np.flatnonzero(lengths >= MIN_SHINGLES)
    has, by_shingle = has[texts], has[texts].T.tocsr()
    costs = np.cumsum(has @ np.diff(by_shingle.indptr))
    borders = np.searchsorted(costs, np.arange(AT_ONCE, costs[-1] if len(costs) else 0, AT_ONCE)) + 1
    found = [np.zeros((2, 0), np.int64)]
    for start, end in zip([0, *borders], [*borders, len(texts)], strict=True):
        shared = has[start:end] @ by_shingle
        many = np.flatnonzero(shared.data >= MIN_SHARE * MIN_SHINGLES)  # few of all
        later = texts[np.searchsorted(shared.indptr, many, side="right") - 1 + start]
        earlier = texts[shared.indices[many]]
        is_near = (earlier < later) & (shared.data[many] >= MIN_SHARE * np.minimum(lengths[later], lengths[earlier]))
        found.append(np.array([later[is_near], earlier[is_near]]))
    return np.hstack(found)
