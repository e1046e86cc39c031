"""Numbers that agree as often as two documents overlap: minima of hashes (Broder 1997) of their runs of five tokens.

Runs of five as in Lee et al. 2022, "Deduplicating training data makes language models better", section 4.2.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

RUN = 5  # tokens
# the minima are compared in 20 bands of 6: of documents that overlap by 0.8, 0.998 agree in a band, by 0.7 0.92, and by 0.5 0.27
BANDS, ROWS = 20, 6
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # of SplitMix64 (Steele et al. 2014)
_HALF = np.uint64(32)


def _mixed(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash 64 bits to 64 bits, as SplitMix64 does."""
    keys = (keys ^ (keys >> np.uint64(30))) * _MIX[0]
    keys = (keys ^ (keys >> np.uint64(27))) * _MIX[1]
    return keys ^ (keys >> np.uint64(31))


# the functions of Dietzfelbinger et al. 1997: the upper half of a * key + b
_FACTORS, _SUMMANDS = _mixed(np.arange(1, 2 * BANDS * ROWS + 1, dtype=np.uint64)).reshape(2, -1)
_FACTORS |= np.uint64(1)


def hashed(columns: Iterable[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Hash several columns of numbers to one."""
    first, *others = columns
    key = _mixed(first)
    for column in others:
        key = _mixed((key + column) * _MIX[0] + np.uint64(1))
    return key


def minima_of(tokens: NDArray[np.int32], num_tokens: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the minima of the hashes of the runs of each document, (documents, BANDS * ROWS).

    `num_tokens` are the documents' numbers of tokens. A document of fewer than five tokens is a single run.
    """
    padded = np.zeros(len(tokens) + (RUN - 1) * (len(num_tokens) + 1), np.uint64)
    document = np.repeat(np.arange(len(num_tokens)), num_tokens)
    padded[np.arange(len(tokens)) + (RUN - 1) * document] = tokens + 1
    starts = np.cumsum(num_tokens) - num_tokens + (RUN - 1) * np.arange(len(num_tokens))
    num_runs = np.maximum(num_tokens - RUN + 1, 1)
    first = np.cumsum(num_runs) - num_runs
    places = np.repeat(starts - first, num_runs) + np.arange(num_runs.sum())
    keys = hashed(padded[places + offset] for offset in range(RUN))
    minima = np.empty((len(num_tokens), BANDS * ROWS), np.uint32)
    for number, (factor, summand) in enumerate(zip(_FACTORS, _SUMMANDS, strict=True)):
        minima[:, number] = np.minimum.reduceat((keys * factor + summand) >> _HALF, first)
    return minima
