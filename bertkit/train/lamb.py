"""The optimizer LAMB."""

from collections.abc import Callable
from typing import Any

import torch

from bertkit.base import plugins
from bertkit.train.optimizer import Optimizer
from bertkit.train.train_config import OptimizerConfig


@plugins.option("optimizer", "lamb")
class Lamb(Optimizer):
    """LAMB, for very large batches: the Adam update of each weight matrix is rescaled to the norm of the matrix.

        u = m / c1 / (sqrt(v / c2) + epsilon) + decay p
        p = p - rate (|p| / |u|) u

    with c1 = 1 - beta1^t and c2 = 1 - beta2^t, or 1 without bias correction. The trust ratio |p| / |u| is 1 where
    either norm is 0, and for biases and LayerNorm.

    Source: You et al. 2020, algorithm 2, with phi the identity. Which parameters are not rescaled:
    NVIDIA/DeepLearningExamples PyTorch/LanguageModeling/BERT lamb_amp_opt, with `use_nvlamb` off.
    """

    def __init__(self, groups: list[dict[str, Any]], config: OptimizerConfig) -> None:
        numbers = {"lr": config.peak, "betas": (config.beta1, config.beta2), "eps": config.epsilon}
        super().__init__(groups, numbers)
        self.bias_correction = config.bias_correction
        self._begin()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        self._count()
        found_inf = torch.zeros((), device=self._num_updates.device) if self.found_inf is None else self.found_inf
        is_skipped = found_inf > 0
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            c1, c2 = (1 - beta**self._num_updates if self.bias_correction else 1.0 for beta in (beta1, beta2))
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                m = beta1 * state["exp_avg"] + (1 - beta1) * parameter.grad
                v = beta2 * state["exp_avg_sq"] + (1 - beta2) * parameter.grad**2
                update = (m / c1).div_((v / c2).sqrt_().add_(group["eps"]))
                update.add_(parameter, alpha=group["weight_decay"])
                if group["is_decayed"]:  # without waiting for the device
                    weight_norm, update_norm = parameter.norm(), update.norm()
                    has_norms = (weight_norm > 0) & (update_norm > 0)
                    update.mul_(torch.where(has_norms, weight_norm / update_norm, 1.0))
                for old, new in (
                    (state["exp_avg"], m),
                    (state["exp_avg_sq"], v),
                    (parameter, parameter - group["lr"] * update),
                ):
                    old.copy_(torch.where(is_skipped, old, new))
