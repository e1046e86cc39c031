"""A plug-in: Muon for hidden matrices, AdamW for all else (`optimizer.name=muon plugins=[muon]`).

Source: Jordan et al. 2024, kellerjordan.github.io/posts/muon; the size of an update, that of AdamW, is from Liu et al. 2025
(arXiv 2502.16982, section 2.2). `torch.optim.Muon` computes in bfloat16, which is slow on a CPU without it: 7.9 s for the matrices of
modern_mini, 0.33 s in float32.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import bertkit

MOMENTUM, NUM_ITERATIONS, COEFFICIENTS = 0.95, 5, (3.4445, -4.7750, 2.0315)
SMALLEST_VOCABULARY = 4096  # a matrix with as many rows is that of the token embeddings


@bertkit.optimizer("muon")
class Muon(torch.optim.AdamW):
    """The update of a matrix of F x D is its momentum made orthogonal, times 0.2 sqrt(max(F, D))."""

    def __init__(self, groups: list[dict[str, Any]], config: Any) -> None:
        super().__init__(groups, lr=config.peak, betas=(config.beta1, config.beta2), eps=config.epsilon)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for matrix in filter(_is_hidden, group["params"]):
                state = self.state[matrix]
                momentum = state.setdefault("momentum", torch.zeros_like(matrix)).lerp_(matrix.grad, 1 - MOMENTUM)
                update = orthogonal(matrix.grad.lerp(momentum, MOMENTUM))
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-group["lr"] * 0.2 * max(matrix.shape) ** 0.5)
                matrix.grad = None  # AdamW leaves it alone
        super().step(closure)


def _is_hidden(parameter: Tensor) -> bool:
    return parameter.grad is not None and parameter.ndim == 2 and len(parameter) < SMALLEST_VOCABULARY


def orthogonal(matrix: Tensor) -> Tensor:
    """Return the nearest matrix with singular values of about 1, by Newton and Schulz's iteration."""
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    made = (matrix.T if is_tall else matrix) / (matrix.norm() + 1e-7)
    for _ in range(NUM_ITERATIONS):
        gram = made @ made.T
        made = a * made + (b * gram + c * gram @ gram) @ made
    return made.T if is_tall else made
