"""Three objectives; README.md shows how to use them."""

import dataclasses
import functools

import torch
import torch.nn.functional as F

import bertkit
from bertkit.interop.load import load_packed


@bertkit.objective("falling_masks")
class FallingMasks(bertkit.Objective):
    """Masked LM whose share of masks falls during the run, from `masking.probability` to `last` of it."""

    def __init__(self, *, last: float = 0.5):
        self.last = last

    def prepare(self, batch, moment):
        """Give some masked tokens back."""
        positions, labels = batch.masked_positions, batch.masked_labels
        is_kept = moment.random().random(len(positions)) < 1 - (1 - self.last) * moment.share
        ids = batch.input_ids.copy()
        ids[positions[~is_kept]] = labels[~is_kept]
        return dataclasses.replace(
            batch, input_ids=ids, masked_positions=positions[is_kept], masked_labels=labels[is_kept]
        )


@bertkit.objective("r_drop")
class RDrop(bertkit.Objective):
    """The task's loss of two passes with other dropout, and how far the two differ (Liang et al. 2021, equation 3)."""

    def __init__(self, *, weight: float = 1.0):
        self.weight = weight

    def counts(self, batch):
        """Return the number of texts twice."""
        return {**batch.loss_counts, "difference": len(batch.labels)}

    def losses(self, model, batch, precision):
        """Return the mean of the two losses, and the weighted divergence in both directions."""
        first, second = (bertkit.head_logits(model, batch, precision) for _ in range(2))
        terms = [bertkit.task_loss(model, batch, logits) for logits in (first, second)]
        logs = [F.log_softmax(logits.float(), -1) for logits in (first, second)]
        pairs = (logs, logs[::-1])
        both = sum(F.kl_div(own, other, reduction="sum", log_target=True) for own, other in pairs) / 2
        mean = dataclasses.replace(terms[0], sum=(terms[0].sum + terms[1].sum) / 2)
        return {
            batch.head: mean,
            "difference": bertkit.LossTerm(self.weight * both, len(batch.labels), None),
        }


@bertkit.objective("distillation")
class Distillation(bertkit.Objective):
    """The task's loss, and the cross-entropy with a teacher's probabilities at a temperature (Hinton et al. 2015, section 2)."""

    def __init__(self, *, teacher: str = "", temperature: float = 2.0, weight: float = 1.0):
        self.teacher, self.temperature, self.weight = teacher, temperature, weight

    @functools.cached_property
    def teaches(self):
        """The teacher, fine-tuned on the same labels, with the same vocabulary."""
        return load_packed(self.teacher).model.eval()

    def counts(self, batch):
        """Return the number of texts twice."""
        return {**batch.loss_counts, "distillation": len(batch.labels)}

    def losses(self, model, batch, precision):
        """Return both losses; the second is multiplied by the square of the temperature, which its gradient is divided by."""
        logits = bertkit.head_logits(model, batch, precision)
        with torch.no_grad():
            target = bertkit.head_logits(self.teaches.to(logits.device), batch, precision)
        own, target = (torch.log_softmax(each.float() / self.temperature, -1) for each in (logits, target))
        total = F.kl_div(own, target, reduction="sum", log_target=True) * self.temperature**2 * self.weight
        return {
            batch.head: bertkit.task_loss(model, batch, logits),
            "distillation": bertkit.LossTerm(total, len(batch.labels), None),
        }
