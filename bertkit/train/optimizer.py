"""The optimizers AdamW, as in BERT, and LAMB, parameter groups, and gradient clipping."""

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bertkit.base import plugins
from bertkit.train.train_config import OptimizerConfig

MOMENTS = ("exp_avg", "exp_avg_sq")
_adamw_step = inspect.unwrap(torch.optim.AdamW.step)


class Optimizer(torch.optim.Optimizer):
    """An optimizer with Adam's two moments for every parameter; checkpoints save and restore them.

    m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
    """

    # a tensor on the device: 1 skips the next step; 0, or None, updates. torch's fused kernel reads it under this name
    found_inf: Tensor | None = None
    unsaved: tuple[str, ...] = ()  # keys of the state that a checkpoint does not hold
    # without torch's wrappers, which import torch._dynamo: three seconds, for compiled steps alone
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)

    def _begin(self) -> None:
        """Initialise the moments and the number of updates to 0."""
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {moment: torch.zeros_like(parameter) for moment in MOMENTS}
        device = self.param_groups[0]["params"][0].device
        self._num_updates = torch.zeros((), dtype=torch.float64, device=device)

    @property
    def num_updates(self) -> int:
        """The number of updates, not counting skipped steps; reading it waits for the device."""
        return int(self._num_updates)

    def _count(self) -> None:
        self._num_updates += 1 if self.found_inf is None else 1 - self.found_inf

    def update(self, learning_rate: float, found_inf: Tensor) -> None:
        """Update the weights, unless `found_inf` is 1, and remove the gradients."""
        self.found_inf = found_inf
        for group in self.param_groups:
            group["lr"] = learning_rate * group["rate_scale"]
        self.step()
        self.zero_grad(set_to_none=True)

    def tensors(self, names: dict[Tensor, str]) -> dict[str, Tensor]:
        """Return the tensors of the state by parameter name, for a checkpoint."""
        items = [(names[p], key, value) for p, state in self.state.items() for key, value in state.items()]
        return {f"{name}.{key}": value for name, key, value in items if key not in self.unsaved and value is not None}

    def restore(self, tensors: dict[str, Tensor], names: dict[Tensor, str], num_updates: int) -> None:
        """Restore the tensors of the state by parameter name from a checkpoint."""
        self._num_updates.fill_(num_updates)
        parameters = {name: parameter for parameter, name in names.items()}
        for full_name, tensor in tensors.items():
            name, _, key = full_name.rpartition(".")
            if name in parameters:
                device = tensor.device if key == "step" else parameters[name].device  # torch counts steps on the CPU
                self.state[parameters[name]][key] = tensor.to(device)


@plugins.option("optimizer", "adamw")
class AdamW(Optimizer, torch.optim.AdamW):
    """AdamW: Adam with decoupled weight decay, with or without bias correction.

        p = p - rate (m / (sqrt(v) + epsilon) + decay p)

    torch's fused kernel is four times faster than an update in Python, but it always corrects the bias: it divides m by
    1 - beta1^t and v by 1 - beta2^t. BERT does not correct the bias, so we set t to infinity, which makes both divisors 1.

    Source: google-research/bert optimization.py, `AdamWeightDecayOptimizer`.
    """

    unsaved = ("step",)

    def __init__(self, groups: list[dict[str, Any]], config: OptimizerConfig) -> None:
        betas = (config.beta1, config.beta2)
        super().__init__(groups, lr=config.peak, betas=betas, eps=config.epsilon, fused=True)
        self.bias_correction = config.bias_correction
        self._begin()
        self._set_kernel_count(0)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        self._count()
        _adamw_step(self, closure)

    def restore(self, tensors: dict[str, Tensor], names: dict[Tensor, str], num_updates: int) -> None:
        """Restore the moments by parameter name from a checkpoint."""
        super().restore(tensors, names, num_updates)
        self._set_kernel_count(num_updates)

    def _set_kernel_count(self, num_updates: int) -> None:
        """Set t, which the kernel stores for each parameter."""
        count = float(num_updates) if self.bias_correction else math.inf
        for parameter, state in self.state.items():
            state["step"] = torch.tensor(count, device=parameter.device)


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


class Adapted(Optimizer):
    """Any optimizer of torch, with what checkpoints and skipped steps need."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        inner.param_groups, self.inner, self.state = self.param_groups, inner, inner.state
        self._num_updates = torch.zeros((), dtype=torch.float64)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; this waits for the device, to learn whether to skip."""
        if self.found_inf is None or not self.found_inf:
            self.inner.step()
            self._num_updates += 1


def make_optimizer(groups: list[dict[str, Any]], config: OptimizerConfig) -> Optimizer:
    """Make the optimizer of a run: `optimizer(groups, config)` returns one of ours or, as plug-ins do, one of torch's."""
    made = plugins.bind("optimizer", config.name, config.options)(groups, config)
    if not isinstance(made, torch.optim.Optimizer) or len(made.param_groups) != len(groups):
        expected = f"one of torch's optimizers, with all {len(groups)} groups"
        raise plugins.wrong_result("optimizer", config.name, made, expected)
    return made if isinstance(made, Optimizer) else Adapted(made)


def parameter_groups(
    model: nn.Module, weight_decay: float, rate_scale_of: Callable[[str], float] = lambda name: 1.0
) -> list[dict[str, Any]]:
    """Return parameter groups: matrices have weight decay; vectors, the parameters of norms and all biases, have none.

    `rate_scale_of` takes the name of a parameter and returns the factor for its learning rate.

    Source: google-research/bert optimization.py, lines 59-65.
    """
    parts: dict[float, tuple[list[Tensor], list[Tensor]]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decayed, not_decayed = parts.setdefault(rate_scale_of(name), ([], []))
            (decayed if parameter.ndim > 1 else not_decayed).append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, "is_decayed": is_decayed, "rate_scale": scale}
        for scale, (decayed, not_decayed) in parts.items()
        for parameters, decay, is_decayed in ((decayed, weight_decay, True), (not_decayed, 0.0, False))
        if parameters
    ]


def clip_global_norm(parameters: Iterable[Tensor], max_norm: float, factor: Tensor | float = 1.0) -> Tensor:
    """Scale all gradients so that their global norm is at most `max_norm`; return the norm before clipping, on the device.

        g = g / max(norm / max_norm, 1)

    The gradients, but not the norm, are those of the loss times `factor`, by which they are divided too (`loss_scale.py`).

    Source: google-research/bert optimization.py, line 74 (`tf.clip_by_global_norm`). torch's own function divides by
    norm + 1e-6, so every clipped update would be smaller by a factor of about 1e-6.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))) / factor
    torch._foreach_div_(gradients, (norm / max_norm).clamp(min=1.0) * factor)
    return norm  # type: ignore[no-any-return]
