"""The kernels of `kernels.elementwise` beside the plain equations."""

import torch
import torch.nn.functional as F

from bertkit.kernels.elementwise import GatedGelu
from bertkit.model.positions import rotate_halves, turn_halves


def test_fewer_passes_compute_the_same_vectors_and_gradients() -> None:
    """Rotary positions in halves, and units gated by GELU: rows beyond one block, and positions with gaps."""
    draws = torch.Generator().manual_seed(0)
    vectors = torch.randn(261, 3, 14, generator=draws, dtype=torch.float64, requires_grad=True)
    places = torch.randint(0, 301, (261,), generator=draws)
    gated = torch.randn(261, 22, generator=draws, dtype=torch.float64, requires_grad=True)
    expected = rotate_halves(vectors, places, 100.0), F.gelu(gated[:, :11]) * gated[:, 11:]
    actual = turn_halves(vectors, places, 100.0), GatedGelu.apply(gated)
    for theirs, ours, inputs in zip(expected, actual, (vectors, gated), strict=True):
        torch.testing.assert_close(ours, theirs)
        weights = torch.randn(theirs.shape, generator=draws, dtype=torch.float64)
        of_each = [torch.autograd.grad(each, inputs, weights)[0] for each in (theirs, ours)]
        torch.testing.assert_close(*of_each)
