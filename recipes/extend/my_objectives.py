"""Two objectives; README.md shows how to use them."""

import dataclasses

import torch.nn.functional as F

import bertkit


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
        masks = bertkit.Target(labels[is_kept], positions[is_kept])
        return dataclasses.replace(batch, input_ids=ids, targets={**batch.targets, "masked_lm": masks})


def divergence(batch, logits, others):
    """Return how far the predictions of a batch differ: the sum of the KL divergences both ways; of numbers the squared differences."""
    ((head, target),) = batch.targets.items()
    if head not in ("sequence", "token") or target.labels.ndim > 1:
        raise ValueError(f"head {head}: only a class of each text or token, or a number, can be compared")
    if logits.shape[-1] == 1:
        return F.mse_loss(others, logits, reduction="sum")
    logs = [F.log_softmax(each.float(), -1) for each in (logits, others)]
    return sum(F.kl_div(own, other, reduction="sum", log_target=True) for own, other in (logs, logs[::-1]))


@bertkit.objective("r_drop")
class RDrop(bertkit.Objective):
    """The task's loss of two passes with other dropout, and how far the two differ (Liang et al. 2021, equation 3)."""

    def __init__(self, *, weight: float = 1.0):
        self.weight = weight

    def counts(self, batch):
        """Return the number of labels twice."""
        (target,) = batch.targets.values()
        return {**batch.loss_counts, "difference": len(target.labels)}

    def losses(self, model, batch, precision):
        """Return the mean of the two losses, and the weighted divergence, the mean of both directions."""
        (head,) = batch.targets
        passes = [bertkit.outputs(model, batch, precision).logits for _ in range(2)]
        terms = [bertkit.head_losses(model, batch, logits)[head] for logits in passes]
        mean = dataclasses.replace(terms[0], sum=(terms[0].sum + terms[1].sum) / 2)
        both = divergence(batch, *(logits[head] for logits in passes)) / 2
        return {head: mean, "difference": bertkit.LossTerm(self.weight * both, self.counts(batch)["difference"], None)}
