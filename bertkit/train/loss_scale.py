"""Loss scaling, for training in float16.

Many gradients are smaller than 6e-8, the smallest number of float16. So the loss is multiplied by a factor before the backward
pass, and the gradient is divided by it before it is clipped. The factor is doubled after 2000 good steps in a row. If it makes
the gradient overflow, the step is skipped and the factor halved. All this happens on the device, and the host never waits.

Source: Micikevicius et al. 2018, "Mixed precision training", 3.2; the numbers are those of torch.amp.GradScaler.
"""

import torch
from torch import Tensor

FIRST, GROWTH, BACKOFF, GOOD_STEPS = 2.0**16, 2.0, 0.5, 2000
SMALLEST = 1.0  # a gradient that overflows with this factor is a fault


class LossScale:
    """The factor, and the number of good steps since it last changed."""

    def __init__(self, device: torch.device) -> None:
        self.factor = torch.tensor(FIRST, device=device)
        self._num_good = torch.zeros((), dtype=torch.int32, device=device)

    @classmethod
    def of(cls, precision: str, device: torch.device) -> "LossScale | None":
        """Return what a precision needs: only float16 has a factor."""
        return cls(device) if precision == "fp16" else None

    def update(self, found_inf: Tensor) -> None:
        """Halve the factor if `found_inf`, a tensor on the device, is 1; if it is 0, count a good step."""
        torch._amp_update_scale_(self.factor, self._num_good, found_inf, GROWTH, BACKOFF, GOOD_STEPS)

    @property
    def state(self) -> tuple[float, int]:
        """The two numbers, for a checkpoint; reading them waits for the device."""
        return float(self.factor), int(self._num_good)

    def restore(self, state: tuple[float, int]) -> None:
        """Restore the two numbers from a checkpoint."""
        self.factor.fill_(state[0])
        self._num_good.fill_(state[1])
