"""Where sequences lie in a packed batch; padding and unpadding."""

import pytest
import torch

from bertkit.interop.padded import unpad
from bertkit.kernels.layout import Layout, pad

RUNS = [
    ([5], ((0, 1, 5),)),
    ([3, 3, 3], ((0, 3, 3),)),
    ([3, 3, 2, 3], ((0, 2, 3), (6, 1, 2), (8, 1, 3))),
    ([1, 2, 2, 7, 7, 7, 1], ((0, 1, 1), (1, 2, 2), (5, 3, 7), (26, 1, 1))),
]


@pytest.mark.parametrize(("lengths", "runs"), RUNS)
def test_neighbours_of_equal_length_make_a_run(lengths: list[int], runs: tuple) -> None:
    layout = Layout.from_lengths(torch.tensor(lengths))
    assert layout.runs == runs
    assert sum(count * length for _, count, length in layout.runs) == sum(lengths)


def test_starts_and_positions() -> None:
    layout = Layout.from_lengths(torch.tensor([3, 1, 2]))
    assert layout.starts.tolist() == [0, 3, 4]
    assert layout.position_ids.tolist() == [0, 1, 2, 0, 0, 1]
    assert (layout.bounds.tolist(), layout.bounds.dtype) == ([0, 3, 4, 6], torch.int32)
    assert layout.longest == 3
    assert layout.padded_indices.tolist() == [0, 1, 2, 3, 6, 7]


def test_slack_is_a_run_of_its_own() -> None:
    layout, without = (Layout.from_lengths(torch.tensor([3, 1, 2]), num_slack=slack) for slack in (2, 0))
    assert layout.runs == (*without.runs, (6, 2, 1))
    assert torch.equal(layout.starts, without.starts)
    assert layout.position_ids.tolist() == [*without.position_ids.tolist(), 0, 0]
    assert layout.bounds.tolist() == [0, 3, 4, 6, 7, 8]
    assert layout.padded_indices.tolist() == [*without.padded_indices.tolist(), 9, 12]


MASKS = {
    "right padding": [[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1]],
    "left padding": [[0, 0, 1, 1, 1], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1]],
    "holes": [[1, 0, 1, 0, 1], [0, 1, 0, 1, 0], [1, 1, 0, 0, 1]],
    "no padding": [[1, 1, 1, 1, 1]] * 3,
}
COLUMNS = {
    "right padding": [0, 1, 2, 0, 0, 1, 2, 3, 4],
    "left padding": [2, 3, 4, 4, 0, 1, 2, 3, 4],
    "holes": [0, 2, 4, 1, 3, 0, 1, 4],
    "no padding": [0, 1, 2, 3, 4] * 3,
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.float])
def test_unpad_and_pad_are_inverse(name: str, dtype: torch.dtype) -> None:
    mask = torch.tensor(MASKS[name], dtype=dtype)
    values = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0))
    indices, layout, _ = unpad(mask)
    packed = values.flatten(0, 1)[indices]
    assert layout.position_ids.tolist() == COLUMNS[name]
    assert packed[layout.starts].tolist() == [values[b, mask[b].bool()][0].tolist() for b in range(3)]
    assert torch.equal(pad(packed, indices, 3, 5), values * mask.bool()[..., None])


def test_a_row_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="every row needs at least one 1"):
        unpad(torch.tensor([[1, 1], [0, 0]]))


def test_padding_keeps_the_gradient() -> None:
    indices = unpad(torch.tensor([[0, 1], [1, 0]])).indices
    packed = torch.ones(2, 3, requires_grad=True)
    pad(packed, indices, 2, 2).sum().backward()
    assert torch.equal(packed.grad, torch.ones(2, 3))
