"""Keyed draws: pure functions of their key, fair, and permutations that are permutations."""

import numpy as np
import pytest

from bertkit.data.batches.keyed_random import Stream, below, bits, num_heads, permute, uniform

MANY = np.arange(100_003)


def chi_square(values: np.ndarray, num_bins: int) -> float:
    """How far counts are from even, in standard deviations of the chi-square distribution."""
    expected = len(values) / num_bins
    statistic = float(((np.bincount(values, minlength=num_bins) - expected) ** 2 / expected).sum())
    return (statistic - (num_bins - 1)) / np.sqrt(2 * (num_bins - 1))


def test_a_draw_depends_on_its_key_alone() -> None:
    together = uniform(7, Stream.MASK, 2, MANY[:101])
    one_by_one = [uniform(7, Stream.MASK, 2, int(index))[0] for index in range(101)]
    backwards = uniform(7, Stream.MASK, 2, MANY[:101][::-1])[::-1]
    assert together.tolist() == one_by_one == backwards.tolist()


def test_bits_are_those_of_splitmix64() -> None:
    """The draws never change between versions: they are those of the published SplitMix64, seed 0."""
    first = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    golden = 0x9E3779B97F4A7C15
    assert [int(bits(index * golden % 2**64)[0]) for index in range(3)] == first


def test_every_part_of_the_key_and_their_order_count() -> None:
    key = [3, Stream.ORDER, 5, 11]
    changed = [[value + (index == part) for index, value in enumerate(key)] for part in range(4)]
    assert len({int(bits(*each)[0]) for each in (key, *changed, key[::-1])}) == 6
    assert len(np.unique([bits(0, stream, 0, 0)[0] for stream in Stream])) == len(Stream) == 17
    assert len(np.unique(np.concatenate([bits(seed, MANY) for seed in range(5)]))) == 5 * len(MANY)


@pytest.mark.parametrize("key", [(MANY,), (1, MANY), (0, 3, MANY, 5), (MANY, 2), (2**63 + 5, MANY)])
def test_draws_are_uniform(key: tuple) -> None:
    values = uniform(*key)
    assert values.min() >= 0
    assert values.max() < 1
    assert abs(chi_square((values * 257).astype(int), 257)) < 4
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4 / np.sqrt(len(values))
    assert abs(chi_square(below(13, *key), 13)) < 4


def test_each_bit_is_set_half_the_time() -> None:
    words = bits(5, MANY)
    for bit in range(64):
        share = float(((words >> np.uint64(bit)) & np.uint64(1)).mean())
        assert abs(share - 0.5) < 4.5 * 0.5 / np.sqrt(len(MANY)), bit


def test_below_takes_a_limit_for_each_key() -> None:
    limits = np.array([1, 2, 3, 101])
    for key in range(200):
        assert (below(limits, key, np.arange(4)) < limits).all()
    assert below(1, 3).tolist() == [0]


@pytest.mark.parametrize("tosses", [0, 1, 2, 7, 63, 64, 65, 128, 131, 509])
def test_heads_are_binomial(tosses: int) -> None:
    heads = num_heads(np.full(len(MANY), tosses), 3, MANY)
    error = 5 * np.sqrt(max(tosses, 1) / 4 / len(MANY))
    assert heads.min() >= 0
    assert heads.max() <= tosses
    assert abs(heads.mean() - tosses / 2) <= error
    assert abs(heads.var() - tosses / 4) <= 0.03 * max(tosses, 1) / 4


def test_heads_of_different_tosses_are_those_of_each_alone() -> None:
    tosses = np.array([0, 130, 3, 64, 700, 0, 65])
    keys = np.arange(7)
    together = num_heads(tosses, 9, keys)
    assert together.tolist() == [num_heads(tosses[i : i + 1], 9, keys[i : i + 1])[0] for i in range(7)]
    assert tosses.tolist() == [0, 130, 3, 64, 700, 0, 65]


@pytest.mark.parametrize("sizes", [range(1, 301), [4095, 4096, 4097, 100_003]])
def test_permute_is_a_bijection(sizes) -> None:
    for size in sizes:
        assert np.array_equal(np.sort(permute(np.arange(size), size, 0, size)), np.arange(size)), size


def test_permute_of_a_huge_range_stays_inside_and_repeats_nothing() -> None:
    size = 10**15 + 37
    index = np.concatenate([MANY, size - 1 - MANY])
    image = permute(index, size, 4)
    assert image.min() >= 0
    assert image.max() < size
    assert len(np.unique(image)) == len(index)


def test_permute_differs_by_key_and_is_the_same_one_by_one() -> None:
    orders = [permute(np.arange(53), 53, *key).tolist() for key in [(0, 0), (0, 1), (1, 0), (1, 1)]]
    assert len(set(map(tuple, orders))) == 4
    assert orders[0] != list(range(53))
    assert orders[0] == [permute(np.array([i]), 53, 0, 0)[0] for i in range(53)]
