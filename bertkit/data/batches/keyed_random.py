"""Keyed random numbers: every number is a pure function of its key.

`uniform(seed, stream, epoch, document)` is the same number in any process and any order. So no generator state has to be saved
for the pairs, their order and the masks. A key consists of integers or integer arrays; arrays are broadcast.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
ROUNDS = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
LAST_SHIFT = np.uint64(31)
Key = int | NDArray[np.int64] | NDArray[np.uint64]


class Stream(IntEnum):
    """The purpose of a random number. It is the second number of every key, so no two purposes share random numbers."""

    ORDER = 1
    TARGET_IS_SHORT = 2
    TARGET_LENGTH = 3
    SPLIT_POINT = 4
    IS_RANDOM_NEXT = 5
    RANDOM_DOCUMENT = 6
    RANDOM_SENTENCE = 7
    TRUNCATE_A = 8
    TRUNCATE_B = 9
    DOCUMENT_ORDER = 10
    MASK = 11
    MASK_CHOICE = 12
    MASK_KIND = 13
    MASK_TOKEN = 14
    NGRAM_LENGTH = 15
    IS_SWAPPED = 16
    TASK = 17


def bits(*key: Key, after: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
    """Return 64 random bits for each key: the finalizer of SplitMix64, once per number (Steele, Lea and Flood 2014).

    `after` is the result for the first numbers of a key: bits(a, b) = bits(b, after=bits(a)).
    """
    state = np.zeros(1, np.uint64) if after is None else after
    for number in key:
        state = state + (np.asarray(number).astype(np.uint64) + GOLDEN)  # modulo 2**64
        for shift, factor in ROUNDS:
            state ^= state >> shift
            state *= factor
        state ^= state >> LAST_SHIFT
    return state


def uniform(*key: Key, after: NDArray[np.uint64] | None = None) -> NDArray[np.float64]:
    """Return a uniform random number in [0, 1) for each key; arguments as for `bits`."""
    return (bits(*key, after=after) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(limit: int | NDArray[np.int64], *key: Key, after: NDArray[np.uint64] | None = None) -> NDArray[np.int64]:
    """Return a uniform random integer in [0, limit) for each key; limit is below 2**53. Other arguments as for `bits`."""
    return (uniform(*key, after=after) * limit).astype(np.int64)


def num_heads(tosses: NDArray[np.int64], *key: Key, after: NDArray[np.uint64] | None = None) -> NDArray[np.int64]:
    """Return the number of heads in `tosses` tosses of a fair coin (a binomial draw) for each key."""
    heads = np.zeros_like(tosses)
    keys = np.broadcast_to(bits(*key, after=after), tosses.shape)
    rows, word = np.flatnonzero(tosses > 0), 0
    while len(rows):
        left = np.minimum(tosses[rows] - 64 * word, 64).astype(np.uint64)
        heads[rows] += np.bitwise_count(bits(keys[rows], word) >> (np.uint64(64) - left)).astype(np.int64)
        word += 1
        rows = rows[tosses[rows] > 64 * word]
    return heads


def permute(index: NDArray[np.int64], size: int, *key: Key) -> NDArray[np.int64]:
    """Apply a keyed permutation of range(size) to indices, without storing the permutation.

    Eight Feistel rounds permute the numbers below the next power of four; they are repeated until the result is below `size`
    (cycle walking, Black and Rogaway 2002).
    """
    half = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    shift = np.uint64(half)
    round_keys = bits(bits(*key), np.arange(8)[:, None])
    value = np.array(index, np.uint64)
    outside = np.ones(value.shape, bool)
    while outside.any():
        left, right = value[outside] >> shift, value[outside] & mask
        for round_key in round_keys:
            left, right = right, left ^ (bits(right, after=round_key) & mask)
        value[outside] = (left << shift) | right
        outside = value >= np.uint64(size)
    return value.astype(np.int64)
