"""Sums in the order of a binary tree: worked by hand, and the same bits however the parts are shared out."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor

from bertkit.base.errors import InputError
from bertkit.train import micro_batches
from bertkit.train.gradient_sum import TreeSum
from bertkit.train.micro_batches import num_parts_for


class Written(torch.Tensor):
    """Writes down how it was added."""

    text: str

    def __radd__(self, other: object) -> Tensor:
        raise AssertionError("never the other way round")

    def __add__(self, other: object) -> "Written":  # type: ignore[override]
        assert isinstance(other, Written)
        return written(f"({self.text}+{other.text})")


def written(text: str) -> Written:
    made = torch.zeros(()).as_subclass(Written)
    made.text = text
    return made


@pytest.mark.parametrize(
    ("num_parts", "expected"), [(1, "0"), (2, "(0+1)"), (4, "((0+1)+(2+3))"), (8, "(((0+1)+(2+3))+((4+5)+(6+7)))")]
)
def test_gradients_are_summed_in_fixed_tree_order(num_parts: int, expected: str) -> None:
    tree = TreeSum()
    for part in range(num_parts):
        tree.add(written(str(part)))
        assert len(tree._branches) == (part + 1).bit_count()  # no more than that is held
    assert tree.total().text == expected


def test_a_number_of_parts_that_is_no_power_of_two_has_no_total() -> None:
    tree = TreeSum()
    for part in range(3):
        tree.add(torch.tensor(float(part)))
    with pytest.raises(ValueError, match="unpack"):
        tree.total()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shares_of_the_tree_add_up_to_the_same_bits(dtype: torch.dtype) -> None:
    """What processes do by exchanging, here in one; and adding in a row gives other bits."""
    leaves = torch.from_numpy(np.random.default_rng(0).normal(size=(8, 997))).to(dtype)
    tree = TreeSum()
    for leaf in leaves:
        tree.add(leaf)
    for world in (1, 2, 4, 8):
        sums = []
        for process in range(world):
            branch = TreeSum()
            for leaf in leaves[8 * process // world : 8 * (process + 1) // world]:
                branch.add(leaf)
            sums.append(branch.total())
        distance = 1
        while distance < world:
            sums = [sums[process] + sums[process ^ distance] for process in range(world)]
            distance *= 2
        assert all(torch.equal(total, tree.total()) for total in sums)
    in_a_row = sum(leaves[1:], start=leaves[0])
    assert not torch.equal(in_a_row, tree.total())
    torch.testing.assert_close(in_a_row, tree.total())


def test_numbers_of_parts_and_micro_batches_of_eight_sequences() -> None:
    expected = {1: 4, 2: 4, 3: 4, 4: 4, 5: 4, 7: 4, 8: 8, 12: 8, 16: 16, 31: 16}
    assert {num_shards: num_parts_for(num_shards) for num_shards in expected} == expected
    ranges = {8: [(0, 8)], 3: [(0, 3), (3, 6), (6, 8)], 11: [(0, 8)]}
    assert {size: micro_batches.micro_batch_ranges(8, size) for size in ranges} == ranges


@pytest.mark.parametrize(("num_shards", "num_parts", "num_processes", "expected"), [
    (4, 4, 1, [[[0], [1], [2], [3]]]),
    (4, 4, 2, [[[0], [1]], [[2], [3]]]),
    (5, 4, 2, [[[0], [1]], [[2], [3, 4]]]),
    (3, 4, 1, [[[], [0], [1], [2]]]),
    (3, 4, 2, [[[], [0]], [[1], [2]]]),
    (8, 4, 4, [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]]]),
])  # fmt: skip
def test_the_micro_batches_of_the_parts(
    num_shards: int, num_parts: int, num_processes: int, expected: list[list[list[int]]]
) -> None:
    for process, parts in enumerate(expected):
        actual = [list(part) for part in micro_batches.local_parts(num_shards, num_parts, process, num_processes)]
        assert actual == parts
        share = micro_batches.local_micro_batches(num_shards, process, num_processes)
        assert [number for part in actual for number in part] == list(share)


@pytest.mark.parametrize(("num_micro_batches", "num_parts", "num_processes", "refused"), [
    (8, 4, 1, ""),
    (8, 4, 2, ""),
    (8, 4, 4, ""),
    (8, 4, 3, "3 processes: reproducibility=strict .* 1, 2 or 4"),
    (8, 4, 8, "8 processes: reproducibility=strict .* 1, 2 or 4"),
    (8, 8, 6, "6 processes: reproducibility=strict .* 1, 2, 4 or 8"),
    (8, 8, 8, ""),
    (2, None, 3, "3 processes but 2 micro-batches a step; raise batch.sequences"),
])  # fmt: skip
def test_processes_that_do_not_fit(
    num_micro_batches: int, num_parts: int | None, num_processes: int, refused: str
) -> None:
    with pytest.raises(InputError, match=refused) if refused else nullcontext():
        micro_batches.check_num_processes(num_micro_batches, num_parts, num_processes)
