"""A smaller model learns from a larger one: from its logits and from its layers; README.md shows how to use it."""

import torch
import torch.nn.functional as F
from torch import nn

import bertkit
from bertkit.interop.load import load_packed


@bertkit.objective("distillation")
class Distillation(bertkit.Objective):
    """The task's loss, the teacher's probabilities at a temperature (Hinton et al. 2015, section 2), and the teacher's layers.

    Layer i of the n layers of the student learns layer i/n of the teacher's, by a linear map (Jiao et al. 2020, equation 8).
    """

    def __init__(self, *, teacher: str = "", temperature: float = 2.0, weight: float = 1.0, layers_weight: float = 1.0):
        self.teacher = load_packed(teacher).model.eval().requires_grad_(False)  # any model with the same vocabulary
        self.temperature, self.weight, self.layers_weight = temperature, weight, layers_weight

    def begin(self, model):
        """Return the linear maps, which are trained beside the student, and move the teacher to its device."""
        sizes = model.config.hidden_size, self.teacher.config.hidden_size
        self.teacher.to(next(model.parameters()).device)
        self.maps = nn.ModuleList(nn.Linear(*sizes) for _ in range(model.config.num_hidden_layers))
        return self.maps

    def counts(self, batch):
        """Return the number of texts for the teacher's logits, and the number of tokens for its layers."""
        (target,) = batch.targets.values()
        return {**batch.loss_counts, "logits": len(target.labels), "layers": batch.num_tokens}

    def losses(self, model, batch, precision):
        """Return the three losses; that of the logits is multiplied by the square of the temperature, by which its gradient is divided."""
        own = bertkit.outputs(model, batch, precision, hidden_states=True)
        with torch.no_grad():
            theirs = bertkit.outputs(self.teacher, batch, precision, hidden_states=True)
        ((head, target),) = batch.targets.items()
        if head not in ("sequence", "token") or target.labels.dtype.kind == "f":
            raise ValueError(f"head {head}: only the probabilities of a class of each text or token can be learned")
        pairs = own.logits[head], theirs.logits[head]
        logs = [torch.log_softmax(logits.float() / self.temperature, -1) for logits in pairs]
        difference = F.kl_div(*logs, reduction="sum", log_target=True) * self.temperature**2
        every = len(theirs.hidden_states[1:]) // len(self.maps)
        layers = zip(self.maps, own.hidden_states[1:], theirs.hidden_states[every::every], strict=True)
        distance = sum(F.mse_loss(to(x.float()), y.float()) for to, x, y in layers) / len(self.maps) * batch.num_tokens
        return {
            **bertkit.head_losses(model, batch, own.logits),
            "logits": bertkit.LossTerm(self.weight * difference, len(target.labels), None),
            "layers": bertkit.LossTerm(self.layers_weight * distance, batch.num_tokens, None),
        }
